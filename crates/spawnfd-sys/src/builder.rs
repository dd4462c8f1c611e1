// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spawn interface of kernels that have our patches (`kernel/patches`): an empty pidfd is told what to become, and becomes it.
//!
//! The numbers are this project's own. Elsewhere than in the Linux that the patches are for they may mean something else: who calls has looked.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::call::{FilterInstruction, SignalSet};
use crate::{ArgBlock, Call, Calls, Errno, RawFd, abi, arch};

const PIDFD_CONFIG: u32 = 474;
const PIDFD_SPAWN_RUN: u32 = 475;
const PIDFD_EMPTY: u32 = 1 << 27;
const SET_FD: u32 = 2;
const SET_FLAGS: u32 = 5;
const KEY_NAMESPACES: u32 = 10;

/// `SPAWN_FDS_ALL`: the child begins with a copy of the caller's table.
const FDS_ALL: u32 = 1 << 1;
/// `SPAWN_BECOME_PIDFD`: the builder's number becomes the child's pidfd.
const BECOME_PIDFD: u32 = 1 << 2;

/// What is told to a builder by a number of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// The executable.
    Program = 4,
    /// The directory of the cgroup (v2) to be born in.
    Cgroup = 6,
}

/// What a child does before exec. Descriptors are the caller's numbers until an action has changed what they mean.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Action<'a> {
    Dup2 {
        from: RawFd,
        to: RawFd,
    },
    /// The same, but it does not survive exec.
    Move {
        from: RawFd,
        to: RawFd,
    },
    Fchdir {
        dir: RawFd,
    },
    Open {
        dir: RawFd,
        path: &'a CStr,
        how: abi::open_how,
        to: RawFd,
    },
    CloseRange {
        first: RawFd,
        last: RawFd,
    },
    SignalMask(SignalSet),
    DefaultSignals(SignalSet),
    Chdir(&'a CStr),
    Setsid,
    Setpgid {
        group: i32,
    },
    Umask(u32),
    Limit {
        resource: u32,
        limit: abi::rlimit64,
    },
    Groups(&'a [u32]),
    GroupIds {
        real: u32,
        effective: u32,
        saved: u32,
    },
    UserIds {
        real: u32,
        effective: u32,
        saved: u32,
    },
    NoNewPrivs,
    DeathSignal(u32),
    Affinity(&'a [u64]),
    Chroot(&'a CStr),
    ControllingTerminal {
        fd: RawFd,
    },
    /// Makes the child's process group the foreground one of a terminal.
    TakeForeground {
        fd: RawFd,
    },
    Nice(i32),
    Scheduler {
        policy: i32,
        priority: i32,
    },
    OomScoreAdj(i32),
    /// Effective, permitted, inheritable, bounding and ambient ones.
    Capabilities([u64; 5]),
    KeepCapabilities,
    JoinNamespace {
        namespace: RawFd,
        kinds: u32,
    },
    DenySetgroups,
    UserMap(&'a CStr),
    GroupMap(&'a CStr),
    Landlock {
        ruleset: RawFd,
    },
    Filter(&'a [FilterInstruction]),
}

/// `struct spawn_action`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawAction {
    kind: u32,
    flags: u32,
    fd: i32,
    newfd: i32,
    arg: u64,
    reserved: u64,
}

/// What an action's `arg` points to, where the kernel has a struct of its own for it.
#[derive(Clone, Copy, Debug)]
enum Detail {
    /// `struct spawn_open`.
    Open([u64; 4]),
    /// `struct spawn_sigset`: the address of the set, which stands behind it.
    Signals([u64; 2], SignalSet),
    Limit(abi::rlimit64),
    /// `struct spawn_capabilities`.
    Capabilities([u64; 5]),
}

/// What a child is to do, one after the other, in the kernel's form.
#[derive(Debug, Default)]
pub struct Actions<'a> {
    raw: Vec<RawAction>,
    /// In the order of those they belong to, which have [`DETAIL`] for an argument.
    details: Vec<Detail>,
    names: PhantomData<&'a CStr>,
}

/// Until it is known where the detail stays.
const DETAIL: u64 = u64::MAX;

/// `struct spawn_args`.
#[repr(C)]
#[derive(Debug, Default)]
struct RawArgs {
    flags: u32,
    nr_actions: u32,
    path: u64,
    argv: u64,
    envp: u64,
    actions: u64,
    action_size: u32,
    failed: i32,
    pid: i32,
    reserved0: u32,
    reserved1: u64,
}

/// What a run failed at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedAt {
    /// Before there was a child.
    Setup,
    /// The action of this index.
    Action(usize),
    /// Finding, opening or executing the program.
    Exec,
}

const SETUP: i32 = -2;

/// NULL for nothing.
fn address<T: ?Sized>(of: &T) -> u64 {
    if size_of_val(of) == 0 { 0 } else { (&raw const *of).cast::<u8>() as u64 }
}

impl<'a> Actions<'a> {
    /// `SPAWN_MAX_ACTIONS`.
    pub const MOST: usize = 256;

    /// None, with room for some.
    pub fn with_capacity(count: usize) -> Actions<'a> {
        Actions { raw: Vec::with_capacity(count), ..Actions::default() }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Adds one.
    pub fn push(&mut self, action: Action<'a>) {
        let plain = |kind, fd, newfd| RawAction { kind, fd, newfd, ..RawAction::default() };
        let with = |kind, fd, arg| RawAction { kind, fd, arg, ..RawAction::default() };
        let mut detailed = |kind, fd, newfd, detail| {
            self.details.push(detail);
            RawAction { kind, fd, newfd, arg: DETAIL, ..RawAction::default() }
        };
        let ids = |kind, [real, effective, saved]: [u32; 3]| RawAction {
            arg: saved.into(),
            ..plain(kind, real as i32, effective as i32)
        };
        let raw = match action {
            Action::Dup2 { from, to } => plain(1, from, to),
            Action::Move { from, to } => RawAction { flags: abi::O_CLOEXEC, ..plain(1, from, to) },
            Action::Fchdir { dir } => plain(2, dir, 0),
            Action::Open { dir, path, how, to } => {
                detailed(3, dir, to, Detail::Open([path.as_ptr() as u64, how.flags, how.mode, how.resolve]))
            }
            Action::CloseRange { first, last } => plain(4, first, last),
            Action::SignalMask(set) => detailed(5, 0, 0, Detail::Signals([0, 8], set)),
            Action::DefaultSignals(set) => detailed(6, 0, 0, Detail::Signals([0, 8], set)),
            Action::Chdir(path) => with(7, 0, path.as_ptr() as u64),
            Action::Setsid => plain(8, 0, 0),
            Action::Setpgid { group } => plain(9, group, 0),
            Action::Umask(mask) => plain(10, mask as i32, 0),
            Action::Limit { resource, limit } => detailed(11, resource as i32, 0, Detail::Limit(limit)),
            Action::Groups(groups) => with(12, groups.len() as i32, address(groups)),
            Action::GroupIds { real, effective, saved } => ids(13, [real, effective, saved]),
            Action::UserIds { real, effective, saved } => ids(14, [real, effective, saved]),
            Action::NoNewPrivs => plain(15, 0, 0),
            Action::DeathSignal(signal) => plain(16, signal as i32, 0),
            Action::Affinity(mask) => with(18, size_of_val(mask) as i32, address(mask)),
            Action::Chroot(path) => with(20, 0, path.as_ptr() as u64),
            Action::ControllingTerminal { fd } => plain(21, fd, 0),
            Action::TakeForeground { fd } => plain(22, fd, 0),
            Action::Nice(nice) => plain(23, nice, 0),
            Action::Scheduler { policy, priority } => plain(24, policy, priority),
            Action::OomScoreAdj(value) => plain(25, value, 0),
            Action::Capabilities(sets) => detailed(26, 0, 0, Detail::Capabilities(sets)),
            Action::KeepCapabilities => plain(27, 0, 0),
            Action::JoinNamespace { namespace, kinds } => RawAction { flags: kinds, ..plain(28, namespace, 0) },
            Action::DenySetgroups => plain(29, 0, 0),
            Action::UserMap(map) => with(30, 0, map.as_ptr() as u64),
            Action::GroupMap(map) => with(31, 0, map.as_ptr() as u64),
            Action::Landlock { ruleset } => plain(32, ruleset, 0),
            Action::Filter(program) => with(33, program.len() as i32, address(program)),
        };
        self.raw.push(raw);
    }

    /// Puts in the addresses of the details, which stay where they are until another is pushed.
    fn settle(&mut self) {
        let detailed = self.raw.iter_mut().filter(|raw| raw.arg == DETAIL);
        for (raw, detail) in detailed.zip(&mut self.details) {
            raw.arg = match detail {
                Detail::Open(open) => address(open),
                Detail::Signals(head, set) => {
                    head[0] = address(set);
                    address(head)
                }
                Detail::Limit(limit) => address(limit),
                Detail::Capabilities(sets) => address(sets),
            };
        }
    }
}

/// Makes both calls of the builder in vain: EBADF where they are the builder's.
pub(crate) fn attempt() {
    for number in [PIDFD_CONFIG, PIDFD_SPAWN_RUN] {
        // SAFETY: no descriptor, and null pointers, which the kernel checks.
        let _ = unsafe { arch::syscall(number, [usize::MAX, 0, 0, 0, 0, 0]) };
    }
}

/// What will be a child's pidfd.
#[derive(Debug)]
pub struct Builder(OwnedFd);

impl Builder {
    /// An empty one, close-on-exec.
    ///
    /// # Errors
    /// EINVAL: this kernel has none. ENOSYS, EPERM: refused by a filter. EMFILE, ENFILE, ENOMEM.
    pub fn open(killed: Calls) -> Result<Builder, Errno> {
        killed.refuse(Call::PidfdOpen)?;
        killed.refuse(Call::Builder)?;
        // SAFETY: two numbers.
        let fd = Errno::check(unsafe { arch::syscall(abi::__NR_pidfd_open, [0, PIDFD_EMPTY as usize, 0, 0, 0, 0]) })?;
        // SAFETY: the kernel has just made it for this call.
        Ok(Builder(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// The same under another number.
    #[must_use]
    pub fn placed(self, place: impl FnOnce(OwnedFd) -> OwnedFd) -> Builder {
        Builder(place(self.0))
    }

    /// Tells it of a descriptor, by the number, which has to stay until it has run.
    ///
    /// # Errors
    /// EBADF: a negative number.
    pub fn give(&self, what: Given, number: RawFd) -> Result<(), Errno> {
        self.config(SET_FD, what as u32, number)
    }

    /// Has the child be born in new namespaces (`CLONE_NEW*`).
    ///
    /// # Errors
    /// EINVAL: others than a child can be born in.
    pub fn namespaces(&self, kinds: u32) -> Result<(), Errno> {
        self.config(SET_FLAGS, KEY_NAMESPACES, kinds as i32)
    }

    fn config(&self, command: u32, key: u32, number: i32) -> Result<(), Errno> {
        let args = [self.0.as_raw_fd() as usize, command as usize, key as usize, 0, number as isize as usize, 0];
        // SAFETY: numbers, and no value (NULL).
        Errno::check(unsafe { arch::syscall(PIDFD_CONFIG, args) }).map(drop)
    }

    /// Starts a program. The calling thread sleeps until it has been executed, or has failed; then nothing is left of it. `path`: what to
    /// execute, unless a [`Given::Program`] is. `inherit`: the child begins with all descriptors of the caller's, not with 0 to 2 and what
    /// actions name. Gives the child's number in the caller's pid namespace, and its pidfd.
    ///
    /// # Errors
    /// What failed, and why: as execve(2), or the action; EAGAIN, ENOMEM, EMFILE, EPERM for the child. E2BIG: also more actions than
    /// [`Actions::MOST`].
    ///
    /// # References
    /// `Documentation/userspace-api/spawn.rst` of a kernel with the patches.
    pub fn run(
        self,
        path: Option<&CStr>,
        argv: &ArgBlock,
        envp: &ArgBlock,
        mut actions: Actions<'_>,
        inherit: bool,
    ) -> Result<(i32, OwnedFd), (FailedAt, Errno)> {
        actions.settle();
        let raw = &actions.raw;
        let mut args = RawArgs {
            flags: BECOME_PIDFD | if inherit { FDS_ALL } else { 0 },
            nr_actions: raw.len() as u32,
            path: path.map_or(0, |path| path.as_ptr() as u64),
            argv: argv.as_ptr() as u64,
            envp: envp.as_ptr() as u64,
            actions: if raw.is_empty() { 0 } else { raw.as_ptr() as u64 },
            action_size: if raw.is_empty() { 0 } else { size_of::<RawAction>() as u32 },
            failed: SETUP,
            ..RawArgs::default()
        };
        let number = self.0.as_raw_fd() as usize;
        // SAFETY: `args` is as long as it says, and what it and `actions` point to is as the kernel wants it and outlives the call.
        let ran = unsafe {
            arch::syscall(PIDFD_SPAWN_RUN, [number, (&raw mut args) as usize, size_of::<RawArgs>(), 0, 0, 0])
        };
        match Errno::check(ran) {
            Ok(_) => Ok((args.pid, self.0)),
            Err(errno) => Err((
                match args.failed {
                    SETUP => FailedAt::Setup,
                    index => usize::try_from(index).map_or(FailedAt::Exec, FailedAt::Action),
                },
                errno,
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    /// As include/uapi/linux/spawn.h has them.
    #[test]
    fn layouts() {
        assert_eq!((size_of::<RawAction>(), offset_of!(RawAction, arg)), (32, 16));
        assert_eq!((size_of::<RawArgs>(), offset_of!(RawArgs, path), offset_of!(RawArgs, actions)), (64, 8, 32));
        assert_eq!((offset_of!(RawArgs, failed), offset_of!(RawArgs, pid)), (44, 48));
        assert_eq!(size_of::<abi::open_how>(), 24, "behind the path in struct spawn_open");
    }

    /// However many there are, each has its own, and others keep what they have.
    #[test]
    fn details_find_their_actions() {
        let mut actions = Actions::with_capacity(0);
        for mask in 0..20 {
            actions.push(Action::Umask(mask as u32));
            actions.push(Action::SignalMask(mask));
            actions.push(Action::UserIds { real: u32::MAX, effective: u32::MAX, saved: u32::MAX });
        }
        actions.settle();
        let mut details = actions.details.iter();
        for triple in actions.raw.chunks(3) {
            let Some(detail @ Detail::Signals(head, set)) = details.next() else { panic!("{details:?}") };
            let args: Vec<u64> = triple.iter().map(|raw| raw.arg).collect();
            assert_eq!(args, [0, address(head), u32::MAX.into()]);
            assert_eq!((head, *set), (&[address(set), 8], triple[0].fd as u64), "{detail:?}");
        }
    }

    #[test]
    fn a_kernel_without_says_so() {
        match Builder::open(Calls::NONE) {
            Ok(_) => {}
            Err(errno) => assert!([Errno::EINVAL, Errno::ENOSYS, Errno::EPERM].contains(&errno), "{errno:?}"),
        }
    }
}
