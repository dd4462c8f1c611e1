// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caller state: everything that a program inherits from the thread that starts it, as a value. The library reads
//! it when it parks a process, and again at each start from that process.
//!
//! A start applies the differences to the parked process. If a difference cannot be applied, the program starts cold.
//! The start compares the authority (the thread's credentials) first.

use std::sync::Arc;

use spawnfd_child::{Data, Op};
use spawnfd_guard::sys;
use spawnfd_sys::{abi, call};

use crate::cold_reason::ColdReason;
use crate::host::authority::{Authority, Reach};
use crate::host::inherited::{FileId, InheritedState};
use crate::host::own_proc::{self, ProcFile};

/// The number of resource limits (RLIMIT_*). The resources are numbered from 0 to LIMITS - 1.
const LIMITS: usize = abi::RLIM_NLIMITS as usize;

/// The state that a child of the calling thread would inherit, except descriptors, working directory and signal mask.
#[derive(Debug)]
pub(super) struct CallerState {
    pub(super) authority: Authority,
    inherited: InheritedState,
    /// The ids of process group and session. An id is 0 if the group or session is outside this pid
    /// namespace. `rustix::process::Pid` cannot represent 0.
    group_and_session: [Option<i32>; 2],
    /// The soft and the hard limit of each resource, indexed by RLIMIT_* number.
    limits: [(u64, u64); LIMITS],
    /// The root directory.
    root: FileId,
    oom_score_adj: Option<i32>,
    core_filter: Option<Vec<u8>>,
}

impl CallerState {
    /// Reads the state of the calling thread. Returns `None` if /proc cannot be read, or if a
    /// seccomp filter refuses statx.
    pub(super) fn of_calling_thread() -> Option<CallerState> {
        CallerState::with(Authority::of_calling_thread().ok()?)
    }

    /// Reads the state of the calling thread, a helper thread of the library. `starter` is the reach
    /// (credentials and scheduling) of the thread that started the helper thread.
    pub(super) fn of_helper_thread(starter: &Arc<Reach>) -> Option<CallerState> {
        CallerState::with(Authority::of_thread_started_by(starter).ok()?)
    }

    fn with(authority: Authority) -> Option<CallerState> {
        let oom_score_adj = own_proc::read(ProcFile::OomScoreAdj).ok();
        Some(CallerState {
            authority,
            inherited: InheritedState::of_calling_thread(),
            group_and_session: [sys::getpgid(0).ok(), sys::getsid(0).ok()],
            limits: std::array::from_fn(|resource| {
                call::limit(resource as u32).map_or((u64::MAX, u64::MAX), |limit| (limit.rlim_cur, limit.rlim_max))
            }),
            root: FileId::of(c"/")?,
            oom_score_adj: oom_score_adj.and_then(|text| str::from_utf8(&text).ok()?.trim().parse().ok()),
            core_filter: own_proc::read(ProcFile::CoreFilter).ok(),
        })
    }

    /// Whether the thread has the scheduling policy SCHED_NORMAL.
    pub(super) fn is_ordinary(&self) -> bool {
        self.inherited.policy() == Some(abi::SCHED_NORMAL)
    }

    /// The steps that change a process with the state `self` to the calling thread's state `now`. `executes` is true
    /// if the process then executes the program.
    ///
    /// # Errors
    /// A difference that no step can apply.
    pub(super) fn steps_to(&self, now: &CallerState, executes: bool) -> Result<Vec<Op<'static>>, ColdReason> {
        if let Some(reason) =
            self.authority.first_difference(&now.authority).or_else(|| self.inherited.first_difference(&now.inherited))
        {
            return Err(reason);
        }
        let equal = [
            (ColdReason::Session, self.group_and_session == now.group_and_session),
            (ColdReason::Root, self.root == now.root),
            (ColdReason::CoreDumpFilter, self.core_filter == now.core_filter),
        ];
        if let Some((reason, _)) = equal.iter().find(|(_, equal)| !equal) {
            return Err(*reason);
        }
        let mask = u32::from_str_radix(now.authority.umask(), 8).unwrap_or(0o22);
        let mut steps = vec![Op::Umask { mask }];
        for (resource, (was, is)) in (0u32..).zip(self.limits.into_iter().zip(now.limits)) {
            if was == is {
                continue;
            }
            // The kernel laid out the stack and heap of the parked process by these limits, at
            // exec.
            if !executes && matches!(resource, abi::RLIMIT_STACK | abi::RLIMIT_AS | abi::RLIMIT_DATA) {
                return Err(ColdReason::MemoryLimits);
            }
            let (rlim_cur, rlim_max) = is;
            if rlim_max > was.1 {
                return Err(ColdReason::RaisedLimits);
            }
            steps.push(Op::Limit { resource, limit: [rlim_cur, rlim_max] });
        }
        match (self.oom_score_adj, now.oom_score_adj) {
            (was, is) if was == is => {}
            (Some(was), Some(is)) if is > was => steps.push(Op::OomScoreAdj { value: is, text: Data::Borrowed(&[]) }),
            _ => return Err(ColdReason::OomScoreAdj),
        }
        Ok(steps)
    }
}
