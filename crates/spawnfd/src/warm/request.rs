// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to a leased process to become a program: checks the request, sends it, compares the caller state meanwhile, and
//! commits the request.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use spawnfd_child::{ChildStage, Failure, Op, Outcome as ExecReport, Plan, Step};
use spawnfd_parked::protocol::{self, Handshake as State};
use spawnfd_sys::{Ended, Errno, abi, call, send};

use super::Kind;
use super::caller::CallerState;
use super::entry::LeasedProcess;
use super::parked::{ACCEPT_TIMEOUT, MADE_DEFAULT, ParkedProcess, why_unsent};
use super::sandbox_command::InnerPlan;
use super::wire::{self, Context, Handshake, StartRequest};
use crate::child::{Child, PendingStart};
use crate::cold_reason::ColdReason;
use crate::command::{ParkedFailure, ParkedRequest, WouldStart, step_failed};
use crate::error::{Error, Result as SpawnResult, Stage};
use crate::host::authority::Authority;
use crate::host::descriptors::above_standard;

/// The pause between two checks of a process that does not answer.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Why a request has not started the program.
pub(super) enum NotStarted {
    /// The start failed, as a cold start would have failed.
    Failed(ParkedFailure),
    /// No program was started, and the parked process is no longer usable.
    Unusable(ColdReason),
    /// No program was started.
    Refused(ColdReason),
}

impl From<ColdReason> for NotStarted {
    fn from(reason: ColdReason) -> NotStarted {
        NotStarted::Refused(reason)
    }
}

/// A request that the leased process can carry out, if the caller state permits it.
struct CheckedRequest {
    serial: u32,
    message: Vec<u8>,
    sources: Vec<RawFd>,
    /// The sources that the library has opened for this request.
    _opened: Vec<OwnedFd>,
    /// The index of the caller's working directory in the sources.
    cwd: Option<usize>,
    /// Whether the caller waits for the outcome.
    waits: bool,
}

impl LeasedProcess {
    /// Makes the process become the program.
    ///
    /// # Errors
    /// [`NotStarted::Unusable`], [`NotStarted::Refused`]: no action of the caller has run.
    pub(super) fn start(&self, request: &ParkedRequest<'_>) -> Result<Child, NotStarted> {
        let mut parked = self.lock();
        let mut checked = self.check(&parked, request)?;
        let handshake = parked.request(&mut checked)?;
        // The parked process prepares while the caller state is compared.
        let context = self.compare(&parked, request, &checked).inspect_err(|_| handshake.withdraw())?;
        for step in &*request.plan.steps {
            if let Op::Register { to } = &step.op {
                to.make_for(parked.pid());
            }
        }
        parked.commit(handshake, &context, (!checked.waits).then_some(request.plan))
    }

    /// Checks that the process can carry out the request. Changes nothing. `parked` is this process.
    ///
    /// # Errors
    /// The reason why not.
    fn check(&self, parked: &ParkedProcess, request: &ParkedRequest<'_>) -> Result<CheckedRequest, ColdReason> {
        let ParkedRequest { start, plan, cgroup, .. } = *request;
        let (executes, is_sandboxed, is_confined) =
            (self.recipe.executes, self.recipe.sandbox.is_some(), self.recipe.confinement.is_any());
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
        if !self.recipe.confinement.is_any() && self.recipe.sandbox.is_none() {
            return Ok(None);
        }
        let mut inner = InnerPlan::of(plan);
        self.recipe.confinement.adapt_steps(&mut inner, plan)?;
        if let Some(sandbox) = &self.recipe.sandbox {
            sandbox.adapt_steps(&mut inner, plan, &parked.origin.env, &parked.origin.given)?;
        }
        Ok(Some(inner))
    }

    /// The differences between the caller state at the start of `parked` and the current caller state. Changes nothing.
    ///
    /// # Errors
    /// A difference that the parked process cannot apply.
    fn compare(
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
        let now = CallerState::with(Authority::of_calling_thread()).ok_or(ColdReason::Proc)?;
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
        let ignored = parked.origin.caller.authority.ignored & !MADE_DEFAULT;
        let wanted = now.authority.ignored & !plan.default_signals;
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

impl Handshake {
    /// Withdraws the request.
    fn withdraw(&self) {
        self.change(State::Requested, State::Withdrawn);
    }
}

impl ParkedProcess {
    /// Sends the request. The parked process prepares, and waits for [`commit`](ParkedProcess::commit).
    ///
    /// # Errors
    /// The reason why the request was not sent.
    fn request(&mut self, request: &mut CheckedRequest) -> Result<Handshake, NotStarted> {
        if !self.child.as_ref().is_some_and(Child::is_own) {
            return Err(ColdReason::DescriptorTable.into());
        }
        // A stopped sandbox command would not report the program's end to the caller, so do not use this process.
        if self.origin.has_sandbox_command && !self.is_runnable() {
            return Err(NotStarted::Unusable(if self.has_ended() { ColdReason::Died } else { ColdReason::Slow }));
        }
        let socket = self.channel.socket.get().ok_or(ColdReason::DescriptorTable)?;
        self.serial = request.serial;
        let handshake = Handshake::begin(&self.channel.page, self.serial);
        match send(socket.as_raw_fd(), &mut request.message, &request.sources) {
            Ok(()) => Ok(handshake),
            Err(Errno::EMSGSIZE | Errno::ENOBUFS) => Err(NotStarted::Refused(ColdReason::ArgumentsTooLong)),
            Err(errno) => Err(match why_unsent(errno) {
                ColdReason::Descriptors => NotStarted::Refused(ColdReason::Descriptors),
                gone => NotStarted::Unusable(gone),
            }),
        }
    }

    /// Tells the parked process to perform the request. If the caller does not wait for the outcome, it passes the
    /// plan as `unawaited_plan`. The child's wait then reports the outcome.
    fn commit(
        &mut self,
        handshake: Handshake,
        context: &Context,
        unawaited_plan: Option<&Arc<Plan<'static>>>,
    ) -> Result<Child, NotStarted> {
        wire::publish(&self.channel.page, context).inspect_err(|_| handshake.withdraw())?;
        handshake.change(State::Requested, State::Committed);
        if let Some(plan) = unawaited_plan
            && handshake.state() != State::Refused
            && self.is_runnable()
        {
            return self.take_program(Some(Box::new(PendingRequest { handshake, plan: plan.clone() })));
        }
        self.wait_for_outcome(&handshake)
    }

    fn wait_for_outcome(&mut self, handshake: &Handshake) -> Result<Child, NotStarted> {
        let mut remaining = ACCEPT_TIMEOUT;
        loop {
            let state = handshake.state();
            match state {
                State::Became => return self.take_program(None),
                State::Failed => return Err(self.failed(handshake)),
                State::Refused => return Err(ColdReason::Refused.into()),
                State::Withdrawn => return Err(NotStarted::Unusable(ColdReason::Slow)),
                // Both exec and exit close the channel. A process that has exited may have executed
                // the program first.
                State::Taken if self.origin.executes => {
                    if self.channel.poll(CHECK_INTERVAL) || self.has_ended() {
                        return match handshake.report() {
                            ExecReport::Program { .. } => self.take_program(None),
                            _ => Err(self.failed(handshake)),
                        };
                    }
                    // The application has closed or replaced the socket, so only the end of the process is visible.
                    if self.channel.socket.get().is_none() {
                        handshake.wait(state, CHECK_INTERVAL);
                    }
                    continue;
                }
                State::Requested | State::Committed | State::Taken => handshake.wait(state, CHECK_INTERVAL),
            }
            if handshake.state() == state {
                if self.has_ended() && handshake.state() == state {
                    return Err(NotStarted::Unusable(ColdReason::Died));
                }
                remaining = remaining.saturating_sub(CHECK_INTERVAL);
                if remaining.is_zero() && handshake.change(State::Committed, State::Withdrawn) {
                    return Err(NotStarted::Unusable(ColdReason::Slow));
                }
            }
        }
    }

    fn take_program(&mut self, pending: Option<Box<dyn PendingStart>>) -> Result<Child, NotStarted> {
        let child = self.child.take().ok_or(NotStarted::Unusable(ColdReason::Died))?;
        Ok(child.restarted(self.origin.started, pending))
    }

    /// The outcome of a request during which the process has failed, or a signal has killed it. The process has exited,
    /// or exits soon.
    fn failed(&mut self, handshake: &Handshake) -> NotStarted {
        // In a sandbox, the child is the sandbox command, which may live longer.
        let child = if self.origin.executes { self.take_child() } else { None };
        let ended = child.and_then(|mut child| child.wait().ok());
        let ended = ended.map(|status| Ended { status: status.into_raw(), used: None });
        match handshake.report() {
            ExecReport::Failed(Failure { stage: ChildStage::Action(wire::CONTEXT), .. })
            | ExecReport::Killed(ChildStage::Action(wire::CONTEXT)) => NotStarted::Unusable(ColdReason::Context),
            ExecReport::Failed(Failure { stage: ChildStage::Descriptors, .. }) if !self.origin.executes => {
                NotStarted::Unusable(ColdReason::Context)
            }
            ExecReport::Failed(failure) => NotStarted::Failed(ParkedFailure::Failed(failure)),
            ExecReport::Killed(stage) => NotStarted::Failed(ParkedFailure::Killed(stage, ended)),
            // A failed process does not report success.
            ExecReport::Program { .. } => NotStarted::Unusable(ColdReason::Died),
        }
    }
}

/// A request for whose outcome the caller does not wait. The parked process may not have accepted
/// the request yet.
#[derive(Debug)]
struct PendingRequest {
    handshake: Handshake,
    plan: Arc<Plan<'static>>,
}

impl PendingStart for PendingRequest {
    /// # Errors
    /// The action that failed. ESRCH: the process was killed before it accepted the request, or could not apply the
    /// caller state.
    fn outcome(&self, _: Option<Ended>) -> SpawnResult<()> {
        match (self.handshake.state(), self.handshake.failed_action()) {
            (State::Taken | State::Became, _) => Ok(()),
            (State::Failed, Some((index, errno))) => Err(step_failed(&self.plan, index, errno)),
            _ => Err(Error::new(Stage::Killed, Errno::ESRCH, "a parked process")),
        }
    }

    fn begin_timeout(&self) -> Option<Duration> {
        Some(ACCEPT_TIMEOUT)
    }

    fn withdraw(&self) -> bool {
        self.handshake.change(State::Committed, State::Withdrawn)
    }
}
