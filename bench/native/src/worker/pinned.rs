// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the spawning thread, and with it its children, on one CPU while single calls are timed.
//!
//! Where a child first runs is the scheduler's choice: on its parent's CPU, or on an idle one, some 20 us later. Which it is stays the
//! same for hundreds of calls of one process and differs between processes, so that without this a ratio of two processes, and half
//! of one within a process, would be about that.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;

/// The calling thread, on one CPU.
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Moves the calling thread to the first CPU it may use.
    pub fn to_first_cpu() -> Result<Pinned> {
        let before = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        if let Some(first) = (0..CpuSet::MAX_CPU).find(|&cpu| before.is_set(cpu)) {
            one.set(first);
            sched_setaffinity(None, &one)?;
        }
        Ok(Pinned { before })
    }

    /// Lets it go where it may go again.
    pub fn release(self) -> Result<()> {
        Ok(sched_setaffinity(None, &self.before)?)
    }
}
