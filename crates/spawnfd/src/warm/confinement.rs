// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a parked process is confined by beyond the thread that parks it. It serves commands that ask for the same; the rest of what they
//! ask for, beyond Landlock and seccomp themselves, is done inside.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use spawnfd_child::{Op, Plan, Step};
use spawnfd_sys::call::{self, FilterInstruction};

use super::Park;
use super::prefix::Inside;
use crate::command::Command;
use crate::host::authority::Added;
use crate::host::features;
use crate::host::numbers::Known;

/// A command asks for it, and what is parked is something else.
const FILTER: &str = "seccomp filter";
const RULESET: &str = "Landlock ruleset";
/// What is to be done would be done outside, and inside it is not the same.
pub(super) const CONFINED: &str = "confinement";

/// In the order in which a child is confined.
#[derive(Clone, Debug, Default)]
pub(super) struct Confinement {
    no_new_privs: bool,
    ruleset: Option<Arc<Known>>,
    /// Empty: none.
    filter: Arc<[FilterInstruction]>,
}

impl Confinement {
    /// # Errors
    /// As fcntl(2) with F_DUPFD.
    pub(super) fn new(park: &Park) -> std::io::Result<Confinement> {
        let known = |fd: &Arc<OwnedFd>| fd.try_clone().map(Known::new).map(Arc::new);
        Ok(Confinement {
            no_new_privs: park.no_new_privs,
            ruleset: park.landlock.as_ref().map(known).transpose()?,
            filter: park.seccomp.as_slice().into(),
        })
    }

    /// Whether there is any.
    pub(super) fn is_any(&self) -> bool {
        self.no_new_privs || self.ruleset.is_some() || self.has_filter()
    }

    pub(super) fn has_filter(&self) -> bool {
        !self.filter.is_empty()
    }

    /// What a parked process has of it beyond the authority of the keeper thread.
    pub(super) fn added(&self) -> Added {
        Added { no_new_privs: self.no_new_privs, filters: self.has_filter().into() }
    }

    /// Has a command begin inside. `None`: an application has closed the ruleset.
    pub(super) fn lay_over<'fd>(&'fd self, command: &mut Command<'fd>) -> Option<()> {
        if self.no_new_privs {
            command.no_new_privs();
        }
        if let Some(ruleset) = &self.ruleset {
            command.landlock(ruleset.get()?);
        }
        if self.has_filter() {
            command.seccomp(&*self.filter);
        }
        Some(())
    }

    /// Whether a command asks for it. (What it asks for beyond that, but for filters, is done at the start.)
    ///
    /// # Errors
    /// What it does not ask for, or something else.
    pub(super) fn suits(&self, command: &Command<'_>) -> Result<(), &'static str> {
        if command.filter() != &*self.filter {
            return Err(FILTER);
        }
        let is = |own: &Known, theirs: RawFd| {
            own.get().is_some_and(|own| call::is_same_file(features::killed(), own.as_raw_fd(), theirs) == Ok(true))
        };
        if let Some(own) = &self.ruleset
            && !command.first_ruleset().is_some_and(|theirs| is(own, theirs))
        {
            return Err(RULESET);
        }
        if self.no_new_privs && !command.gives_up_privileges() { Err("no_new_privs") } else { Ok(()) }
    }

    /// Changes steps that are done before a child is confined, and here after it.
    ///
    /// # Errors
    /// [`CONFINED`]: they would not come to the same.
    pub(super) fn enter(&self, inside: &mut Inside, plan: &Plan) -> Result<(), &'static str> {
        let mut outside = self.ruleset.is_some();
        for Step { index, op } in std::mem::take(&mut inside.steps) {
            let op = match op {
                // The first, and the one: it suits.
                Op::Landlock { .. } if outside => {
                    outside = false;
                    continue;
                }
                Op::NoNewPrivs if self.no_new_privs => continue,
                Op::OpenNull { to } => inside.null(plan, to)?,
                Op::Open { .. } if outside || self.has_filter() => return Err(CONFINED),
                Op::Cgroup { .. } | Op::OomScoreAdj { .. } => return Err(CONFINED),
                op => op,
            };
            inside.steps.push(Step { index, op });
        }
        Ok(())
    }
}
