// SPDX-License-Identifier: MIT OR Apache-2.0
//! The interface of a run to its program, or to a command inside a session's shell.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use spawnfd_guard::process::Stat;

use super::SharedProgram;
use crate::child::{Started, Usage};
use crate::error::Result;
use crate::job::{Leftover, Leftovers};
use crate::tree::Tier;

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

    /// The time at which to reap it again, because its end is not complete yet.
    fn report_due(&self) -> Option<Instant>;

    /// The time of the next [`tick`](Supervised::tick).
    fn due(&self) -> Option<Instant>;

    /// Does what is due before SIGKILL.
    fn tick(&mut self, now: Instant);

    /// Sends a signal to its main process, or with `tree` to all its processes.
    fn signal(&mut self, signal: i32, tree: bool);

    /// Asks its processes to end. The run kills them after `grace`.
    fn terminate(&mut self, grace: Duration);

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

    /// Whether the run reads the output of survivors after its result.
    fn adopts(&self) -> bool {
        true
    }

    /// Whether the terminal's output belongs to another run after this one.
    fn shares_terminal(&self) -> bool {
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
