// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts a command: returns a running child, or the reason why there is none.
//!
//! [`spawn`] finds the template, [`Attempt::prepare`] lowers the command, and [`spawn`] asks the [`LAUNCHERS`] in
//! order. A launcher starts the child, fails, or declines; if it declines, [`spawn`] asks the next one. A launcher
//! never declines once an action of the caller has run, so no action runs twice.

mod clone;
mod detached;
mod handlers;
mod kernel;
mod outcome;
mod parked;
#[cfg(feature = "warm")]
pub(crate) use parked::explain as explain_parked;
mod pidns;
mod slots;
mod subreaper;
mod tables;
mod vfork;

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use spawnfd_child::{Failure, Plan};
use spawnfd_sys::{CloneOptions, Ended, Errno, wait_pidfd};

use self::outcome::explain;
pub(crate) use self::slots::drop_unused as drop_unused_slots;
use crate::child::Child;
use crate::cold_reason::ColdReason;
use crate::command::{Command, Lowered, ParkedCandidates};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::host::authority;
use crate::host::features::{self, FeaturesOfThread};
use crate::template::{CacheKey, Template, TemplateCache};

/// A launcher's answer.
enum Launch {
    Started(Child),
    Failed(Error),
    /// This launcher cannot start the child, for this reason, and has run no action of the caller.
    NotMine(&'static str),
}

/// The launchers, in the order in which [`spawn`] asks them. The last launcher tries every command that the others
/// decline.
const LAUNCHERS: [fn(&mut Attempt<'_, '_>) -> Launch; 6] =
    [parked::launch, pidns::launch, subreaper::launch, kernel::launch, detached::launch, vfork::launch];

/// The number of times that a start renews its cached template, after the file disappeared or the
/// caller's credentials changed. If another file has replaced the old one, the child itself finds
/// the new file by a search.
const RENEWALS: usize = 8;

/// The event for which the caller waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wait {
    /// Exec: the call reports failures before and at exec.
    Exec,
    /// The program's end. The caller waits for it later, so this call may wait for exec, unless an action may block
    /// forever.
    End,
    /// The start only: when the call returns, a parked process has begun the start, or a child exists.
    Start,
    /// Nothing: when the call returns, a parked process may not have begun the start yet.
    Nothing,
}

impl Command<'_> {
    /// Finds the program and checks all arguments, but starts nothing.
    ///
    /// # Errors
    /// The errors that [`spawn`](Command::spawn) reports before a child exists.
    pub fn validate(&self) -> Result<()> {
        // Check in the order of a spawn, so that both report the same error if there are several.
        let (template, _) = self.template()?;
        Lowered::new(self, &template, &features::of_calling_thread(), false, None).map(drop)
    }
}

/// Starts a command. If no descriptor is free, starts it again after the cache has dropped its other templates.
pub(crate) fn spawn(command: &mut Command<'_>, wait: Wait) -> Result<Child> {
    authority::remember_if_single_threaded();
    let outcome = match spawn_renewing(command, wait) {
        // Do not start again after an action's EMFILE: it concerns the child's own table, and earlier actions have
        // run.
        Err(error) if error.errno() == Errno::EMFILE && error.action().is_none() && command.has_others_given_up() => {
            spawn_renewing(command, wait)
        }
        outcome => outcome,
    };
    command.died = false;
    outcome
}

/// Finds a command's template, and renews it if it came from a cache and is stale.
fn spawn_renewing(command: &Command<'_>, wait: Wait) -> Result<Child> {
    let (mut template, cached) = command.template()?;
    for _ in 0..RENEWALS {
        match (spawn_template(command, &template, cached.as_ref(), wait), &cached) {
            (Err(error), Some((named, cache)))
                if error.kind() == ErrorKind::Stale || error.stage() == Stage::Credentials =>
            {
                template = cache.renew(named)?;
            }
            // Actions may have run, so do not start again.
            (Err(error), Some((named, cache))) if error.stage() == Stage::Exec => {
                return Err(cache.exec_failed(named, &template, error));
            }
            (outcome, _) => return outcome,
        }
    }
    spawn_template(command, &template, cached.as_ref(), wait)
}

/// Starts a command from one template: asks each launcher in turn.
fn spawn_template(command: &Command<'_>, template: &Template, cached: Cached<'_>, wait: Wait) -> Result<Child> {
    // If all launchers decline, clone3 has turned out not to work. Then try once more, with a plan
    // that does not use clone3.
    let mut declined = "";
    for _ in 0..2 {
        let mut attempt = Attempt::prepare(command, template, cached, wait)?;
        for launch in LAUNCHERS {
            match launch(&mut attempt) {
                Launch::Started(child) => return Ok(attempt.finish(child)),
                Launch::Failed(error) => return Err(error),
                Launch::NotMine(reason) => declined = reason,
            }
        }
    }
    Err(Error::new(Stage::Clone, Errno::EPERM, format!("spawn({:?}): {declined}", command.program_name())))
}

/// The cache from which a template came, and the template's key there.
type Cached<'a> = Option<&'a (CacheKey, &'a TemplateCache)>;

/// One start, as the launchers receive it.
struct Attempt<'a, 'fd> {
    command: &'a Command<'fd>,
    template: &'a Template,
    cached: Cached<'a>,
    wait: Wait,
    /// True if an action may block forever, and the caller does not wait for exec.
    may_block: bool,
    features: FeaturesOfThread,
    plan: Arc<Plan<'static>>,
    options: CloneOptions,
    /// The cgroup in which the kernel creates the child, with the index of its action.
    cgroup: Option<(u16, RawFd)>,
    /// True if the child must not share the parent's memory while the parent continues to run.
    must_wait: bool,
    /// The child's ends of its pipes. They stay open until the child has them.
    _child_ends: Vec<OwnedFd>,
    /// The caller's ends of the pipes, for the streams 0, 1 and 2.
    pipes: [Option<OwnedFd>; 3],
    /// The parked processes, or the reason why there is none. `None` if the command uses no parked processes.
    candidates: Option<std::result::Result<Box<dyn ParkedCandidates + 'a>, ColdReason>>,
    /// The reason why no parked process can become the program, if the command uses parked
    /// processes.
    cold: Option<ColdReason>,
}

impl<'a, 'fd> Attempt<'a, 'fd> {
    /// Asks for a parked process, and then lowers the command to a plan.
    fn prepare(
        command: &'a Command<'fd>,
        template: &'a Template,
        cached: Cached<'a>,
        wait: Wait,
    ) -> Result<Attempt<'a, 'fd>> {
        let features = features::of_calling_thread();
        // A child in another user namespace sees other owners of files, so the caller compares the program with its
        // template.
        let elsewhere = command.changes_user_namespace();
        let candidates = parked::candidates(command, template);
        let streams = candidates.as_ref().and_then(|candidates| candidates.as_ref().ok()).map(|one| one.streams());
        let lowered = Lowered::new(command, template, &features, cached.is_some() && !elsewhere, streams)?;
        template.check_in_caller()?;
        if elsewhere {
            template.revalidate()?;
        }
        let Lowered { plan, own_memory, must_wait, cgroup, child_ends, pipes } = lowered;
        let options = CloneOptions {
            share_memory: !own_memory,
            namespaces: command.namespace_flags(),
            cgroup: cgroup.map(|(_, dir)| dir),
            clone3: cgroup.is_some() || features.has_clone3(),
            ..CloneOptions::default()
        };
        let attempt = Attempt {
            command,
            template,
            cached,
            wait,
            may_block: wait != Wait::Exec && command.may_block_forever(),
            features,
            plan: Arc::new(plan),
            options,
            cgroup,
            must_wait,
            _child_ends: child_ends,
            pipes,
            candidates,
            cold: None,
        };
        if options.namespaces != 0 && !options.clone3 && !attempt.features.can_clone_namespaces() {
            return Err(attempt.failed(Errno::EPERM));
        }
        Ok(attempt)
    }

    /// Whether the caller continues before exec, and the child can use the caller's memory during that time.
    fn is_detachable(&self) -> bool {
        let goes_on = match self.wait {
            Wait::Exec => false,
            Wait::End => self.may_block,
            Wait::Start | Wait::Nothing => true,
        };
        goes_on && self.options.share_memory && !self.must_wait && self.plan.keep.is_some()
    }

    /// Adds the caller's ends of the pipes to the child and, if it was not started from a parked process, the reason.
    fn finish(self, child: Child) -> Child {
        let child = match self.cold {
            Some(reason) => child.cold(reason),
            None => child,
        };
        child.with_pipes(self.pipes)
    }

    /// Drops a template from the cache, because the child has found the template out of date.
    fn forget_template(&self) {
        if let Some((named, cache)) = self.cached {
            cache.drop_stale(named);
        }
    }

    /// The answer if the child failed. `failure` is `None` if a signal killed the child.
    fn failed_in_child(&self, failure: Option<Failure>) -> Launch {
        Launch::Failed(explain(&self.plan, self.template, self.command.program_name(), failure))
    }

    /// The error if no child could be created.
    fn failed(&self, errno: Errno) -> Error {
        Error::new(Stage::Clone, errno, format!("spawn({:?})", self.command.program_name()))
    }
}

/// Reaps a child that did not become the program. The child has ended, or ends soon. Its exit signal is 0, so the
/// host gets no SIGCHLD.
fn reap(pidfd: &OwnedFd) -> Option<Ended> {
    wait_pidfd(pidfd.as_raw_fd(), true).ok().flatten()
}
