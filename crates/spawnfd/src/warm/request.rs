// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to a parked process to become a program.

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::time::Duration;

use spawnfd_child::{Failure, Outcome as ExecReport, Plan, Stage};
use spawnfd_parked::protocol::Handshake as State;
use spawnfd_sys::{Ended, Errno, send};

use super::leased::CheckedRequest;
use super::parked::ParkedProcess;
use super::wire::{self, Context, Handshake};
use crate::child::{Child, PendingStart};
use crate::cold_reason::ColdReason;
use crate::command::{ParkedFailure, step_failed};
use crate::error::{Error, Result as SpawnResult, Stage as ErrorStage};

/// The time within which a parked process must accept a request. Once the process has accepted, the
/// wait has no limit, as for exec.
pub(super) const ACCEPT_TIMEOUT: Duration = Duration::from_millis(500);
/// The pause between two checks of a process that does not answer.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The outcome of a request.
pub(super) enum RequestOutcome {
    /// The program runs.
    Program(Box<Child>),
    /// The start failed, as a cold start would have failed.
    Failed(ParkedFailure),
    /// No program was started, and the parked process is no longer usable.
    Unusable(ColdReason),
    /// No program was started.
    Refused(ColdReason),
}

impl Handshake {
    /// Withdraws the request, and returns `reason` as the outcome.
    pub(super) fn withdraw(&self, reason: ColdReason) -> RequestOutcome {
        self.change(State::Requested, State::Withdrawn);
        RequestOutcome::Refused(reason)
    }
}

impl ParkedProcess {
    /// Sends the request. The parked process prepares, and waits for [`commit`](ParkedProcess::commit).
    ///
    /// # Errors
    /// The reason why the request was not sent.
    pub(super) fn request(&mut self, request: &mut CheckedRequest) -> Result<Handshake, RequestOutcome> {
        if !self.child.as_ref().is_some_and(Child::is_own) {
            return Err(RequestOutcome::Refused(ColdReason::DescriptorTable));
        }
        // A stopped sandbox command would not report the program's end to the caller, so do not use this process.
        if self.origin.has_sandbox_command && !self.is_runnable() {
            return Err(RequestOutcome::Unusable(if self.has_ended() { ColdReason::Died } else { ColdReason::Slow }));
        }
        let socket = self.channel.socket().ok_or(RequestOutcome::Refused(ColdReason::DescriptorTable))?;
        self.serial = request.serial;
        let handshake = Handshake::begin(&self.channel.page, self.serial);
        match send(socket.as_raw_fd(), &mut request.message, &request.sources) {
            Ok(()) => Ok(handshake),
            Err(Errno::EMSGSIZE | Errno::ENOBUFS) => Err(RequestOutcome::Refused(ColdReason::ArgumentsTooLong)),
            Err(errno) => Err(match why_unsent(errno) {
                ColdReason::Descriptors => RequestOutcome::Refused(ColdReason::Descriptors),
                gone => RequestOutcome::Unusable(gone),
            }),
        }
    }

    /// Tells the parked process to perform the request. If the caller does not wait for the outcome, it passes the
    /// plan as `unawaited_plan`. The child's wait then reports the outcome.
    pub(super) fn commit(
        &mut self,
        handshake: Handshake,
        context: &Context,
        unawaited_plan: Option<&Arc<Plan<'static>>>,
    ) -> RequestOutcome {
        if let Err(reason) = wire::publish(&self.channel.page, context) {
            return handshake.withdraw(reason);
        }
        handshake.change(State::Requested, State::Committed);
        if let Some(plan) = unawaited_plan
            && handshake.state() != State::Refused
            && self.is_runnable()
        {
            return self.take_program(Some(Box::new(PendingRequest { handshake, plan: plan.clone() })));
        }
        self.wait_for_outcome(&handshake)
    }

    fn wait_for_outcome(&mut self, handshake: &Handshake) -> RequestOutcome {
        let mut remaining = ACCEPT_TIMEOUT;
        loop {
            let state = handshake.state();
            match state {
                State::Became => return self.take_program(None),
                State::Failed => return self.failed(handshake),
                State::Refused => return RequestOutcome::Refused(ColdReason::Refused),
                State::Withdrawn => return RequestOutcome::Unusable(ColdReason::Slow),
                // Both exec and exit close the channel. A process that has exited may have executed
                // the program first.
                State::Taken if self.origin.executes => {
                    if self.channel.poll(CHECK_INTERVAL) || self.has_ended() {
                        return match handshake.report() {
                            ExecReport::Program { .. } => self.take_program(None),
                            _ => self.failed(handshake),
                        };
                    }
                    // The application has closed or replaced the socket, so only the end of the process is visible.
                    if self.channel.socket().is_none() {
                        handshake.wait(state, CHECK_INTERVAL);
                    }
                    continue;
                }
                State::Requested | State::Committed | State::Taken => handshake.wait(state, CHECK_INTERVAL),
            }
            if handshake.state() == state {
                if self.has_ended() && handshake.state() == state {
                    return RequestOutcome::Unusable(ColdReason::Died);
                }
                remaining = remaining.saturating_sub(CHECK_INTERVAL);
                if remaining.is_zero() && handshake.change(State::Committed, State::Withdrawn) {
                    return RequestOutcome::Unusable(ColdReason::Slow);
                }
            }
        }
    }

    fn take_program(&mut self, pending: Option<Box<dyn PendingStart>>) -> RequestOutcome {
        match self.child.take() {
            Some(child) => RequestOutcome::Program(Box::new(child.restarted(self.origin.started, pending))),
            None => RequestOutcome::Unusable(ColdReason::Died),
        }
    }

    /// The outcome of a request during which the process has failed, or a signal has killed it. The process has exited,
    /// or exits soon.
    fn failed(&mut self, handshake: &Handshake) -> RequestOutcome {
        // In a sandbox, the child is the sandbox command, which may live longer.
        let child = if self.origin.executes { self.take_child() } else { None };
        let ended = child.and_then(|mut child| child.wait().ok());
        let ended = ended.map(|status| Ended { status: status.into_raw(), used: None });
        match handshake.report() {
            ExecReport::Failed(Failure { stage: Stage::Action(wire::CONTEXT), .. })
            | ExecReport::Killed(Stage::Action(wire::CONTEXT)) => RequestOutcome::Unusable(ColdReason::Context),
            ExecReport::Failed(Failure { stage: Stage::Descriptors, .. }) if !self.origin.executes => {
                RequestOutcome::Unusable(ColdReason::Context)
            }
            ExecReport::Failed(failure) => RequestOutcome::Failed(ParkedFailure::Failed(failure)),
            ExecReport::Killed(stage) => RequestOutcome::Failed(ParkedFailure::Killed(stage, ended)),
            // A failed process does not report success.
            ExecReport::Program { .. } => RequestOutcome::Unusable(ColdReason::Died),
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
            _ => Err(Error::new(ErrorStage::Killed, Errno::ESRCH, "a parked process")),
        }
    }

    fn begin_timeout(&self) -> Option<Duration> {
        Some(ACCEPT_TIMEOUT)
    }

    fn withdraw(&self) -> bool {
        self.handshake.change(State::Committed, State::Withdrawn)
    }
}

/// The reason why a message was not sent.
pub(super) fn why_unsent(errno: Errno) -> ColdReason {
    let are_too_few = matches!(errno, Errno::EBADF | Errno::ETOOMANYREFS);
    let is_gone = matches!(errno, Errno::EPIPE | Errno::ECONNRESET);
    if are_too_few {
        ColdReason::Descriptors
    } else if is_gone {
        ColdReason::Died
    } else {
        ColdReason::Socket
    }
}
