// SPDX-License-Identifier: MIT OR Apache-2.0
//! One captured run, as a state that events move on: in the caller's thread, or in the engine's.

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use spawnfd_sys::{Errno, call};

use super::holders::holders;
use super::{Drain, Output, Run, Started, Stop};
use crate::child::Child;
use crate::error::{Error, Result, Stage, errno};

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Process,
    Stdin,
    Stdout,
    Stderr,
}

impl Part {
    pub(super) const ALL: [Part; 4] = [Part::Process, Part::Stdin, Part::Stdout, Part::Stderr];
}

/// A program under way, its pipes, and what has come out of them.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    /// The child leads a process group whose number is its pid.
    leads_group: bool,
    program: String,
    started: Instant,
    /// When it is killed; later, when reading is given up.
    deadline: Option<Instant>,
    drain: Duration,
    stop: Stop,
    status: Option<ExitStatus>,
    input: Option<Feed>,
    streams: [Stream; 2],
    cut: bool,
}

/// What goes into standard input.
#[derive(Debug)]
struct Feed {
    pipe: PipeWriter,
    bytes: Vec<u8>,
    written: usize,
}

/// What comes out of one stream: its head and its tail.
#[derive(Debug)]
struct Stream {
    pipe: Option<PipeReader>,
    keep: (usize, usize),
    head: Vec<u8>,
    tail: VecDeque<u8>,
    seen: u64,
    /// Our end does not block.
    nonblocking: bool,
}

/// How many buffers are read of one stream before it is the others' turn.
const READS_IN_A_ROW: usize = 4;

impl Stream {
    fn new(pipe: Option<PipeReader>, keep: (usize, usize)) -> Stream {
        Stream { pipe, keep, head: Vec::new(), tail: VecDeque::new(), seen: 0, nonblocking: false }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.seen += bytes.len() as u64;
        let room = self.keep.0 - self.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.keep.1)..];
        let surplus = (self.tail.len() + rest.len()).saturating_sub(self.keep.1);
        self.tail.drain(..surplus.min(self.tail.len()));
        self.tail.extend(rest);
    }

    /// Reads once; lets go of the pipe at its end. How many bytes there were; `None` when nothing could be read.
    fn read(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let length = match self.pipe.as_mut()?.read(buffer) {
            Ok(length) => length,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return Some(buffer.len()),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return None,
            Err(_) => 0,
        };
        match length {
            0 => self.pipe = None,
            _ => self.take(&buffer[..length]),
        }
        (length > 0).then_some(length)
    }

    /// Reads all there is, for who is told of news once. `hung_up`: nobody can write any more, so that no read blocks.
    /// `false` when there may be more and it is others' turn.
    fn read_all(&mut self, buffer: &mut [u8], hung_up: bool) -> bool {
        for _ in 0..READS_IN_A_ROW {
            match self.read(buffer) {
                None => return true,
                // Less than was asked for is all there was; what is written from here on is news.
                Some(length) if length < buffer.len() && !hung_up => return true,
                Some(_) if !hung_up && !self.nonblocking => {
                    // The next read could find the pipe just emptied.
                    let Some(pipe) = &self.pipe else { return true };
                    self.nonblocking = fcntl_setfl(pipe, OFlags::NONBLOCK).is_ok();
                    if !self.nonblocking {
                        return false;
                    }
                }
                Some(_) => {}
            }
        }
        false
    }

    fn finish(self) -> (Vec<u8>, u64) {
        let mut bytes = self.head;
        bytes.extend(self.tail);
        let omitted = self.seen - bytes.len() as u64;
        (bytes, omitted)
    }
}

impl Running {
    pub(super) fn new(
        mut child: Child,
        leads_group: bool,
        program: String,
        started: Instant,
        deadline: Option<Instant>,
        run: &Run,
    ) -> Result<Running> {
        let input = match (child.stdin.take(), &run.input) {
            (Some(pipe), Some(bytes)) => {
                // Only our end: a pipe's ends are two open files.
                fcntl_setfl(&pipe, OFlags::NONBLOCK)
                    .map_err(|e| Error::new(Stage::Capture, errno(e), "fcntl(F_SETFL, O_NONBLOCK)"))?;
                Some(Feed { pipe, bytes: bytes.clone(), written: 0 })
            }
            _ => None,
        };
        let streams = [Stream::new(child.stdout.take(), run.keep), Stream::new(child.stderr.take(), run.keep)];
        Ok(Running {
            child,
            leads_group,
            program,
            started,
            deadline,
            drain: run.drain,
            stop: Stop::Exited,
            status: None,
            input,
            streams,
            cut: false,
        })
    }

    /// What to watch for a part: its descriptor, and whether for writing.
    pub(super) fn watched(&self, part: Part) -> Option<(BorrowedFd<'_>, bool)> {
        match part {
            Part::Process => self.status.is_none().then(|| (self.child.as_fd(), false)),
            Part::Stdin => self.input.as_ref().map(|feed| (feed.pipe.as_fd(), true)),
            Part::Stdout => self.streams[0].pipe.as_ref().map(|pipe| (pipe.as_fd(), false)),
            Part::Stderr => self.streams[1].pipe.as_ref().map(|pipe| (pipe.as_fd(), false)),
        }
    }

    /// When [`tick`](Running::tick) has something to do, if no event comes before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Nothing more is to come.
    pub(super) fn is_over(&self) -> bool {
        self.status.is_some() && (self.cut || self.streams.iter().all(|stream| stream.pipe.is_none()))
    }

    /// A watched descriptor is ready, and will be reported again as long as it is.
    fn ready(&mut self, part: Part, buffer: &mut [u8]) -> Result<()> {
        match part {
            Part::Process => return self.reap(),
            Part::Stdin => {
                self.feed();
            }
            Part::Stdout => {
                self.streams[0].read(buffer);
            }
            Part::Stderr => {
                self.streams[1].read(buffer);
            }
        }
        Ok(())
    }

    /// A watched descriptor has news, which will not be reported again; `hung_up`: its other side is closed. `false` when the
    /// same is to be called once more, after others.
    pub(super) fn news(&mut self, part: Part, hung_up: bool, buffer: &mut [u8]) -> Result<bool> {
        match part {
            Part::Process => self.reap().map(|()| true),
            Part::Stdin => {
                while self.feed() {}
                Ok(true)
            }
            Part::Stdout => Ok(self.streams[0].read_all(buffer, hung_up)),
            Part::Stderr => Ok(self.streams[1].read_all(buffer, hung_up)),
        }
    }

    fn reap(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            self.status = Some(status);
            self.input = None;
            if status.signal() != Some(9) {
                // It came to its own end before it could be killed.
                self.stop = Stop::Exited;
            }
            self.deadline = Instant::now().checked_add(self.drain);
        }
        Ok(())
    }

    /// Writes once. `false` when no more can be written for now, or ever.
    fn feed(&mut self) -> bool {
        let Some(feed) = &mut self.input else { return false };
        match call::write_without_signal(feed.pipe.as_raw_fd(), &feed.bytes[feed.written..]) {
            Ok(length) => feed.written += length,
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return false,
            // EPIPE: the program reads no more, which is its right.
            Err(_) => feed.written = feed.bytes.len(),
        }
        if feed.written == feed.bytes.len() {
            self.input = None;
        }
        self.input.is_some()
    }

    /// The clock has moved: kills a program whose time is over, gives up pipes that outlive it.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.deadline = None;
        if self.status.is_some() {
            self.cut = true;
        } else {
            self.end(Stop::Timeout);
        }
    }

    /// Kills the program and its process group.
    pub(super) fn end(&mut self, stop: Stop) {
        if self.status.is_some() {
            return;
        }
        self.stop = stop;
        self.deadline = None;
        if self.leads_group {
            // The child has not been reaped, so its number still names its group.
            let _ = call::kill(-(self.child.id() as i32), 9);
        }
        let _ = self.child.kill();
    }

    /// Runs to the end in the calling thread; asks at the start, and after each signal, whether to give up.
    pub(super) fn run_here(mut self, mut interrupted: impl FnMut() -> bool) -> Result<Output> {
        let mut buffer = [0; 32 << 10];
        if interrupted() {
            self.end(Stop::Cancelled);
        }
        while !self.is_over() {
            let mut ready = [false; Part::ALL.len()];
            {
                let mut parts = Vec::with_capacity(Part::ALL.len());
                let mut fds = Vec::with_capacity(Part::ALL.len());
                for part in Part::ALL {
                    if let Some((fd, write)) = self.watched(part) {
                        parts.push(part);
                        fds.push(PollFd::from_borrowed_fd(fd, if write { PollFlags::OUT } else { PollFlags::IN }));
                    }
                }
                let timeout = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
                let timeout = timeout
                    .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
                match poll(&mut fds, timeout.as_ref()) {
                    Ok(_) => {}
                    Err(rustix::io::Errno::INTR) => {
                        if interrupted() {
                            self.end(Stop::Cancelled);
                        }
                        continue;
                    }
                    Err(e) => return Err(Error::new(Stage::Capture, errno(e), "poll()")),
                }
                for (part, fd) in parts.iter().zip(&fds) {
                    ready[*part as usize] = !fd.revents().is_empty();
                }
            }
            for part in Part::ALL {
                if ready[part as usize] {
                    self.ready(part, &mut buffer)?;
                }
            }
            self.tick(Instant::now());
        }
        Ok(self.finish())
    }

    /// The result, once it [is over](Running::is_over).
    pub(super) fn finish(self) -> Output {
        let open: Vec<BorrowedFd<'_>> =
            self.streams.iter().filter_map(|stream| Some(stream.pipe.as_ref()?.as_fd())).collect();
        let drain = if open.is_empty() { Drain::Eof } else { Drain::Cut(holders(&open)) };
        let [(stdout, more_out), (stderr, more_err)] = self.streams.map(Stream::finish);
        Output {
            status: self.status.unwrap_or_else(|| ExitStatus::from_raw(0)),
            stop: self.stop,
            stdout,
            stderr,
            omitted_bytes: more_out + more_err,
            drain,
            wall: self.started.elapsed(),
            usage: self.child.usage().unwrap_or_default(),
            started: Started::Clone,
            program: self.program,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_head_and_tail_however_the_bytes_come() {
        let all: Vec<u8> = (0..100).collect();
        for size in [1, 3, 7, 64, 100] {
            for keep in [(0, 0), (10, 0), (0, 10), (10, 10), (60, 60), (100, 0)] {
                let mut stream = Stream::new(None, keep);
                all.chunks(size).for_each(|chunk| stream.take(chunk));
                let (kept, omitted) = stream.finish();
                let tail = (100 - keep.0).min(keep.1);
                let expected = [&all[..keep.0], &all[100 - tail..]].concat();
                assert_eq!((kept.len() as u64 + omitted, kept), (100, expected), "{size} {keep:?}");
            }
        }
    }
}
