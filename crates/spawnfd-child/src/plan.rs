// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a child is to do, decided and validated before it exists.

use alloc::ffi::CString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;

use crate::announce::Announcement;
use spawnfd_sys::abi;
use spawnfd_sys::call::{self, FilterInstruction, SignalSet};
use spawnfd_sys::{ArgBlock, Calls, Errno, RawFd};

/// All that one spawn does in the child, in the order of the fields. It owns what it names, but for descriptors.
#[derive(Debug)]
pub struct Plan {
    /// The calls that the calling thread's seccomp filter kills: the child makes none of them.
    pub killed: Calls,
    /// The pid namespace the child is to be born into.
    pub namespace: Option<Namespace>,
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

/// A pid namespace that is there already.
#[derive(Clone, Copy, Debug)]
pub struct Namespace {
    /// The caller's pidfd of the namespace's first process.
    pub init: RawFd,
    /// It belongs to a user namespace made for it: that is entered, too, and no capability in it is kept.
    pub user: bool,
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
    pub op: Op<usize>,
}

/// What a step does. `S` is a descriptor of the caller; others are numbers in the child's table.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Op<S> {
    /// Makes `to` a copy of a descriptor of the caller.
    Place {
        source: S,
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
        dir: Option<S>,
        path: Arc<CStr>,
        how: abi::open_how,
        to: RawFd,
    },
    /// Opens /dev/null as `to`.
    OpenNull {
        to: RawFd,
    },
    Chdir {
        path: Arc<CStr>,
    },
    Fchdir {
        dir: S,
    },
    Chroot {
        path: Arc<CStr>,
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
    ControllingTerminal {
        fd: RawFd,
    },
    Limit {
        resource: u32,
        limit: abi::rlimit64,
    },
    Nice {
        nice: i32,
    },
    Scheduler {
        policy: u32,
        priority: i32,
    },
    Affinity {
        mask: Arc<[u64]>,
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
        groups: Arc<[u32]>,
    },
    Capabilities {
        sets: CapabilitySets,
    },
    /// What is permitted stays so when the user ids change.
    KeepCapabilities,
    NoNewPrivs,
    /// Gives setgroups up in the child's user namespace.
    DenySetgroups,
    /// Which users its user namespace has, as /proc wants it.
    UserMap {
        map: Arc<CStr>,
    },
    /// And groups.
    GroupMap {
        map: Arc<CStr>,
    },
    OomScoreAdj {
        value: i32,
        text: Arc<[u8]>,
    },
    /// Joins the cgroup whose directory a source is.
    Cgroup {
        dir: S,
    },
    /// Tells of its birth whoever outlives the parent, or ends with that.
    Announce {
        to: Announcement,
    },
    JoinNamespace {
        namespace: S,
        kinds: u32,
    },
    Landlock {
        ruleset: S,
    },
}

impl<S> Op<S> {
    /// The descriptor of the caller that it uses.
    pub fn source(&self) -> Option<&S> {
        match self {
            Op::Place { source, .. } => Some(source),
            Op::Open { dir, .. } => dir.as_ref(),
            Op::Fchdir { dir } | Op::Cgroup { dir } => Some(dir),
            Op::JoinNamespace { namespace, .. } => Some(namespace),
            Op::Landlock { ruleset } => Some(ruleset),
            _ => None,
        }
    }

    /// The number of the child's that it copies or uses.
    pub fn reads(&self) -> Option<RawFd> {
        match *self {
            Op::Dup2 { from: fd, .. } | Op::Tcsetpgrp { fd } | Op::ControllingTerminal { fd } => Some(fd),
            _ => None,
        }
    }

    /// The number that the child has, or has anew, after it.
    pub fn makes(&self) -> Option<RawFd> {
        match *self {
            Op::Place { to, .. } | Op::Dup2 { to, .. } | Op::Open { to, .. } | Op::OpenNull { to } => Some(to),
            _ => None,
        }
    }

    /// Whether it may take for ever: a FIFO that nobody opens, a directory on a file system that does not answer, a frozen cgroup.
    #[inline]
    pub fn may_stand_still(&self) -> bool {
        matches!(self, Op::Open { .. } | Op::Chroot { .. } | Op::Cgroup { .. })
    }

    /// The same, with the descriptor named otherwise.
    pub fn with_source<T>(&self, name: impl FnOnce(&S) -> T) -> Op<T> {
        match *self {
            Op::Place { ref source, to } => Op::Place { source: name(source), to },
            Op::Dup2 { from, to } => Op::Dup2 { from, to },
            Op::Close { fd } => Op::Close { fd },
            Op::CloseRange { first, last } => Op::CloseRange { first, last },
            Op::Open { ref dir, ref path, how, to } => {
                Op::Open { dir: dir.as_ref().map(name), path: path.clone(), how, to }
            }
            Op::OpenNull { to } => Op::OpenNull { to },
            Op::Chdir { ref path } => Op::Chdir { path: path.clone() },
            Op::Fchdir { ref dir } => Op::Fchdir { dir: name(dir) },
            Op::Chroot { ref path } => Op::Chroot { path: path.clone() },
            Op::Umask { mask } => Op::Umask { mask },
            Op::Setsid => Op::Setsid,
            Op::Setpgid { group } => Op::Setpgid { group },
            Op::Tcsetpgrp { fd } => Op::Tcsetpgrp { fd },
            Op::ControllingTerminal { fd } => Op::ControllingTerminal { fd },
            Op::Limit { resource, limit } => Op::Limit { resource, limit },
            Op::Nice { nice } => Op::Nice { nice },
            Op::Scheduler { policy, priority } => Op::Scheduler { policy, priority },
            Op::Affinity { ref mask } => Op::Affinity { mask: mask.clone() },
            Op::UserIds { real, effective, saved } => Op::UserIds { real, effective, saved },
            Op::GroupIds { real, effective, saved } => Op::GroupIds { real, effective, saved },
            Op::Groups { ref groups } => Op::Groups { groups: groups.clone() },
            Op::Capabilities { sets } => Op::Capabilities { sets },
            Op::KeepCapabilities => Op::KeepCapabilities,
            Op::NoNewPrivs => Op::NoNewPrivs,
            Op::DenySetgroups => Op::DenySetgroups,
            Op::UserMap { ref map } => Op::UserMap { map: map.clone() },
            Op::GroupMap { ref map } => Op::GroupMap { map: map.clone() },
            Op::OomScoreAdj { value, ref text } => Op::OomScoreAdj { value, text: text.clone() },
            Op::Cgroup { ref dir } => Op::Cgroup { dir: name(dir) },
            Op::Announce { ref to } => Op::Announce { to: to.clone() },
            Op::JoinNamespace { ref namespace, kinds } => Op::JoinNamespace { namespace: name(namespace), kinds },
            Op::Landlock { ref ruleset } => Op::Landlock { ruleset: name(ruleset) },
        }
    }
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
