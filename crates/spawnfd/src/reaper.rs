// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reaps children that were dropped while they ran: one thread while there are any, none otherwise.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::MutexGuard;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use spawnfd_sys::{call, wait_pidfd};

use crate::numbers::above_standard;
use crate::per_process::PerProcess;

#[derive(Debug, Default)]
struct State {
    /// Handed over, not yet seen by the thread.
    arrived: Vec<OwnedFd>,
    /// Wakes the thread; there while it runs.
    wake: Option<OwnedFd>,
}

static STATE: PerProcess<State> = PerProcess::new(State { arrived: Vec::new(), wake: None });

fn state() -> MutexGuard<'static, State> {
    STATE.lock()
}

/// Takes over a child that nobody will wait for.
pub(crate) fn adopt(pidfd: OwnedFd) {
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
    let mut children: Vec<OwnedFd> = Vec::new();
    loop {
        let mut state = state();
        children.append(&mut state.arrived);
        children.retain(|child| matches!(wait_pidfd(child.as_raw_fd(), false), Ok(None)));
        if children.is_empty() {
            state.wake = None;
            return;
        }
        drop(state);
        let mut watched: Vec<PollFd<'_>> =
            children.iter().chain([wake]).map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
        let _ = poll(&mut watched, None);
        let _ = rustix::io::read(wake, &mut [0; 8]);
    }
}
