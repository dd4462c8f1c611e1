// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of one run: its sources, and the record of what has arrived. The run shares both with handles and readers.

use std::borrow::Cow;
use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};

use super::Pty;
use super::kept::{Captured, KeptOutput, Ring};
use super::order::ArrivalOrder;
use super::spill::{Spill, SpillWriter, Spilled};
use super::stream::Stream;
use super::text::incomplete_len;
use crate::callback::Callback;
use crate::error::{Error, Result, Stage, errno};
use crate::host::per_process::PerProcess;

/// The output that a [`Record`] keeps.
#[derive(Clone, Debug)]
pub struct Keep {
    /// The number of bytes to keep of each stream's beginning and end.
    pub streams: (usize, usize),
    /// The text of the line that replaces omitted bytes; "{omitted}" in it stands for their number. `None`: no line.
    pub marker: Option<String>,
    /// Whether to keep the order in which the kept bytes of both streams arrived.
    pub combined: bool,
    /// The number of bytes of the most recent output of both streams to keep for [`Record::read`]. 0: none.
    pub window: usize,
    /// The file to which the library also writes all output, once a stream has more than is kept in memory.
    pub spill: Option<Spill>,
}

impl Default for Keep {
    /// 64 KB of each stream's beginning and of its end, a line where bytes are omitted, no window, no file.
    fn default() -> Keep {
        let marker = Some("[… {omitted} omitted …]".to_owned());
        Keep { streams: (64_000, 64_000), marker, combined: false, window: 0, spill: None }
    }
}

/// The output of one job so far: the head and tail of each stream, a window on the most recent output, and a spill
/// file.
///
/// Memory use is bounded by the amount to keep, and grows as bytes arrive. A byte's *position* is the number of bytes
/// of both streams that arrived before it.
#[derive(Debug)]
pub struct Record {
    seen: u64,
    streams: [KeptOutput; 2],
    marker: Option<String>,
    combined: bool,
    /// The order of arrival, if the caller asked for it, or if the spill file may need it.
    order: Option<ArrivalOrder>,
    window: Option<Ring>,
    spilling: Option<SpillWriter>,
    closed: bool,
    /// The time of the latest output, or of the start.
    latest: Instant,
    /// The callback that the run calls after each output, and at the end.
    pub(super) callback: Option<Callback>,
    /// The number of threads that wait for output.
    waiting: usize,
}

/// The kept output of a job that is over.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// The order in which the bytes of both streams arrived, if the caller asked for it.
    pub(super) order: Option<ArrivalOrder>,
    /// The spill file. `None` if the caller asked for none, or memory holds all output.
    pub spill: Option<Spilled>,
}

/// Output from a position on, as [`Job::read`](super::Job::read) returns it.
///
/// # Examples
/// ```
/// use spawnfd::{Command, Run};
/// let job = Command::new("printf").arg("one two").start(&Run::new().window(4))?;
/// job.wait()?;
/// let chunk = job.read(0); // the window has the last 4 of the 7 bytes
/// assert_eq!((&*chunk.text(), chunk.lost, chunk.next), (" two", 3, 7));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "the chunk has the output"]
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Chunk {
    /// Bytes of both streams in order of arrival.
    pub bytes: Vec<u8>,
    /// The position to read from next.
    pub next: u64,
    /// The number of bytes, from the requested position on, that the window no longer has.
    pub lost: u64,
}

impl Chunk {
    #[doc(hidden)]
    pub fn new(bytes: Vec<u8>, next: u64, lost: u64) -> Chunk {
        Chunk { bytes, next, lost }
    }

    /// The bytes decoded as UTF-8; invalid bytes become U+FFFD.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}

impl Record {
    /// Creates an empty record, and no file yet.
    pub fn new(keep: &Keep) -> Record {
        Record {
            seen: 0,
            streams: [KeptOutput::new(keep.streams), KeptOutput::new(keep.streams)],
            marker: keep.marker.clone(),
            combined: keep.combined,
            order: (keep.combined || keep.spill.is_some()).then(ArrivalOrder::default),
            window: (keep.window > 0).then(|| Ring::new(keep.window)),
            spilling: keep.spill.as_ref().map(SpillWriter::new),
            closed: false,
            latest: Instant::now(),
            callback: None,
            waiting: 0,
        }
    }

    /// Adds output and returns its position. If there is a spill file, writes to it before it returns.
    /// [`close`](Record::close) reports failures to write the file.
    pub fn append(&mut self, stream: Stream, bytes: &[u8]) -> u64 {
        let position = self.seen;
        self.seen += bytes.len() as u64;
        self.latest = Instant::now();
        if let Some(spilling) = &mut self.spilling {
            let kept = self.streams[stream.index()].would_keep_all(bytes.len());
            spilling.append(bytes, kept, &self.streams, self.order.as_ref());
            if !kept && !self.combined {
                self.order = None;
            }
        }
        self.streams[stream.index()].append(bytes);
        if let Some(order) = &mut self.order {
            order.append(stream, bytes.len() as u64);
            if order.is_long() {
                order.prune(self.streams.each_ref().map(KeptOutput::omitted));
            }
        }
        if let Some(window) = &mut self.window {
            window.push(bytes);
        }
        position
    }

    /// The time of the latest output, or of the start if there is none yet.
    pub fn latest(&self) -> Instant {
        self.latest
    }

    /// The number of bytes so far.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// The output in the window from position `since` on. A reader that passes the `next` of the previous chunk as
    /// `since` gets every byte once, except lost ones.
    ///
    /// Until the record is closed, the call leaves an incomplete character at the end for a later call.
    pub fn read(&self, since: u64) -> Chunk {
        self.read_up_to(since, usize::MAX)
    }

    /// The same as [`read`](Record::read), for at most `max` bytes. These may end within a character.
    pub fn read_up_to(&self, since: u64, max: usize) -> Chunk {
        let window_length = self.window.as_ref().map_or(0, |window| window.len() as u64);
        let since = since.min(self.seen);
        let start = since.max(self.seen - window_length);
        let mut bytes = match &self.window {
            Some(window) => window.copy((start - (self.seen - window_length)) as usize, max),
            None => Vec::new(),
        };
        let is_whole = start + bytes.len() as u64 == self.seen;
        if !self.closed && is_whole {
            bytes.truncate(bytes.len() - incomplete_len(&bytes));
        }
        Chunk { next: start + bytes.len() as u64, bytes, lost: start - since }
    }

    /// Whether the record has been closed.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Ends the record and returns the kept output; [`read`](Record::read) still works. Call this function once,
    /// after the last byte.
    pub fn close(&mut self) -> Recorded {
        self.closed = true;
        let [stdout, stderr] = self.streams.each_mut().map(|stream| stream.finish(self.marker.as_deref()));
        let order = self.order.take().filter(|_| self.combined).map(|mut order| {
            order.prune([stdout.cut.omitted_range(), stderr.cut.omitted_range()]);
            order
        });
        Recorded { stdout, stderr, order, spill: self.spilling.take().and_then(SpillWriter::finish) }
    }
}

/// The output so far. The run writes it; handles of the run read it.
#[derive(Debug)]
pub(super) struct SharedRecord {
    record: PerProcess<Record>,
    /// Notified when output arrives, if a thread waits.
    arrived: Condvar,
}

impl SharedRecord {
    /// An empty record for the output of a run.
    pub(super) fn new(keep: &Keep) -> SharedRecord {
        let record = PerProcess::for_this_process(Record::new(keep), || Record::new(&Keep::default()));
        SharedRecord { record, arrived: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock()
    }

    pub(super) fn belongs_to_this_process(&self) -> bool {
        self.record.belongs_to_this_process()
    }

    /// Closes the record of a run that ends without a result.
    pub(super) fn close_without_result(&self) {
        let mut record = self.lock();
        if !record.is_closed() {
            record.close();
            self.announce(record);
        }
    }

    /// Unlocks the record, and then wakes the threads and the callback that wait for output.
    pub(super) fn announce(&self, record: MutexGuard<'_, Record>) {
        let callback = record.callback.clone();
        if record.waiting > 0 {
            self.arrived.notify_all();
        }
        // The callback may call functions that lock the record.
        drop(record);
        if let Some(callback) = callback {
            callback.call();
        }
    }

    /// Waits until more than `seen` bytes have arrived or the record is closed, at most until `deadline`.
    pub(super) fn wait(&self, seen: u64, deadline: Option<Instant>) {
        let mut record = self.lock();
        record.waiting += 1;
        let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let is_old = |record: &mut Record| record.seen() <= seen && !record.is_closed();
        let waited = self.arrived.wait_timeout_while(record, left, is_old);
        waited.unwrap_or_else(PoisonError::into_inner).0.waiting -= 1;
    }
}

/// A source of output. Reads do not block.
#[derive(Debug)]
pub(super) enum OutputSource {
    Pipe(PipeReader),
    Terminal(Pty),
}

impl OutputSource {
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            OutputSource::Pipe(pipe) => pipe.as_fd(),
            OutputSource::Terminal(terminal) => terminal.as_fd(),
        }
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, OutputSource::Terminal(_))
    }

    /// Reads once and returns the number of bytes. `Some(0)`: the end of the output. `None`: nothing can be read for
    /// now.
    fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        let read = match self {
            OutputSource::Pipe(pipe) => (&*pipe).read(buffer),
            OutputSource::Terminal(terminal) => (&*terminal).read(buffer),
        };
        match read {
            Ok(length) => Some(length),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => None,
            Err(_) => Some(0),
        }
    }

    /// Reads once, records the bytes, and passes them with their position to `deliver`. Returns the number of bytes and
    /// what `deliver` returned. `Some` with 0 bytes: the end of the output. `None`: nothing can be read for now.
    ///
    /// The engine and the job's consumer may both read one pipe. The record's lock, which this function holds from the
    /// read until `deliver` returns, keeps the bytes in order.
    pub(super) fn read_recorded<T: Default>(
        &self,
        stream: Stream,
        shared: &SharedRecord,
        buffer: &mut [u8],
        deliver: impl FnOnce(u64, &[u8]) -> T,
    ) -> Option<(usize, T)> {
        let mut record = shared.lock();
        let length = self.read(buffer)?;
        if length == 0 {
            return Some((0, T::default()));
        }
        let position = record.append(stream, &buffer[..length]);
        let delivered = deliver(position, &buffer[..length]);
        shared.announce(record);
        Some((length, delivered))
    }

    /// Makes reads of a pipe non-blocking. A terminal is non-blocking from the start.
    ///
    /// # Errors
    /// EBADF: the descriptor is closed. No other error is possible.
    pub(super) fn stop_blocking(&self) -> Result<()> {
        let OutputSource::Pipe(pipe) = self else { return Ok(()) };
        fcntl_setfl(pipe, OFlags::NONBLOCK)
            .map_err(|error| Error::new(Stage::Capture, errno(error), "fcntl(F_SETFL, O_NONBLOCK)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::time::{ClockId, clock_gettime};

    fn windowed(window: usize) -> Record {
        Record::new(&Keep { window, ..Keep::default() })
    }

    #[test]
    fn short_output_takes_little_memory() {
        let mut record = Record::new(&Keep::default());
        assert_eq!(record.append(Stream::Stdout, b"out"), 0);
        assert_eq!(record.append(Stream::Stderr, b"err"), 3);
        assert_eq!(record.append(Stream::Stdout, b"!"), 6);
        let Recorded { stdout, stderr, spill, .. } = record.close();
        assert_eq!((&stdout.bytes[..], &stderr.bytes[..], spill.is_none()), (&b"out!"[..], &b"err"[..], true));
        assert!(stdout.bytes.capacity() <= 8, "{}", stdout.bytes.capacity());
        assert_eq!((record.seen(), record.read(0)), (7, Chunk { next: 7, lost: 7, ..Chunk::default() }));
    }

    #[test]
    fn a_cursor_reports_lost_bytes() {
        let mut record = windowed(4);
        assert_eq!(record.read(0), Chunk::default());
        assert_eq!(record.read(9), Chunk::default());
        record.append(Stream::Stdout, b"abc");
        assert_eq!(record.read(0), Chunk { bytes: b"abc".into(), next: 3, lost: 0 });
        record.append(Stream::Stderr, b"def");
        assert_eq!(record.read(3), Chunk { bytes: b"def".into(), next: 6, lost: 0 });
        assert_eq!(record.read(0), Chunk { bytes: b"cdef".into(), next: 6, lost: 2 });
        record.append(Stream::Stdout, b"0123456789");
        assert_eq!(record.read(6), Chunk { bytes: b"6789".into(), next: 16, lost: 6 });
        record.close();
        assert_eq!(record.read(15), Chunk { bytes: b"9".into(), next: 16, lost: 0 });
    }

    #[test]
    fn a_bounded_read_continues_where_the_last_one_ended() {
        let mut record = windowed(6);
        for bytes in [&b"0123"[..], b"456", "7é".as_bytes()] {
            record.append(Stream::Stdout, bytes);
        }
        record.append(Stream::Stdout, &"é".as_bytes()[..1]);
        let (mut next, mut chunks) = (0, Vec::new());
        while next < 10 {
            let chunk = record.read_up_to(next, 2);
            next = chunk.next;
            chunks.push((chunk.bytes, chunk.lost));
        }
        let expected = [(&b"56"[..], 5), (&b"7\xc3"[..], 0), (&b"\xa9"[..], 0)];
        assert_eq!(chunks, expected.map(|(bytes, lost)| (bytes.to_vec(), lost)));
        assert_eq!(record.read_up_to(next, 2), Chunk { next, ..Chunk::default() });
        assert_eq!(record.read_up_to(7, 0), Chunk { next: 7, ..Chunk::default() });
    }

    #[test]
    fn a_cursor_does_not_split_characters() {
        let mut record = windowed(100);
        let crab = "🦀".as_bytes();
        record.append(Stream::Stdout, b"a");
        record.append(Stream::Stdout, &crab[..3]);
        let first = record.read(0);
        assert_eq!((&first.text()[..], first.next), ("a", 1));
        record.append(Stream::Stdout, &crab[3..]);
        assert_eq!(record.read(first.next).text(), "🦀");
        record.append(Stream::Stdout, &crab[..2]);
        assert_eq!(record.read(5).next, 5);
        record.close();
        assert_eq!((record.read(5).text().into_owned(), record.read(5).next), ("\u{FFFD}".into(), 7));
    }

    proptest! {
        #[test]
        fn a_cursor_gets_every_byte_once(
            chunks in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..20), any::<bool>()), 0..30),
            window in 1..64_usize,
        ) {
            let (mut record, mut all, mut next) = (windowed(window), Vec::new(), 0);
            let check = |record: &Record, all: &[u8], next: u64| {
                let chunk = record.read(next);
                let start = (next + chunk.lost) as usize;
                assert_eq!(chunk.next as usize, start + chunk.bytes.len());
                assert_eq!(chunk.bytes, &all[start..chunk.next as usize]);
                assert!(chunk.next as usize + 3 >= all.len());
                assert!(chunk.lost == 0 || all.len() - start == window);
                chunk.next
            };
            for (error, bytes, read) in chunks {
                let stream = if error { Stream::Stderr } else { Stream::Stdout };
                prop_assert_eq!(record.append(stream, &bytes), all.len() as u64);
                all.extend(bytes);
                if read {
                    next = check(&record, &all, next);
                }
            }
            record.close();
            prop_assert_eq!(check(&record, &all, next), all.len() as u64);
        }
    }

    #[test]
    fn the_order_of_arrival_takes_bounded_memory() {
        let mut record = Record::new(&Keep { streams: (10, 10), combined: true, ..Keep::default() });
        for at in 0..100_000 {
            record.append(Stream::ALL[at % 2], b"x");
            let runs = record.order.as_ref().map_or(0, |order| order.runs().count());
            assert!(runs <= 200, "{runs} runs after {at} bytes");
        }
        // One run for each kept byte, and one for the omitted bytes of each stream.
        assert_eq!(record.close().order.map(|order| order.runs().count()), Some(42));
    }

    #[test]
    fn the_order_of_arrival_is_not_kept_unless_asked_for() {
        let mut record = Record::new(&Keep::default());
        record.append(Stream::Stdout, b"x");
        assert_eq!((record.order.is_none(), record.close().order.is_none()), (true, true));
        let dir = spawnfd_tests::scratch();
        let spill = Some(Spill::new(1 << 20).dir(dir.path()));
        let mut record = Record::new(&Keep { streams: (1, 1), spill, ..Keep::default() });
        record.append(Stream::Stdout, b"x");
        assert!(record.order.is_some(), "the spill file may need it");
        record.append(Stream::Stdout, b"yz");
        assert!(record.order.is_none());
        assert!(record.close().order.is_none());
    }

    #[test]
    fn long_output_costs_one_copy() {
        spawnfd_tests::deadline(Duration::from_secs(300), || {
            let mut record = Record::new(&Keep { window: 1 << 20, ..Keep::default() });
            let (buffer, rounds) = (vec![b'x'; 64 << 10], 4096);
            // Measures the CPU time of this thread, which does not depend on the load of the machine.
            let cpu = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
            let before = cpu();
            for _ in 0..rounds {
                record.append(Stream::Stdout, &buffer);
            }
            // An optimised build appends these 256 MiB at about 10 GB/s. The limit of 10 s only catches errors of
            // orders of magnitude.
            let taken = cpu() - before;
            assert!(taken < Duration::from_secs(10), "{taken:?}");
            let Recorded { stdout, .. } = record.close();
            assert_eq!(stdout.cut.omitted, (256 << 20) - 128_000);
            assert_eq!(record.read(0).bytes.len(), 1 << 20);
        });
    }
}
