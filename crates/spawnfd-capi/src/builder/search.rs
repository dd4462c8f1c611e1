// SPDX-License-Identifier: MIT OR Apache-2.0
//! Searches a program's name in the directories of SEARCH_PATH, in the calling thread.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::copy::MAX_PATH;

/// The directory that the child will be in, as far as the actions so far change it. `None`: the caller's.
#[derive(Debug, Default)]
pub(super) struct Directory(Option<OwnedFd>);

impl Directory {
    /// Follows a change of the directory. A path that cannot be opened has no effect, because the child's action then
    /// fails too.
    pub(super) fn enter(&mut self, path: &CStr) {
        if let Ok(directory) = self.open(path) {
            self.0 = Some(directory);
        }
    }

    /// Follows a change to an open directory.
    pub(super) fn enter_open(&mut self, directory: impl AsFd) {
        if let Ok(directory) = rustix::fs::openat(directory, c".", FLAGS, Mode::empty()) {
            self.0 = Some(directory);
        }
    }

    fn open(&self, path: &CStr) -> Result<OwnedFd, Errno> {
        match &self.0 {
            Some(directory) => rustix::fs::openat(directory, path, FLAGS, Mode::empty()),
            None => rustix::fs::openat(CWD, path, FLAGS, Mode::empty()),
        }
    }

    /// Finds the first file of this name that the caller may execute, and returns its path.
    ///
    /// # Errors
    /// EACCES: some files of this name exist, but the caller may execute none of them. ENOENT: no such file. Another
    /// errno ends the search.
    pub(super) fn search(&self, name: &CStr, search_path: &CStr) -> Result<CString, Errno> {
        let mut outcome = Errno::NOENT;
        for directory in search_path.to_bytes().split(|&byte| byte == b':') {
            let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
            let path = [directory, slash, name.to_bytes()].concat();
            let candidate = match CString::new(path) {
                Ok(candidate) if candidate.as_bytes_with_nul().len() <= MAX_PATH => candidate,
                _ => continue,
            };
            match self.check(&candidate) {
                Ok(()) => return Ok(candidate),
                Err(Errno::ACCESS) => outcome = Errno::ACCESS,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::NODEV | Errno::TIMEDOUT) => {}
                Err(Errno::NAMETOOLONG) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(outcome)
    }

    /// Checks that the caller may execute a file.
    fn check(&self, path: &CStr) -> Result<(), Errno> {
        let directory = self.0.as_ref().map_or(CWD, |directory| directory.as_fd());
        let stat = rustix::fs::statat(directory, path, AtFlags::empty())?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::ACCESS);
        }
        rustix::fs::accessat(directory, path, Access::EXEC_OK, AtFlags::EACCESS)
    }
}

const FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
