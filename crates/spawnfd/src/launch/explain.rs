// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of children that did not become the program.

use std::ffi::OsStr;

use spawnfd_child::{Failure, Plan, Stage as ChildStage};
use spawnfd_sys::{Ended, Errno, call};

use crate::command::step_failed;
use crate::error::{Error, Stage};
use crate::template::Template;

pub(super) const SIGSYS: i32 = 31;

/// The error of a child that failed; `None`: a signal killed the child.
pub(super) fn explain(plan: &Plan, template: &Template, name: &OsStr, failure: Option<Failure>) -> Error {
    let program = || match template.path() {
        Some(path) => format!("execve({path:?})"),
        None => "execveat(fd)".to_owned(),
    };
    let Some(Failure { stage, errno }) = failure else {
        return Error::new(Stage::Killed, Errno::ECANCELED, program());
    };
    match stage {
        ChildStage::Action(index) => step_failed(plan, index, errno),
        ChildStage::Check(place) => template.check_failed(usize::from(place), errno),
        ChildStage::Descriptors => Error::new(Stage::Descriptors, errno, format!("spawn({name:?})")),
        ChildStage::Closing => Error::new(Stage::Descriptors, errno, format!("spawn({name:?})")).after_actions(),
        ChildStage::Signals => Error::new(Stage::Signals, errno, "sigaction()"),
        ChildStage::Namespace => Error::new(Stage::Tree, errno, "setns(CLONE_NEWPID)"),
        ChildStage::Filter => Error::new(Stage::Filter, errno, "seccomp(SECCOMP_SET_MODE_FILTER)"),
        ChildStage::Exec => Error::new(Stage::Exec, errno, program()),
    }
}

/// The error of a child that a signal killed in this stage. A filter's SIGSYS is an error of that stage: what has run is known, and the
/// same call would be killed again.
pub(super) fn explain_killed(
    plan: &Plan,
    template: &Template,
    name: &OsStr,
    stage: ChildStage,
    ended: Option<Ended>,
) -> Error {
    if ended.is_some_and(|ended| ended.status & 0x7f == SIGSYS) {
        explain(plan, template, name, Some(Failure { stage, errno: Errno::ECANCELED })).by_filter()
    } else {
        explain(plan, template, name, None).with_end(ended)
    }
}

/// The error of a plan one of whose descriptors is not open in the caller: it names the action.
pub(super) fn closed_source(plan: &Plan, name: &OsStr) -> Error {
    let is_closed = |&source: &usize| call::identify(plan.sources[source]) == Err(Errno::EBADF);
    match plan.steps.iter().find(|step| step.op.source().filter(is_closed).is_some()) {
        Some(step) => step_failed(plan, step.index, Errno::EBADF),
        None => Error::new(Stage::Descriptors, Errno::EBADF, format!("spawn({name:?})")),
    }
}
