// SPDX-License-Identifier: MIT OR Apache-2.0
//! Searches a program's name in the directories of SEARCH_PATH, in the calling thread.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags};
use spawnfd_sys::Errno;

use crate::copy::MAX_PATH;
use crate::errno;

/// The directory that the child will be in, as far as the actions so far change it. `None`: the caller's.
#[derive(Debug, Default)]
pub(super) struct Directory(Option<OwnedFd>);

impl Directory {
    /// Follows a change of the directory. A path that cannot be opened has no effect, because the child's action then
    /// fails too.
    pub(super) fn enter(&mut self, path: &CStr) {
        if let Ok(directory) = rustix::fs::openat(self.start(), path, FLAGS, Mode::empty()) {
            self.0 = Some(directory);
        }
    }

    /// Follows a change to an open directory.
    pub(super) fn enter_open(&mut self, directory: BorrowedFd<'_>) {
        self.0 = rustix::fs::openat(directory, c".", FLAGS, Mode::empty()).ok().or(self.0.take());
    }

    fn start(&self) -> BorrowedFd<'_> {
        self.0.as_ref().map_or(CWD, OwnedFd::as_fd)
    }

    /// Finds the first file of this name that the caller may execute, and returns its path.
    ///
    /// # Errors
    /// EACCES: some files of this name exist, but the caller may execute none of them. ENOENT: no such file. Another
    /// errno ends the search.
    pub(super) fn search(&self, name: &CStr, search_path: &CStr) -> Result<CString, Errno> {
        let mut outcome = Errno::ENOENT;
        for directory in search_path.to_bytes().split(|&byte| byte == b':') {
            let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
            let path = [directory, slash, name.to_bytes()].concat();
            let candidate = match CString::new(path) {
                Ok(candidate) if candidate.as_bytes_with_nul().len() <= MAX_PATH => candidate,
                _ => continue,
            };
            match self.check(&candidate).map_err(errno::of) {
                Ok(()) => return Ok(candidate),
                Err(Errno::EACCES) => outcome = Errno::EACCES,
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE | Errno::ENODEV | Errno::ETIMEDOUT) => {}
                Err(Errno::ENAMETOOLONG) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(outcome)
    }

    /// Checks that the caller may execute a file.
    fn check(&self, path: &CStr) -> rustix::io::Result<()> {
        let stat = rustix::fs::statat(self.start(), path, AtFlags::empty())?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(rustix::io::Errno::ACCESS);
        }
        rustix::fs::accessat(self.start(), path, Access::EXEC_OK, AtFlags::EACCESS)
    }
}

const FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
