// SPDX-License-Identifier: MIT OR Apache-2.0
//! The subject of a run: a program with its process tree, or a command inside a session's shell.

use std::fmt::Debug;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use spawnfd_guard::process::Stat;
use spawnfd_guard::sys as guard_sys;
use spawnfd_sys::call::pidfd_send_signal;

use crate::child::{Child, Started, Usage};
use crate::error::Result;
use crate::host::descriptors::CheckedFd;
use crate::host::features;
use crate::host::thread::start_thread;
use crate::job::{Leftover, Leftovers};
use crate::signal::{KILL, TERM};
use crate::tree::{Tier, Tree};

/// The process or command that a run supervises. The run has its pipes, deadlines and output.
///
/// A command inside a shell has no process tree of its own: its processes belong to the run of the shell, and its
/// background jobs run on. The provided methods fit such a command.
pub(crate) trait Supervised: Debug + Send {
    /// The process id, for printing.
    fn id(&self) -> u32;

    /// How far control of the process tree reaches.
    fn tier(&self) -> Tier;

    /// How it was started.
    fn started(&self) -> Started;

    /// The descriptor that becomes readable when it ends.
    fn end_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Lets it begin, once the run has its pipes.
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns how it ended; `None` while it runs. `is_owner`: this process is not a forked copy of the host.
    fn reap(&mut self, is_owner: bool) -> Result<Option<ProgramEnd>>;

    /// The time of the next [`tick`](Supervised::tick), after which the run reaps it again.
    fn due(&self) -> Option<Instant>;

    /// Does what is due.
    fn tick(&mut self, now: Instant);

    /// Sends a signal to its main process, or with `tree` to all its processes.
    fn signal(&mut self, signal: i32, tree: bool);

    /// Asks its processes to end. The run kills them after `grace`.
    fn terminate(&mut self, grace: Duration);

    /// How long the run waits after its first SIGKILL for the end.
    fn kill_timeout(&self) -> Duration;

    /// Kills its processes. Returns `false` if the kernel refuses the signal. The run repeats the call until the end.
    fn kill(&mut self) -> bool;

    /// Kills what still runs after the run has failed. The run is dropped next.
    fn abort(&mut self) {}

    /// Its running processes, for the run's limits.
    fn processes(&mut self) -> Vec<Stat> {
        Vec::new()
    }

    /// Finds the processes that have outlived it. `None`: the library cannot search for such processes. `found` has the
    /// processes that started during the run and hold its pipes.
    fn survivors(&mut self, _found: &[Stat]) -> Option<Vec<Stat>> {
        Some(Vec::new())
    }

    /// Kills, releases or keeps the survivors. Returns `false` if killed survivors have not ended yet.
    fn dispose(&mut self, _leftovers: Leftovers) -> bool {
        true
    }

    /// Whether it is a command inside a shell. The run then reads the output of background jobs after its result, and
    /// the output of the terminal belongs to the next command.
    fn is_in_shell(&self) -> bool {
        true
    }

    /// References to pidfd and tree, for a job's handle that ends them without the engine.
    fn shared(&self) -> Option<SharedProgram> {
        None
    }
}

/// How a program or command ended.
#[derive(Debug, Default)]
pub(crate) struct ProgramEnd {
    /// `None`: the status is lost.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) usage: Option<Usage>,
    /// The end may be the effect of SIGKILL.
    pub(crate) may_be_killed: bool,
    /// The shell's working directory; `None` if the shell has ended.
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) shell_exited: bool,
    /// The status of a shell that has ended, and the processes that have outlived it.
    pub(crate) shell_status: Option<ExitStatus>,
    pub(crate) leftovers: Vec<Leftover>,
}

/// How long a run waits after its first SIGKILL for its program to end. The page on process trees documents this time.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// A child of this process, and its process tree.
#[derive(Debug)]
pub(super) struct Program {
    child: Child,
    tree: Arc<Mutex<ProgramTree>>,
    /// The deadline for a parked process to accept the request.
    begins_by: Option<Instant>,
}

/// The process tree of a program. The thread that drives the run uses it, and the thread that drops the job's handle.
#[derive(Debug)]
struct ProgramTree {
    /// After the result, a tree without processes, unless the job has adopted the tree.
    tree: Tree,
    /// The job's handle has sent SIGTERM to the tree, which does not get a second one.
    got_sigterm: bool,
}

impl Program {
    /// `tree` is the tree that the library prepared before it started the child.
    pub(super) fn new(child: Child, mut tree: Tree) -> Program {
        tree.child_started(&child);
        tree.program_is_kept();
        let begins_by = child.begins_by(Instant::now());
        let tree = Arc::new(Mutex::new(ProgramTree { tree, got_sigterm: false }));
        Program { child, tree, begins_by }
    }

    /// Passes the process tree to `use_tree`.
    fn with_tree<T>(&self, use_tree: impl FnOnce(&mut Tree) -> T) -> T {
        use_tree(&mut lock(&self.tree).tree)
    }
}

impl Supervised for Program {
    fn id(&self) -> u32 {
        self.child.id()
    }

    fn tier(&self) -> Tier {
        lock(&self.tree).tree.tier()
    }

    fn started(&self) -> Started {
        self.child.started()
    }

    fn end_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.child.as_fd())
    }

    fn reap(&mut self, is_owner: bool) -> Result<Option<ProgramEnd>> {
        {
            let mut shared = lock(&self.tree);
            if shared.got_sigterm {
                self.child.note_signal(TERM);
            }
            shared.tree.program_ended();
        }
        let reaped = if is_owner { self.child.reap_or_note_lost()? } else { self.child.reap(false)?.map(Some) };
        let Some(status) = reaped else {
            lock(&self.tree).tree.program_is_kept();
            return Ok(None);
        };
        let usage = self.child.usage();
        let may_be_killed = status.is_none_or(|status| status.signal() == Some(KILL));
        Ok(Some(ProgramEnd { status, usage, may_be_killed, ..ProgramEnd::default() }))
    }

    fn due(&self) -> Option<Instant> {
        self.begins_by.into_iter().chain(self.child.report_due()).min()
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
        let got_sigterm = std::mem::replace(&mut lock(&self.tree).got_sigterm, true);
        if !got_sigterm {
            self.signal(TERM, true);
        }
    }

    fn kill_timeout(&self) -> Duration {
        KILL_TIMEOUT
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
        }
        self.with_tree(Tree::try_survivors)
    }

    fn dispose(&mut self, leftovers: Leftovers) -> bool {
        let take_tree = || std::mem::replace(&mut lock(&self.tree).tree, Tree::of_group());
        match leftovers {
            Leftovers::Kill => return kill_or_hand_over(take_tree()),
            Leftovers::Detach => take_tree().detach(),
            Leftovers::Adopt => {}
        }
        true
    }

    fn is_in_shell(&self) -> bool {
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
        if shared.got_sigterm {
            return;
        }
        shared.got_sigterm = shared.tree.signal_all(TERM)
            || pidfd_send_signal(features::killed_calls(), pidfd.as_raw_fd(), TERM).is_ok();
    }

    /// Lets the tree find and remember its processes before the program, or one of them, is made to end.
    pub(in crate::job) fn remember_members(&self) {
        if let Some(tree) = self.tree.upgrade() {
            lock(&tree).tree.remember_members();
        }
    }

    /// The running processes of the tree, except the program.
    pub(in crate::job) fn survivors(&self) -> Vec<Stat> {
        let tree = self.tree.upgrade();
        tree.and_then(|tree| lock(&tree).tree.try_survivors()).unwrap_or_default()
    }
}

/// Kills the remaining processes of a tree. If some have not ended after that, another thread waits for their end,
/// because the calling thread may have other runs to serve. Returns `true` if all have ended.
fn kill_or_hand_over(mut tree: Tree) -> bool {
    let has_ended = tree.kill(Duration::ZERO);
    if !has_ended {
        // If no thread can be started, the closure with the tree is dropped in this thread. Dropping the tree kills
        // its processes.
        let _ = start_thread("spawnfd-killer", 128 << 10, move || drop(tree));
    }
    has_ended
}

fn lock(tree: &Mutex<ProgramTree>) -> MutexGuard<'_, ProgramTree> {
    tree.lock().unwrap_or_else(PoisonError::into_inner)
}
