// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a program's name in a PATH.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

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

fn parts(path: &OsStr) -> impl Iterator<Item = &[u8]> {
    path.as_bytes().split(|&byte| byte == b':')
}

fn is_absolute(part: &[u8]) -> bool {
    part.first() == Some(&b'/')
}

/// Returns the directory at which the relative and the empty parts of `path` start: `directory`, or this process's
/// directory. `None` if `path` has no such part, or if the directory has no path.
pub(crate) fn start_of_relative_parts(path: &OsStr, directory: Option<&Path>) -> Option<PathBuf> {
    if parts(path).all(is_absolute) {
        return None;
    }
    std::path::absolute(directory.unwrap_or(Path::new("."))).ok()
}

/// Searches `name` in the parts of `path` as execvp(3) does. Relative and empty parts start at the absolute path
/// `directory`. If there is none, no relative path leads to a file, so the search skips these parts.
pub(crate) fn search(name: &OsStr, path: &OsStr, directory: Option<&Path>) -> Result<SearchResult> {
    let failed = |errno| Error::new(Stage::Template, errno, format!("search({name:?}, PATH={path:?})"));
    if name.is_empty() || name.as_bytes().contains(&0) || path.as_bytes().contains(&0) {
        let message = format!("a program's name must not be empty or contain a NUL byte, nor must PATH: got {name:?}");
        return Err(Error::invalid(format!("search({name:?})")).saying(message));
    }
    let mut candidates: Vec<CString> = Vec::new();
    for part in parts(path) {
        let candidate = match directory {
            _ if is_absolute(part) => [part, b"/", name.as_bytes()].concat(),
            // This removes the dots of a part such as `.` or `./bin`, and reads no file.
            Some(directory) => match std::path::absolute(directory.join(OsStr::from_bytes(part)).join(name)) {
                Ok(candidate) => candidate.into_os_string().into_vec(),
                Err(_) => continue,
            },
            None => continue,
        };
        match CString::new(candidate) {
            Ok(candidate) if !candidates.contains(&candidate) => candidates.push(candidate),
            _ => {}
        }
    }
    let killed_calls = features::killed_calls();
    if let Some(index) = candidates.iter().position(|candidate| spawnfd_child::is_candidate(killed_calls, candidate)) {
        return Ok(SearchResult { candidates, index });
    }
    let is_refused = |candidate: &&CString| call::may_execute(killed_calls, candidate) == Err(Errno::EACCES);
    match candidates.iter().find(is_refused) {
        Some(refused) => {
            let message = format!("{}: found in PATH, but permission denied: {}", shown(name), shown_c(refused));
            Err(failed(Errno::EACCES).saying(message))
        }
        None => {
            let directories = match candidates.len() {
                0 => "the current directory has no path".to_owned(),
                1 => "searched 1 directory".to_owned(),
                count => format!("searched {count} directories"),
            };
            Err(failed(Errno::ENOENT).saying(format!("{}: not found in PATH ({directories})", shown(name))))
        }
    }
}
