// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a child is to do, decided and validated before it exists.

use alloc::ffi::CString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;

use crate::action::Op;
use spawnfd_sys::abi;
use spawnfd_sys::call::{self, FilterInstruction, SignalSet};
use spawnfd_sys::{ArgBlock, Calls, Errno, RawFd};

/// All that one spawn does in the child, in the order of the fields. It owns what it names, but for descriptors.
#[derive(Debug)]
pub struct Plan {
    /// The calls that the calling thread's seccomp filter kills: the child makes none of them.
    pub killed: Calls,
    /// The caller's descriptors that steps and program name by index; at most [`MAX_SOURCES`](crate::MAX_SOURCES).
    pub sources: Vec<RawFd>,
    /// One above the highest number a step or `keep` names: the sources wait there, out of the way.
    pub above: RawFd,
    /// One above the highest number they may wait at.
    pub below: RawFd,
    /// The highest number that a step or `keep` names, at least 2.
    pub highest: RawFd,
    /// The actions.
    pub steps: Vec<Step>,
    /// The child's descriptors above 2 that the program gets, ascending. `None`: all that are not close-on-exec.
    pub keep: Option<Vec<RawFd>>,
    /// Signals that become default if they are ignored.
    pub default_signals: SignalSet,
    /// The program's signal mask; the calling thread's if `None`.
    pub signal_mask: Option<SignalSet>,
    /// Signal to get when the creating thread ends, and the process it belongs to.
    pub parent_death: Option<(u32, i32)>,
    /// What to become.
    pub program: Program,
    /// The child sees owner and group of files through another user namespace: they are not compared.
    pub owners_mapped: bool,
    /// A seccomp filter, laid over the child last: it has to allow execve, and exit_group for a failed one.
    pub filter: Option<Arc<[FilterInstruction]>>,
    /// Its arguments, the program's name first.
    pub argv: ArgBlock,
    /// Its environment.
    pub envp: Arc<ArgBlock>,
}

impl Plan {
    /// Whether the child opens files, or does something else which may take for ever.
    #[inline]
    pub fn may_stand_still(&self) -> bool {
        self.steps.iter().any(|step| step.op.may_stand_still())
    }
}

/// What to become.
#[derive(Debug)]
pub struct Program {
    /// The executable as it was found.
    pub pinned: Arc<Pinned>,
    /// Execute this source, by execveat, instead of the path.
    pub source: Option<usize>,
    /// The caller wants whatever stands there now: where a check finds another file, the search is made again, and that is executed.
    pub renew: bool,
}

/// An executable as it was found, with what must still be true of the file system right before exec.
#[derive(Debug)]
pub struct Pinned {
    /// The file to execute; empty where there is nothing but a descriptor.
    pub path: CString,
    /// What must hold.
    pub checks: Vec<Check>,
    /// All places where it may stand, the first that has one counts. The path alone, if it was not searched.
    pub places: Vec<CString>,
}

/// What must hold right before exec.
#[derive(Debug)]
pub enum Check {
    /// The path names the file that was recorded, unchanged.
    Same {
        /// Where.
        path: CString,
        /// What.
        identity: Identity,
    },
    /// The source to execute is that file, unchanged.
    SameSource {
        /// What.
        identity: Identity,
    },
    /// The path names nothing a PATH search would take.
    Absent {
        /// Where.
        path: CString,
    },
}

/// Where the child's descriptor table comes from.
#[derive(Clone, Copy, Debug)]
pub enum Table {
    /// The child begins in the caller's own table and leaves it for one that holds what lies below `socket` only; the
    /// sources wait in that socket. Costs the same however many descriptors the caller has.
    Passed {
        /// The receiving end.
        socket: RawFd,
        /// Device and inode of that end: what the number must refer to.
        identity: (u64, u64),
        /// What the message must be tagged with.
        tag: u64,
    },
    /// The child begins in the caller's own table, leaves it for one that holds what lies below the door only, and fetches the
    /// sources from the calling thread (pidfd_getfd). Costs the same however many descriptors the caller has. The caller has to sleep.
    Fetched {
        /// A low descriptor of the caller's that is a pidfd of the calling thread, and its device and inode.
        /// Without one the child keeps nothing but 0, 1 and 2, and opens a pidfd itself.
        door: Option<(RawFd, (u64, u64))>,
        /// The calling thread.
        thread: i32,
    },
    /// The child begins in the caller's own table and leaves it for one that holds what lies below `above` only, the sources among it under
    /// their own numbers; what else is there is closed before exec. Costs the same however many descriptors the caller has. For a caller
    /// without other threads: one of them could close a file, and find it still open here.
    Trimmed {
        /// One above the highest source.
        above: RawFd,
    },
    /// The kernel copies the caller's table; the sources are in it under their own numbers.
    Copied,
}

/// What is known of the signal handlers a child is born with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handlers {
    /// None are left: born by clone3 (CLONE_CLEAR_SIGHAND).
    Cleared,
    /// These have one, as another child found shortly before.
    Known(SignalSet),
    /// Any may.
    Unknown,
}

/// One step, with the number of the caller's action it carries out.
#[derive(Clone, Debug)]
pub struct Step {
    /// What a failure is reported under.
    pub index: u16,
    /// What is done, with indexes into [`Plan::sources`].
    pub op: Op,
}

/// What tells one version of one file from every other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
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
    /// Reads what `path` below `dir` names, symbolic links followed; an empty path means `dir` itself.
    ///
    /// # Errors
    /// As stat(2).
    pub fn of(killed: Calls, dir: RawFd, path: &CStr) -> Result<Identity, Errno> {
        let stat = match call::statx(killed, dir, path) {
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

    /// Where a filter, or a sandbox's own kernel, has no statx.
    #[cold]
    fn of_stat(stat: &abi::stat) -> Identity {
        Identity {
            // As include/linux/kdev_t.h, new_encode_dev has it.
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

    /// The same with the owner and group of another.
    pub(crate) fn with_owners_of(self, other: &Identity) -> Identity {
        Identity { owner: other.owner, group: other.group, ..self }
    }

    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        u32::from(self.mode) & abi::S_IFMT == abi::S_IFREG
    }
}

/// Whether a PATH search would take `path`: a regular file the effective ids may execute.
pub fn is_candidate(killed: Calls, path: &CStr) -> bool {
    call::may_execute(killed, path).is_ok()
        && Identity::of(killed, abi::AT_FDCWD, path).is_ok_and(|file| file.is_regular())
}
