// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a command from a parked process: leases a process and compares the caller state.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use spawnfd_child::{Op, Step};
use spawnfd_parked::protocol;

use super::confinement::CONFINED;
use super::entry_point::{ENTRY, OTHER_DIRECTORY};
use super::leased::LeasedProcess;
use super::parked::ParkedProcess;
use super::request::RequestOutcome;
use super::state::{ARGUMENTS, NOT_ADDED, WarmState};
use super::wire::StartRequest;
use super::{Kind, Warm, is_off};
use crate::command::{Order, ParkedOffer, ParkedOutcome, ParkedSource, Start, WouldStart};
use crate::host::descriptors::above_standard;
use crate::template::Template;

/// The reason why an offer that only explains starts nothing: a start would have succeeded.
const WOULD_START: &str = "would start";

impl ParkedSource for Warm {
    fn inspect<'a>(
        &'a self,
        start: &Start<'_>,
        template: &Template,
    ) -> std::result::Result<Box<dyn ParkedOffer + 'a>, &'static str> {
        if self.state.lock().update_turned_off(is_off()) {
            return Err("off");
        }
        let command = start.command;
        if let Some(reason) = start.needs_calling_thread().or_else(|| command.needs_exec()) {
            return Err(reason);
        }
        let dedicated = {
            let mut state = self.state.lock();
            state.lease(template, command, !self.explains, None).inspect_err(|why| {
                if matches!(*why, NOT_ADDED | ARGUMENTS | ENTRY | OTHER_DIRECTORY) && !self.explains {
                    state.auto_add(template, command, self.keep);
                }
            })
        };
        let leased =
            dedicated.and_then(|leased| self.fork_if_parent(leased)).or_else(|reason| self.lease_any(reason))?;
        let mut offer = Offer { warm: self, leased: Some(leased), streams: [false; 3], explains: self.explains };
        offer.streams = start.open_streams()?;
        Ok(Box::new(offer))
    }

    fn count_cold(&self, reason: &'static str) {
        let wanted = self.state.lock().count_cold(reason);
        // If there is no process to park, do not start the thread.
        if let Some(delay) = wanted {
            let _ = self.keeper.wake(delay);
        }
    }
}

/// A parked process that is leased to one start. Dropping the offer puts an unused process back.
#[derive(Debug)]
pub(crate) struct Offer<'a> {
    warm: &'a Warm,
    leased: Option<LeasedProcess>,
    streams: [bool; 3],
    explains: bool,
}

impl ParkedOffer for Offer<'_> {
    fn streams(&self) -> [bool; 3] {
        self.streams
    }

    fn start(mut self: Box<Self>, order: &Order<'_>) -> std::result::Result<ParkedOutcome, &'static str> {
        self.start_from_any(order)
    }

    fn explain(mut self: Box<Self>, order: &Order<'_>) -> std::result::Result<WouldStart, &'static str> {
        match (self.start_from_any(order), &self.leased) {
            (Err(WOULD_START), Some(leased)) => {
                let saves = if leased.recipe.executes { Duration::ZERO } else { leased.handle.start_up };
                Ok(WouldStart { started: leased.recipe.started(), saves })
            }
            (Err(reason), _) => Err(reason),
            (Ok(_), _) => unreachable!("an offer that explains starts nothing"),
        }
    }
}

impl Offer<'_> {
    /// Starts the program from the leased process, or else from a process that executes any program.
    fn start_from_any(&mut self, order: &Order<'_>) -> std::result::Result<ParkedOutcome, &'static str> {
        let executes = self.leased.as_ref().is_some_and(|leased| leased.recipe.executes);
        let reason = match self.start_from_dedicated(order) {
            Err(reason) if !executes && reason != WOULD_START => reason,
            outcome => return outcome,
        };
        self.finish(WarmState::return_unused);
        self.leased = Some(self.warm.lease_any(reason)?);
        let outcome = self.start_from_leased(order);
        outcome.map_err(|other| if other == WOULD_START { other } else { reason })
    }

    /// Starts the program from the leased process. If a process with an entry point refuses, tries the other processes
    /// for this command.
    ///
    /// # Errors
    /// The reason of the first process.
    fn start_from_dedicated(&mut self, order: &Order<'_>) -> std::result::Result<ParkedOutcome, &'static str> {
        match self.start_from_leased(order) {
            Err(reason) if reason != WOULD_START && self.lease_next(order) => {
                self.start_from_dedicated(order).map_err(|next| if next == WOULD_START { next } else { reason })
            }
            outcome => outcome,
        }
    }

    /// Leases a process for the command from one of the entries behind that of the leased process, if the leased
    /// process has an entry point.
    fn lease_next(&mut self, order: &Order<'_>) -> bool {
        let with_entry_point = self.leased.as_ref().filter(|leased| leased.recipe.entry_point.is_some());
        let Some(refused) = with_entry_point.map(|leased| leased.entry) else { return false };
        self.finish(WarmState::return_unused);
        let next = self.warm.state.lock().lease(order.template, order.start.command, !self.explains, Some(refused));
        self.leased = next.and_then(|leased| self.warm.fork_if_parent(leased)).ok();
        self.leased.is_some()
    }

    fn start_from_leased(&mut self, order: &Order<'_>) -> std::result::Result<ParkedOutcome, &'static str> {
        let Order { start, plan, template, cgroup, waits, may_block } = *order;
        let command = start.command;
        let Some(leased) = self.leased.as_mut() else { return Err("empty") };
        leased.fits(plan)?;
        // A zygote cannot install seccomp filters.
        if leased.recipe.executes && plan.filter.is_some() {
            return Err("seccomp filter");
        }
        let mut parked = leased.lock();
        if !leased.is_sandboxed() {
            parked.check_environment(&plan.envp)?;
        }
        let inner = leased.inner_plan(&parked, plan)?;
        // Wait for the outcome in two cases: Node.js may still refuse the request, and exec may
        // fail.
        let waits = waits || leased.recipe.kind == Kind::Node || leased.recipe.executes;
        if waits && may_block {
            return Err("files to open");
        }
        let waits = waits || leased.is_confined();
        let steps = inner.as_ref().map_or(&*plan.steps, |inner| &inner.steps);
        if let Some(entry_point) = &leased.recipe.entry_point {
            entry_point.check_modules(&parked.origin.modules, &command.working_directory())?;
        }
        // A program in a sandbox does not use the caller's working directory.
        let cwd = if !leased.is_sandboxed() && needs_caller_cwd(steps) {
            let cwd = openat(CWD, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            Some(cwd.map(above_standard).map_err(|_| "working directory")?)
        } else {
            None
        };
        let mut sources = plan.sources.to_vec();
        sources.extend(inner.iter().flat_map(|inner| &inner.opened).map(AsRawFd::as_raw_fd));
        let mut source = |fd: RawFd| {
            sources.push(fd);
            sources.len() - 1
        };
        let join = cgroup.map(|(index, dir)| Step { index, op: Op::Cgroup { dir: source(dir) } });
        if leased.is_confined() && join.is_some() {
            return Err(CONFINED);
        }
        let cwd_source = cwd.as_ref().map(|cwd| source(cwd.as_raw_fd()));
        if sources.len() > protocol::MAX_DESCRIPTORS {
            return Err("too many descriptors");
        }
        let request = StartRequest {
            join,
            steps,
            skip: inner.as_ref().map_or(0, |inner| inner.skip),
            handed_on: inner.as_ref().map_or(&[], |inner| &inner.handed_on),
            own_environment: leased.is_sandboxed(),
            executes: leased.recipe.executes,
            sources,
        };
        if self.explains {
            return Err(leased.compare(&parked, plan, template, cwd_source).err().unwrap_or(WOULD_START));
        }
        let answer = match parked.offer(plan, &request) {
            Err(answer) => answer,
            // The parked process prepares while the caller state is compared.
            Ok(claim) => match leased.compare(&parked, plan, template, cwd_source) {
                Err(reason) => ParkedProcess::withdraw(&claim, reason),
                Ok(context) => {
                    for step in &*plan.steps {
                        if let Op::Announce { to } = &step.op {
                            to.make_for(parked.pid());
                        }
                    }
                    parked.go(claim, &context, (!waits).then_some(plan))
                }
            },
        };
        drop(parked);
        match answer {
            RequestOutcome::Program(child) => {
                self.finish(WarmState::became_program);
                Ok(Ok(*child))
            }
            RequestOutcome::Failed(failure) => {
                // A step that fails in a confined process may succeed in a cold start.
                let confined = leased.is_confined();
                self.finish(WarmState::discard);
                if confined { Err(CONFINED) } else { Ok(Err(failure)) }
            }
            RequestOutcome::Unusable(reason) => {
                self.finish(WarmState::discard);
                Err(reason)
            }
            RequestOutcome::Refused(reason) => Err(reason),
        }
    }

    fn finish(&mut self, end: impl FnOnce(&mut WarmState, LeasedProcess)) {
        if let Some(leased) = self.leased.take() {
            let mut state = self.warm.state.lock();
            end(&mut state, leased);
            let remaining = state.take_remaining();
            let wanted = state.wants_keeper();
            drop(state);
            drop(remaining);
            // Wake the keeper only if processes are missing, and after a delay, so that running programs go first.
            if let Some(delay) = wanted {
                let _ = self.warm.keeper.wake(delay);
            }
        }
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        self.finish(WarmState::return_unused);
    }
}

/// Whether these steps, or the program that runs after them, use the caller's working directory.
fn needs_caller_cwd(steps: &[Step]) -> bool {
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
