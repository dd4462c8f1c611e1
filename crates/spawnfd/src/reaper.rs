// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reaps children that were dropped while they ran: one thread while there are any, none otherwise.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::MutexGuard;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use spawnfd_sys::{call, wait_pidfd};

use crate::numbers::{Known, above_standard};
use crate::per_process::PerProcess;

#[derive(Debug, Default)]
struct State {
    /// Handed over, not yet seen by the thread.
    arrived: Vec<Known>,
    /// Wakes the thread; there while it runs.
    wake: Option<OwnedFd>,
}

static STATE: PerProcess<State> = PerProcess::new(State { arrived: Vec::new(), wake: None });

fn state() -> MutexGuard<'static, State> {
    STATE.lock()
}

/// Takes over a child that nobody will wait for.
pub(crate) fn adopt(pidfd: OwnedFd) {
    let Ok(pidfd) = Known::new(pidfd) else { return };
    let mut state = state();
    state.arrived.push(pidfd);
    match &state.wake {
        Some(wake) => drop(rustix::io::write(wake, &1u64.to_ne_bytes())),
        None => start(&mut state),
    }
}

/// Starts the thread, all signals blocked: they are the host's. Where no thread can be had the children wait for the next one.
fn start(state: &mut State) {
    let Ok(wake) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(above_standard) else { return };
    let Ok(ours) = wake.try_clone() else { return };
    let Ok(mask) = call::set_signal_mask(call::SIGNALS_OF_THE_HOST) else { return };
    let thread =
        std::thread::Builder::new().name("spawnfd-reaper".into()).stack_size(128 << 10).spawn(move || run(&ours));
    let _ = call::set_signal_mask(mask);
    if thread.is_ok() {
        state.wake = Some(wake);
    }
}

fn run(wake: &OwnedFd) {
    let mut children: Vec<Known> = Vec::new();
    loop {
        let mut state = state();
        children.append(&mut state.arrived);
        let runs = |pidfd: &OwnedFd| matches!(wait_pidfd(pidfd.as_raw_fd(), false), Ok(None));
        children.retain(|child| child.get().is_some_and(runs));
        if children.is_empty() {
            state.wake = None;
            return;
        }
        drop(state);
        let mut watched: Vec<PollFd<'_>> = children
            .iter()
            .map(AsFd::as_fd)
            .chain([wake.as_fd()])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let _ = poll(&mut watched, None);
        let _ = rustix::io::read(wake, &mut [0; 8]);
    }
}
