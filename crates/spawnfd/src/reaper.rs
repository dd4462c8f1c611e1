// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reaps children that were dropped while they ran: one thread while there are any, none otherwise.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use spawnfd_sys::wait_pidfd;

use crate::numbers::Known;
use crate::per_process::PerProcess;
use crate::thread::{Leaving, start_thread};

/// How long a thread that cannot be woken leaves those that arrive unseen.
const UNSEEN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

#[derive(Debug, Default)]
struct State {
    /// Handed over, not yet seen by the thread.
    arrived: Vec<Known>,
    /// Wakes the thread; there while it runs.
    bell: Option<Arc<Bell>>,
    /// The thread that ended last.
    leaving: Option<Leaving>,
}

/// Without a descriptor, as none was left, its thread looks now and then.
#[derive(Debug)]
struct Bell(Option<Known>);

static STATE: PerProcess<State> = PerProcess::new(State { arrived: Vec::new(), bell: None, leaving: None });

fn state() -> MutexGuard<'static, State> {
    STATE.lock()
}

/// Takes over a child that nobody will wait for.
pub(crate) fn adopt(pidfd: Known) {
    let mut state = state();
    state.arrived.push(pidfd);
    // Where the application has put something else at the bell's number nobody hears it: another thread is begun.
    if !state.bell.as_ref().is_some_and(|bell| bell.ring()) {
        start(&mut state);
    }
}

/// Whether somebody reaps what is handed over.
pub(crate) fn is_there() -> bool {
    state().bell.is_some()
}

/// Whether the thread is on its way out.
pub(crate) fn is_leaving() -> bool {
    let state = state();
    state.bell.is_none() && state.leaving.is_some_and(Leaving::is_there)
}

/// Starts the thread. Where no thread can be had the children wait for the next one.
fn start(state: &mut State) {
    let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
    let bell = Arc::new(Bell(eventfd.map(Known::new)));
    let ours = bell.clone();
    if start_thread("spawnfd-reaper", 128 << 10, move || run(&ours)).is_ok() {
        state.bell = Some(bell);
    }
}

impl Bell {
    /// Whether the thread hears of it.
    fn ring(&self) -> bool {
        let Some(eventfd) = &self.0 else { return true };
        eventfd.get().is_some_and(|eventfd| rustix::io::write(eventfd, &1u64.to_ne_bytes()).is_ok())
    }

    fn eventfd(&self) -> Option<&OwnedFd> {
        self.0.as_ref().and_then(Known::get)
    }
}

fn run(bell: &Arc<Bell>) {
    let mut children: Vec<Known> = Vec::new();
    loop {
        let mut state = state();
        children.append(&mut state.arrived);
        let runs = |pidfd: &OwnedFd| matches!(wait_pidfd(pidfd.as_raw_fd(), false), Ok(None));
        children.retain(|child| child.get().is_some_and(runs));
        if children.is_empty() {
            // That of another thread stays.
            state.bell.take_if(|now| Arc::ptr_eq(now, bell));
            state.leaving = Leaving::now();
            return;
        }
        drop(state);
        let eventfd = bell.eventfd();
        let mut watched: Vec<PollFd<'_>> = children
            .iter()
            .map(AsFd::as_fd)
            .chain(eventfd.map(AsFd::as_fd))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let _ = poll(&mut watched, eventfd.is_none().then_some(&UNSEEN));
        if let Some(eventfd) = bell.eventfd() {
            let _ = rustix::io::read(eventfd, &mut [0; 8]);
        }
    }
}
