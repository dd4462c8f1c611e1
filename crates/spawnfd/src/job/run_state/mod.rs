// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of one supervised run: it starts, reads output, and ends. The caller's thread (`blocking.rs`) or the
//! engine's drives it. `result.rs` makes its result.

mod blocking;
mod result;
mod supervised;

use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionread;
use spawnfd_guard::process::ticks_now;

use super::limits::{LimitMonitor, Load};
use super::record::{OutputSource, SharedRecord};
use super::{Feed, FeedStatus, Leftovers, Limit, Producer, Pty, Resource, Run, Source, Stop, Stream};
use crate::child::Child;
use crate::error::Result;
use crate::limiter::Permit;
use crate::sandbox::SandboxDescriptor;
use crate::tree::Tree;
use supervised::Program;
pub(super) use supervised::SharedProgram;
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

/// The state of a descriptor, as an event reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Readiness {
    /// It is ready.
    Ready,
    /// Its other end is closed. It may have data.
    HungUp,
    /// Its other end is closed, and it has no data.
    Ended,
}

impl Readiness {
    /// `hung_up`: POLLHUP was reported. `may_have_data`: POLLIN was reported too, or is not watched.
    pub(super) fn of(hung_up: bool, may_have_data: bool) -> Readiness {
        match (hung_up, may_have_data) {
            (false, _) => Readiness::Ready,
            (true, true) => Readiness::HungUp,
            (true, false) => Readiness::Ended,
        }
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

/// The pause between two SIGKILLs to a tree that has not ended.
const KILL_INTERVAL: Duration = Duration::from_millis(20);

/// The number of reads from one stream before the thread serves other streams.
const READS_IN_A_ROW: usize = 4;

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
        let tree = connections.tree.take().unwrap_or_else(Tree::of_group);
        let program_and_tree = Box::new(Program::new(child, tree));
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
            record: Arc::new(SharedRecord::new(&run.record())),
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
        let running = self.running.due().filter(|_| self.awaits_program());
        self.deadline_of_phase().into_iter().chain(running).min()
    }

    /// The next deadline of the phase. That of the program may be earlier.
    fn deadline_of_phase(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running(at) => {
                let limits = self.limits.as_ref().and_then(|limits| limits.due());
                let idle = self.idle.map(|(_, check)| check);
                at.into_iter().chain(limits).chain(idle).min()
            }
            Phase::Ending(at) => at,
            Phase::Draining { until, check: (at, _) } => {
                Some(at).filter(|_| self.is_read()).into_iter().chain(until).min()
            }
            Phase::Killing { next_kill, .. } => Some(next_kill),
            Phase::Cut => self.next_check,
        }
    }

    /// Whether a deadline of the run has passed by `now`, at which it may signal processes.
    pub(super) fn signals_by(&self, now: Instant) -> bool {
        // The first search after the program's end does not signal the processes that it finds.
        let only_searches =
            |until: Option<Instant>, pause| until.is_none_or(|at| now < at) && pause == LEFTOVER_PAUSES.0;
        self.deadline().is_some_and(|deadline| deadline <= now)
            && !matches!(self.phase, Phase::Draining { until, check: (_, pause) } if only_searches(until, pause))
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

    /// Handles an event of a descriptor. The event may not be reported again. Returns `false` if the caller must call this again for the same event, after the events of other runs.
    pub(super) fn handle_event(&mut self, fd_kind: RunFd, readiness: Readiness, buffer: &mut [u8]) -> Result<bool> {
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
            RunFd::Stdout => Ok(self.read(Stream::Stdout, readiness, buffer)),
            RunFd::Stderr => Ok(self.read(Stream::Stderr, readiness, buffer)),
        }
    }

    /// Stops reading a terminal whose output belongs to another run from now on.
    fn leave_terminal(&mut self) {
        let leaves = self.running.is_in_shell();
        self.outputs[0].take_if(|source| leaves && source.is_terminal());
    }

    /// Reads all output, or as much as the event consumer accepts now. Returns `false` if there may be more output,
    /// which the caller must read after it has served other streams.
    fn read(&mut self, stream: Stream, readiness: Readiness, buffer: &mut [u8]) -> bool {
        if readiness == Readiness::Ended && self.outputs[stream.index()].as_ref().is_some_and(|it| !it.is_terminal()) {
            self.stream_ended(stream);
            return true;
        }
        // The job's consumer may have read the bytes that exceed the limit.
        self.check_output_limit();
        for _ in 0..READS_IN_A_ROW {
            if self.events.as_ref().is_some_and(|events| !events.wants_more()) {
                // When the consumer accepts more, it wakes the engine, which reads again.
                return true;
            }
            let Some(length) = self.read_once(stream, buffer) else { return true };
            // A read that does not fill the buffer has emptied the pipe. Later output causes a new event.
            if readiness == Readiness::Ready && length < buffer.len() {
                return true;
            }
        }
        false
    }

    /// Reads once and records the bytes. Returns their number; `None`: no bytes for now, or the end.
    fn read_once(&mut self, stream: Stream, buffer: &mut [u8]) -> Option<usize> {
        let output = self.outputs[stream.index()].clone()?;
        let push =
            |position, bytes: &[u8]| self.events.as_ref().and_then(|events| events.push(stream, position, bytes));
        let (length, consumer) = output.read_recorded(stream, &self.record, buffer, push)?;
        if length == 0 {
            // A terminal's end is not final: the program can open the terminal again as /dev/tty. Closing this end
            // would send SIGHUP to the program.
            if !output.is_terminal() || !self.awaits_program() {
                self.stream_ended(stream);
            }
            return None;
        }
        if let Some(consumer) = consumer {
            consumer.call();
        }
        self.check_output_limit();
        Some(length)
    }

    /// Stops reading a stream, which has no more output.
    fn stream_ended(&mut self, stream: Stream) {
        self.outputs[stream.index()] = None;
        if self.adopted && self.is_read() {
            self.events = None;
        }
    }

    /// Ends a program that has written more than its output limit.
    fn check_output_limit(&mut self) {
        let is_over = |limit| self.record.lock().seen() > limit;
        if matches!(self.phase, Phase::Running(_)) && self.options.output_limit.is_some_and(is_over) {
            self.end(Stop::OutputLimit, None);
        }
    }

    /// Reads the rest of the output after the program has ended, even if the consumer has not read earlier output.
    /// The rest is at most one full pipe, and would be lost when the pipe is closed.
    fn read_left(&mut self, stream: Stream, buffer: &mut [u8]) {
        let Some(output) = &self.outputs[stream.index()] else { return };
        // FIONREAD on a terminal reports at most 4 KiB, but a terminal may hold about 20 KiB.
        let mut left = if output.is_terminal() { 1 << 16 } else { ioctl_fionread(output.as_fd()).unwrap_or(0) };
        // Read once more than needed for `left`, to detect the end of the output.
        while let Some(length) = self.read_once(stream, buffer) {
            match left.checked_sub(length as u64) {
                Some(rest) => left = rest,
                None => return,
            }
        }
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
        if self.awaits_program() && self.running.due().is_some_and(|due| due <= now) {
            self.running.tick(now);
            self.handle_event(RunFd::Process, Readiness::Ready, buffer)?;
        }
        if self.deadline_of_phase().is_none_or(|deadline| now < deadline) {
            return Ok(());
        }
        match self.phase {
            Phase::Running(at) if at.is_none_or(|at| now < at) => {
                self.check_limits(now);
                self.check_idle(now);
            }
            Phase::Running(_) => self.end(Stop::Timeout, None),
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

    fn reap(&mut self) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        let Some(end) = self.running.reap(self.record.belongs_to_this_process())? else { return Ok(()) };
        let end = self.ended.insert(end);
        if self.given_up {
            // The run has given up, so only the status was still missing.
            return Ok(());
        }
        if !self.sigterm_sent && !self.kill_refused && !end.may_be_killed {
            // The program exited by itself before SIGKILL took effect.
            self.stop = Stop::Exited;
        }
        if self.stop == Stop::Exited
            && let Some(limit) = self.limits.as_ref().and_then(|limits| limits.at_end(end.status, end.usage))
        {
            (self.stop, self.limit) = (Stop::Limit, Some(limit));
        }
        self.begin_draining();
        Ok(())
    }

    /// Stops writing input, because the program has ended or the run has given up, and starts the drain time.
    fn begin_draining(&mut self) {
        self.input_refused |= self.feed.take().is_some_and(|feed| feed.has_more() || feed.refused());
        self.drain_for(self.options.drain);
    }

    fn drain_for(&mut self, drain: Duration) {
        let now = Instant::now();
        self.phase = Phase::Draining { until: now.checked_add(drain), check: (now, LEFTOVER_PAUSES.0) };
    }

    /// Ends a program that has written no output for its idle timeout.
    fn check_idle(&mut self, now: Instant) {
        let Some((timeout, _)) = self.idle.filter(|(_, check)| *check <= now) else { return };
        // Output since the last check postpones the end of the program.
        let due = self.record.lock().latest().checked_add(timeout);
        self.idle = due.filter(|due| now < *due).map(|due| (timeout, due));
        if self.idle.is_none() && due.is_some() && matches!(self.phase, Phase::Running(_)) {
            self.end(Stop::IdleTimeout, None);
        }
    }

    /// Ends a program whose tree has reached a limit.
    fn check_limits(&mut self, now: Instant) {
        let Some(mut limits) = self.limits.take() else { return };
        let reached = limits.check(now, || Load::of(&self.running.processes()));
        self.limits = Some(limits);
        if let Some(limit) = reached {
            (self.stop, self.limit) = (Stop::Limit, Some(limit));
            let grows = matches!(limit.resource, Resource::Pids | Resource::Memory);
            if grows {
                // Kill at once, because the tree may grow during the grace time. After SIGTERM, a process could also
                // exit and leave children that the search cannot find.
                self.running.kill();
            }
            self.end(Stop::Limit, grows.then_some(Duration::ZERO));
        }
    }

    /// Sends SIGTERM to the program's tree, and SIGKILL after `grace` (by default the run's own). If the program has
    /// already ended, the recorded reason of the stop does not change.
    pub(super) fn end(&mut self, stop: Stop, grace: Option<Duration>) {
        let grace = grace.unwrap_or(self.options.grace);
        if self.awaits_program() && matches!(self.reap(), Ok(())) && self.ended.is_some() {
            return;
        }
        if !self.awaits_program() {
            if self.phase != Phase::Cut {
                // The caller no longer waits for surviving processes. Read the rest of the output first.
                self.drain_for(Duration::ZERO);
            }
            if self.adopted && self.options.leftovers == Leftovers::Adopt {
                self.running.dispose(Leftovers::Kill);
                let mut buffer = vec![0; 32 << 10];
                Stream::ALL.into_iter().for_each(|stream| self.read_left(stream, &mut buffer));
                self.outputs = [None, None];
                self.next_check = None;
            }
            return;
        }
        if self.stop == Stop::Exited {
            self.stop = stop;
        }
        if grace.is_zero() {
            return self.kill();
        }
        let killed = Instant::now().checked_add(grace);
        match self.phase {
            // A second call can shorten the time until SIGKILL, but not extend it.
            Phase::Ending(at) => self.phase = Phase::Ending(at.into_iter().chain(killed).min()),
            Phase::Killing { .. } => {}
            _ => {
                self.phase = Phase::Ending(killed);
                self.sigterm_sent = true;
                self.running.terminate(grace);
            }
        }
    }

    /// Kills the program and its tree. The run repeats the call until the program ends, because a process may fork
    /// between the search for the tree's members and their kill. The next search finds the new process.
    fn kill(&mut self) {
        self.killed_at.get_or_insert_with(ticks_now);
        self.kill_refused = !self.running.kill();
        // Read the clock after the kill, which takes up to 2 s if it must first stop several processes.
        let now = Instant::now();
        let give_up_at = match self.phase {
            Phase::Killing { give_up_at, .. } => give_up_at,
            _ => now + self.running.kill_timeout(),
        };
        self.phase = Phase::Killing { next_kill: give_up_at.min(now + KILL_INTERVAL), give_up_at };
    }

    /// Ends the run without the program, unless its status has arrived by now. When the `RunState` is dropped, the
    /// reaper takes over the program.
    fn give_up(&mut self) {
        match self.reap() {
            Ok(()) if self.ended.is_none() => {
                self.given_up = true;
                self.begin_draining();
            }
            Ok(()) => {}
            // The next call of `reap` returns this error again, and its caller reports the error.
            Err(_) => self.phase = Phase::Ending(Instant::now().checked_add(KILL_INTERVAL)),
        }
    }

    /// Whether processes have outlived the program, as far as the library can know.
    fn any_survive(&mut self) -> bool {
        self.running.survivors(&[]).is_none_or(|left| !left.is_empty())
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
