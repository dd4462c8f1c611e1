// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a run: the output, and the fate of the processes that have outlived the program.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use spawnfd_guard::process::{KillEffect, Process, Stat, ticks_before};

use super::{ADOPTED_CHECK_INTERVAL, Phase, ProgramEnd, RunState};
use crate::job::holders::{holders, programs};
use crate::job::{Drain, Fate, Leftover, Leftovers, Output, Producer, Recorded, Stop};
use crate::tree::Survivor;

impl RunState {
    /// Returns the processes that have outlived the program, with their fates. `None`: the library cannot search for
    /// such processes. `holders`: processes that have the run's pipes open.
    fn take_leftovers(&mut self, mut holders: Vec<Stat>) -> Option<Vec<Leftover>> {
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
        let with_fate = |stat: Stat| {
            let resists = may_resist.then(|| why_not_ended(stat.process, killed)).flatten();
            leftover(stat, resists.unwrap_or(fate))
        };
        left.map(|left| left.into_iter().map(with_fate).collect())
    }

    /// Returns the result. Call this once the result [is available](RunState::is_done).
    pub(in crate::job) fn finish(&mut self) -> Output {
        let open: Vec<BorrowedFd<'_>> = self.outputs.iter().flatten().map(|source| source.as_fd()).collect();
        let drain = if open.is_empty() { Drain::Eof } else { Drain::Cut(holders(&open)) };
        let programs = if let Drain::Cut(holders) = &drain { programs(holders, &open) } else { Vec::new() };
        drop(open);
        let tier = self.running.tier();
        // Without an end, the run has given up.
        let program =
            self.ended.is_none().then(|| unkilled_program(self.running.id(), &self.program, self.kill_refused));
        let others = self.take_leftovers(programs);
        self.leave_terminal();
        let status_lost = self.ended.as_ref().is_some_and(|end| end.status.is_none());
        let ProgramEnd { status, usage, cwd, shell_exited, shell_status, leftovers: of_shell, .. } =
            self.ended.as_mut().map(std::mem::take).unwrap_or_default();
        if status_lost && self.stop == Stop::Exited {
            self.stop = Stop::Lost;
        }
        self.adopted = self.running.is_in_shell() || self.options.leftovers == Leftovers::Adopt;
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

/// Converts a process of the tree to a leftover.
fn leftover(stat: Stat, fate: Fate) -> Leftover {
    let Survivor { pid, name } = Survivor::of(stat);
    Leftover { pid, name, fate }
}

/// The reason why a process has not ended after SIGKILL. `None`: no reason is known, or it has ended.
///
/// `killed`: if the run has given up, the time of its first SIGKILL in the unit of
/// [`ticks_now`](spawnfd_guard::process::ticks_now).
fn why_not_ended(process: Process, killed: Option<u64>) -> Option<Fate> {
    match process.kill_effect() {
        KillEffect::Refused => Some(Fate::NotPermitted),
        // A process that started after the first SIGKILL has had less time to end, so it gets no such fate.
        KillEffect::Pending if killed >= Some(process.start) => Some(Fate::Uninterruptible),
        KillEffect::Pending | KillEffect::Ended => None,
    }
}

/// Returns the leftover for the program of a run that no longer waits for the program's end. `is_refused`: the kernel
/// has refused the last SIGKILL.
fn unkilled_program(pid: u32, program: &str, is_refused: bool) -> Leftover {
    // The pid still belongs to the program, because the caller has not reaped it.
    let stat = Stat::read(pid as i32);
    let is_refused = match stat.map(|stat| stat.process.kill_effect()) {
        Some(KillEffect::Refused) => true,
        Some(KillEffect::Pending) => false,
        // /proc does not show the program.
        Some(KillEffect::Ended) | None => is_refused,
    };
    let fate = if is_refused { Fate::NotPermitted } else { Fate::Uninterruptible };
    let base = program.rsplit('/').next().unwrap_or_default();
    stat.map_or_else(|| Leftover { pid, name: base.to_owned(), fate }, |stat| leftover(stat, fate))
}
