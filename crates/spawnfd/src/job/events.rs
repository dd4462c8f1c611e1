// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue of output from the engine, which must not wait, to a consumer, which may be slow or never read.
//!
//! The queue holds raw chunks. The consumer's thread splits them into lines.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::lines::{Line, LineEnd, Lines};
use super::stream::Stream;
use crate::callback::Callback;
use crate::host::per_process::PerProcess;
use crate::host::thread;

/// The treatment of new output when the event queue is full.
///
/// # Examples
/// ```
/// use spawnfd::job::{Event, EventOptions, WhenFull};
/// use spawnfd::{Command, Run};
/// // A queue that drops its oldest output never blocks the program.
/// let options = EventOptions::new().max_bytes(1000).when_full(WhenFull::DropOldest);
/// let (job, mut events) = Command::new("seq").arg("100000").start_events(&Run::new(), options)?;
/// assert!(job.wait()?.ok());
/// assert!(matches!(events.try_next(), Some(Event::Lost { .. })));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum WhenFull {
    /// The library stops reading, and the program blocks once its pipe is full.
    #[default]
    Wait,
    /// The queue drops its oldest output and counts the bytes.
    DropOldest,
}

/// The end of a job's events.
///
/// # Examples
#[cfg_attr(feature = "tree", doc = "```")]
#[cfg_attr(not(feature = "tree"), doc = "```no_run")]
/// use spawnfd::job::{Event, EventOptions, Until};
/// use spawnfd::session::{Session, SessionOptions};
/// use spawnfd::{Command, Run};
/// use std::time::Duration;
/// let session = Session::open(Command::new("bash"), SessionOptions::new())?;
/// let (job, mut events) = session.start_events("sleep 0.2 & echo started", &Run::new(), EventOptions::new())?;
/// job.wait()?;
/// while events.next_timeout(Duration::from_secs(10)) != Some(Event::End) {}
/// // The background job still has the command's streams.
/// events.set_until(Until::Closed);
/// while events.next_timeout(Duration::from_secs(10)) != Some(Event::End) {}
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Until {
    /// The run has its result. Surviving processes may still write output.
    Result,
    /// All processes have closed the streams, and the run has its result.
    Closed,
}

settings! {
    /// Options of the event queue.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::job::{Event, EventOptions, LineEnd};
    /// use spawnfd::{Command, Run};
    /// // Lines of at most 4 bytes, from a queue of 64 KiB.
    /// let options = EventOptions::new().lines(4).max_bytes(64 << 10);
    /// let (job, mut events) = Command::new("echo").arg("abcdef").start_events(&Run::new(), options)?;
    /// job.wait()?;
    /// let Some(Event::Line { bytes, end, .. }) = events.try_next() else { panic!("no line") };
    /// assert_eq!((&bytes[..], end), (&b"abcd"[..], LineEnd::Split));
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[must_use = "the options have no effect until a job uses them"]
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct EventOptions;

    /// Sets the capacity of the queue in bytes, including 64 bytes of overhead for each chunk. The queue exceeds it by
    /// at most one read.
    max_bytes: usize = 1 << 20;
    /// Sets how to treat output when the queue is full.
    when_full: WhenFull = WhenFull::Wait;
    /// Delivers lines of at most this many bytes (at least 4). `None`: the events are chunks, not lines.
    lines: Option<usize> = None, (lines: impl Into<Option<usize>>) => lines.into();
    /// Sets when the events end. `None`: a session's command ends them with its result, and any other run with the end
    /// of its streams.
    until: Option<Until> = None, (until: impl Into<Option<Until>>) => until.into();
}

impl EventOptions {
    /// Returns the default options: chunks, with a capacity of 1 MiB. When the queue is full, the library stops reading
    /// and the program blocks.
    pub fn new() -> EventOptions {
        EventOptions::default()
    }
}

/// An event of a job's output. A position is the number of bytes of both streams that arrived before the byte.
///
/// # Examples
/// ```
/// use spawnfd::job::{Event, EventOptions, Stream};
/// use spawnfd::{Command, Run};
/// let (job, mut events) = Command::new("echo").arg("hello").start_events(&Run::new(), EventOptions::new())?;
/// job.wait()?;
/// let Some(Event::Chunk { stream, position, bytes, .. }) = events.try_next() else { panic!("no output") };
/// assert_eq!((stream, position, &*bytes), (Stream::Stdout, 0, &b"hello\n"[..]));
/// assert_eq!(events.try_next(), Some(Event::End));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Bytes of one stream, in order. A chunk may split a character: see [`Decoder`](super::Decoder).
    #[non_exhaustive]
    Chunk {
        /// The stream.
        stream: Stream,
        /// The position of the first byte.
        position: u64,
        /// The bytes, at least one.
        bytes: Vec<u8>,
    },
    /// A line of one stream.
    #[non_exhaustive]
    Line {
        /// The stream.
        stream: Stream,
        /// The position of the line's first byte. For a piece of a split line, it can be a position
        /// before that byte.
        position: u64,
        /// The line, without its terminator.
        bytes: Vec<u8>,
        /// How the line ends.
        end: LineEnd,
    },
    /// The queue dropped bytes of both streams between the previous event and the next.
    #[non_exhaustive]
    Lost {
        /// The number of bytes.
        bytes: u64,
    },
    /// The end of the output. After it, every call returns this event again, unless
    /// [`set_until`](Events::set_until) changes the end.
    End,
}

/// The queue merges adjacent chunks of one stream into chunks of at most this many bytes.
const COALESCED: usize = 64 << 10;

/// The number of bytes that a chunk's overhead counts towards the capacity.
const OVERHEAD: usize = 64;

#[derive(Debug)]
struct QueuedChunk {
    stream: Stream,
    position: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct QueueState {
    chunks: VecDeque<QueuedChunk>,
    /// The bytes in the queue, including overhead.
    size: usize,
    /// The number of bytes dropped from the queue before its first chunk.
    lost: u64,
    /// The number of chunks that were in the queue when the run got its result. `None`: the run has no result.
    before_result: Option<usize>,
    when_full: WhenFull,
    /// The queue is full: the producer must not push until the queue calls `resume`.
    paused: bool,
    ended: bool,
    /// The events end with the run's result.
    ends_with_result: bool,
    /// The consumer has dropped its end.
    abandoned: bool,
    /// The consumer sleeps on the condition variable `filled`.
    asleep: bool,
    callback: Option<Callback>,
}

impl QueueState {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.lost == 0 && !self.ended && !(self.ends_with_result && self.is_past_result())
    }

    /// Whether the consumer has taken all output up to the result.
    fn is_past_result(&self) -> bool {
        self.before_result == Some(0)
    }

    fn pop(&mut self) -> Option<QueuedChunk> {
        let oldest = self.chunks.pop_front()?;
        self.size -= oldest.bytes.len() + OVERHEAD;
        self.before_result = self.before_result.map(|chunks| chunks.saturating_sub(1));
        Some(oldest)
    }

    fn drop_oldest(&mut self, max_bytes: usize) {
        while self.size > max_bytes && self.chunks.len() > 1 {
            let oldest = self.pop().map_or(0, |oldest| oldest.bytes.len());
            self.lost += oldest as u64;
        }
    }
}

#[derive(Debug)]
struct SharedQueue {
    state: PerProcess<QueueState>,
    filled: Condvar,
    options: EventOptions,
    resume: Callback,
}

impl SharedQueue {
    /// Changes the state from the producer's side. If the queue was empty and no longer is, wakes a consumer that sleeps,
    /// and returns the consumer's callback.
    fn fill(&self, change: impl FnOnce(&mut QueueState)) -> Option<Callback> {
        let mut state = self.state.lock();
        let was_empty = state.is_empty();
        change(&mut state);
        if !was_empty || state.is_empty() {
            return None;
        }
        if state.asleep {
            self.filled.notify_one();
        }
        state.callback.clone()
    }

    /// Adds bytes to the queue; see [`Producer::push`].
    fn push(&self, stream: Stream, position: u64, bytes: &[u8]) -> Option<Callback> {
        let max_bytes = self.options.max_bytes;
        self.fill(|state| {
            if state.abandoned || bytes.is_empty() {
                return;
            }
            let at_result = state.before_result == Some(state.chunks.len());
            match state.chunks.back_mut() {
                Some(last)
                    if !at_result
                        && last.stream == stream
                        && last.position + last.bytes.len() as u64 == position
                        && last.bytes.len() + bytes.len() <= max_bytes.min(COALESCED) =>
                {
                    last.bytes.extend_from_slice(bytes);
                    state.size += bytes.len();
                }
                _ => {
                    state.chunks.push_back(QueuedChunk { stream, position, bytes: bytes.to_vec() });
                    state.size += bytes.len() + OVERHEAD;
                }
            }
            match state.when_full {
                // The flag `paused` stays set until the consumer has freed space and the queue
                // calls `resume`.
                WhenFull::Wait => state.paused |= state.size >= max_bytes,
                WhenFull::DropOldest => state.drop_oldest(max_bytes),
            }
        })
    }
}

/// Creates a queue. The queue calls `resume` when a paused producer may push again.
pub fn events(options: EventOptions, resume: Callback) -> (Producer, Events) {
    let ends_with_result = options.until == Some(Until::Result);
    let state = QueueState { when_full: options.when_full, ends_with_result, ..QueueState::default() };
    // In a forked copy of the host no producer adds events, so the copy's queue has ended.
    let state = PerProcess::for_this_process(state, || QueueState { ended: true, ..QueueState::default() });
    let shared = Arc::new(SharedQueue { state, filled: Condvar::new(), options, resume });
    let lines = options.lines.map(|max| [Lines::new(max), Lines::new(max)]);
    (Producer(shared.clone()), Events { shared, lines, ready: VecDeque::new(), at_end: false })
}

/// The engine's end of the event queue. Dropping it ends the events.
#[derive(Debug)]
pub struct Producer(Arc<SharedQueue>);

impl Producer {
    /// Adds bytes at `position`; never waits. If the consumer must be woken, returns its callback, which the caller calls
    /// after it has released its locks.
    ///
    /// After each call, ask [`wants_more`](Producer::wants_more) whether the queue is full.
    #[must_use = "the consumer waits until its callback is called"]
    pub fn push(&self, stream: Stream, position: u64, bytes: &[u8]) -> Option<Callback> {
        self.0.push(stream, position, bytes)
    }

    /// Marks the end of the output that the run's result has. Returns the consumer's callback, as
    /// [`push`](Producer::push) does.
    #[must_use = "the consumer waits until its callback is called"]
    pub(super) fn mark_result(&self) -> Option<Callback> {
        self.0.fill(|state| state.before_result = Some(state.chunks.len()))
    }

    /// Whether the producer may read more now. If not, the producer stops reading until the queue calls `resume`.
    pub fn wants_more(&self) -> bool {
        !self.0.state.lock().paused
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if let Some(consumer) = self.0.fill(|state| state.ended = true) {
            consumer.call();
        }
    }
}

/// The consumer's end of the event queue. Dropping it does not end the job; the producer then queues no more output.
///
/// # Examples
/// ```
/// use spawnfd::job::{Event, EventOptions};
/// use spawnfd::{Command, Run};
/// use std::time::Duration;
/// let options = EventOptions::new().lines(1000);
/// let (job, mut events) = Command::new("seq").arg("3").start_events(&Run::new(), options)?;
/// let mut lines = Vec::new();
/// while let Some(event) = events.next_timeout(Duration::from_secs(10)) {
///     match event {
///         Event::Line { bytes, .. } => lines.push(String::from_utf8_lossy(&bytes).into_owned()),
///         Event::End => break,
///         _ => {}
///     }
/// }
/// assert_eq!(lines, ["1", "2", "3"]);
/// assert!(job.wait()?.ok());
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "without a reader, the program may wait for space in the queue"]
#[derive(Debug)]
pub struct Events {
    shared: Arc<SharedQueue>,
    lines: Option<[Lines; 2]>,
    /// Events that were made from chunks already taken from the queue.
    ready: VecDeque<Event>,
    /// The events have ended with the run's result.
    at_end: bool,
}

impl Events {
    /// Returns the next event, if there is one. After a wake-up, call this until it returns `None`.
    pub fn try_next(&mut self) -> Option<Event> {
        self.next_of(|shared| shared.state.lock())
    }

    /// Whether [`try_next`](Events::try_next) would return an event. `true` also if it needs more bytes to complete a
    /// line.
    pub fn has_next(&self) -> bool {
        !self.ready.is_empty() || !self.shared.state.lock().is_empty()
    }

    /// Returns the next event. Waits for at most `timeout`; in a run's
    /// [callback](crate::Command::run_then) it does not wait.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Event> {
        let timeout = if thread::is_engine() { Duration::ZERO } else { timeout };
        let deadline = Instant::now().checked_add(timeout);
        self.next_of(|shared| {
            let mut state = shared.state.lock();
            state.asleep = true;
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            let waited = shared.filled.wait_timeout_while(state, left, |state| state.is_empty());
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.asleep = false;
            state
        })
    }

    /// Calls `filled` each time an event arrives in the empty queue. If there are events now, calls `filled` at once.
    /// This call replaces the function of an earlier call. The library's thread calls `filled`, so `filled` must not
    /// block.
    pub fn on_event(&mut self, filled: impl Fn() + Send + Sync + 'static) {
        self.set_callback(Callback::new(filled));
    }

    pub(super) fn set_callback(&mut self, callback: Callback) {
        let mut state = self.shared.state.lock();
        let filled = !state.is_empty() || !self.ready.is_empty();
        let before = state.callback.replace(callback.clone());
        drop(state);
        drop(before);
        if filled {
            callback.call();
        }
    }

    /// Changes how to treat output when the queue is full. A consumer that stops reading for a while sets
    /// [`WhenFull::DropOldest`] so that the program does not block.
    pub fn set_when_full(&mut self, when_full: WhenFull) {
        let mut state = self.shared.state.lock();
        state.when_full = when_full;
        let resume = when_full == WhenFull::DropOldest && std::mem::take(&mut state.paused);
        drop(state);
        if resume {
            self.shared.resume.call();
        }
    }

    /// Changes when the events end. After the end with the result, [`Until::Closed`] continues with later output.
    pub fn set_until(&mut self, until: Until) {
        self.at_end = false;
        self.shared.state.lock().ends_with_result = until == Until::Result;
    }

    /// Whether [`flush_lines`](Events::flush_lines) would make an event.
    pub fn has_open_line(&self) -> bool {
        self.lines.iter().flatten().any(|lines| lines.open_len() > 0)
    }

    /// Makes events of incomplete lines, such as a prompt, with the end [`LineEnd::Split`]. Call this when the program
    /// has written nothing for a while.
    pub fn flush_lines(&mut self) {
        let ready = &mut self.ready;
        for (lines, stream) in self.lines.iter_mut().flatten().zip(Stream::ALL) {
            lines.flush(|line| ready.push_back(Event::line(stream, line)));
        }
    }

    /// Switches between lines and chunks for later output. The next event then has the incomplete line, if there is
    /// one.
    pub fn set_lines(&mut self, lines: Option<usize>) {
        if self.lines.as_ref().map(|[lines, _]| lines.max()) != lines.map(|max| Lines::new(max).max()) {
            self.finish_lines();
            self.lines = lines.map(|max| [Lines::new(max), Lines::new(max)]);
        }
    }

    /// Returns the next event. `wait` locks the state, and may wait for events first.
    fn next_of(&mut self, wait: impl Fn(&SharedQueue) -> MutexGuard<'_, QueueState>) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.at_end {
                return Some(Event::End);
            }
            let mut state = wait(&self.shared);
            if state.ends_with_result && state.is_past_result() && state.lost == 0 {
                drop(state);
                self.finish_lines();
                self.at_end = true;
            } else if state.lost > 0 {
                let bytes = std::mem::take(&mut state.lost);
                drop(state);
                self.finish_lines();
                self.ready.push_back(Event::Lost { bytes });
            } else if let Some(chunk) = state.pop() {
                let resume = state.paused && state.size <= self.shared.options.max_bytes / 2;
                state.paused &= !resume;
                drop(state);
                if resume {
                    self.shared.resume.call();
                }
                self.emit(chunk);
            } else if state.ended {
                drop(state);
                self.finish_lines();
                self.ready.push_back(Event::End);
            } else {
                return None;
            }
        }
    }

    /// Takes bytes that the consumer itself has read, and that follow the bytes in the queue. They go to the queue if it
    /// has earlier bytes, so that memory stays bounded.
    pub(super) fn take(&mut self, stream: Stream, position: u64, bytes: &[u8]) {
        if self.ready.is_empty() && self.shared.state.lock().is_empty() {
            self.emit(QueuedChunk { stream, position, bytes: bytes.to_vec() });
        } else {
            // The consumer makes this call, so it needs no wakeup.
            let _ = self.shared.push(stream, position, bytes);
        }
    }

    /// Whether the queue is so full that its consumer reads no more for now.
    pub(super) fn is_full(&self) -> bool {
        self.shared.state.lock().paused
    }

    fn emit(&mut self, QueuedChunk { stream, position, bytes }: QueuedChunk) {
        match &mut self.lines {
            None => self.ready.push_back(Event::Chunk { stream, position, bytes }),
            Some(lines) => {
                let ready = &mut self.ready;
                lines[stream.index()].take(position, &bytes, |line| ready.push_back(Event::line(stream, line)));
            }
        }
    }

    /// Ends incomplete lines.
    fn finish_lines(&mut self) {
        let ready = &mut self.ready;
        for (lines, stream) in self.lines.iter_mut().flatten().zip(Stream::ALL) {
            lines.finish(|line| ready.push_back(Event::line(stream, line)));
        }
    }
}

impl Event {
    fn line(stream: Stream, Line { position, bytes, end }: Line<'_>) -> Event {
        Event::Line { stream, position, bytes: bytes.to_vec(), end }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.abandoned = true;
        let resume = std::mem::take(&mut state.paused);
        // Dropping a callback may take locks of the callback's owner. So the callback is dropped only after the lock of
        // `state` is released.
        let dropped = (state.callback.take(), std::mem::take(&mut state.chunks));
        drop(state);
        drop(dropped);
        if resume {
            self.shared.resume.call();
        }
    }
}

#[cfg(test)]
mod tests;
