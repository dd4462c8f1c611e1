// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outcome of a start: the program, or the error that names the stage, the action and the errno.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::{OwnedFd, RawFd};

use spawnfd_child::{AsyncStart, ChildStage, Failure, Outcome, Plan};
use spawnfd_sys::{Ended, Errno, call};

use super::attempt::Attempt;
use super::slots;
use super::tables::Strategy;
use crate::child::{Child, PendingStart, Started};
use crate::command::{stage_of, step_failed};
use crate::error::{Error, ErrorKind, Result, Stage, of_too_large, reason, shown};
use crate::host::features::FeaturesOfThread;
use crate::template::{CacheKey, Template, TemplateCache};

pub(super) const SIGSYS: i32 = 31;

/// The error of a child that failed. `failure` is `None` if a signal killed the child.
pub(super) fn explain(plan: &Plan<'_>, template: &Template, name: &OsStr, failure: Option<Failure>) -> Error {
    let program = || match template.path() {
        Some(path) => format!("execve({path:?})"),
        None => "execveat(fd)".to_owned(),
    };
    let Some(Failure { stage, errno }) = failure else {
        let message = format!("{} was killed before it started", shown(name));
        return Error::new(Stage::Killed, Errno::ECANCELED, program()).saying(message);
    };
    match stage {
        ChildStage::Action(index) => step_failed(plan, index, errno),
        ChildStage::Check(place) => template.check_failed(usize::from(place), errno),
        ChildStage::Descriptors => Error::new(Stage::Descriptors, errno, format!("spawn({name:?})")),
        ChildStage::Closing => Error::new(Stage::Descriptors, errno, format!("spawn({name:?})")).after_actions(),
        ChildStage::Signals => Error::new(Stage::Signals, errno, "sigaction()"),
        ChildStage::Namespace => Error::new(Stage::Tree, errno, "setns(CLONE_NEWPID)"),
        ChildStage::Subreaper => Error::new(Stage::Tree, errno, "subreaper")
            .saying(format!("cannot start {}: its tree's helper process has failed", shown(name))),
        ChildStage::Filter => Error::new(Stage::Filter, errno, "seccomp(SECCOMP_SET_MODE_FILTER)"),
        ChildStage::Exec => Error::new(Stage::Exec, errno, program()).saying(exec_failed(plan, template, name, errno)),
    }
}

impl Attempt<'_> {
    /// The error of a child that failed. `failure` is `None` if a signal killed the child.
    pub(super) fn failed_in_child(&self, failure: Option<Failure>) -> Error {
        explain(&self.plan, self.template, self.start.command.program_name(), failure)
    }
}

/// The sentence of a failed exec.
fn exec_failed(plan: &Plan, template: &Template, name: &OsStr, errno: Errno) -> String {
    let program = template.path().map_or_else(|| shown(name), shown);
    match errno {
        Errno::E2BIG => of_too_large(&program, &plan.argv, &plan.envp),
        Errno::ENOEXEC => {
            format!("cannot execute {program}: it has no #! line, and the kernel does not know its format")
        }
        // The child has just compared the program's file, so the file that does not exist is the loader.
        Errno::ENOENT if template.is_pinned() => {
            format!("cannot execute {program}: its loader (ELF interpreter) does not exist")
        }
        Errno::ENOENT => format!("no such program: {program}"),
        Errno::EACCES => format!("permission denied: {program}"),
        Errno::ETXTBSY => format!("cannot execute {program}: a process has it open for writing"),
        errno => format!("cannot execute {program}: {}", reason(errno)),
    }
}

/// The error of a child that a signal killed in this stage. If the signal is a seccomp filter's SIGSYS, the error
/// names that stage: the actions that have run are known, and the filter would kill the same call again.
pub(super) fn explain_killed(
    plan: &Plan<'_>,
    template: &Template,
    name: &OsStr,
    stage: ChildStage,
    ended: Option<Ended>,
) -> Error {
    if ended.is_some_and(|ended| ended.status & 0x7f == SIGSYS) {
        explain(plan, template, name, Some(Failure { stage, errno: Errno::ECANCELED })).by_filter()
    } else {
        explain(plan, template, name, None).with_signal(ended)
    }
}

/// The error of a cgroup that the child cannot join.
pub(super) fn not_joined(index: u16, dir: RawFd, errno: Errno) -> Error {
    Error::new(stage_of(index), errno, format!("cgroup({dir})"))
}

/// The error of a plan with a source that is not open in the caller. The error names the action that uses the source.
pub(super) fn closed_source(plan: &Plan<'_>, name: &OsStr) -> Error {
    let is_closed = |&source: &usize| call::identify(plan.sources[source]) == Err(Errno::EBADF);
    match plan.steps.iter().find(|step| step.op.source().filter(is_closed).is_some()) {
        Some(step) => step_failed(plan, step.index, Errno::EBADF),
        None => Error::new(Stage::Descriptors, Errno::EBADF, format!("spawn({name:?})")),
    }
}

/// The child of an asynchronous spawn. Its handle reads the outcome once the child has ended.
pub(super) fn async_child(attempt: &Attempt<'_>, (pid, pidfd): (i32, OwnedFd), started: AsyncStart) -> Child {
    let pending = Pending {
        started,
        template: attempt.template.clone(),
        cached: attempt.cached.map(|(named, cache)| (named.clone(), TemplateCache::clone(cache))),
        name: attempt.start.command.program_name().to_owned(),
        features: attempt.features.clone(),
        strategy: attempt.strategy,
    };
    Child::new(pid, pidfd, Started::Clone, Some(Box::new(pending)))
}

/// The data from which an asynchronous spawn's handle later explains the outcome.
struct Pending {
    started: AsyncStart,
    template: Template,
    cached: Option<(CacheKey, TemplateCache)>,
    name: OsString,
    /// The features of the thread that started the child.
    features: FeaturesOfThread,
    strategy: Strategy,
}

impl fmt::Debug for Pending {
    /// Prints the name only, because the plan contains the program's environment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PendingStart for Pending {
    fn outcome(&self, ended: Option<Ended>) -> Result<()> {
        let (plan, template, name) = (self.started.plan(), &self.template, &self.name);
        let error = match self.started.outcome() {
            Outcome::Program { renewed } => {
                if let (true, Some((named, cache))) = (renewed, &self.cached) {
                    cache.drop_stale(named);
                }
                return Ok(());
            }
            Outcome::Failed(failure) => explain(plan, template, name, Some(failure)),
            Outcome::Killed(stage) => {
                if stage == ChildStage::Descriptors && ended.is_some_and(|ended| ended.status & 0x7f == SIGSYS) {
                    self.strategy.learn_unavailable(&self.features, &plan.sources);
                }
                explain_killed(plan, template, name, stage, ended)
            }
        };
        // The socket of the child's slot may still contain descriptors for the child. Close them now, because otherwise
        // they stay open until the next start.
        slots::reclaim();
        Err(match &self.cached {
            Some((named, cache)) if error.stage() == Stage::Exec => cache.exec_failed(named, template, error),
            Some((named, cache)) if error.kind() == ErrorKind::Stale => {
                cache.drop_stale(named);
                error
            }
            _ => error,
        })
    }
}
