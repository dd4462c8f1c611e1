// SPDX-License-Identifier: MIT OR Apache-2.0
//! The keeper: a thread that parks processes. It starts the next process once the previous process is parked, or is
//! slow to park.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};

use spawnfd_sys::Errno;

use super::parking::ParkingProcess;
use super::refill::Work;
use super::spare::{SpareCpu, SpareMemory};
use super::state::WarmState;
use crate::error::errno;
use crate::host::authority::Reach;
use crate::host::descriptors::{CheckedFd, standard_streams_are_open};
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
    timer: Arc<KeeperTimer>,
    thread: JoinHandle<()>,
}

/// A timer descriptor that wakes the thread, at once or later.
#[derive(Debug)]
struct KeeperTimer {
    fd: CheckedFd,
    created: Instant,
    /// The time at which the timer expires, in nanoseconds since the timer's creation. `NEVER` if
    /// the timer is not set.
    expires: AtomicU64,
}

const NEVER: u64 = u64::MAX;
/// The longest sleep. If the application closes the timer, nothing can wake the thread earlier.
const MAX_SLEEP: Duration = Duration::from_secs(1);

impl KeeperTimer {
    fn new() -> Result<KeeperTimer, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = CheckedFd::new(timerfd_create(TimerfdClockId::Monotonic, flags).map_err(errno)?);
        Ok(KeeperTimer { fd, created: Instant::now(), expires: AtomicU64::new(NEVER) })
    }

    /// Sets the timer to expire after the time `after`, unless the timer expires sooner.
    ///
    /// Change the state before you call this function: the thread clears the timer before it reads the state.
    fn set(&self, after: Duration) {
        let at = u64::try_from((self.created.elapsed() + after).as_nanos()).unwrap_or(NEVER - 1);
        if self.expires.fetch_min(at, Ordering::SeqCst) <= at {
            return;
        }
        // A time of zero would disarm the timer, so set at least one nanosecond.
        let it_value = Timespec::try_from(after.max(Duration::from_nanos(1))).unwrap_or_default();
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        let _ = self.fd.get().map(|timer| timerfd_settime(timer, TimerfdTimerFlags::empty(), &once));
    }

    /// Sleeps until the timer expires, `deadline` passes, or one of these processes reports. Only this function
    /// clears the timer, so an earlier expiry is not lost.
    fn wait(&self, deadline: Option<Instant>, parking: &[ParkingProcess]) {
        let Some(timer) = self.fd.get() else {
            // The application has closed the timer, so the thread checks the state at intervals.
            return std::thread::sleep(Duration::from_millis(20));
        };
        let timeout =
            deadline.map_or(MAX_SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()).min(MAX_SLEEP));
        let each = parking.iter().filter_map(ParkingProcess::report_fd).chain([timer]);
        let mut each: Vec<PollFd<'_>> = each.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = poll(&mut each, Timespec::try_from(timeout).ok().as_ref());
        if self.fd.get().is_some_and(|timer| rustix::io::read(timer, &mut [0u8; 8]).is_ok()) {
            self.expires.store(NEVER, Ordering::SeqCst);
        }
    }
}

impl Keeper {
    pub(super) fn new(state: &Arc<PerProcess<WarmState>>) -> Keeper {
        Keeper {
            state: Arc::downgrade(state),
            running: PerProcess::for_this_process(None, || None),
            ended: Arc::default(),
        }
    }

    /// Makes the thread check the state after the time `after`. Starts the thread if it does not
    /// run.
    ///
    /// # Errors
    /// EAGAIN, EMFILE, ENFILE: the thread cannot be started.
    pub(super) fn wake(&self, after: Duration) -> Result<(), Errno> {
        if !self.running.belongs_to_this_process() || self.ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut running = self.running.lock();
        if let Some(running) = &*running {
            running.timer.set(after);
            return Ok(());
        }
        // A standard stream is closed, so do not start the thread now. The thread might take a file that another
        // thread opens at this number for the standard stream. A later start of a program wakes the keeper.
        if !standard_streams_are_open() {
            return Ok(());
        }
        let timer = Arc::new(KeeperTimer::new()?);
        let (state, thread_timer, ended) = (self.state.clone(), timer.clone(), self.ended.clone());
        let starter = Reach::read()?;
        let thread =
            start_thread("spawnfd-warm", 256 << 10, move || run_keeper(&state, &thread_timer, &starter, &ended))?;
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
        if self.running.belongs_to_this_process() {
            self.end();
        } else {
            // A forked copy of the host has no such thread. Do not drop the handle: that would detach another thread
            // with the same id.
            std::mem::forget(std::mem::take(&mut self.running));
        }
    }
}

/// The CPU time of the calling thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The keeper thread's main function. `starter` is the reach (credentials and scheduling) of the
/// thread that started the keeper.
fn run_keeper(state: &Weak<PerProcess<WarmState>>, timer: &KeeperTimer, starter: &Arc<Reach>, ended: &AtomicBool) {
    let mut parking: Vec<ParkingProcess> = Vec::new();
    let (mut spare_cpu, mut spare_memory) = (SpareCpu::default(), SpareMemory::default());
    let mut used = cpu_time();
    while !ended.load(Ordering::Relaxed) {
        // Read the pressure without the lock, because starts wait for the lock.
        let memory = spare_memory.look(Instant::now());
        let Some(warm) = state.upgrade() else { return };
        let (work, discarded) = warm.lock().next_work(memory);
        drop(discarded);
        drop(warm);
        let mut done = Vec::new();
        match work {
            Work::Park { target, recipe, object } => {
                match ParkingProcess::begin(target, recipe, object, starter.clone()) {
                    Ok(process) => parking.push(process),
                    Err(why) => done.push((target, Err(why))),
                }
            }
            Work::Fork(parent, count) => {
                let forked = parent.lock().fork(count);
                let Some(warm) = state.upgrade() else { return };
                warm.lock().finish_keeper_fork(parent, count, forked);
            }
            Work::ReadLoad => {
                let load = spare_cpu.look(Instant::now());
                let Some(warm) = state.upgrade() else { return };
                warm.lock().load = Some(load);
            }
            Work::Wait(deadline) => {
                let before = std::mem::replace(&mut used, cpu_time());
                let Some(warm) = state.upgrade() else { return };
                warm.lock().record_keeper_time(used.saturating_sub(before));
                drop(warm);
                timer.wait(deadline, &parking);
            }
        }
        parking.retain_mut(|process| {
            let outcome = process.poll_outcome();
            let is_unfinished = outcome.is_none();
            done.extend(outcome.map(|outcome| (process.target, outcome)));
            is_unfinished
        });
        for (target, outcome) in done {
            let Some(warm) = state.upgrade() else { return };
            let unwanted = warm.lock().finish_parking(target, outcome);
            drop(unwanted);
        }
    }
}
