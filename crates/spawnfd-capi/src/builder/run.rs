// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a builder: checks the arguments in the order of the kernel series, and starts the program.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::DupFlags;
use spawnfd::Child;
use spawnfd_sys::spawn_abi::*;
use spawnfd_sys::{Errno, abi, call};

use super::action;
use super::config::{self, Config, Program};
use super::failure::Failure;
use super::read_config;
use super::translate::{Run, Target, translate};
use crate::{copy, errno};

/// Performs one call of `spawnfd_builder_run`.
///
/// # Errors
/// The errors of that function.
///
/// # Safety
/// The requirements of that function.
pub(super) unsafe fn run(fd: i32, args: *mut SpawnArgs, size: usize) -> Result<i32, Errno> {
    // SAFETY: the caller guarantees `size` bytes.
    let given = unsafe { copy_args(args, size) }?;
    let config = read_config(fd)?;
    // SAFETY: the caller guarantees the struct.
    let write = |failed: i32, pid: i32| unsafe { args.write_unaligned(SpawnArgs { failed, pid, ..given }) };
    write(SPAWN_FAILED_SETUP, 0);
    // SAFETY: the caller guarantees the data of the arguments.
    match unsafe { run_checked(fd, config, &given) } {
        Ok((number, pid)) => {
            write(SPAWN_FAILED_SETUP, pid);
            Ok(number)
        }
        Err(Failure { failed, errno }) => {
            write(failed, 0);
            Err(errno)
        }
    }
}

/// Copies and checks the arguments of a run.
///
/// # Safety
/// `args` is NULL or valid for reads of `size` bytes.
unsafe fn copy_args(args: *const SpawnArgs, size: usize) -> Result<SpawnArgs, Errno> {
    // SAFETY: the caller guarantees `size` bytes.
    let given: SpawnArgs = unsafe { copy::extensible(args.expose_provenance() as u64, size) }?;
    let SpawnArgs { flags, nr_actions, actions, action_size, reserved0, reserved1, .. } = given;
    let exclusive = SPAWN_FDS_NONE | SPAWN_FDS_INHERIT;
    let is_valid = flags & !(exclusive | SPAWN_BECOME_PIDFD) == 0
        && flags & exclusive != exclusive
        && reserved0 == 0
        && reserved1 == 0;
    if !is_valid {
        return Err(Errno::EINVAL);
    }
    action::check_list(actions, nr_actions, action_size)?;
    Ok(given)
}

/// Collects the parameters of a run.
///
/// # Safety
/// The addresses in `args` are 0 or valid.
unsafe fn collect(config: Config, args: &SpawnArgs) -> Result<Run, Failure> {
    let Config { program, search_path, argv, envp, mut actions, cwd, cgroup, namespaces } = config;
    let has_slash = |name: &std::ffi::CString| name.as_bytes().contains(&b'/');
    let target = match (args.path, program, search_path) {
        (0, None, _) => return Err(Errno::EINVAL.into()),
        (0, Some(Program::Path(path)), _) => Target::Path(path),
        (0, Some(Program::Name(name)), _) if has_slash(&name) => Target::Path(name),
        (0, Some(Program::Name(_)), None) => return Err(Errno::EINVAL.into()),
        (0, Some(Program::Name(name)), Some(search_path)) => Target::Search { name, search_path },
        (0, Some(Program::Descriptor(number)), _) => Target::Descriptor(number),
        // SAFETY: the caller guarantees the string.
        (address, ..) => Target::Path(unsafe { config::path(address) }?),
    };
    if args.argv == 0 && argv.is_none() {
        return Err(Errno::EINVAL.into());
    }
    let configured = actions.len();
    if configured + args.nr_actions as usize > SPAWN_MAX_ACTIONS as usize {
        return Err(Errno::E2BIG.into());
    }
    // SAFETY: the caller guarantees the actions and their data.
    let given = unsafe { action::copy_all(args.actions, args.nr_actions, args.action_size) };
    actions.extend(given.map_err(|(index, errno)| Failure { failed: (configured + index) as i32, errno })?);
    let program_descriptor = match target {
        Target::Descriptor(number) => Some(number),
        _ => None,
    };
    if [program_descriptor, cwd].into_iter().flatten().any(|number| call::descriptor_flags(number).is_err()) {
        return Err(Errno::EBADF.into());
    }
    // SAFETY: the caller guarantees the strings.
    let strings = |address| unsafe { copy::strings(address) };
    let argv = if args.argv == 0 { argv.unwrap_or_default() } else { strings(args.argv)? };
    if argv.is_empty() {
        return Err(Errno::EINVAL.into());
    }
    let envp = if args.envp == 0 { envp.unwrap_or_default() } else { strings(args.envp)? };
    Ok(Run { target, argv, envp, actions, cwd, cgroup, namespaces, descriptors: args.flags })
}

/// Runs a builder with these arguments. Returns the number of the pidfd, and the child's pid.
///
/// # Safety
/// The addresses in `args` are 0 or valid.
unsafe fn run_checked(fd: i32, config: Config, args: &SpawnArgs) -> Result<(i32, i32), Failure> {
    // SAFETY: the caller guarantees the addresses.
    let run = unsafe { collect(config, args) }?;
    let becomes_pidfd = args.flags & SPAWN_BECOME_PIDFD != 0;
    let limit = call::limit(abi::RLIMIT_NOFILE).map_or(u64::MAX, |limit| limit.rlim_cur);
    // The builder may have been opened before the caller lowered the limit. Then dup3 would fail.
    if becomes_pidfd && fd as u64 >= limit || run.cgroup.is_some_and(|number| !is_cgroup(number)) {
        return Err(Errno::EBADF.into());
    }
    let mut child = spawn(&run)?;
    let pid = child.id() as i32;
    if child.ended_in_exec().is_some() {
        return Err(Failure { failed: SPAWN_FAILED_EXEC, errno: Errno::EINTR });
    }
    apply_nonblock(&child, fd);
    if !becomes_pidfd {
        return Ok((child.into_pidfd().into_raw_fd(), pid));
    }
    if let Err(errno) = replace(fd, &child) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(errno.into());
    }
    drop(child.into_pidfd());
    Ok((fd, pid))
}

/// Whether a descriptor is open, and refers to a directory of cgroup v2. The kernel checks this in clone3; a child of
/// clone would report another error.
fn is_cgroup(number: i32) -> bool {
    // SAFETY: the descriptor is used only during the calls, which fail if the number is closed. `fd` is not -1.
    let directory = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::fs::fstatfs(directory).is_ok_and(|system| system.f_type == libc::CGROUP2_SUPER_MAGIC)
        && rustix::fs::fstat(directory).is_ok_and(|file| file.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

/// Starts the program.
fn spawn(run: &Run) -> Result<Child, Failure> {
    let mut certain = None;
    loop {
        let translation = translate(run, certain)?;
        let error = match translation.command.spawn() {
            Ok(child) => return Ok(child),
            Err(error) => error,
        };
        // A refused action fails in the child, after the actions before it. Each round refuses an earlier action.
        match translation.refused(&run.actions, &error) {
            Some(refused) => certain = Some(refused),
            None => return Err(translation.explain(&error)),
        }
    }
}

/// The plan of a run, for tests.
///
/// # Safety
/// The addresses in `args` are 0 or valid.
pub(super) unsafe fn printed(fd: i32, args: &SpawnArgs) -> Result<Vec<String>, Failure> {
    // SAFETY: the caller guarantees the addresses.
    let run = unsafe { collect(read_config(fd)?, args) }?;
    Ok(spawnfd::internal::printed(&translate(&run, None)?.command))
}

/// Makes a pidfd non-blocking if the builder is. Without the flag, the pidfd still serves, so an error has no effect.
fn apply_nonblock(pidfd: impl AsFd, builder: i32) {
    if call::status_flags(builder).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0) {
        let _ = rustix::fs::fcntl_setfl(pidfd, OFlags::RDWR | OFlags::NONBLOCK);
    }
}

/// Replaces the builder at its number by a duplicate of the pidfd.
fn replace(builder: i32, pidfd: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the caller gives up the builder at this number.
    let mut replaced = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(builder) });
    loop {
        match rustix::io::dup3(&pidfd, &mut replaced, DupFlags::CLOEXEC).map_err(errno::of) {
            // EBUSY: another thread is opening a file at this number.
            Err(Errno::EBUSY | Errno::EINTR) => {}
            outcome => return outcome,
        }
    }
}
