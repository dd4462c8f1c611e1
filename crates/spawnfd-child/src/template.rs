// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both halves of one spawn from a template, in the order of the spawn template RFC.
//!
//! A failure in the child is not an error of the call: the child exits with a status that depends on the errno. So the
//! child reports nothing, and writes only to its own stack. The contract of the crate's documentation holds here too.
//!
//! # References
//! The RFC "exec: add spawn templates for repeated executable startup", linux-api, May 2026.

use core::ffi::{CStr, c_char};
use core::sync::atomic::AtomicU32;

use spawnfd_sys::call::{self, CLOSE_RANGE_UNSHARE, SignalSet};
use spawnfd_sys::{Call, CallSet, CloneOptions, Errno, RawFd, Stack, abi, clone_child_by_pid};

use crate::Identity;
use crate::child::reset_signals;
use crate::descriptors::{CLOSE_RANGE_CLOEXEC, close_at_exec, close_now, keep_only, open};
use crate::launch::{clone_with_fallback, with_all_signals_blocked};

/// SIGKILL and SIGSTOP, which a process can neither block nor set.
const FIXED_SIGNALS: SignalSet = 1 << (abi::SIGKILL - 1) | 1 << (abi::SIGSTOP - 1);

/// A validated action. An error that the child finds only when it performs the action is part of the action.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum TemplateAction<'a> {
    Close { fd: RawFd },
    Dup2 { from: RawFd, to: RawFd, flags: u32 },
    Fchdir { fd: RawFd },
    Open { dir: RawFd, fd: RawFd, file: Result<(&'a CStr, abi::open_how), Errno> },
    CloseRange { first: u32, last: u32, flags: u32 },
    SignalMask(Result<SignalSet, Errno>),
    DefaultSignals(Result<SignalSet, Errno>),
}

impl TemplateAction<'_> {
    /// Whether the action uses or replaces this descriptor number. A range names no number.
    pub fn names(&self, number: RawFd) -> bool {
        match *self {
            TemplateAction::Close { fd } | TemplateAction::Fchdir { fd } => fd == number,
            TemplateAction::Dup2 { from, to, .. } => from == number || to == number,
            TemplateAction::Open { dir, fd, .. } => dir == number || fd == number,
            TemplateAction::CloseRange { .. } | TemplateAction::SignalMask(_) | TemplateAction::DefaultSignals(_) => {
                false
            }
        }
    }
}

/// The executable of a template.
#[derive(Clone, Copy, Debug)]
pub struct TemplateProgram<'a> {
    /// The checked file: close-on-exec, above 2, and no action names the number.
    pub file: RawFd,
    /// The absolute path of the file. The child executes the path if the file is a script.
    pub path: &'a CStr,
    /// The identity of the file.
    pub identity: Identity,
    /// The arguments, which end with NULL. It may be NULL.
    pub argv: *const *const c_char,
    /// The environment, which ends with NULL. It may be NULL.
    pub envp: *const *const c_char,
}

/// The arguments of one spawn.
#[derive(Clone, Copy, Debug)]
pub struct TemplateSpawn<'a> {
    /// The calls for which the calling thread's seccomp filter kills the process.
    pub killed_calls: CallSet,
    /// The actions, in order.
    pub actions: &'a [TemplateAction<'a>],
    /// Whether the program inherits the descriptors above 2 that are not close-on-exec.
    pub inherit_descriptors: bool,
    /// The program to execute.
    pub program: TemplateProgram<'a>,
}

/// The data that the child gets from its parent.
struct Start<'a> {
    spawn: &'a TemplateSpawn<'a>,
    has_handlers: bool,
    mask: SignalSet,
}

/// Creates a child that performs the actions and executes the program. Returns the child's pid after the child has
/// exec'd or exited. The kernel stores a pidfd, close-on-exec, in the word `pidfd`.
///
/// # Errors
/// The errors of clone(2).
///
/// # Safety
/// `argv` and `envp` are valid as execve(2) expects them. They do not change during the call.
pub unsafe fn spawn_template(stack: &mut Stack, spawn: &TemplateSpawn<'_>, pidfd: &AtomicU32) -> Result<i32, Errno> {
    let mut options = CloneOptions {
        share_memory: true,
        clone3: !spawn.killed_calls.contains(Call::Clone3),
        exit_signal: abi::SIGCHLD,
        ..CloneOptions::default()
    };
    // SAFETY: `enter` writes only to `stack`, ours by the exclusive borrow. All signals are blocked. The call returns
    // when the child has left this memory. The caller guarantees the arguments.
    let clone = |options: &CloneOptions, mask| unsafe {
        let start = Start { spawn, has_handlers: !options.clone3, mask };
        clone_child_by_pid(options, stack, enter, (&raw const start).cast(), None, Some(pidfd))
    };
    with_all_signals_blocked(|mask| clone_with_fallback(&mut options, |options| clone(options, mask)))
}

/// Entry point of the child.
///
/// # Safety
/// `start` points to a [`Start`] that does not change until the child has exec'd or exited. The caller of
/// [`spawn_template`] keeps that function's contract.
unsafe extern "C" fn enter(start: *const ()) -> ! {
    // SAFETY: the caller keeps this function's contract.
    let start = unsafe { &*start.cast::<Start<'_>>() };
    let errno = match prepare(start) {
        // SAFETY: the caller guarantees the arguments.
        Ok(()) => unsafe { execute(start.spawn) },
        Err(errno) => errno,
    };
    call::exit(match errno {
        Errno::ENOENT => 127,
        Errno::EACCES | Errno::ENOEXEC => 126,
        _ => 1,
    })
}

/// Performs everything before exec. All signals stay blocked until the end.
fn prepare(start: &Start<'_>) -> Result<(), Errno> {
    let spawn = start.spawn;
    reset_signals(0, start.has_handlers)?;
    let mut mask = start.mask;
    for action in spawn.actions {
        perform(action, spawn, &mut mask)?;
    }
    if !spawn.inherit_descriptors {
        keep_only(spawn.killed_calls, &[spawn.program.file], u32::MAX, true)?;
    }
    call::set_signal_mask(mask).map(drop)
}

/// Performs one action. An action that sets the signal mask changes `mask`.
fn perform(action: &TemplateAction<'_>, spawn: &TemplateSpawn<'_>, mask: &mut SignalSet) -> Result<(), Errno> {
    match *action {
        TemplateAction::Close { fd } => _ = call::close(fd)?,
        TemplateAction::Dup2 { from, to, flags } if from == to => {
            if flags != 0 {
                return Err(Errno::EINVAL);
            }
            check_open(from)?;
        }
        TemplateAction::Dup2 { from, to, flags } => _ = call::dup3(from, to, flags)?,
        TemplateAction::Fchdir { fd } => {
            check_open(fd)?;
            call::fchdir(fd)?;
        }
        TemplateAction::Open { dir, fd, file } => {
            let (path, how) = file?;
            let opened = open(spawn.killed_calls, dir, path, &how)?;
            if opened != fd {
                call::dup3(opened, fd, how.flags as u32 & abi::O_CLOEXEC)?;
                call::close(opened)?;
            }
        }
        TemplateAction::CloseRange { first, last, flags } => {
            close_range(spawn.killed_calls, spawn.program.file as u32, first, last, flags)?;
        }
        TemplateAction::SignalMask(set) => *mask = set? & !FIXED_SIGNALS,
        TemplateAction::DefaultSignals(set) => {
            let set = set? & !FIXED_SIGNALS;
            for signal in (1..=64).filter(|signal| set >> (signal - 1) & 1 == 1) {
                call::make_default(signal)?;
            }
        }
    }
    Ok(())
}

/// Checks that a number is open, for more than a reference to a path (O_PATH).
fn check_open(fd: RawFd) -> Result<(), Errno> {
    if call::status_flags(fd)? as u32 & abi::O_PATH != 0 { Err(Errno::EBADF) } else { Ok(()) }
}

/// Performs close_range(2), except on the executable's descriptor.
fn close_range(killed_calls: CallSet, kept: u32, first: u32, last: u32, flags: u32) -> Result<(), Errno> {
    // The child has its own table, so CLOSE_RANGE_UNSHARE has no effect.
    if flags & !CLOSE_RANGE_UNSHARE == CLOSE_RANGE_CLOEXEC {
        return close_at_exec(killed_calls, first, last);
    }
    for (first, last) in [(first, last.min(kept.saturating_sub(1))), (first.max(kept.saturating_add(1)), last)] {
        if first <= last {
            close_now(killed_calls, first, last)?;
        }
    }
    Ok(())
}

/// Executes the program. Returns only on failure.
///
/// # Safety
/// The arguments and the environment are valid.
unsafe fn execute(spawn: &TemplateSpawn<'_>) -> Errno {
    let TemplateProgram { file, path, identity, argv, envp } = spawn.program;
    // SAFETY: the caller guarantees the arguments.
    match unsafe { call::execve_descriptor(spawn.killed_calls, file, argv, envp) } {
        // ENOENT: the file is a script. Its interpreter could not open a descriptor that is close-on-exec.
        // The other errors: a filter refuses execveat.
        Errno::ENOENT | Errno::ENOSYS | Errno::EPERM => {}
        errno => return errno,
    }
    match Identity::of(spawn.killed_calls, abi::AT_FDCWD, path) {
        // SAFETY: the caller guarantees the arguments.
        Ok(now) if now == identity => unsafe { call::execve(path, argv, envp) },
        Ok(_) => Errno::ESTALE,
        Err(errno) => errno,
    }
}
