// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pipe to the other side.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write};
use spawnfd::Error;
use spawnfd::error::{Errno as ErrorNumber, Stage};
use spawnfd::internal::{Stored, error};

use crate::frame::{Kind, MARK, MAX_PAYLOAD};
use crate::message::{FarHello, pack};
use crate::outbox::Outbox;

/// While more bytes than this wait for the other side, the server reads nothing. So a client that does not read cannot
/// make the server use ever more memory.
const MAX_WAITING: usize = 8 << 20;

/// The frames that wait for the other side.
#[derive(Debug, Default)]
struct Outgoing {
    frames: Outbox,
    /// The pipe is full. The main thread writes on when it has room.
    is_full: bool,
}

/// The pipe to the other side. Any thread can send.
#[derive(Debug)]
pub(super) struct Connection {
    output: OwnedFd,
    outgoing: Mutex<Outgoing>,
    /// Wakes the main thread.
    wake: OwnedFd,
    /// The other side reads no more.
    is_lost: AtomicBool,
}

impl Connection {
    pub(super) fn new(output: OwnedFd) -> rustix::io::Result<Connection> {
        stop_blocking(output.as_fd())?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Connection { output, outgoing: Mutex::default(), wake, is_lost: AtomicBool::new(false) })
    }

    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame, without waiting for room. `parts` are the parts of the payload. Instead of a result that is too
    /// large for a frame, sends an error.
    pub(super) fn send(&self, kind: Kind, call: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > MAX_PAYLOAD {
            let message = format!("the answer has {length} bytes; a frame has at most {MAX_PAYLOAD}");
            return self.send_error(call, &error(Stage::Capture, ErrorNumber::E2BIG, "remote", &message));
        }
        let mut outgoing = self.outgoing();
        outgoing.frames.push(kind, call, parts);
        if !outgoing.is_full && !self.write(&mut outgoing) {
            drop(outgoing);
            let _ = write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    /// Tells why a call has failed.
    pub(super) fn send_error(&self, call: u32, error: &Error) {
        self.send(Kind::Error, call, &[&pack(&Stored(error))]);
    }

    /// Writes what the pipe accepts. Returns `false` if the main thread has to write the rest or to end.
    fn write(&self, outgoing: &mut Outgoing) -> bool {
        while !outgoing.frames.is_empty() {
            match write(&self.output, outgoing.frames.bytes()) {
                Ok(count) => outgoing.frames.note_written(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    outgoing.is_full = true;
                    return false;
                }
                Err(_) => {
                    self.is_lost.store(true, Ordering::Relaxed);
                    return false;
                }
            }
        }
        outgoing.is_full = false;
        true
    }

    /// Whether this process reads nothing now, because too much waits for the other side.
    pub(super) fn is_behind(&self) -> bool {
        self.outgoing().frames.len() > MAX_WAITING
    }

    /// Whether the output is so far behind that the main thread must not read.
    pub(super) fn wanted(&self) -> [PollFd<'_>; 2] {
        let wanted = if self.outgoing().is_full { PollFlags::OUT } else { PollFlags::empty() };
        [PollFd::new(&self.wake, PollFlags::IN), PollFd::new(&self.output, wanted)]
    }

    /// Writes on after a wait for what is [wanted](Connection::wanted). Returns whether the pipe had room; `None` if the
    /// other side reads no more.
    pub(super) fn serve(&self, woken: PollFlags, writable: PollFlags) -> Option<bool> {
        if !woken.is_empty() {
            let _ = read(&self.wake, &mut [0; 8]);
        }
        if writable.intersects(PollFlags::ERR | PollFlags::HUP) || self.is_lost.load(Ordering::Relaxed) {
            return None;
        }
        if !writable.is_empty() {
            self.write(&mut self.outgoing());
        }
        Some(!writable.is_empty())
    }

    /// Sends the mark and the first frame.
    pub(super) fn greet(&self, hello: &FarHello) {
        let mut outgoing = self.outgoing();
        outgoing.frames.push_bytes(MARK);
        outgoing.frames.push(Kind::Hello, 0, &[&pack(hello)]);
        self.write(&mut outgoing);
    }
}

pub(super) fn stop_blocking(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)
}
