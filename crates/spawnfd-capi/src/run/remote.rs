// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections to other machines.

use core::ffi::c_int;
use core::ptr;
use std::time::Duration;

use ::spawnfd_remote::Remote;
use ::spawnfd_remote::near::RemoteOptions;
use spawnfd::options::Call;

use super::command::spawnfd_command;
use super::error::{Answer, Owner, answer, free, object};
use super::job::spawnfd_job;
use super::result::spawnfd_result;
use super::spawnfd_error;

/// A connection to another machine, or to a container, where programs run.
#[derive(Debug)]
pub struct spawnfd_remote {
    owner: Owner,
    remote: Remote,
}

/// Runs the body of a function with a connection of this process.
///
/// # Safety
/// `remote` is NULL or valid. `error` is NULL or valid.
unsafe fn with<T>(
    remote: *const spawnfd_remote,
    error: *mut spawnfd_error,
    failure: T,
    body: impl FnOnce(&Remote) -> Answer<T>,
) -> T {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, failure, || {
            let remote = object(remote, "remote")?;
            remote.owner.check("remote")?;
            body(&remote.remote)
        })
    }
}

/// Connects to another machine through a transport, and waits until the server answers. The caller frees the connection.
///
/// The transport is a command whose standard input and output lead to `spawnfd serve` on the other machine, such as
/// `ssh host spawnfd serve`. It can have a directory, an environment, actions and a sandbox, but no options of a run. It
/// can be freed after the call.
///
/// `lease_ms` is the time after which each side regards the other one as lost if it gives no sign of life; 0 stands for
/// 30 seconds, and a negative number for no such time. The call waits at most `timeout_ms` for the server, and without end
/// if that is negative. If it is 0, the call does not wait, and the first run or start does.
///
/// # Errors
/// Returns NULL and sets errno. EINVAL: an option of a run. ENOTCONN: the transport has ended; the message has its last
/// words. EPROTO: the other side is no server of this version. ETIMEDOUT. Otherwise the errors of `spawnfd_run`.
///
/// # Safety
/// `transport` is NULL or a command that no thread changes. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_remote_connect(
    transport: *const spawnfd_command,
    lease_ms: c_int,
    timeout_ms: c_int,
    error: *mut spawnfd_error,
) -> *mut spawnfd_remote {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, ptr::null_mut(), || {
            let command = object(transport, "transport")?.prepare_transport()?;
            let time = |number: c_int| u64::try_from(number).ok().map(Duration::from_millis);
            let mut options = RemoteOptions::default();
            if lease_ms != 0 {
                options.lease = time(lease_ms);
            }
            options.connect_timeout = time(timeout_ms);
            let connect = if timeout_ms == 0 { Remote::begin } else { Remote::connect_with };
            let remote = connect(&command, &options)?;
            Ok(Box::into_raw(Box::new(spawnfd_remote { owner: Owner::this_process(), remote })))
        })
    }
}

/// Ends the connection and all its programs, and frees it. NULL has no effect.
///
/// The result of a job that still runs says `lost`; the caller frees the jobs as others. In a forked process, the call has
/// no effect.
///
/// # Safety
/// `remote` is NULL or a connection that no thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_remote_free(remote: *mut spawnfd_remote) {
    // SAFETY: the caller guarantees the pointer, which is from `spawnfd_remote_connect`.
    unsafe { free(remote, |remote| &remote.owner) }
}

/// Runs the program on the other machine to its end, and returns its result, which the caller frees.
///
/// Paths, PATH and users are those of the other machine. The environment begins as a copy of the server's. If the
/// connection is lost, the result's `stop` is `lost`: the program has ended, or ends soon, and its status is not known.
///
/// # Errors
/// Returns NULL and sets errno. EINVAL: an argument has a meaning in this process alone, such as a descriptor, a sandbox or
/// parked processes; the message names it. ENOTCONN: the connection is lost. Otherwise the errors of `spawnfd_run`.
///
/// # Safety
/// `remote` is NULL or valid. `command` is NULL or a command that no thread changes. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_remote_run(
    remote: *const spawnfd_remote,
    command: *const spawnfd_command,
    error: *mut spawnfd_error,
) -> *mut spawnfd_result {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(remote, error, ptr::null_mut(), |remote| {
            let (command, options) = object(command, "command")?.prepare(Call::Run)?;
            Ok(spawnfd_result::create(remote.run(&command, &options.run)?.into()))
        })
    }
}

/// Starts the program on the other machine, and returns its job, which is used and freed as one of `spawnfd_start`.
///
/// The process id of the job is a number of the other machine. The job can outlive the connection, which its program does
/// not.
///
/// # Errors
/// Returns NULL and sets errno. The errors are those of `spawnfd_remote_run` and `spawnfd_start`. ENOTCONN: the connection
/// is lost; if that was during this call, the program may have started.
///
/// # Safety
/// `remote` is NULL or valid. `command` is NULL or a command that no thread changes. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_remote_start(
    remote: *const spawnfd_remote,
    command: *const spawnfd_command,
    error: *mut spawnfd_error,
) -> *mut spawnfd_job {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(remote, error, ptr::null_mut(), |remote| {
            let (command, options) = object(command, "command")?.prepare(Call::Start)?;
            spawnfd_job::create(&options, |events| remote.start_events(&command, &options.run, events))
        })
    }
}

/// Waits until the server answers, and stores the seconds until then unless `seconds` is NULL.
///
/// # Errors
/// Returns -1 and sets errno. ENOTCONN: the connection is lost.
///
/// # Safety
/// `remote` is NULL or valid. `seconds` is NULL or valid for a write. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_remote_ping(
    remote: *const spawnfd_remote,
    seconds: *mut f64,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(remote, error, -1, |remote| {
            let time = remote.ping()?;
            if let Some(seconds) = seconds.as_mut() {
                *seconds = time.as_secs_f64();
            }
            Ok(0)
        })
    }
}
