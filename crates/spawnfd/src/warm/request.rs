// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asking a parked process to become a program.

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

/// How long a parked process may take to begin with a request; then it is not used. One that has begun is waited for as an exec would be.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
/// How often to look what is the matter while nothing is heard.
const CHECK: Duration = Duration::from_millis(50);

/// What has come of a request.
pub(super) enum Answer {
    /// The program runs.
    Program(Box<Child>),
    /// It has failed, as it would have in a child of the caller's; `None`: that was killed.
    Failed(Option<Failure>),
    /// Nothing has been started, and this process is of no use any more.
    Gone(&'static str),
    /// Nothing has been started.
    Refused(&'static str),
}

impl Parked {
    /// Offers it what is to become of it: it gets ready, and waits for [`go`](Parked::go).
    ///
    /// # Errors
    /// Why it has not been offered.
    pub(super) fn offer(&mut self, plan: &Plan, request: &StartRequest<'_>) -> Result<Claim, Answer> {
        if !self.child.as_ref().is_some_and(Child::is_own) {
            return Err(Answer::Refused("descriptor table"));
        }
        // The one in front: nobody would hear of the program's end.
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

    /// Has it done. `landing`: nobody waits until it is the program; what has become of it is asked when it has ended.
    pub(super) fn go(&mut self, claim: Claim, context: &Context, landing: Option<&Arc<Plan>>) -> Answer {
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

    /// Has it not done, for that reason.
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
                // An exec closes the line, and so does an end. One that has ended may have been the program.
                State::Taken if self.origin.executes => {
                    if self.channel.poll(CHECK) || self.has_ended() {
                        return self.reported(claim);
                    }
                    // An application has put something else there: nothing is heard any more, but of the end.
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

    /// What became of one that was to execute something, and has, or has ended.
    fn reported(&mut self, claim: &Claim) -> Answer {
        let failure = match claim.report() {
            Report::Program { .. } => return self.became(None),
            Report::Failed(failure) => Some(failure),
            // Some of its steps may have been carried out.
            Report::Killed(_) => None,
        };
        // It has ended, or is just about to, and never was the program.
        if let Some(mut child) = self.take_child() {
            let _ = child.wait();
        }
        match failure {
            Some(Failure { stage: Stage::Action(wire::CONTEXT), .. }) => Answer::Gone("context"),
            failure => Answer::Failed(failure),
        }
    }
}

/// A request whose caller did not wait until the parked process had begun.
#[derive(Debug)]
struct PendingRequest {
    claim: Claim,
    plan: Arc<Plan>,
}

impl PendingStart for PendingRequest {
    /// # Errors
    /// The action that failed. ESRCH: the process was killed before it had begun, or could not be made the calling thread's equal.
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

/// Why a message has not been sent.
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
