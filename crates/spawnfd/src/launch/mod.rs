// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a command to a running child, or to the reason why not: the clone launcher, and the way to the others.

mod alone;
mod door;
mod flight;
mod handlers;
mod kernel;
mod slots;

use std::cell::LazyCell;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use spawnfd_child::{Born, Failure, Outcome, Pinned, Plan, Program, Stage as ChildStage, Table, launch};
use spawnfd_sys::{ArgBlock, Birth, Cloned, Ended, Errno, abi, call, signal_that_ended, wait_pidfd};

use crate::child::{Child, Landing, Started};
use crate::command::{Command, Lowered, stage_of, step_failed};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::host::authority;
use crate::host::features::{self, Features};
use crate::template::{Named, Template, TemplateCache};
use crate::warm::Offer;
pub(crate) use flight::{Held, InFlight};
use kernel::Launched;
use slots::Slot;

/// How often a template of a cache is made again, when nothing stands where it stood, or the caller's credentials have changed. (A file
/// that was replaced costs nothing: the child takes the new one.)
const RENEWALS: usize = 8;

/// The highest number of a descriptor that a child keeps for coming to the others: it copies what lies below.
const LOW: RawFd = 256;

/// Whether to sleep until the child has become the program.
pub(crate) enum Wait<'a> {
    /// Yes, and what fails is an error of this call.
    Exec,
    /// Not where that can be helped: the calling thread does nothing then but wait for the program's end. Tells whether a signal has made
    /// that pointless.
    End(&'a mut dyn FnMut() -> bool),
    /// Not on the way to exec. (A parked process that is killed before it has begun is replaced only in the call.)
    Start,
    /// Not where that can be helped.
    No,
}

/// Starts a command; again where the descriptors it lacked may be those of other templates in its cache.
pub(crate) fn spawn(command: &mut Command<'_>, mut wait: Wait<'_>) -> Result<Child> {
    authority::remember_if_alone();
    let outcome = match spawn_renewing(command, &mut wait) {
        // An action has a table of the child's own to run out of, and others have been performed before it.
        Err(error) if error.errno() == Errno::EMFILE && error.action().is_none() && command.has_others_given_up() => {
            spawn_renewing(command, &mut wait)
        }
        outcome => outcome,
    };
    command.died = false;
    outcome
}

/// Finds a command's template, and renews it if a cache gave it and it is stale.
fn spawn_renewing(command: &Command<'_>, wait: &mut Wait<'_>) -> Result<Child> {
    let (mut template, cached) = command.template()?;
    let Some((named, cache)) = &cached else {
        return spawn_template(command, &template, None, wait);
    };
    for _ in 0..RENEWALS {
        match spawn_template(command, &template, Some((named, cache)), wait) {
            Err(error) if error.kind() == ErrorKind::Stale || error.stage() == Stage::Credentials => {
                template = cache.renew(named)?;
            }
            outcome => return outcome,
        }
    }
    spawn_template(command, &template, Some((named, cache)), wait)
}

/// Starts a command from one template.
fn spawn_template(
    command: &Command<'_>,
    template: &Template,
    cached: Option<(&Named, &TemplateCache)>,
    wait: &mut Wait<'_>,
) -> Result<Child> {
    let features = features::of_calling_thread();
    // In another user namespace the child sees other owners.
    let elsewhere = command.changes_user_namespace();
    // In a FIFO, until somebody opens its other end: who does not wait for exec is not to wait for that.
    let may_stand_still = !matches!(wait, Wait::Exec) && command.may_stand_still();
    let warm = command.warm.as_ref().map(|warm| if command.died { Err("died") } else { warm.offer(command, template) });
    let streams = warm.as_ref().and_then(|warm| warm.as_ref().ok()).map(Offer::streams);
    let lowered = Lowered::new(command, template, &features, cached.is_some() && !elsewhere, streams)?;
    template.settle()?;
    if elsewhere {
        template.revalidate()?;
    }
    let Lowered { plan, own_memory, must_wait, cgroup, child_ends, pipes } = lowered;
    let plan = Arc::new(plan);
    let birth = Birth {
        share_memory: !own_memory,
        share_descriptors: false,
        namespaces: command.namespace_flags(),
        cgroup: cgroup.map(|(_, dir)| dir),
        sibling: false,
        clone3: cgroup.is_some() || features.has_clone3(),
    };
    if birth.namespaces != 0 && !birth.clone3 && !features.can_clone_namespaces() {
        return Err(Error::new(Stage::Clone, Errno::EPERM, format!("spawn({:?})", command.program_name())));
    }
    let name = || command.program_name().to_owned();
    let waits = matches!(wait, Wait::Exec | Wait::Start);
    let warm = warm.map(|offer| offer.and_then(|offer| offer.start(&plan, template, cgroup, waits, may_stand_still)));
    let cold = match warm {
        Some(Ok(Ok(child))) => return Ok(child.with_pipes(pipes)),
        Some(Ok(Err(failure))) => return Err(explain(&plan, template, &name(), failure)),
        Some(Err(reason)) => {
            command.warm.iter().for_each(|warm| warm.count_cold(reason));
            Some(Started::Cold(reason))
        }
        None => None,
    };
    let by_kernel = (!may_stand_still).then(|| kernel::launch(&plan, template, &birth, &features));
    match by_kernel.flatten() {
        Some(Launched::Program(pid, pidfd)) => {
            return Ok(Child::new(pid, pidfd, pipes, cold.unwrap_or(Started::Kernel), None));
        }
        Some(Launched::Failed(failure)) => return Err(explain(&plan, template, &name(), Some(failure))),
        None => {}
    }
    // Asked once a spawn: the first one's answer is no, whoever asks.
    let can_trim = LazyCell::new(|| plan.keep.is_some() && features.can_trim() && can_trim(&plan));
    let can_fly = !own_memory && !must_wait && plan.keep.is_some();
    if can_fly && may_stand_still {
        find_out_whether_passing_works(&plan, &features);
    }
    let (may_pass, held) = match wait {
        Wait::No | Wait::Start => (can_fly, None),
        // Asked again once signals are blocked: none falls between the question and the wait.
        Wait::End(interrupted) => {
            let can_hold = can_fly && *can_trim && !interrupted();
            (can_fly && may_stand_still, can_hold.then(Held::new).flatten().filter(|_| !interrupted()))
        }
        Wait::Exec => (false, None),
    };
    let in_flight = |born: Cloned, flight, way, pipes| {
        let cached = cached.map(|(named, cache)| (named.clone(), cache.clone()));
        let features = features.clone();
        let flight = InFlight { flight, template: template.clone(), cached, name: name(), features, way };
        let started = cold.unwrap_or(Started::Clone);
        Child::new(born.pid, OwnedFd::from(born.pidfd), pipes, started, Some(Landing::Clone(flight)))
    };
    if (may_pass || held.is_some())
        && let Some((born, flight)) = flight::take_off(birth, &plan, &features, held.as_ref().map(Held::mask))
    {
        let way = if held.is_some() { Way::Trim } else { Way::Pass };
        let held = held.map(|held| held.until(flight.clone(), child_ends));
        return Ok(in_flight(born, flight, way, pipes).with_held(held));
    }

    drop(held);
    let failed = |errno| Error::new(Stage::Clone, errno, format!("spawn({:?})", command.program_name()));
    let started = cold.unwrap_or(Started::Clone);
    let outcome = if may_stand_still {
        match flight::take_off_apart(birth, &plan, &features) {
            Ok((born, flight)) => return Ok(in_flight(born, flight, Way::Copy, pipes)),
            Err(refusal) => Err(refusal),
        }
    } else {
        let mut slot = slots::take().map_err(failed)?;
        let born = give_birth(&mut slot, birth, &plan, &features, may_pass, || *can_trim);
        slots::put(slot);
        born
    };
    let Arrived { pid, pidfd, outcome } = match outcome {
        Ok(arrived) => arrived,
        // Without clone3 joining the cgroup is a step of the child's.
        Err(Refusal::Clone(Errno::ENOSYS | Errno::EPERM)) if birth.cgroup.is_some() && !features.has_clone3() => {
            return spawn_template(command, template, cached, wait);
        }
        Err(Refusal::Source) => return Err(closed_source(&plan, command)),
        Err(Refusal::Clone(errno)) => {
            return Err(match cgroup {
                Some((index, dir)) if concerns_cgroup(errno) => {
                    Error::new(stage_of(index), errno, format!("cgroup({dir})"))
                }
                _ => failed(errno),
            });
        }
    };
    let failure = match outcome {
        Outcome::Program { renewed } => {
            if let (true, Some((named, cache))) = (renewed, cached) {
                cache.drop_stale(named);
            }
            return Ok(Child::new(pid, pidfd, pipes, started, None));
        }
        Outcome::Failed(failure) => failure,
        Outcome::Killed(_) if command.takes_killed => return Ok(Child::new(pid, pidfd, pipes, started, None)),
        Outcome::Killed(stage) => {
            let ended = reap(&pidfd);
            return Err(explain_killed(&plan, template, &name(), stage, ended));
        }
    };
    reap(&pidfd);
    Err(explain(&plan, template, &name(), Some(failure)))
}

/// A child that was waited for: the program, or failed and to be reaped.
struct Arrived {
    pid: i32,
    pidfd: OwnedFd,
    outcome: Outcome,
}

impl From<Born> for Arrived {
    fn from(born: Born) -> Arrived {
        Arrived { pid: born.child.pid, pidfd: OwnedFd::from(born.child.pidfd), outcome: born.outcome }
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
    /// [`Table::Trimmed`]
    Trim,
    /// [`Table::Fetched`]
    Fetch,
    /// [`Table::Passed`]
    Pass,
    /// [`Table::Copied`]
    Copy,
}

impl Way {
    /// The kernel refuses a call that this way takes, or a filter killed a child for it.
    fn refuse(self, features: &Features, sources: &[RawFd]) {
        match self {
            Way::Trim => features.trim.learn(false),
            Way::Fetch => features.fetch.learn(false),
            Way::Pass => {
                features.close_range.learn(false);
                features.passing(sources).learn(false);
            }
            Way::Copy => {}
        }
    }
}

/// Launches, and again in a plainer way where the kernel refuses the better one. `try_passing`: by way of the socket first, to learn
/// whether that works.
fn give_birth(
    slot: &mut Slot,
    mut birth: Birth,
    plan: &Plan,
    features: &Features,
    try_passing: bool,
    can_trim: impl FnOnce() -> bool,
) -> std::result::Result<Arrived, Refusal> {
    let try_passing = try_passing && features.passing(&plan.sources).known().is_none();
    let leave_table = plan.keep.is_some() && features.has_close_range();
    // Nobody may look into the caller from another user namespace.
    let may_fetch = birth.namespaces & abi::CLONE_NEWUSER == 0;
    let plainer = match (leave_table, features.can_fetch() && may_fetch && !try_passing) {
        (true, true) => Way::Fetch,
        (true, false) => Way::Pass,
        (false, _) => Way::Copy,
    };
    let mut way = if plan.namespace.is_some() {
        // The program has a copy, and the one between has the caller's own.
        Way::Copy
    } else if leave_table && !try_passing && can_trim() {
        Way::Trim
    } else {
        plainer
    };
    // A door that was not ours any more is opened again once.
    let mut renewed = false;
    loop {
        let table;
        (table, way) = lay_table(slot, &plan.sources, features, way)?;
        let (handlers, begun) = handlers::at_birth(birth.clone3);
        let born = match launch(&mut slot.room, birth, table, plan, handlers) {
            Ok(born) => born,
            Err(refused) => {
                slot.discard_channel();
                if goes_without_clone3(&mut birth, features, refused.0) {
                    continue;
                }
                // Before Linux 6.3 memory cannot be shared into another time namespace (kernel/nsproxy.c, copy_namespaces).
                if birth.share_memory && refused.0 == Errno::EINVAL {
                    birth.share_memory = false;
                    continue;
                }
                return Err(Refusal::Clone(refused.0));
            }
        };
        if let Some(caught) = born.caught {
            handlers::learn(caught, begun);
        }
        let is_in_table = |stage| stage == ChildStage::Descriptors && way != Way::Copy;
        let (pidfd, failure) = match born.outcome {
            Outcome::Failed(Failure { stage, errno }) if is_in_table(stage) => (OwnedFd::from(born.child.pidfd), errno),
            Outcome::Killed(stage) => {
                slot.discard_channel();
                let arrived = Arrived::from(born);
                // Nothing has been done yet: a filter that kills refuses as one that answers EPERM.
                if !is_in_table(stage) || signal_that_ended(arrived.pidfd.as_raw_fd()) != Some(SIGSYS) {
                    return Ok(arrived);
                }
                (arrived.pidfd, Errno::EPERM)
            }
            _ => {
                if way == Way::Pass {
                    features.passing(&plan.sources).learn(true);
                }
                return Ok(Arrived::from(born));
            }
        };
        slot.discard_channel();
        reap(&pidfd);
        way = match (way, failure) {
            (Way::Trim | Way::Fetch, Errno::EBADF) => return Err(Refusal::Source),
            (Way::Trim, Errno::EPERM | Errno::ENOSYS | Errno::EINVAL) => {
                way.refuse(&features, &plan.sources);
                plainer
            }
            (Way::Trim, _) => plainer,
            (Way::Fetch, Errno::ENOTSOCK) if !renewed => {
                door::renew();
                renewed = true;
                Way::Fetch
            }
            // From a new PID namespace the thread cannot be named: no fault of fetching as such.
            (Way::Fetch, Errno::ESRCH) => Way::Pass,
            (Way::Fetch, Errno::EPERM | Errno::EACCES | Errno::ENOSYS | Errno::EINVAL) => {
                way.refuse(&features, &plan.sources);
                Way::Pass
            }
            (Way::Pass, Errno::EPERM | Errno::ENOSYS | Errno::EINVAL) => {
                way.refuse(&features, &plan.sources);
                Way::Copy
            }
            _ => Way::Copy,
        };
    }
}

/// Whether the same birth is to be tried by clone. EPERM may be the namespaces', or a filter's over clone3 itself.
fn goes_without_clone3(birth: &mut Birth, features: &Features, refused: Errno) -> bool {
    if !birth.clone3 || !matches!(refused, Errno::ENOSYS | Errno::EPERM) || features.ask_for_clone3() {
        return false;
    }
    birth.clone3 = false;
    birth.cgroup.is_none() && (birth.namespaces == 0 || features.can_clone_namespaces())
}

/// Whether the child may have a copy of what lies below its sources for the moment until it closes that: nobody is there to notice, and the
/// kernel would copy as many in any case (it copies 64 at a time).
fn can_trim(plan: &Plan) -> bool {
    const COPIED_AT_ONCE: RawFd = 64;
    // Without sources nothing has to be fetched either. Opening may take as long as it likes.
    !plan.sources.is_empty()
        && plan.sources.iter().all(|&source| source < COPIED_AT_ONCE)
        && plan.program.source.is_none()
        && !plan.may_stand_still()
        && alone::is_alone()
}

/// Has a child try that takes what this one would be passed, and then executes nothing: where the first one of a process would stand still,
/// it cannot be the one that shows it.
fn find_out_whether_passing_works(plan: &Plan, features: &Features) {
    if features.passing(&plan.sources).known().is_some() {
        return;
    }
    let birth = Birth {
        share_memory: true,
        share_descriptors: false,
        namespaces: 0,
        cgroup: None,
        sibling: false,
        clone3: features.has_clone3(),
    };
    let Ok(mut slot) = slots::take() else { return };
    if let Ok(arrived) = give_birth(&mut slot, birth, &without_program(plan), features, true, || false) {
        reap(&arrived.pidfd);
    }
    slots::put(slot);
}

/// A plan that comes to the same sources, and ends at exec: there is nothing to execute.
fn without_program(plan: &Plan) -> Plan {
    let nothing = Pinned { path: CString::default(), checks: Vec::new(), places: Vec::new() };
    Plan {
        namespace: None,
        sources: plan.sources.clone(),
        steps: Vec::new(),
        keep: Some(Vec::new()),
        default_signals: 0,
        signal_mask: None,
        parent_death: None,
        program: Program { pinned: Arc::new(nothing), source: None, renew: false },
        filter: None,
        argv: ArgBlock::builder().finish(),
        envp: plan.envp.clone(),
        ..*plan
    }
}

/// Makes the sources ready for a child that comes to them in this way, or the next best.
fn lay_table(
    slot: &mut Slot,
    sources: &[RawFd],
    features: &Features,
    way: Way,
) -> std::result::Result<(Table, Way), Refusal> {
    if way == Way::Trim {
        let highest = sources.iter().fold(2, |highest, &source| highest.max(source));
        return Ok((Table::Trimmed { above: highest + 1 }, Way::Trim));
    }
    if way == Way::Fetch
        && let Some(table) = door::table(features)
    {
        return Ok((table, Way::Fetch));
    }
    if way == Way::Copy || !features.can_pass() {
        return Ok((Table::Copied, Way::Copy));
    }
    match slot.pass(sources) {
        Ok(Table::Copied) => Ok((Table::Copied, Way::Copy)),
        Ok(table) => Ok((table, Way::Pass)),
        Err(_) => Err(Refusal::Source),
    }
}

/// Takes a child away that failed. It has ended, or is just about to; it never was the program: no status, no signal, no zombie.
fn reap(pidfd: &OwnedFd) -> Option<Ended> {
    wait_pidfd(pidfd.as_raw_fd(), true).ok().flatten()
}

/// Why a child did not become the program; `None`: it was killed.
fn explain(plan: &Plan, template: &Template, name: &OsStr, failure: Option<Failure>) -> Error {
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

const SIGSYS: i32 = 31;

/// Why a child that was killed in this stage did not become the program. A filter's SIGSYS is an error of that stage: it is known what
/// has been done, and that the same would happen again.
fn explain_killed(plan: &Plan, template: &Template, name: &OsStr, stage: ChildStage, ended: Option<Ended>) -> Error {
    if ended.is_some_and(|ended| ended.status & 0x7f == SIGSYS) {
        explain(plan, template, name, Some(Failure { stage, errno: Errno::ECANCELED })).by_filter()
    } else {
        explain(plan, template, name, None).with_end(ended)
    }
}

/// Finds which of the caller's descriptors is not open.
fn closed_source(plan: &Plan, command: &Command<'_>) -> Error {
    let is_closed = |&&source: &&usize| call::identify(plan.sources[source]) == Err(Errno::EBADF);
    match plan.steps.iter().find(|step| step.op.source().filter(is_closed).is_some()) {
        Some(step) => step_failed(plan, step.index, Errno::EBADF),
        None => Error::new(Stage::Descriptors, Errno::EBADF, format!("spawn({:?})", command.program_name())),
    }
}
