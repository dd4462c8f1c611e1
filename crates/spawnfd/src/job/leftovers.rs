// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kills the processes that outlive a run's program (leftovers), and determines the fate of each.

use std::time::Duration;

use spawnfd_guard::process::{KillEffect, Process, Stat};

use super::{Fate, Leftover};
use crate::host::thread::start_thread;
use crate::tree::{Survivor, Tree};

/// Kills the remaining processes of a tree. If some have not ended after that, another thread waits for their end,
/// because the calling thread may have other runs to serve. Returns `true` if all have ended.
pub(super) fn kill(tree: Option<Tree>) -> bool {
    let Some(mut tree) = tree else { return true };
    let has_ended = tree.kill(Duration::ZERO);
    if !has_ended {
        // If no thread can be started, the closure with the tree is dropped in this thread. Dropping the tree kills
        // its processes.
        let _ = start_thread("spawnfd-killer", 128 << 10, move || drop(tree));
    }
    has_ended
}

/// Converts a process of the tree to a leftover.
pub(super) fn leftover(stat: Stat, fate: Fate) -> Leftover {
    let Survivor { pid, name } = Survivor::of(stat);
    Leftover { pid, name, fate }
}

/// The reason why a process has not ended after SIGKILL. `None`: no reason is known, or it has ended.
///
/// `killed`: if the run has given up, the time of its first SIGKILL in the unit of
/// [`ticks_now`](spawnfd_guard::process::ticks_now).
pub(super) fn why_not_ended(process: Process, killed: Option<u64>) -> Option<Fate> {
    match process.kill_effect() {
        KillEffect::Refused => Some(Fate::NotPermitted),
        // A process that started after the first SIGKILL has had less time to end, so it gets no such fate.
        KillEffect::Pending if killed >= Some(process.start) => Some(Fate::Uninterruptible),
        KillEffect::Pending | KillEffect::Ended => None,
    }
}

/// Returns the leftover for the program of a run that no longer waits for the program's end. `is_refused`: the kernel
/// has refused the last SIGKILL.
pub(super) fn unkilled_program(pid: u32, program: &str, is_refused: bool) -> Leftover {
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
