// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open descriptors of the calling thread's table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use syscalls::Errno;

use super::answer::Answer;
use super::proc;
use crate::raw;

/// One open descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fd {
    /// The target of the link in /proc.
    pub target: Answer<String>,
    /// regular, directory, char, block, fifo, socket, symlink, or anonymous.
    pub kind: String,
    /// st_dev.
    pub device: u64,
    /// st_ino.
    pub inode: u64,
    /// F_GETFL, by the names in open(2), without O_LARGEFILE.
    pub flags: String,
    /// FD_CLOEXEC.
    pub cloexec: bool,
    /// File offset of a regular file.
    pub offset: Option<u64>,
}

/// Returns every open descriptor, except the one by which this function reads /proc.
///
/// If /proc cannot be read (in a chroot), the function tries the numbers below 4,096.
pub(crate) fn open_fds() -> BTreeMap<i32, Fd> {
    // `proc::names` has closed the directory before the loop examines any number, so the directory's own descriptor
    // is no longer open.
    let numbers: Vec<i32> = match proc::names("fd") {
        Answer::Known(names) => names.iter().filter_map(|name| name.parse().ok()).collect(),
        Answer::Refused(_) => (0..4096).collect(),
    };
    numbers.into_iter().filter_map(|fd| Some((fd, look_at(fd).ok()?))).collect()
}

fn look_at(fd: i32) -> Result<Fd, Errno> {
    let cloexec = raw::fcntl_get(fd, libc::F_GETFD)? & libc::FD_CLOEXEC != 0;
    let flags = raw::fcntl_get(fd, libc::F_GETFL)?;
    let file = raw::fstat(fd)?;
    let regular = file.mode & libc::S_IFMT == libc::S_IFREG;
    Ok(Fd {
        target: proc::link(&format!("fd/{fd}")),
        kind: kind(file.mode).to_owned(),
        device: file.device,
        inode: file.inode,
        flags: flag_names(flags),
        cloexec,
        offset: if regular { raw::offset_of(fd).ok() } else { None },
    })
}

fn kind(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFREG => "regular",
        libc::S_IFDIR => "directory",
        libc::S_IFCHR => "char",
        libc::S_IFBLK => "block",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFLNK => "symlink",
        _ => "anonymous",
    }
}

fn flag_names(flags: i32) -> String {
    /// The kernel's O_LARGEFILE, set on every open by a 64-bit program and not on files the kernel opens itself.
    const LARGEFILE: i32 = if cfg!(target_arch = "aarch64") { 0o400_000 } else { 0o100_000 };
    // O_SYNC contains the bits of O_DSYNC, and O_TMPFILE those of O_DIRECTORY: the larger flag of a pair comes first.
    const NAMES: [(i32, &str); 12] = [
        (libc::O_APPEND, "O_APPEND"),
        (libc::O_NONBLOCK, "O_NONBLOCK"),
        (libc::O_SYNC, "O_SYNC"),
        (libc::O_DSYNC, "O_DSYNC"),
        (libc::O_ASYNC, "O_ASYNC"),
        (libc::O_DIRECT, "O_DIRECT"),
        (libc::O_TMPFILE, "O_TMPFILE"),
        (libc::O_DIRECTORY, "O_DIRECTORY"),
        (libc::O_NOFOLLOW, "O_NOFOLLOW"),
        (libc::O_NOATIME, "O_NOATIME"),
        (libc::O_PATH, "O_PATH"),
        (libc::O_CLOEXEC, "O_CLOEXEC"),
    ];
    let mut left = flags & !LARGEFILE & !libc::O_ACCMODE;
    let mut names = vec![match flags & libc::O_ACCMODE {
        libc::O_RDONLY => "O_RDONLY".to_owned(),
        libc::O_WRONLY => "O_WRONLY".to_owned(),
        libc::O_RDWR => "O_RDWR".to_owned(),
        mode => format!("{mode:#x}"),
    }];
    for (bits, name) in NAMES {
        if left & bits == bits {
            names.push(name.to_owned());
            left &= !bits;
        }
    }
    if left != 0 {
        names.push(format!("{left:#x}"));
    }
    names.join("|")
}
