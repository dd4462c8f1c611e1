// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that parks: one process at a time, and only when nobody else wants the processor.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_gettime,
    timerfd_settime,
};

use spawnfd_sys::{Errno, call, fork_generation};

use super::parked::Parked;
use super::state::{State, Work};
use crate::error::errno;
use crate::numbers::above_standard;
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
    bell: Bell,
    thread: JoinHandle<()>,
}

/// Wakes the thread, at once or later: setting it costs one system call and wakes nobody yet.
#[derive(Clone, Debug)]
struct Bell(Arc<OwnedFd>);

impl Bell {
    fn new() -> Result<Bell, Errno> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).map_err(errno)?;
        Ok(Bell(Arc::new(above_standard(timer))))
    }

    /// Instead of what it was set to before.
    fn set(&self, after: Duration) {
        // Nothing at all would stop it.
        let after = after.max(Duration::from_nanos(1));
        let value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: i64::from(after.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once);
    }

    /// The same, unless it rings sooner.
    fn set_before(&self, after: Duration) {
        match timerfd_gettime(&self.0).map(|set| set.it_value) {
            Ok(Timespec { tv_sec: 0, tv_nsec: 0 }) | Err(_) => self.set(after),
            Ok(left) if Duration::new(left.tv_sec as u64, left.tv_nsec as u32) > after => self.set(after),
            Ok(_) => {}
        }
    }

    fn wait(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
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

    /// Has it look what there is to do, after so long; starts it if it does not run.
    ///
    /// # Errors
    /// EAGAIN, EMFILE, ENFILE: there can be no thread.
    pub(super) fn ring(&self, after: Duration) -> Result<(), Errno> {
        if fork_generation().ok() != self.generation || self.ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut running = self.running.lock();
        if let Some(running) = &*running {
            running.bell.set_before(after);
            return Ok(());
        }
        let bell = Bell::new()?;
        let rings = bell.clone();
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
            bell.set(Duration::ZERO);
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

fn keep(state: &Weak<PerProcess<State>>, bell: &Bell, ended: &AtomicBool) {
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
                // Set by a start meanwhile it would be lost: it is not set to later than that.
                if let Some(until) = until {
                    bell.set_before(until.saturating_duration_since(Instant::now()));
                }
                bell.wait();
            }
        }
    }
}
