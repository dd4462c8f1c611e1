// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program of a run: a child of this process, and its process tree.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use spawnfd_guard::process::{Stat, ticks_now};
use spawnfd_guard::sys as guard_sys;
use spawnfd_sys::call::pidfd_send_signal;

use super::{ProgramEnd, Supervised};
use crate::child::{Child, Started};
use crate::error::Result;
use crate::host::descriptors::CheckedFd;
use crate::host::features;
use crate::job::{Leftovers, leftovers};
use crate::signal::{KILL, TERM};
use crate::tree::{Tier, Tree};

/// A child of this process, and its process tree.
#[derive(Debug)]
pub(super) struct Program {
    child: Child,
    tree: Arc<Mutex<ProgramTree>>,
    /// The last time at which the program certainly had its pid, in the unit of [`ticks_now`].
    alive_at: u64,
    /// The deadline for a parked process to accept the request.
    begins_by: Option<Instant>,
    /// A search after the program's end has found that no process outlives the program.
    none_survive: bool,
}

/// The process tree of a program. The thread that drives the run uses it, and the thread that drops the job's handle.
#[derive(Debug)]
struct ProgramTree {
    pid: u32,
    /// The session of this process when the program was started, as [`Tree::own_session`] returns it.
    own_session: i32,
    /// If the caller prepared no tree, the first use creates it.
    tree: Option<Tree>,
    /// The job's handle has sent SIGTERM to the tree, which does not get a second one.
    got_sigterm: bool,
}

impl ProgramTree {
    /// Returns the tree, with the program as a member. `seen` is the last time at which the program certainly had its pid.
    fn get(&mut self, pidfd: BorrowedFd<'_>, seen: u64) -> &mut Tree {
        self.tree.get_or_insert_with(|| Tree::of_started(self.pid, pidfd, self.own_session, seen))
    }
}

impl Program {
    /// `tree` is the tree that the library prepared before it started the child.
    pub(super) fn new(child: Child, mut tree: Option<Tree>) -> Program {
        if let Some(tree) = &mut tree {
            tree.program_started(child.id(), child.as_fd());
            tree.program_is_kept();
        }
        let (pid, own_session, begins_by) = (child.id(), Tree::own_session(), child.begins_by(Instant::now()));
        let tree = Arc::new(Mutex::new(ProgramTree { pid, own_session, tree, got_sigterm: false }));
        Program { child, tree, alive_at: 0, begins_by, none_survive: false }
    }

    /// Passes the process tree to `use_tree`. The program is then a member of the tree.
    fn with_tree<T>(&self, use_tree: impl FnOnce(&mut Tree) -> T) -> T {
        let mut shared = lock(&self.tree);
        let tree = shared.get(self.child.as_fd(), self.alive_at);
        tree.supply_pidfd(self.child.as_fd(), self.alive_at);
        use_tree(tree)
    }
}

impl Supervised for Program {
    fn id(&self) -> u32 {
        self.child.id()
    }

    fn tier(&self) -> Tier {
        lock(&self.tree).tree.as_ref().map_or(Tier::Group, Tree::tier)
    }

    fn started(&self) -> Started {
        self.child.started()
    }

    fn end_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.child.as_fd())
    }

    fn reap(&mut self, is_owner: bool) -> Result<Option<ProgramEnd>> {
        let now = ticks_now();
        {
            let mut shared = lock(&self.tree);
            if shared.got_sigterm {
                self.child.note_signal(TERM);
            }
            shared.tree.iter_mut().for_each(Tree::program_ended);
        }
        let reaped = if is_owner { self.child.reap_or_note_lost()? } else { self.child.reap(false)?.map(Some) };
        let Some(status) = reaped else {
            lock(&self.tree).tree.iter().for_each(Tree::program_is_kept);
            return Ok(None);
        };
        let usage = self.child.usage();
        if usage.is_some() {
            // Until this reap, no other process could have the program's pid. So a process in the session with
            // that number belongs to the tree.
            self.alive_at = now;
        }
        let may_be_killed = status.is_none_or(|status| status.signal() == Some(KILL));
        Ok(Some(ProgramEnd { status, usage, may_be_killed, ..ProgramEnd::default() }))
    }

    fn report_due(&self) -> Option<Instant> {
        self.child.report_due()
    }

    fn due(&self) -> Option<Instant> {
        self.begins_by
    }

    fn tick(&mut self, now: Instant) {
        if self.begins_by.take_if(|at| now >= *at).is_some() {
            self.child.withdraw();
        }
    }

    fn signal(&mut self, signal: i32, tree: bool) {
        if tree && signal == KILL {
            self.kill();
            return;
        }
        if tree {
            self.child.note_signal(signal);
            if self.with_tree(|tree| tree.signal_all(signal)) {
                return;
            }
        }
        // The signal may end the program, whose children may have left its session.
        self.with_tree(Tree::remember_members);
        let _ = self.child.signal(signal);
        // The program may have forked after the search.
        self.with_tree(Tree::remember_members);
    }

    fn terminate(&mut self, _grace: Duration) {
        self.begins_by = None;
        self.child.terminate_unbegun();
        if !lock(&self.tree).got_sigterm {
            self.signal(TERM, true);
        }
    }

    fn kill(&mut self) -> bool {
        self.child.note_signal(KILL);
        // The next kill finds processes that the tree forks during this one.
        let _ = self.with_tree(|tree| tree.kill(Duration::ZERO));
        self.child.kill().is_ok()
    }

    fn abort(&mut self) {
        if !self.child.has_ended() && self.child.is_own() {
            self.kill();
            // Kill the tree again, in case a process was forked during the first kill.
            self.dispose(Leftovers::Kill);
        }
    }

    fn processes(&mut self) -> Vec<Stat> {
        let mut processes = self.with_tree(Tree::processes);
        // Before exec, the program's process may still share the memory of this process.
        let program = self.id() as i32;
        processes.retain(|stat| stat.process.pid != program || stat.has_called_exec());
        processes
    }

    fn survivors(&mut self, found: &[Stat]) -> Option<Vec<Stat>> {
        // A process that has left the session and lost its parent then ends with the other leftovers.
        for stat in found {
            self.with_tree(|tree| tree.add_found(stat));
            self.none_survive = false;
        }
        if self.none_survive || lock(&self.tree).tree.is_none() && !self.child.may_have_leftovers() {
            self.none_survive = true;
            return Some(Vec::new());
        }
        let left = self.with_tree(Tree::try_survivors);
        self.none_survive = left.as_ref().is_some_and(Vec::is_empty);
        left
    }

    fn dispose(&mut self, leftovers: Leftovers) -> bool {
        let tree = || lock(&self.tree).tree.take();
        match leftovers {
            Leftovers::Kill => return leftovers::kill(tree()),
            Leftovers::Detach => tree().into_iter().for_each(Tree::detach),
            Leftovers::Adopt => {}
        }
        true
    }

    fn adopts(&self) -> bool {
        lock(&self.tree).tree.is_some()
    }

    fn shares_terminal(&self) -> bool {
        false
    }

    fn shared(&self) -> Option<SharedProgram> {
        Some(SharedProgram { pidfd: self.child.shared_pidfd(), tree: Arc::downgrade(&self.tree) })
    }
}

/// The program and the tree of a run, for a job's handle that ends them without the engine.
#[derive(Clone, Debug)]
pub(crate) struct SharedProgram {
    pidfd: Weak<CheckedFd>,
    tree: Weak<Mutex<ProgramTree>>,
}

impl SharedProgram {
    /// Sends SIGTERM to the program and its tree, if the program runs.
    pub(in crate::job) fn terminate(&self) {
        let (Some(pidfd), Some(tree)) = (self.pidfd.upgrade(), self.tree.upgrade()) else { return };
        let mut shared = lock(&tree);
        // After the program's end, the run decides about the other processes of the tree.
        let Some(pidfd) = pidfd.get().filter(|pidfd| !guard_sys::wait_for_end(pidfd.as_raw_fd(), 0)) else { return };
        shared.got_sigterm = shared.get(pidfd.as_fd(), 0).signal_all(TERM)
            || pidfd_send_signal(features::killed(), pidfd.as_raw_fd(), TERM).is_ok();
    }

    /// Lets the tree find and remember its processes before the program, or one of them, is made to end.
    pub(in crate::job) fn remember_members(&self) {
        if let Some(tree) = self.tree.upgrade() {
            lock(&tree).tree.iter_mut().for_each(Tree::remember_members);
        }
    }

    /// The running processes of the tree, except the program.
    pub(in crate::job) fn survivors(&self) -> Vec<Stat> {
        let tree = self.tree.upgrade();
        tree.and_then(|tree| lock(&tree).tree.as_mut().and_then(Tree::try_survivors)).unwrap_or_default()
    }
}

fn lock(tree: &Mutex<ProgramTree>) -> MutexGuard<'_, ProgramTree> {
    tree.lock().unwrap_or_else(PoisonError::into_inner)
}
