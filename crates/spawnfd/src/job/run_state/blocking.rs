// SPDX-License-Identifier: MIT OR Apache-2.0
//! A blocking run: the calling thread drives it until the result is available.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use spawnfd_sys::{Errno, abi, call};

use super::{RunFd, RunState};
use crate::error::{Error, Result, Stage};
use crate::job::engine::{RECHECK_INTERVAL, REPLACED};
use crate::job::{Output, Stop};

/// How long to ignore streams after one has hung up: poll(2) would return at once for it.
const HANGUP_PAUSE: Duration = Duration::from_millis(20);

/// How long the thread works between two calls of `interrupted`: a signal that arrives meanwhile interrupts no
/// sleep.
const ASK_INTERVAL: Duration = Duration::from_millis(10);

impl RunState {
    /// Drives the run in the calling thread until it ends. Calls `interrupted` at the start, after each signal, and
    /// after some work.
    pub(in crate::job) fn run_blocking(mut self, mut interrupted: impl FnMut() -> bool) -> Result<Output> {
        // On the heap: the caller's stack may be small.
        let mut buffer = vec![0; 32 << 10];
        if interrupted() {
            self.end(Stop::Cancelled, None);
        }
        // Since when the thread works without a call of `interrupted`. While output keeps coming there is no sleep
        // that a signal could interrupt.
        let mut busy_since: Option<Instant> = None;
        // The files that the run's descriptors refer to, for comparison after each sleep.
        let recorded = self.identities();
        // A stream has hung up and may be opened again. Until this time, watch only the process.
        let mut ignored_until: Option<Instant> = None;
        while !self.is_done() {
            ignored_until.take_if(|until| self.status.is_some() || *until <= Instant::now());
            let is_watched = |fd_kind: RunFd| ignored_until.is_none() || fd_kind == RunFd::Process;
            // The kernel ignores negative numbers.
            let mut fds = RunFd::ALL.map(|fd_kind| match self.watched(fd_kind).filter(|_| is_watched(fd_kind)) {
                Some((fd, write)) => {
                    let events = if write { abi::POLLOUT } else { abi::POLLIN } as i16;
                    abi::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
                }
                None => abi::pollfd { fd: -1, events: 0, revents: 0 },
            });
            // Replacing one of these descriptors does not end a sleep, so check them at intervals.
            let recheck = Instant::now() + RECHECK_INTERVAL;
            let late = busy_since.take_if(|since| since.elapsed() >= ASK_INTERVAL).is_some();
            let next_ask = busy_since.map(|since| since + ASK_INTERVAL);
            let until = self.deadline().into_iter().chain(next_ask).chain(ignored_until).fold(recheck, Instant::min);
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Some((left.as_secs() as i64, i64::from(left.subsec_nanos())));
            let polled = if late { Err(Errno::EINTR) } else { call::poll(&mut fds, timeout) };
            if !self.has_own_descriptors(recorded) {
                self.abandon();
                return Err(Error::new(Stage::Capture, Errno::EBADF, "poll()").saying(REPLACED));
            }
            match polled {
                Ok(_) => _ = busy_since.get_or_insert_with(Instant::now),
                Err(Errno::EINTR) => {
                    busy_since = None;
                    if interrupted() {
                        self.end(Stop::Cancelled, None);
                    }
                    continue;
                }
                Err(errno) => return Err(Error::new(Stage::Capture, errno, "poll()")),
            }
            for (fd_kind, abi::pollfd { revents, .. }) in RunFd::ALL.into_iter().zip(fds) {
                if revents != 0 {
                    // poll(2) reports the rest again.
                    let hung_up = revents & abi::POLLHUP as i16 != 0;
                    if self.handle_event(fd_kind, hung_up, &mut buffer)? && hung_up && self.watched(fd_kind).is_some() {
                        ignored_until = Some(Instant::now() + HANGUP_PAUSE);
                    }
                }
            }
            self.tick(Instant::now(), &mut buffer);
        }
        Ok(self.finish())
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
