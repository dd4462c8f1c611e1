// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a program's name in a PATH.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use spawnfd_sys::{Errno, call};

use crate::error::{Error, Result, Stage};
use crate::host::features;

/// All paths that a search tries, in order, without duplicates.
pub(crate) struct SearchResult {
    pub(crate) candidates: Vec<CString>,
    /// The index of the first path that is an executable.
    pub(crate) index: usize,
}

/// The PATH of this process, or the C library's default.
pub(crate) fn search_path() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"))
}

pub(crate) fn search(name: &OsStr, path: &OsStr) -> Result<SearchResult> {
    let failed = |errno| Error::new(Stage::Template, errno, format!("search({name:?}, PATH={path:?})"));
    if name.is_empty() || name.as_bytes().contains(&0) || path.as_bytes().contains(&0) {
        return Err(Error::invalid(format!("search({name:?})")));
    }
    let mut candidates: Vec<CString> = Vec::new();
    for directory in path.as_bytes().split(|&byte| byte == b':').filter(|directory| directory.first() == Some(&b'/')) {
        match CString::new([directory, b"/", name.as_bytes()].concat()) {
            Ok(candidate) if !candidates.contains(&candidate) => candidates.push(candidate),
            _ => {}
        }
    }
    let killed = features::killed();
    match candidates.iter().position(|candidate| spawnfd_child::is_candidate(killed, candidate)) {
        Some(index) => Ok(SearchResult { candidates, index }),
        None if candidates.iter().any(|candidate| call::may_execute(killed, candidate) == Err(Errno::EACCES)) => {
            Err(failed(Errno::EACCES))
        }
        None => Err(failed(Errno::ENOENT)),
    }
}
