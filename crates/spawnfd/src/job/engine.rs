// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread that moves asynchronous runs on. It starts with the first, and ends when it has been idle for a while.
//!
//! It signals programs and looks for their descendants, so it serves only callers that have its [`Reach`]. Mostly that is all of a process;
//! threads that are confined, or scheduled, in another way have another engine.

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
use crate::host::numbers::Known;
use crate::host::per_process::PerProcess;
use crate::host::thread::{self, Leaving};
use crate::waker::{Waker, contained};

/// How long the thread waits for another run before it ends.
const IDLE: Duration = Duration::from_millis(500);

/// How long it can go unseen that the application has closed what a thread sleeps in, or what it watches.
pub(super) const UNSEEN: Duration = Duration::from_secs(5);

/// The event that only wakes.
const WAKE: u64 = u64::MAX;

type Done = Box<dyn FnOnce(Result<Output>) + Send>;

/// A run under way in the engine.
#[derive(Debug, Clone)]
pub struct RunHandle {
    /// One whose thread has ended is not kept, with its descriptors, by whoever keeps a job.
    engine: Weak<Engine>,
    id: u64,
}

impl RunHandle {
    /// Ends the program and its process tree, if it still runs, as a timeout would. The callback is called as ever, with what has come
    /// out so far.
    pub fn cancel(&self) {
        self.order(Order::End(None));
    }

    pub(super) fn order(&self, order: Order) {
        let Some(engine) = self.engine.upgrade() else { return };
        let mut inbox = engine.inbox.lock();
        // In a fork's copy there is no thread, and the run is not its own.
        if !inbox.over {
            inbox.orders.push((self.id, order));
            drop(inbox);
            engine.wake();
        }
    }

    /// Something to call that gives an order.
    pub(super) fn waker(&self, order: Order) -> Waker {
        let handle = self.clone();
        Waker::new(move || handle.order(order))
    }
}

/// What a handle can ask of a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// To be ended, within this time or the run's own.
    End(Option<Duration>),
    /// To look whether there is something to write.
    Feed,
    /// To look whether there is something to read.
    Read,
    /// To get a signal: all of the tree, or the program alone.
    Signal { signal: i32, tree: bool },
    /// To have its terminal changed.
    Resize(TerminalSize),
}

/// What the thread and those who submit to it share. The jobs themselves are the thread's own.
struct Engine {
    /// The thread's, and that of each caller.
    reach: Arc<Reach>,
    poll: Known,
    wake: Known,
    inbox: PerProcess<Inbox>,
}

#[derive(Default)]
struct Inbox {
    arrived: Vec<(u64, EngineRun)>,
    orders: Vec<(u64, Order)>,
    next: u64,
    /// How many runs are about to come.
    expected: usize,
    /// How many the thread has taken in, but for those that end with the results it is giving.
    taken: usize,
    /// The thread sleeps until then at the latest; what is due earlier has to wake it.
    sleeps_until: Option<Instant>,
    /// The thread has ended, or is about to: no new job here.
    over: bool,
}

struct EngineRun {
    running: RunState,
    /// Until the result is given; afterwards it is there for what it left behind.
    done: Option<Done>,
    /// The moment it is listed under in [`EngineState::due`].
    listed: Option<Instant>,
}

#[derive(Default)]
struct Engines {
    /// Those that run. No two of them have the same reach.
    running: Vec<Arc<Engine>>,
    /// The threads that have ended, and may still be there.
    leaving: Vec<Leaving>,
}

static ENGINES: PerProcess<Engines> = PerProcess::new(Engines { running: Vec::new(), leaving: Vec::new() });

/// Ends the threads that have no runs. `false`: one of them has.
pub(crate) fn end_if_idle() -> bool {
    // Each is asked, also after one that has runs.
    ENGINES.lock().running.iter().filter(|engine| !engine.end_if_idle()).count() == 0
}

/// Whether a thread has been told to end, or has ended by itself, and is still there.
pub(crate) fn is_leaving() -> bool {
    let engines = ENGINES.lock();
    engines.running.iter().any(|engine| engine.inbox.lock().over)
        || engines.leaving.iter().any(|thread| thread.is_there())
}

/// Begins a run that is given its handle before it starts, and hands it over. What else it gives comes with the handle.
pub(super) fn submit<T>(begin: impl FnOnce(&RunHandle) -> Result<(RunState, T)>, done: Done) -> Result<(RunHandle, T)> {
    let mut expected = enroll()?;
    let handle = RunHandle { engine: Arc::downgrade(&expected.engine), id: expected.id };
    let (running, more) = begin(&handle)?;
    expected.engine.add(expected.id, running, done)?;
    expected.has_come = true;
    Ok((handle, more))
}

/// A run that is about to come to an engine, which waits for it: also where that unwinds.
struct Expected {
    engine: Arc<Engine>,
    id: u64,
    has_come: bool,
}

impl Drop for Expected {
    fn drop(&mut self) {
        if !self.has_come {
            self.engine.inbox.lock().expected -= 1;
            // It sleeps without limit for one that is to come.
            self.engine.wake();
        }
    }
}

/// A run to come, and an engine that has the calling thread's reach.
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
        let poll = Known::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?);
        let wake = Known::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?);
        epoll::add(&poll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN).map_err(failed)?;
        let in_copy = || Inbox { over: true, ..Inbox::default() };
        Ok(Engine { reach, poll, wake, inbox: PerProcess::here(Inbox::default(), in_copy) })
    }

    /// Starts the thread.
    fn start(self: &Arc<Engine>) -> Result<()> {
        let engine = self.clone();
        let mask = thread::mask_in_engine().unwrap_or_else(call::signal_mask);
        let body = move || {
            thread::become_engine(mask);
            engine.run_as(|state| engine.serve(state));
        };
        thread::start_thread("spawnfd-engine", thread::ORDINARY_STACK, body)
            .map(drop)
            .map_err(|errno| Error::new(Stage::Capture, errno, "pthread_create()"))
    }

    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    /// Whether its numbers still mean what they meant. The application may have put something else there.
    fn is_whole(&self) -> bool {
        self.watches(self.wake.as_fd())
    }

    /// Whether a number is still that of the file that was added under it: both are what the kernel knows it by.
    fn watches(&self, fd: BorrowedFd<'_>) -> bool {
        let added = epoll::add(&self.poll, fd, epoll::EventData::new_u64(WAKE), epoll::EventFlags::empty());
        if added.is_ok() {
            let _ = epoll::delete(&self.poll, fd);
        }
        added == Err(rustix::io::Errno::EXIST)
    }

    /// Whether that is so of all that a run uses.
    fn watches_all(&self, running: &RunState) -> bool {
        Part::ALL.into_iter().filter_map(|part| running.watched(part)).all(|(fd, _)| self.watches(fd))
    }

    /// A number for a run that is about to come. `None` when the thread is ending, or can do no more.
    fn expect(&self) -> Option<u64> {
        let mut inbox = self.inbox.lock();
        if inbox.over || !self.is_whole() {
            return None;
        }
        inbox.expected += 1;
        inbox.next += 1;
        Some(inbox.next)
    }

    /// Takes a run in and watches its descriptors.
    fn add(&self, id: u64, running: RunState, done: Done) -> Result<()> {
        // Held until the job is in: the thread that gets its first event finds it then.
        let mut inbox = self.inbox.lock();
        if inbox.over {
            return Err(lost());
        }
        for part in Part::ALL {
            let Some((fd, write)) = running.watched(part) else { continue };
            // News only: a pipe's end stays in the set, hung up, for as long as a child that is just being started has its
            // copy of our table.
            let flags = if write { epoll::EventFlags::OUT } else { epoll::EventFlags::IN } | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(id << 2 | part as u64);
            if let Err(e) = epoll::add(&self.poll, fd, data, flags) {
                // Leaving the job closes what was added, which takes it out of the set.
                return Err(Error::new(Stage::Capture, errno(e), "epoll_ctl(EPOLL_CTL_ADD)"));
            }
        }
        let due = running.deadline();
        inbox.arrived.push((id, EngineRun { running, done: Some(done), listed: None }));
        // Not later: it may have ended by then, and nothing would wake the thread any more.
        inbox.expected -= 1;
        if due.is_some_and(|due| inbox.sleeps_until.is_none_or(|until| due < until)) {
            self.wake();
        }
        Ok(())
    }

    /// The same, of this one.
    fn end_if_idle(&self) -> bool {
        let mut inbox = self.inbox.lock();
        if !inbox.over && inbox.expected + inbox.arrived.len() + inbox.taken == 0 {
            inbox.over = true;
            self.wake();
        }
        inbox.over
    }

    /// The thread's main function. However `serve` ends, the runs that are left get an error, and later runs another engine.
    fn run_as(self: &Arc<Engine>, serve: impl FnOnce(&mut EngineState)) {
        let mut state = EngineState { buffer: vec![0; 64 << 10], ..EngineState::default() };
        let has_unwound = contained(|| serve(&mut state)).is_none();
        {
            let mut inbox = self.inbox.lock();
            inbox.over = true;
            state.take(&mut inbox);
        }
        let mut engines = ENGINES.lock();
        engines.running.retain(|engine| !Arc::ptr_eq(engine, self));
        engines.leaving.retain(|thread| thread.is_there());
        engines.leaving.extend(Leaving::now());
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
            // EINTR is libc's own signals'. What has brought an event is an epoll, ours as far as the kernel tells those apart.
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
                    // Nothing is locked: who is told of output may give the next order.
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
                // Before whoever has a result can ask whether all are over.
                state.take(&mut self.inbox.lock());
            }
            state.give();
        }
    }
}

/// Why a run ends that is not watched any more.
fn lost() -> Error {
    Error::new(Stage::Capture, Errno::EBADF, "epoll_wait()")
}

/// Why a run ends that somebody's panic has ended: of the bytes it is fed with, mostly.
fn unwound() -> Error {
    Error::new(Stage::Capture, Errno::EIO, "a panic")
}

/// Moves a run on. A panic ends this run only: the thread serves others.
fn moved_on<T>(on: impl FnOnce() -> T) -> Result<T> {
    contained(on).ok_or_else(unwound)
}

/// What an event says.
struct News {
    id: u64,
    part: Part,
    hung_up: bool,
}

/// The runs of the thread, and its work on them.
#[derive(Default)]
struct EngineState {
    jobs: HashMap<u64, EngineRun>,
    /// When each job is to be looked at, if nothing comes before.
    due: BTreeSet<(Instant, u64)>,
    /// Streams that had more than one turn's worth.
    again: Vec<News>,
    /// Results to be given.
    done: Vec<(Done, Result<Output>)>,
    buffer: Vec<u8>,
}

impl EngineState {
    /// Takes over the runs that have come in.
    fn take(&mut self, inbox: &mut Inbox) {
        for (id, job) in inbox.arrived.drain(..) {
            self.jobs.insert(id, job);
            self.list(id);
        }
        inbox.taken = self.jobs.len();
    }

    /// An event has come: moves its job on, unless the number is the application's by now. The event is of the file that was added, which
    /// lives on in any copy of our table: that of a child on its way to exec, or a fork's.
    fn heard(&mut self, engine: &Engine, news: News) {
        let is_ours = |job: &EngineRun| job.running.watched(news.part).is_none_or(|(fd, _)| engine.watches(fd));
        if self.jobs.get(&news.id).is_some_and(is_ours) {
            self.news(news);
        } else {
            self.look(engine, news.id);
        }
    }

    /// Gives a run up whose numbers the application has closed, or put something else at.
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
        // Of a job that is over nothing is left to be done.
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let running = &mut job.running;
        let mut outcome = Ok(());
        match order {
            Order::End(grace) => outcome = moved_on(|| running.end(Stop::Cancelled, grace)),
            Order::Feed => return self.news(News { id, part: Part::Stdin, hung_up: false }),
            Order::Read => {
                // What was passed over while nobody wanted it is not reported again: read as if it were the end.
                self.news(News { id, part: Part::Stdout, hung_up: true });
                return self.news(News { id, part: Part::Stderr, hung_up: true });
            }
            Order::Signal { signal, tree: true } => running.signal_tree(signal),
            Order::Signal { signal, tree: false } => running.signal(signal),
            Order::Resize(size) => running.resize(size),
        }
        self.settle(id, outcome);
    }

    /// Lists a job under its deadline, which may have changed.
    fn list(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let due = job.running.deadline();
        if job.listed != due {
            job.listed.map(|listed| self.due.remove(&(listed, id)));
            due.map(|due| self.due.insert((due, id)));
            job.listed = due;
        }
    }

    /// Moves a job on.
    fn news(&mut self, news: News) {
        // An event of a job that has left in this same turn finds nobody.
        let Some(job) = self.jobs.get_mut(&news.id) else { return };
        let outcome =
            moved_on(|| job.running.news(news.part, news.hung_up, &mut self.buffer)).and_then(|outcome| outcome);
        let id = news.id;
        if matches!(outcome, Ok(false)) && !job.running.is_over() {
            self.again.push(news);
        }
        self.settle(id, outcome.map(drop));
    }

    /// The clock has moved. Each job has one turn, whatever is due then: there are others.
    fn tick(&mut self, engine: &Engine, now: Instant) {
        let due: Vec<u64> = self.due.range(..=(now, u64::MAX)).map(|&(_, id)| id).collect();
        for id in due {
            self.look(engine, id);
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            let outcome = moved_on(|| job.running.tick(now, &mut self.buffer));
            self.settle(id, outcome);
        }
    }

    /// Gives the results that are there. Nothing is locked: a callback may submit the next run.
    fn give(&mut self) {
        for (done, output) in self.done.drain(..) {
            contained(|| done(output));
        }
    }

    /// Nobody is watched any more. Unless that is because of a panic, the runs' numbers may be the application's.
    fn give_up(&mut self, has_unwound: bool) {
        for (_, EngineRun { running, done, .. }) in self.jobs.drain() {
            let why = if has_unwound { unwound() } else { lost() };
            contained(|| if has_unwound { drop(running) } else { running.abandon() });
            self.done.extend(done.map(|done| (done, Err(why))));
        }
        self.give();
    }

    /// Gives the result if it is there, and lets go of a job that is over.
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
    fn one_that_unwinds_is_over() {
        let reach = Reach::of_calling_thread(Stage::Capture).expect("/proc");
        let engine = Arc::new(Engine::new(reach).expect("descriptors"));
        assert!(engine.expect().is_some());
        engine.run_as(|_| panic!("this test's own"));
        assert!(engine.expect().is_none());
    }

    #[test]
    fn a_run_that_unwinds_as_it_begins_is_not_expected_any_more() {
        spawnfd_tests::deadline(Duration::from_secs(60), || {
            let mut engine = None;
            let begun = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let begin = |handle: &RunHandle| -> Result<(RunState, ())> {
                    engine = handle.engine.upgrade();
                    panic!("this test's own");
                };
                submit(begin, Box::new(|_| ())).map(drop)
            }));
            assert!(begun.is_err());
            let engine = engine.expect("it has begun");
            // Other tests' runs come and go.
            while engine.inbox.lock().expected != 0 {
                std::thread::yield_now();
            }
        });
    }
}
