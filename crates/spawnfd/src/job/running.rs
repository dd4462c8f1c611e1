// SPDX-License-Identifier: MIT OR Apache-2.0
//! One supervised run, as a state that events move on: in the caller's thread, or in the engine's.

use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::ioctl_fionread;
use spawnfd_guard::process::Stat;
use spawnfd_sys::{Errno, abi, call};

use super::engine::UNSEEN;
use super::holders::holders;
use super::limits::Watch;
use super::{
    Drain, Fate, Feed, Feeding, Keep, Leftover, Leftovers, Limit, Output, Producer, Pty, Record, Recorded, Resource,
    Run, Source, Stop, Stream, leftovers,
};
use crate::child::Child;
use crate::error::{Error, Result, Stage};
use crate::host::per_process::PerProcess;
use crate::limiter::Permit;
use crate::tree::{Tier, Tree};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Process,
    Stdin,
    Stdout,
    Stderr,
}

impl Part {
    pub(super) const ALL: [Part; 4] = [Part::Process, Part::Stdin, Part::Stdout, Part::Stderr];
}

/// What has come out so far: written by who moves the run on, read by who holds its handle.
#[derive(Debug)]
pub(super) struct Log(PerProcess<Record>);

impl Log {
    pub(super) fn lock(&self) -> MutexGuard<'_, Record> {
        self.0.lock()
    }
}

/// How far a run has come. Each phase but the last ends by itself at a moment, if it has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Until its time is over.
    Running(Option<Instant>),
    /// It was told to end, and is killed at that moment.
    Ending(Option<Instant>),
    /// SIGKILL was sent. The next one follows at `again`. At `gives_up` the run ends without the program.
    Killing { again: Instant, gives_up: Instant },
    /// The program has ended; its pipes are read on until then.
    Draining(Option<Instant>),
    /// Its pipes are not read any more.
    Cut,
}

/// A program under way, its pipes, and what has come out of them.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    /// Its process tree. Where it was not asked for beforehand it is there as soon as something is to be done with it.
    tree: Option<Tree>,
    /// When it last had its number for sure, as [`Tree::now`] has it.
    seen: u64,
    /// The session it was born into, as [`Tree::home`] has it.
    home: i32,
    program: String,
    started: Instant,
    phase: Phase,
    /// When to look whether a parked process has begun to be the program.
    begins_by: Option<Instant>,
    grace: Duration,
    drain: Duration,
    leftovers: Leftovers,
    output_limit: u64,
    limits: Option<Box<Watch>>,
    /// The place it has with a limiter, until the result is there.
    permit: Option<Permit>,
    stop: Stop,
    limit: Option<Limit>,
    /// It has got SIGTERM.
    told: bool,
    /// The time of the first SIGKILL by which this run ends it, as [`Tree::now`] has it.
    killed: Option<u64>,
    /// The kernel has refused the last SIGKILL.
    kill_refused: bool,
    /// The run ends without the program, which SIGKILL has not ended.
    given_up: bool,
    /// Since it has ended; `Some(None)`: somebody else has taken it.
    status: Option<Option<ExitStatus>>,
    feed: Option<Feed>,
    input_refused: bool,
    outlets: [Option<Outlet>; 2],
    log: Arc<Log>,
    events: Option<Producer>,
    /// The result has been given; what is left is read on for who has adopted it.
    adopted: bool,
    /// When to look whether anybody who was adopted is left; none of them is if there is no such moment.
    looks: Option<Instant>,
}

/// Where output comes from.
#[derive(Debug)]
enum Outlet {
    /// `true`: our end does not block.
    Pipe(PipeReader, bool),
    Terminal(Pty),
}

/// How long after a kill the next look for survivors comes.
const AGAIN: Duration = Duration::from_millis(20);

/// How long a run waits after its first SIGKILL for the program to end. docs/trees.md names this time.
const KILL_PATIENCE: Duration = Duration::from_secs(1);

/// How long nobody looks whether those who were adopted are still there.
const ADOPTED: Duration = Duration::from_secs(1);

/// How long nobody looks at a terminal that nobody has open: poll() would never sleep.
const CLOSED: Duration = Duration::from_millis(20);

/// How long a signal can go unasked for that has come while the thread of a run was at work.
const UNASKED: Duration = Duration::from_millis(10);

/// How long a run in its caller's thread goes on before it looks what its numbers refer to: most are over by then.
const YOUNG: Duration = Duration::from_millis(10);

/// How many buffers are read of one stream before it is the others' turn.
const READS_IN_A_ROW: usize = 4;

impl Outlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Outlet::Pipe(pipe, _) => pipe.as_fd(),
            Outlet::Terminal(terminal) => terminal.as_fd(),
        }
    }

    fn is_terminal(&self) -> bool {
        matches!(self, Outlet::Terminal(_))
    }

    /// Reads once. 0 at the end; `None` when nothing can be read for now.
    fn read(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let read = match self {
            Outlet::Pipe(pipe, _) => pipe.read(buffer),
            Outlet::Terminal(terminal) => terminal.read(buffer),
        };
        match read {
            Ok(length) => Some(length),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => None,
            Err(_) => Some(0),
        }
    }

    /// Makes reads of what may be empty return.
    fn stop_blocking(&mut self) -> bool {
        match self {
            Outlet::Pipe(pipe, nonblocking) => {
                *nonblocking = *nonblocking || fcntl_setfl(pipe, OFlags::NONBLOCK).is_ok();
                *nonblocking
            }
            Outlet::Terminal(_) => true,
        }
    }
}

/// What a run is connected with, besides its program.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// Somebody holds it: it may outlive the call, and adopt, which ends with the job.
    pub(super) is_job: bool,
    /// Prepared before the program was born.
    pub(super) tree: Option<Tree>,
    pub(super) terminal: Option<Pty>,
    pub(super) source: Option<Source>,
    pub(super) events: Option<Producer>,
    pub(super) limits: Option<Watch>,
    pub(super) permit: Option<Permit>,
}

impl Running {
    pub(super) fn new(
        mut child: Child,
        program: String,
        started: Instant,
        run: &Run,
        connections: Connections,
    ) -> Result<Running> {
        let Connections { is_job, mut tree, terminal, source, events, limits, permit } = connections;
        if let Some(tree) = &mut tree {
            tree.born(child.id(), child.as_fd());
        }
        let begins_by = child.begins_by(Instant::now());
        let stdin = child.stdin.take();
        let pipe = |pipe: Option<PipeReader>| pipe.map(|pipe| Outlet::Pipe(pipe, false));
        let [stdout, stderr] = [child.stdout.take(), child.stderr.take()].map(pipe);
        let mut running = Running {
            child,
            tree,
            seen: 0,
            home: Tree::home(),
            program,
            started,
            phase: Phase::Running(run.timeout.and_then(|timeout| started.checked_add(timeout))),
            begins_by,
            grace: run.grace,
            drain: run.drain,
            leftovers: match run.leftovers {
                Leftovers::Adopt if !is_job => Leftovers::Kill,
                asked => asked,
            },
            output_limit: run.output_limit.unwrap_or(u64::MAX),
            limits: limits.map(Box::new),
            permit,
            stop: Stop::Exited,
            limit: None,
            told: false,
            killed: None,
            kill_refused: false,
            given_up: false,
            status: None,
            feed: None,
            input_refused: false,
            outlets: [terminal.map(Outlet::Terminal).or(stdout), stderr],
            log: Arc::new(Log(PerProcess::here(Record::new(&run.record()), || Record::new(&Keep::default())))),
            events,
            adopted: false,
            looks: None,
        };
        // What fails from here on ends it.
        running.feed = match (source, stdin, &running.outlets[0]) {
            (Some(source), _, Some(Outlet::Terminal(terminal))) => Some(Feed::terminal(terminal.writer()?, source)?),
            (Some(source), Some(pipe), _) => Some(Feed::new(pipe.into(), source)?),
            _ => None,
        };
        Ok(running)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn log(&self) -> Arc<Log> {
        self.log.clone()
    }

    /// What to watch for a part: its descriptor, and whether for writing.
    pub(super) fn watched(&self, part: Part) -> Option<(BorrowedFd<'_>, bool)> {
        match part {
            Part::Process => self.status.is_none().then(|| (self.child.as_fd(), false)),
            Part::Stdin => self.feed.as_ref().map(|feed| (feed.as_fd(), true)),
            Part::Stdout => self.outlets[0].as_ref().map(|outlet| (outlet.as_fd(), false)),
            Part::Stderr => self.outlets[1].as_ref().map(|outlet| (outlet.as_fd(), false)),
        }
    }

    /// When [`tick`](Running::tick) has something to do, if no event comes before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running(at) => {
                let limits = self.limits.as_ref().and_then(|limits| limits.due());
                at.into_iter().chain(limits).chain(self.begins_by).min()
            }
            Phase::Ending(at) | Phase::Draining(at) => at,
            Phase::Killing { again, .. } => Some(again),
            Phase::Cut => self.looks,
        }
    }

    /// The result is there.
    pub(super) fn is_done(&self) -> bool {
        !self.awaits_program() && (self.phase == Phase::Cut || self.is_read())
    }

    /// Whether the run still waits for the program's end.
    fn awaits_program(&self) -> bool {
        self.status.is_none() && !self.given_up
    }

    fn is_read(&self) -> bool {
        self.outlets.iter().all(Option::is_none)
    }

    /// Nothing more is to come, not even for who has adopted what was left, and nobody is left to be ended with him.
    pub(super) fn is_over(&self) -> bool {
        self.is_done() && (!self.adopted || self.is_read() && self.looks.is_none())
    }

    /// A watched descriptor has news, which may not be reported again; `hung_up`: its other side is closed. `false` when the
    /// same is to be called once more, after others.
    pub(super) fn news(&mut self, part: Part, hung_up: bool, buffer: &mut [u8]) -> Result<bool> {
        match part {
            Part::Process => {
                self.reap()?;
                if self.status.is_some() {
                    for stream in Stream::ALL {
                        // What a terminal has told of its end before is not told again.
                        let is_terminal = self.outlets[stream.index()].as_ref().is_some_and(Outlet::is_terminal);
                        if is_terminal || self.events.as_ref().is_some_and(|events| !events.wants_more()) {
                            self.read_left(stream, buffer);
                        }
                    }
                }
                Ok(true)
            }
            Part::Stdin => Ok(self.write()),
            Part::Stdout => Ok(self.read(Stream::Stdout, hung_up, buffer)),
            Part::Stderr => Ok(self.read(Stream::Stderr, hung_up, buffer)),
        }
    }

    fn reap(&mut self) -> Result<()> {
        if self.status.is_some() {
            return Ok(());
        }
        let now = Tree::now();
        if let Some(tree) = &mut self.tree {
            tree.ended();
        }
        let reaped = if self.log.0.is_here() { self.child.reap_or_miss()? } else { self.child.reap(false)?.map(Some) };
        if self.child.usage().is_some() {
            // Its number was its own until we reaped it: whoever was in a session of that number then, is of its tree.
            self.seen = now;
        }
        if let Some(status) = reaped {
            self.status = Some(status);
            if self.given_up {
                // All but the status was decided when the run gave up.
                return Ok(());
            }
            self.begin_draining();
            if !self.told && !self.kill_refused && status.is_some_and(|status| status.signal() != Some(SIGKILL)) {
                // It came to its own end before it could be killed.
                self.stop = Stop::Exited;
            }
            if self.stop == Stop::Exited
                && let Some(limit) = self.limits.as_ref().and_then(|limits| limits.at_end(status, self.child.usage()))
            {
                (self.stop, self.limit) = (Stop::Limit, Some(limit));
            }
        }
        Ok(())
    }

    /// Stops writing. The program has ended, or is given up.
    fn begin_draining(&mut self) {
        self.input_refused |= self.feed.take().is_some_and(|feed| feed.has_more());
        self.phase = Phase::Draining(Instant::now().checked_add(self.drain));
    }

    /// Ends a program whose tree has reached a limit.
    fn look_at_limits(&mut self, now: Instant) {
        let Some(mut limits) = self.limits.take() else { return };
        let reached = limits.look(now, || self.tree().tasks());
        self.limits = Some(limits);
        if let Some(limit) = reached {
            (self.stop, self.limit) = (Stop::Limit, Some(limit));
            let multiplies = limit.resource == Resource::Pids;
            if multiplies {
                // Before any of it ends, lest its children be lost sight of.
                let _ = self.tree().kill(Duration::ZERO);
            }
            self.end(Stop::Limit, multiplies.then_some(Duration::ZERO));
        }
    }

    fn write(&mut self) -> bool {
        let Some(feed) = &mut self.feed else { return true };
        match feed.write() {
            Feeding::Again => false,
            Feeding::Blocked | Feeding::Idle => true,
            Feeding::Done => {
                self.input_refused = feed.refused();
                self.feed = None;
                true
            }
        }
    }

    /// Makes reads of what may be empty return.
    pub(super) fn stop_blocking(&mut self) {
        self.outlets.iter_mut().flatten().for_each(|outlet| _ = outlet.stop_blocking());
    }

    /// Reads all there is, or as much as its consumer wants now. `false` when there may be more and it is others' turn.
    fn read(&mut self, stream: Stream, hung_up: bool, buffer: &mut [u8]) -> bool {
        for _ in 0..READS_IN_A_ROW {
            if self.events.as_ref().is_some_and(|events| !events.wants_more()) {
                // It says so when it does: the engine then asks again.
                return true;
            }
            let Some(length) = self.read_once(stream, buffer) else { return true };
            // Less than was asked for is all there was; what is written from here on is news.
            if !hung_up && length < buffer.len() {
                return true;
            }
            // The next read could find the pipe just emptied.
            if !hung_up && !self.outlets[stream.index()].as_mut().is_some_and(Outlet::stop_blocking) {
                return false;
            }
        }
        false
    }

    /// Reads once, and passes on what came; how much that was, unless there is nothing or no more.
    fn read_once(&mut self, stream: Stream, buffer: &mut [u8]) -> Option<usize> {
        let outlet = self.outlets[stream.index()].as_mut()?;
        let length = outlet.read(buffer)?;
        if length == 0 {
            // A terminal that nobody has open can be opened again, as /dev/tty, and hangs up on the program when we close it.
            if !outlet.is_terminal() || !self.awaits_program() {
                self.outlets[stream.index()] = None;
            }
            if self.adopted && self.is_read() {
                self.events = None;
            }
            return None;
        }
        let (position, seen) = {
            let mut record = self.log.lock();
            (record.take(stream, &buffer[..length]), record.seen())
        };
        if let Some(events) = &self.events {
            events.push(stream, position, &buffer[..length]);
        }
        if seen > self.output_limit && matches!(self.phase, Phase::Running(_)) {
            self.end(Stop::OutputLimit, None);
        }
        Some(length)
    }

    /// Takes what the program, which has ended, or who was adopted has left in its pipe, also where who wants it as it comes is
    /// behind: there is an end to it, and it would be lost with the pipe.
    fn read_left(&mut self, stream: Stream, buffer: &mut [u8]) {
        let Some(outlet) = &mut self.outlets[stream.index()] else { return };
        // A terminal tells of the first 4 KiB only, of some 20 that it may have.
        let mut left = if outlet.is_terminal() { 1 << 16 } else { ioctl_fionread(outlet.as_fd()).unwrap_or(0) };
        if !outlet.stop_blocking() {
            return;
        }
        // Once more than that: to find the end.
        while let Some(length) = self.read_once(stream, buffer) {
            match left.checked_sub(length as u64) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }

    /// The clock has moved: ends a program whose time is over, gives up pipes that outlive it.
    pub(super) fn tick(&mut self, now: Instant, buffer: &mut [u8]) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.phase {
            Phase::Running(at) if at.is_none_or(|at| now < at) => {
                if self.begins_by.take_if(|at| now >= *at).is_some() {
                    self.child.withdraw();
                }
                self.look_at_limits(now);
            }
            Phase::Running(_) => self.end(Stop::Timeout, None),
            Phase::Killing { gives_up, .. } if gives_up <= now => self.give_up(),
            Phase::Ending(_) | Phase::Killing { .. } => self.kill(),
            Phase::Cut => {
                let somebody = self.tree().look().is_none_or(|left| !left.is_empty());
                self.looks = now.checked_add(ADOPTED).filter(|_| somebody);
            }
            Phase::Draining(_) => {
                // This thread may have been kept from the CPU for as long.
                Stream::ALL.into_iter().for_each(|stream| self.read_left(stream, buffer));
                self.phase = Phase::Cut;
            }
        }
    }

    /// Tells the program's tree to end, and kills it after `grace` (by default the run's own). One that has ended already keeps its own reason.
    pub(super) fn end(&mut self, stop: Stop, grace: Option<Duration>) {
        let grace = grace.unwrap_or(self.grace);
        if self.awaits_program() && matches!(self.reap(), Ok(())) && self.status.is_some() {
            return;
        }
        if !self.awaits_program() {
            if self.phase != Phase::Cut {
                // What is left of it is not waited for any longer; what it has written is read first.
                self.phase = Phase::Draining(Some(Instant::now()));
            }
            if self.adopted {
                leftovers::kill(self.tree.take());
                let mut buffer = vec![0; 32 << 10];
                Stream::ALL.into_iter().for_each(|stream| self.read_left(stream, &mut buffer));
                self.outlets = [None, None];
                self.looks = None;
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
            // Nobody gets more time by being told twice.
            Phase::Ending(at) => self.phase = Phase::Ending(at.into_iter().chain(killed).min()),
            Phase::Killing { .. } => {}
            _ => {
                self.phase = Phase::Ending(killed);
                self.told = true;
                self.child.terminate_unbegun();
                self.signal_tree(SIGTERM);
            }
        }
    }

    /// Kills the program and its tree. Repeated until the program ends: a process that was forked between a look and its kill is found
    /// by the next look.
    fn kill(&mut self) {
        self.killed.get_or_insert_with(Tree::now);
        self.signal_tree(SIGKILL);
        // The kill can take a quarter of a second: several processes have to stop first.
        let now = Instant::now();
        let gives_up = match self.phase {
            Phase::Killing { gives_up, .. } => gives_up,
            _ => now + KILL_PATIENCE,
        };
        self.phase = Phase::Killing { again: gives_up.min(now + AGAIN), gives_up };
    }

    /// Ends the run without the program, unless its status has arrived by now. The reaper takes the program over when this is dropped.
    fn give_up(&mut self) {
        match self.reap() {
            Ok(()) if self.status.is_none() => {
                self.given_up = true;
                self.begin_draining();
            }
            Ok(()) => {}
            // The event that brings this error is on its way.
            Err(_) => self.phase = Phase::Ending(Instant::now().checked_add(AGAIN)),
        }
    }

    /// Its tree, which knows the program from here on if it has not before.
    fn tree(&mut self) -> &mut Tree {
        let (child, home, seen) = (&self.child, self.home, self.seen);
        let tree = self.tree.get_or_insert_with(|| Tree::of_born(child.id(), child.as_fd(), home, seen));
        tree.know(child.as_fd(), seen);
        tree
    }

    /// Sends a signal to the program and its process tree.
    pub(super) fn signal_tree(&mut self, signal: i32) {
        self.child.note_signal(signal);
        if signal == SIGKILL {
            // Whoever is found; who is born meanwhile is found by the next look, or by the last.
            let _ = self.tree().kill(Duration::ZERO);
            self.kill_refused = self.child.kill().is_err();
        } else if !self.tree().signal_all(signal) {
            let _ = self.child.signal(signal);
        }
    }

    /// What of its tree has outlived the program, and what becomes of it; `None` if it cannot be looked.
    fn leave(&mut self) -> Option<Vec<Leftover>> {
        if self.tree.is_none() && !self.child.may_have_left_somebody() {
            return Some(Vec::new());
        }
        let left = self.tree().look();
        // If the run has sent SIGKILL before, these processes may be the ones that it does not end.
        let mut may_resist = self.killed.is_some();
        let fate = match self.leftovers {
            Leftovers::Kill => {
                may_resist = !leftovers::kill(self.tree.take());
                Fate::Killed
            }
            Leftovers::Detach => {
                self.tree.take().into_iter().for_each(Tree::detach);
                Fate::Detached
            }
            Leftovers::Adopt => Fate::Adopted,
        };
        let killed = self.killed.filter(|_| self.given_up);
        let leftover = |stat: Stat| {
            let resists = may_resist.then(|| leftovers::resistance(stat.process, killed)).flatten();
            leftovers::of(stat, resists.unwrap_or(fate))
        };
        left.map(|left| left.into_iter().map(leftover).collect())
    }

    /// Sends a signal to the program alone.
    pub(super) fn signal(&self, signal: i32) {
        let _ = self.child.signal(signal);
    }

    /// Changes the size of its terminal, if it has one.
    pub(super) fn resize(&self, size: super::TerminalSize) {
        if let Some(Outlet::Terminal(terminal)) = &self.outlets[0] {
            let _ = terminal.resize(size);
        }
    }

    /// Runs to the end in the calling thread; asks at the start, after each signal, and soon after it was at work, whether to give up.
    pub(super) fn run_here(mut self, mut interrupted: impl FnMut() -> bool) -> Result<Output> {
        // Not on the stack, which is the caller's and may be small.
        let mut buffer = vec![0; 32 << 10];
        if interrupted() {
            self.end(Stop::Cancelled, None);
        }
        // Since when this has been at work. A signal that comes meanwhile interrupts no sleep, and with enough to read there is none.
        let mut at_work: Option<Instant> = None;
        // What its numbers refer to, for comparison after each sleep.
        let mut known = None;
        // What has hung up and may come back is passed over until then.
        let mut passed_over: Option<Instant> = None;
        while !self.is_done() {
            passed_over.take_if(|until| self.status.is_some() || *until <= Instant::now());
            let is_watched = |part: Part| passed_over.is_none() || part == Part::Process;
            // The kernel passes over what has no number.
            let mut fds = Part::ALL.map(|part| match self.watched(part).filter(|_| is_watched(part)) {
                Some((fd, write)) => {
                    let events = if write { abi::POLLOUT } else { abi::POLLIN } as i16;
                    abi::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
                }
                None => abi::pollfd { fd: -1, events: 0, revents: 0 },
            });
            if known.is_none() && self.started.elapsed() >= YOUNG {
                known = Some(self.identities());
            }
            // A sleep that has begun is never ended by what has come to stand at its numbers.
            let look = if known.is_some() { Instant::now() + UNSEEN } else { self.started + YOUNG };
            let late = at_work.take_if(|since| since.elapsed() >= UNASKED).is_some();
            let asks = at_work.map(|since| since + UNASKED);
            let left = self.deadline().into_iter().chain(asks).chain(passed_over).chain([look]).min();
            let left = left.map(|until| until.saturating_duration_since(Instant::now()));
            let timeout = left.map(timespec).map(|left| (left.tv_sec, left.tv_nsec));
            let polled = if late { Err(Errno::EINTR) } else { call::poll(&mut fds, timeout) };
            if known.is_some_and(|known| !self.is_whole(known)) {
                self.abandon();
                return Err(Error::new(Stage::Capture, Errno::EBADF, "poll()"));
            }
            match polled {
                Ok(_) => _ = at_work.get_or_insert_with(Instant::now),
                Err(Errno::EINTR) => {
                    at_work = None;
                    if interrupted() {
                        self.end(Stop::Cancelled, None);
                    }
                    continue;
                }
                Err(errno) => return Err(Error::new(Stage::Capture, errno, "poll()")),
            }
            for (part, abi::pollfd { revents, .. }) in Part::ALL.into_iter().zip(fds) {
                if revents != 0 {
                    // What is left to read or write is reported again.
                    let hung_up = revents & abi::POLLHUP as i16 != 0;
                    if self.news(part, hung_up, &mut buffer)? && hung_up && self.watched(part).is_some() {
                        passed_over = Some(Instant::now() + CLOSED);
                    }
                }
            }
            self.tick(Instant::now(), &mut buffer);
        }
        Ok(self.finish())
    }

    /// Device and inode of what is watched.
    fn identities(&self) -> [Option<(u64, u64)>; 4] {
        Part::ALL.map(|part| self.watched(part).and_then(|(fd, _)| call::identify(fd.as_raw_fd()).ok()))
    }

    /// Whether all that is still watched is what it was.
    fn is_whole(&self, known: [Option<(u64, u64)>; 4]) -> bool {
        let now = self.identities();
        Part::ALL
            .into_iter()
            .zip(known.into_iter().zip(now))
            .all(|(part, (known, now))| self.watched(part).is_none() || now.is_some() && now == known)
    }

    /// Lets go of a run when numbers of its own, or those it was watched by, have become the application's: the others are as likely
    /// to be, so none of them is used again, nor closed. The program is left alone.
    pub(super) fn abandon(mut self) {
        (self.permit, self.events) = (None, None);
        if let Some(feed) = self.feed.take() {
            feed.abandon();
        }
        std::mem::forget(self);
    }

    /// The result, once it [is there](Running::is_done).
    pub(super) fn finish(&mut self) -> Output {
        let open: Vec<BorrowedFd<'_>> = self.outlets.iter().flatten().map(Outlet::as_fd).collect();
        let drain = if open.is_empty() { Drain::Eof } else { Drain::Cut(holders(&open)) };
        drop(open);
        let tier = self.tree.as_ref().map_or(Tier::Group, Tree::tier);
        let program = (self.given_up && self.status.is_none())
            .then(|| leftovers::of_program(self.pid(), &self.program, self.kill_refused));
        let others = self.leave();
        self.adopted = self.leftovers == Leftovers::Adopt && self.tree.is_some();
        if self.adopted {
            self.phase = Phase::Cut;
            let nobody = others.as_ref().is_some_and(Vec::is_empty);
            self.looks = Instant::now().checked_add(ADOPTED).filter(|_| !nobody);
        } else {
            self.outlets = [None, None];
        }
        if self.is_read() {
            self.events = None;
        }
        let (Recorded { stdout, stderr, spill }, seen_bytes) = {
            let mut record = self.log.lock();
            (record.close(), record.seen())
        };
        // The next one's turn.
        self.permit = None;
        let cuts = [(stdout.head, stdout.omitted), (stderr.head, stderr.omitted)];
        Output {
            status: self.status.flatten(),
            status_lost: self.status == Some(None),
            stop: self.stop,
            omitted_bytes: cuts[0].1 + cuts[1].1,
            stdout: stdout.bytes,
            stderr: stderr.bytes,
            seen_bytes,
            spill,
            drain,
            wall: self.started.elapsed(),
            usage: self.child.usage().unwrap_or_default(),
            tree: tier,
            leftovers_unknown: others.is_none(),
            leftovers: program.into_iter().chain(others.into_iter().flatten()).collect(),
            limit: self.limit.filter(|_| self.stop == Stop::Limit),
            limits: self.limits.as_ref().map(|limits| limits.enforced().to_vec()).unwrap_or_default(),
            started: self.child.started(),
            input_refused: self.input_refused,
            program: std::mem::take(&mut self.program),
            cuts,
        }
    }
}

impl Drop for Running {
    /// Ends a program whose run has failed, and its tree: nobody else would.
    fn drop(&mut self) {
        let has_ended = !self.awaits_program() || self.child.has_ended();
        if !has_ended && self.log.0.is_here() && self.child.is_own() {
            self.signal_tree(SIGKILL);
            // Once more: who was born meanwhile.
            leftovers::kill(self.tree.take());
        }
    }
}

pub(super) fn timespec(left: Duration) -> Timespec {
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
}
