// SPDX-License-Identifier: MIT OR Apache-2.0
//! A parked process that is leased to one start. Compares the process with the start's plan and with the caller state.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, MutexGuard, PoisonError};

use spawnfd_child::{Op, Plan};
use spawnfd_sys::{abi, call};

use super::Kind;
use super::caller::CallerState;
use super::entry::ParkedHandle;
use super::parked::{MADE_DEFAULT, ParkedProcess};
use super::recipe::Recipe;
use super::sandbox_command::InnerPlan;
use super::state::ARGUMENTS;
use super::wire::Context;
use crate::template::Template;

/// A parked process that is leased to one start.
#[derive(Debug)]
pub(super) struct LeasedProcess {
    pub(super) entry: u64,
    pub(super) recipe: Arc<Recipe>,
    pub(super) handle: ParkedHandle,
    /// True if the leased process is the parent of a fork mode entry. The start forks a child from it.
    pub(super) is_parent: bool,
}

impl LeasedProcess {
    pub(super) fn is_sandboxed(&self) -> bool {
        self.recipe.sandbox.is_some()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ParkedProcess> {
        self.handle.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the process can perform this plan's actions.
    pub(super) fn fits(&self, plan: &Plan<'_>) -> Result<(), &'static str> {
        let parked = self.recipe.template.name().as_bytes();
        let name_fits = |name: &[u8]| match self.recipe.kind {
            Kind::Main => true,
            // CPython finds its own file by argv[0]. A name without a slash leads to the same file.
            Kind::Python => name == parked || !name.contains(&b'/'),
            // The parked Node.js has set process.argv0 already, so argv[0] must be the same.
            Kind::Node => name == parked,
        };
        let keeps_high_number = |op: &Op<'_>| {
            matches!(*op, Op::Place { source, to }
            if to >= plan.below && plan.sources.get(source) == Some(&to))
        };
        if plan.steps.iter().any(|step| keeps_high_number(&step.op)) {
            return Err("inherited descriptors");
        }
        let name = plan.argv.iter().next().map(std::ffi::CStr::to_bytes);
        if self.is_sandboxed() || name.is_some_and(name_fits) { Ok(()) } else { Err(ARGUMENTS) }
    }

    /// The part of the plan that a confined or sandboxed process performs. `None` if the process is neither.
    ///
    /// # Errors
    /// An action that only the sandbox command can perform.
    pub(super) fn inner_plan(
        &self,
        parked: &ParkedProcess,
        plan: &Plan<'static>,
    ) -> Result<Option<InnerPlan>, &'static str> {
        if !self.is_confined() && !self.is_sandboxed() {
            return Ok(None);
        }
        let mut inner = InnerPlan::of(plan);
        self.recipe.confinement.adapt_steps(&mut inner, plan)?;
        if let Some(sandbox) = &self.recipe.sandbox {
            sandbox.adapt_steps(&mut inner, plan, &parked.origin.env, &parked.origin.given)?;
        }
        Ok(Some(inner))
    }

    /// Whether the process is confined more than its owner.
    pub(super) fn is_confined(&self) -> bool {
        self.recipe.confinement.is_any()
    }

    /// The differences between the caller state at the start of `parked` and the current caller state. `cwd_source` is
    /// the index of the working directory in the sources.
    ///
    /// # Errors
    /// A difference that the parked process cannot apply.
    pub(super) fn compare(
        &self,
        parked: &ParkedProcess,
        plan: &Plan<'_>,
        template: &Template,
        cwd_source: Option<usize>,
    ) -> Result<Context, &'static str> {
        template.check().map_err(|_| "stale")?;
        if self.is_sandboxed() {
            self.recipe.template.check().map_err(|_| "stale")?;
        }
        let now = CallerState::of_calling_thread().ok_or("/proc")?;
        let mut steps = parked.origin.caller.steps_to(&now, self.recipe.executes)?;
        match cwd_source {
            Some(dir) => steps.push(Op::Fchdir { dir }),
            None if self.is_sandboxed() && steps.len() > 1 => return Err("limits"),
            None => {}
        }
        if now.is_ordinary() && self.recipe.runs_as_batch() {
            // The parked process runs under SCHED_BATCH, so return it to the caller's policy
            // SCHED_NORMAL.
            steps.push(Op::Scheduler { policy: abi::SCHED_NORMAL, priority: 0 });
        }
        let ignored = parked.origin.caller.authority.ignored() & !MADE_DEFAULT;
        let wanted = now.authority.ignored() & !plan.default_signals;
        // The sandbox command may have read which signals are ignored, so they must be the same.
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
