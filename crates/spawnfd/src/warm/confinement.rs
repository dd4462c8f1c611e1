// SPDX-License-Identifier: MIT OR Apache-2.0
//! The confinement of a parked process beyond that of the keeper thread. The process serves commands that ask for the
//! same confinement, and performs their other actions inside it.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use spawnfd_child::{Op, Plan, Step};
use spawnfd_sys::call::{self, FilterInstruction};

use super::Park;
use super::sandbox_command::InnerPlan;
use crate::cold_reason::ColdReason;
use crate::command::Command;
use crate::host::authority::AddedConfinement;
use crate::host::descriptors::CheckedFd;
use crate::host::features;

/// The confinement of a parked process. The fields are in the order in which a child applies them.
#[derive(Clone, Debug, Default)]
pub(super) struct Confinement {
    no_new_privs: bool,
    ruleset: Option<Arc<CheckedFd>>,
    /// The instructions of the seccomp filter. Empty if there is no filter.
    filter: Arc<[FilterInstruction]>,
}

impl Confinement {
    /// # Errors
    /// The errors of fcntl(2) with F_DUPFD.
    pub(super) fn new(park: &Park) -> std::io::Result<Confinement> {
        let known = |fd: &Arc<OwnedFd>| fd.try_clone().map(CheckedFd::new).map(Arc::new);
        Ok(Confinement {
            no_new_privs: park.no_new_privs,
            ruleset: park.landlock.as_ref().map(known).transpose()?,
            filter: park.seccomp.as_slice().into(),
        })
    }

    /// Whether there is any confinement.
    pub(super) fn is_any(&self) -> bool {
        self.no_new_privs || self.ruleset.is_some() || self.has_filter()
    }

    pub(super) fn has_filter(&self) -> bool {
        !self.filter.is_empty()
    }

    /// The changes that this confinement makes to the keeper thread's authority.
    pub(super) fn added(&self) -> AddedConfinement {
        AddedConfinement { no_new_privs: self.no_new_privs, filters: self.has_filter().into() }
    }

    /// Confines a command. Returns `None` if the application has closed the ruleset.
    pub(super) fn apply_to<'fd>(&'fd self, command: &mut Command<'fd>) -> Option<()> {
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

    /// Checks that a command asks for this confinement. A command may ask for more confinement.
    /// The start performs the additional part, unless it is a filter.
    ///
    /// # Errors
    /// The part of the confinement that the command does not ask for, or asks for with another
    /// value.
    pub(super) fn check_command(&self, command: &Command<'_>) -> Result<(), ColdReason> {
        if command.filter() != &*self.filter {
            return Err(ColdReason::SeccompFilter);
        }
        let is_same_file = |own: &CheckedFd, theirs: RawFd| {
            own.get()
                .is_some_and(|own| call::is_same_file(features::killed_calls(), own.as_raw_fd(), theirs) == Ok(true))
        };
        if let Some(own) = &self.ruleset
            && !command.first_ruleset().is_some_and(|theirs| is_same_file(own, theirs))
        {
            return Err(ColdReason::LandlockRuleset);
        }
        if self.no_new_privs && !command.gives_up_privileges() { Err(ColdReason::NoNewPrivs) } else { Ok(()) }
    }

    /// Adapts the steps that a child of a cold start performs before its confinement. A parked process is confined
    /// when it performs them.
    ///
    /// # Errors
    /// [`ColdReason::Confinement`]: the steps would have another effect.
    pub(super) fn adapt_steps(&self, inner: &mut InnerPlan, plan: &Plan<'_>) -> Result<(), ColdReason> {
        let mut ruleset_pending = self.ruleset.is_some();
        for Step { index, op } in std::mem::take(&mut inner.steps) {
            let op = match op {
                // The command's first ruleset is the one that already confines the parked process.
                Op::Landlock { .. } if ruleset_pending => {
                    ruleset_pending = false;
                    continue;
                }
                Op::NoNewPrivs if self.no_new_privs => continue,
                Op::OpenNull { to } => inner.place_null(plan, to)?,
                Op::Open { .. } if ruleset_pending || self.has_filter() => return Err(ColdReason::Confinement),
                Op::Cgroup { .. } | Op::OomScoreAdj { .. } => return Err(ColdReason::Confinement),
                op => op,
            };
            inner.steps.push(Step { index, op });
        }
        Ok(())
    }
}
