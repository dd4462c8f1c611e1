// SPDX-License-Identifier: MIT OR Apache-2.0
//! The descriptors that a sandbox command gets: `bwrap --seccomp 10 …`. The sandbox command uses their files before
//! its program parks. A start is warm if the command's own descriptors refer to the same files.

use std::os::fd::RawFd;

use rustix::fs::FileType;
use spawnfd_sys::{abi, call};

use crate::host::features;
use crate::host::inherited::FileId;
use crate::sandbox::position;

/// The identity of the file behind a descriptor: all differences that a sandbox command can notice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Referent {
    flags: i32,
    place: FileId,
    contents: Option<Contents>,
}

/// The length, the times of change, and the read position of a regular file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Contents {
    length: u64,
    changed: [(i64, u32); 2],
    position: Option<u64>,
}

impl Referent {
    /// Identifies the file behind a descriptor. Returns `None` if the descriptor is not open.
    pub(super) fn of(fd: RawFd) -> Option<Referent> {
        let found = call::statx(features::killed(), fd, c"").ok()?;
        let time = |time: abi::statx_timestamp| (time.tv_sec, time.tv_nsec);
        let is_regular = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
        let flags = call::status_flags(fd).ok()?;
        Some(Referent {
            flags,
            place: FileId::from(&found),
            contents: is_regular.then(|| Contents {
                length: found.stx_size,
                changed: [time(found.stx_ctime), time(found.stx_mtime)],
                position: position(fd, flags, found.stx_mode),
            }),
        })
    }
}
