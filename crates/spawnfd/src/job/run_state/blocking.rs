// SPDX-License-Identifier: MIT OR Apache-2.0
//! A blocking run: the calling thread drives it until the result is available.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use spawnfd_sys::{Errno, abi, call};

use super::{RECHECK_INTERVAL, REPLACED, Readiness, RunFd, RunState};
use crate::error::{Error, Result, Stage};
use crate::host::thread::SleepLengths;
use crate::job::{Output, Stop};
use crate::tree::maintain_guard;

/// How long to watch only the process after a stream has hung up. Meanwhile poll(2) would return at
/// once for that stream.
const HANGUP_PAUSE: Duration = Duration::from_millis(20);

impl RunState {
    /// Drives the run in the calling thread until it ends. Calls `interrupted` at the start, after each signal, and at
    /// intervals. If the eventfd `interrupts` is readable, sends SIGINT to the program.
    ///
    /// Also returns the run if it is not over: a command's background jobs still have its pipes.
    pub(crate) fn run_blocking(
        mut self,
        interrupts: Option<BorrowedFd<'_>>,
        mut interrupted: impl FnMut() -> bool,
    ) -> Result<(Output, Option<RunState>)> {
        // The buffer is on the heap, because the caller's stack may be small.
        let mut buffer = vec![0; 32 << 10];
        if interrupted() {
            self.end(Stop::Cancelled, None);
        }
        // The time of the next call of `interrupted`, for signals that do not interrupt a sleep.
        let mut sleeps = SleepLengths::default();
        let mut next_ask = Instant::now() + sleeps.next_length();
        // The files that the run's descriptors refer to, for comparison after each sleep.
        let recorded = self.identities();
        // Set after a stream has hung up. (Another process may open the stream again.) Until this
        // time, poll only the process.
        let mut ignored_until: Option<Instant> = None;
        let mut last_check = self.started;
        while !self.is_done() {
            let now = Instant::now();
            ignored_until.take_if(|until| self.ended.is_some() || *until <= now);
            let is_watched = |fd_kind: RunFd| ignored_until.is_none() || fd_kind == RunFd::Process;
            // poll(2) ignores negative descriptor numbers, which stand for unwatched descriptors.
            let fds = RunFd::ALL.map(|fd_kind| match self.watched(fd_kind).filter(|_| is_watched(fd_kind)) {
                Some((fd, write)) => {
                    let events = if write { abi::POLLOUT } else { abi::POLLIN } as i16;
                    abi::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
                }
                None => abi::pollfd { fd: -1, events: 0, revents: 0 },
            });
            let number = interrupts.map_or(-1, |fd| fd.as_raw_fd());
            let [process, stdin, stdout, stderr] = fds;
            let interrupt = abi::pollfd { fd: number, events: abi::POLLIN as i16, revents: 0 };
            let mut fds = [process, stdin, stdout, stderr, interrupt];
            // A sleeping poll(2) does not notice that the application replaces a descriptor, so wake up at intervals.
            let recheck = next_ask.min(now + RECHECK_INTERVAL);
            let until = self.deadline().into_iter().chain(ignored_until).fold(recheck, Instant::min);
            let left = until.saturating_duration_since(now);
            let timeout = Some((left.as_secs() as i64, i64::from(left.subsec_nanos())));
            let polled = if next_ask <= now { Err(Errno::EINTR) } else { call::poll(&mut fds, timeout) };
            if !self.has_own_descriptors(recorded) {
                self.abandon();
                return Err(Error::new(Stage::Capture, Errno::EBADF, "poll()").saying(REPLACED));
            }
            if last_check.elapsed() >= RECHECK_INTERVAL {
                last_check = Instant::now();
                maintain_guard();
            }
            match polled {
                // While output keeps arriving, the thread does not sleep, and a signal interrupts nothing.
                Ok(ready) if ready > 0 => next_ask = next_ask.min(now + SleepLengths::FIRST),
                Ok(_) => {}
                Err(Errno::EINTR) => {
                    if interrupted() {
                        self.end(Stop::Cancelled, None);
                    }
                    next_ask = Instant::now() + sleeps.next_length();
                    continue;
                }
                Err(errno) => return Err(Error::new(Stage::Capture, errno, "poll()")),
            }
            if let (Some(eventfd), 1..) = (interrupts, fds[4].revents) {
                let _ = rustix::io::read(eventfd, &mut [0; 8]);
                self.running.signal(crate::signal::INT, true);
            }
            for (fd_kind, abi::pollfd { revents, .. }) in RunFd::ALL.into_iter().zip(fds) {
                if revents != 0 {
                    // If `handle_event` leaves data unread, the next poll(2) reports the descriptor again.
                    let has = |event: u32| revents & event as i16 != 0;
                    let readiness = Readiness::of(has(abi::POLLHUP), has(abi::POLLIN));
                    let is_handled = self.handle_event(fd_kind, readiness, &mut buffer)?;
                    if is_handled && readiness != Readiness::Ready && self.watched(fd_kind).is_some() {
                        ignored_until = Some(Instant::now() + HANGUP_PAUSE);
                    }
                }
            }
            self.tick(Instant::now(), &mut buffer)?;
        }
        let output = self.finish();
        Ok((output, (!self.is_over()).then_some(self)))
    }

    /// Device and inode of the watched files.
    fn identities(&self) -> [Option<(u64, u64)>; 4] {
        RunFd::ALL.map(|fd_kind| self.watched(fd_kind).and_then(|(fd, _)| call::identify(fd.as_raw_fd()).ok()))
    }

    /// Whether each descriptor that is still watched refers to the same file.
    fn has_own_descriptors(&self, recorded: [Option<(u64, u64)>; 4]) -> bool {
        let now = self.identities();
        RunFd::ALL
            .into_iter()
            .zip(recorded.into_iter().zip(now))
            .all(|(fd_kind, (recorded, now))| self.watched(fd_kind).is_none() || now.is_some() && now == recorded)
    }
}
