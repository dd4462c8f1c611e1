// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads beside the host's.

use std::cell::Cell;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use spawnfd_sys::Errno;
use spawnfd_sys::call::{self, SignalSet};

use crate::error::from_io;
use crate::host::features;

/// Starts a thread, all signals blocked: they are the host's.
pub(crate) fn start_thread<T: Send + 'static>(
    name: &str,
    stack: usize,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Errno> {
    let inheritance = features::to_hand_down();
    let mask = call::set_signal_mask(call::SIGNALS_OF_THE_HOST)?;
    let thread = Builder::new().name(name.into()).stack_size(stack).spawn(|| {
        features::inherit(inheritance);
        body()
    });
    let _ = call::set_signal_mask(mask);
    thread.map_err(|error| from_io(&error))
}

/// How long somebody waits for a thread to be gone, which takes some 100 us.
pub(crate) const GOING: Duration = Duration::from_secs(1);

/// A thread of ours at its end: it counts as one of the host's until it is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    thread: i32,
    since: Instant,
}

impl Leaving {
    /// The calling thread.
    pub(crate) fn now() -> Option<Leaving> {
        Some(Leaving { thread: call::gettid().ok()?, since: Instant::now() })
    }

    pub(crate) fn is_there(self) -> bool {
        // Later its number may be another one's.
        self.since.elapsed() < GOING && call::has_thread(self.thread)
    }
}

/// The stack that std gives a thread, for one that runs callbacks.
pub(crate) const ORDINARY_STACK: usize = 2 << 20;

thread_local! {
    /// The signal mask of the thread that had the engine made, in the engine's own.
    static ENGINE: Cell<Option<SignalSet>> = const { Cell::new(None) };
}

/// Makes the calling thread the one that moves runs on, in the name of one with that signal mask.
pub(crate) fn become_engine(mask: SignalSet) {
    ENGINE.set(Some(mask));
}

/// The signal mask of programs that are started in the engine's thread, whose own is not the host's. `None`: this is another thread.
pub(crate) fn mask_in_engine() -> Option<SignalSet> {
    ENGINE.get()
}

/// Whether the calling thread moves runs on: who waited for one there would wait for ever.
pub(crate) fn is_engine() -> bool {
    ENGINE.get().is_some()
}
