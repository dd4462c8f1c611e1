// SPDX-License-Identifier: MIT OR Apache-2.0
//! One captured run, as a state that events move on: in the caller's thread, or in the engine's.

use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use spawnfd_sys::call;

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
}

impl Stream {
    fn new(pipe: Option<PipeReader>, keep: (usize, usize)) -> Stream {
        Stream { pipe, keep, head: Vec::new(), tail: VecDeque::new(), seen: 0 }
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

    /// Reads what is there, once; at its end lets go of the pipe. `false` when there was nothing.
    fn read(&mut self, buffer: &mut [u8]) -> bool {
        let Some(pipe) = &mut self.pipe else { return false };
        match pipe.read(buffer) {
            Ok(0) => self.pipe = None,
            Ok(length) => self.take(&buffer[..length]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(_) => self.pipe = None,
        }
        true
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

    /// A watched descriptor is ready.
    pub(super) fn ready(&mut self, part: Part, buffer: &mut [u8]) -> Result<()> {
        match part {
            Part::Process => self.reap(),
            Part::Stdin => {
                self.feed();
                Ok(())
            }
            Part::Stdout => {
                self.streams[0].read(buffer);
                Ok(())
            }
            Part::Stderr => {
                self.streams[1].read(buffer);
                Ok(())
            }
        }
    }

    fn reap(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            self.status = Some(status);
            self.input = None;
            self.deadline = Instant::now().checked_add(self.drain);
        }
        Ok(())
    }

    fn feed(&mut self) {
        let Some(feed) = &mut self.input else { return };
        match rustix::io::write(&feed.pipe, &feed.bytes[feed.written..]) {
            Ok(length) => feed.written += length,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            // EPIPE: the program reads no more, which is its right.
            Err(_) => feed.written = feed.bytes.len(),
        }
        if feed.written == feed.bytes.len() {
            self.input = None;
        }
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

    /// Runs to the end in the calling thread.
    pub(super) fn run_here(mut self) -> Result<Output> {
        let mut buffer = [0; 32 << 10];
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
                let timeout = timeout.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
                match poll(&mut fds, timeout.as_ref()) {
                    Ok(_) => {}
                    Err(rustix::io::Errno::INTR) => continue,
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
        let open: Vec<BorrowedFd<'_>> = self.streams.iter().filter_map(|stream| Some(stream.pipe.as_ref()?.as_fd())).collect();
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
