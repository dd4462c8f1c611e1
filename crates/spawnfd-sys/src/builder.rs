// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spawn interface of kernels with this project's patches. The caller opens an empty
//! pidfd, configures it, and runs it. The pidfd then refers to the new child.
//!
//! The system call numbers belong to this project. On a kernel without the patches they may mean other calls, so the
//! caller must first check that the kernel has the patches.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::call::{FilterInstruction, SignalSet};
use crate::spawn_abi::*;
use crate::{ArgBlock, Call, CallSet, Errno, RawFd, abi, arch};

const PIDFD_CONFIG: u32 = 474;
const PIDFD_SPAWN_RUN: u32 = 475;
/// The kinds of descriptors that a caller gives to a builder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// The executable.
    Program = PIDFD_CONFIG_KEY_EXEC_FD as isize,
    /// The directory of the cgroup (v2) in which the child starts.
    Cgroup = PIDFD_CONFIG_KEY_CGROUP as isize,
}

/// An action of a child before exec: the fields of [`SpawnAction`], in the kernel's order and units. The kernel's
/// `fd`, `newfd` and `arg` are unions, which have other names in other kinds of actions.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Action<'a> {
    /// The kind of the action, `SPAWN_ACTION_*`.
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
    Capabilities(SpawnCapabilities),
}

impl Default for ActionArg<'_> {
    fn default() -> Self {
        ActionArg::Number(0)
    }
}

/// The struct that an action's `arg` points to, for the kinds of actions that have one.
#[derive(Clone, Copy, Debug)]
enum Detail {
    Open(SpawnOpen),
    /// The struct, which contains the address of a set; and that set.
    Signals(SpawnSigset, SignalSet),
    Capabilities(SpawnCapabilities),
}

/// The actions of a child, in order, in the kernel's form.
#[derive(Debug, Default)]
pub struct Actions<'a> {
    raw: Vec<SpawnAction>,
    /// The structs of those actions whose `arg` is [`DETAIL`], in the same order.
    details: Vec<Detail>,
    names: PhantomData<&'a CStr>,
}

/// Placeholder for the address of a detail, which may move until the last `push`.
const DETAIL: u64 = u64::MAX;

/// The step in which `Builder::run` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedAt {
    /// The run failed before the kernel created a child.
    Setup,
    /// The child failed to perform the action with this index.
    Action(usize),
    /// The child failed to find, open or execute the program.
    Exec,
}

/// Returns the address of a value, or NULL for an empty slice.
fn address<T: ?Sized>(of: &T) -> u64 {
    if size_of_val(of) == 0 { 0 } else { (&raw const *of).cast::<u8>() as u64 }
}

impl<'a> Actions<'a> {
    /// Creates an empty list with capacity for `count` actions.
    pub fn with_capacity(count: usize) -> Actions<'a> {
        Actions { raw: Vec::with_capacity(count), ..Actions::default() }
    }

    /// The number of actions.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Adds an action.
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
                let how = OpenHow { flags: how.flags, mode: how.mode, resolve: how.resolve };
                let (path, how_size) = (path.as_ptr() as u64, size_of::<OpenHow>() as u64);
                detailed(Detail::Open(SpawnOpen { path, how_size, how }))
            }
            ActionArg::Signals(set) => {
                let sigsetsize = size_of::<SignalSet>() as u64;
                detailed(Detail::Signals(SpawnSigset { sigset: 0, sigsetsize }, set))
            }
            ActionArg::Capabilities(sets) => detailed(Detail::Capabilities(sets)),
        };
        self.raw.push(SpawnAction { r#type: kind, flags, fd, newfd, arg, reserved: 0 });
    }

    /// Writes the addresses of the details into the actions. The details do not move until the next `push`.
    fn settle(&mut self) {
        let detailed = self.raw.iter_mut().filter(|raw| raw.arg == DETAIL);
        for (raw, detail) in detailed.zip(&mut self.details) {
            raw.arg = match detail {
                Detail::Open(open) => address(open),
                Detail::Signals(head, set) => {
                    head.sigset = address(set);
                    address(head)
                }
                Detail::Capabilities(sets) => address(sets),
            };
        }
    }
}

/// Makes both system calls of a builder with invalid arguments. A kernel with the patches returns
/// EBADF.
pub(crate) fn attempt() {
    for number in [PIDFD_CONFIG, PIDFD_SPAWN_RUN] {
        // SAFETY: the arguments are an invalid descriptor number and null pointers. The kernel
        // checks both.
        let _ = unsafe { arch::syscall(number, [usize::MAX, 0, 0, 0, 0, 0]) };
    }
}

/// An empty pidfd, which refers to a child after `Builder::run`.
#[derive(Debug)]
pub struct Builder(OwnedFd);

impl Builder {
    /// Opens an empty builder, close-on-exec.
    ///
    /// # Errors
    /// EINVAL: the kernel has no builders. ENOSYS, EPERM: a filter refused the call. EMFILE, ENFILE, ENOMEM.
    pub fn open(killed_calls: CallSet) -> Result<Builder, Errno> {
        killed_calls.refuse(Call::PidfdOpen)?;
        killed_calls.refuse(Call::Builder)?;
        // SAFETY: the arguments are numbers, not addresses.
        let fd = Errno::check(unsafe { arch::syscall(abi::__NR_pidfd_open, [0, PIDFD_EMPTY as usize, 0, 0, 0, 0]) })?;
        // SAFETY: the kernel has just opened the descriptor for this call, so it has no other owner.
        Ok(Builder(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }))
    }

    /// Moves the builder to another descriptor number.
    #[must_use]
    pub fn placed(self, place: impl FnOnce(OwnedFd) -> OwnedFd) -> Builder {
        Builder(place(self.0))
    }

    /// Gives the builder a descriptor by its number. The caller must keep the descriptor open until
    /// `Builder::run` returns.
    ///
    /// # Errors
    /// EBADF: the number is negative.
    pub fn give(&self, what: Given, number: RawFd) -> Result<(), Errno> {
        self.config(PIDFD_CONFIG_SET_FD, what as u32, number)
    }

    /// Makes the child start in new namespaces (`CLONE_NEW*`).
    ///
    /// # Errors
    /// EINVAL: a kind of namespace in which a child cannot start.
    pub fn namespaces(&self, kinds: u32) -> Result<(), Errno> {
        self.config(PIDFD_CONFIG_SET_FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, kinds as i32)
    }

    fn config(&self, command: u32, key: u32, number: i32) -> Result<(), Errno> {
        let args = [self.0.as_raw_fd() as usize, command as usize, key as usize, 0, number as isize as usize, 0];
        // SAFETY: the arguments are numbers, and a null pointer for the value.
        Errno::check(unsafe { arch::syscall(PIDFD_CONFIG, args) }).map(drop)
    }

    /// Starts a program and returns the child's pid in the caller's pid namespace, and its pidfd.
    ///
    /// The calling thread sleeps until the child has exec'd or failed. The kernel has reaped a failed child.
    ///
    /// `path` is the file to execute, unless the caller has given a [`Given::Program`]. If `inherit` is true, the child
    /// starts with all descriptors of the caller that are not close-on-exec. Otherwise it starts with 0 to 2. In both
    /// cases it also has the descriptors that actions name.
    ///
    /// # Errors
    /// The failed step, and the errno of execve(2) or of the action. EAGAIN, ENOMEM, EMFILE, EPERM:
    /// the kernel could not create the child. E2BIG: the arguments are too long for execve(2), or
    /// there are more actions than `SPAWN_MAX_ACTIONS`. EACCES in the setup: the caller's credentials have changed since
    /// `Builder::open`. EDQUOT: the actions of the user's spawns need too much kernel memory.
    ///
    /// # References
    /// `Documentation/userspace-api/spawn.rst` of a kernel with the patches.
    pub fn run(
        self,
        path: Option<&CStr>,
        argv: &ArgBlock<'_>,
        envp: &ArgBlock<'_>,
        mut actions: Actions<'_>,
        inherit: bool,
    ) -> Result<(i32, OwnedFd), (FailedAt, Errno)> {
        actions.settle();
        let raw = &actions.raw;
        let mut args = SpawnArgs {
            flags: SPAWN_BECOME_PIDFD | if inherit { SPAWN_FDS_INHERIT } else { 0 },
            nr_actions: raw.len() as u32,
            path: path.map_or(0, |path| path.as_ptr() as u64),
            argv: argv.as_ptr() as u64,
            envp: envp.as_ptr() as u64,
            actions: if raw.is_empty() { 0 } else { raw.as_ptr() as u64 },
            action_size: if raw.is_empty() { 0 } else { size_of::<SpawnAction>() as u32 },
            failed: SPAWN_FAILED_SETUP,
            ..SpawnArgs::default()
        };
        let number = self.0.as_raw_fd() as usize;
        // SAFETY: the call gets the size of `args`. The data that `args` and `actions` point to outlives the call.
        // The kernel writes only to `args`.
        let ran = unsafe {
            arch::syscall(PIDFD_SPAWN_RUN, [number, (&raw mut args) as usize, size_of::<SpawnArgs>(), 0, 0, 0])
        };
        match Errno::check(ran) {
            Ok(_) => Ok((args.pid, self.0)),
            Err(errno) => Err((
                match args.failed {
                    SPAWN_FAILED_SETUP => FailedAt::Setup,
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

    /// Each action gets the address of its own detail, and actions without a detail keep their argument.
    #[test]
    fn each_action_points_to_its_detail() {
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
            assert_eq!(
                (head, *set),
                (&SpawnSigset { sigset: address(set), sigsetsize: 8 }, triple[0].fd as u64),
                "{detail:?}"
            );
        }
    }

    #[test]
    fn an_unpatched_kernel_refuses_a_builder() {
        match Builder::open(CallSet::NONE) {
            Ok(_) => {}
            Err(errno) => assert!([Errno::EINVAL, Errno::ENOSYS, Errno::EPERM].contains(&errno), "{errno:?}"),
        }
    }
}
