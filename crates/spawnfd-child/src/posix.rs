// SPDX-License-Identifier: MIT OR Apache-2.0
//! Both halves of one posix_spawn(3), in the order of glibc 2.41.
//!
//! The calls and their order are part of what programs observe. So this child does not perform a
//! [`Plan`](crate::Plan): it has no sources, makes no checks before exec, and searches the program by execve. Neither
//! half allocates memory, opens a descriptor or uses a lock. The contract of the crate's documentation holds here too.
//!
//! # References
//! posix_spawn(3); glibc 2.41, sysdeps/unix/sysv/linux/spawni.c and posix/execvpe.c.

use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::call::{self, CLOSE_RANGE_UNSHARE, SignalSet};
use spawnfd_sys::{CallSet, CloneOptions, Errno, RawFd, SharedWords, Stack, abi, clone_child_by_pid, wait_pid};

use crate::child::reset_signals;
use crate::descriptors::{close_from, move_to};
use crate::launch::{clone_with_fallback, with_all_signals_blocked};

/// A file action, with borrowed strings.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub enum PosixAction {
    Close { fd: RawFd },
    Dup2 { from: RawFd, to: RawFd },
    Open { fd: RawFd, path: *const c_char, flags: i32, mode: u32 },
    Chdir { path: *const c_char },
    Fchdir { fd: RawFd },
    Closefrom { first: RawFd },
    Tcsetpgrp { terminal: RawFd },
}

/// The scheduling attributes.
#[derive(Clone, Copy, Debug)]
pub struct PosixScheduling {
    /// `None` keeps the policy (POSIX_SPAWN_SETSCHEDPARAM).
    pub policy: Option<i32>,
    /// `sched_priority`.
    pub priority: i32,
}

/// The program to execute.
#[derive(Clone, Copy, Debug)]
pub struct PosixProgram<'a> {
    /// A path, or with `search` also a name without a slash.
    pub file: &'a CStr,
    /// The value of PATH (posix_spawnp).
    pub search: Option<&'a CStr>,
    /// Memory for the arguments of the shell that runs a file for which execve returns ENOEXEC, at least two words
    /// larger than `argv` (posix_spawn@GLIBC_2.2.5). `None` means that ENOEXEC is an error.
    pub shell: Option<*mut *const c_char>,
    /// The arguments, which end with NULL.
    pub argv: *const *const c_char,
    /// The environment, which ends with NULL. It may be NULL.
    pub envp: *const *const c_char,
}

/// The arguments of one posix_spawn.
#[derive(Clone, Copy, Debug)]
pub struct PosixSpawn<'a> {
    /// The signals that the child sets to their default disposition.
    pub default_signals: SignalSet,
    /// `None`: the calling thread's mask.
    pub signal_mask: Option<SignalSet>,
    /// The scheduling attributes to set.
    pub scheduling: Option<PosixScheduling>,
    /// Whether the child creates a session.
    pub setsid: bool,
    /// The child's process group; 0 means a new one.
    pub group: Option<i32>,
    /// Whether the child sets its effective ids to the real ones.
    pub reset_ids: bool,
    /// The directory of a cgroup in which the kernel creates the child.
    pub cgroup: Option<RawFd>,
    /// The file actions, in order.
    pub actions: &'a [PosixAction],
    /// The program to execute.
    pub program: PosixProgram<'a>,
}

/// The data that the child gets from its parent.
#[derive(Clone, Copy)]
struct Start<'a> {
    spawn: &'a PosixSpawn<'a>,
    /// The first number of a `Closefrom` that the child performs before the actions. `None`: the child has a copy of the
    /// caller's table.
    cut: Option<RawFd>,
    has_handlers: bool,
    mask: SignalSet,
    /// The errno of a failure, or `SHARED_TABLE`. 0 means that the child has not failed.
    report: &'a AtomicU64,
}

/// The report of a child that could not leave the caller's table. The child has done nothing else.
const SHARED_TABLE: u64 = u64::MAX;

/// Spawns a program, and returns its pid. With a word `pidfd`, the kernel also opens a pidfd, close-on-exec.
///
/// # Errors
/// The errno of the first call that failed in the parent or in the child. There is then no child and no pidfd.
///
/// # Safety
/// The strings of the actions, and the arguments of the program, are valid as execve(2) expects them. They do not change
/// during the call.
pub unsafe fn spawn_posix(stack: &mut Stack, spawn: &PosixSpawn<'_>, pidfd: Option<&AtomicU32>) -> Result<i32, Errno> {
    let near = AtomicU64::new(0);
    // The kernel keeps the dumpable flag with the memory, and a change of ids clears it. So a child that changes ids has
    // memory of its own.
    let far = if spawn.reset_ids && has_other_ids() { Some(SharedWords::<1>::new()?) } else { None };
    let report = far.as_ref().map_or(&near, |words| &words.get()[0]);
    // The kernel installs a pidfd in the caller's table, which a child with a cut shares at first. Such a child would keep
    // a descriptor of itself.
    // SAFETY: the caller guarantees the strings.
    let cut = if pidfd.is_some() { None } else { unsafe { early_cut(spawn.actions) } };
    let mut attempt = |cut: Option<RawFd>, mask| {
        report.store(0, Ordering::Release);
        let start = Start { spawn, cut, has_handlers: false, mask, report };
        // SAFETY: the caller guarantees the strings and the arguments.
        unsafe { create(stack, start, far.is_none(), pidfd) }
    };
    let outcome = with_all_signals_blocked(|mask| match attempt(cut, mask) {
        Ok(None) => attempt(None, mask),
        outcome => outcome,
    });
    // Without a cut, the outcome is not `None`.
    outcome?.ok_or(Errno::EAGAIN)
}

/// Creates a child, and reaps it if it fails. Returns `None` if no child can begin with the caller's descriptor table:
/// a seccomp filter refuses the clone call, or the child could not leave the table.
///
/// # Safety
/// The contract of [`spawn_posix`]. All signals are blocked.
unsafe fn create(
    stack: &mut Stack,
    start: Start<'_>,
    share_memory: bool,
    pidfd: Option<&AtomicU32>,
) -> Result<Option<i32>, Errno> {
    let mut options = CloneOptions {
        share_memory,
        share_descriptors: start.cut.is_some(),
        cgroup: start.spawn.cgroup,
        clone3: true,
        exit_signal: abi::SIGCHLD,
        ..CloneOptions::default()
    };
    // SAFETY: `enter` writes only to `stack`, ours by the exclusive borrow, to the report and to the memory for a shell's
    // arguments. All signals are blocked. The call returns when the child has left this memory.
    let clone = |options: &CloneOptions| unsafe {
        let start = Start { has_handlers: !options.clone3, ..start };
        clone_child_by_pid(options, stack, enter, (&raw const start).cast(), None, pidfd)
    };
    let cloned = match options.cgroup {
        None => clone_with_fallback(&mut options, clone),
        Some(_) => clone(&options).map_err(|errno| if errno == Errno::ENOSYS { Errno::EOPNOTSUPP } else { errno }),
    };
    let is_refused = matches!(cloned, Err(Errno::ENOSYS | Errno::EINVAL | Errno::EPERM));
    if options.share_descriptors && !options.clone3 && is_refused {
        return Ok(None);
    }
    let pid = cloned?;
    match start.report.load(Ordering::Acquire) {
        0 => Ok(Some(pid)),
        SHARED_TABLE => {
            let _ = wait_pid(pid, true);
            Ok(None)
        }
        errno => {
            let _ = wait_pid(pid, true);
            pidfd.into_iter().for_each(|pidfd| _ = call::close(pidfd.load(Ordering::Acquire) as RawFd));
            Err(Errno::from_raw(errno as i32))
        }
    }
}

/// Whether an effective id differs from the real one.
fn has_other_ids() -> bool {
    let [user, effective_user, _, group, effective_group, _] = call::ids();
    (user, group) != (effective_user, effective_group)
}

/// Returns the first of the descriptors that the child can close before the actions, so that the kernel does not copy
/// them. `None` if there is no `Closefrom`, which would close them later.
///
/// The actions before the first `Closefrom` must not use these descriptors. A path other than /dev/null may lead to
/// any descriptor, for example by a link to /proc/self/fd. So an action with such a path means `None` too.
///
/// # Safety
/// The paths of the actions are C strings.
unsafe fn early_cut(actions: &[PosixAction]) -> Option<RawFd> {
    let mut lowest = 0;
    for action in actions {
        let highest_used = match *action {
            PosixAction::Closefrom { first } => return Some(first.max(lowest)),
            // SAFETY: the caller guarantees the path.
            PosixAction::Open { fd, path, .. } if unsafe { CStr::from_ptr(path) } == c"/dev/null" => fd,
            PosixAction::Open { .. } | PosixAction::Chdir { .. } => return None,
            PosixAction::Close { fd } | PosixAction::Fchdir { fd } | PosixAction::Tcsetpgrp { terminal: fd } => fd,
            PosixAction::Dup2 { from, to } => from.max(to),
        };
        lowest = lowest.max(highest_used.saturating_add(1));
    }
    None
}

/// Entry point of the child.
///
/// # Safety
/// `start` points to a [`Start`] that does not change until the child has exec'd or exited. The caller of [`spawn_posix`]
/// keeps that function's contract.
unsafe extern "C" fn enter(start: *const ()) -> ! {
    // SAFETY: the caller keeps this function's contract.
    let start = unsafe { &*start.cast::<Start<'_>>() };
    let report = if start.cut.is_some_and(|cut| leave_table(cut).is_err()) {
        SHARED_TABLE
    } else {
        // SAFETY: the strings are valid.
        let errno = unsafe { prepare(start).map_or_else(|errno| errno, |()| execute(&start.spawn.program)) };
        errno.raw() as u64
    };
    start.report.store(report, Ordering::Release);
    call::exit(127)
}

/// Gives the child a table of its own, without the descriptors from `cut` on if the kernel can omit them.
fn leave_table(cut: RawFd) -> Result<(), Errno> {
    match call::close_range(CallSet::NONE, cut as u32, u32::MAX, CLOSE_RANGE_UNSHARE) {
        Ok(_) => Ok(()),
        // Linux before 5.9, or a seccomp filter.
        Err(_) => call::unshare_descriptors().map(drop),
    }
}

/// Performs everything before exec.
///
/// # Safety
/// The strings of the actions are valid.
unsafe fn prepare(start: &Start<'_>) -> Result<(), Errno> {
    set_attributes(start)?;
    for action in start.spawn.actions {
        // SAFETY: the caller guarantees the strings.
        unsafe { perform(action, start.spawn.group) }?;
    }
    call::set_signal_mask(start.spawn.signal_mask.unwrap_or(start.mask)).map(drop)
}

/// Sets the attributes except the signal mask.
fn set_attributes(start: &Start<'_>) -> Result<(), Errno> {
    let spawn = start.spawn;
    reset_signals(spawn.default_signals, start.has_handlers)?;
    if let Some(PosixScheduling { policy, priority }) = spawn.scheduling {
        let priority = (&raw const priority) as usize;
        match policy {
            None => simple(abi::__NR_sched_setparam, [0, priority, 0])?,
            Some(policy) => simple(abi::__NR_sched_setscheduler, [0, policy as usize, priority])?,
        }
    }
    if spawn.setsid {
        simple(abi::__NR_setsid, [0; 3])?;
    }
    if let Some(group) = spawn.group {
        simple(abi::__NR_setpgid, [0, group as usize, 0])?;
    }
    if spawn.reset_ids {
        const KEEP: usize = usize::MAX;
        let [user, _, _, group, ..] = call::ids();
        simple(abi::__NR_setresuid, [KEEP, user as usize, KEEP])?;
        simple(abi::__NR_setresgid, [KEEP, group as usize, KEEP])?;
    }
    Ok(())
}

/// Makes a system call whose only address, if any, is that of a scheduling priority.
fn simple(number: u32, args: [usize; 3]) -> Result<(), Errno> {
    // SAFETY: the calls of this file read at most one number through the address.
    unsafe { call::make(number, args) }.map(drop)
}

/// # Safety
/// The strings of the action are valid.
unsafe fn perform(action: &PosixAction, group: Option<i32>) -> Result<(), Errno> {
    match *action {
        PosixAction::Close { fd } => {
            // A descriptor that is not open is no error, unless no process could have it.
            if call::close(fd).is_err() && (fd < 0 || fd as u64 >= call::limit(abi::RLIMIT_NOFILE)?.rlim_cur) {
                return Err(Errno::EBADF);
            }
        }
        PosixAction::Dup2 { from, to } if from == to => _ = call::set_descriptor_flags(to, 0)?,
        PosixAction::Dup2 { from, to } => _ = call::dup3(from, to, 0)?,
        PosixAction::Open { fd, path, flags, mode } => {
            // Close the number first, so that the action also works with the maximum number of open files.
            let _ = call::close(fd);
            // SAFETY: the caller guarantees the path.
            let path = unsafe { CStr::from_ptr(path) };
            move_to(call::openat(abi::AT_FDCWD, path, flags as u32, mode)?, fd)?;
        }
        PosixAction::Chdir { path } => simple(abi::__NR_chdir, [path as usize, 0, 0])?,
        PosixAction::Fchdir { fd } => _ = call::fchdir(fd)?,
        PosixAction::Closefrom { first } => close_from(first as u32)?,
        PosixAction::Tcsetpgrp { terminal } => {
            let group = match group {
                Some(group) if group != 0 => group,
                _ => call::getpgid()?,
            };
            // All signals are blocked, so SIGTTOU does not stop the child.
            call::tcsetpgrp(terminal, group)?;
        }
    }
    Ok(())
}

/// Executes the program. Returns only on failure.
///
/// # Safety
/// The arguments and the environment are valid.
unsafe fn execute(program: &PosixProgram<'_>) -> Errno {
    // SAFETY: the caller guarantees the arguments.
    let execute = |file: &CStr, argv| unsafe { search(file, program.search, argv, program.envp) };
    let errno = execute(program.file, program.argv);
    let Some(args) = program.shell.filter(|_| errno == Errno::ENOEXEC) else { return errno };
    // The shell's arguments: its name, the file, and the arguments after the first one.
    // SAFETY: `args` has two more words than the arguments, which end with NULL.
    unsafe {
        args.write(c"/bin/sh".as_ptr());
        args.add(1).write(program.file.as_ptr());
        let mut next = args.add(2);
        if !program.argv.read().is_null() {
            let mut arg = program.argv.add(1);
            while !arg.read().is_null() {
                next.write(arg.read());
                (arg, next) = (arg.add(1), next.add(1));
            }
        }
        next.write(ptr::null());
    }
    execute(c"/bin/sh", args.cast_const())
}

/// The longest name of a file, and the longest directory of a PATH that the child searches.
const NAME_MAX: usize = 255;
const PATH_MAX: usize = 4095;

/// Executes a path, or the first file with this name in the directories of `path`. Returns only on failure.
///
/// # Safety
/// `argv` and `envp` are valid.
unsafe fn search(file: &CStr, path: Option<&CStr>, argv: *const *const c_char, envp: *const *const c_char) -> Errno {
    let name = file.to_bytes();
    let Some(path) = path.filter(|_| !name.is_empty() && !name.contains(&b'/')) else {
        // SAFETY: the caller guarantees the arguments.
        return unsafe { call::execve(file, argv, envp) };
    };
    if name.len() > NAME_MAX {
        return Errno::ENAMETOOLONG;
    }
    let (mut buffer, mut was_denied, mut last) = ([0u8; PATH_MAX + NAME_MAX + 2], false, Errno::ENOENT);
    for directory in path.to_bytes().split(|byte| *byte == b':').filter(|directory| directory.len() <= PATH_MAX) {
        // An empty directory means the working directory.
        let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        let mut length = 0;
        for part in [directory, separator, name, b"\0"] {
            if let Some(free) = buffer.get_mut(length..length + part.len()) {
                free.copy_from_slice(part);
            }
            length += part.len();
        }
        let Ok(candidate) = CStr::from_bytes_until_nul(&buffer) else { continue };
        // SAFETY: the caller guarantees the arguments.
        last = unsafe { call::execve(candidate, argv, envp) };
        match last {
            Errno::EACCES => was_denied = true,
            Errno::ENOENT | Errno::ESTALE | Errno::ENOTDIR | Errno::ENODEV | Errno::ETIMEDOUT => {}
            _ => return last,
        }
    }
    if was_denied { Errno::EACCES } else { last }
}
