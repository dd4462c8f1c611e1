// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that parks: one process at a time, but for slow ones, and only when nobody else wants the processor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use spawnfd_sys::{Errno, fork_generation};

use super::making::Making;
use super::state::State;
use super::tend::Work;
use crate::error::errno;
use crate::host::authority::Reach;
use crate::host::numbers::{Known, standard_is_open};
use crate::host::per_process::PerProcess;
use crate::host::thread::start_thread;

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

/// Wakes the thread, at once or later: setting it wakes nobody yet.
#[derive(Clone, Debug)]
struct Bell(Arc<Timer>);

#[derive(Debug)]
struct Timer {
    fd: Known,
    made: Instant,
    /// When it rings, in nanoseconds since it was made; `NEVER`: it is not set.
    rings: AtomicU64,
}

const NEVER: u64 = u64::MAX;
/// How long it sleeps at most: once an application has closed the timer nobody can wake it.
const ASLEEP: Duration = Duration::from_secs(1);

impl Bell {
    fn new() -> Result<Bell, Errno> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK).map_err(errno)?;
        Ok(Bell(Arc::new(Timer { fd: Known::new(timer), made: Instant::now(), rings: AtomicU64::new(NEVER) })))
    }

    /// Has it ring after so long, unless it rings sooner.
    ///
    /// What is to be found then stands there already: who takes the ring away looks afterwards.
    fn set(&self, after: Duration) {
        let Timer { fd, made, rings } = &*self.0;
        let at = u64::try_from((made.elapsed() + after).as_nanos()).unwrap_or(NEVER - 1);
        if rings.fetch_min(at, Ordering::SeqCst) <= at {
            return;
        }
        // Nothing at all would stop it.
        let after = after.max(Duration::from_nanos(1));
        let value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: i64::from(after.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        let _ = fd.get().map(|timer| timerfd_settime(timer, TimerfdTimerFlags::empty(), &once));
    }

    /// Until it rings, or then, or one of these has something to say. What has rung before is not lost: only this takes it away.
    fn wait(&self, until: Option<Instant>, all: &[Making]) {
        let Some(timer) = self.0.fd.get() else {
            // An application has closed it: then it is looked now and then.
            return std::thread::sleep(Duration::from_millis(20));
        };
        let left = until.map_or(ASLEEP, |until| until.saturating_duration_since(Instant::now()).min(ASLEEP));
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let each = all.iter().filter_map(Making::source).chain([timer]);
        let mut each: Vec<PollFd<'_>> = each.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut each, Some(&left));
        if self.0.fd.get().is_some_and(|timer| rustix::io::read(timer, &mut [0u8; 8]).is_ok()) {
            self.0.rings.store(NEVER, Ordering::SeqCst);
        }
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
            running.bell.set(after);
            return Ok(());
        }
        // A later start tells it. (The thread itself may take what another opens there for the moment for the stream.)
        if !standard_is_open() {
            return Ok(());
        }
        let bell = Bell::new()?;
        let rings = bell.clone();
        let (state, ended) = (self.state.clone(), self.ended.clone());
        let maker = Reach::read()?;
        let thread = start_thread("spawnfd-warm", 256 << 10, move || keep(&state, &rings, &maker, &ended))?;
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
        } else {
            // A copy's: there is no such thread, and what stands where it stood is another's, not to be detached.
            std::mem::forget(std::mem::take(&mut self.running));
        }
    }
}

/// `maker`: of the thread that started this one.
fn keep(state: &Weak<PerProcess<State>>, bell: &Bell, maker: &Arc<Reach>, ended: &AtomicBool) {
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
            Work::Wait(until) => bell.wait(until, &all),
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
