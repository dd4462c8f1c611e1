// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caller state: everything that a program inherits from the thread that starts it, as a value. It is read when a
//! process is parked, and again at each start from that process.
//!
//! A start carries differences over to the parked process; if it cannot, the program starts cold. Authority is
//! compared first.

use std::sync::Arc;

use spawnfd_child::{Data, Op};
use spawnfd_guard::sys;
use spawnfd_sys::{abi, call};

use crate::host::authority::{Authority, Reach};
use crate::host::inherited::{Inherited, Place};
use crate::host::own_proc::{self, Own};

/// The number of resources with a limit; their numbers are 0 to this minus 1.
const LIMITS: usize = abi::RLIM_NLIMITS as usize;

/// The state that a child of the calling thread would inherit, except descriptors, working directory and signal mask.
#[derive(Debug)]
pub(super) struct CallerState {
    pub(super) authority: Authority,
    inherited: Inherited,
    /// Process group and session: 0 for one from outside this pid namespace, which `rustix::process::Pid` cannot
    /// represent.
    group: [Option<i32>; 2],
    /// Soft and hard, by resource.
    limits: [(u64, u64); LIMITS],
    /// The root directory.
    root: Place,
    oom_score_adj: Option<i32>,
    core_filter: Option<Vec<u8>>,
}

impl CallerState {
    /// The state of the calling thread. `None`: /proc cannot be read, or statx is refused.
    pub(super) fn of_calling_thread() -> Option<CallerState> {
        CallerState::with(Authority::of_calling_thread().ok()?)
    }

    /// The state of the calling thread, which a thread with this reach started.
    pub(super) fn of_helper_thread(maker: &Arc<Reach>) -> Option<CallerState> {
        CallerState::with(Authority::of_heir_of(maker).ok()?)
    }

    fn with(authority: Authority) -> Option<CallerState> {
        let oom_score_adj = own_proc::read(Own::OomScoreAdj).ok();
        Some(CallerState {
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

    /// Whether the thread has the policy SCHED_NORMAL.
    pub(super) fn is_ordinary(&self) -> bool {
        self.inherited.policy() == Some(abi::SCHED_NORMAL)
    }

    /// The steps that change a process with the state `self` to the calling thread's state `now`. `executes`: exec
    /// follows.
    ///
    /// # Errors
    /// A difference that no step can carry over.
    pub(super) fn steps_to(&self, now: &CallerState, executes: bool) -> Result<Vec<Op<'static>>, &'static str> {
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
        let mask = u32::from_str_radix(now.authority.umask(), 8).unwrap_or(0o22);
        let mut steps = vec![Op::Umask { mask }];
        for (resource, (was, is)) in (0u32..).zip(self.limits.into_iter().zip(now.limits)) {
            if was == is {
                continue;
            }
            // Exec uses these limits: it lays out stack and heap by them.
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
            (Some(was), Some(is)) if is > was => steps.push(Op::OomScoreAdj { value: is, text: Data::Borrowed(&[]) }),
            _ => return Err("oom_score_adj"),
        }
        Ok(steps)
    }
}
