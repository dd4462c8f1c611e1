// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread that moves all asynchronous runs on. It starts with the first, and ends when it has been idle for a while.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::event::{EventfdFlags, Timespec, eventfd};
use spawnfd_sys::{call, fork_generation};

use super::capture::{Part, Running};
use super::{Output, Stop};
use crate::error::{Error, Result, Stage, errno};

/// How long the thread waits for another run before it ends.
const IDLE: Duration = Duration::from_millis(500);

/// The event that only wakes.
const WAKE: u64 = u64::MAX;

type Done = Box<dyn FnOnce(Result<Output>) + Send>;

/// A run under way in the engine.
#[derive(Debug, Clone)]
pub struct RunHandle {
    engine: Arc<Engine>,
    id: u64,
}

impl RunHandle {
    /// Kills the program and its process group, if it still runs. The callback is called as ever, with what has come out so far.
    pub fn cancel(&self) {
        let mut state = self.engine.lock();
        if let Some(job) = state.jobs.get_mut(&self.id) {
            job.running.end(Stop::Cancelled);
        }
    }
}

struct Engine {
    poll: OwnedFd,
    wake: OwnedFd,
    state: Mutex<State>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    jobs: HashMap<u64, Job>,
    next: u64,
    /// The thread sleeps until then at the latest; what is due earlier has to wake it.
    sleeps_until: Option<Instant>,
    /// The thread has ended, or is about to: no new job here.
    over: bool,
}

struct Job {
    running: Running,
    done: Done,
}

/// The engine of this process, if one runs.
static CURRENT: Mutex<Option<(u64, Arc<Engine>)>> = Mutex::new(None);

/// Hands a run over.
pub(super) fn submit(running: Running, done: Done) -> Result<RunHandle> {
    let generation = fork_generation().map_err(|errno| Error::new(Stage::Capture, errno, "mmap()"))?;
    let mut current = CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let existing = current.as_ref().filter(|(theirs, _)| *theirs == generation).map(|(_, engine)| engine.clone());
    let mut job = Job { running, done };
    if let Some(engine) = existing {
        job = match engine.add(job)? {
            Ok(id) => return Ok(RunHandle { engine, id }),
            Err(job) => job,
        };
    }
    let engine = Arc::new(Engine::new()?);
    let id = match engine.add(job)? {
        Ok(id) => id,
        Err(_) => return Err(Error::new(Stage::Capture, spawnfd_sys::Errno::ECANCELED, "submit()")),
    };
    engine.start()?;
    *current = Some((generation, engine.clone()));
    Ok(RunHandle { engine, id })
}

impl Engine {
    fn new() -> Result<Engine> {
        let failed = |e| Error::new(Stage::Capture, errno(e), "epoll_create1(EPOLL_CLOEXEC)");
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        epoll::add(&poll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN).map_err(failed)?;
        Ok(Engine { poll, wake, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Starts the thread, all signals blocked: they are the host's.
    fn start(self: &Arc<Engine>) -> Result<()> {
        let failed = |errno| Error::new(Stage::Capture, errno, "pthread_create()");
        let engine = self.clone();
        let mask = call::set_signal_mask(u64::MAX).map_err(failed)?;
        let thread = std::thread::Builder::new().name("spawnfd-engine".into()).stack_size(256 << 10).spawn(move || engine.run());
        let _ = call::set_signal_mask(mask);
        thread.map(drop).map_err(|e| failed(crate::template::from_io(&e)))
    }

    /// Takes a job in and watches its descriptors. Gives it back when the thread is ending.
    fn add(&self, job: Job) -> Result<std::result::Result<u64, Job>> {
        let mut state = self.lock();
        if state.over {
            return Ok(Err(job));
        }
        let id = state.next;
        state.next += 1;
        for part in Part::ALL {
            let Some((fd, write)) = job.running.watched(part) else { continue };
            let flags = match (part, write) {
                (_, true) => epoll::EventFlags::OUT,
                // Readable for ever once the program has ended, and dealt with at once.
                (Part::Process, _) => epoll::EventFlags::IN | epoll::EventFlags::ONESHOT,
                _ => epoll::EventFlags::IN,
            };
            let data = epoll::EventData::new_u64(id << 2 | part as u64);
            if let Err(e) = epoll::add(&self.poll, fd, data, flags) {
                // Leaving the job closes what was added, which takes it out of the set.
                let mut job = job;
                job.running.end(Stop::Cancelled);
                return Err(Error::new(Stage::Capture, errno(e), "epoll_ctl(EPOLL_CTL_ADD)"));
            }
        }
        let due = job.running.deadline();
        state.jobs.insert(id, job);
        if due.is_some_and(|due| state.sleeps_until.is_none_or(|until| due < until)) {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        Ok(Ok(id))
    }

    fn run(&self) {
        let mut buffer = vec![0; 64 << 10];
        let mut events = Vec::with_capacity(64);
        let mut over = Vec::new();
        let mut idle_since = None;
        loop {
            let now = Instant::now();
            let until = {
                let mut state = self.lock();
                if state.jobs.is_empty() {
                    let since = *idle_since.get_or_insert(now);
                    if now.duration_since(since) >= IDLE {
                        state.over = true;
                        return;
                    }
                    state.sleeps_until = Some(since + IDLE);
                } else {
                    idle_since = None;
                    state.sleeps_until = state.jobs.values().filter_map(|job| job.running.deadline()).min();
                }
                state.sleeps_until
            };
            let left = until.map(|until| until.saturating_duration_since(now));
            let left = left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
            events.clear();
            // EINTR cannot be, as all signals are blocked; anything else would be a bug that the next turn meets again.
            let _ = epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), left.as_ref());
            self.turn(&events, &mut buffer, &mut over);
            // Outside the lock: a callback may submit the next run.
            for (job, outcome) in over.drain(..) {
                let Job { running, done } = job;
                done(outcome.map(|()| running.finish()));
            }
        }
    }

    /// Moves on what has events or is due, and takes out what is over.
    fn turn(&self, events: &[epoll::Event], buffer: &mut [u8], over: &mut Vec<(Job, Result<()>)>) {
        let mut guard = self.lock();
        let state = &mut *guard;
        for event in events {
            let data = event.data.u64();
            if data == WAKE {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                continue;
            }
            let id = data >> 2;
            let part = Part::ALL[(data & 3) as usize];
            // An event of a job that has left in this same turn finds nobody.
            let Some(job) = state.jobs.get_mut(&id) else { continue };
            let outcome = job.running.ready(part, buffer);
            if (outcome.is_err() || job.running.is_over())
                && let Some(job) = state.jobs.remove(&id)
            {
                over.push((job, outcome));
            }
        }
        let now = Instant::now();
        let due = |job: &Job| job.running.deadline().is_some_and(|deadline| deadline <= now);
        let late: Vec<u64> = state.jobs.iter().filter(|(_, job)| due(job)).map(|(&id, _)| id).collect();
        for id in late {
            if let Some(job) = state.jobs.get_mut(&id) {
                job.running.tick(now);
                if job.running.is_over()
                    && let Some(job) = state.jobs.remove(&id)
                {
                    over.push((job, Ok(())));
                }
            }
        }
    }
}
