// SPDX-License-Identifier: MIT OR Apache-2.0
//! One attempt, as a launcher receives it, and the launcher's answer.

use std::os::fd::RawFd;
use std::sync::Arc;

use spawnfd_child::Plan;
use spawnfd_sys::{CloneOptions, Errno};

use super::tables::Strategy;
use crate::child::Child;
use crate::cold_reason::ColdReason;
use crate::command::{ParkedCandidates, Start};
use crate::error::Error;
use crate::host::features::FeaturesOfThread;
use crate::template::{CacheKey, Template, TemplateCache};

/// The event for which the caller waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Exec: the call reports failures before and at exec.
    Exec,
    /// The program's end. The caller waits for it later, so this call may wait for exec, unless an action may block
    /// forever.
    End,
    /// The start only: when the call returns, a parked process has begun the start, or a child exists.
    Start,
    /// Nothing: when the call returns, a parked process may not have begun the start yet.
    Nothing,
}

/// A launcher's answer: the child, or why the start has failed. The outer error is a refusal.
pub(super) type Answer = Result<Result<Child, Error>, Refusal>;

/// Why an attempt has started no program, and has run no action of the caller.
pub(super) enum Refusal {
    /// The launcher cannot make this start.
    NotMine,
    /// The kernel has created no child.
    Clone(Errno),
    /// The strategy is not available for these sources.
    NoTable,
    /// The child failed to set up its descriptor table.
    Table(Errno),
    /// A source is not open in the caller.
    ClosedSource,
}

/// One attempt, as a launcher receives it.
pub(super) struct Attempt<'a> {
    pub(super) start: &'a Start<'a>,
    pub(super) template: &'a Template,
    pub(super) cached: Option<&'a (CacheKey, &'a TemplateCache)>,
    pub(super) wait: Wait,
    /// True if an action may block forever, and the caller does not wait for exec.
    pub(super) may_block: bool,
    pub(super) features: FeaturesOfThread,
    pub(super) plan: Arc<Plan<'static>>,
    pub(super) options: CloneOptions,
    /// The cgroup in which the kernel creates the child, with the index of its action.
    pub(super) cgroup: Option<(u16, RawFd)>,
    /// The strategy for the child's descriptor table.
    pub(super) strategy: Strategy,
    /// The parked processes that may serve the start, or the reason why there is none. `None` if the command uses no
    /// parked processes.
    pub(super) candidates: Option<Result<Box<dyn ParkedCandidates + 'a>, ColdReason>>,
    /// The reason for a cold start.
    pub(super) cold: &'a mut Option<ColdReason>,
}

impl Attempt<'_> {
    /// Drops a template from the cache, because the child has found the template out of date.
    pub(super) fn forget_template(&self) {
        if let Some((named, cache)) = self.cached {
            cache.drop_stale(named);
        }
    }
}
