// SPDX-License-Identifier: MIT OR Apache-2.0
//! A blocking run: the calling thread moves it on until the result is there.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use spawnfd_sys::{Errno, abi, call};

use super::{Part, RunState};
use crate::error::{Error, Result, Stage};
use crate::job::engine::UNSEEN;
use crate::job::{Output, Stop};

/// How long nobody looks at a terminal that nobody has open: poll() would never sleep.
const CLOSED: Duration = Duration::from_millis(20);

/// How long a signal can go unasked for that has come while the thread of a run was at work.
const UNASKED: Duration = Duration::from_millis(10);

impl RunState {
    /// Runs to the end in the calling thread; asks at the start, after each signal, and soon after it was at work, whether to give up.
    pub(in crate::job) fn run_here(mut self, mut interrupted: impl FnMut() -> bool) -> Result<Output> {
        // Not on the stack, which is the caller's and may be small.
        let mut buffer = vec![0; 32 << 10];
        if interrupted() {
            self.end(Stop::Cancelled, None);
        }
        // Since when this has been at work. A signal that comes meanwhile interrupts no sleep, and with enough to read there is none.
        let mut at_work: Option<Instant> = None;
        // The files that the run's descriptors refer to, for comparison after each sleep.
        let known = self.identities();
        // What has hung up and may come back is passed over until then.
        let mut passed_over: Option<Instant> = None;
        while !self.is_done() {
            passed_over.take_if(|until| self.status.is_some() || *until <= Instant::now());
            let is_watched = |part: Part| passed_over.is_none() || part == Part::Process;
            // The kernel passes over what has no number.
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
                    // What is left to read or write is reported again.
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

    /// Device and inode of what is watched.
    fn identities(&self) -> [Option<(u64, u64)>; 4] {
        Part::ALL.map(|part| self.watched(part).and_then(|(fd, _)| call::identify(fd.as_raw_fd()).ok()))
    }

    /// Whether all that is still watched is what it was.
    fn is_whole(&self, known: [Option<(u64, u64)>; 4]) -> bool {
        let now = self.identities();
        Part::ALL
            .into_iter()
            .zip(known.into_iter().zip(now))
            .all(|(part, (known, now))| self.watched(part).is_none() || now.is_some() && now == known)
    }
}
