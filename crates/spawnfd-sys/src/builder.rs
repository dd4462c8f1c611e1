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

/// What a child does before exec: the fields of `struct spawn_action`, in the order and units of the kernel.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Action<'a> {
    /// `SPAWN_ACTION_*`.
    pub kind: u32,
    pub flags: u32,
    pub fd: i32,
    pub newfd: i32,
    pub arg: ActionArg<'a>,
}

/// The argument of an [`Action`].
#[derive(Clone, Copy, Debug)]
pub enum ActionArg<'a> {
    /// A number.
    Number(u64),
    /// The address of a string.
    Text(&'a CStr),
    /// The address of 64-bit numbers.
    Words(&'a [u64]),
    /// The address of 32-bit numbers.
    Ints(&'a [u32]),
    /// The address of a seccomp filter.
    Filter(&'a [FilterInstruction]),
    /// The address of a `struct spawn_open`.
    Open(&'a CStr, abi::open_how),
    /// The address of a `struct spawn_sigset`.
    Signals(SignalSet),
    /// The address of a `struct spawn_capabilities`.
    Capabilities([u64; 5]),
}

impl Default for ActionArg<'_> {
    fn default() -> Self {
        ActionArg::Number(0)
    }
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
        let Action { kind, flags, fd, newfd, arg } = action;
        let mut detailed = |detail| {
            self.details.push(detail);
            DETAIL
        };
        let arg = match arg {
            ActionArg::Number(number) => number,
            ActionArg::Text(text) => text.as_ptr() as u64,
            ActionArg::Words(words) => address(words),
            ActionArg::Ints(ints) => address(ints),
            ActionArg::Filter(program) => address(program),
            ActionArg::Open(path, how) => {
                detailed(Detail::Open([path.as_ptr() as u64, how.flags, how.mode, how.resolve]))
            }
            ActionArg::Signals(set) => detailed(Detail::Signals([0, 8], set)),
            ActionArg::Capabilities(sets) => detailed(Detail::Capabilities(sets)),
        };
        self.raw.push(RawAction { kind, flags, fd, newfd, arg, reserved: 0 });
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
        // SAFETY: `args` is as long as it says. What it and `actions` point to outlives the call; the kernel writes to `args` alone.
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
            actions.push(Action { kind: 10, fd: mask as i32, ..Action::default() });
            actions.push(Action { kind: 5, arg: ActionArg::Signals(mask), ..Action::default() });
            actions.push(Action { kind: 14, arg: ActionArg::Number(u32::MAX.into()), ..Action::default() });
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
