// SPDX-License-Identifier: MIT OR Apache-2.0
//! The spawn templates of an RFC for Linux, in user space: `spawn_template_create` and `spawn_template_spawn`.
//!
//! On a kernel with these system calls, the functions pass their arguments to the kernel. A template of one
//! implementation stays a template of that implementation.
//!
//! # References
//! The RFC "exec: add spawn templates for repeated executable startup", linux-api, May 2026.

mod abi;
mod kernel;
mod recorded;
mod validate;

pub use abi::*;

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use libc::pid_t;
use spawnfd::internal::killed_calls;
use spawnfd_child::{TemplateAction, TemplateProgram, TemplateSpawn, spawn_template};
use spawnfd_sys::{Errno, RawFd};

use crate::posix::stacks;
use crate::{copy, errno};
use recorded::Recorded;

/// Creates a template for an executable, and returns the template's descriptor.
///
/// `filename` is the absolute path of the executable. Otherwise `execfd` is a descriptor of the executable. The
/// template then refers to the path of the descriptor's file.
///
/// # Errors
/// Returns -1 and sets errno:
/// - EINVAL: `size` is less than 72; an unknown flag; a reserved field is not 0; not exactly one of `execfd` and
///   `filename`; the path is relative, or longer than 4095 bytes.
/// - E2BIG: `size` is more than 4096, or a field that this version does not know is not 0.
/// - EFAULT: `args` is NULL.
/// - EBADF: `execfd` is not open.
/// - EACCES: the executable is not a regular file, or the caller may not execute it.
/// - EOPNOTSUPP: `execfd` refers to a file that has no path.
/// - EMFILE, ENFILE, ENOMEM, and the errors of open(2) for the path.
///
/// # Safety
/// `args` is NULL or valid for reads of `size` bytes. `filename` is 0 or the address of a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawn_template_create(args: *const spawn_template_create_args, size: usize) -> c_int {
    if let Some(numbers) = kernel::calls() {
        // SAFETY: the caller keeps the requirements, which are those of the system call.
        return unsafe { libc::syscall(numbers.create.into(), args, size) } as c_int;
    }
    // SAFETY: the caller keeps the requirements.
    errno::answer(unsafe { create(args, size) }.map(OwnedFd::into_raw_fd))
}

/// Spawns the executable of a template. Returns the child's pid, and stores a pidfd, close-on-exec, at `pidfd`.
///
/// The call returns when the child has executed the program or has exited. If an action or exec fails, the child exits
/// with status 127 (ENOENT), 126 (EACCES, ENOEXEC) or 1.
///
/// # Errors
/// Returns -1 and sets errno, in this order. There is then no child.
/// - EINVAL: `size` is less than 80. E2BIG: `size` is more than 4096.
/// - EBADF: `template_fd` is not open. EINVAL: it is no template.
/// - EACCES: another process created the template, or the thread's credentials differ from those of its creator.
/// - EFAULT: `args` is NULL. E2BIG: a field that this version does not know is not 0.
/// - EINVAL: an unknown flag; `pidfd` is 0; a reserved field is not 0.
/// - E2BIG: there are more than 256 actions. EINVAL: an action is invalid, or `actions` is 0.
/// - ESTALE: the executable has changed since the template was created.
/// - EAGAIN, EMFILE, ENFILE, ENOMEM: the child could not be created.
///
/// # Safety
/// `args` is NULL or valid for reads of `size` bytes. `pidfd`, `actions`, and the addresses in the actions are 0 or
/// valid. `argv` and `envp` are 0 or valid as execve(2) expects them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawn_template_spawn(
    template_fd: c_int,
    args: *const spawn_template_spawn_args,
    size: usize,
) -> pid_t {
    if let Some(numbers) = kernel::calls().filter(|_| !is_memfd(template_fd)) {
        // SAFETY: the caller keeps the requirements, which are those of the system call.
        return unsafe { libc::syscall(numbers.spawn.into(), template_fd, args, size) } as pid_t;
    }
    // SAFETY: the caller keeps the requirements.
    errno::answer(unsafe { spawn(template_fd, args, size) })
}

/// Whether a descriptor has seals, as the templates of this implementation do.
fn is_memfd(fd: RawFd) -> bool {
    // SAFETY: the number is not -1. If it is not open, the call fails.
    fd >= 0 && rustix::fs::fcntl_get_seals(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok()
}

/// # Safety
/// The requirements of [`spawn_template_create`].
unsafe fn create(args: *const spawn_template_create_args, size: usize) -> Result<OwnedFd, Errno> {
    copy::check_size::<spawn_template_create_args>(size, MAX_SIZE)?;
    // SAFETY: the caller guarantees the address.
    let args = unsafe { copy::extensible(args.expose_provenance() as u64, size) }?;
    validate::create(&args)?;
    let killed_calls = killed_calls();
    let recorded = match args.filename {
        0 => Recorded::of_descriptor(killed_calls, args.execfd)?,
        // SAFETY: the caller guarantees the string.
        path => Recorded::of_path(killed_calls, unsafe { validate::text(path) }?)?,
    };
    recorded.store(args.flags & SPAWN_TEMPLATE_CREATE_CLOEXEC != 0)
}

/// # Safety
/// The requirements of [`spawn_template_spawn`].
unsafe fn spawn(fd: RawFd, args: *const spawn_template_spawn_args, size: usize) -> Result<pid_t, Errno> {
    copy::check_size::<spawn_template_spawn_args>(size, MAX_SIZE)?;
    let killed_calls = killed_calls();
    let recorded = Recorded::load(fd)?;
    // SAFETY: the caller guarantees the address.
    let args = unsafe { copy::extensible(args.expose_provenance() as u64, size) }?;
    validate::spawn(&args)?;
    // SAFETY: the caller guarantees the addresses.
    let actions = unsafe { validate::actions(&args) }?;
    let program = recorded.open(killed_calls)?;
    let file = move_away(program.file, &actions)?;
    let spawn = TemplateSpawn {
        killed_calls,
        actions: &actions,
        inherit_descriptors: args.flags & SPAWN_TEMPLATE_SPAWN_INHERIT_FDS != 0,
        program: TemplateProgram {
            file: file.as_raw_fd(),
            path: &program.path,
            identity: program.identity,
            argv: ptr::with_exposed_provenance(args.argv as usize),
            envp: ptr::with_exposed_provenance(args.envp as usize),
        },
    };
    let pidfd = AtomicU32::new(u32::MAX);
    let mut stack = stacks::take()?;
    // SAFETY: the caller guarantees the arguments and the environment.
    let spawned = unsafe { spawn_template(&mut stack, &spawn, &pidfd) };
    stacks::put(stack);
    let pid = spawned?;
    let pidfd_at = ptr::with_exposed_provenance_mut::<c_int>(args.pidfd as usize);
    // SAFETY: the caller guarantees the address, which need not be aligned.
    unsafe { pidfd_at.write_unaligned(pidfd.load(Ordering::Acquire) as c_int) };
    Ok(pid)
}

/// Moves the executable's descriptor to a number above 2 that no action names.
///
/// In the child, an action then finds the number of the descriptor in the same state as in the caller.
///
/// # Errors
/// EMFILE: no such number is free.
fn move_away(mut file: OwnedFd, actions: &[TemplateAction<'_>]) -> Result<OwnedFd, Errno> {
    loop {
        let number = file.as_raw_fd();
        if number > 2 && !actions.iter().any(|action| action.names(number)) {
            return Ok(file);
        }
        file = rustix::io::fcntl_dupfd_cloexec(&file, (number + 1).max(3)).map_err(|error| match errno::of(error) {
            // The number is above RLIMIT_NOFILE.
            Errno::EINVAL => Errno::EMFILE,
            errno => errno,
        })?;
    }
}
