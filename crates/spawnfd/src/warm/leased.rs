// SPDX-License-Identifier: MIT OR Apache-2.0
//! A parked process that is leased to one start. Compares the process with the start's plan and with the caller state.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use spawnfd_child::{Op, Plan, Step};
use spawnfd_parked::protocol;
use spawnfd_sys::{abi, call};

use super::Kind;
use super::caller::CallerState;
use super::parked::{MADE_DEFAULT, ParkedHandle, ParkedProcess};
use super::recipe::Recipe;
use super::sandbox_command::InnerPlan;
use super::wire::{self, Context, StartRequest};
use crate::cold_reason::ColdReason;
use crate::command::{ParkedRequest, WouldStart};
use crate::host::descriptors::above_standard;

/// A parked process that is leased to one start.
#[derive(Debug)]
pub(super) struct LeasedProcess {
    pub(super) entry: u64,
    pub(super) recipe: Arc<Recipe>,
    pub(super) handle: ParkedHandle,
    /// True if the leased process is the parent of a fork mode entry. The start forks a child from it.
    pub(super) is_parent: bool,
}

/// A request that the leased process can carry out, if the caller state permits it.
pub(super) struct CheckedRequest {
    pub(super) serial: u32,
    pub(super) message: Vec<u8>,
    pub(super) sources: Vec<RawFd>,
    /// The sources that the library has opened for this request.
    _opened: Vec<OwnedFd>,
    /// The index of the caller's working directory in the sources.
    cwd: Option<usize>,
    /// Whether the caller waits for the outcome.
    pub(super) waits: bool,
}

impl LeasedProcess {
    pub(super) fn lock(&self) -> MutexGuard<'_, ParkedProcess> {
        self.handle.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the process can carry out the request. Changes nothing. `parked` is this process.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn check(
        &self,
        parked: &ParkedProcess,
        request: &ParkedRequest<'_>,
    ) -> Result<CheckedRequest, ColdReason> {
        let ParkedRequest { start, plan, cgroup, .. } = *request;
        let (executes, is_sandboxed, is_confined) =
            (self.recipe.executes, self.recipe.sandbox.is_some(), self.is_confined());
        self.fits(plan)?;
        // A zygote cannot install seccomp filters.
        if executes && plan.filter.is_some() {
            return Err(ColdReason::SeccompFilter);
        }
        if !is_sandboxed {
            parked.check_environment(&plan.envp)?;
        }
        let mut inner = self.inner_plan(parked, plan)?;
        // Wait for the outcome in two cases: Node.js may still refuse the request, and exec may fail.
        let waits = request.waits || executes || self.recipe.kind == Kind::Node;
        if waits && request.may_block {
            return Err(ColdReason::FilesToOpen);
        }
        if let Some(entry_point) = &self.recipe.entry_point {
            entry_point.check_modules(&parked.origin.modules, &start.command.working_directory())?;
        }
        let mut opened = inner.as_mut().map_or_else(Vec::new, |inner| std::mem::take(&mut inner.opened));
        let mut sources = plan.sources.to_vec();
        sources.extend(opened.iter().map(AsRawFd::as_raw_fd));
        let mut source = |fd: RawFd| {
            sources.push(fd);
            sources.len() - 1
        };
        let join = cgroup.map(|(index, dir)| Step { index, op: Op::Cgroup { dir: source(dir) } });
        let steps = inner.as_ref().map_or(&*plan.steps, |inner| &inner.steps);
        // A program in a sandbox does not use the caller's working directory.
        let mut cwd = None;
        if !is_sandboxed && needs_caller_cwd(steps) {
            let directory = openat(CWD, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            let directory = above_standard(directory.map_err(|_| ColdReason::WorkingDirectory)?);
            cwd = Some(source(directory.as_raw_fd()));
            opened.push(directory);
        }
        if is_confined && join.is_some() {
            return Err(ColdReason::Confinement);
        }
        if sources.len() > protocol::MAX_DESCRIPTORS {
            return Err(ColdReason::TooManyDescriptors);
        }
        let start = StartRequest {
            join,
            steps,
            skip: inner.as_ref().map_or(0, |inner| inner.skip),
            handed_on: inner.as_ref().map_or(&[], |inner| &inner.handed_on),
            own_environment: is_sandboxed,
            executes,
            sources: sources.len(),
        };
        let serial = parked.serial + 1;
        let message = wire::encode(serial, plan, &start)?;
        Ok(CheckedRequest { serial, message, sources, _opened: opened, cwd, waits: waits || is_confined })
    }

    /// Finds out how a start from this process would go. Changes nothing.
    ///
    /// # Errors
    /// The reason why the program would not start from this process.
    pub(super) fn explain(&self, request: &ParkedRequest<'_>) -> Result<WouldStart, ColdReason> {
        let parked = self.lock();
        let checked = self.check(&parked, request)?;
        self.compare(&parked, request, &checked)?;
        let saves = if self.recipe.executes { Duration::ZERO } else { self.handle.start_up };
        Ok(WouldStart { started: self.recipe.started(), saves })
    }

    /// Checks that the process can perform this plan's actions.
    fn fits(&self, plan: &Plan<'_>) -> Result<(), ColdReason> {
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
            return Err(ColdReason::InheritedDescriptors);
        }
        let name = plan.argv.iter().next().map(std::ffi::CStr::to_bytes);
        if self.recipe.sandbox.is_some() || name.is_some_and(name_fits) { Ok(()) } else { Err(ColdReason::Arguments) }
    }

    /// The part of the plan that a confined or sandboxed process performs. `None` if the process is neither.
    ///
    /// # Errors
    /// An action that only the sandbox command can perform.
    fn inner_plan(&self, parked: &ParkedProcess, plan: &Plan<'static>) -> Result<Option<InnerPlan>, ColdReason> {
        if !self.is_confined() && self.recipe.sandbox.is_none() {
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

    /// The differences between the caller state at the start of `parked` and the current caller state. Changes nothing.
    ///
    /// # Errors
    /// A difference that the parked process cannot apply.
    pub(super) fn compare(
        &self,
        parked: &ParkedProcess,
        request: &ParkedRequest<'_>,
        checked: &CheckedRequest,
    ) -> Result<Context, ColdReason> {
        let ParkedRequest { plan, template, .. } = *request;
        template.check().map_err(|_| ColdReason::Stale)?;
        if self.recipe.sandbox.is_some() {
            self.recipe.template.check().map_err(|_| ColdReason::Stale)?;
        }
        let now = CallerState::of_calling_thread().ok_or(ColdReason::Proc)?;
        let mut steps = parked.origin.caller.steps_to(&now, self.recipe.executes)?;
        match checked.cwd {
            Some(dir) => steps.push(Op::Fchdir { dir }),
            None if self.recipe.sandbox.is_some() && steps.len() > 1 => return Err(ColdReason::Limits),
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
        if self.recipe.sandbox.is_some() && ignored != wanted {
            return Err(ColdReason::IgnoredSignals);
        }
        Ok(Context {
            steps,
            make_default: ignored & !wanted,
            make_ignored: wanted & !ignored,
            mask: plan.signal_mask.unwrap_or_else(call::signal_mask),
        })
    }
}

/// Whether these steps, or the program that runs after them, use the caller's working directory.
fn needs_caller_cwd(steps: &[Step<'_>]) -> bool {
    let is_relative = |path: &CStr| !path.to_bytes().starts_with(b"/");
    for step in steps {
        match &step.op {
            Op::Chdir { path } => return is_relative(path),
            Op::Fchdir { .. } => return false,
            Op::Open { dir: None, path, .. } | Op::Chroot { path } if is_relative(path) => return true,
            _ => {}
        }
    }
    true
}
