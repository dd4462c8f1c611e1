// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions: shells that keep their state from command to command.

use core::ffi::{c_char, c_int};
use core::ptr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use spawnfd::Session;
use spawnfd::internal::CallOptions;
use spawnfd::options::Call;
use spawnfd::session::CommandText;

use super::command::spawnfd_command;
use super::error::{Answer, Owner, answer, free, object, string};
use super::job::spawnfd_job;
use super::result::spawnfd_result;
use super::spawnfd_error;

/// A shell that runs one command after the other.
#[derive(Debug)]
pub struct spawnfd_session {
    owner: Owner,
    session: Session,
    /// The descriptors of the shell's actions. The session may start another shell.
    _descriptors: Vec<Arc<OwnedFd>>,
}

/// Runs the body of a function with a session of this process.
///
/// # Safety
/// `session` is NULL or valid. `error` is NULL or valid.
unsafe fn with<T>(
    session: *const spawnfd_session,
    error: *mut spawnfd_error,
    failure: T,
    body: impl FnOnce(&Session) -> Answer<T>,
) -> T {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, failure, || {
            let session = object(session, "session")?;
            session.owner.check("session")?;
            body(&session.session)
        })
    }
}

/// The text of a command, and its options.
///
/// # Safety
/// `text` is NULL or a string. `options` is NULL or valid.
unsafe fn prepare(text: *const c_char, options: *const spawnfd_command) -> Answer<(CommandText, CallOptions)> {
    // SAFETY: the caller guarantees the pointers.
    let (text, command) = unsafe { (string(text, "text")?, options.as_ref()) };
    let none = spawnfd_command::default();
    let command = command.unwrap_or(&none);
    let options = command.options(Call::Command)?;
    Ok((command.text(text, &options)?, options))
}

/// Starts a shell, bash or dash, and waits until it has read its startup files. The caller frees the session.
///
/// `command` has the shell, its environment and directory, and options of sessions, such as `login`, `restart` or
/// `terminal`. It can be freed after the call.
///
/// # Errors
/// Returns NULL and sets errno. EINVAL: an option that a session does not have. ESRCH: the shell has exited. Otherwise the
/// errors of `spawnfd_run`.
///
/// # Safety
/// `command` is NULL or a command that no thread changes. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_session_open(
    command: *const spawnfd_command,
    error: *mut spawnfd_error,
) -> *mut spawnfd_session {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, ptr::null_mut(), || {
            let (command, options, descriptors) = object(command, "command")?.prepare_shell()?;
            let session = Session::open(command, options.session)?;
            let owner = Owner::this_process();
            Ok(Box::into_raw(Box::new(spawnfd_session { owner, session, _descriptors: descriptors })))
        })
    }
}

/// Ends the shell and its process tree, and frees the session. NULL has no effect.
///
/// The call does not wait. The shell gets the time of the option `grace` to exit. In a forked process, the call has no
/// effect.
///
/// # Safety
/// `session` is NULL or a session that no thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_session_free(session: *mut spawnfd_session) {
    // SAFETY: the caller guarantees the pointer, which is from `spawnfd_session_open`.
    unsafe { free(session, |session| &session.owner) }
}

/// Runs a command in the session to its end, and returns its result, which the caller frees.
///
/// `text` is any shell code. `options` is NULL or a command without a program. It has options of a session's command, such
/// as `timeout`, `cwd` or `input`, and variables.
///
/// # Errors
/// Returns NULL and sets errno. EBUSY: another command runs, and the option `queue` is not set. ESRCH: the shell has
/// exited. EINVAL: an option that a session's command does not have. ECHILD: a forked process.
///
/// # Safety
/// `session` is NULL or valid. `text` is NULL or a string. `options` is NULL or a command that no thread changes. `error`
/// is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_session_run(
    session: *const spawnfd_session,
    text: *const c_char,
    options: *const spawnfd_command,
    error: *mut spawnfd_error,
) -> *mut spawnfd_result {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(session, error, ptr::null_mut(), |session| {
            let (text, options) = prepare(text, options)?;
            Ok(spawnfd_result::create(session.run(text, &options.run)?.into()))
        })
    }
}

/// Starts a command in the session, and returns its job. The free of the job ends the command, not the session.
///
/// # Errors
/// Returns NULL and sets errno. The errors are those of `spawnfd_session_run`.
///
/// # Safety
/// The same as for `spawnfd_session_run`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_session_start(
    session: *const spawnfd_session,
    text: *const c_char,
    options: *const spawnfd_command,
    error: *mut spawnfd_error,
) -> *mut spawnfd_job {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(session, error, ptr::null_mut(), |session| {
            let (text, options) = prepare(text, options)?;
            spawnfd_job::create(&options, |events| session.start_events(text, &options.run, events))
        })
    }
}

/// Sends SIGINT to the running command, so that the shell abandons it. Without a running command, there is no effect.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: `session` is NULL. ECHILD: a forked process.
///
/// # Safety
/// `session` is NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_session_interrupt(
    session: *const spawnfd_session,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        with(session, error, -1, |session| {
            session.interrupt();
            Ok(0)
        })
    }
}
