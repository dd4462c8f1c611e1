// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clone launcher: from a command to a running child, or to the reason why not.

mod door;
pub(crate) mod features;
mod handlers;
mod slots;

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use spawnfd_child::{Born, Failure, Handlers, Plan, Program, Stage as ChildStage, Table, launch};
use spawnfd_sys::{Birth, Errno, call, wait_pidfd};

use crate::child::Child;
use crate::command::{Command, Lowered, SignalSet, step_failed};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::template::Template;
use slots::Slot;

/// How often a stale template of a cache is made again. Against a file that is replaced without a pause each try wins or loses
/// a race of microseconds.
const RENEWALS: usize = 64;

/// The highest number of a descriptor that a child keeps for coming to the others: it copies what lies below.
const LOW: RawFd = 256;

/// Starts a command: finds its template, and renews it if a cache gave it and it is stale. Says with the child whether it
/// was made the leader of a process group, to be killed with it.
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
    if command.changes_user_namespace() {
        // There the child sees other owners.
        template.revalidate()?;
    }

    let failed = |stage, errno| Error::new(stage, errno, format!("spawn({:?})", command.program_name()));
    let mut claim = slots::claim().map_err(|errno| failed(Stage::Clone, errno))?;
    let checks = template.checks(lowered.executable.unwrap_or(0));
    let mut plan = Plan {
        table: Table::Copied,
        sources: &lowered.sources,
        above: lowered.waiting.0,
        below: lowered.waiting.1,
        steps: &lowered.steps,
        keep: (!command.inherits_descriptors()).then_some(&lowered.keep),
        default_signals: command.signals_to_default().bits(),
        signal_mask: command.blocked_signals().map(SignalSet::bits),
        parent_death: command.death_signal().and_then(|signal| Some((signal, call::getpid().ok()?))),
        checks: &checks,
        owners_mapped: command.changes_user_namespace(),
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
        cgroup: lowered.cgroup.map(|(_, dir)| dir),
        clone3: lowered.cgroup.is_some() || features::clone3(),
    };

    let Some(slot) = claim.slot() else { return Err(failed(Stage::Clone, Errno::ENOMEM)) };
    let outcome = give_birth(slot, birth, &mut plan);
    drop(claim);
    let born = outcome.map_err(|refusal| match (refusal, lowered.cgroup) {
        (Refusal::Source, _) => closed_source(command, &lowered),
        (Refusal::Clone(errno), Some((index, _))) if concerns_cgroup(errno) => step_failed(command, index, errno),
        (Refusal::Clone(errno), _) => failed(Stage::Clone, errno),
    });
    let born = match born {
        // Without clone3 joining the cgroup is a step of the child's.
        Err(error)
            if matches!(error.errno(), Errno::ENOSYS | Errno::EPERM)
                && birth.cgroup.is_some()
                && !features::clone3() =>
        {
            return spawn_template(command, template);
        }
        born => born?,
    };

    let pidfd = OwnedFd::from(born.child.pidfd);
    match born.outcome {
        Ok(()) => Ok((Child::new(born.child.pid, pidfd, lowered.pipes), lowered.leads_group)),
        Err(failure) => {
            reap(&pidfd);
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

/// Whether clone3 refuses because of the cgroup to be born in.
fn concerns_cgroup(errno: Errno) -> bool {
    matches!(errno, Errno::EBADF | Errno::EACCES | Errno::EBUSY | Errno::EOPNOTSUPP)
}

/// How the child comes to its descriptors, the best way first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// [`Table::Fetched`]
    Fetch,
    /// [`Table::Passed`]
    Pass,
    /// [`Table::Copied`]
    Copy,
}

/// Launches, and again in a plainer way where the kernel refuses the better one.
fn give_birth(slot: &mut Slot, mut birth: Birth, plan: &mut Plan<'_>) -> std::result::Result<Born, Refusal> {
    let mut way = match (plan.keep.is_some() && features::close_range(), features::fetch()) {
        (true, true) => Way::Fetch,
        (true, false) => Way::Pass,
        (false, _) => Way::Copy,
    };
    // A door that was not ours any more is opened again once.
    let mut renewed = false;
    loop {
        (plan.table, way) = lay_table(slot, plan.sources, way)?;
        let handlers = if birth.clone3 { Handlers::Cleared } else { handlers::known() };
        let born = match launch(&mut slot.room, birth, plan, handlers) {
            Ok(born) => born,
            Err(refused) => {
                slot.discard_channel();
                // EPERM may be the namespaces', or a filter's over clone3 itself.
                if birth.clone3 && matches!(refused.0, Errno::ENOSYS | Errno::EPERM) && !spawnfd_sys::has_clone3() {
                    features::forget_clone3();
                    birth.clone3 = false;
                    if birth.cgroup.is_none() {
                        continue;
                    }
                }
                return Err(Refusal::Clone(refused.0));
            }
        };
        if let Some(caught) = born.caught {
            handlers::learn(caught);
        }
        let failure = match born.outcome {
            Err(Some(Failure { stage: ChildStage::Descriptors, errno })) if way != Way::Copy => errno,
            Err(None) => {
                slot.discard_channel();
                return Ok(born);
            }
            _ => return Ok(born),
        };
        slot.discard_channel();
        reap(&OwnedFd::from(born.child.pidfd));
        way = match (way, failure) {
            (Way::Fetch, Errno::EBADF) => return Err(Refusal::Source),
            (Way::Fetch, Errno::ENOTSOCK) if !renewed => {
                door::renew();
                renewed = true;
                Way::Fetch
            }
            // From a new PID namespace the thread cannot be named: no fault of fetching as such.
            (Way::Fetch, Errno::ESRCH) => Way::Pass,
            (Way::Fetch, Errno::EPERM | Errno::EACCES | Errno::ENOSYS | Errno::EINVAL) => {
                features::forget_fetch();
                Way::Pass
            }
            (Way::Pass, Errno::EPERM | Errno::ENOSYS | Errno::EINVAL) => {
                features::forget_close_range();
                Way::Copy
            }
            _ => Way::Copy,
        };
    }
}

/// Makes the sources ready for a child that comes to them in this way, or the next best.
fn lay_table(slot: &mut Slot, sources: &[RawFd], way: Way) -> std::result::Result<(Table, Way), Refusal> {
    if way == Way::Fetch
        && let Some(table) = door::table()
    {
        return Ok((table, Way::Fetch));
    }
    if way == Way::Copy {
        return Ok((Table::Copied, Way::Copy));
    }
    match slot.pass(sources) {
        Ok(Table::Copied) => Ok((Table::Copied, Way::Copy)),
        Ok(table) => Ok((table, Way::Pass)),
        Err(_) => Err(Refusal::Source),
    }
}

/// Takes a child away that failed. It has ended, or is just about to; it never was the program: no status, no signal, no zombie.
fn reap(pidfd: &OwnedFd) {
    let _ = wait_pidfd(pidfd.as_raw_fd(), true);
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
        ChildStage::Descriptors => {
            Error::new(Stage::Descriptors, errno, format!("spawn({:?})", command.program_name()))
        }
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

/// Gives a descriptor up without closing its number.
fn forget(end: &mut OwnedFd) {
    // An OwnedFd cannot be empty: something harmless takes its place. Without even that much to open, leave it be:
    // closing a number twice is EBADF, or hits a descriptor opened this instant.
    if let Ok(placeholder) = rustix::fs::open("/dev/null", rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty()) {
        let _ = std::mem::replace(end, placeholder).into_raw_fd();
    }
}
