// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts programs without supervision, for the replacement of `child_process`.

use std::os::fd::IntoRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Mutex;

use napi_derive::napi;
use spawnfd::child::Signaller;

use crate::program::{Pipes, ProgramStart, StartError};
use crate::queue::{Outcome, Queue, lock};

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
        self.signaller.as_ref().map_or(0, |signaller| signaller.signal(signal).map_or_else(|errno| -errno.raw(), |()| 0))
    }
}

/// Starts a program in the calling thread. The queue gets its end under `key`. `null`: Node has to start the program.
#[napi]
pub fn start_child(queue: &Queue, key: u32, start: ProgramStart) -> Option<NativeChild> {
    let (started, pipes) = match start.start() {
        Ok((started, pipes)) => (started, pipes),
        Err(StartError::Failed(errno)) => (Err(errno), Pipes::new()),
        Err(StartError::Unsupported) => return None,
    };
    let started = started.and_then(|mut child| {
        let (pid, signaller) = (child.id(), child.signaller());
        let driven = queue.shared().drive(key, |_| async move { Outcome::of(NativeExit::of(child.wait_async().await)) });
        driven.map(|()| (pid, signaller.clone())).map_err(|error| {
            // The library cannot wait for the program. Its reaper does.
            let _ = signaller.signal(spawnfd::signal::KILL);
            error.errno()
        })
    });
    let pipes = Mutex::new(pipes);
    Some(match started {
        Ok((pid, signaller)) => NativeChild { pid, errno: 0, signaller: Some(signaller), pipes },
        Err(errno) => NativeChild { pid: 0, errno: -errno.raw(), signaller: None, pipes },
    })
}
