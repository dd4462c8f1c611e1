// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding a name in a PATH.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use spawnfd_sys::{Errno, call};

use crate::error::{Error, Result, Stage};

/// Where a name was found, and the places before it that do not have it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: CString,
    pub(crate) earlier: Vec<CString>,
}

/// The PATH of this process, or what the C library takes for none.
pub(crate) fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"))
}

pub(crate) fn search(name: &OsStr, path: &OsStr) -> Result<Found> {
    let failed = |errno| Error::new(Stage::Template, errno, format!("search({name:?}, PATH={path:?})"));
    if name.is_empty() || name.as_bytes().contains(&0) || path.as_bytes().contains(&0) {
        return Err(Error::invalid(format!("search({name:?})")));
    }
    let mut earlier = Vec::new();
    let mut answer = Errno::ENOENT;
    for directory in path.as_bytes().split(|&byte| byte == b':').filter(|directory| directory.first() == Some(&b'/')) {
        let bytes = [directory, b"/", name.as_bytes()].concat();
        let Ok(candidate) = CString::new(bytes) else { continue };
        if earlier.contains(&candidate) {
            continue;
        }
        if spawnfd_child::is_candidate(&candidate) {
            return Ok(Found { path: candidate, earlier });
        }
        if call::may_execute(&candidate) == Err(Errno::EACCES) {
            answer = Errno::EACCES;
        }
        earlier.push(candidate);
    }
    Err(failed(answer))
}
