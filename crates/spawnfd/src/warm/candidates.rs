// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a command from a parked process: leases one candidate after the other until one starts the program.

use super::entry::LeasedProcess;
use super::request::NotStarted;
use super::state::WarmState;
use super::{Warm, is_off};
use crate::cold_reason::ColdReason;
use crate::command::{Command, ParkedCandidates, ParkedOutcome, ParkedRequest, ParkedSource, Start, WouldStart};
use crate::template::Template;

impl ParkedSource for Warm {
    fn candidates<'a>(
        &'a self,
        start: &Start<'a>,
        template: &Template,
    ) -> Result<Box<dyn ParkedCandidates + 'a>, ColdReason> {
        if self.state.lock().update_turned_off(is_off()) {
            return Err(ColdReason::Off);
        }
        let command = start.command;
        if let Some(reason) = start.needs_calling_thread().or_else(|| command.needs_exec()) {
            return Err(reason);
        }
        let (template, next) = (template.clone(), Next::ForProgram(None));
        let mut candidates = Candidates { warm: self, command, template, first: None, next, streams: [false; 3] };
        candidates.first = Some(candidates.first_that(Ok)?);
        candidates.streams = start.open_streams()?;
        Ok(Box::new(candidates))
    }

    fn count_cold(&self, reason: ColdReason) {
        let wanted = self.state.lock().count_cold(reason);
        // If there is no process to park, do not start the thread.
        if let Some(delay) = wanted {
            let _ = self.keeper.wake(delay);
        }
    }
}

/// Leases the parked processes that may serve one command, one at a time: processes parked for the program, and then a
/// process that executes any program. An error is the reason why a candidate cannot be leased.
struct Candidates<'a> {
    warm: &'a Warm,
    command: &'a Command<'a>,
    template: Template,
    /// The first candidate, which is leased before the command is lowered.
    first: Option<Lease<'a>>,
    next: Next,
    streams: [bool; 3],
}

/// The place of the next candidate.
#[derive(Clone, Copy)]
enum Next {
    /// The entries for the program, behind this entry if there is one.
    ForProgram(Option<u64>),
    ForAnyProgram,
    Nowhere,
}

impl<'a> Iterator for Candidates<'a> {
    type Item = Result<Lease<'a>, ColdReason>;

    fn next(&mut self) -> Option<Self::Item> {
        use ColdReason::{Arguments, Entry, NotAdded, WorkingDirectory};
        if let Some(first) = self.first.take() {
            return Some(Ok(first));
        }
        let Candidates { warm, command, ref template, .. } = *self;
        let (place, counts) = (self.next, !warm.explains);
        let mut state = warm.state.lock();
        let leased = match place {
            Next::ForProgram(after) => state.lease(template, command, counts, after),
            Next::ForAnyProgram => state.lease_any(counts)?,
            Next::Nowhere => return None,
        };
        if let (Next::ForProgram(None), Err(NotAdded | Arguments | Entry | WorkingDirectory)) = (place, &leased)
            && counts
        {
            state.auto_add(template, command, warm.keep);
        }
        drop(state);
        let leased = leased.and_then(|process| warm.fork_if_parent(process));
        self.next = match (place, &leased) {
            // Another entry may be for the same command without an entry point.
            (Next::ForProgram(_), Ok(process)) if process.recipe.entry_point.is_some() => {
                Next::ForProgram(Some(process.entry))
            }
            (Next::ForProgram(_), _) => Next::ForAnyProgram,
            _ => Next::Nowhere,
        };
        Some(leased.map(|process| Lease { warm, process, end: WarmState::return_unused }))
    }
}

impl<'a> Candidates<'a> {
    /// Returns the result of the first candidate for which `attempt` succeeds.
    ///
    /// # Errors
    /// The first reason. If the program was not added, the reason of the process that executes any program.
    fn first_that<T>(&mut self, mut attempt: impl FnMut(Lease<'a>) -> Result<T, ColdReason>) -> Result<T, ColdReason> {
        let mut found = None;
        for candidate in self {
            match candidate.and_then(&mut attempt) {
                Err(reason) if found.is_none_or(|first| first == ColdReason::NotAdded) => found = Some(reason),
                Err(_) => {}
                success => return success,
            }
        }
        Err(found.unwrap_or(ColdReason::Empty))
    }
}

impl ParkedCandidates for Candidates<'_> {
    fn streams(&self) -> [bool; 3] {
        self.streams
    }

    fn start(mut self: Box<Self>, request: &ParkedRequest<'_>) -> Result<ParkedOutcome, ColdReason> {
        self.first_that(|lease| lease.start(request))
    }

    fn explain(mut self: Box<Self>, request: &ParkedRequest<'_>) -> Result<WouldStart, ColdReason> {
        self.first_that(|lease| lease.process.explain(request))
    }
}

/// A parked process that is leased to one start. The lease ends when it is dropped.
struct Lease<'a> {
    warm: &'a Warm,
    process: LeasedProcess,
    /// Ends the lease. At first, the process has not been used.
    end: fn(&mut WarmState, &LeasedProcess),
}

impl Lease<'_> {
    /// Makes the process become the program.
    ///
    /// # Errors
    /// The reason why the program does not start from this process. No action of the caller has run.
    fn start(mut self, request: &ParkedRequest<'_>) -> Result<ParkedOutcome, ColdReason> {
        match self.process.start(request) {
            Ok(child) => {
                self.end = WarmState::became_program;
                Ok(Ok(child))
            }
            Err(NotStarted::Failed(failure)) => {
                self.end = WarmState::discard;
                // A step that fails in a confined process may succeed in a cold start.
                let is_confined = self.process.recipe.confinement.is_any();
                if is_confined { Err(ColdReason::Confinement) } else { Ok(Err(failure)) }
            }
            Err(NotStarted::Unusable(reason)) => {
                self.end = WarmState::discard;
                Err(reason)
            }
            Err(NotStarted::Refused(reason)) => Err(reason),
        }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let mut state = self.warm.state.lock();
        (self.end)(&mut state, &self.process);
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

impl Warm {
    /// Returns the leased process. If that process is the parent of a fork mode entry, forks a child from it and
    /// returns the child.
    fn fork_if_parent(&self, leased: LeasedProcess) -> Result<LeasedProcess, ColdReason> {
        if !leased.is_parent || self.explains {
            return Ok(leased);
        }
        let forked = leased.lock().fork(1);
        let mut state = self.state.lock();
        let outcome = state.finish_fork_for_start(leased, forked);
        let remaining = state.take_remaining();
        drop(state);
        drop(remaining);
        outcome
    }
}
