// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine: a thread that moves asynchronous runs on. It starts with the first run, and ends after it has been
//! idle for a while.
//!
//! The thread signals programs and searches for their descendants, so it serves only callers with the same [`Reach`].
//! Usually one engine serves all threads of a process. Threads that are confined or scheduled differently have
//! another engine.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use spawnfd_sys::{Errno, call};

use super::run_state::{Part, RunState};
use super::{Output, Stop, TerminalSize};
use crate::error::{Error, Result, Stage, errno};
use crate::host::authority::Reach;
use crate::host::descriptors::CheckedFd;
use crate::host::per_process::PerProcess;
use crate::host::thread::{self, ExitingThread};
use crate::waker::{Waker, catch_panic};

/// How long an idle thread waits for another run before it ends.
const IDLE: Duration = Duration::from_millis(500);

/// The pause between two checks whether the application has closed descriptors that a thread polls or watches.
pub(super) const UNSEEN: Duration = Duration::from_secs(5);

/// The event that only wakes the thread.
const WAKE: u64 = u64::MAX;

type Done = Box<dyn FnOnce(Result<Output>) + Send>;

/// A run that the engine moves on.
#[derive(Debug, Clone)]
pub struct RunHandle {
    /// Weak: the handle of a job must not keep an engine whose thread has ended, and its descriptors.
    engine: Weak<Engine>,
    id: u64,
}

impl RunHandle {
    /// Ends the program and its process tree, if the program still runs, as a timeout would. The library still calls
    /// the callback, with the output so far.
    pub fn cancel(&self) {
        self.order(Order::End(None));
    }

    pub(super) fn order(&self, order: Order) {
        let Some(engine) = self.engine.upgrade() else { return };
        let mut inbox = engine.inbox.lock();
        // A fork's copy of the host has no engine thread, and the program is not its child.
        if !inbox.over {
            inbox.orders.push((self.id, order));
            drop(inbox);
            engine.wake();
        }
    }

    /// A waker that gives this order.
    pub(super) fn waker(&self, order: Order) -> Waker {
        let handle = self.clone();
        Waker::new(move || handle.order(order))
    }
}

/// An order from a handle to its run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// End the program, with this time between SIGTERM and SIGKILL; `None`: the run's own.
    End(Option<Duration>),
    /// Check for input to write.
    Feed,
    /// Check for output to read.
    Read,
    /// Send a signal to the whole tree, or to the program alone.
    Signal { signal: i32, tree: bool },
    /// Resize the terminal.
    Resize(TerminalSize),
}

/// The state that the engine's thread shares with submitting threads. The thread alone owns the runs.
struct Engine {
    /// The reach of the thread and of each caller.
    reach: Arc<Reach>,
    poll: CheckedFd,
    wake: CheckedFd,
    inbox: PerProcess<Inbox>,
}

#[derive(Default)]
struct Inbox {
    arrived: Vec<(u64, EngineRun)>,
    orders: Vec<(u64, Order)>,
    next: u64,
    /// The number of runs that callers are about to add.
    expected: usize,
    /// The number of runs that the thread has, except those that end with the results it is delivering.
    taken: usize,
    /// The latest end of the thread's sleep. A caller that adds a run with an earlier deadline wakes the thread.
    sleeps_until: Option<Instant>,
    /// The thread has ended, or is about to: this engine accepts no new run.
    over: bool,
}

struct EngineRun {
    running: RunState,
    /// The callback; `None` once it has the result. After that the run remains only for its surviving processes.
    done: Option<Done>,
    /// The time under which [`EngineState::due`] lists the run.
    listed: Option<Instant>,
}

#[derive(Default)]
struct Engines {
    /// The running engines. No two of them have the same reach.
    running: Vec<Arc<Engine>>,
    /// Threads that are ending, and may still exist.
    leaving: Vec<ExitingThread>,
}

static ENGINES: PerProcess<Engines> = PerProcess::new(Engines { running: Vec::new(), leaving: Vec::new() });

/// Ends the threads that have no runs. `false`: a thread has runs.
pub(crate) fn end_if_idle() -> bool {
    // Not `all()`: it would stop at the first engine that has runs.
    ENGINES.lock().running.iter().filter(|engine| !engine.end_if_idle()).count() == 0
}

/// Whether a thread that has been told to end, or has ended by itself, still exists.
pub(crate) fn is_leaving() -> bool {
    let engines = ENGINES.lock();
    engines.running.iter().any(|engine| engine.inbox.lock().over)
        || engines.leaving.iter().any(|thread| thread.is_running())
}

/// Creates the run's handle, starts the run, and adds it to an engine. Returns the handle and the other result of
/// `begin`.
pub(super) fn submit<T>(begin: impl FnOnce(&RunHandle) -> Result<(RunState, T)>, done: Done) -> Result<(RunHandle, T)> {
    let mut expected = enroll()?;
    let handle = RunHandle { engine: Arc::downgrade(&expected.engine), id: expected.id };
    let (running, more) = begin(&handle)?;
    expected.engine.add(expected.id, running, done)?;
    expected.has_come = true;
    Ok((handle, more))
}

/// A run that a caller is about to add to an engine, which waits for it. Dropping this without the run, also while
/// unwinding, cancels the wait.
struct Expected {
    engine: Arc<Engine>,
    id: u64,
    has_come: bool,
}

impl Drop for Expected {
    fn drop(&mut self) {
        if !self.has_come {
            self.engine.inbox.lock().expected -= 1;
            // An engine that expects a run does not count as idle. Wake it, so that it begins to measure its idle
            // time.
            self.engine.wake();
        }
    }
}

/// Registers an expected run with an engine that has the calling thread's reach.
fn enroll() -> Result<Expected> {
    let reach = Reach::of_calling_thread(Stage::Capture)?;
    let mut engines = ENGINES.lock();
    for engine in engines.running.iter().filter(|engine| engine.reach.equals(&reach)) {
        if let Some(id) = engine.expect() {
            return Ok(Expected { engine: engine.clone(), id, has_come: false });
        }
    }
    let engine = Arc::new(Engine::new(reach)?);
    let id = engine.expect().unwrap_or_default();
    engine.start()?;
    engines.running.push(engine.clone());
    Ok(Expected { engine, id, has_come: false })
}

impl Engine {
    fn new(reach: Arc<Reach>) -> Result<Engine> {
        let failed = |e| Error::new(Stage::Capture, errno(e), "epoll_create1(EPOLL_CLOEXEC)");
        let poll = CheckedFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?);
        let wake = CheckedFd::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?);
        epoll::add(&poll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN).map_err(failed)?;
        let in_copy = || Inbox { over: true, ..Inbox::default() };
        Ok(Engine { reach, poll, wake, inbox: PerProcess::for_this_process(Inbox::default(), in_copy) })
    }

    /// Starts the thread.
    fn start(self: &Arc<Engine>) -> Result<()> {
        let engine = self.clone();
        let mask = thread::mask_in_engine().unwrap_or_else(call::signal_mask);
        let body = move || {
            thread::become_engine(mask);
            engine.run_as(|state| engine.serve(state));
        };
        thread::start_thread("spawnfd-engine", thread::DEFAULT_STACK, body)
            .map(drop)
            .map_err(|errno| Error::new(Stage::Capture, errno, "pthread_create()"))
    }

    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether the engine's descriptors still refer to its own files. The application may have replaced them.
    fn is_whole(&self) -> bool {
        self.watches(self.wake.as_fd())
    }

    /// Whether a descriptor still refers to the file that was added to the epoll set. The kernel identifies an entry
    /// by number and file, so adding the same pair again fails with EEXIST.
    fn watches(&self, fd: BorrowedFd<'_>) -> bool {
        let added = epoll::add(&self.poll, fd, epoll::EventData::new_u64(WAKE), epoll::EventFlags::empty());
        if added.is_ok() {
            let _ = epoll::delete(&self.poll, fd);
        }
        added == Err(rustix::io::Errno::EXIST)
    }

    /// Whether the same is true of all descriptors of a run.
    fn watches_all(&self, running: &RunState) -> bool {
        Part::ALL.into_iter().filter_map(|part| running.watched(part)).all(|(fd, _)| self.watches(fd))
    }

    /// The id of an expected run. `None` if the thread is ending, or its descriptors are lost.
    fn expect(&self) -> Option<u64> {
        let mut inbox = self.inbox.lock();
        if inbox.over || !self.is_whole() {
            return None;
        }
        inbox.expected += 1;
        inbox.next += 1;
        Some(inbox.next)
    }

    /// Adds a run and watches its descriptors.
    fn add(&self, id: u64, running: RunState, done: Done) -> Result<()> {
        // Locked until the run is in the inbox: the thread finds the run when it gets the first event.
        let mut inbox = self.inbox.lock();
        if inbox.over {
            return Err(lost());
        }
        for part in Part::ALL {
            let Some((fd, write)) = running.watched(part) else { continue };
            // Edge-triggered: a pipe's end stays in the set and keeps reporting a hangup, as long as a child that is
            // just starting has a copy of this descriptor table.
            let flags = if write { epoll::EventFlags::OUT } else { epoll::EventFlags::IN } | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(id << 2 | part as u64);
            if let Err(e) = epoll::add(&self.poll, fd, data, flags) {
                // Dropping the run closes its descriptors, which removes them from the set.
                return Err(Error::new(Stage::Capture, errno(e), "epoll_ctl(EPOLL_CTL_ADD)"));
            }
        }
        let due = running.deadline();
        inbox.arrived.push((id, EngineRun { running, done: Some(done), listed: None }));
        // In the same critical section: after it, the thread may have finished the run, and nothing would wake it
        // again.
        inbox.expected -= 1;
        if due.is_some_and(|due| inbox.sleeps_until.is_none_or(|until| due < until)) {
            self.wake();
        }
        Ok(())
    }

    /// Ends this engine's thread if it has no runs. Returns whether it is ending.
    fn end_if_idle(&self) -> bool {
        let mut inbox = self.inbox.lock();
        if !inbox.over && inbox.expected + inbox.arrived.len() + inbox.taken == 0 {
            inbox.over = true;
            self.wake();
        }
        inbox.over
    }

    /// The thread's main function. However `serve` ends, the remaining runs get an error, and later runs use another
    /// engine.
    fn run_as(self: &Arc<Engine>, serve: impl FnOnce(&mut EngineState)) {
        let mut state = EngineState { buffer: vec![0; 64 << 10], ..EngineState::default() };
        let has_unwound = catch_panic(|| serve(&mut state)).is_none();
        {
            let mut inbox = self.inbox.lock();
            inbox.over = true;
            state.take(&mut inbox);
        }
        let mut engines = ENGINES.lock();
        engines.running.retain(|engine| !Arc::ptr_eq(engine, self));
        engines.leaving.retain(|thread| thread.is_running());
        engines.leaving.extend(ExitingThread::now());
        drop(engines);
        state.give_up(has_unwound);
    }

    fn serve(&self, state: &mut EngineState) {
        let mut events = Vec::with_capacity(64);
        let mut idle_since = None;
        let mut looked = Instant::now();
        loop {
            let now = Instant::now();
            let until = {
                let mut inbox = self.inbox.lock();
                state.take(&mut inbox);
                if inbox.over {
                    return;
                }
                if state.jobs.is_empty() && inbox.expected == 0 {
                    let since = *idle_since.get_or_insert(now);
                    if now.duration_since(since) >= IDLE {
                        inbox.over = true;
                        return;
                    }
                    inbox.sleeps_until = Some(since + IDLE);
                } else {
                    idle_since = None;
                    inbox.sleeps_until = state.due.first().map(|&(due, _)| due);
                }
                inbox.sleeps_until
            };
            let left = if state.again.is_empty() {
                until.map(|until| until.saturating_duration_since(now))
            } else {
                Some(Duration::ZERO)
            };
            let left = Timespec::try_from(left.map_or(UNSEEN, |left| left.min(UNSEEN))).ok();
            events.clear();
            let waited = epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), left.as_ref());
            // EINTR comes from libc's internal signals. A descriptor that returns events is an epoll descriptor, and
            // most likely this engine's, so it is checked only when no event comes.
            let is_lost = matches!(waited, Err(error) if error != rustix::io::Errno::INTR);
            if is_lost || events.is_empty() && !self.is_whole() {
                return;
            }
            if now.duration_since(looked) >= UNSEEN {
                looked = now;
                state.jobs.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| state.look(self, id));
            }
            for event in std::mem::take(&mut state.again) {
                state.heard(self, event);
            }
            for event in &events {
                let data = event.data.u64();
                if data == WAKE {
                    if let Some(wake) = self.wake.get() {
                        let _ = rustix::io::read(wake, &mut [0; 8]);
                    }
                    let orders = {
                        let mut inbox = self.inbox.lock();
                        state.take(&mut inbox);
                        std::mem::take(&mut inbox.orders)
                    };
                    // No lock is held: a consumer that is notified of output may give the next order.
                    for (id, order) in orders {
                        state.look(self, id);
                        state.obey(id, order);
                    }
                    continue;
                }
                let (id, part) = (data >> 2, Part::ALL[(data & 3) as usize]);
                if !state.jobs.contains_key(&id) {
                    state.take(&mut self.inbox.lock());
                }
                let flags = event.flags;
                state.heard(self, News { id, part, hung_up: flags.contains(epoll::EventFlags::HUP) });
            }
            state.tick(self, Instant::now());
            if !state.done.is_empty() {
                // Update the count before a receiver of a result can ask whether all runs are over.
                state.take(&mut self.inbox.lock());
            }
            state.give();
        }
    }
}

/// The error of a run that the engine can no longer watch.
fn lost() -> Error {
    Error::new(Stage::Capture, Errno::EBADF, "epoll_wait()")
}

/// The error of a run that a panic has ended, usually a panic in the source of its input.
fn unwound() -> Error {
    Error::new(Stage::Capture, Errno::EIO, "a panic")
}

/// Moves a run on. A panic ends this run only, because the thread serves other runs.
fn moved_on<T>(on: impl FnOnce() -> T) -> Result<T> {
    catch_panic(on).ok_or_else(unwound)
}

/// An event on a descriptor of a run.
struct News {
    id: u64,
    part: Part,
    hung_up: bool,
}

/// The thread's runs, and the work that is due on them.
#[derive(Default)]
struct EngineState {
    jobs: HashMap<u64, EngineRun>,
    /// The time of each run's next check, if no event comes before.
    due: BTreeSet<(Instant, u64)>,
    /// Streams with more data than one turn reads.
    again: Vec<News>,
    /// Results to deliver.
    done: Vec<(Done, Result<Output>)>,
    buffer: Vec<u8>,
}

impl EngineState {
    /// Takes over the runs in the inbox.
    fn take(&mut self, inbox: &mut Inbox) {
        for (id, job) in inbox.arrived.drain(..) {
            self.jobs.insert(id, job);
            self.list(id);
        }
        inbox.taken = self.jobs.len();
    }

    /// Handles an event, unless the application has replaced the run's descriptor. Events belong to the file that was
    /// added. That file lives on in any copy of this descriptor table: in a child before exec, or in a forked
    /// process.
    fn heard(&mut self, engine: &Engine, news: News) {
        let is_ours = |job: &EngineRun| job.running.watched(news.part).is_none_or(|(fd, _)| engine.watches(fd));
        if self.jobs.get(&news.id).is_some_and(is_ours) {
            self.news(news);
        } else {
            self.look(engine, news.id);
        }
    }

    /// Gives a run up if the application has closed or replaced one of its descriptors.
    fn look(&mut self, engine: &Engine, id: u64) {
        if self.jobs.get(&id).is_some_and(|job| !engine.watches_all(&job.running))
            && let Some(job) = self.remove(id)
        {
            job.running.abandon();
            self.done.extend(job.done.map(|done| (done, Err(lost()))));
        }
    }

    fn remove(&mut self, id: u64) -> Option<EngineRun> {
        let job = self.jobs.remove(&id)?;
        job.listed.map(|listed| self.due.remove(&(listed, id)));
        Some(job)
    }

    fn obey(&mut self, id: u64, order: Order) {
        // A run that is over needs nothing.
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let running = &mut job.running;
        let mut outcome = Ok(());
        match order {
            Order::End(grace) => outcome = moved_on(|| running.end(Stop::Cancelled, grace)),
            Order::Feed => return self.news(News { id, part: Part::Stdin, hung_up: false }),
            Order::Read => {
                // The edge-triggered event of unread output does not come again, so read until the pipe is empty, as
                // at a hangup.
                self.news(News { id, part: Part::Stdout, hung_up: true });
                return self.news(News { id, part: Part::Stderr, hung_up: true });
            }
            Order::Signal { signal, tree: true } => running.signal_tree(signal),
            Order::Signal { signal, tree: false } => running.signal(signal),
            Order::Resize(size) => running.resize(size),
        }
        self.settle(id, outcome);
    }

    /// Updates the deadline under which the run is listed.
    fn list(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let due = job.running.deadline();
        if job.listed != due {
            job.listed.map(|listed| self.due.remove(&(listed, id)));
            due.map(|due| self.due.insert((due, id)));
            job.listed = due;
        }
    }

    /// Handles an event of a run.
    fn news(&mut self, news: News) {
        // The run may have ended in this same turn.
        let Some(job) = self.jobs.get_mut(&news.id) else { return };
        let outcome =
            moved_on(|| job.running.news(news.part, news.hung_up, &mut self.buffer)).and_then(|outcome| outcome);
        let id = news.id;
        if matches!(outcome, Ok(false)) && !job.running.is_over() {
            self.again.push(news);
        }
        self.settle(id, outcome.map(drop));
    }

    /// Handles deadlines. Each run gets one call, even if more is due then, so that other runs get theirs.
    fn tick(&mut self, engine: &Engine, now: Instant) {
        let due: Vec<u64> = self.due.range(..=(now, u64::MAX)).map(|&(_, id)| id).collect();
        for id in due {
            self.look(engine, id);
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let outcome = moved_on(|| job.running.tick(now, &mut self.buffer));
            self.settle(id, outcome);
        }
    }

    /// Delivers the results. No lock is held: a callback may submit the next run.
    fn give(&mut self) {
        for (done, output) in self.done.drain(..) {
            catch_panic(|| done(output));
        }
    }

    /// Ends all runs with an error. Unless a panic is the cause, the application may have replaced the runs'
    /// descriptors, so the runs are abandoned.
    fn give_up(&mut self, has_unwound: bool) {
        for (_, EngineRun { running, done, .. }) in self.jobs.drain() {
            let why = if has_unwound { unwound() } else { lost() };
            catch_panic(|| if has_unwound { drop(running) } else { running.abandon() });
            self.done.extend(done.map(|done| (done, Err(why))));
        }
        self.give();
    }

    /// Queues the result if the run is done, and removes a run that is over.
    fn settle(&mut self, id: u64, outcome: Result<()>) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let failed = outcome.is_err();
        if (failed || job.running.is_done())
            && let Some(done) = job.done.take()
        {
            let output = outcome.map(|()| job.running.finish());
            self.done.push((done, output));
        }
        self.list(id);
        if failed || self.jobs.get(&id).is_some_and(|job| job.running.is_over()) {
            drop(self.remove(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panicking_engine_expects_no_more_runs() {
        let reach = Reach::of_calling_thread(Stage::Capture).expect("/proc");
        let engine = Arc::new(Engine::new(reach).expect("descriptors"));
        assert!(engine.expect().is_some());
        engine.run_as(|_| panic!("on purpose"));
        assert!(engine.expect().is_none());
    }

    #[test]
    fn a_run_that_panics_at_its_start_is_no_longer_expected() {
        spawnfd_tests::deadline(Duration::from_secs(60), || {
            let mut engine = None;
            let begun = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let begin = |handle: &RunHandle| -> Result<(RunState, ())> {
                    engine = handle.engine.upgrade();
                    panic!("on purpose");
                };
                submit(begin, Box::new(|_| ())).map(drop)
            }));
            assert!(begun.is_err());
            let engine = engine.expect("the run has begun");
            // Runs of other tests may use the same engine.
            while engine.inbox.lock().expected != 0 {
                std::thread::yield_now();
            }
        });
    }
}
