// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builders of processes, after fsconfig(2): the interface of this project's kernel series, in user space.
//!
//! A builder is a descriptor. [`spawnfd_builder_open`] creates it, [`spawnfd_builder_config`] sets the program, its
//! arguments and actions, and [`spawnfd_builder_run`] starts the program and returns a pidfd. Structs, constants,
//! semantics and errors are those of `pidfd_open(0, PIDFD_EMPTY)`, `pidfd_config` and `pidfd_spawn_run`
//! (kernel/patches/0017).
//!
//! The caller owns the child: the library does not wait for it and sends it no signal.
//!
//! The configuration is in the file behind the descriptor, a memfd. So a duplicate of the descriptor refers to the same
//! builder, and closing the last duplicate frees the configuration. The configuration has the numbers of descriptors,
//! and a run looks them up. The caller must keep these descriptors open until the run returns.
//!
//! The library remembers which contents of the file it has written last. So no process with a duplicate can change the
//! program that a run starts, neither by a write nor by a copy of an earlier configuration.
//!
//! # Differences from the kernel series
//!
//! - Only the process that opened a builder can use it. Other processes, such as a forked child, get EACCES.
//! - The library does not compare the bounding and ambient capabilities and the user namespace of the opener.
//! - poll(2), read(2) and write(2) treat a builder as a file. A write makes the builder invalid: further calls fail
//!   with EACCES until the file has the contents of the last configuration again.
//! - If the process closes its last descriptor of a builder and later receives one, calls can fail with EACCES.
//! - There is no log of errors to read, and fdinfo does not show the configuration.
//! - There is no limit for each user (EDQUOT).
//! - With SPAWN_FDS_INHERIT, the child has the caller's close-on-exec descriptors until exec.
//! - An address that is not NULL must be valid. The kernel series returns EFAULT for other addresses.
//! - If the pidfd cannot replace the builder at its number, the program has already started. The library kills and
//!   reaps the child, and the kernel sends SIGCHLD.
//! - The configuration is at most 8 MiB long (E2BIG), and the caller's RLIMIT_FSIZE applies to it.
//! - The calling thread, not the child, searches for a NAME. It does so with its own credentials. It follows CWD, CHDIR
//!   and FCHDIR, but not CHROOT or SETNS into another mount namespace (EOPNOTSUPP).
//! - The program's AT_EXECFN for EXEC_FD has another number than the builder's. If the file changes during the run, the
//!   errno is ESTALE.
//! - A path of an action, such as /proc/self/fd/7, finds only descriptors that earlier actions have created.
//! - PDEATHSIG takes effect after the other actions, so a later change of ids does not clear the signal.
//! - SECCOMP takes effect after the other actions. An invalid filter is an error of the run, not of the configuration.
//! - CAPABILITIES after SETRESUID acts as if KEEP_CAPS were before SETRESUID.
//! - SETRESUID of a caller with the effective user id 0 needs CAP_SETGID, unless there is a SETGROUPS.
//! - If exec fails after its point of no return, the errno is EINTR.
//! - The run needs a few free descriptor numbers. The library keeps sockets open for later runs.
//!
//! # Unsupported
//!
//! These runs fail with EOPNOTSUPP, and `failed` is [`SPAWN_FAILED_SETUP`]:
//!
//! - SIGIGNORE of a signal that the caller does not ignore.
//! - SCHED_ATTR with flags, a runtime or SCHED_DEADLINE. SCHED_ATTR and SCHEDULER with SCHED_EXT. SCHEDULER with
//!   SCHED_RESET_ON_FORK.
//! - SECCOMP with flags, or more than once.
//! - CTTY with `flags` 1.
//! - FCHDIR, SETNS, LANDLOCK, or OPEN relative to a descriptor, if an earlier OPEN has opened the descriptor.
//! - KEEP_CAPS before a SETRESUID that no CAPABILITIES follows.
//! - CLONE_NEWTIME in NAMESPACES.
//! - CLONE_NEWUSER in NAMESPACES, unless the first three actions are DENY_SETGROUPS, UID_MAP and GID_MAP. UID_MAP may
//!   be at any of the three places, and DENY_SETGROUPS precedes GID_MAP. Each map has one line, which maps the caller's
//!   effective id.
//! - DENY_SETGROUPS, UID_MAP and GID_MAP elsewhere.
//! - EXEC_FD of a script, if an OPEN has opened the descriptor of that number.

mod action;
mod config;
mod failure;
mod run;
mod search;
mod table;
mod translate;
mod versions;

pub use spawnfd_sys::spawn_abi::*;

use core::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd};

use rustix::fs::OFlags;
use spawnfd::internal::PerProcess;
use spawnfd_sys::{Errno, call};

use self::config::Config;
use self::versions::Versions;
use crate::errno;
use crate::record::{self, Kind};

/// Locked during each access to a builder's record, so that no thread sees a partial write.
static VERSIONS: PerProcess<Versions> = PerProcess::new(Versions::new());

/// Creates a builder without configuration, and returns its descriptor, which is close-on-exec.
///
/// With PIDFD_NONBLOCK (O_NONBLOCK) in `flags`, the pidfds of its runs are non-blocking.
///
/// # Errors
/// Returns -1 and sets errno:
/// - EINVAL: an unknown flag.
/// - EMFILE, ENFILE, ENOMEM.
#[doc(alias = "pidfd_open")]
#[unsafe(no_mangle)]
pub extern "C" fn spawnfd_builder_open(flags: c_uint) -> c_int {
    errno::answer(open(flags))
}

/// Sets or resets a key of a builder.
///
/// `cmd` is `PIDFD_CONFIG_SET_*` for the kind of the value, or `PIDFD_CONFIG_RESET`. `key` is `PIDFD_CONFIG_KEY_*`. An
/// argument that the command does not use is 0. The function copies the value, with all data that it points to. A
/// descriptor is kept as its number and must stay open until the runs return.
///
/// For SET_ACTIONS, `value` is a `struct spawn_action_list`, and `aux` is its size. If an action is invalid, the member
/// `failed` receives the action's index, otherwise SPAWN_FAILED_SETUP. Errors of the size and of the other members do
/// not change `failed`.
///
/// # Errors
/// Returns -1, sets errno, and leaves the builder unchanged:
/// - EBADF: `fd` is not a builder. For SET_FD: the number is negative.
/// - EACCES: another process opened the builder, for example the parent of this process. Or the calling thread has
///   other credentials than the opener. Or a process has written to the builder's file, or has sealed it.
/// - EFBIG: RLIMIT_FSIZE is less than the length of the configuration.
/// - EINVAL: an unknown command or key; a key of another command; an unused argument that is not 0; an empty list of
///   arguments; a wrong size of the list of actions or of an action; an invalid action; an unknown namespace.
/// - EFAULT: `value`, or an address in an action, is NULL.
/// - ENOENT: an empty path or name. ENAMETOOLONG: a path is longer than 4095 bytes.
/// - E2BIG: the strings are longer than execve(2) permits; a search path of 128 KiB; more than 256 actions; a byte
///   after the known members of a struct that is not 0; more than 8 MiB in all.
/// - ENOMEM.
///
/// # Safety
/// `value` is NULL, or points to a value of the command's type. A list of actions is valid for writes.
#[doc(alias = "pidfd_config")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_builder_config(
    fd: c_int,
    cmd: c_uint,
    key: c_uint,
    value: *const c_void,
    aux: c_int,
) -> c_int {
    // SAFETY: the caller guarantees the value.
    errno::answer(unsafe { configure(fd, cmd, key, value.expose_provenance() as u64, aux) }.map(|()| 0))
}

/// Starts the program of a builder, and returns a pidfd, which is close-on-exec.
///
/// The call returns when the program has begun. With SPAWN_BECOME_PIDFD, the pidfd replaces the builder at the number
/// `fd`, which the call returns. `size` is `sizeof(struct spawn_args)`.
///
/// `args->pid` receives the child's process id. After a failure, `args->failed` is the index of the action that failed,
/// counted from the first configured action, or `SPAWN_FAILED_*`. There is then no child and no SIGCHLD. Errors of
/// `size`, of the members of `args`, and of `fd` do not change `args`.
///
/// # Errors
/// Returns -1 and sets errno. The checks have this order:
/// - EINVAL: `size` is less than 64. E2BIG: `size` is more than the size of a page. EFAULT: `args` is NULL. E2BIG: a
///   byte after the known members is not 0. EINVAL: an unknown flag, both SPAWN_FDS_NONE and SPAWN_FDS_INHERIT, a
///   reserved member, or a wrong `action_size`. E2BIG: more than 256 actions, or `action_size` is more than the size of
///   a page.
/// - EBADF: `fd` is not a builder. EACCES: another process opened the builder, the calling thread has other credentials
///   than the opener, or a process has written to the builder's file.
/// - EFAULT, ENOENT, ENAMETOOLONG: an invalid `path`. EINVAL: no program, no search path for a name, or no arguments.
/// - E2BIG: more than 256 actions with those of the configuration. EINVAL and others: an invalid action, whose index is
///   in `failed`.
/// - EBADF: EXEC_FD or CWD is not open.
/// - EINVAL: an empty list of arguments. E2BIG: the strings are too long.
/// - EBADF: CGROUP is not open. EOPNOTSUPP: the library cannot express the run.
/// - EAGAIN, ENOMEM, EMFILE, ENFILE, EPERM: the child could not be created.
/// - The errors of the child: of the directory, an action, or exec. EINTR: a signal killed the child.
///
/// # Safety
/// `args` is NULL or valid for reads and writes of `size` bytes. The addresses in it are 0 or valid. The descriptors of
/// the configuration and of the actions stay open until the call returns.
#[doc(alias = "pidfd_spawn_run")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_builder_run(fd: c_int, args: *mut SpawnArgs, size: usize) -> c_int {
    // SAFETY: the caller keeps the requirements.
    errno::answer(unsafe { run::run(fd, args, size) })
}

/// The plan of a run with these actions after the configured ones, for tests: each line is a system call of the child.
///
/// # Safety
/// The addresses in `args` are 0 or valid.
#[doc(hidden)]
pub unsafe fn printed_plan(fd: c_int, args: &SpawnArgs) -> Option<Vec<String>> {
    // SAFETY: the caller guarantees the addresses.
    unsafe { run::printed(fd, args) }.ok()
}

fn open(flags: c_uint) -> Result<c_int, Errno> {
    const NONBLOCK: u32 = libc::O_NONBLOCK as u32;
    if flags & !(PIDFD_EMPTY | NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut versions = VERSIONS.lock();
    let builder = record::create(Kind::Builder)?;
    versions.keep(record::write(builder.as_fd(), Kind::Builder, &Config::default().encode())?);
    if flags & NONBLOCK != 0 {
        rustix::fs::fcntl_setfl(&builder, OFlags::RDWR | OFlags::NONBLOCK).map_err(errno::of)?;
    }
    Ok(builder.into_raw_fd())
}

/// # Safety
/// `value` is 0 or the address of a value of the command's type.
unsafe fn configure(fd: c_int, command: u32, key: u32, value: u64, aux: c_int) -> Result<(), Errno> {
    let mut versions = VERSIONS.lock();
    let builder = descriptor(fd)?;
    let mut config = read_last(builder, &versions)?;
    let old = config.encode();
    // SAFETY: the caller guarantees the value.
    unsafe { config.set(command, key, value, aux) }?;
    // If no memory is left for the new configuration, the old one still fits.
    let write = |contents: &[u8]| record::write(builder, Kind::Builder, contents);
    versions.keep(write(&config.encode()).inspect_err(|_| _ = write(&old))?);
    Ok(())
}

/// Reads the configuration of a builder.
///
/// # Errors
/// EBADF: not a builder. EACCES: the file does not have the configuration that this process has written last, or the
/// thread's credentials differ from those of the opener.
fn read_config(fd: c_int) -> Result<Config, Errno> {
    read_last(descriptor(fd)?, &VERSIONS.lock())
}

fn read_last(builder: BorrowedFd<'_>, versions: &Versions) -> Result<Config, Errno> {
    let (version, contents) = record::read(builder, Kind::Builder).map_err(|errno| match errno {
        Errno::EINVAL => Errno::EBADF,
        errno => errno,
    })?;
    if !versions.is_last(version) {
        return Err(Errno::EACCES);
    }
    Config::decode(&contents).ok_or(Errno::EACCES)
}

/// A descriptor by its number.
///
/// # Errors
/// EBADF: the descriptor is not open.
fn descriptor<'fd>(fd: c_int) -> Result<BorrowedFd<'fd>, Errno> {
    call::descriptor_flags(fd)?;
    // SAFETY: the descriptor is open. The caller does not close it during the call.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}
