// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a command: returns a running child, or the reason why there is none.
//!
//! [`spawn`] makes attempts until one works or [`Attempts::next`] has no other. An attempt has a plan, a launcher, a
//! strategy for the descriptor table, and options of the clone call. No attempt follows once an action of the caller has
//! run, so no action runs twice.

mod asynchronous;
mod attempt;
mod clone;
mod kernel;
mod outcome;
mod parked;
mod pidns;
mod prepared;
mod refusal;
mod slots;
mod subreaper;
mod tables;

use std::os::fd::{AsRawFd, OwnedFd};

use spawnfd_sys::{Ended, Errno, wait_pidfd};

pub(crate) use self::attempt::Wait;
use self::attempt::{Answer, Attempt};
#[cfg(feature = "warm")]
use self::prepared::Prepared;
use self::refusal::Attempts;
pub(crate) use self::refusal::{Again, again};
pub(crate) use self::slots::drop_unused as drop_unused_slots;
pub use self::slots::reserve_descriptors;
use crate::child::Child;
#[cfg(feature = "warm")]
use crate::cold_reason::ColdReason;
#[cfg(feature = "warm")]
use crate::command::WouldStart;
use crate::command::{Command, Lowered, Start};
use crate::error::{Error, Result, Stage};
use crate::host::authority;
use crate::host::features;

impl Command<'_> {
    /// Finds the program and checks all arguments, but starts nothing.
    ///
    /// # Errors
    /// The errors that [`spawn`](Command::spawn) reports before a child exists.
    pub fn validate(&self) -> Result<()> {
        // Check in the order of a spawn, so that both report the same error if there are several.
        let (template, _) = self.template()?;
        Lowered::new(&Start::new(self), &template, &features::of_calling_thread(), false, None).map(drop)
    }
}

/// Starts a command. `prepare` returns the start. If its argument is false, `prepare` uses no helper process unless the
/// caller has asked for it.
pub(crate) fn spawn<'a>(prepare: &mut dyn FnMut(bool) -> Result<Start<'a>>, wait: Wait) -> Result<Child> {
    authority::remember_if_single_threaded();
    let mut attempts = Attempts::new(prepare, wait);
    loop {
        if let Some(child) = attempts.next()? {
            return Ok(child);
        }
    }
}

/// Finds out how a command would start, and starts nothing. The inner error is the reason for a cold start.
///
/// # Errors
/// Those of a start.
#[cfg(feature = "warm")]
pub(crate) fn explain(start: &Start<'_>) -> Result<std::result::Result<WouldStart, ColdReason>> {
    let (template, cached) = start.command.template()?;
    let mut prepared = Prepared::new(start, &template, cached.is_some(), Wait::Start)?;
    Ok(parked::explain(&mut prepared.attempt(start, &template, &cached)))
}

/// Starts a helper of the library, and waits for exec.
pub(crate) fn spawn_helper(command: &Command<'_>) -> Result<Child> {
    // A helper does not wait for the end of other helpers.
    let again = || Error::new(Stage::Clone, Errno::EAGAIN, "spawn()");
    spawn(&mut |is_first| is_first.then(|| Start::new(command)).ok_or_else(again), Wait::Exec)
}

/// Reaps a child that did not become the program. The child has ended, or ends soon. Its exit signal is 0, so the
/// host gets no SIGCHLD.
fn reap(pidfd: &OwnedFd) -> Option<Ended> {
    wait_pidfd(pidfd.as_raw_fd(), true).ok().flatten()
}
