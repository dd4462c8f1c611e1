// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clone launcher: from a command to a running child, or to the reason why not.

pub(crate) mod features;
mod slots;

use std::os::fd::{AsRawFd, OwnedFd};

use spawnfd_child::{Born, Failure, Plan, Program, Stage as ChildStage, Table, launch};
use spawnfd_sys::{Birth, Errno, call, wait_pidfd};

use crate::child::Child;
use crate::command::{Command, Lowered, step_failed};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::template::Template;
use slots::Slot;

/// How often a stale template of a cache is made again before its file counts as changing all the time.
const RENEWALS: usize = 3;

/// Starts a command: finds its template, and renews it if a cache gave it and it is stale. Says with the child whether it
/// was made the leader of a session.
pub(crate) fn spawn(command: &Command<'_>) -> Result<(Child, bool)> {
    let (mut template, origin) = command.template()?;
    let Some((named, cache)) = origin else {
        return spawn_template(command, &template);
    };
    for _ in 0..RENEWALS {
        match spawn_template(command, &template) {
            Err(error) if error.kind() == ErrorKind::Stale || error.stage() == Stage::Credentials => {
                template = cache.renew(&named)?;
            }
            outcome => return outcome,
        }
    }
    spawn_template(command, &template)
}

/// Starts a command from one template.
fn spawn_template(command: &Command<'_>, template: &Template) -> Result<(Child, bool)> {
    let lowered = Lowered::new(command, template)?;
    let argv = command.encode_args()?;
    let envp = command.encode_env()?;
    template.settle()?;

    let failed = |stage, errno| Error::new(stage, errno, format!("spawn({:?})", command.program_name()));
    let mut claim = slots::claim().map_err(|errno| failed(Stage::Clone, errno))?;
    let checks = template.checks(lowered.executable.unwrap_or(0));
    let mut plan = Plan {
        table: Table::Copied,
        sources: &lowered.sources,
        above: lowered.above,
        steps: &lowered.steps,
        keep: (!command.inherits_descriptors()).then_some(&lowered.keep),
        default_signals: command.signals_to_default().bits(),
        signal_mask: command.blocked_signals().bits(),
        parent_death: command.death_signal().zip(call::getpid().ok()),
        checks: &checks,
        filter: command.filter(),
        program: match lowered.executable {
            Some(source) => Program::Source(source),
            None => Program::Path(template.path_c()),
        },
        argv: &argv,
        envp: &envp,
    };
    let birth = Birth {
        share_memory: !lowered.own_memory,
        share_descriptors: false,
        namespaces: command.namespace_flags(),
        cgroup: lowered.cgroup,
        clone3: features::clone3(),
    };

    let Some(slot) = claim.slot() else { return Err(failed(Stage::Clone, Errno::ENOMEM)) };
    let born = give_birth(slot, birth, &mut plan).map_err(|refusal| match refusal {
        Refusal::Source => closed_source(command, &lowered),
        Refusal::Clone(errno) => failed(Stage::Clone, errno),
    })?;
    drop(claim);

    let pidfd = OwnedFd::from(born.child.pidfd);
    match born.outcome {
        Ok(()) => Ok((Child::new(born.child.pid, pidfd, lowered.pipes), lowered.leads_session)),
        Err(failure) => {
            // It has ended, or is just about to. It never was the program: no status, no signal, no zombie.
            let _ = wait_pidfd(pidfd.as_raw_fd(), true);
            Err(explain(command, template, failure))
        }
    }
}

/// Why there is no child.
enum Refusal {
    /// A descriptor of the caller is not open.
    Source,
    Clone(Errno),
}

/// Launches, and again in a plainer way where the kernel refuses the better one.
fn give_birth(slot: &mut Slot, mut birth: Birth, plan: &mut Plan<'_>) -> std::result::Result<Born, Refusal> {
    let mut pass = plan.keep.is_some() && features::close_range();
    loop {
        plan.table = if pass { slot.pass(plan.sources).map_err(|_| Refusal::Source)? } else { Table::Copied };
        let passed = matches!(plan.table, Table::Passed { .. });
        match launch(&mut slot.room, birth, plan) {
            Ok(Born { outcome: Err(failure), child }) if passed && lost_in_passing(failure) => {
                slot.discard_channel();
                let Some(Failure { errno, .. }) = failure else { return Ok(Born { outcome: Err(failure), child }) };
                if matches!(errno, Errno::ENOSYS | Errno::EPERM | Errno::EINVAL) {
                    features::forget_close_range();
                }
                let _ = wait_pidfd(OwnedFd::from(child.pidfd).as_raw_fd(), true);
                // The table is copied at the second try, which asks nothing of the socket.
                pass = false;
            }
            Ok(born) => return Ok(born),
            Err(refused) => {
                if passed {
                    slot.discard_channel();
                }
                if birth.clone3 && refused.0 == Errno::ENOSYS && birth.cgroup.is_none() {
                    features::forget_clone3();
                    birth.clone3 = false;
                    continue;
                }
                return Err(Refusal::Clone(refused.0));
            }
        }
    }
}

/// Whether the child ended before it had taken the sources from the socket.
fn lost_in_passing(failure: Option<Failure>) -> bool {
    failure.is_none_or(|failure| failure.stage == ChildStage::Descriptors)
}

fn explain(command: &Command<'_>, template: &Template, failure: Option<Failure>) -> Error {
    let program = || match template.path() {
        Some(path) => format!("execve({path:?})"),
        None => "execveat(fd)".to_owned(),
    };
    let Some(Failure { stage, errno }) = failure else {
        return Error::new(Stage::Killed, Errno::EINTR, program());
    };
    match stage {
        ChildStage::Action(index) => step_failed(command, index, errno),
        ChildStage::Check(place) => template.check_failed(usize::from(place), errno),
        ChildStage::Descriptors => Error::new(Stage::Descriptors, errno, format!("spawn({:?})", command.program_name())),
        ChildStage::Signals => Error::new(Stage::Signals, errno, "sigaction()"),
        ChildStage::Filter => Error::new(Stage::Filter, errno, "seccomp(SECCOMP_SET_MODE_FILTER)"),
        ChildStage::Exec => Error::new(Stage::Exec, errno, program()),
    }
}

/// Finds which of the caller's descriptors is not open.
fn closed_source(command: &Command<'_>, lowered: &Lowered<'_>) -> Error {
    for step in &lowered.steps {
        let source = match step.op {
            spawnfd_child::Op::Place { source, .. }
            | spawnfd_child::Op::Fchdir { source }
            | spawnfd_child::Op::JoinCgroup { source }
            | spawnfd_child::Op::JoinNamespace { source, .. }
            | spawnfd_child::Op::Landlock { source } => source,
            spawnfd_child::Op::Open { dir: Some(source), .. } => source,
            _ => continue,
        };
        if call::identify(lowered.sources[source]) == Err(Errno::EBADF) {
            return step_failed(command, step.index, Errno::EBADF);
        }
    }
    Error::new(Stage::Descriptors, Errno::EBADF, format!("spawn({:?})", command.program_name()))
}
