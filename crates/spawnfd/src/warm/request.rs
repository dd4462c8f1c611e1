// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to a parked process to become a program.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use spawnfd_child::{Failure, Outcome as Report, Plan, Stage};
use spawnfd_parked::protocol::Claim as State;
use spawnfd_sys::{Ended, Errno, send};

use super::parked::Parked;
use super::wire::{self, Claim, Context, StartRequest};
use crate::child::{Child, PendingStart};
use crate::command::step_failed;
use crate::error::{Error, Result as Outcome, Stage as At};

/// The time for a parked process to accept a request. Once it has accepted, the wait has no limit, as for exec.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
/// The pause between two checks of a process that does not answer.
const CHECK: Duration = Duration::from_millis(50);

/// The outcome of a request.
pub(super) enum Answer {
    /// The program runs.
    Program(Box<Child>),
    /// The start failed, as it would have in a child of the caller; `None`: the child was killed.
    Failed(Option<Failure>),
    /// No program was started, and the parked process is no longer usable.
    Gone(&'static str),
    /// No program was started.
    Refused(&'static str),
}

impl Parked {
    /// Sends the request. The parked process prepares, and waits for [`go`](Parked::go).
    ///
    /// # Errors
    /// The reason why the request was not sent.
    pub(super) fn offer(&mut self, plan: &Plan<'_>, request: &StartRequest<'_>) -> Result<Claim, Answer> {
        if !self.child.as_ref().is_some_and(Child::is_own) {
            return Err(Answer::Refused("descriptor table"));
        }
        // The program in front must run: it reports the program's end.
        if self.origin.has_front && !self.is_able() {
            return Err(Answer::Gone(if self.has_ended() { "died" } else { "slow" }));
        }
        self.serial += 1;
        let mut message = wire::encode(self.serial, plan, request).map_err(Answer::Refused)?;
        let socket = self.channel.socket().ok_or(Answer::Refused("descriptor table"))?;
        let claim = Claim::offer(&self.channel.page, self.serial);
        match send(socket.as_raw_fd(), &mut message, &request.sources) {
            Ok(()) => Ok(claim),
            Err(Errno::EMSGSIZE | Errno::ENOBUFS) => Err(Answer::Refused("arguments too long")),
            Err(errno) => Err(match why_unsent(errno) {
                "descriptors" => Answer::Refused("descriptors"),
                gone => Answer::Gone(gone),
            }),
        }
    }

    /// Tells the parked process to carry the request out. `landing`: the plan, if the caller does not wait for the
    /// outcome. The child's wait then reports the outcome.
    pub(super) fn go(&mut self, claim: Claim, context: &Context, landing: Option<&Arc<Plan<'static>>>) -> Answer {
        if let Err(reason) = wire::leave(&self.channel.page, context) {
            return Parked::withdraw(&claim, reason);
        }
        claim.change(State::Offered, State::Go);
        if let Some(plan) = landing
            && claim.state() != State::Refused
            && self.is_able()
        {
            return self.became(Some(Box::new(PendingRequest { claim, plan: plan.clone() })));
        }
        self.listen(&claim)
    }

    /// Withdraws the request, for this reason.
    pub(super) fn withdraw(claim: &Claim, reason: &'static str) -> Answer {
        claim.change(State::Offered, State::Withdrawn);
        Answer::Refused(reason)
    }

    fn listen(&mut self, claim: &Claim) -> Answer {
        let mut left = PATIENCE;
        loop {
            let state = claim.state();
            match state {
                State::Became => return self.became(None),
                State::Failed => {
                    return match claim.failed_action() {
                        Some((index, errno)) => Answer::Failed(Some(Failure { stage: Stage::Action(index), errno })),
                        None => Answer::Gone("context"),
                    };
                }
                State::Refused => return Answer::Refused("refused"),
                State::Withdrawn => return Answer::Gone("slow"),
                // Exec closes the channel, and so does exit. A process that has exited may have been the program.
                State::Taken if self.origin.executes => {
                    if self.channel.poll(CHECK) || self.has_ended() {
                        return self.reported(claim);
                    }
                    // The application has reused the socket's number: only the end of the process can be seen.
                    if self.channel.socket().is_none() {
                        claim.wait(state, CHECK);
                    }
                    continue;
                }
                State::Offered | State::Go | State::Taken => claim.wait(state, CHECK),
            }
            if claim.state() == state {
                if self.has_ended() && claim.state() == state {
                    return Answer::Gone("died");
                }
                left = left.saturating_sub(CHECK);
                if left.is_zero() && claim.change(State::Go, State::Withdrawn) {
                    return Answer::Gone("slow");
                }
            }
        }
    }

    fn became(&mut self, pending: Option<Box<dyn PendingStart>>) -> Answer {
        match self.child.take() {
            Some(child) => Answer::Program(Box::new(child.restarted(self.origin.started, pending))),
            None => Answer::Gone("died"),
        }
    }

    /// The outcome for a process that executes a program, once it has done so or ended.
    fn reported(&mut self, claim: &Claim) -> Answer {
        let failure = match claim.report() {
            Report::Program { .. } => return self.became(None),
            Report::Failed(failure) => Some(failure),
            // Some of the steps may have been carried out.
            Report::Killed(_) => None,
        };
        // The process has exited or is about to, and never became the program.
        if let Some(mut child) = self.take_child() {
            let _ = child.wait();
        }
        match failure {
            Some(Failure { stage: Stage::Action(wire::CONTEXT), .. }) => Answer::Gone("context"),
            failure => Answer::Failed(failure),
        }
    }
}

/// A request whose caller did not wait until the parked process accepted it.
#[derive(Debug)]
struct PendingRequest {
    claim: Claim,
    plan: Arc<Plan<'static>>,
}

impl PendingStart for PendingRequest {
    /// # Errors
    /// The action that failed. ESRCH: the process was killed before it accepted the request, or could not take on the
    /// caller state.
    fn outcome(&self, _: Option<Ended>) -> Outcome<()> {
        match (self.claim.state(), self.claim.failed_action()) {
            (State::Taken | State::Became, _) => Ok(()),
            (State::Failed, Some((index, errno))) => Err(step_failed(&self.plan, index, errno)),
            _ => Err(Error::new(At::Killed, Errno::ESRCH, "a parked process")),
        }
    }

    fn patience(&self) -> Option<Duration> {
        Some(PATIENCE)
    }

    fn withdraw(&self) -> bool {
        self.claim.change(State::Go, State::Withdrawn)
    }
}

/// The reason why a message was not sent.
pub(super) fn why_unsent(errno: Errno) -> &'static str {
    let are_too_few = matches!(errno, Errno::EBADF | Errno::ETOOMANYREFS);
    let is_gone = matches!(errno, Errno::EPIPE | Errno::ECONNRESET);
    if are_too_few {
        "descriptors"
    } else if is_gone {
        "died"
    } else {
        "socket"
    }
}
