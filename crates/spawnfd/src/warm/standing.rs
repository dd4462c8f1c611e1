// SPDX-License-Identifier: MIT OR Apache-2.0
//! All that a program has from the thread that starts it, as a value: taken when a process is parked, and again at each start from it.
//!
//! What differs is carried over to the parked process, or else the program is started cold: authority first of all.

use std::sync::Arc;

use spawnfd_child::Op;
use spawnfd_guard::sys;
use spawnfd_sys::{abi, call};

use crate::host::authority::{Authority, Reach};
use crate::host::inherited::{Inherited, Place};
use crate::host::own_proc::{self, Own};

/// How many resources have a limit: their numbers are those below.
const LIMITS: usize = abi::RLIM_NLIMITS as usize;

/// What the calling thread would hand down, but for descriptors, working directory and signal mask.
#[derive(Debug)]
pub(super) struct Standing {
    authority: Authority,
    inherited: Inherited,
    /// Process group and session: 0 for one that began outside this pid namespace, which `rustix::process::Pid` could not hold.
    group: [Option<i32>; 2],
    /// Soft and hard, by resource.
    limits: [(u64, u64); LIMITS],
    /// The root directory.
    root: Place,
    oom_score_adj: Option<i32>,
    core_filter: Option<Vec<u8>>,
}

impl Standing {
    /// The calling thread's. `None`: /proc cannot be read, or statx is refused.
    pub(super) fn of_calling_thread() -> Option<Standing> {
        Standing::with(Authority::of_calling_thread().ok()?)
    }

    /// The calling thread's, which was started by a thread with that reach.
    pub(super) fn of_heir_of(maker: &Arc<Reach>) -> Option<Standing> {
        Standing::with(Authority::of_heir_of(maker).ok()?)
    }

    fn with(authority: Authority) -> Option<Standing> {
        let oom_score_adj = own_proc::read(Own::OomScoreAdj).ok();
        Some(Standing {
            authority,
            inherited: Inherited::of_calling_thread(),
            group: [sys::getpgid(0).ok(), sys::getsid(0).ok()],
            limits: std::array::from_fn(|resource| {
                call::limit(resource as u32).map_or((u64::MAX, u64::MAX), |limit| (limit.rlim_cur, limit.rlim_max))
            }),
            root: Place::of(c"/")?,
            oom_score_adj: oom_score_adj.and_then(|text| str::from_utf8(&text).ok()?.trim().parse().ok()),
            core_filter: own_proc::read(Own::CoreFilter).ok(),
        })
    }

    /// The authority among it.
    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The file creation mask.
    pub(super) fn umask(&self) -> u32 {
        u32::from_str_radix(self.authority.umask(), 8).unwrap_or(0o22)
    }

    /// The signals that are ignored, as a set.
    pub(super) fn ignored(&self) -> u64 {
        self.authority.ignored()
    }

    /// Whether it is scheduled as most threads are.
    pub(super) fn is_ordinary(&self) -> bool {
        self.inherited.policy() == Some(abi::SCHED_NORMAL)
    }

    /// The steps by which a process that was born with `self` comes to have what the calling thread has `now`. `executes`: exec follows.
    ///
    /// # Errors
    /// In what they differ, where nothing can be done about it.
    pub(super) fn steps_to(&self, now: &Standing, executes: bool) -> Result<Vec<Op>, &'static str> {
        if let Some(what) = self.authority.differs(&now.authority).or_else(|| self.inherited.differs(&now.inherited)) {
            return Err(what);
        }
        let equal = [
            ("session", self.group == now.group),
            ("root", self.root == now.root),
            ("core dump filter", self.core_filter == now.core_filter),
        ];
        if let Some((what, _)) = equal.iter().find(|(_, equal)| !equal) {
            return Err(what);
        }
        let mut steps = vec![Op::Umask { mask: now.umask() }];
        for (resource, (was, is)) in (0u32..).zip(self.limits.into_iter().zip(now.limits)) {
            if was == is {
                continue;
            }
            // These are put to use at exec: stacks and heaps are laid out by them.
            if !executes && matches!(resource, abi::RLIMIT_STACK | abi::RLIMIT_AS | abi::RLIMIT_DATA) {
                return Err("memory limits");
            }
            let (rlim_cur, rlim_max) = is;
            if rlim_max > was.1 {
                return Err("raised limits");
            }
            steps.push(Op::Limit { resource, limit: [rlim_cur, rlim_max] });
        }
        match (self.oom_score_adj, now.oom_score_adj) {
            (was, is) if was == is => {}
            (Some(was), Some(is)) if is > was => steps.push(Op::OomScoreAdj { value: is, text: [].into() }),
            _ => return Err("oom_score_adj"),
        }
        Ok(steps)
    }
}
