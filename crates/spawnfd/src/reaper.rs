// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reaps children that were dropped while they ran. A thread exists only while there are such children.
//!
//! A seccomp filter can prevent a thread from waiting for children. So callers with different [`Reach`] (what the
//! kernel permits a thread to do to processes and files) use different reaper threads.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spawnfd_sys::wait_pidfd;

use crate::error::Stage;
use crate::host::authority::Reach;
use crate::host::descriptors::CheckedFd;
use crate::host::per_process::PerProcess;
use crate::host::thread::{ExitingThread, start_thread};

/// The interval at which a reaper thread without an eventfd checks for new children.
const CHECK_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

#[derive(Debug, Default)]
struct Reapers {
    running: Vec<Arc<Reaper>>,
    /// Children for which no thread could be started: the next reaper takes them.
    unclaimed: Vec<Arc<CheckedFd>>,
    /// The reaper threads that are about to exit, and may not have exited yet.
    exiting: Vec<ExitingThread>,
}

/// A reaper thread.
#[derive(Debug)]
struct Reaper {
    /// The thread's reach; `None` if it is unknown.
    reach: Option<Arc<Reach>>,
    /// Children that the thread has not taken over yet.
    new_children: Mutex<Vec<Arc<CheckedFd>>>,
    /// An eventfd that wakes the thread. `None` if no descriptor was free: the thread then checks at intervals.
    wake: Option<CheckedFd>,
}

static REAPERS: PerProcess<Reapers> =
    PerProcess::new(Reapers { running: Vec::new(), unclaimed: Vec::new(), exiting: Vec::new() });

/// Takes over a child whose handle was dropped.
pub(crate) fn adopt(pidfd: impl Into<Arc<CheckedFd>>) {
    let pidfd = pidfd.into();
    let reach = Reach::of_calling_thread(Stage::Wait).ok();
    let mut reapers = REAPERS.lock();
    let serves = |reaper: &&Arc<Reaper>| match (&reaper.reach, &reach) {
        (Some(own), Some(reach)) => own.equals(reach),
        (own, reach) => own.is_none() && reach.is_none(),
    };
    // Skip a reaper whose eventfd the application has closed or replaced: nothing can wake it.
    let serving = reapers.running.iter().filter(serves).find(|reaper| reaper.wake());
    match serving {
        Some(reaper) => reaper.new_children().push(pidfd),
        None => {
            reapers.unclaimed.retain(still_runs);
            reapers.unclaimed.push(pidfd);
            start(&mut reapers, reach);
        }
    }
}

/// Whether a reaper thread is running.
pub(crate) fn is_running() -> bool {
    !REAPERS.lock().running.is_empty()
}

/// Reaps the ended children for which no thread could be started. Returns whether some still run.
pub(crate) fn reap_unclaimed() -> bool {
    let mut reapers = REAPERS.lock();
    reapers.unclaimed.retain(still_runs);
    !reapers.unclaimed.is_empty()
}

/// Whether a reaper thread is exiting, and no other one is running.
pub(crate) fn is_exiting() -> bool {
    let reapers = REAPERS.lock();
    reapers.running.is_empty() && reapers.exiting.iter().any(|thread| thread.is_running())
}

/// Starts a reaper thread, which takes the unclaimed children. If the start fails, the next reaper takes them.
fn start(reapers: &mut Reapers, reach: Option<Arc<Reach>>) {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(CheckedFd::new);
    let reaper = Arc::new(Reaper { reach, new_children: Mutex::default(), wake });
    let thread = reaper.clone();
    // The new thread first waits for the lock that the caller holds, so it finds the children that are added below.
    if start_thread("spawnfd-reaper", 128 << 10, move || thread.run()).is_ok() {
        reaper.new_children().append(&mut reapers.unclaimed);
        reapers.running.push(reaper);
    }
}

/// Reaps the child if it has ended. Returns whether it still runs.
fn still_runs(child: &Arc<CheckedFd>) -> bool {
    child.get().is_some_and(|pidfd| matches!(wait_pidfd(pidfd.as_raw_fd(), false), Ok(None)))
}

impl Reaper {
    fn new_children(&self) -> MutexGuard<'_, Vec<Arc<CheckedFd>>> {
        self.new_children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread. Returns whether the thread will take over new children.
    fn wake(&self) -> bool {
        let Some(wake) = &self.wake else { return true };
        wake.get().is_some_and(|eventfd| rustix::io::write(eventfd, &1u64.to_ne_bytes()).is_ok())
    }

    fn run(self: Arc<Reaper>) {
        let mut children: Vec<Arc<CheckedFd>> = Vec::new();
        loop {
            let mut reapers = REAPERS.lock();
            children.append(&mut self.new_children());
            children.retain(still_runs);
            if children.is_empty() {
                reapers.running.retain(|reaper| !Arc::ptr_eq(reaper, &self));
                reapers.exiting.retain(|thread| thread.is_running());
                reapers.exiting.extend(ExitingThread::now());
                return;
            }
            drop(reapers);
            self.sleep(&children);
        }
    }

    /// Sleeps until a child has ended or a new child arrives.
    fn sleep(&self, children: &[Arc<CheckedFd>]) {
        let eventfd = self.wake.as_ref().and_then(CheckedFd::get);
        let mut polled: Vec<PollFd<'_>> = children
            .iter()
            .map(AsFd::as_fd)
            .chain(eventfd.map(AsFd::as_fd))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let _ = poll(&mut polled, eventfd.is_none().then_some(&CHECK_INTERVAL));
        if let Some(eventfd) = eventfd {
            let _ = rustix::io::read(eventfd, &mut [0; 8]);
        }
    }
}
