// SPDX-License-Identifier: MIT OR Apache-2.0
//! A blocking run: the calling thread moves it on until the result is there.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use spawnfd_sys::{Errno, abi, call};

use super::{Part, RunState};
use crate::error::{Error, Result, Stage};
use crate::job::engine::UNSEEN;
use crate::job::{Output, Stop};

/// How long a terminal without a program is left out: poll(2) would never sleep.
const CLOSED: Duration = Duration::from_millis(20);

/// After how much work `interrupted` is asked: a signal that arrives meanwhile interrupts no sleep.
const UNASKED: Duration = Duration::from_millis(10);

impl RunState {
    /// Moves the run on in the calling thread until it ends. Calls `interrupted` at the start, after each signal, and
    /// after some work.
    pub(in crate::job) fn run_here(mut self, mut interrupted: impl FnMut() -> bool) -> Result<Output> {
        // On the heap: the caller's stack may be small.
        let mut buffer = vec![0; 32 << 10];
        if interrupted() {
            self.end(Stop::Cancelled, None);
        }
        // The start of the work since the last call. With enough to read there is no sleep that a signal could
        // interrupt.
        let mut at_work: Option<Instant> = None;
        // The files that the run's descriptors refer to, for comparison after each sleep.
        let known = self.identities();
        // A stream that has hung up, and may be opened again, is left out until then.
        let mut passed_over: Option<Instant> = None;
        while !self.is_done() {
            passed_over.take_if(|until| self.status.is_some() || *until <= Instant::now());
            let is_watched = |part: Part| passed_over.is_none() || part == Part::Process;
            // The kernel ignores negative numbers.
            let mut fds = Part::ALL.map(|part| match self.watched(part).filter(|_| is_watched(part)) {
                Some((fd, write)) => {
                    let events = if write { abi::POLLOUT } else { abi::POLLIN } as i16;
                    abi::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
                }
                None => abi::pollfd { fd: -1, events: 0, revents: 0 },
            });
            // A file that the application puts at one of these descriptors does not end a sleep.
            let look = Instant::now() + UNSEEN;
            let late = at_work.take_if(|since| since.elapsed() >= UNASKED).is_some();
            let asks = at_work.map(|since| since + UNASKED);
            let until = self.deadline().into_iter().chain(asks).chain(passed_over).fold(look, Instant::min);
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Some((left.as_secs() as i64, i64::from(left.subsec_nanos())));
            let polled = if late { Err(Errno::EINTR) } else { call::poll(&mut fds, timeout) };
            if !self.is_whole(known) {
                self.abandon();
                return Err(Error::new(Stage::Capture, Errno::EBADF, "poll()"));
            }
            match polled {
                Ok(_) => _ = at_work.get_or_insert_with(Instant::now),
                Err(Errno::EINTR) => {
                    at_work = None;
                    if interrupted() {
                        self.end(Stop::Cancelled, None);
                    }
                    continue;
                }
                Err(errno) => return Err(Error::new(Stage::Capture, errno, "poll()")),
            }
            for (part, abi::pollfd { revents, .. }) in Part::ALL.into_iter().zip(fds) {
                if revents != 0 {
                    // poll(2) reports the rest again.
                    let hung_up = revents & abi::POLLHUP as i16 != 0;
                    if self.news(part, hung_up, &mut buffer)? && hung_up && self.watched(part).is_some() {
                        passed_over = Some(Instant::now() + CLOSED);
                    }
                }
            }
            self.tick(Instant::now(), &mut buffer);
        }
        Ok(self.finish())
    }

    /// Device and inode of the watched files.
    fn identities(&self) -> [Option<(u64, u64)>; 4] {
        Part::ALL.map(|part| self.watched(part).and_then(|(fd, _)| call::identify(fd.as_raw_fd()).ok()))
    }

    /// Whether each descriptor that is still watched refers to the same file.
    fn is_whole(&self, known: [Option<(u64, u64)>; 4]) -> bool {
        let now = self.identities();
        Part::ALL
            .into_iter()
            .zip(known.into_iter().zip(now))
            .all(|(part, (known, now))| self.watched(part).is_none() || now.is_some() && now == known)
    }
}
