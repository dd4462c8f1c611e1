// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contents of a template: the executable's path, and a code over its identity.
//!
//! A record cannot contain an open file. So a template by descriptor keeps the path of the descriptor's file.

use core::ffi::CStr;
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use spawnfd_child::Identity;
use spawnfd_sys::{CallSet, Errno, RawFd, abi, call};

use crate::copy::MAX_PATH;
use crate::errno;
use crate::record::{self, CODE, Kind};

/// A template.
#[derive(Debug)]
pub struct Recorded {
    /// The code over the executable's identity.
    identity: [u8; CODE],
    path: CString,
}

/// The executable of a template, as a spawn has found it.
#[derive(Debug)]
pub struct Program {
    /// The file, opened only as a path (O_PATH).
    pub file: OwnedFd,
    pub path: CString,
    pub identity: Identity,
}

impl Recorded {
    /// Records the executable that an absolute path names.
    ///
    /// # Errors
    /// EINVAL: the path is relative or too long. EACCES: the file is not regular, or the caller may not execute it. The
    /// errors of open(2).
    pub fn of_path(killed_calls: CallSet, path: &CStr) -> Result<Recorded, Errno> {
        let bytes = path.to_bytes();
        if bytes.len() >= MAX_PATH || !bytes.starts_with(b"/") {
            return Err(Errno::EINVAL);
        }
        let file = open(path)?;
        let identity = identify(killed_calls, file.as_raw_fd())?;
        call::may_execute(killed_calls, path)?;
        Ok(Recorded { identity: code_of(identity)?, path: path.to_owned() })
    }

    /// Records the executable of a descriptor, with the path of the descriptor's file.
    ///
    /// # Errors
    /// EBADF: the descriptor is not open, or has only a path (O_PATH). EACCES: the file is not regular, or the caller
    /// may not execute it. EOPNOTSUPP: no path leads to the file.
    pub fn of_descriptor(killed_calls: CallSet, fd: RawFd) -> Result<Recorded, Errno> {
        let fd = borrow(fd)?;
        let identity = identify(killed_calls, fd.as_raw_fd())?;
        let link = CString::new(format!("/proc/thread-self/fd/{}", fd.as_raw_fd())).map_err(|_| Errno::EINVAL)?;
        match call::may_execute(killed_calls, &link) {
            Ok(_) => {}
            Err(Errno::EACCES) => return Err(Errno::EACCES),
            // There is no /proc.
            Err(_) => return Err(Errno::EOPNOTSUPP),
        }
        let path = rustix::fs::readlinkat(CWD, &*link, Vec::new()).map_err(|_| Errno::EOPNOTSUPP)?;
        let found = match open(&path) {
            Err(errno) if is_exhaustion(errno) => return Err(errno),
            found => found.and_then(|file| identify(killed_calls, file.as_raw_fd())),
        };
        // The file has been deleted, is a memfd, or is in another mount namespace.
        if found != Ok(identity) || path.to_bytes().len() >= MAX_PATH || !path.to_bytes().starts_with(b"/") {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(Recorded { identity: code_of(identity)?, path })
    }

    /// Stores the template, and returns its descriptor.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM. EFBIG: RLIMIT_FSIZE is too low. EPERM: a filter refuses memfd_create(2).
    pub fn store(&self, close_on_exec: bool) -> Result<OwnedFd, Errno> {
        record::create_sealed(Kind::Template, &[&self.identity, self.path.as_bytes()].concat(), close_on_exec)
    }

    /// Loads the template of a descriptor.
    ///
    /// # Errors
    /// EBADF: the descriptor is not open. EINVAL: it is no template. EACCES: the calling thread's process did not
    /// create the template, or the thread's credentials differ from those of the creator.
    pub fn load(fd: RawFd) -> Result<Recorded, Errno> {
        let (_, body) = record::read(borrow(fd)?, Kind::Template)?;
        // This process has written the record, so the record is complete.
        let (identity, path) = body.split_first_chunk().ok_or(Errno::EACCES)?;
        Ok(Recorded { identity: *identity, path: CString::new(path).map_err(|_| Errno::EACCES)? })
    }

    /// Opens the executable, which must be the recorded file, unchanged.
    ///
    /// # Errors
    /// ESTALE: the path names another file, the file has changed, or the caller may no longer execute the file. EMFILE,
    /// ENFILE, ENOMEM: the file could not be opened.
    pub fn open(self, killed_calls: CallSet) -> Result<Program, Errno> {
        let stale = |errno| if is_exhaustion(errno) { errno } else { Errno::ESTALE };
        let file = open(&self.path).map_err(stale)?;
        let identity = identify(killed_calls, file.as_raw_fd()).map_err(stale)?;
        if code_of(identity)? != self.identity || call::may_execute(killed_calls, &self.path).is_err() {
            return Err(Errno::ESTALE);
        }
        Ok(Program { file, path: self.path, identity })
    }
}

/// Borrows a descriptor of the caller.
///
/// # Errors
/// EBADF: the number is not open, or has only a path (O_PATH).
fn borrow<'a>(fd: RawFd) -> Result<BorrowedFd<'a>, Errno> {
    if call::status_flags(fd)? as u32 & abi::O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: the number is open. If another thread closes it during this call, system calls on it fail.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Opens a path without the right to read, which an executable need not grant.
fn open(path: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(errno::of)
}

/// Identifies an open file.
///
/// # Errors
/// EACCES: the file is not regular.
fn identify(killed_calls: CallSet, fd: RawFd) -> Result<Identity, Errno> {
    let identity = Identity::of(killed_calls, fd, c"")?;
    if identity.is_regular() { Ok(identity) } else { Err(Errno::EACCES) }
}

/// The code over an identity. The text distinguishes it from the codes of records.
fn code_of(identity: Identity) -> Result<[u8; CODE], Errno> {
    record::code(("identity", identity))
}

/// Whether an error says nothing about the file.
fn is_exhaustion(errno: Errno) -> bool {
    matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM)
}
