// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts programs without supervision.

use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Mutex;

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::Child;
use spawnfd::internal::Signaller;
use spawnfd::options::Call;

use crate::errors::{Failure, answer};
use crate::program::{Pipes, ProgramStart, StartError};
use crate::queue::{Outcome, Queue, lock};
use crate::request::Request;

/// How a program ended: `code` is its exit code, or a negative errno if the status is lost. `signal` is 0, or the number
/// of the signal that ended the program.
#[napi(object, object_from_js = false)]
pub struct NativeExit {
    pub code: i32,
    pub signal: i32,
}

impl NativeExit {
    pub fn of(status: spawnfd::Result<ExitStatus>) -> NativeExit {
        match status {
            Ok(status) => NativeExit { code: status.code().unwrap_or(0), signal: status.signal().unwrap_or(0) },
            Err(error) => NativeExit { code: -error.errno().raw(), signal: 0 },
        }
    }
}

/// A start: the program, or why there is none. Dropping it does not affect the program.
#[napi]
pub struct NativeChild {
    pid: u32,
    errno: i32,
    signaller: Option<Signaller>,
    pipes: Mutex<Pipes>,
}

#[napi]
impl NativeChild {
    #[napi(getter)]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// 0, or the negative errno of a start that failed.
    #[napi(getter)]
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// Gives this process's end of a pipe to the caller, which closes it.
    #[napi]
    pub fn take_pipe(&self, number: u32) -> Option<i32> {
        lock(&self.pipes).get_mut(number as usize)?.take().map(IntoRawFd::into_raw_fd)
    }

    /// Sends a signal. Returns 0 or a negative errno.
    #[napi]
    pub fn signal(&self, signal: i32) -> i32 {
        self.signaller
            .as_ref()
            .map_or(0, |signaller| signaller.signal(signal).map_or_else(|errno| -errno.raw(), |()| 0))
    }
}

impl NativeChild {
    /// Lets the library's thread wait for a program, whose end the queue gets under `key`.
    fn watch(queue: &Queue, key: u32, mut child: Child, pipes: Pipes) -> spawnfd::Result<NativeChild> {
        let (pid, signaller) = (child.id(), child.signaller());
        let driven =
            queue.shared().drive(key, |_| async move { Outcome::of(NativeExit::of(child.wait_async().await)) });
        if driven.is_err() {
            // A start that fails leaves no process. The library's reaper waits for the program.
            let _ = signaller.signal(spawnfd::signal::KILL);
        }
        driven.map(|()| NativeChild { pid, errno: 0, signaller: Some(signaller), pipes: Mutex::new(pipes) })
    }
}

/// Starts a program in the calling thread, for the replacement of `child_process`. The queue gets its end under `key`.
/// `null`: Node has to start the program.
#[napi]
pub fn start_child(queue: &Queue, key: u32, start: ProgramStart) -> Option<NativeChild> {
    let (errno, pipes) = match start.start() {
        Ok((Ok(child), pipes)) => match NativeChild::watch(queue, key, child, pipes) {
            Ok(child) => return Some(child),
            Err(error) => (error.errno(), Pipes::new()),
        },
        Ok((Err(errno), pipes)) => (errno, pipes),
        Err(StartError::Failed(errno)) => (errno, Pipes::new()),
        Err(StartError::Unsupported) => return None,
    };
    Some(NativeChild { pid: 0, errno: -errno.raw(), signaller: None, pipes: Mutex::new(pipes) })
}

/// Starts a program in the calling thread. The queue gets its end under `key`.
#[napi]
pub fn spawn(queue: &Queue, key: u32, argv: Unknown<'_>, options: Object<'_>) -> Result<Either<NativeChild, Failure>> {
    let mut child = match Request::new(&argv, &options, Call::Spawn)?.spawn() {
        Ok(child) => child,
        Err(failure) => return Ok(Either::B(failure)),
    };
    let pipes = vec![
        child.stdin.take().map(OwnedFd::from),
        child.stdout.take().map(OwnedFd::from),
        child.stderr.take().map(OwnedFd::from),
    ];
    answer(NativeChild::watch(queue, key, child, pipes))
}
