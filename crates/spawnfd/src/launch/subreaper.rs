// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher of programs whose tree has a subreaper. An intermediate process becomes the subreaper, and the program
//! becomes its child.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::process::{PidfdFlags, getpid, pidfd_open};
use spawnfd_child::{self as child, AsyncStart, BelowSubreaper, Failure, Outcome, Plan, launch as launch_plan};
use spawnfd_guard::process::Stat;
use spawnfd_sys::{Ended, Errno, call};

use super::asynchronous::{start_async, start_with_separate_mm};
use super::attempt::Refusal;
use super::clone::{Arrived, start_with, with_slot};
use super::outcome::async_child;
use super::slots::{self, Slot};
use super::{Answer, Attempt, reap};
use crate::child::Subreaper;
use crate::command::{Command, Lowered, Start};
use crate::constants::signal;
use crate::env::Env;
use crate::error::{Error, Result, Stage, errno, from_io};
use crate::host::features::Features;
use crate::signals::SignalSet;

pub(super) fn launch(attempt: &mut Attempt<'_>) -> Answer {
    let subreaper = attempt.start.subreaper().ok_or(Refusal::NotMine)?;
    let Some(peer_end) = subreaper.take_peer_end() else {
        let error = Error::new(Stage::Tree, Errno::EBUSY, "spawn: the tree's subreaper");
        return Ok(Err(error.saying("a process tree with a subreaper can start one program only")));
    };
    // The command owns descriptors that the helper gets.
    let mut command = subreaper.template().command();
    let answer = match lower_helper(subreaper, &mut command, &peer_end, &attempt.features) {
        Ok(helper) => {
            let start = if attempt.may_block { start_without_waiting } else { start };
            // A change of capabilities in the caller's memory would change the caller's dumpable flag.
            attempt.options.share_memory &= !helper.separate_mm;
            with_slot(|own_slot| start(attempt, (subreaper, &peer_end), &helper.plan, own_slot))
        }
        Err(error) => Ok(Err(error)),
    };
    drop(command);
    match answer {
        Ok(Ok(child)) => Ok(Ok(child.below(subreaper.clone()))),
        // A message of the failed start must not reach the next one.
        answer => match subreaper.renew_channel() {
            Ok(()) => answer,
            Err(error) => Ok(Err(error)),
        },
    }
}

/// The plan by which the intermediate process becomes the helper: the program that reaps the tree's processes.
fn lower_helper<'a>(
    subreaper: &Subreaper,
    command: &mut Command<'a>,
    peer_end: &'a OwnedFd,
    features: &Features,
) -> Result<Lowered> {
    command.arg0("spawnfd-guard").arg("reap").environment(&Env::empty()).current_dir("/").setsid();
    // If the caller ignores SIGCHLD, the kernel would reap the helper's children.
    command.default_signals(SignalSet::of(signal::CHLD).unwrap_or_default());
    // The helper blocks all signals, so only SIGKILL can end it. An exec by root would restore capabilities that the
    // caller has dropped; no_new_privs prevents that.
    command.signal_mask(SignalSet::ALL).no_new_privs();
    if let Some(sets) = subreaper.capabilities() {
        command.capabilities(sets);
    }
    let owner =
        pidfd_open(getpid(), PidfdFlags::empty()).map_err(|e| Error::new(Stage::Tree, errno(e), "pidfd_open()"))?;
    command.stdin(owner).stdout(peer_end).stderr(peer_end);
    Lowered::new(&Start::new(command), subreaper.template(), features, false, None)
}

/// Starts the program and waits for its exec.
fn start(
    attempt: &Attempt<'_>,
    (subreaper, peer_end): (&Subreaper, &OwnedFd),
    helper: &Plan<'static>,
    own_slot: &mut Slot,
) -> Answer {
    let (features, plan, options, strategy) = (&attempt.features, &attempt.plan, attempt.options, attempt.strategy);
    let arrived = with_slot(|slot| {
        start_with(slot, plan, features, strategy, |slot, table| {
            // If the strategy works for the child, it also works for the intermediate process, which uses it later.
            let Some(own_table) = strategy.prepare(own_slot, &helper.sources, features)? else {
                // The socket has descriptors for the child.
                slot.renew_channel();
                return Ok(None);
            };
            let mut start_below = || -> std::result::Result<_, Errno> {
                let reserved = reserve(matches!(table, child::Table::Copied), peer_end)?;
                let below = child::Subreaper {
                    memory: &mut own_slot.memory,
                    plan: helper,
                    table: own_table,
                    registration: Some(subreaper.registration()),
                    socket: peer_end.as_raw_fd(),
                    waits: true,
                };
                if options.share_memory {
                    let (started, outcome) = launch_plan(&mut slot.memory, options, table, plan, below)?;
                    return Ok((reserved, started, outcome, None));
                }
                // Both processes may use their shared words for longer than this start.
                let (started, pending) = start_async(slots::take()?, options, table, plan, below)?;
                Ok((reserved, started, pending.outcome(), Some(pending)))
            };
            let started = start_below();
            if !matches!(&started, Ok((_, started, ..)) if matches!(started.subreaper_outcome, Outcome::Program { .. }))
            {
                // The socket may still contain descriptors for the intermediate process.
                own_slot.renew_channel();
            }
            let (reserved, started, outcome, pending) = started?;
            let outcome = |exec_of: Option<i32>| match (exec_of, pending) {
                (Some(pid), Some(pending)) => outcome_after_exec(pid, &pending),
                _ => outcome,
            };
            arrive(started, subreaper, reserved, true, outcome).map(Some)
        })
    })?;
    Ok(arrived.answer(attempt))
}

/// Starts the program, and does not wait for its exec.
fn start_without_waiting(
    attempt: &Attempt<'_>,
    (subreaper, peer_end): (&Subreaper, &OwnedFd),
    helper: &Plan<'static>,
    own_slot: &mut Slot,
) -> Answer {
    let reserved = reserve(true, peer_end).map_err(Refusal::Clone)?;
    let below = child::Subreaper {
        memory: &mut own_slot.memory,
        plan: helper,
        table: child::Table::Copied,
        registration: Some(subreaper.registration()),
        socket: peer_end.as_raw_fd(),
        waits: false,
    };
    let (started, pending) = start_with_separate_mm(attempt, below)?;
    let arrived = arrive(started, subreaper, reserved, false, |_| pending.outcome()).map_err(Refusal::Clone)?;
    Ok(match arrived.outcome {
        Outcome::Failed(failure) => {
            reap(&arrived.pidfd);
            Err(attempt.failed_in_child(Some(failure)))
        }
        _ => Ok(async_child(attempt, (arrived.pid, arrived.pidfd), pending)),
    })
}

/// Reserves a number for a pidfd that will arrive by the socket, so that a lack of numbers ends the start before a
/// program runs.
fn reserve(is_needed: bool, any: &OwnedFd) -> std::result::Result<Option<OwnedFd>, Errno> {
    is_needed.then(|| any.try_clone().map_err(|e| from_io(&e))).transpose()
}

/// Takes over the processes of a start: the helper for `subreaper`, and the program or the reason why there is none.
/// `outcome` gets the pid of a program that may not have called exec yet.
///
/// # Errors
/// The intermediate process could not create a child, or was killed before the program could run.
fn arrive(
    started: BelowSubreaper,
    subreaper: &Subreaper,
    reserved: Option<OwnedFd>,
    waits: bool,
    outcome: impl FnOnce(Option<i32>) -> Outcome,
) -> std::result::Result<Arrived, Errno> {
    let (helper, pid) = (started.subreaper.pid, started.pid);
    let (status, subreaper_outcome) = (started.status, started.subreaper_outcome);
    let has_program = pid != 0 && status.is_none() && matches!(subreaper_outcome, Outcome::Program { .. });
    let outcome = outcome(has_program.then_some(pid));
    let (helper_pidfd, pidfd) = (OwnedFd::from(started.subreaper.pidfd), started.pidfd.map(OwnedFd::from));
    let failed = |pidfd, outcome, ended| Ok(Arrived { pid: helper, pidfd, outcome, ended });
    if let Some(status) = status {
        return failed(helper_pidfd, outcome, Some(Ended { status, used: None }));
    }
    match subreaper_outcome {
        Outcome::Program { .. } => {}
        // The kernel or a filter may refuse this strategy for the descriptor table. Then another one follows.
        Outcome::Failed(Failure { stage: child::ChildStage::Descriptors, .. }) if pid != 0 => {
            return failed(helper_pidfd, subreaper_outcome, None);
        }
        Outcome::Failed(Failure { errno, .. }) if pid != 0 => {
            return failed(helper_pidfd, Outcome::Failed(Failure { stage: child::ChildStage::Subreaper, errno }), None);
        }
        outcome => {
            reap(&helper_pidfd);
            return Err(match outcome {
                Outcome::Failed(failure) => failure.errno,
                _ => Errno::ECANCELED,
            });
        }
    }
    drop(reserved);
    let Some(pidfd) = pidfd.or_else(|| subreaper.receive_pidfd()) else {
        // Another thread has taken the reserved number. The helper has not reaped the program yet, so the pid is the
        // program's.
        let _ = call::kill(pid, 9);
        subreaper.helper_started(helper, helper_pidfd, pid);
        return Err(Errno::ECANCELED);
    };
    if let (true, Outcome::Failed(_) | Outcome::Killed(_)) = (waits, outcome) {
        let ended = subreaper.reap_failed_program(pid, &pidfd);
        return failed(helper_pidfd, outcome, ended);
    }
    // The program may have killed the intermediate process. Then the tree has lost its subreaper.
    subreaper.helper_started(helper, helper_pidfd, pid);
    Ok(Arrived { pid, pidfd, outcome, ended: None })
}

/// The outcome of a child with memory of its own, after it has called exec or ended.
fn outcome_after_exec(pid: i32, child: &AsyncStart) -> Outcome {
    const INTERVAL: Duration = Duration::from_micros(100);
    // The helper does not reap the child before it has the child's pid.
    while Stat::read(pid).is_some_and(|stat| stat.is_alive() && !stat.has_called_exec()) {
        std::thread::sleep(INTERVAL);
    }
    child.outcome()
}
