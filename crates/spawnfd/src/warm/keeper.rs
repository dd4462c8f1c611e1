// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that parks: one process at a time, and only when nobody else wants the processor.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use spawnfd_sys::{Errno, call, fork_generation};

use super::parked::Parked;
use super::state::{State, Work};
use crate::per_process::PerProcess;

/// The thread, once there is something to park.
#[derive(Debug)]
pub(super) struct Keeper {
    generation: Option<u64>,
    state: Weak<PerProcess<State>>,
    running: PerProcess<Option<Running>>,
    ended: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Running {
    bell: Sender<()>,
    thread: JoinHandle<()>,
}

impl Keeper {
    pub(super) fn new(state: &Arc<PerProcess<State>>) -> Keeper {
        Keeper {
            generation: fork_generation().ok(),
            state: Arc::downgrade(state),
            running: PerProcess::new(None),
            ended: Arc::default(),
        }
    }

    /// Has it look what there is to do; starts it if it does not run.
    ///
    /// # Errors
    /// EAGAIN: there can be no thread.
    pub(super) fn ring(&self) -> Result<(), Errno> {
        if fork_generation().ok() != self.generation || self.ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut running = self.running.lock();
        if let Some(running) = &*running {
            let _ = running.bell.send(());
            return Ok(());
        }
        let (bell, rings) = channel();
        let (state, ended) = (self.state.clone(), self.ended.clone());
        // All signals are the host's.
        let mask = call::set_signal_mask(call::SIGNALS_OF_THE_HOST)?;
        let thread = std::thread::Builder::new()
            .name("spawnfd-warm".into())
            .stack_size(256 << 10)
            .spawn(move || keep(&state, &rings, &ended));
        let _ = call::set_signal_mask(mask);
        let thread = thread.map_err(|error| crate::template::from_io(&error))?;
        *running = Some(Running { bell, thread });
        Ok(())
    }

    /// Ends it, and waits for that.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let running = self.running.lock().take();
        if let Some(Running { bell, thread }) = running {
            drop(bell);
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if fork_generation().ok() == self.generation {
            self.end();
        }
    }
}

fn keep(state: &Weak<PerProcess<State>>, rings: &Receiver<()>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let Some(shared) = state.upgrade() else { return };
        let (work, gone) = shared.lock().next_work();
        drop(gone);
        match work {
            Work::Park { entry, version, recipe, object } => {
                drop(shared);
                let outcome = Parked::start(&recipe, &object, ended);
                let Some(shared) = state.upgrade() else { return };
                let unwanted = shared.lock().parked(entry, version, outcome);
                drop(unwanted);
            }
            Work::Wait(until) => {
                drop(shared);
                let rung = match until {
                    None => rings.recv().map_err(|_| RecvTimeoutError::Disconnected),
                    Some(until) => rings.recv_timeout(until.saturating_duration_since(Instant::now())),
                };
                if rung == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
                while rings.try_recv().is_ok() {}
            }
        }
    }
}
