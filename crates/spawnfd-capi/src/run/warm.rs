// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parked processes: programs that the library has started ahead.

use core::ffi::{c_char, c_int};
use core::ptr;

use spawnfd::Warm;
use spawnfd::warm::{Park, WarmOptions};

use super::error::{Answer, Owner, answer, free, milliseconds, object, string};
use super::spawnfd_error;

/// A set of parked processes.
#[derive(Debug)]
pub struct spawnfd_warm {
    owner: Owner,
    warm: Warm,
}

impl spawnfd_warm {
    /// A handle to the same processes.
    pub(super) fn share(&self) -> Answer<Warm> {
        self.owner.check("set of parked processes")?;
        Ok(self.warm.clone())
    }
}

/// Creates a set of parked processes without programs. The caller frees it.
///
/// `processes` is the maximum number of parked processes, and `memory` their maximum private memory in bytes. 0 means the
/// default: 64 processes, and 512 MiB.
///
/// # Errors
/// Returns NULL and sets errno. EMFILE, ENFILE, ENOMEM. ENOSPC: the user has too many inotify instances.
///
/// # Safety
/// `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_warm_new(processes: u32, memory: u64, error: *mut spawnfd_error) -> *mut spawnfd_warm {
    // SAFETY: the caller guarantees the pointer.
    unsafe {
        answer(error, ptr::null_mut(), || {
            let mut options = WarmOptions::new();
            if processes > 0 {
                options = options.processes(processes as usize);
            }
            if memory > 0 {
                options = options.memory(memory);
            }
            let warm = Warm::new(options)?;
            Ok(Box::into_raw(Box::new(spawnfd_warm { owner: Owner::this_process(), warm })))
        })
    }
}

/// Frees a set of parked processes, which end with the last command that uses the set. NULL has no effect.
///
/// In a forked process, the call has no effect.
///
/// # Safety
/// `warm` is NULL or a set that no thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_warm_free(warm: *mut spawnfd_warm) {
    // SAFETY: the caller guarantees the pointer, which is from `spawnfd_warm_new`.
    unsafe { free(warm, |warm| &warm.owner) }
}

/// Keeps `depth` processes of a program parked; 0: two. `program` is a path, or a name to search in PATH now.
///
/// A thread of the library parks them. A program that cannot be parked is no error: its commands start by clone and exec.
///
/// # Errors
/// Returns -1 and sets errno. ENOENT, EACCES: the program cannot be found or executed. EAGAIN: the thread cannot be
/// started. ECHILD: a forked process.
///
/// # Safety
/// `warm` is NULL or valid. `program` is NULL or a string. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_warm_add(
    warm: *const spawnfd_warm,
    program: *const c_char,
    depth: u32,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe {
        answer(error, -1, || {
            let warm = object(warm, "warm")?.share()?;
            warm.add(string(program, "program")?, Park::new().depth(depth as usize))?;
            Ok(0)
        })
    }
}

/// Waits until every program has its full number of parked processes. Returns 1, or 0 if some program has not.
///
/// Waits up to `timeout_ms` milliseconds; negative: without end. Returns 0 early if a program cannot be parked.
///
/// # Errors
/// Returns -1 and sets errno. EINVAL: `warm` is NULL. ECHILD: a forked process.
///
/// # Safety
/// `warm` is NULL or valid. `error` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spawnfd_warm_fill(
    warm: *const spawnfd_warm,
    timeout_ms: c_int,
    error: *mut spawnfd_error,
) -> c_int {
    // SAFETY: the caller guarantees the pointers.
    unsafe { answer(error, -1, || Ok(object(warm, "warm")?.share()?.fill(milliseconds(timeout_ms)).into())) }
}
