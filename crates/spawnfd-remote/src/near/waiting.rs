// SPDX-License-Identifier: MIT OR Apache-2.0
//! A call that has begun, and what waits for the start of its program.

use std::sync::Arc;

use spawnfd::internal::UnstartedJob;
use spawnfd::job::Events;
use spawnfd::tree::Tier;
use spawnfd::{Job, Output, Result};

use super::call::NearCall;
use crate::message::StartedMessage;

/// A call that has begun.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) number: u32,
    pub(super) job: UnstartedJob,
    pub(super) events: Option<Events>,
    /// Ends once the program has started, or not.
    pub(super) start: Job,
    pub(super) call: Arc<NearCall>,
}

/// A job whose program the server has been told to start.
#[derive(Debug)]
pub struct Waiting(pub(super) Begun);

impl Waiting {
    /// Waits until the program has started.
    ///
    /// # Errors
    /// The program could not be started, or the connection was lost.
    pub fn wait(self) -> Result<(Job, Events)> {
        let outcome = self.0.start.wait();
        self.complete(outcome)
    }

    /// The same as [`wait`](Waiting::wait), as a lazy future.
    ///
    /// # Errors
    /// The same as those of [`wait`](Waiting::wait).
    pub async fn wait_async(self) -> Result<(Job, Events)> {
        let outcome = self.0.start.wait_async().await;
        self.complete(outcome)
    }

    /// The job that ends once the program has started, or not.
    pub fn start(&self) -> &Job {
        &self.0.start
    }

    fn complete(self, outcome: Result<Arc<Output>>) -> Result<(Job, Events)> {
        let Begun { job, events, start, call, .. } = self.0;
        start.detach();
        outcome?;
        let StartedMessage { pid, tree } = call.started.get().cloned().unwrap_or_default();
        let tier = Tier::ALL.iter().copied().find(|tier| tier.name() == tree).unwrap_or_default();
        // Each start asks for events.
        let events = events.expect("the events of a job");
        Ok((job.started(pid, tier), events))
    }
}
