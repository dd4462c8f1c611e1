// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that a program in front is given: `bwrap --seccomp 10 …`. It has read them, or entered them, when a program is parked
//! behind it; so a start is warm if its own refer to the same.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom, openat, seek};
use spawnfd_sys::{abi, call};

use crate::numbers::{Known, above_standard};

/// One, and the number it is given as.
#[derive(Clone, Debug)]
pub(super) struct Handed {
    pub(super) number: RawFd,
    fd: Arc<Known>,
    /// In a file that is read: where that begins.
    position: Option<u64>,
}

/// What a descriptor refers to, as far as the program in front can tell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Referent {
    flags: i32,
    /// Device, inode and mount.
    place: (u32, u32, u64, u64),
    contents: Option<Contents>,
}

/// Of a file: its length, when it was changed, and where reading begins.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Contents {
    length: u64,
    changed: [(i64, u32); 2],
    position: Option<u64>,
}

impl Handed {
    /// # Errors
    /// As fcntl(2) with F_DUPFD.
    pub(super) fn new(number: RawFd, fd: &OwnedFd) -> std::io::Result<Handed> {
        let position = Referent::of(fd.as_raw_fd()).and_then(|referent| referent.contents?.position);
        let known = Known::new(fd.try_clone()?).map_err(|errno| std::io::Error::from_raw_os_error(errno.raw()))?;
        Ok(Handed { number, fd: Arc::new(known), position })
    }

    /// One to give to the next program in front. What that reads it reads from where it began, so each has a description of its own. `None`:
    /// an application has closed it.
    pub(super) fn another(&self) -> Option<(OwnedFd, Referent)> {
        let fd = self.fd.get()?;
        let fresh = match self.position {
            Some(position) => {
                let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
                let flags = OFlags::from_bits_retain(call::status_flags(fd.as_raw_fd()).ok()? as u32);
                let fresh = openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty()).ok()?;
                seek(&fresh, SeekFrom::Start(position)).ok()?;
                fresh
            }
            None => fd.try_clone().ok()?,
        };
        let referent = Referent::of(fresh.as_raw_fd())?;
        Some((above_standard(fresh), referent))
    }
}

impl Referent {
    /// `None`: it is not open.
    pub(super) fn of(fd: RawFd) -> Option<Referent> {
        let found = call::statx(fd, c"").ok()?;
        let time = |time: abi::statx_timestamp| (time.tv_sec, time.tv_nsec);
        let is_regular = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
        let flags = call::status_flags(fd).ok()?;
        let is_read = flags as u32 & (abi::O_ACCMODE | abi::O_PATH) == abi::O_RDONLY;
        Some(Referent {
            flags,
            place: (found.stx_dev_major, found.stx_dev_minor, found.stx_ino, found.stx_mnt_id),
            contents: is_regular.then(|| Contents {
                length: found.stx_size,
                changed: [time(found.stx_ctime), time(found.stx_mtime)],
                position: if is_read { call::position(fd).ok() } else { None },
            }),
        })
    }
}
