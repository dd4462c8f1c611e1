// SPDX-License-Identifier: MIT OR Apache-2.0
//! What goes into a program's standard input.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use spawnfd_sys::{Errno, call};

use super::pty::END_OF_INPUT;
use crate::error::{Error, Result, Stage, errno};
use crate::host::per_process::PerProcess;
use crate::host::thread;
use crate::waker::{Foreign, Waker};

/// Bytes that are shared, never copied: a vector, an [`Arc`], what a language binding holds.
#[derive(Clone)]
pub struct SharedBytes(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl SharedBytes {
    /// Shares what has the bytes. They must always be the same.
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> SharedBytes {
        SharedBytes(Arc::new(Foreign::new(bytes)))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Foreign<T> {
    fn as_ref(&self) -> &[u8] {
        self.get().map_or(&[], T::as_ref)
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.as_bytes().len())
    }
}

macro_rules! shared {
    ($($type:ty),*) => { $(impl From<$type> for SharedBytes {
        fn from(bytes: $type) -> SharedBytes {
            SharedBytes::new(bytes)
        }
    })* };
}
shared!(Vec<u8>, String, Arc<[u8]>, &'static [u8], &'static str);

/// What is fed: see [`Input::connect`].
#[derive(Debug)]
pub enum Source {
    /// Bytes, and how many of them have been written.
    Bytes(SharedBytes, usize),
    /// What is written meanwhile.
    Stream(InputStream),
}

/// What one write came to.
enum Wrote {
    Bytes(u8),
    /// There is nothing to write now.
    Idle,
    /// There is nothing more.
    End,
}

impl Source {
    /// These bytes, then the end.
    pub fn bytes(bytes: SharedBytes) -> Source {
        Source::Bytes(bytes, 0)
    }

    /// What is written while the program runs; up to `max_bytes` (at least 1) wait for it.
    pub fn stream(max_bytes: usize) -> (InputWriter, Source) {
        // A copy of the host has no engine that would write it.
        let queue = PerProcess::here(InputQueue::default(), || InputQueue { gone: true, ..InputQueue::default() });
        let shared = Arc::new(SharedInput { queue, room: Condvar::new(), max_bytes: max_bytes.max(1) });
        (InputWriter(shared.clone()), Source::Stream(InputStream(shared)))
    }

    fn write_once(&mut self, fd: RawFd) -> std::result::Result<Wrote, Errno> {
        match self {
            Source::Bytes(bytes, at) => {
                let left = &bytes.as_bytes()[*at..];
                if left.is_empty() {
                    return Ok(Wrote::End);
                }
                let length = call::write_without_signal(fd, left)?;
                *at += length;
                Ok(Wrote::Bytes(left[length - 1]))
            }
            Source::Stream(InputStream(shared)) => {
                let mut queue = shared.queue.lock();
                let left = queue.bytes.as_slices().0;
                if left.is_empty() {
                    return Ok(if queue.closed { Wrote::End } else { Wrote::Idle });
                }
                let length = call::write_without_signal(fd, left)?;
                let last = left[length - 1];
                queue.bytes.drain(..length);
                if queue.bytes.len() <= shared.max_bytes / 2 {
                    shared.tell_writer(queue);
                }
                Ok(Wrote::Bytes(last))
            }
        }
    }
}

#[derive(Debug, Default)]
struct InputQueue {
    bytes: VecDeque<u8>,
    /// Nothing more will be written.
    closed: bool,
    /// Nobody reads any more.
    gone: bool,
    /// A writer has been told that there is no room.
    starved: bool,
    writer: Option<Waker>,
    engine: Option<Waker>,
}

#[derive(Debug)]
struct SharedInput {
    queue: PerProcess<InputQueue>,
    room: Condvar,
    max_bytes: usize,
}

impl SharedInput {
    /// Tells a writer that waits.
    fn tell_writer(&self, mut queue: MutexGuard<'_, InputQueue>) {
        if std::mem::take(&mut queue.starved) {
            let writer = queue.writer.clone();
            drop(queue);
            self.room.notify_all();
            if let Some(writer) = writer {
                writer.wake();
            }
        }
    }
}

/// The reading side of [`Input::stream`]. When it is dropped, the writer is told.
#[derive(Debug)]
pub struct InputStream(Arc<SharedInput>);

impl Drop for InputStream {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.gone = true;
        let dropped = (std::mem::take(&mut queue.bytes), queue.engine.take());
        self.0.tell_writer(queue);
        drop(dropped);
    }
}

/// Writes a program's input while it runs. Dropping it is [`close`](InputWriter::close).
#[derive(Debug)]
pub struct InputWriter(Arc<SharedInput>);

impl InputWriter {
    /// Takes as many of the bytes as there is room for, and says how many; never waits. After an answer of less than all, the waker
    /// is called when there is room.
    ///
    /// # Errors
    /// EPIPE: the program reads no more, has ended, or the input was closed.
    pub fn write(&self, bytes: &[u8]) -> Result<usize> {
        let mut queue = self.0.queue.lock();
        if queue.gone || queue.closed {
            return Err(Error::new(Stage::Capture, Errno::EPIPE, format!("write(stdin, {} bytes)", bytes.len())));
        }
        let length = bytes.len().min(self.0.max_bytes - queue.bytes.len());
        let was_empty = queue.bytes.is_empty();
        queue.bytes.extend(&bytes[..length]);
        queue.starved |= length < bytes.len();
        let engine = queue.engine.clone().filter(|_| was_empty && length > 0);
        drop(queue);
        if let Some(engine) = engine {
            engine.wake();
        }
        Ok(length)
    }

    /// Writes all the bytes, waiting for room so long at most, and not at all in a run's [callback](crate::Command::run_then); says how many
    /// were taken.
    ///
    /// # Errors
    /// As [`write`](InputWriter::write).
    pub fn write_timeout(&self, bytes: &[u8], timeout: Duration) -> Result<usize> {
        let timeout = if thread::is_engine() { Duration::ZERO } else { timeout };
        let deadline = Instant::now().checked_add(timeout);
        let mut written = 0;
        loop {
            written += self.write(&bytes[written..])?;
            if written == bytes.len() {
                return Ok(written);
            }
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            let waited = self.0.room.wait_timeout_while(self.0.queue.lock(), left, |queue| queue.starved);
            if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                return Ok(written);
            }
        }
    }

    /// Ends the input: the program finds its end after what has been written.
    pub fn close(&self) {
        let mut queue = self.0.queue.lock();
        if !std::mem::replace(&mut queue.closed, true) {
            let engine = queue.engine.clone();
            self.0.tell_writer(queue);
            if let Some(engine) = engine {
                engine.wake();
            }
        }
    }

    /// Sets what is called when there is something to write after there was nothing.
    pub(super) fn set_engine(&self, waker: Waker) {
        self.0.queue.lock().engine = Some(waker);
    }

    /// Sets what is called when there is room after there was none, or nobody reads any more.
    pub fn set_waker(&self, waker: Waker) {
        let before = self.0.queue.lock().writer.replace(waker);
        drop(before);
    }
}

impl Drop for InputWriter {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether more can be written into a program's input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feeding {
    /// At once, after others have had their turn.
    Again,
    /// When the pipe has room.
    Blocked,
    /// When the stream has more; until then the pipe is not to be watched.
    Idle,
    /// Never: all is written, or the program reads no more. The feed is to be dropped, which closes the pipe.
    Done,
}

/// The engine's end of standard input. No SIGPIPE comes of it.
#[derive(Debug)]
pub struct Feed {
    pipe: OwnedFd,
    source: Source,
    is_terminal: bool,
    /// The source has ended, and the terminal is being told.
    ending: bool,
    last: u8,
    refused: bool,
}

/// How many times is written before it is others' turn.
const WRITES_IN_A_ROW: usize = 4;

impl Feed {
    /// Feeds `source` into a pipe, which is made non-blocking.
    ///
    /// # Errors
    /// EBADF only.
    pub fn new(pipe: OwnedFd, source: Source) -> Result<Feed> {
        fcntl_getfl(&pipe)
            .and_then(|flags| fcntl_setfl(&pipe, flags | OFlags::NONBLOCK))
            .map_err(|e| Error::new(Stage::Capture, errno(e), "fcntl(F_SETFL, O_NONBLOCK)"))?;
        Ok(Feed { pipe, source, is_terminal: false, ending: false, last: b'\n', refused: false })
    }

    /// The same into a terminal (a copy of a [`Pty`](super::Pty)'s descriptor): at the end it gets the character that means that,
    /// as closing says nothing there.
    ///
    /// # Errors
    /// EBADF only.
    pub fn terminal(terminal: OwnedFd, source: Source) -> Result<Feed> {
        Ok(Feed { is_terminal: true, ..Feed::new(terminal, source)? })
    }

    /// Whether the program stopped reading before the end.
    pub fn refused(&self) -> bool {
        self.refused
    }

    /// Whether something is left that was to be written.
    pub fn has_more(&self) -> bool {
        match &self.source {
            _ if self.ending => false,
            Source::Bytes(bytes, at) => *at < bytes.as_bytes().len(),
            Source::Stream(stream) => !stream.0.queue.lock().bytes.is_empty(),
        }
    }

    /// Tells who writes that nobody reads any more; the number has become the application's, and is not closed.
    pub fn abandon(self) {
        let _ = self.pipe.into_raw_fd();
    }

    /// Writes what can be written now; never waits.
    pub fn write(&mut self) -> Feeding {
        for _ in 0..WRITES_IN_A_ROW {
            match self.source.write_once(self.pipe.as_raw_fd()) {
                Ok(Wrote::Bytes(last)) => self.last = last,
                Ok(Wrote::Idle) => return Feeding::Idle,
                Ok(Wrote::End) if self.is_terminal && !self.ending => {
                    // It ends a read; only a read that has nothing else is the end of the input.
                    let end: &[u8] = if self.last == b'\n' { &[END_OF_INPUT] } else { &[END_OF_INPUT; 2] };
                    self.source = Source::Bytes(end.into(), 0);
                    self.ending = true;
                }
                Ok(Wrote::End) => return Feeding::Done,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Feeding::Blocked,
                Err(_) => {
                    // EPIPE, or EIO of a terminal: the program reads no more, which is its right.
                    self.refused = !self.ending;
                    return Feeding::Done;
                }
            }
        }
        Feeding::Again
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests;
