// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program's standard input.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::termios::{LocalModes, tcgetattr};
use spawnfd_sys::{Errno, call};

use super::pty::END_OF_INPUT;
use crate::bytes::SharedBytes;
use crate::callback::Callback;
use crate::error::{Error, Result, Stage, errno};
use crate::host::per_process::PerProcess;
use crate::host::thread;

/// The source of a program's input.
#[derive(Debug)]
pub enum Source {
    /// Fixed bytes, and the number of them that have been written.
    Bytes(SharedBytes, usize),
    /// Bytes that an `InputWriter` adds while the program runs.
    Stream(InputStream),
}

/// The outcome of one write.
enum WriteOutcome {
    Bytes(u8),
    /// There is nothing to write now.
    Idle,
    /// The source has ended.
    End,
}

/// The line that is being typed into a terminal.
#[derive(Debug, Default)]
struct TypedLine {
    length: usize,
    longest: usize,
}

impl TypedLine {
    /// The longest line that a terminal stores, unless the program reads single keys (N_TTY_BUF_SIZE - 1).
    const MAX: usize = 4095;

    fn add(&mut self, written: &[u8]) {
        for part in written.split_inclusive(|byte| matches!(byte, b'\n' | b'\r' | &END_OF_INPUT)) {
            let ends = matches!(part.last(), Some(b'\n' | b'\r' | &END_OF_INPUT));
            self.length += part.len() - usize::from(ends);
            self.longest = self.longest.max(self.length);
            if ends {
                self.length = 0;
            }
        }
    }

    /// Whether a line was longer since the last call.
    fn take_too_long(&mut self) -> bool {
        std::mem::take(&mut self.longest) > Self::MAX
    }
}

impl Source {
    /// A source of these bytes.
    pub fn bytes(bytes: SharedBytes) -> Source {
        Source::Bytes(bytes, 0)
    }

    /// A source that the returned writer fills while the program runs. The queue between them holds at most
    /// `max_bytes` bytes (at least 1).
    pub fn stream(max_bytes: usize) -> (InputWriter, Source) {
        // In a forked copy of the host, no engine thread writes the input, so the copy's writer gets EPIPE.
        let queue = PerProcess::for_this_process(InputQueue::default(), || InputQueue {
            reader_gone: true,
            ..InputQueue::default()
        });
        let shared = Arc::new(SharedInput { queue, space: Condvar::new(), max_bytes: max_bytes.max(1) });
        (InputWriter(shared.clone()), Source::Stream(InputStream(shared)))
    }

    /// Takes at most `max` of the bytes that can be written now. Returns `None` after the last.
    #[cfg(feature = "remote")]
    pub(super) fn take(&mut self, max: usize) -> Option<Vec<u8>> {
        match self {
            Source::Bytes(bytes, at) => {
                let left = &bytes.as_bytes()[*at..];
                let taken = left[..left.len().min(max)].to_vec();
                *at += taken.len();
                Some(taken).filter(|_| !left.is_empty())
            }
            Source::Stream(InputStream(shared)) => {
                let mut queue = shared.queue.lock();
                if queue.bytes.is_empty() && queue.closed {
                    return None;
                }
                let length = queue.bytes.len().min(max);
                let taken = queue.bytes.drain(..length).collect();
                if queue.bytes.len() <= shared.max_bytes / 2 {
                    shared.wake_writer(queue);
                }
                Some(taken)
            }
        }
    }

    fn write_once(&mut self, fd: RawFd, line: Option<&mut TypedLine>) -> std::result::Result<WriteOutcome, Errno> {
        match self {
            Source::Bytes(bytes, at) => {
                let left = &bytes.as_bytes()[*at..];
                if left.is_empty() {
                    return Ok(WriteOutcome::End);
                }
                let length = call::write_without_signal(fd, left)?;
                *at += length;
                line.into_iter().for_each(|line| line.add(&left[..length]));
                Ok(WriteOutcome::Bytes(left[length - 1]))
            }
            Source::Stream(InputStream(shared)) => {
                let mut queue = shared.queue.lock();
                let left = queue.bytes.as_slices().0;
                if left.is_empty() {
                    return Ok(if queue.closed { WriteOutcome::End } else { WriteOutcome::Idle });
                }
                let length = call::write_without_signal(fd, left)?;
                let last = left[length - 1];
                line.into_iter().for_each(|line| line.add(&left[..length]));
                queue.bytes.drain(..length);
                if queue.bytes.len() <= shared.max_bytes / 2 {
                    shared.wake_writer(queue);
                }
                Ok(WriteOutcome::Bytes(last))
            }
        }
    }
}

/// The engine that writes a queue's bytes to the program.
pub(super) struct InputEngine {
    /// A write calls this if the queue was empty before.
    pub(super) wake: Callback,
    /// Whether the engine watches this pipe, and the application has not replaced it.
    pub(super) is_watched: Box<dyn Fn(BorrowedFd<'_>) -> bool + Send>,
}

impl fmt::Debug for InputEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InputEngine")
    }
}

#[derive(Debug, Default)]
struct InputQueue {
    bytes: VecDeque<u8>,
    /// The writer has closed the input.
    closed: bool,
    /// True once the program has closed its input or ended.
    reader_gone: bool,
    /// True if a write did not fit completely. When the queue has space, the engine wakes the
    /// writer.
    writer_waits: bool,
    writer: Option<Callback>,
    engine: Option<InputEngine>,
    /// The pipe to the program, which the run owns. While the queue is empty, the writer writes directly to this
    /// pipe.
    pipe: Weak<OwnedFd>,
}

impl InputQueue {
    /// Writes to the pipe if the queue is empty, and returns the number of bytes. If the pipe is full or the program
    /// reads no more, the engine's next write has the same outcome and handles it.
    fn write_directly(&self, bytes: &[u8]) -> usize {
        let (true, Some(engine), Some(pipe)) = (self.bytes.is_empty(), &self.engine, self.pipe.upgrade()) else {
            return 0;
        };
        if bytes.is_empty() || !(engine.is_watched)(pipe.as_fd()) {
            return 0;
        }
        call::write_without_signal(pipe.as_raw_fd(), bytes).unwrap_or(0)
    }
}

#[derive(Debug)]
struct SharedInput {
    queue: PerProcess<InputQueue>,
    space: Condvar,
    max_bytes: usize,
}

impl SharedInput {
    /// Wakes a waiting writer.
    fn wake_writer(&self, mut queue: MutexGuard<'_, InputQueue>) {
        if std::mem::take(&mut queue.writer_waits) {
            let writer = queue.writer.clone();
            drop(queue);
            self.space.notify_all();
            if let Some(writer) = writer {
                writer.call();
            }
        }
    }
}

/// The reading side of the queue that `Source::stream` creates. Dropping it wakes a waiting writer.
#[derive(Debug)]
pub struct InputStream(Arc<SharedInput>);

impl Drop for InputStream {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.reader_gone = true;
        // The writer learns that the program has not read what the queue has accepted.
        queue.writer_waits |= !queue.bytes.is_empty();
        let dropped = (std::mem::take(&mut queue.bytes), queue.engine.take());
        self.0.wake_writer(queue);
        drop(dropped);
    }
}

/// Writes a program's input while it runs. Dropping the writer [closes](InputWriter::close) the input.
#[derive(Debug)]
pub struct InputWriter(Arc<SharedInput>);

impl InputWriter {
    /// Writes as many of the bytes as fit into the pipe and the queue, and returns their number; never waits. If not
    /// all fit, the library later calls the [callback](InputWriter::set_callback) when the queue has space.
    ///
    /// # Errors
    /// EPIPE: the program reads no more or has ended, or the input was closed.
    pub fn write(&self, bytes: &[u8]) -> Result<usize> {
        let mut queue = self.0.queue.lock();
        if queue.reader_gone || queue.closed {
            let call = format!("write(stdin, {} bytes)", bytes.len());
            let message = "the program's input is closed: the program reads no more, or the caller has closed it";
            return Err(Error::new(Stage::Capture, Errno::EPIPE, call).saying(message));
        }
        let written = queue.write_directly(bytes);
        let rest = &bytes[written..];
        let length = rest.len().min(self.0.max_bytes - queue.bytes.len());
        let was_empty = queue.bytes.is_empty();
        queue.bytes.extend(&rest[..length]);
        queue.writer_waits |= length < rest.len();
        let wake = queue.engine.as_ref().filter(|_| was_empty && length > 0).map(|engine| engine.wake.clone());
        drop(queue);
        if let Some(wake) = wake {
            wake.call();
        }
        Ok(written + length)
    }

    /// Queues all bytes. Waits for space for at most `timeout`. In a run's [callback](crate::Command::run_then) it
    /// does not wait. Returns how many bytes were accepted.
    ///
    /// # Errors
    /// The same as those of [`write`](InputWriter::write).
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
            let waited = self.0.space.wait_timeout_while(self.0.queue.lock(), left, |queue| queue.writer_waits);
            if waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                return Ok(written);
            }
        }
    }

    /// Ends the input: the program reads EOF after the bytes that have been written.
    pub fn close(&self) {
        let mut queue = self.0.queue.lock();
        if !std::mem::replace(&mut queue.closed, true) {
            let wake = queue.engine.as_ref().map(|engine| engine.wake.clone());
            self.0.wake_writer(queue);
            if let Some(wake) = wake {
                wake.call();
            }
        }
    }

    /// Sets the engine that writes the bytes in the queue.
    pub(super) fn set_engine(&self, engine: InputEngine) {
        self.0.queue.lock().engine = Some(engine);
    }

    /// Sets the callback that the library calls when a full queue has space again, or when the program stops reading.
    pub fn set_callback(&self, callback: Callback) {
        let before = self.0.queue.lock().writer.replace(callback);
        drop(before);
    }
}

impl Drop for InputWriter {
    fn drop(&mut self) {
        self.close();
    }
}

/// When the next write to a program's input is possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedStatus {
    /// As soon as the engine has served the other runs.
    Again,
    /// When the pipe has space.
    Blocked,
    /// When the stream has more bytes. Until then, do not watch the pipe.
    Idle,
    /// Never: all bytes are written, or the program reads no more. Drop the feed, which closes the pipe.
    Done,
}

/// The engine's end of standard input. Writing to it never raises SIGPIPE.
#[derive(Debug)]
pub struct Feed {
    pipe: Arc<OwnedFd>,
    source: Source,
    /// The source has ended, and the feed now writes the end-of-input character to the terminal.
    ending: bool,
    last: u8,
    /// The line of a terminal. `None`: the feed writes into a pipe.
    line: Option<TypedLine>,
    refused: bool,
}

/// The number of writes to one run's input before the engine serves other runs.
const WRITES_IN_A_ROW: usize = 4;

impl Feed {
    /// Feeds `source` into a pipe, and makes the pipe non-blocking.
    ///
    /// # Errors
    /// EBADF only.
    pub fn new(pipe: OwnedFd, source: Source) -> Result<Feed> {
        fcntl_getfl(&pipe)
            .and_then(|flags| fcntl_setfl(&pipe, flags | OFlags::NONBLOCK))
            .map_err(|e| Error::new(Stage::Capture, errno(e), "fcntl(F_SETFL, O_NONBLOCK)"))?;
        let pipe = Arc::new(pipe);
        if let Source::Stream(InputStream(shared)) = &source {
            shared.queue.lock().pipe = Arc::downgrade(&pipe);
        }
        Ok(Feed { pipe, source, ending: false, last: b'\n', line: None, refused: false })
    }

    /// Feeds `source` into a terminal. `terminal` is a copy of a [`Pty`](super::Pty)'s descriptor. After the last
    /// byte the feed writes the end-of-input character, because closing the copy does not end a terminal's input.
    ///
    /// # Errors
    /// EBADF only.
    pub fn terminal(terminal: OwnedFd, source: Source) -> Result<Feed> {
        let feed = Feed { line: Some(TypedLine::default()), ..Feed::new(terminal, source)? };
        if let Source::Stream(InputStream(shared)) = &feed.source {
            // Only the feed's own writes know the last byte, which decides how the input ends.
            shared.queue.lock().pipe = Weak::new();
        }
        Ok(feed)
    }

    /// Whether the program stopped reading before the end, or the terminal has cut a line.
    pub fn refused(&self) -> bool {
        self.refused
    }

    /// Whether some input has not been written.
    pub fn has_more(&self) -> bool {
        match &self.source {
            _ if self.ending => false,
            Source::Bytes(bytes, at) => *at < bytes.as_bytes().len(),
            Source::Stream(stream) => !stream.0.queue.lock().bytes.is_empty(),
        }
    }

    /// Makes the writer's calls fail with EPIPE. Does not close the descriptor, because the application has reused
    /// its number.
    pub fn abandon(self) {
        std::mem::forget(self.pipe);
    }

    /// Whether the terminal collects lines, and so cuts long ones.
    fn reads_lines(&self) -> bool {
        tcgetattr(&self.pipe).is_ok_and(|modes| modes.local_modes.contains(LocalModes::ICANON))
    }

    /// Writes as much as the pipe accepts now; never waits.
    pub fn write(&mut self) -> FeedStatus {
        for _ in 0..WRITES_IN_A_ROW {
            match self.source.write_once(self.pipe.as_raw_fd(), self.line.as_mut()) {
                Ok(WriteOutcome::Bytes(last)) => {
                    self.last = last;
                    self.refused |= self.line.as_mut().is_some_and(TypedLine::take_too_long) && self.reads_lines();
                }
                Ok(WriteOutcome::Idle) => return FeedStatus::Idle,
                Ok(WriteOutcome::End) if self.line.is_some() && !self.ending => {
                    // The end-of-input character ends the program's current read(). Only a read() that returns no
                    // bytes is the end of the input. So after an unfinished line, the feed writes the character
                    // twice.
                    let end: &[u8] = if self.last == b'\n' { &[END_OF_INPUT] } else { &[END_OF_INPUT; 2] };
                    self.source = Source::Bytes(end.into(), 0);
                    self.ending = true;
                }
                Ok(WriteOutcome::End) => return FeedStatus::Done,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return FeedStatus::Blocked,
                Err(_) => {
                    // EPIPE, or EIO for a terminal: the program reads no more. This is not an error of the run.
                    self.refused |= !self.ending;
                    return FeedStatus::Done;
                }
            }
        }
        FeedStatus::Again
    }
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests;
