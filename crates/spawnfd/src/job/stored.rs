// SPDX-License-Identifier: MIT OR Apache-2.0
//! An output or an error with all its fields, for another process.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Output, SpillFile};
use crate::child::Started;
use crate::error::{Errno, Error};

/// An output or an error that is serialized with all its fields. [`Output`] itself is serialized as its JSON form.
#[derive(Debug)]
pub struct Stored<T>(pub T);

impl Serialize for Stored<&Output> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Output::serialize(self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Stored<Output> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stored<Output>, D::Error> {
        Output::deserialize(deserializer).map(Stored)
    }
}

impl Serialize for Stored<&Error> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.parts().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Stored<Error> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stored<Error>, D::Error> {
        let error = Error::of_parts(Deserialize::deserialize(deserializer)?);
        error.map(Stored).ok_or_else(|| D::Error::custom("unknown stage"))
    }
}

/// Defines a module for `#[serde(with)]` that stores a value as another one.
macro_rules! stored_as {
    ($($module:ident: $type:ty as $stored:ty, $to:expr, $from:expr;)+) => { $(
        pub(crate) mod $module {
            use super::*;

            pub(crate) fn serialize<S: Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                let to: fn(&$type) -> $stored = $to;
                to(value).serialize(serializer)
            }

            pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let from: fn($stored) -> Result<$type, String> = $from;
                from(<$stored>::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }
    )+ };
}

stored_as! {
    status: Option<ExitStatus> as Option<i32>,
        |status| status.map(ExitStatusExt::into_raw), |raw| Ok(raw.map(ExitStatus::from_raw));
    errno: Errno as i32, |errno| errno.raw(), |raw| Ok(Errno::from_raw(raw));
    started: Started as Cow<'static, str>, |started| started.name(),
        |name| Started::from_name(&name).ok_or_else(|| format!("unknown start {name:?}"));
    path: Option<PathBuf> as Option<serde_bytes::ByteBuf>,
        |path| path.as_ref().map(|path| serde_bytes::ByteBuf::from(path.as_os_str().as_bytes())),
        |bytes| Ok(bytes.map(|bytes| OsString::from_vec(bytes.into_vec()).into()));
    spill_file: Option<SpillFile> as Option<serde_bytes::ByteBuf>,
        |file| file.as_ref().map(|file| serde_bytes::ByteBuf::from(file.path().as_os_str().as_bytes())),
        |bytes| Ok(bytes.map(|bytes| SpillFile::of_other_process(OsString::from_vec(bytes.into_vec()).into())));
}
