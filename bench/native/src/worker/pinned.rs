// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pins the spawning thread, and so its children, to one CPU during the measurement of single calls.
//!
//! Without pinning, the scheduler starts a child on its parent's CPU, or some 20 us later on an idle CPU. The choice
//! stays the same for hundreds of calls of one process, and differs between processes. It would dominate a ratio
//! between two processes.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Result;

/// The calling thread's CPU mask before it was pinned to one CPU.
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins the calling thread to the first CPU that it may use.
    pub fn to_first_cpu() -> Result<Pinned> {
        let before = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        if let Some(first) = (0..CpuSet::MAX_CPU).find(|&cpu| before.is_set(cpu)) {
            one.set(first);
            sched_setaffinity(None, &one)?;
        }
        Ok(Pinned { before })
    }

    /// Restores the thread's CPU mask.
    pub fn release(self) -> Result<()> {
        Ok(sched_setaffinity(None, &self.before)?)
    }
}
