// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reaps children that were dropped while they ran. A thread exists only while there are such children.
//!
//! A seccomp filter can prevent a thread from waiting. So threads with different [`Reach`] use different reapers.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spawnfd_sys::wait_pidfd;

use crate::error::Stage;
use crate::host::authority::Reach;
use crate::host::numbers::Known;
use crate::host::per_process::PerProcess;
use crate::host::thread::{Leaving, start_thread};

/// How often a thread that cannot be woken looks for new children.
const UNSEEN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

#[derive(Debug, Default)]
struct Reapers {
    running: Vec<Arc<Reaper>>,
    /// Children for which no thread could be started: the next reaper takes them.
    unclaimed: Vec<Known>,
    /// The threads that are exiting, and may not be gone yet.
    leaving: Vec<Leaving>,
}

/// A running thread.
#[derive(Debug)]
struct Reaper {
    /// The thread's reach; `None` if it is unknown.
    reach: Option<Arc<Reach>>,
    /// Children that the thread has not seen yet.
    arrived: Mutex<Vec<Known>>,
    /// Wakes the thread. `None` if no descriptor was free: the thread then looks at intervals.
    wake: Option<Known>,
}

static REAPERS: PerProcess<Reapers> =
    PerProcess::new(Reapers { running: Vec::new(), unclaimed: Vec::new(), leaving: Vec::new() });

/// Takes over a child whose handle was dropped.
pub(crate) fn adopt(pidfd: Known) {
    let reach = Reach::of_calling_thread(Stage::Wait).ok();
    let mut reapers = REAPERS.lock();
    let serves = |reaper: &&Arc<Reaper>| match (&reaper.reach, &reach) {
        (Some(own), Some(reach)) => own.equals(reach),
        (own, reach) => own.is_none() && reach.is_none(),
    };
    // A reaper that cannot be woken, because the application has put another file at its number, is replaced.
    let serving = reapers.running.iter().filter(serves).find(|reaper| reaper.wake());
    match serving {
        Some(reaper) => reaper.arrived().push(pidfd),
        None => {
            reapers.unclaimed.push(pidfd);
            start(&mut reapers, reach);
        }
    }
}

/// Whether a reaper thread is running.
pub(crate) fn is_there() -> bool {
    !REAPERS.lock().running.is_empty()
}

/// Whether a thread is exiting, and none is running.
pub(crate) fn is_leaving() -> bool {
    let reapers = REAPERS.lock();
    reapers.running.is_empty() && reapers.leaving.iter().any(|thread| thread.is_there())
}

/// Starts a thread, which takes the unclaimed children. If that fails, the next reaper takes them.
fn start(reapers: &mut Reapers, reach: Option<Arc<Reach>>) {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(Known::new);
    let reaper = Arc::new(Reaper { reach, arrived: Mutex::default(), wake });
    let thread = reaper.clone();
    // The new thread first waits for the lock that the caller has.
    if start_thread("spawnfd-reaper", 128 << 10, move || thread.run()).is_ok() {
        reaper.arrived().append(&mut reapers.unclaimed);
        reapers.running.push(reaper);
    }
}

impl Reaper {
    fn arrived(&self) -> MutexGuard<'_, Vec<Known>> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread. Returns whether the thread will see new children.
    fn wake(&self) -> bool {
        let Some(wake) = &self.wake else { return true };
        wake.get().is_some_and(|eventfd| rustix::io::write(eventfd, &1u64.to_ne_bytes()).is_ok())
    }

    fn run(self: Arc<Reaper>) {
        let mut children: Vec<Known> = Vec::new();
        loop {
            let mut reapers = REAPERS.lock();
            children.append(&mut self.arrived());
            let runs = |pidfd: &OwnedFd| matches!(wait_pidfd(pidfd.as_raw_fd(), false), Ok(None));
            children.retain(|child| child.get().is_some_and(runs));
            if children.is_empty() {
                reapers.running.retain(|reaper| !Arc::ptr_eq(reaper, &self));
                reapers.leaving.retain(|thread| thread.is_there());
                reapers.leaving.extend(Leaving::now());
                return;
            }
            drop(reapers);
            self.sleep(&children);
        }
    }

    /// Sleeps until a child has ended or a new child arrives.
    fn sleep(&self, children: &[Known]) {
        let eventfd = self.wake.as_ref().and_then(Known::get);
        let mut watched: Vec<PollFd<'_>> = children
            .iter()
            .map(AsFd::as_fd)
            .chain(eventfd.map(AsFd::as_fd))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let _ = poll(&mut watched, eventfd.is_none().then_some(&UNSEEN));
        if let Some(eventfd) = eventfd {
            let _ = rustix::io::read(eventfd, &mut [0; 8]);
        }
    }
}
