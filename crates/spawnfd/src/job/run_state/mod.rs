// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of one supervised run. The caller's thread (`blocking.rs`) or the engine's drives it.

mod blocking;
mod ending;
mod output;
mod program;
mod supervised;

use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::limits::LimitMonitor;
use super::{Feed, FeedStatus, Keep, Leftovers, Limit, Producer, Pty, Record, Run, Source, Stop, Stream};
use crate::child::Child;
use crate::error::Result;
use crate::host::per_process::PerProcess;
use crate::limiter::Permit;
use crate::sandbox::SandboxDescriptor;
use crate::tree::Tree;
pub(super) use output::OutputSource;
use program::Program;
pub(super) use program::SharedProgram;
pub(crate) use supervised::{ProgramEnd, Supervised};

/// The descriptor that an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RunFd {
    Process,
    Stdin,
    Stdout,
    Stderr,
}

impl RunFd {
    pub(super) const ALL: [RunFd; 4] = [RunFd::Process, RunFd::Stdin, RunFd::Stdout, RunFd::Stderr];

    /// The descriptor of an output stream.
    pub(super) fn of(stream: Stream) -> RunFd {
        [RunFd::Stdout, RunFd::Stderr][stream.index()]
    }
}

/// The output so far. The run writes it; handles of the run read it.
#[derive(Debug)]
pub(super) struct SharedRecord {
    record: PerProcess<Record>,
    /// Notified when output arrives, if a thread waits.
    arrived: Condvar,
}

impl SharedRecord {
    pub(super) fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock()
    }

    fn belongs_to_this_process(&self) -> bool {
        self.record.belongs_to_this_process()
    }

    /// Closes the record of a run that ends without a result.
    fn close_without_result(&self) {
        let mut record = self.lock();
        if !record.is_closed() {
            record.close();
            self.announce(record);
        }
    }

    /// Unlocks the record, and then wakes the threads and the callback that wait for output.
    fn announce(&self, record: MutexGuard<'_, Record>) {
        let callback = record.callback.clone();
        if record.waiting > 0 {
            self.arrived.notify_all();
        }
        // The callback may call functions that lock the record.
        drop(record);
        if let Some(callback) = callback {
            callback.call();
        }
    }

    /// Waits until more than `seen` bytes have arrived or the record is closed, at most until `deadline`.
    pub(super) fn wait(&self, seen: u64, deadline: Option<Instant>) {
        let mut record = self.lock();
        record.waiting += 1;
        let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let is_old = |record: &mut Record| record.seen() <= seen && !record.is_closed();
        let waited = self.arrived.wait_timeout_while(record, left, is_old);
        waited.unwrap_or_else(PoisonError::into_inner).0.waiting -= 1;
    }
}

/// The phase of a run. Each phase except `Cut` ends at its time, if it has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The program runs. At this time, the timeout ends it.
    Running(Option<Instant>),
    /// The run has sent SIGTERM to the tree. At this time it sends SIGKILL.
    Ending(Option<Instant>),
    /// The run has sent SIGKILL. It sends the next one at `next_kill`. At `give_up_at` the run ends
    /// without the program.
    Killing { next_kill: Instant, give_up_at: Instant },
    /// The program has ended. Until `until`, the run reads its pipes, and leaves time to the processes that it will
    /// kill. `check` is the time of the next search for such processes, and the pause after that search.
    Draining { until: Option<Instant>, check: (Instant, Duration) },
    /// The run no longer reads the pipes.
    Cut,
}

/// A running program, its pipes, and their output so far.
#[derive(Debug)]
pub(crate) struct RunState {
    pub(super) running: Box<dyn Supervised>,
    program: String,
    started: Instant,
    phase: Phase,
    /// The time without output after which the run ends the program, and the time of the next check.
    idle: Option<(Duration, Instant)>,
    /// The options of the run, without its input.
    options: Run,
    limits: Option<Box<LimitMonitor>>,
    /// The run's places with its limiters. The run gives them back when the result is available.
    permits: Vec<Permit>,
    stop: Stop,
    limit: Option<Limit>,
    /// This run has sent SIGTERM to the program.
    sigterm_sent: bool,
    /// The time of this run's first SIGKILL, in the unit of
    /// [`ticks_now`](spawnfd_guard::process::ticks_now).
    killed_at: Option<u64>,
    /// The kernel refused the last SIGKILL (EPERM).
    kill_refused: bool,
    /// SIGKILL has not ended the program in time, so the run ends without the program's status.
    given_up: bool,
    /// Set once the program has ended.
    ended: Option<ProgramEnd>,
    feed: Option<Feed>,
    input_refused: bool,
    /// `None`: the run no longer reads the stream.
    outputs: [Option<Arc<OutputSource>>; 2],
    pub(super) record: Arc<SharedRecord>,
    events: Option<Producer>,
    /// The run has a result, and the job has adopted the surviving processes. The run still reads their output.
    adopted: bool,
    /// The time of the next check for surviving adopted processes; `None` once none remain.
    next_check: Option<Instant>,
}

/// The interval at which a thread checks whether the application has closed the descriptors that the thread watches.
pub(super) const RECHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The error text when the library can no longer watch a run.
pub(super) const REPLACED: &str = "the application has closed or replaced a descriptor of the library";

/// The first and the longest pause between two searches for processes that outlive the program, while the run leaves
/// them time to end. Each pause is twice as long as the previous one.
const LEFTOVER_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// The pause between two checks for surviving adopted processes.
const ADOPTED_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The parts of a run besides its program.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    /// The run has a job handle. Such a run may outlive the call that starts it, and may adopt processes that outlive
    /// the program.
    pub(crate) is_job: bool,
    /// The process tree that the library prepared before it started the program.
    pub(crate) tree: Option<Tree>,
    pub(crate) terminal: Option<Pty>,
    pub(crate) source: Option<Source>,
    pub(crate) events: Option<Producer>,
    pub(crate) limits: Option<LimitMonitor>,
    pub(crate) permits: Vec<Permit>,
    /// Descriptors for the sandbox command, in place of its own with the same numbers.
    pub(crate) given: Vec<SandboxDescriptor>,
}

impl Connections {
    /// The connections of a run with a job handle.
    pub(crate) fn of_job() -> Connections {
        Connections { is_job: true, ..Connections::default() }
    }
}

impl RunState {
    /// The state of a run whose program is a child of this process.
    pub(super) fn of_child(
        mut child: Child,
        program: String,
        started: Instant,
        run: &Run,
        mut connections: Connections,
    ) -> Result<RunState> {
        let stdin = child.stdin.take().map(OwnedFd::from);
        let outputs = [child.stdout.take(), child.stderr.take()];
        let program_and_tree = Box::new(Program::new(child, connections.tree.take()));
        RunState::new(program_and_tree, stdin, outputs, program, started, run, connections)
    }

    /// `stdin` and `outputs` are the library's ends of the program's pipes.
    pub(crate) fn new(
        running: Box<dyn Supervised>,
        stdin: Option<OwnedFd>,
        outputs: [Option<PipeReader>; 2],
        program: String,
        started: Instant,
        run: &Run,
        connections: Connections,
    ) -> Result<RunState> {
        let Connections { is_job, terminal, source, events, limits, permits, .. } = connections;
        let [stdout, stderr] = outputs.map(|pipe| pipe.map(OutputSource::Pipe));
        let stdout = terminal.map(OutputSource::Terminal).or(stdout);
        let leftovers = if is_job { run.leftovers } else { run.leftovers.without_job() };
        let options = Run { input: None, limiter: None, permit: None, leftovers, ..run.clone() };
        let mut state = RunState {
            running,
            program,
            started,
            phase: Phase::Running(run.timeout.and_then(|timeout| started.checked_add(timeout))),
            idle: run.idle_timeout.and_then(|timeout| Some((timeout, started.checked_add(timeout)?))),
            options,
            limits: limits.map(Box::new),
            permits,
            stop: Stop::Exited,
            limit: None,
            sigterm_sent: false,
            killed_at: None,
            kill_refused: false,
            given_up: false,
            ended: None,
            feed: None,
            input_refused: false,
            outputs: [stdout, stderr].map(|source| source.map(Arc::new)),
            record: Arc::new(SharedRecord {
                record: PerProcess::for_this_process(Record::new(&run.record()), || Record::new(&Keep::default())),
                arrived: Condvar::new(),
            }),
            events,
            adopted: false,
            next_check: None,
        };
        // From here on, a failure drops `state`, and that ends the program.
        state.outputs.iter().flatten().try_for_each(|source| source.stop_blocking())?;
        state.feed = match (source, stdin, state.outputs[0].as_deref()) {
            (Some(source), _, Some(OutputSource::Terminal(terminal))) => {
                Some(Feed::terminal(terminal.writer()?, source)?)
            }
            (Some(source), Some(pipe), _) => Some(Feed::new(pipe, source)?),
            _ => None,
        };
        state.running.begin()?;
        Ok(state)
    }

    /// The sources of the output, for a [reader](super::OutputReader).
    pub(super) fn sources(&self) -> [Weak<OutputSource>; 2] {
        self.outputs.each_ref().map(|source| source.as_ref().map(Arc::downgrade).unwrap_or_default())
    }

    /// The limits of commands, if the program is a shell.
    pub(super) fn command_limits(&self) -> Option<Box<LimitMonitor>> {
        self.limits.as_ref().map(|limits| Box::new(limits.for_command()))
    }

    /// The descriptor of this kind, and whether to watch it for writing.
    pub(super) fn watched(&self, fd_kind: RunFd) -> Option<(BorrowedFd<'_>, bool)> {
        match fd_kind {
            RunFd::Process => self.running.end_fd().filter(|_| self.ended.is_none()).map(|fd| (fd, false)),
            RunFd::Stdin => self.feed.as_ref().map(|feed| (feed.as_fd(), true)),
            RunFd::Stdout => self.outputs[0].as_ref().map(|output| (output.as_fd(), false)),
            RunFd::Stderr => self.outputs[1].as_ref().map(|output| (output.as_fd(), false)),
        }
    }

    /// The time of the next [`tick`](RunState::tick), if no event comes before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let report = self.running.report_due().filter(|_| self.awaits_program());
        self.deadline_of_phase().into_iter().chain(report).min()
    }

    /// The next deadline of the phase. A report of a shell may be due earlier.
    fn deadline_of_phase(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running(at) => {
                let limits = self.limits.as_ref().and_then(|limits| limits.due());
                let idle = self.idle.map(|(_, check)| check);
                at.into_iter().chain(limits).chain(idle).chain(self.running.due()).min()
            }
            Phase::Ending(at) => at.into_iter().chain(self.running.due()).min(),
            Phase::Draining { until, check: (at, _) } => {
                Some(at).filter(|_| self.is_read()).into_iter().chain(until).min()
            }
            Phase::Killing { next_kill, .. } => Some(next_kill),
            Phase::Cut => self.next_check,
        }
    }

    /// Whether the result is available.
    pub(super) fn is_done(&self) -> bool {
        !self.awaits_program() && self.phase == Phase::Cut
    }

    /// Whether the run still waits for the program's end.
    fn awaits_program(&self) -> bool {
        self.ended.is_none() && !self.given_up
    }

    fn is_read(&self) -> bool {
        self.outputs.iter().all(Option::is_none)
    }

    /// Whether the run is over: the result is available, and no adopted process or output remains.
    pub(super) fn is_over(&self) -> bool {
        self.is_done() && (!self.adopted || self.is_read() && self.next_check.is_none())
    }

    /// Handles an event of a descriptor. The event may not be reported again. `hung_up`: the other end is closed.
    /// Returns `false` if the caller must call this again for the same event, after the events of other runs.
    pub(super) fn handle_event(&mut self, fd_kind: RunFd, hung_up: bool, buffer: &mut [u8]) -> Result<bool> {
        match fd_kind {
            RunFd::Process => {
                self.reap()?;
                if self.ended.is_some() {
                    for stream in Stream::ALL {
                        // epoll does not report a terminal's hangup again, so read the rest of its output now.
                        let is_terminal =
                            self.outputs[stream.index()].as_ref().is_some_and(|source| source.is_terminal());
                        if is_terminal || self.events.as_ref().is_some_and(|events| !events.wants_more()) {
                            self.read_left(stream, buffer);
                        }
                    }
                    self.leave_terminal();
                }
                Ok(true)
            }
            RunFd::Stdin => Ok(self.write()),
            RunFd::Stdout => Ok(self.read(Stream::Stdout, hung_up, buffer)),
            RunFd::Stderr => Ok(self.read(Stream::Stderr, hung_up, buffer)),
        }
    }

    /// Stops reading a terminal whose output belongs to another run from now on.
    fn leave_terminal(&mut self) {
        let leaves = self.running.shares_terminal();
        self.outputs[0].take_if(|source| leaves && source.is_terminal());
    }

    fn write(&mut self) -> bool {
        let Some(feed) = &mut self.feed else { return true };
        match feed.write() {
            FeedStatus::Again => false,
            FeedStatus::Blocked | FeedStatus::Idle => true,
            FeedStatus::Done => {
                self.input_refused = feed.refused();
                self.feed = None;
                true
            }
        }
    }

    /// Handles deadlines: ends a program after its timeout. After the program's end, stops reading pipes that other
    /// processes keep open, and stops waiting for those processes.
    pub(super) fn tick(&mut self, now: Instant, buffer: &mut [u8]) -> Result<()> {
        if self.awaits_program() && self.running.report_due().is_some_and(|due| due <= now) {
            self.handle_event(RunFd::Process, false, buffer)?;
        }
        if self.deadline_of_phase().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        match self.phase {
            Phase::Running(at) if at.is_none_or(|at| now < at) => {
                self.running.tick(now);
                self.check_limits(now);
                self.check_idle(now);
            }
            Phase::Running(_) => self.end(Stop::Timeout, None),
            Phase::Ending(at) if at.is_none_or(|at| now < at) => self.running.tick(now),
            Phase::Killing { give_up_at, .. } if give_up_at <= now => self.give_up(),
            Phase::Ending(_) | Phase::Killing { .. } => self.kill(),
            Phase::Cut => {
                let any_left = self.any_survive();
                self.next_check = now.checked_add(ADOPTED_CHECK_INTERVAL).filter(|_| any_left);
            }
            Phase::Draining { until, check: (_, pause) } if until.is_none_or(|until| now < until) => {
                // The run has read its pipes. Processes that it will kill may still end by themselves.
                self.phase = if self.options.leftovers == Leftovers::Kill && self.any_survive() {
                    let next = (pause * 2).min(LEFTOVER_PAUSES.1);
                    Phase::Draining { until, check: (now + pause, next) }
                } else {
                    Phase::Cut
                };
            }
            Phase::Draining { .. } => {
                // Output may have arrived while this thread was not scheduled.
                Stream::ALL.into_iter().for_each(|stream| self.read_left(stream, buffer));
                self.phase = Phase::Cut;
            }
        }
        Ok(())
    }

    /// Changes the size of the terminal, if there is one.
    pub(super) fn resize(&self, size: super::TerminalSize) {
        if let Some(OutputSource::Terminal(terminal)) = self.outputs[0].as_deref() {
            let _ = terminal.resize(size);
        }
    }

    /// Abandons the run after the application has reused one of the run's descriptor numbers. The application may
    /// have reused the others too, so the library neither uses nor closes any of them. The library leaves the program
    /// alone.
    pub(super) fn abandon(mut self) {
        self.permits.clear();
        self.events = None;
        self.record.close_without_result();
        if let Some(feed) = self.feed.take() {
            feed.abandon();
        }
        std::mem::forget(self);
    }
}
