// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan of a child: all its work before exec. The parent validates the plan before the child exists.

use alloc::borrow::Cow;
use core::ffi::CStr;

use crate::action::Op;
use crate::data::Data;
use spawnfd_sys::abi;
use spawnfd_sys::call::{self, FilterInstruction, SignalSet};
use spawnfd_sys::{ArgBlock, CallSet, Errno, RawFd};

/// All work of one spawn in the child. The plan borrows or owns all its data except descriptors.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The system calls for which a seccomp filter kills the calling process. The child makes none of them.
    pub killed_calls: CallSet,
    /// The sources: the caller's descriptors to which steps and program refer by index. There are at most
    /// [`MAX_SOURCES`](crate::MAX_SOURCES).
    pub sources: Cow<'a, [RawFd]>,
    /// The child keeps its sources at this number or higher, above every number that a step or `keep` names.
    pub above: RawFd,
    /// The child keeps its sources below this number.
    pub below: RawFd,
    /// The highest number that a step or `keep` names, at least 2.
    pub highest: RawFd,
    /// The actions, in order.
    pub steps: Cow<'a, [Step<'a>]>,
    /// The child's descriptors above 2 that the program inherits, ascending. If it is `None`, the
    /// program inherits all descriptors without close-on-exec.
    pub keep: Option<Cow<'a, [RawFd]>>,
    /// Signals that the child sets to their default disposition, even if they are ignored.
    pub default_signals: SignalSet,
    /// The program's signal mask. `None` means the calling thread's mask.
    pub signal_mask: Option<SignalSet>,
    /// The parent-death signal (PR_SET_PDEATHSIG), and the pid of the caller, the child's parent.
    pub parent_death: Option<(u32, i32)>,
    /// The program to execute.
    pub program: Program<'a>,
    /// True if the child sees the owner and group of files through another user namespace. Then the checks ignore owner
    /// and group.
    pub owners_mapped: bool,
    /// A seccomp filter that the child sets last. It must allow execve, and exit_group in case execve fails.
    pub filter: Option<Data<'a, [FilterInstruction]>>,
    /// The program's arguments; the first is its name.
    pub argv: ArgBlock<'a>,
    /// The arguments of `/bin/sh`, which runs the program's file if the kernel does not know its format (ENOEXEC). `None`
    /// means that ENOEXEC is an error.
    pub shell: Option<ArgBlock<'a>>,
    /// The program's environment.
    pub envp: Data<'a, ArgBlock<'a>>,
}

impl Plan<'_> {
    /// Whether an action may block forever, as opening a FIFO can.
    #[inline]
    pub fn may_block_forever(&self) -> bool {
        self.steps.iter().any(|step| step.op.may_block_forever())
    }
}

/// The program to execute.
#[derive(Debug)]
pub struct Program<'a> {
    /// The recorded executable.
    pub pinned: Data<'a, Pinned<'a>>,
    /// If this is `Some`, the child executes this source by execveat instead of the path.
    pub source: Option<usize>,
    /// True if the child, after a failed check, searches again and executes the file that the search finds.
    pub renew: bool,
}

/// A recorded executable, with the checks that the child makes right before exec.
#[derive(Debug, Default)]
pub struct Pinned<'a> {
    /// The path of the file to execute. It is empty if the plan has only a descriptor of the file.
    pub path: Cow<'a, CStr>,
    /// The checks, which must all pass.
    pub checks: Cow<'a, [Check<'a>]>,
    /// The candidate paths of a PATH search, in order. The first path with an executable wins.
    /// Without a search, the list has only the path itself.
    pub places: Cow<'a, [Cow<'a, CStr>]>,
}

/// A condition that must hold right before exec.
#[derive(Clone, Debug)]
pub enum Check<'a> {
    /// The path names the file that was recorded, unchanged.
    Same {
        /// The path to look up.
        path: Cow<'a, CStr>,
        /// The recorded file.
        identity: Identity,
    },
    /// The source to execute is the recorded file, unchanged.
    SameSource {
        /// The recorded file.
        identity: Identity,
    },
    /// The path names no file that a PATH search would execute.
    Absent {
        /// The path to look up.
        path: Cow<'a, CStr>,
    },
}

/// The strategy for the child's descriptor table.
#[derive(Clone, Copy, Debug)]
pub enum Table {
    /// `ScmRights`: the child copies the caller's table up to `socket`, and receives its sources from that socket.
    ///
    /// The cost does not depend on the number of the caller's descriptors.
    Passed {
        /// The receiving end of the socket pair.
        socket: RawFd,
        /// Device and inode that the number must refer to.
        identity: (u64, u64),
        /// The tag that the message must carry.
        tag: u64,
    },
    /// `PidfdGetfd`: the child copies the caller's table up to the pidfd, and copies its sources by pidfd_getfd.
    ///
    /// The calling thread must sleep until the child has the sources. The cost does not depend on the number of the
    /// caller's descriptors.
    Fetched {
        /// A low descriptor of the caller that is a pidfd of the calling thread, and the pidfd's device and inode.
        /// If it is `None`, the child keeps only descriptors 0, 1 and 2, and opens a pidfd itself.
        pidfd: Option<(RawFd, (u64, u64))>,
        /// The calling thread.
        thread: i32,
    },
    /// `TrimTable`: the child copies the caller's table below `above`. The sources keep their numbers.
    ///
    /// The child closes the other descriptors before exec. The cost does not depend on the number of the caller's
    /// descriptors. The caller must have only one thread. Otherwise another thread could close a file that this child
    /// still has open.
    Trimmed {
        /// The highest number of a source, plus one.
        above: RawFd,
    },
    /// `CopyTable`: the kernel copies the caller's whole table. The sources keep their numbers.
    Copied,
}

/// One step, with the index of the caller's action that it performs.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// The index that a failure reports.
    pub index: u16,
    /// The operation, with indexes into [`Plan::sources`].
    pub op: Op<'a>,
}

/// Identifies one version of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct Identity {
    pub device: (u32, u32),
    pub inode: u64,
    pub size: u64,
    pub mode: u16,
    pub owner: u32,
    pub group: u32,
    /// Seconds and nanoseconds.
    pub ctime: (i64, u32),
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
}

impl Identity {
    /// Identifies the file that `path` names below `dir`, following symbolic links. An empty path means `dir` itself.
    ///
    /// # Errors
    /// The errors of stat(2).
    pub fn of(killed_calls: CallSet, dir: RawFd, path: &CStr) -> Result<Identity, Errno> {
        let stat = match call::statx(killed_calls, dir, path) {
            Err(Errno::ENOSYS | Errno::EPERM) => return call::stat(dir, path).map(|stat| Identity::of_stat(&stat)),
            stat => stat?,
        };
        Ok(Identity {
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            size: stat.stx_size,
            mode: stat.stx_mode,
            owner: stat.stx_uid,
            group: stat.stx_gid,
            ctime: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
            mtime: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
        })
    }

    /// Converts the result of newfstatat, the fallback if a filter or a sandbox kernel refuses
    /// statx.
    #[cold]
    fn of_stat(stat: &abi::stat) -> Identity {
        Identity {
            // This is the inverse of new_encode_dev in include/linux/kdev_t.h.
            device: ((stat.st_dev >> 8 & 0xfff) as u32, (stat.st_dev & 0xff | stat.st_dev >> 12 & 0xfff00) as u32),
            inode: stat.st_ino,
            size: stat.st_size as u64,
            mode: stat.st_mode as u16,
            owner: stat.st_uid,
            group: stat.st_gid,
            ctime: (stat.st_ctime as i64, stat.st_ctime_nsec as u32),
            mtime: (stat.st_mtime as i64, stat.st_mtime_nsec as u32),
        }
    }

    /// Returns `self` with the owner and group of `other`.
    pub(crate) fn with_owners_of(self, other: &Identity) -> Identity {
        Identity { owner: other.owner, group: other.group, ..self }
    }

    /// Whether the file is a regular file.
    pub fn is_regular(&self) -> bool {
        u32::from(self.mode) & abi::S_IFMT == abi::S_IFREG
    }
}

/// Whether a PATH search would execute `path`: a regular file that the effective ids may execute.
pub fn is_candidate(killed_calls: CallSet, path: &CStr) -> bool {
    call::may_execute(killed_calls, path).is_ok()
        && Identity::of(killed_calls, abi::AT_FDCWD, path).is_ok_and(|file| file.is_regular())
}
