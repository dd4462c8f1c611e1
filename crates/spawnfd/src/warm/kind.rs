// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a program parks, and which of its arguments are read before that.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use spawnfd_sys::ArgBlock;

/// Where a program parks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// At main(), before it has looked at anything: any program that is linked to glibc dynamically.
    Main,
    /// After CPython's initialisation.
    Python,
    /// After Node's.
    Node,
}

impl Kind {
    /// By a program's name.
    pub(super) fn of(path: &Path) -> Kind {
        match path.file_name().map(OsStr::as_bytes) {
            Some(b"node" | b"nodejs") => Kind::Node,
            Some(name) if is_python(name) => Kind::Python,
            _ => Kind::Main,
        }
    }

    pub(super) fn letter(self) -> char {
        match self {
            Kind::Main => 'm',
            Kind::Python => 'p',
            Kind::Node => 'n',
        }
    }

    /// Whether a process that was parked with these arguments can become a program that has `argv`.
    pub(super) fn fits(self, args: &[OsString], argv: &ArgBlock) -> Result<(), &'static str> {
        let mut given = argv.iter().skip(1).map(std::ffi::CStr::to_bytes);
        if args.iter().any(|arg| given.next() != Some(arg.as_bytes())) {
            return Err("arguments");
        }
        // Then come what to run, and its own arguments. (With nothing at all there may be a prompt.)
        match (self, given.next().unwrap_or_default()) {
            (Kind::Main, _) | (Kind::Python, b"-c" | b"-m") => Ok(()),
            (Kind::Node, b"-e" | b"-p" | b"-pe" | b"--eval" | b"--print") => Ok(()),
            (_, b"-") => Ok(()),
            (_, b"" | [b'-', ..]) => Err("arguments"),
            (_, _script) => Ok(()),
        }
    }
}

fn is_python(name: &[u8]) -> bool {
    name.strip_prefix(b"python")
        .is_some_and(|version| version.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.'))
}
