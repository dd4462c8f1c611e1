// SPDX-License-Identifier: MIT OR Apache-2.0
//! The plan of a start, and the attempts with this plan: launchers in order, and the strategies of each.

use std::iter::Flatten;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::{array, mem, slice};

use spawnfd_child::Plan;
use spawnfd_sys::{CloneOptions, Errno};

use super::attempt::{Answer, Attempt, Wait};
use super::tables::{NONE, Strategies, Strategy};
use super::{asynchronous, clone, kernel, parked, pidns, subreaper};
use crate::cold_reason::ColdReason;
use crate::command::{Lowered, ParkedCandidates, Start};
use crate::error::{Error, Result, Stage};
use crate::host::features::{self, FeaturesOfThread};
use crate::template::{CacheKey, Template, TemplateCache};

/// A launcher.
struct Launcher {
    /// Whether the launcher can make a start with this plan. The launcher may still decline it.
    applies: fn(&Prepared<'_>, &Start<'_>) -> bool,
    launch: fn(&mut Attempt<'_>) -> Answer,
    /// The strategies for the descriptor table, in order.
    strategies: fn(&Prepared<'_>) -> Strategies,
}

/// The launchers, in order. The last launcher tries every command that the others decline.
static LAUNCHERS: [Launcher; 7] = [
    Launcher {
        applies: |prepared, _| prepared.candidates.is_some(),
        launch: parked::launch,
        strategies: |_| Strategy::CopyTable.alone(),
    },
    Launcher {
        applies: |_, start| start.namespace().is_some(),
        launch: pidns::launch,
        strategies: |_| Strategy::CopyTable.alone(),
    },
    Launcher {
        applies: |_, start| start.subreaper().is_some(),
        launch: subreaper::launch,
        strategies: |prepared| match prepared.may_block {
            true => Strategy::CopyTable.alone(),
            false => prepared.strategies_of_sleeping_caller(false),
        },
    },
    Launcher {
        applies: |prepared, _| prepared.features.has_builder(),
        launch: kernel::launch,
        strategies: |_| Strategy::CopyTable.alone(),
    },
    Launcher {
        applies: |prepared, _| prepared.may_be_asynchronous(),
        launch: asynchronous::launch,
        strategies: |_| Strategy::ScmRights.alone(),
    },
    Launcher {
        applies: |prepared, _| prepared.may_block,
        launch: asynchronous::launch_with_separate_mm,
        strategies: |_| Strategy::CopyTable.alone(),
    },
    Launcher {
        applies: |_, _| true,
        launch: clone::launch,
        // A later start may be asynchronous if this start shows that SCM_RIGHTS works.
        strategies: |prepared| prepared.strategies_of_sleeping_caller(prepared.may_be_asynchronous()),
    },
];

/// The cache from which a template came, and the template's key there.
pub(super) type Cached<'a> = Option<(CacheKey, &'a TemplateCache)>;

/// A start with its plan, as long as attempts with this plan go on.
pub(super) struct Prepared<'a> {
    wait: Wait,
    may_block: bool,
    pub(super) features: FeaturesOfThread,
    pub(super) plan: Arc<Plan<'static>>,
    pub(super) options: CloneOptions,
    pub(super) cgroup: Option<(u16, RawFd)>,
    must_wait: bool,
    /// The child's ends of its pipes. They stay open until the child has them.
    _child_ends: Vec<OwnedFd>,
    /// The caller's ends of the pipes, for the streams 0, 1 and 2.
    pipes: [Option<OwnedFd>; 3],
    /// The parked processes that may serve the start, or the reason why there is none. `None` if the command uses no
    /// parked processes.
    candidates: Option<std::result::Result<Box<dyn ParkedCandidates + 'a>, ColdReason>>,
    /// The reason why no parked process can become the program, if the command uses parked processes.
    cold: Option<ColdReason>,
    /// The launchers that have not been asked.
    launchers: slice::Iter<'static, Launcher>,
    launcher: &'static Launcher,
    /// The launcher's strategies that have not been tried.
    strategies: Flatten<array::IntoIter<Option<Strategy>, 4>>,
    pub(super) strategy: Strategy,
    /// True if the strategy has been tried with another pidfd of the caller.
    pub(super) has_renewed_pidfd: bool,
}

impl<'a> Prepared<'a> {
    /// Asks for a parked process, and then lowers the command to a plan. The first launcher comes next.
    pub(super) fn new(start: &Start<'a>, template: &Template, is_cached: bool, wait: Wait) -> Result<Prepared<'a>> {
        let features = features::of_calling_thread();
        // A child in another user namespace sees other owners of files, so the caller compares the program with its
        // template.
        let elsewhere = start.changes_user_namespace();
        let candidates = parked::candidates(start, template);
        let streams = candidates.as_ref().and_then(|found| found.as_ref().ok()).map(|found| found.streams());
        let lowered = Lowered::new(start, template, &features, is_cached && !elsewhere, streams)?;
        template.check_in_caller()?;
        if elsewhere {
            template.revalidate()?;
        }
        let Lowered { plan, separate_mm, must_wait, cgroup, child_ends, pipes } = lowered;
        let options = CloneOptions {
            share_memory: !separate_mm,
            namespaces: start.command.namespace_flags(),
            cgroup: cgroup.map(|(_, dir)| dir),
            clone3: cgroup.is_some() || features.has_clone3(),
            ..CloneOptions::default()
        };
        if options.namespaces != 0 && !options.clone3 && !features.can_clone_namespaces() {
            return Err(no_child(start, Errno::EPERM));
        }
        let [.., last] = &LAUNCHERS;
        let mut prepared = Prepared {
            wait,
            may_block: wait != Wait::Exec && start.command.may_block_forever(),
            features,
            plan: Arc::new(plan),
            options,
            cgroup,
            must_wait,
            _child_ends: child_ends,
            pipes,
            candidates,
            cold: None,
            launchers: LAUNCHERS.iter(),
            launcher: last,
            strategies: NONE.into_iter().flatten(),
            strategy: Strategy::CopyTable,
            has_renewed_pidfd: false,
        };
        // This finds a launcher, because the last one applies to every start.
        prepared.advance(start);
        Ok(prepared)
    }

    /// Makes an attempt.
    pub(super) fn make(&mut self, start: &Start<'a>, template: &Template, cached: &Cached<'a>) -> Answer {
        let launch = self.launcher.launch;
        let started = launch(&mut self.attempt(start, template, cached))?;
        Ok(started.map(|child| {
            let child = match self.cold {
                Some(reason) => child.cold(reason),
                None => child,
            };
            child.with_pipes(mem::take(&mut self.pipes))
        }))
    }

    /// The attempt, as the launcher receives it.
    pub(super) fn attempt<'s>(
        &'s mut self,
        start: &'s Start<'a>,
        template: &'s Template,
        cached: &'s Cached<'a>,
    ) -> Attempt<'s> {
        Attempt {
            start,
            template,
            cached: cached.as_ref(),
            wait: self.wait,
            may_block: self.may_block,
            features: self.features.clone(),
            plan: self.plan.clone(),
            options: self.options,
            cgroup: self.cgroup,
            strategy: self.strategy,
            candidates: self.candidates.take(),
            cold: &mut self.cold,
        }
    }

    /// Goes to the launcher's next strategy, or else to the next launcher. Returns false if none is left.
    pub(super) fn advance(&mut self, start: &Start<'_>) -> bool {
        self.has_renewed_pidfd = false;
        loop {
            if let Some(strategy) = self.strategies.next() {
                self.strategy = strategy;
                return true;
            }
            let mut left = self.launchers.clone();
            let next = left.find(|launcher| (launcher.applies)(self, start));
            self.launchers = left;
            let Some(launcher) = next else { return false };
            self.launcher = launcher;
            self.strategies = (launcher.strategies)(self).into_iter().flatten();
        }
    }

    /// Goes to the next launcher. Returns false if none is left.
    pub(super) fn skip_launcher(&mut self, start: &Start<'_>) -> bool {
        self.strategies = NONE.into_iter().flatten();
        self.advance(start)
    }

    /// The strategies for a child for which the caller sleeps.
    fn strategies_of_sleeping_caller(&self, try_scm_rights: bool) -> Strategies {
        Strategy::for_sleeping_caller(&self.plan, &self.options, &self.features, try_scm_rights)
    }

    /// Whether the caller continues before exec, and the child can use the caller's memory during that time.
    fn may_be_asynchronous(&self) -> bool {
        let goes_on = match self.wait {
            Wait::Exec => false,
            Wait::End => self.may_block,
            Wait::Start | Wait::Nothing => true,
        };
        goes_on && self.options.share_memory && !self.must_wait && self.plan.keep.is_some()
    }
}

/// The error if no child could be created.
pub(super) fn no_child(start: &Start<'_>, errno: Errno) -> Error {
    Error::new(Stage::Clone, errno, format!("spawn({:?})", start.command.program_name()))
}
