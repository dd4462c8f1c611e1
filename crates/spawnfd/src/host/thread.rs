// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's threads.

use std::cell::Cell;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use spawnfd_sys::call::{self, SignalSet};
use spawnfd_sys::{Call, Errno};

use crate::error::from_io;
use crate::host::features;

/// Starts a thread with all signals blocked, so that the host's threads handle them.
///
/// # Errors
/// The errors of pthread_create(3). EPERM: a seccomp filter kills the process for clone3, which libc may call.
pub(crate) fn start_thread<T: Send + 'static>(
    name: &str,
    stack: usize,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Errno> {
    features::killed_calls().refuse(Call::Clone3)?;
    let inheritance = features::for_new_thread();
    let mask = call::set_signal_mask(call::SIGNALS_OF_THE_HOST)?;
    let thread = Builder::new().name(name.into()).stack_size(stack).spawn(|| {
        features::inherit(inheritance);
        body()
    });
    let _ = call::set_signal_mask(mask);
    thread.map_err(|error| from_io(&error))
}

/// The lengths of the sleeps of a thread that checks for signals in between.
///
/// A signal that arrives after the check and before the sleep does not interrupt the sleep. So the first sleep is
/// short, and each sleep is twice as long as the one before.
#[derive(Debug)]
pub struct SleepLengths(Duration);

impl Default for SleepLengths {
    /// Begins with the shortest sleep.
    fn default() -> SleepLengths {
        SleepLengths(SleepLengths::FIRST)
    }
}

impl SleepLengths {
    /// The length of the first sleep.
    pub const FIRST: Duration = Duration::from_millis(10);
    const LONGEST: Duration = Duration::from_secs(5);

    /// The length of the next sleep.
    pub fn next_length(&mut self) -> Duration {
        let length = self.0;
        self.0 = (2 * length).min(Self::LONGEST);
        length
    }
}

/// The longest wait for a thread to exit. An exit takes about 100 us.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// A thread of the library that is exiting. Until the thread has exited, the kernel counts it as a thread of the
/// host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExitingThread {
    thread: i32,
    since: Instant,
}

impl ExitingThread {
    /// The calling thread.
    pub(crate) fn now() -> Option<ExitingThread> {
        Some(ExitingThread { thread: call::gettid().ok()?, since: Instant::now() })
    }

    pub(crate) fn is_running(self) -> bool {
        // After `EXIT_TIMEOUT` the thread has exited, and another thread may have its id.
        self.since.elapsed() < EXIT_TIMEOUT && call::has_thread(self.thread)
    }
}

/// The stack size of std's threads, for a thread that runs callbacks.
pub(crate) const DEFAULT_STACK: usize = 2 << 20;

thread_local! {
    /// In the engine's thread, the signal mask of the thread that started the engine. Otherwise
    /// `None`.
    static ENGINE: Cell<Option<SignalSet>> = const { Cell::new(None) };

    /// Whether this thread is the one of an event loop that makes steps of an engine.
    static VISITS: Cell<bool> = const { Cell::new(false) };
}

/// Makes the calling thread the engine's thread, which drives runs. `mask` is the signal mask of the thread that
/// started the engine.
pub(crate) fn become_engine(mask: SignalSet) {
    ENGINE.set(Some(mask));
}

/// The signal mask for programs that the engine's thread starts, because the engine's thread itself blocks all
/// signals. `None` in other threads.
pub(crate) fn mask_in_engine() -> Option<SignalSet> {
    ENGINE.get()
}

/// Whether the calling thread is the engine's thread, or makes steps of an engine. Waiting for a run there would
/// deadlock.
pub(crate) fn is_engine() -> bool {
    ENGINE.get().is_some() || VISITS.get()
}

/// Marks the calling thread, which makes steps of an engine, until the returned value is dropped.
pub(crate) fn visit_engine() -> Visit {
    Visit(VISITS.replace(true))
}

/// The thread of an event loop makes steps of an engine.
#[derive(Debug)]
pub(crate) struct Visit(bool);

impl Drop for Visit {
    fn drop(&mut self) {
        VISITS.set(self.0);
    }
}
