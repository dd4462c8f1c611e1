// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes that outlive a run's program: how the library kills them, and the fate of each.

use std::time::Duration;

use spawnfd_guard::process::{KillEffect, Process, Stat};

use super::{Fate, Leftover};
use crate::host::thread::start_thread;
use crate::tree::{Survivor, Tree};

/// Kills the remaining processes of a tree. A thread waits for their end, because the caller has other runs to serve.
/// `true`: all have ended.
pub(super) fn kill(tree: Option<Tree>) -> bool {
    let Some(mut tree) = tree else { return true };
    let has_ended = tree.kill(Duration::ZERO);
    if !has_ended {
        // If no thread can be started, the tree is dropped here, which ends it.
        let _ = start_thread("spawnfd-killer", 128 << 10, move || drop(tree));
    }
    has_ended
}

/// A process of the tree as a leftover.
pub(super) fn leftover(stat: Stat, fate: Fate) -> Leftover {
    let Survivor { pid, name } = Survivor::from(stat);
    Leftover { pid, name, fate }
}

/// The reason why a process that got SIGKILL does not end; `None` if there is none.
///
/// `killed`: the time of the run's first SIGKILL, as [`ticks_now`](spawnfd_guard::process::ticks_now) has it, if the run
/// has given up since.
pub(super) fn why_not_ended(process: Process, killed: Option<u64>) -> Option<Fate> {
    match process.kill_effect() {
        KillEffect::Refused => Some(Fate::NotPermitted),
        // A younger process has had less time to end.
        KillEffect::Pending if killed >= Some(process.start) => Some(Fate::Uninterruptible),
        KillEffect::Pending | KillEffect::Ended => None,
    }
}

/// The program that a run has given up, as a leftover. `is_refused`: the kernel has refused the last SIGKILL.
pub(super) fn unkilled_program(pid: u32, program: &str, is_refused: bool) -> Leftover {
    // The number is the program's until the caller reaps it.
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
