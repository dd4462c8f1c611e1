// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends the program and its process tree, and makes the result of the run.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use spawnfd_guard::process::{Stat, ticks_before, ticks_now};

use super::{ADOPTED_CHECK_INTERVAL, LEFTOVER_PAUSES, Phase, ProgramEnd, RunState};
use crate::error::Result;
use crate::job::holders::{holders, programs};
use crate::job::limits::Load;
use crate::job::{Drain, Fate, Leftover, Leftovers, Output, Producer, Recorded, Resource, Stop, Stream, leftovers};

/// The pause between two SIGKILLs to a tree that has not ended.
const KILL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a run waits after its first SIGKILL for the program to end. The page on process trees documents this time.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

impl RunState {
    pub(super) fn reap(&mut self) -> Result<()> {
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
    pub(super) fn check_idle(&mut self, now: Instant) {
        let Some((timeout, _)) = self.idle.filter(|(_, check)| *check <= now) else { return };
        // Output since the last check postpones the end of the program.
        let due = self.record.lock().latest().checked_add(timeout);
        self.idle = due.filter(|due| now < *due).map(|due| (timeout, due));
        if self.idle.is_none() && due.is_some() && matches!(self.phase, Phase::Running(_)) {
            self.end(Stop::IdleTimeout, None);
        }
    }

    /// Ends a program whose tree has reached a limit.
    pub(super) fn check_limits(&mut self, now: Instant) {
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
    pub(in crate::job) fn end(&mut self, stop: Stop, grace: Option<Duration>) {
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
    pub(super) fn kill(&mut self) {
        self.killed_at.get_or_insert_with(ticks_now);
        self.kill_refused = !self.running.kill();
        // Read the clock after the kill, which takes up to 2 s if it must first stop several processes.
        let now = Instant::now();
        let give_up_at = match self.phase {
            Phase::Killing { give_up_at, .. } => give_up_at,
            _ => now + KILL_TIMEOUT,
        };
        self.phase = Phase::Killing { next_kill: give_up_at.min(now + KILL_INTERVAL), give_up_at };
    }

    /// Ends the run without the program, unless its status has arrived by now. When the `RunState` is dropped, the
    /// reaper takes over the program.
    pub(super) fn give_up(&mut self) {
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
    pub(super) fn any_survive(&mut self) -> bool {
        self.running.survivors(&[]).is_none_or(|left| !left.is_empty())
    }

    /// Returns the processes that have outlived the program, with their fates. `None`: the library cannot search for
    /// such processes. `holders`: processes that have the run's pipes open.
    pub(super) fn take_leftovers(&mut self, mut holders: Vec<Stat>) -> Option<Vec<Leftover>> {
        let began = ticks_before(self.started.elapsed());
        holders.retain(|stat| stat.process.start >= began);
        let left = self.running.survivors(&holders);
        let are_gone = self.running.dispose(self.options.leftovers);
        // If the run has already sent SIGKILL, the survivors may be processes that SIGKILL does not end.
        let (fate, may_resist) = match self.options.leftovers {
            Leftovers::Kill => (Fate::Killed, !are_gone),
            Leftovers::Detach => (Fate::Detached, self.killed_at.is_some()),
            Leftovers::Adopt => (Fate::Adopted, self.killed_at.is_some()),
        };
        let killed = self.killed_at.filter(|_| self.given_up);
        let leftover = |stat: Stat| {
            let resists = may_resist.then(|| leftovers::why_not_ended(stat.process, killed)).flatten();
            leftovers::leftover(stat, resists.unwrap_or(fate))
        };
        left.map(|left| left.into_iter().map(leftover).collect())
    }

    /// Returns the result. Call this once the result [is available](RunState::is_done).
    pub(in crate::job) fn finish(&mut self) -> Output {
        let open: Vec<BorrowedFd<'_>> = self.outputs.iter().flatten().map(|source| source.as_fd()).collect();
        let drain = if open.is_empty() { Drain::Eof } else { Drain::Cut(holders(&open)) };
        let programs = if let Drain::Cut(holders) = &drain { programs(holders, &open) } else { Vec::new() };
        drop(open);
        let tier = self.running.tier();
        // Without an end, the run has given up.
        let program = self
            .ended
            .is_none()
            .then(|| leftovers::unkilled_program(self.running.id(), &self.program, self.kill_refused));
        let others = self.take_leftovers(programs);
        self.leave_terminal();
        let status_lost = self.ended.as_ref().is_some_and(|end| end.status.is_none());
        let ProgramEnd { status, usage, cwd, shell_exited, shell_status, leftovers: of_shell, .. } =
            self.ended.as_mut().map(std::mem::take).unwrap_or_default();
        if status_lost && self.stop == Stop::Exited {
            self.stop = Stop::Lost;
        }
        self.adopted = self.running.adopts();
        if self.adopted {
            self.phase = Phase::Cut;
            let none_left = others.as_ref().is_some_and(Vec::is_empty);
            self.next_check = Instant::now().checked_add(ADOPTED_CHECK_INTERVAL).filter(|_| !none_left);
        } else {
            self.outputs = [None, None];
        }
        if self.is_read() {
            self.events = None;
        }
        if let Some(consumer) = self.events.as_ref().and_then(Producer::mark_result) {
            consumer.call();
        }
        let (Recorded { stdout, stderr, order, spill }, seen_bytes) = {
            let mut record = self.record.lock();
            let closed = (record.close(), record.seen());
            self.record.announce(record);
            closed
        };
        // Give the limiters' places back before delivering the result, so that the next run can start.
        self.permits.clear();
        let cuts = [stdout.cut, stderr.cut];
        Output {
            status,
            status_lost,
            stop: self.stop,
            bound: self.options.field(self.stop.name()),
            omitted_bytes: cuts[0].omitted + cuts[1].omitted,
            stdout: stdout.bytes,
            stderr: stderr.bytes,
            seen_bytes,
            spill,
            drain,
            wall: self.started.elapsed(),
            usage: usage.unwrap_or_default(),
            tree: tier,
            leftovers_unknown: others.is_none(),
            leftovers: program.into_iter().chain(others.into_iter().flatten()).chain(of_shell).collect(),
            limit: self.limit.filter(|_| self.stop == Stop::Limit),
            limits: self.limits.as_ref().map(|limits| limits.enforced.clone()).unwrap_or_default(),
            started: self.running.started(),
            shell_exited,
            shell_status,
            cwd,
            input_refused: self.input_refused,
            program: std::mem::take(&mut self.program),
            cuts,
            order,
        }
    }
}

impl Drop for RunState {
    /// Kills the program of a failed run, and its tree.
    fn drop(&mut self) {
        if self.record.belongs_to_this_process() {
            if self.awaits_program() {
                self.running.abort();
            }
            self.record.close_without_result();
        }
    }
}
