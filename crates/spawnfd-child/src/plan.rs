// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a child is to do, decided and validated before it exists.

use core::ffi::CStr;

use spawnfd_sys::abi;
use spawnfd_sys::call::{self, FilterInstruction, SignalSet};
use spawnfd_sys::{ArgBlock, Errno, RawFd};

/// All that one spawn does in the child, in the order of the fields.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Where the child's descriptors come from.
    pub table: Table,
    /// The caller's descriptors that steps and program name by index; at most [`MAX_SOURCES`](crate::MAX_SOURCES).
    pub sources: &'a [RawFd],
    /// One above the highest number a step or `keep` names: the sources wait there, out of the way.
    pub above: RawFd,
    /// One above the highest number they may wait at.
    pub below: RawFd,
    /// The actions.
    pub steps: &'a [Step<'a>],
    /// The child's descriptors above 2 that the program gets, ascending. `None`: all that are not close-on-exec.
    pub keep: Option<&'a [RawFd]>,
    /// Signals that become default if they are ignored.
    pub default_signals: SignalSet,
    /// The program's signal mask; the calling thread's if `None`.
    pub signal_mask: Option<SignalSet>,
    /// Signal to get when the creating thread ends, and the process it belongs to.
    pub parent_death: Option<(u32, i32)>,
    /// What must still be true of the file system.
    pub checks: &'a [Check<'a>],
    /// The child sees owner and group of files through another user namespace: they are not compared.
    pub owners_mapped: bool,
    /// A seccomp filter, laid over the child last: it has to allow execve, and exit_group for a failed one.
    pub filter: Option<&'a [FilterInstruction]>,
    /// What to become.
    pub program: Program<'a>,
    /// Its arguments, the program's name first.
    pub argv: &'a ArgBlock,
    /// Its environment.
    pub envp: &'a ArgBlock,
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
    /// sources from the calling thread (pidfd_getfd). Costs the same however many descriptors the caller has.
    Fetched {
        /// A low descriptor of the caller's that is a pidfd of the calling thread, and its device and inode.
        /// Without one the child keeps nothing but 0, 1 and 2, and opens a pidfd itself.
        door: Option<(RawFd, (u64, u64))>,
        /// The calling thread.
        thread: i32,
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
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// What a failure is reported under.
    pub index: u16,
    /// What is done.
    pub op: Op<'a>,
}

/// What a step does. `source` is an index into [`Plan::sources`]; other descriptors are numbers in the child's table.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Op<'a> {
    /// Makes `to` a copy of a descriptor of the caller.
    Place {
        source: usize,
        to: RawFd,
    },
    /// Makes `to` a copy of `from`; when they are the same, keeps it open across exec.
    Dup2 {
        from: RawFd,
        to: RawFd,
    },
    /// Closes a number; it need not be open.
    Close {
        fd: RawFd,
    },
    /// Closes all numbers in a range.
    CloseRange {
        first: u32,
        last: u32,
    },
    /// Opens a file as `to`, relative to a source or the working directory.
    Open {
        dir: Option<usize>,
        path: &'a CStr,
        how: &'a abi::open_how,
        to: RawFd,
    },
    Chdir {
        path: &'a CStr,
    },
    Fchdir {
        source: usize,
    },
    Chroot {
        path: &'a CStr,
    },
    Umask {
        mask: u32,
    },
    Setsid,
    Setpgid {
        group: i32,
    },
    /// Makes the child's process group the foreground one of a terminal. SIGTTOU is held off meanwhile.
    Tcsetpgrp {
        fd: RawFd,
    },
    SetControllingTerminal {
        fd: RawFd,
    },
    Limit {
        resource: u32,
        limit: &'a abi::rlimit64,
    },
    Nice {
        nice: i32,
    },
    Scheduler {
        policy: u32,
        priority: i32,
    },
    Affinity {
        mask: &'a [u64],
    },
    UserIds {
        real: u32,
        effective: u32,
        saved: u32,
    },
    GroupIds {
        real: u32,
        effective: u32,
        saved: u32,
    },
    Groups {
        groups: &'a [u32],
    },
    Capabilities {
        sets: &'a CapabilitySets,
    },
    /// A prctl that takes numbers: no_new_privs, keep-capabilities.
    Prctl {
        option: u32,
        value: usize,
    },
    /// Writes to a file of the child's own in /proc: oom_score_adj, uid_map.
    WriteFile {
        path: &'a CStr,
        bytes: &'a [u8],
    },
    /// Joins the cgroup whose directory a source is.
    JoinCgroup {
        source: usize,
    },
    JoinNamespace {
        source: usize,
        kinds: u32,
    },
    Landlock {
        source: usize,
    },
}

/// Capabilities by set, bit n for capability n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CapabilitySets {
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub bounding: u64,
    pub ambient: u64,
}

/// What to become.
#[derive(Clone, Copy, Debug)]
pub enum Program<'a> {
    /// The file a path names now.
    Path(&'a CStr),
    /// The file a source is, by execveat.
    Source(usize),
}

/// What must hold right before exec.
#[derive(Clone, Copy, Debug)]
pub enum Check<'a> {
    /// The path names the file that was recorded, unchanged.
    Same { path: &'a CStr, identity: &'a Identity },
    /// The source is that file, unchanged.
    SameSource { source: usize, identity: &'a Identity },
    /// The path names nothing a PATH search would take.
    Absent { path: &'a CStr },
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
    pub fn of(dir: RawFd, path: &CStr) -> Result<Identity, Errno> {
        let stat = call::statx(dir, path)?;
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
pub fn is_candidate(path: &CStr) -> bool {
    call::may_execute(path).is_ok() && Identity::of(abi::AT_FDCWD, path).is_ok_and(|file| file.is_regular())
}
