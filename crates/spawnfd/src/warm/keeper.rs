// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper: a thread that parks processes, one at a time except slow ones, and only when the CPU is idle.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use spawnfd_sys::Errno;

use super::making::Making;
use super::refill::Work;
use super::state::WarmState;
use crate::error::errno;
use crate::host::authority::Reach;
use crate::host::numbers::{Known, standard_is_open};
use crate::host::per_process::PerProcess;
use crate::host::thread::start_thread;

/// The keeper thread, which starts once there is a process to park.
#[derive(Debug)]
pub(super) struct Keeper {
    state: Weak<PerProcess<WarmState>>,
    running: PerProcess<Option<KeeperThread>>,
    ended: Arc<AtomicBool>,
}

#[derive(Debug)]
struct KeeperThread {
    timer: Arc<Timer>,
    thread: JoinHandle<()>,
}

/// Wakes the thread, at once or later.
#[derive(Debug)]
struct Timer {
    fd: Known,
    made: Instant,
    /// When the timer expires, in nanoseconds since it was made; `NEVER`: it is not set.
    expires: AtomicU64,
}

const NEVER: u64 = u64::MAX;
/// The longest sleep: once an application has closed the timer, nothing can wake the thread.
const ASLEEP: Duration = Duration::from_secs(1);

impl Timer {
    fn new() -> Result<Timer, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = Known::new(timerfd_create(TimerfdClockId::Monotonic, flags).map_err(errno)?);
        Ok(Timer { fd, made: Instant::now(), expires: AtomicU64::new(NEVER) })
    }

    /// Has the timer expire after that time, unless it expires sooner.
    ///
    /// Set it after changing the state: the thread clears the timer before it reads the state.
    fn set(&self, after: Duration) {
        let at = u64::try_from((self.made.elapsed() + after).as_nanos()).unwrap_or(NEVER - 1);
        if self.expires.fetch_min(at, Ordering::SeqCst) <= at {
            return;
        }
        // Zero would stop the timer.
        let it_value = Timespec::try_from(after.max(Duration::from_nanos(1))).unwrap_or_default();
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        let _ = self.fd.get().map(|timer| timerfd_settime(timer, TimerfdTimerFlags::empty(), &once));
    }

    /// Sleeps until the timer expires, `until` passes, or one of these processes reports. Only this function clears
    /// the timer, so an earlier expiry is not lost.
    fn wait(&self, until: Option<Instant>, all: &[Making]) {
        let Some(timer) = self.fd.get() else {
            // An application has closed it: the thread polls the state.
            return std::thread::sleep(Duration::from_millis(20));
        };
        let left = until.map_or(ASLEEP, |until| until.saturating_duration_since(Instant::now()).min(ASLEEP));
        let each = all.iter().filter_map(Making::source).chain([timer]);
        let mut each: Vec<PollFd<'_>> = each.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut each, Timespec::try_from(left).ok().as_ref());
        if self.fd.get().is_some_and(|timer| rustix::io::read(timer, &mut [0u8; 8]).is_ok()) {
            self.expires.store(NEVER, Ordering::SeqCst);
        }
    }
}

impl Keeper {
    pub(super) fn new(state: &Arc<PerProcess<WarmState>>) -> Keeper {
        Keeper { state: Arc::downgrade(state), running: PerProcess::here(None, || None), ended: Arc::default() }
    }

    /// Has the thread read the state after that time; starts the thread if it does not run.
    ///
    /// # Errors
    /// EAGAIN, EMFILE, ENFILE: there can be no thread.
    pub(super) fn wake(&self, after: Duration) -> Result<(), Errno> {
        if !self.running.is_here() || self.ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut running = self.running.lock();
        if let Some(running) = &*running {
            running.timer.set(after);
            return Ok(());
        }
        // A later start wakes the keeper. (The thread might take a descriptor that another thread opens there for the
        // moment for the stream.)
        if !standard_is_open() {
            return Ok(());
        }
        let timer = Arc::new(Timer::new()?);
        let (state, of_thread, ended) = (self.state.clone(), timer.clone(), self.ended.clone());
        let maker = Reach::read()?;
        let thread = start_thread("spawnfd-warm", 256 << 10, move || keep(&state, &of_thread, &maker, &ended))?;
        *running = Some(KeeperThread { timer, thread });
        Ok(())
    }

    /// Ends the thread, and waits for its end.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        let running = self.running.lock().take();
        if let Some(KeeperThread { timer, thread }) = running {
            timer.set(Duration::ZERO);
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.running.is_here() {
            self.end();
        } else {
            // A fork's copy of the host has no such thread. Another thread may have its id and must not be detached.
            std::mem::forget(std::mem::take(&mut self.running));
        }
    }
}

/// The thread's main function. `maker`: the reach of the thread that started it.
fn keep(state: &Weak<PerProcess<WarmState>>, timer: &Timer, maker: &Arc<Reach>, ended: &AtomicBool) {
    let mut all: Vec<Making> = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let Some(shared) = state.upgrade() else { return };
        let (work, waste) = shared.lock().next_work();
        drop(waste);
        drop(shared);
        let mut done = Vec::new();
        match work {
            Work::Park { whose, recipe, object } => match Making::begin(whose, recipe, object, maker.clone()) {
                Ok(making) => all.push(making),
                Err(why) => done.push((whose, Err(why))),
            },
            Work::Fork(parent, count) => {
                let born = parent.lock().fork(count);
                let Some(shared) = state.upgrade() else { return };
                shared.lock().forked(parent, count, born);
            }
            Work::Wait(until) => timer.wait(until, &all),
        }
        all.retain_mut(|making| {
            let outcome = making.look();
            let waits = outcome.is_none();
            done.extend(outcome.map(|outcome| (making.whose, outcome)));
            waits
        });
        for (whose, outcome) in done {
            let Some(shared) = state.upgrade() else { return };
            let unwanted = shared.lock().parked(whose, outcome);
            drop(unwanted);
        }
    }
}
