// SPDX-License-Identifier: MIT OR Apache-2.0
//! A parked process that is leased to one start: checks it against the plan, and compares the caller state.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, MutexGuard, PoisonError};

use spawnfd_child::{Op, Plan};
use spawnfd_sys::{abi, call};

use super::Kind;
use super::caller::CallerState;
use super::entry::Waiting;
use super::parked::{MADE_DEFAULT, Parked};
use super::prefix::Inside;
use super::recipe::Recipe;
use super::state::ARGUMENTS;
use super::wire::Context;
use crate::template::Template;

/// A parked process that is leased to one start.
#[derive(Debug)]
pub(super) struct LeasedProcess {
    pub(super) entry: u64,
    pub(super) recipe: Arc<Recipe>,
    pub(super) shared: Waiting,
    /// The process is the parent of forked processes: the start forks a child from it.
    pub(super) is_parent: bool,
}

impl LeasedProcess {
    pub(super) fn is_sandboxed(&self) -> bool {
        self.recipe.prefix.is_some()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Parked> {
        self.shared.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the process can carry out this plan's actions.
    pub(super) fn fits(&self, plan: &Plan<'_>) -> Result<(), &'static str> {
        let parked = self.recipe.template.name().as_bytes();
        let as_parked = |name: &[u8]| match self.recipe.kind {
            Kind::Main => true,
            // CPython locates itself by argv[0]. A bare name leads to the same file.
            Kind::Python => name == parked || !name.contains(&b'/'),
            // process.argv0 has been set.
            Kind::Node => name == parked,
        };
        let is_beyond = |op: &Op<'_>| {
            matches!(*op, Op::Place { source, to }
            if to >= plan.below && plan.sources.get(source) == Some(&to))
        };
        if plan.steps.iter().any(|step| is_beyond(&step.op)) {
            return Err("inherited descriptors");
        }
        let name = plan.argv.iter().next().map(std::ffi::CStr::to_bytes);
        if self.is_sandboxed() || name.is_some_and(as_parked) { Ok(()) } else { Err(ARGUMENTS) }
    }

    /// The part of the plan that a confined or sandboxed process carries out; `None`: the process is neither.
    ///
    /// # Errors
    /// An action that only the program in front can perform.
    pub(super) fn inside(&self, parked: &Parked, plan: &Plan<'static>) -> Result<Option<Inside>, &'static str> {
        if !self.is_confined() && !self.is_sandboxed() {
            return Ok(None);
        }
        let mut inside = Inside::of(plan);
        self.recipe.confinement.enter(&mut inside, plan)?;
        if let Some(prefix) = &self.recipe.prefix {
            prefix.enter(&mut inside, plan, &parked.origin.env, &parked.origin.given)?;
        }
        Ok(Some(inside))
    }

    /// Whether the process is confined more than its owner.
    pub(super) fn is_confined(&self) -> bool {
        self.recipe.confinement.is_any()
    }

    /// The changes from the caller state at the start of `parked` to the current one. `here`: the index of the
    /// working directory in the sources.
    ///
    /// # Errors
    /// A difference that cannot be carried over.
    pub(super) fn compare(
        &self,
        parked: &Parked,
        plan: &Plan<'_>,
        template: &Template,
        here: Option<usize>,
    ) -> Result<Context, &'static str> {
        template.check().map_err(|_| "stale")?;
        if self.is_sandboxed() {
            self.recipe.template.check().map_err(|_| "stale")?;
        }
        let now = CallerState::of_calling_thread().ok_or("/proc")?;
        let mut steps = parked.origin.caller.steps_to(&now, self.recipe.executes)?;
        match here {
            Some(dir) => steps.push(Op::Fchdir { dir }),
            None if self.is_sandboxed() && steps.len() > 1 => return Err("limits"),
            None => {}
        }
        if now.is_ordinary() && self.recipe.stands_back() {
            // Parked processes run under SCHED_BATCH.
            steps.push(Op::Scheduler { policy: abi::SCHED_NORMAL, priority: 0 });
        }
        let ignored = parked.origin.caller.authority.ignored() & !MADE_DEFAULT;
        let wanted = now.authority.ignored() & !plan.default_signals;
        // The program in front may have read the ignored signals.
        if self.is_sandboxed() && ignored != wanted {
            return Err("ignored signals");
        }
        Ok(Context {
            steps,
            make_default: ignored & !wanted,
            make_ignored: wanted & !ignored,
            mask: plan.signal_mask.unwrap_or_else(call::signal_mask),
        })
    }
}
