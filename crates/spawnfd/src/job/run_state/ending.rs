// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends the program and its process tree.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use spawnfd_guard::process::{Stat, ticks_before, ticks_now};

use super::{LEFTOVER_PAUSES, Phase, Program, RunState};
use crate::child::Child;
use crate::error::Result;
use crate::job::limits::Load;
use crate::job::{Fate, Leftover, Leftovers, Resource, Stop, Stream, leftovers};
use crate::tree::Tree;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// The pause between two SIGKILLs to a tree that has not ended.
const KILL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a run waits after its first SIGKILL for the program to end. The page on process trees documents this time.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

impl RunState {
    pub(super) fn reap(&mut self) -> Result<()> {
        if self.status.is_some() {
            return Ok(());
        }
        let reaped = match &mut self.running {
            Program::InShell(command) => command.reap().then(|| command.end().and_then(|end| end.status)),
            Program::Child(child) => {
                let now = ticks_now();
                if let Some(tree) = &mut *self.tree.lock() {
                    tree.program_ended();
                }
                let reaped = if self.record.belongs_to_this_process() {
                    child.reap_or_note_lost()?
                } else {
                    child.reap(false)?.map(Some)
                };
                if reaped.is_none()
                    && let Some(tree) = &*self.tree.lock()
                {
                    tree.program_is_kept();
                }
                if child.usage().is_some() {
                    // Until this reap, no other process could have the program's pid. So a process in the session with
                    // that number belongs to the tree.
                    self.alive_at = now;
                }
                reaped
            }
        };
        if let Some(status) = reaped {
            self.status = Some(status);
            if self.given_up {
                // The run has given up, so only the status was still missing.
                return Ok(());
            }
            self.begin_draining();
            // SIGKILL of a shell's programs gives the shell an ordinary exit status.
            let is_child = self.running.as_child().is_some();
            let was_killed = status.is_none_or(|status| status.signal() == Some(SIGKILL)) || !is_child;
            if !self.sigterm_sent && !self.kill_refused && !was_killed {
                // The program exited by itself before SIGKILL took effect.
                self.stop = Stop::Exited;
            }
            if self.stop == Stop::Exited
                && let Some(limit) = self.limits.as_ref().and_then(|limits| limits.at_end(status, self.running.usage()))
            {
                (self.stop, self.limit) = (Stop::Limit, Some(limit));
            }
        }
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
        let reached = limits.check(now, || Load::of(&self.with_tree(Tree::processes)));
        self.limits = Some(limits);
        if let Some(limit) = reached {
            (self.stop, self.limit) = (Stop::Limit, Some(limit));
            let grows = matches!(limit.resource, Resource::Pids | Resource::Memory);
            if grows {
                // Kill at once, because the tree may grow during the grace time. After SIGTERM, a process could also
                // exit and leave children that the search cannot find.
                let _ = self.with_tree(|tree| tree.kill(Duration::ZERO));
            }
            self.end(Stop::Limit, grows.then_some(Duration::ZERO));
        }
    }

    /// Sends SIGTERM to the program's tree, and SIGKILL after `grace` (by default the run's own). If the program has
    /// already ended, the recorded reason of the stop does not change.
    pub(in crate::job) fn end(&mut self, stop: Stop, grace: Option<Duration>) {
        let grace = grace.unwrap_or(self.options.grace);
        if self.awaits_program() && matches!(self.reap(), Ok(())) && self.status.is_some() {
            return;
        }
        if !self.awaits_program() {
            if self.phase != Phase::Cut {
                // The caller no longer waits for surviving processes. Read the rest of the output first.
                self.drain_for(Duration::ZERO);
            }
            if self.adopted
                && let Some(tree) = self.tree.take()
            {
                leftovers::kill(Some(tree));
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
                match &mut self.running {
                    Program::InShell(command) => command.interrupt_then_terminate(grace),
                    Program::Child(child) => {
                        child.terminate_unbegun();
                        if !self.handle_sent_sigterm {
                            self.signal_tree(SIGTERM);
                        }
                    }
                }
            }
        }
    }

    /// Kills the program and its tree. The run repeats the call until the program ends, because a process may fork
    /// between the search for the tree's members and their kill. The next search finds the new process.
    pub(super) fn kill(&mut self) {
        self.killed_at.get_or_insert_with(ticks_now);
        self.signal_tree(SIGKILL);
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
            Ok(()) if self.status.is_none() => {
                self.given_up = true;
                self.begin_draining();
            }
            Ok(()) => {}
            // The next call of `reap` returns this error again, and its caller reports the error.
            Err(_) => self.phase = Phase::Ending(Instant::now().checked_add(KILL_INTERVAL)),
        }
    }

    /// Passes the process tree of a child to `use_tree`. The program is then a member of the tree. A command in a shell
    /// has an empty tree.
    pub(super) fn with_tree<T>(&self, use_tree: impl FnOnce(&mut Tree) -> T) -> T {
        let mut tree = self.tree.lock();
        let Some(child) = self.running.as_child() else { return use_tree(tree.get_or_insert_with(Tree::of_group)) };
        let (home, seen) = (self.home, self.alive_at);
        let tree = tree.get_or_insert_with(|| Tree::of_started(child.id(), child.as_fd(), home, seen));
        tree.supply_pidfd(child.as_fd(), seen);
        use_tree(tree)
    }

    /// Adds processes that hold the run's pipes to the tree, if they started during the run. A process that has left the
    /// session and lost its parent then ends with the other leftovers.
    pub(super) fn add_to_tree(&mut self, holders: &[Stat]) {
        let began = ticks_before(self.started.elapsed());
        for younger in holders.iter().filter(|stat| stat.process.start >= began) {
            self.with_tree(|tree| tree.add_found(younger));
            self.none_survive = false;
        }
    }

    /// Records that the job's handle has sent SIGTERM to the tree, which does not get a second one.
    pub(in crate::job) fn note_sigterm(&mut self) {
        self.handle_sent_sigterm = true;
        self.running.as_child().into_iter().for_each(|child| child.note_signal(SIGTERM));
    }

    /// Sends a signal to the program and its process tree.
    pub(in crate::job) fn signal_tree(&mut self, signal: i32) {
        let child = match &mut self.running {
            Program::InShell(command) if signal == SIGKILL => return command.kill(),
            Program::InShell(command) => return command.signal(signal),
            Program::Child(child) => child,
        };
        child.note_signal(signal);
        if signal == SIGKILL {
            // The next kill finds processes that the tree forks during this one.
            let _ = self.with_tree(|tree| tree.kill(Duration::ZERO));
            self.kill_refused = self.running.as_child().is_some_and(|child| child.kill().is_err());
        } else if !self.with_tree(|tree| tree.signal_all(signal)) {
            self.signal(signal);
        }
    }

    /// Finds the processes that have outlived the program. `None`: the library cannot search for such processes.
    fn survivors(&mut self) -> Option<Vec<Stat>> {
        if self.none_survive
            || self.tree.lock().is_none() && !self.running.as_child().is_some_and(Child::may_have_leftovers)
        {
            return Some(Vec::new());
        }
        self.with_tree(Tree::try_survivors)
    }

    /// Whether processes have outlived the program that the run will kill. They may still end by themselves.
    pub(super) fn awaits_leftovers(&mut self) -> bool {
        if self.options.leftovers != Leftovers::Kill {
            return false;
        }
        self.none_survive = self.survivors().is_some_and(|left| left.is_empty());
        !self.none_survive
    }

    /// Returns the processes that have outlived the program, with their fates. `None`: the library cannot search for
    /// such processes.
    pub(super) fn take_leftovers(&mut self) -> Option<Vec<Leftover>> {
        let left = self.survivors();
        // If the run has already sent SIGKILL, the survivors may be processes that SIGKILL does not end.
        let mut may_resist = self.killed_at.is_some();
        let fate = match self.options.leftovers {
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
        let killed = self.killed_at.filter(|_| self.given_up);
        let leftover = |stat: Stat| {
            let resists = may_resist.then(|| leftovers::why_not_ended(stat.process, killed)).flatten();
            leftovers::leftover(stat, resists.unwrap_or(fate))
        };
        left.map(|left| left.into_iter().map(leftover).collect())
    }

    /// Sends a signal to the program alone.
    pub(in crate::job) fn signal(&mut self, signal: i32) {
        // The signal may end the program, whose children may have left its session.
        self.with_tree(Tree::remember_members);
        match &mut self.running {
            Program::Child(child) => _ = child.signal(signal),
            Program::InShell(command) => command.signal(signal),
        }
        // The program may have forked after the search.
        self.with_tree(Tree::remember_members);
    }
}

impl Drop for RunState {
    /// Kills the program of a failed run, and its tree.
    fn drop(&mut self) {
        let child = self.running.as_child();
        let may_run = self.awaits_program() && child.is_some_and(|child| !child.has_ended() && child.is_own());
        if may_run && self.record.belongs_to_this_process() {
            self.signal_tree(SIGKILL);
            // Kill the tree again, in case a process was forked during the first kill.
            leftovers::kill(self.tree.take());
        }
        if self.record.belongs_to_this_process() {
            self.record.close_without_result();
        }
    }
}
