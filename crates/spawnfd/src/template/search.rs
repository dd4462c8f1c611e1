// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a program's name in a PATH.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use spawnfd_sys::{Errno, call};

use crate::error::{Error, Result, Stage, shown, shown_c};
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
        let message = format!("a program's name must not be empty or contain a NUL byte, nor must PATH: got {name:?}");
        return Err(Error::invalid(format!("search({name:?})")).saying(message));
    }
    let mut candidates: Vec<CString> = Vec::new();
    for directory in path.as_bytes().split(|&byte| byte == b':').filter(|directory| directory.first() == Some(&b'/')) {
        match CString::new([directory, b"/", name.as_bytes()].concat()) {
            Ok(candidate) if !candidates.contains(&candidate) => candidates.push(candidate),
            _ => {}
        }
    }
    let killed = features::killed();
    if let Some(index) = candidates.iter().position(|candidate| spawnfd_child::is_candidate(killed, candidate)) {
        return Ok(SearchResult { candidates, index });
    }
    let is_refused = |candidate: &&CString| call::may_execute(killed, candidate) == Err(Errno::EACCES);
    match candidates.iter().find(is_refused) {
        Some(refused) => {
            let message = format!("{}: found in PATH, but permission denied: {}", shown(name), shown_c(refused));
            Err(failed(Errno::EACCES).saying(message))
        }
        None => {
            let directories = match candidates.len() {
                0 => "which has no absolute directory".to_owned(),
                1 => "searched 1 directory".to_owned(),
                count => format!("searched {count} directories"),
            };
            Err(failed(Errno::ENOENT).saying(format!("{}: not found in PATH ({directories})", shown(name))))
        }
    }
}
