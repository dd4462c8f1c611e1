// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output on its way from the engine, which must not wait, to a consumer, which may be slow, or never look.
//!
//! The queue holds raw chunks; lines are made of them on the consumer's side, and at its cost.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::lines::{Line, LineEnd, Lines};
use super::record::Stream;
use crate::host::per_process::PerProcess;
use crate::host::thread;
use crate::waker::Waker;

/// What is done with output that the consumer has no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenFull {
    /// Nothing more is read of the program, which in time has to wait with its writing.
    #[default]
    Wait,
    /// The oldest output is dropped, and counted.
    DropOldest,
}

/// How events are made of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventOptions {
    /// Bytes that may wait for the consumer, each chunk's own overhead included. One read more can come on top.
    pub max_bytes: usize,
    /// What happens then.
    pub when_full: WhenFull,
    /// Lines of at most so many bytes (at least 4), instead of chunks as they come.
    pub lines: Option<usize>,
}

impl Default for EventOptions {
    /// Chunks, of which 1 MiB may wait; then the program waits.
    fn default() -> EventOptions {
        EventOptions { max_bytes: 1 << 20, when_full: WhenFull::Wait, lines: None }
    }
}

/// Something of a job's output. A position is how many bytes of both streams arrived before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Bytes of one stream, in their order; a character may be cut: see [`Decoder`](super::Decoder).
    Chunk {
        /// Of which stream.
        stream: Stream,
        /// Where the first byte stands.
        position: u64,
        /// The bytes, at least one.
        bytes: Vec<u8>,
    },
    /// A line of one stream.
    Line {
        /// Of which stream.
        stream: Stream,
        /// Where its first byte stands. For a piece of a line that was split: not beyond that place.
        position: u64,
        /// The line, without what ends it.
        bytes: Vec<u8>,
        /// What ends it.
        end: LineEnd,
    },
    /// So many bytes of both streams were dropped between the last event and the next.
    Lost {
        /// How many.
        bytes: u64,
    },
    /// Nothing more comes. Given again and again.
    End,
}

/// Adjacent chunks become one up to so many bytes.
const COALESCED: usize = 64 << 10;

/// What a chunk costs beside its bytes.
const OVERHEAD: usize = 64;

#[derive(Debug)]
struct Chunk {
    stream: Stream,
    position: u64,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct QueueState {
    chunks: VecDeque<Chunk>,
    /// What waits, overhead included.
    size: usize,
    /// Dropped before the first chunk.
    lost: u64,
    when_full: WhenFull,
    /// The producer has been told to wait.
    full: bool,
    ended: bool,
    /// There is no consumer any more.
    abandoned: bool,
    /// The consumer sleeps on the condition.
    asleep: bool,
    waker: Option<Waker>,
}

impl QueueState {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.lost == 0 && !self.ended
    }

    fn drop_oldest(&mut self, max_bytes: usize) {
        while self.size > max_bytes && self.chunks.len() > 1 {
            let oldest = self.chunks.pop_front().map_or(0, |oldest| oldest.bytes.len());
            self.size -= oldest + OVERHEAD;
            self.lost += oldest as u64;
        }
    }
}

#[derive(Debug)]
struct SharedQueue {
    state: PerProcess<QueueState>,
    filled: Condvar,
    options: EventOptions,
    resume: Waker,
}

impl SharedQueue {
    /// Changes the state from the producer's side; tells the consumer if it was empty and now is not.
    fn fill<T>(&self, change: impl FnOnce(&mut QueueState) -> T) -> T {
        let mut state = self.state.lock();
        let was_empty = state.is_empty();
        let result = change(&mut state);
        if was_empty && !state.is_empty() {
            let waker = state.waker.clone();
            if state.asleep {
                self.filled.notify_one();
            }
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        result
    }
}

/// Makes a queue. `resume` is called when a producer that was told to wait may go on.
pub fn events(options: EventOptions, resume: Waker) -> (Producer, Events) {
    let state = QueueState { when_full: options.when_full, ..QueueState::default() };
    // In a copy of the host nothing more comes.
    let state = PerProcess::here(state, || QueueState { ended: true, ..QueueState::default() });
    let shared = Arc::new(SharedQueue { state, filled: Condvar::new(), options, resume });
    let lines = options.lines.map(|max| [Lines::new(max), Lines::new(max)]);
    (Producer(shared.clone()), Events { shared, lines, ready: VecDeque::new() })
}

/// The engine's end. Dropping it ends the events.
#[derive(Debug)]
pub struct Producer(Arc<SharedQueue>);

impl Producer {
    /// Adds bytes that stand at `position`; never waits. `false`: nothing more should be read until `resume` is called, which
    /// can have happened by the time this returns: [`wants_more`](Producer::wants_more) knows.
    pub fn push(&self, stream: Stream, position: u64, bytes: &[u8]) -> bool {
        let max_bytes = self.0.options.max_bytes;
        self.0.fill(|state| {
            if state.abandoned || bytes.is_empty() {
                return !state.full;
            }
            match state.chunks.back_mut() {
                Some(last)
                    if last.stream == stream
                        && last.position + last.bytes.len() as u64 == position
                        && last.bytes.len() + bytes.len() <= max_bytes.min(COALESCED) =>
                {
                    last.bytes.extend_from_slice(bytes);
                    state.size += bytes.len();
                }
                _ => {
                    state.chunks.push_back(Chunk { stream, position, bytes: bytes.to_vec() });
                    state.size += bytes.len() + OVERHEAD;
                }
            }
            match state.when_full {
                // Stays so until the consumer has made room, and `resume` is called.
                WhenFull::Wait => state.full |= state.size >= max_bytes,
                WhenFull::DropOldest => state.drop_oldest(max_bytes),
            }
            !state.full
        })
    }

    /// Whether more may be read now.
    pub fn wants_more(&self) -> bool {
        !self.0.state.lock().full
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.0.fill(|state| state.ended = true);
    }
}

/// The consumer's end. Dropping it lets the job run on, unseen.
#[derive(Debug)]
pub struct Events {
    shared: Arc<SharedQueue>,
    lines: Option<[Lines; 2]>,
    /// Made of chunks that have been taken out already.
    ready: VecDeque<Event>,
}

impl Events {
    /// The next event, if there is one. Who waits for the waker has to ask until there is none.
    pub fn try_next(&mut self) -> Option<Event> {
        self.next_of(|shared| shared.state.lock())
    }

    /// The next event; waits for it so long at most, and not at all in a run's [callback](crate::Command::run_then).
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

    /// Sets what is called when there is something after there was nothing; called at once if there is something now.
    pub fn set_waker(&mut self, waker: Waker) {
        let mut state = self.shared.state.lock();
        let filled = !state.is_empty() || !self.ready.is_empty();
        let before = state.waker.replace(waker.clone());
        drop(state);
        drop(before);
        if filled {
            waker.wake();
        }
    }

    /// Changes what is done with output that there is no room for: a consumer that stops looking for a while lets go of the
    /// program with [`WhenFull::DropOldest`].
    pub fn set_when_full(&mut self, when_full: WhenFull) {
        let mut state = self.shared.state.lock();
        state.when_full = when_full;
        let resume = when_full == WhenFull::DropOldest && std::mem::take(&mut state.full);
        drop(state);
        if resume {
            self.shared.resume.wake();
        }
    }

    /// Changes whether lines are made of what comes from here on. One that has begun ends here.
    pub fn set_lines(&mut self, lines: Option<usize>) {
        if self.lines.as_ref().map(|[lines, _]| lines.max()) != lines.map(|max| Lines::new(max).max()) {
            self.finish_lines();
            self.lines = lines.map(|max| [Lines::new(max), Lines::new(max)]);
        }
    }

    /// The next event, from a state that `wait` waits for.
    fn next_of(&mut self, wait: impl Fn(&SharedQueue) -> MutexGuard<'_, QueueState>) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let mut state = wait(&self.shared);
            if state.lost > 0 {
                let bytes = std::mem::take(&mut state.lost);
                drop(state);
                self.finish_lines();
                self.ready.push_back(Event::Lost { bytes });
            } else if let Some(chunk) = state.chunks.pop_front() {
                state.size -= chunk.bytes.len() + OVERHEAD;
                let resume = state.full && state.size <= self.shared.options.max_bytes / 2;
                state.full &= !resume;
                drop(state);
                if resume {
                    self.shared.resume.wake();
                }
                self.make(chunk);
            } else if state.ended {
                drop(state);
                self.finish_lines();
                self.ready.push_back(Event::End);
            } else {
                return None;
            }
        }
    }

    fn make(&mut self, Chunk { stream, position, bytes }: Chunk) {
        match &mut self.lines {
            None => self.ready.push_back(Event::Chunk { stream, position, bytes }),
            Some(lines) => {
                let ready = &mut self.ready;
                lines[stream.index()].take(position, &bytes, |line| ready.push_back(Event::line(stream, line)));
            }
        }
    }

    /// What has begun as a line will not be continued.
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
        let resume = std::mem::take(&mut state.full);
        // What a waker holds may have locks of its own, so it is dropped outside of ours.
        let dropped = (state.waker.take(), std::mem::take(&mut state.chunks));
        drop(state);
        drop(dropped);
        if resume {
            self.shared.resume.wake();
        }
    }
}

#[cfg(test)]
mod tests;
