// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lets the consumer of a job's output read the pipes in its own thread. Each piece of output then wakes one thread, not
//! two.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::pipe::fcntl_setpipe_size;
use spawnfd_sys::call;

use super::engine::{EngineOrder, RunHandle};
use super::record::{OutputSource, SharedRecord};
use super::run_state::RunFd;
use super::{Events, Job, Stream};

/// The size of the buffer for one read: the default capacity of a pipe.
const READ_SIZE: usize = 64 << 10;

/// The capacity that the reader gives a pipe once the program has filled it. With the default capacity, the program and
/// the consumer would wait for each other after every 64 KiB.
const GROWN_SIZE: usize = 256 << 10;

/// Reads a job's output in the calling thread, instead of in the engine's thread. [`Job::reader`] creates it.
///
/// The engine still watches the program, and still reads what remains in the pipes after the program's end. So both
/// threads may read, in any order, and no byte is lost or out of order. Dropping the reader gives the reading back to
/// the engine.
///
/// # Examples
/// ```
/// use rustix::event::{PollFd, PollFlags, poll};
/// use spawnfd::job::{Event, EventOptions, Stream};
/// use spawnfd::{Command, Run};
/// let (job, mut events) = Command::new("cat").start_events(&Run::new().writable(100), EventOptions::new())?;
/// let mut reader = job.reader().expect("cat runs, and its output is a pipe");
/// job.write(b"word\n")?;
/// let pipe = reader.fd(Stream::Stdout).expect("a pipe");
/// poll(&mut [PollFd::from_borrowed_fd(pipe, PollFlags::IN)], None).unwrap(); // or an event loop
/// reader.read(Stream::Stdout, &mut events);
/// assert!(matches!(events.try_next(), Some(Event::Chunk { bytes, .. }) if bytes == b"word\n"));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "dropping the reader gives the reading back to the library's thread"]
#[derive(Debug)]
pub struct OutputReader {
    handle: RunHandle,
    /// `None`: the stream is not a pipe, or it has ended.
    sources: [Option<Arc<OutputSource>>; 2],
    /// Device and inode of each pipe.
    identities: [Option<(u64, u64)>; 2],
    record: Arc<SharedRecord>,
    output_limit: u64,
    /// Whether the reader has tried to grow the stream's pipe.
    grown: [bool; 2],
    buffer: Vec<u8>,
}

/// Device and inode of the file that the descriptor refers to now.
fn identity(source: &Arc<OutputSource>) -> Option<(u64, u64)> {
    call::identify(source.as_fd().as_raw_fd()).ok()
}

/// How to continue after [`OutputReader::read`].
///
/// # Examples
/// ```
/// use spawnfd::job::{EventOptions, ReadStatus, Stream};
/// use spawnfd::{Command, Run};
/// let (job, mut events) = Command::new("cat").start_events(&Run::new().writable(100), EventOptions::new())?;
/// let mut reader = job.reader().expect("cat runs, and its output is a pipe");
/// // There is no output yet.
/// assert_eq!(reader.read(Stream::Stdout, &mut events), ReadStatus::Watch);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReadStatus {
    /// Read again when the descriptor is readable.
    Watch,
    /// The event queue is full. Read again after the consumer has taken all events.
    Full,
    /// Stop watching the descriptor: the stream has ended, or the engine alone reads from now on.
    End,
}

impl Job {
    /// Returns a reader of the program's output for the consumer of the job's events. `None`: neither stream is a pipe
    /// that is still open, or the run has a [spill file](crate::Run::spill), whose disk could block the consumer.
    pub fn reader(&self) -> Option<OutputReader> {
        let sources = Stream::ALL.map(|stream| {
            let source = self.sources[stream.index()].upgrade().filter(|source| !source.is_terminal())?;
            self.handle.watch_output(source.as_fd(), RunFd::of(stream), false).then_some(source)
        });
        let (handle, record, output_limit) = (self.handle.clone(), self.record.clone(), self.output_limit);
        let reads_any = sources.iter().any(Option::is_some);
        let identities = sources.each_ref().map(|source| source.as_ref().and_then(identity));
        let reader = || OutputReader {
            handle,
            sources,
            identities,
            record,
            output_limit,
            grown: [false; 2],
            buffer: vec![0; READ_SIZE],
        };
        reads_any.then(reader)
    }
}

impl OutputReader {
    /// The descriptor of a stream that this reader reads. It stays open until the reader is dropped, also after the end
    /// of the stream.
    pub fn fd(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        self.sources[stream.index()].as_ref().map(|source| source.as_fd())
    }

    /// Whether the stream's descriptor still refers to the pipe. The application may have closed it, or replaced it by
    /// another file.
    pub fn is_own(&self, stream: Stream) -> bool {
        let source = self.sources[stream.index()].as_ref();
        source.is_some_and(|source| identity(source) == self.identities[stream.index()])
    }

    /// Reads once, without blocking, and adds the bytes to the job's record and events.
    pub fn read(&mut self, stream: Stream, events: &mut Events) -> ReadStatus {
        let Some(source) = &self.sources[stream.index()] else { return ReadStatus::End };
        if !self.handle.may_use(source.as_fd()) {
            return ReadStatus::End;
        }
        if events.is_full() {
            return ReadStatus::Full;
        }
        let take = |position, bytes: &[u8]| events.take(stream, position, bytes);
        match source.read_recorded(stream, &self.record, &mut self.buffer, take) {
            Some((0, ())) => ReadStatus::End,
            read => {
                if read.is_some_and(|(length, ())| length == READ_SIZE)
                    && !std::mem::replace(&mut self.grown[stream.index()], true)
                {
                    // The kernel refuses a larger pipe to users that have many large pipes.
                    let _ = fcntl_setpipe_size(source.as_fd(), GROWN_SIZE);
                }
                if self.record.lock().seen() > self.output_limit {
                    self.handle.order(EngineOrder::Read);
                }
                ReadStatus::Watch
            }
        }
    }
}

impl Drop for OutputReader {
    fn drop(&mut self) {
        for stream in Stream::ALL {
            if let Some(source) = &self.sources[stream.index()] {
                // The engine gets an event at once if the pipe has output.
                self.handle.watch_output(source.as_fd(), RunFd::of(stream), true);
            }
        }
    }
}
