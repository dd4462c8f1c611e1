// SPDX-License-Identifier: MIT OR Apache-2.0
//! The actions of a child: their arguments, the checks of these arguments, their text for errors, and the code by
//! which the child performs an action.
//!
//! Most actions are one system call with at most three arguments. [`Op::call`] describes that call; the child and
//! parked processes make it from the description.
//!
//! CONTRIBUTING.md lists the other places of an action. `command/table.rs` of the crate spawnfd has the names,
//! arguments and descriptions.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::slice;

use spawnfd_sys::{CallSet, Errno, RawFd, abi, call, prctl};

use crate::data::Data;
use crate::descriptors::{self, Sources};
use crate::registration::GuardRegistration;

/// An action. A `usize` is a source: an index into the plan's list of the caller's descriptors. A [`RawFd`] is a
/// descriptor number of the child.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Op<'a> {
    // Makes `to` a copy of a descriptor of the caller.
    Place { source: usize, to: RawFd },
    // Makes `to` a copy of `from`, without close-on-exec. If both are the same number, clears close-on-exec.
    Dup2 { from: RawFd, to: RawFd },
    // Closes a descriptor of the child. The descriptor need not be open.
    Close { fd: RawFd },
    // Closes all descriptors of the child in a range of numbers.
    CloseRange { first: u32, last: u32 },
    // Opens a file as `to`, relative to a source or the working directory.
    Open { dir: Option<usize>, path: Data<'a, CStr>, how: abi::open_how, to: RawFd },
    // Opens /dev/null as `to`.
    OpenNull { to: RawFd },
    Chdir { path: Data<'a, CStr> },
    Fchdir { dir: usize },
    Chroot { path: Data<'a, CStr> },
    Umask { mask: u32 },
    Setsid,
    Setpgid { group: i32 },
    // Makes the child's process group the foreground group of a terminal. The child blocks SIGTTOU during the call.
    Tcsetpgrp { fd: RawFd },
    ControllingTerminal { fd: RawFd },
    // `limit` has the soft limit, then the hard limit.
    Limit { resource: u32, limit: [u64; 2] },
    Nice { nice: i32 },
    Scheduler { policy: u32, priority: u32 },
    Affinity { mask: Data<'a, [u64]> },
    UserIds { real: u32, effective: u32, saved: u32 },
    GroupIds { real: u32, effective: u32, saved: u32 },
    Groups { groups: Data<'a, [u32]> },
    Capabilities { sets: CapabilitySets },
    // Keeps the permitted capabilities across a change of user ids.
    KeepCapabilities,
    NoNewPrivs,
    // Disables setgroups in the child's user namespace.
    DenySetgroups,
    // Maps users into the child's user namespace, in the format of /proc/PID/uid_map.
    UserMap { map: Data<'a, CStr> },
    // Maps groups into the child's user namespace, in the format of /proc/PID/gid_map.
    GroupMap { map: Data<'a, CStr> },
    OomScoreAdj { value: i32, text: Data<'a, [u8]> },
    // Joins a cgroup; `dir` is the source that refers to the cgroup's directory.
    Cgroup { dir: usize },
    // Registers the child with the guard of its tree.
    Register { to: GuardRegistration },
    JoinNamespace { namespace: usize, kinds: u32 },
    Landlock { ruleset: usize },
}

/// The five capability sets of a process. Bit n of a set stands for capability n. To build a value, change the fields of
/// [`CapabilitySets::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct CapabilitySets {
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub bounding: u64,
    pub ambient: u64,
}

impl CapabilitySets {
    /// Five empty sets.
    pub const fn new() -> CapabilitySets {
        CapabilitySets { effective: 0, permitted: 0, inheritable: 0, bounding: 0, ambient: 0 }
    }

    /// The sets in the order of the fields.
    #[doc(hidden)]
    pub fn words(&self) -> [u64; 5] {
        [self.effective, self.permitted, self.inheritable, self.bounding, self.ambient]
    }
}

/// A system call that performs an action by itself. The call writes to no memory.
#[derive(Clone, Copy, Debug)]
pub struct SystemCall<'a> {
    /// The number of the call (`__NR_*`).
    pub number: u32,
    /// The first three arguments of the call; the others are 0.
    pub args: [Arg<'a>; 3],
}

/// An argument of a [`SystemCall`].
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A number.
    Number(usize),
    /// A descriptor of the caller. The child passes the number that the descriptor has in the
    /// child.
    Source(usize),
    /// The address of a string.
    Text(&'a CStr),
    /// The address of 64-bit numbers.
    Words(&'a [u64]),
    /// The address of 32-bit numbers.
    Ints(&'a [u32]),
}

const PRIO_PROCESS: usize = 0;

impl Op<'_> {
    /// Returns the system call that performs the action. `None` if the action takes several calls.
    #[inline]
    pub fn call(&self) -> Option<SystemCall<'_>> {
        use Arg::{Ints, Number, Source, Text, Words};
        const UNUSED: Arg<'_> = Number(0);
        let ids = |ids: [u32; 3]| ids.map(|id| Number(id as usize));
        let (number, args) = match self {
            Op::Dup2 { from, to } if from == to => {
                (abi::__NR_fcntl, [Number(*to as usize), Number(abi::F_SETFD as usize), UNUSED])
            }
            Op::Dup2 { from, to } => (abi::__NR_dup3, [Number(*from as usize), Number(*to as usize), UNUSED]),
            Op::Chdir { path } => (abi::__NR_chdir, [Text(path), UNUSED, UNUSED]),
            Op::Fchdir { dir } => (abi::__NR_fchdir, [Source(*dir), UNUSED, UNUSED]),
            Op::Chroot { path } => (abi::__NR_chroot, [Text(path), UNUSED, UNUSED]),
            Op::Umask { mask } => (abi::__NR_umask, [Number(*mask as usize), UNUSED, UNUSED]),
            Op::Setsid => (abi::__NR_setsid, [UNUSED; 3]),
            Op::Setpgid { group } => (abi::__NR_setpgid, [Number(0), Number(*group as usize), UNUSED]),
            Op::ControllingTerminal { fd } => {
                (abi::__NR_ioctl, [Number(*fd as usize), Number(call::TIOCSCTTY as usize), UNUSED])
            }
            Op::Limit { resource, limit } => {
                (abi::__NR_prlimit64, [Number(0), Number(*resource as usize), Words(limit)])
            }
            Op::Nice { nice } => (abi::__NR_setpriority, [Number(PRIO_PROCESS), Number(0), Number(*nice as usize)]),
            Op::Scheduler { policy, priority } => {
                (abi::__NR_sched_setscheduler, [Number(0), Number(*policy as usize), Ints(slice::from_ref(priority))])
            }
            Op::Affinity { mask } => {
                (abi::__NR_sched_setaffinity, [Number(0), Number(size_of_val(&**mask)), Words(mask)])
            }
            Op::UserIds { real, effective, saved } => (abi::__NR_setresuid, ids([*real, *effective, *saved])),
            Op::GroupIds { real, effective, saved } => (abi::__NR_setresgid, ids([*real, *effective, *saved])),
            Op::Groups { groups } => (abi::__NR_setgroups, [Number(groups.len()), Ints(groups), UNUSED]),
            Op::KeepCapabilities => (abi::__NR_prctl, [Number(prctl::PR_SET_KEEPCAPS as usize), Number(1), UNUSED]),
            Op::NoNewPrivs => (abi::__NR_prctl, [Number(prctl::PR_SET_NO_NEW_PRIVS as usize), Number(1), UNUSED]),
            Op::JoinNamespace { namespace, kinds } => {
                (abi::__NR_setns, [Source(*namespace), Number(*kinds as usize), UNUSED])
            }
            Op::Landlock { ruleset } => (abi::__NR_landlock_restrict_self, [Source(*ruleset), UNUSED, UNUSED]),
            _ => return None,
        };
        Some(SystemCall { number, args })
    }

    /// The descriptor of the caller that the action uses.
    pub fn source(&self) -> Option<usize> {
        match *self {
            Op::Open { dir: Some(source), .. }
            | Op::Place { source, .. }
            | Op::Fchdir { dir: source }
            | Op::Cgroup { dir: source }
            | Op::JoinNamespace { namespace: source, .. }
            | Op::Landlock { ruleset: source } => Some(source),
            _ => None,
        }
    }

    /// Returns the action with its source replaced by `replace`.
    #[must_use]
    pub fn map_source(mut self, replace: impl FnOnce(usize) -> usize) -> Self {
        if let Op::Open { dir: Some(source), .. }
        | Op::Place { source, .. }
        | Op::Fchdir { dir: source }
        | Op::Cgroup { dir: source }
        | Op::JoinNamespace { namespace: source, .. }
        | Op::Landlock { ruleset: source } = &mut self
        {
            *source = replace(*source);
        }
        self
    }

    /// The descriptor number in the child that the action copies or uses.
    pub fn reads(&self) -> Option<RawFd> {
        match *self {
            Op::Dup2 { from: fd, .. } | Op::Tcsetpgrp { fd } | Op::ControllingTerminal { fd } => Some(fd),
            _ => None,
        }
    }

    /// The descriptor number that the action opens or replaces in the child.
    pub fn makes(&self) -> Option<RawFd> {
        match *self {
            Op::Place { to, .. } | Op::Dup2 { to, .. } | Op::Open { to, .. } | Op::OpenNull { to } => Some(to),
            _ => None,
        }
    }

    /// Whether the action may block forever.
    ///
    /// Examples are a FIFO without a peer, a directory on a file system that does not answer, and a frozen cgroup.
    #[inline]
    pub fn may_block_forever(&self) -> bool {
        matches!(self, Op::Open { .. } | Op::Chroot { .. } | Op::Cgroup { .. })
    }

    /// Whether the action must not run in a child that shares the caller's memory.
    ///
    /// Changes of credentials clear the dumpable flag, which the kernel keeps with the memory (commit_creds). If the
    /// child enters another cgroup and that cgroup runs out of memory, the kernel may kill the child. It then also
    /// kills every process that shares the child's memory (mm/oom_kill.c, __oom_kill_process).
    pub fn needs_separate_mm(&self) -> bool {
        matches!(
            self,
            Op::UserIds { .. }
                | Op::GroupIds { .. }
                | Op::Groups { .. }
                | Op::Capabilities { .. }
                | Op::JoinNamespace { .. }
                | Op::Cgroup { .. }
        )
    }

    /// Checks the arguments.
    ///
    /// # Errors
    /// The kernel's errno for an invalid argument: EBADF or EINVAL.
    pub fn validate(&self) -> Result<(), Errno> {
        let number = |fd: &RawFd| if *fd < 0 { Err(Errno::EBADF) } else { Ok(()) };
        let valid = |condition: bool| if condition { Ok(()) } else { Err(Errno::EINVAL) };
        match self {
            Op::Place { to, .. } | Op::Open { to, .. } => number(to),
            Op::Dup2 { from, to } => number(from).and_then(|()| number(to)),
            Op::Close { fd } | Op::Tcsetpgrp { fd } | Op::ControllingTerminal { fd } => number(fd),
            Op::CloseRange { first, last } => valid(first <= last),
            Op::Umask { mask } => valid(*mask <= 0o777),
            Op::Setpgid { group } => valid(*group >= 0),
            Op::Limit { resource, limit: [soft, hard] } => valid(*resource < 16 && soft <= hard),
            Op::Nice { nice } => valid((-20..=19).contains(nice)),
            // The policies are SCHED_OTHER 0, FIFO 1, RR 2, BATCH 3 and IDLE 5. Only FIFO and RR
            // have a priority.
            Op::Scheduler { policy: 1 | 2, priority } => valid((1..=99).contains(priority)),
            Op::Scheduler { policy, priority } => valid(matches!(policy, 0 | 3 | 5) && *priority == 0),
            Op::Affinity { mask } => valid(mask.iter().any(|&word| word != 0)),
            Op::Groups { groups } => valid(groups.len() <= 1 << 16),
            Op::Capabilities { sets } => {
                valid(sets.effective & !sets.permitted == 0 && sets.ambient & !(sets.permitted & sets.inheritable) == 0)
            }
            Op::OomScoreAdj { value, .. } => valid((-1000..=1000).contains(value)),
            _ => Ok(()),
        }
    }

    /// Formats the action as strace would. `number` returns the caller's number of a source.
    pub fn print(&self, number: impl Fn(usize) -> RawFd) -> String {
        match self {
            Op::Place { source, to } => format!("dup2({}, {to})", number(*source)),
            Op::Dup2 { from, to } => format!("dup2({from}, {to})"),
            Op::Close { fd } => format!("close({fd})"),
            Op::CloseRange { first, last } => format!("close_range({first}, {last})"),
            Op::Open { dir, path, how, to } => {
                let below = dir.map(|dir| format!("{}, ", number(dir))).unwrap_or_default();
                let resolve = if how.resolve == 0 { String::new() } else { format!(", {:#x}", how.resolve) };
                format!("open({below}{path:?}, {:#o}, {:#o}{resolve}) as {to}", how.flags, how.mode)
            }
            Op::OpenNull { .. } => r#"open("/dev/null")"#.into(),
            Op::Chdir { path } => format!("chdir({path:?})"),
            Op::Fchdir { dir } => format!("fchdir({})", number(*dir)),
            Op::Chroot { path } => format!("chroot({path:?})"),
            Op::Umask { mask } => format!("umask({mask:#o})"),
            Op::Setsid => "setsid()".into(),
            Op::Setpgid { group } => format!("setpgid(0, {group})"),
            Op::Tcsetpgrp { fd } => format!("tcsetpgrp({fd})"),
            Op::ControllingTerminal { fd } => format!("ioctl({fd}, TIOCSCTTY)"),
            Op::Limit { resource, limit: [soft, hard] } => format!("setrlimit({resource}, {{{soft}, {hard}}})"),
            Op::Nice { nice } => format!("setpriority({nice})"),
            Op::Scheduler { policy, priority } => format!("sched_setscheduler({policy}, {})", *priority as i32),
            Op::Affinity { mask } => {
                let is_set = |cpu: &usize| mask.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1);
                format!("sched_setaffinity({:?})", (0..mask.len() * 64).filter(is_set).collect::<Vec<_>>())
            }
            Op::UserIds { real, effective, saved } => {
                format!("setresuid({}, {}, {})", *real as i32, *effective as i32, *saved as i32)
            }
            Op::GroupIds { real, effective, saved } => {
                format!("setresgid({}, {}, {})", *real as i32, *effective as i32, *saved as i32)
            }
            Op::Groups { groups } => format!("setgroups({groups:?})"),
            Op::Capabilities { sets } => {
                let [effective, permitted, inheritable, bounding, ambient] = sets.words();
                format!(
                    "capset({effective:#x}, {permitted:#x}, {inheritable:#x}), bounding {bounding:#x}, ambient {ambient:#x}"
                )
            }
            Op::KeepCapabilities => "prctl(PR_SET_KEEPCAPS, 1)".into(),
            Op::DenySetgroups => r#"write("/proc/self/setgroups", "deny")"#.into(),
            Op::UserMap { map } => format!(r#"write("/proc/self/uid_map", {map:?})"#),
            Op::GroupMap { map } => format!(r#"write("/proc/self/gid_map", {map:?})"#),
            Op::NoNewPrivs => "prctl(PR_SET_NO_NEW_PRIVS, 1)".into(),
            Op::Cgroup { dir } => format!("cgroup({})", number(*dir)),
            Op::Register { .. } => "getppid()".into(),
            Op::JoinNamespace { namespace, kinds } => format!("setns({}, {kinds:#x})", number(*namespace)),
            Op::OomScoreAdj { value, .. } => format!("oom_score_adj({value})"),
            Op::Landlock { ruleset } => format!("landlock_restrict_self({})", number(*ruleset)),
        }
    }
}

impl SystemCall<'_> {
    fn make(&self, sources: &Sources) -> Result<(), Errno> {
        let args = self.args.map(|arg| match arg {
            Arg::Number(number) => number,
            Arg::Source(source) => sources.get(source) as usize,
            Arg::Text(text) => text.as_ptr() as usize,
            Arg::Words(words) => words.as_ptr() as usize,
            Arg::Ints(ints) => ints.as_ptr() as usize,
        });
        // SAFETY: only `Op::call` creates a `SystemCall`. Each such call reads the strings and the numbers passed to
        // it, and writes to no memory.
        unsafe { call::make(self.number, args) }.map(drop)
    }
}

/// Performs an action in the child. `callers` has the descriptor numbers of the sources in the caller.
pub(crate) fn perform(op: &Op<'_>, sources: &Sources, callers: &[RawFd]) -> Result<(), Errno> {
    if let Some(call) = op.call() {
        return call.make(sources);
    }
    match *op {
        Op::Place { source, to } => match call::dup3(sources.get(source), to, 0) {
            Err(Errno::EBADF) if callers.get(source) == Some(&to) => place_beyond_limit(sources.get(source), to),
            placed => placed.map(drop),
        },
        Op::Close { fd } => {
            let _ = call::close(fd);
            Ok(())
        }
        Op::CloseRange { first, last } => descriptors::close_range(sources, first, last),
        Op::Open { dir, ref path, ref how, to } => {
            open(sources.killed_calls, dir.map_or(abi::AT_FDCWD, |dir| sources.get(dir)), path, how, to)
        }
        Op::OpenNull { to } => {
            open(sources.killed_calls, abi::AT_FDCWD, c"/dev/null", if to == 0 { &READ } else { &WRITE }, to)
        }
        Op::Tcsetpgrp { fd } => take_foreground(fd),
        Op::Capabilities { ref sets } => limit_capabilities(sets),
        Op::DenySetgroups => write_file(abi::AT_FDCWD, c"/proc/self/setgroups", b"deny"),
        Op::UserMap { ref map } => write_file(abi::AT_FDCWD, c"/proc/self/uid_map", map.to_bytes()),
        Op::GroupMap { ref map } => write_file(abi::AT_FDCWD, c"/proc/self/gid_map", map.to_bytes()),
        Op::OomScoreAdj { ref text, .. } => write_file(abi::AT_FDCWD, c"/proc/self/oom_score_adj", text),
        Op::Cgroup { dir } => write_file(sources.get(dir), c"cgroup.procs", b"0"),
        Op::Register { ref to } => to.make(),
        // `Op::call` describes every other action.
        _ => Err(Errno::ENOSYS),
    }
}

/// Places a descriptor at a number at or above RLIMIT_NOFILE. This happens if the caller has
/// lowered the limit while the number was open.
///
/// A child of fork(2) would inherit the descriptor at that number. So this child raises its soft limit for the dup3.
#[cold]
fn place_beyond_limit(fd: RawFd, to: RawFd) -> Result<(), Errno> {
    let limit = call::limit(abi::RLIMIT_NOFILE)?;
    call::set_limit(abi::RLIMIT_NOFILE, &abi::rlimit64 { rlim_cur: limit.rlim_max, ..limit })?;
    let placed = call::dup3(fd, to, 0);
    call::set_limit(abi::RLIMIT_NOFILE, &limit)?;
    placed.map(drop)
}

const READ: abi::open_how = abi::open_how { flags: abi::O_RDONLY as u64, mode: 0, resolve: 0 };
const WRITE: abi::open_how = abi::open_how { flags: abi::O_WRONLY as u64, mode: 0, resolve: 0 };

/// Opens a file as `to`. Closes `to` first, so that open usually returns that number and no dup3 is needed.
fn open(killed_calls: CallSet, dir: RawFd, path: &CStr, how: &abi::open_how, to: RawFd) -> Result<(), Errno> {
    let _ = call::close(to);
    descriptors::move_to(descriptors::open(killed_calls, dir, path, how)?, to)
}

fn write_file(dir: RawFd, path: &CStr, bytes: &[u8]) -> Result<(), Errno> {
    let fd = call::openat(dir, path, abi::O_WRONLY | abi::O_CLOEXEC, 0)?;
    let written = call::write(fd, bytes);
    call::close(fd)?;
    if written? == bytes.len() { Ok(()) } else { Err(Errno::EIO) }
}

/// Calls tcsetpgrp with all signals blocked. If SIGTTOU were not blocked, a call from a background group would stop
/// that group.
fn take_foreground(terminal: RawFd) -> Result<(), Errno> {
    let group = call::getpgid()?;
    let mask = call::set_signal_mask(u64::MAX)?;
    let done = call::tcsetpgrp(terminal, group);
    call::set_signal_mask(mask)?;
    done.map(drop)
}

pub(crate) fn limit_capabilities(sets: &CapabilitySets) -> Result<(), Errno> {
    // The calls below need CAP_SETPCAP in the effective set. An earlier change of user ids may have
    // emptied this set.
    let [_, permitted, inheritable] = call::capabilities()?;
    call::set_capabilities(permitted, permitted, inheritable)?;
    for capability in 0..64 {
        let wanted = sets.bounding >> capability & 1 == 1;
        match call::prctl(prctl::PR_CAPBSET_READ, capability, 0) {
            Ok(1) if !wanted => {
                call::prctl(prctl::PR_CAPBSET_DROP, capability, 0)?;
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    call::prctl(prctl::PR_CAP_AMBIENT, prctl::PR_CAP_AMBIENT_CLEAR_ALL as usize, 0)?;
    call::set_capabilities(sets.effective, sets.permitted, sets.inheritable)?;
    for capability in (0..64).filter(|capability| sets.ambient >> capability & 1 == 1) {
        call::prctl(prctl::PR_CAP_AMBIENT, prctl::PR_CAP_AMBIENT_RAISE as usize, capability)?;
    }
    Ok(())
}
