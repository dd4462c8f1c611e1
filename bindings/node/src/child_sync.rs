// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs programs to their end without supervision, for the synchronous functions of `child_process`.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use napi::bindgen_prelude::*;
use napi_derive::napi;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use spawnfd::Child;
use spawnfd::error::Errno;

use crate::child::NativeExit;
use crate::program::{ProgramStart, StartError};

/// The space in bytes for each read of output.
const READ_SIZE: usize = 64 << 10;

#[napi(object, object_to_js = false)]
pub struct SyncLimits<'env> {
    /// In milliseconds; 0 is none.
    pub timeout: f64,
    /// In bytes, of all streams; 0 is none.
    pub max_buffer: f64,
    pub kill_signal: i32,
    /// The input of a program whose standard input is a pipe.
    pub input: Either<BufferSlice<'env>, Null>,
}

/// The end of a run. `pid` is 0 if the program was not started.
#[napi(object, object_from_js = false)]
pub struct SyncResult<'env> {
    pub pid: u32,
    /// 0, or the negative errno of the first failure.
    pub errno: i32,
    pub code: i32,
    pub signal: i32,
    pub output: Vec<Option<BufferSlice<'env>>>,
}

/// This process's end of a pipe of the program.
struct Pipe<'a> {
    /// `None` after the end of the stream.
    fd: Option<OwnedFd>,
    /// The rest of the input, if this process writes to the pipe.
    input: Option<&'a [u8]>,
    output: Vec<u8>,
}

impl Pipe<'_> {
    fn end(&mut self) {
        if let Some(fd) = self.fd.take() {
            let _ = shutdown(fd, Shutdown::Write);
        }
    }

    /// Writes or reads what is possible now. Returns the number of bytes that were read.
    fn transfer(&mut self) -> std::result::Result<usize, Errno> {
        let Some(fd) = &self.fd else { return Ok(0) };
        let begin = self.output.len();
        let is_over = match &mut self.input {
            Some(input) => send(fd, input, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(|sent| {
                *input = &input[sent..];
                input.is_empty()
            }),
            None => {
                self.output.reserve(READ_SIZE);
                recv(fd, spare_capacity(&mut self.output), RecvFlags::DONTWAIT).map(|(_, read)| read == 0)
            }
        };
        match is_over {
            Ok(false) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Ok(true) => self.end(),
            Err(errno) => {
                self.end();
                return Err(Errno::from_raw(errno.raw_os_error()));
            }
        }
        Ok(self.output.len() - begin)
    }
}

struct Run<'a> {
    child: Child,
    exit: Option<NativeExit>,
    pipes: Vec<Option<Pipe<'a>>>,
    deadline: Option<Instant>,
    max_buffer: f64,
    kill_signal: i32,
    error: Option<Errno>,
    pipe_error: Option<Errno>,
}

impl Run<'_> {
    /// Waits until the program has ended and all its pipes are at their end, as libuv's loop does.
    fn wait(&mut self) {
        let mut size = 0;
        loop {
            self.note_exit();
            let open: Vec<usize> = (0..self.pipes.len()).filter(|&index| self.is_open(index)).collect();
            if self.exit.is_some() && open.is_empty() {
                return;
            }
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                self.kill(Errno::ETIMEDOUT);
                continue;
            }
            let ready = self.poll(&open, left);
            for index in ready {
                let Some(pipe) = &mut self.pipes[index] else { continue };
                match pipe.transfer() {
                    Ok(read) => size += read,
                    Err(errno) => _ = self.pipe_error.get_or_insert(errno),
                }
            }
            if self.max_buffer > 0.0 && size as f64 > self.max_buffer && self.error.is_none() {
                self.kill(Errno::ENOBUFS);
            }
        }
    }

    fn is_open(&self, index: usize) -> bool {
        self.pipes[index].as_ref().is_some_and(|pipe| pipe.fd.is_some())
    }

    fn note_exit(&mut self) {
        if self.exit.is_none() {
            self.exit = self.child.try_wait().transpose().map(NativeExit::of);
        }
    }

    /// Waits for a change. Returns the pipes that are ready.
    fn poll(&self, open: &[usize], left: Option<Duration>) -> Vec<usize> {
        let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(open.len() + 1);
        for pipe in open.iter().filter_map(|&index| self.pipes[index].as_ref()) {
            let flags = if pipe.input.is_some() { PollFlags::OUT } else { PollFlags::IN };
            polled.extend(pipe.fd.iter().map(|fd| PollFd::new(fd, flags)));
        }
        if self.exit.is_none() {
            polled.push(PollFd::from_borrowed_fd(self.child.as_fd(), PollFlags::IN));
        }
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => (open.iter().zip(&polled)).filter(|(_, fd)| !fd.revents().is_empty()).map(|(&i, _)| i).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Sends the signal, and no longer waits for the pipes.
    fn kill(&mut self, reason: Errno) {
        self.error.get_or_insert(reason);
        self.deadline = None;
        if self.exit.is_none() && self.child.signal(self.kill_signal).is_err() {
            let _ = self.child.kill();
        }
        self.pipes.iter_mut().flatten().for_each(Pipe::end);
    }
}

/// Runs a program to its end. `null`: Node has to run the program.
#[napi]
pub fn run_child<'env>(
    env: &'env Env,
    start: ProgramStart,
    limits: SyncLimits<'env>,
) -> Result<Option<SyncResult<'env>>> {
    let begun = Instant::now();
    let (child, pipes) = match start.start() {
        Ok((Ok(child), pipes)) => (child, pipes),
        Ok((Err(errno), _)) | Err(StartError::Failed(errno)) => {
            return Ok(Some(SyncResult { pid: 0, errno: -errno.raw(), code: 0, signal: 0, output: Vec::new() }));
        }
        Err(StartError::Unsupported) => return Ok(None),
    };
    let input = match &limits.input {
        Either::A(input) => &input[..],
        Either::B(Null) => &[],
    };
    let pipes = pipes.into_iter().enumerate().map(|(number, fd)| {
        let mut pipe = Pipe { fd: Some(fd?), input: (number == 0).then_some(input), output: Vec::new() };
        // Without input, the program reads the end of the stream at once.
        if pipe.input.is_some_and(<[u8]>::is_empty) {
            pipe.end();
        }
        Some(pipe)
    });
    let timeout = Duration::try_from_secs_f64(limits.timeout / 1000.0).ok().filter(|timeout| !timeout.is_zero());
    let mut run = Run {
        child,
        exit: None,
        pipes: pipes.collect(),
        deadline: timeout.and_then(|timeout| begun.checked_add(timeout)),
        max_buffer: limits.max_buffer,
        kill_signal: limits.kill_signal,
        error: None,
        pipe_error: None,
    };
    run.wait();
    let pid = run.child.id();
    let exit = run.exit.unwrap_or(NativeExit { code: 0, signal: 0 });
    let lost = (exit.code < 0).then(|| Errno::from_raw(-exit.code));
    let errno = run.error.or(lost).or(run.pipe_error).map_or(0, |errno| -errno.raw());
    let output = run.pipes.into_iter().map(|pipe| {
        let output = pipe.filter(|pipe| pipe.input.is_none()).map(|pipe| pipe.output);
        output.map(|output| BufferSlice::copy_from(env, output)).transpose()
    });
    Ok(Some(SyncResult { pid, errno, code: exit.code, signal: exit.signal, output: output.collect::<Result<_>>()? }))
}
