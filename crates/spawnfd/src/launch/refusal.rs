// SPDX-License-Identifier: MIT OR Apache-2.0
//! The meaning of each refusal, and the attempt that follows it.
//!
//! | refusal, before any action of the caller has run | learned for later starts | next |
//! |---|---|---|
//! | the launcher cannot make this start | | next launcher |
//! | clone: ENOSYS or EPERM, and a probe shows that clone3 is missing | no clone3 | clone; with a cgroup a new plan |
//! | clone: EINVAL, in shared memory | | memory of its own |
//! | clone: another errno | | error |
//! | table: the strategy is not available for these sources | | next strategy |
//! | table: EBADF from `TrimTable` or `PidfdGetfd` | | error: a source is closed |
//! | table: ENOTSOCK from `PidfdGetfd` | | once more, with a new pidfd |
//! | table: EACCES from `PidfdGetfd`; EPERM, ENOSYS, EINVAL or SIGSYS | no such strategy | next strategy |
//! | table: another errno | | next strategy |
//! | error: the template of a cache is stale, or of other credentials | | a new template, 8 times |
//! | error: EMFILE | | once more, after the cache has dropped its other templates |
//! | error: EAGAIN from clone | | once more without helpers, after the idle ones have ended |
//!
//! SIGSYS is the signal by which a seccomp filter kills the child.

use spawnfd_sys::Errno;

use super::attempt::{Refusal, Wait};
use super::outcome::{closed_source, not_joined};
use super::prepared::{Cached, Prepared, no_child};
use super::tables::{Meaning, renew_pidfd};
use crate::child::Child;
use crate::command::{Command, Start};
use crate::error::{Error, ErrorKind, Result, Stage};
use crate::template::Template;

/// The number of times that a start renews its cached template, after the file disappeared or the
/// caller's credentials changed. If another file has replaced the old one, the child itself finds
/// the new file by a search.
const RENEWALS: usize = 8;

/// The attempts of one start.
pub(super) struct Attempts<'p, 'a> {
    prepare: &'p mut dyn FnMut(bool) -> Result<Start<'a>>,
    wait: Wait,
    start: Option<Start<'a>>,
    found: Option<(Template, Cached<'a>)>,
    prepared: Option<Prepared<'a>>,
    renewals: usize,
    /// True after the cache has dropped its other templates.
    has_dropped_templates: bool,
    /// The error of the attempts with helpers.
    with_helpers: Option<Error>,
}

impl<'p, 'a> Attempts<'p, 'a> {
    pub(super) fn new(prepare: &'p mut dyn FnMut(bool) -> Result<Start<'a>>, wait: Wait) -> Attempts<'p, 'a> {
        Attempts {
            prepare,
            wait,
            start: None,
            found: None,
            prepared: None,
            renewals: 0,
            has_dropped_templates: false,
            with_helpers: None,
        }
    }

    /// Makes an attempt. Returns `None` if it has failed and another one follows.
    ///
    /// # Errors
    /// No other attempt follows.
    pub(super) fn next(&mut self) -> Result<Option<Child>> {
        match self.attempt() {
            Ok(started) => Ok(started),
            Err(error) => {
                self.prepared = None;
                self.after_error(error)?;
                Ok(None)
            }
        }
    }

    /// Prepares what the attempt needs, and makes it. If the attempt is refused, chooses the next one with this plan.
    ///
    /// # Errors
    /// The cause concerns every attempt with this plan.
    fn attempt(&mut self) -> Result<Option<Child>> {
        let start = match &mut self.start {
            Some(start) => start,
            none => none.insert((self.prepare)(self.with_helpers.is_none())?),
        };
        let (template, cached) = match &mut self.found {
            Some(found) => found,
            none => none.insert(start.command.template()?),
        };
        let prepared = match &mut self.prepared {
            Some(prepared) => prepared,
            none => none.insert(Prepared::new(start, template, cached.is_some(), self.wait)?),
        };
        let refusal = match prepared.make(start, template, cached) {
            Ok(started) => return started.map(Some),
            Err(refusal) => refusal,
        };
        if !prepared.after(refusal, start)? {
            self.prepared = None;
        }
        Ok(None)
    }

    /// Changes what an error concerns, for attempts with a new plan.
    ///
    /// # Errors
    /// No other plan helps.
    fn after_error(&mut self, mut error: Error) -> Result<()> {
        if error.is_without_processes() && self.with_helpers.is_none() {
            // A helper may have taken the last process that the caller may have.
            (self.start, self.with_helpers) = (None, Some(error));
            return Ok(());
        }
        let is_outdated = error.kind() == ErrorKind::Stale || error.stage() == Stage::Credentials;
        if is_outdated
            && self.renewals < RENEWALS
            && let Some((template, Some((named, cache)))) = &mut self.found
        {
            self.renewals += 1;
            match cache.renew(named) {
                Ok(renewed) => {
                    *template = renewed;
                    return Ok(());
                }
                Err(failed) => error = failed,
            }
        }
        // After an action's EMFILE, which concerns the child's own table, and at exec, actions have run.
        if error.errno() == Errno::EMFILE
            && error.action().is_none()
            && error.stage() != Stage::Exec
            && !self.has_dropped_templates
            && self.start.as_ref().is_some_and(|start| start.command.drops_other_templates())
        {
            self.has_dropped_templates = true;
            return Ok(());
        }
        if let (Stage::Exec, Some((template, Some((named, cache))))) = (error.stage(), &self.found) {
            error = cache.exec_failed(named, template, error);
        }
        Err(self.with_helpers.take().unwrap_or(error))
    }
}

impl Prepared<'_> {
    /// Chooses the attempt that follows a refusal. Returns false if a new plan is needed.
    ///
    /// # Errors
    /// No attempt follows.
    fn after(&mut self, refusal: Refusal, start: &Start<'_>) -> Result<bool> {
        let name = start.command.program_name();
        let (has_next, errno) = match refusal {
            Refusal::ClosedSource => return Err(closed_source(&self.plan, name)),
            Refusal::Clone(errno) => return self.after_clone(errno, start),
            // The last launcher declines nothing.
            Refusal::NotMine => (self.skip_launcher(start), Errno::EPERM),
            Refusal::NoTable => (self.advance(start), Errno::EPERM),
            Refusal::Table(errno) => match self.strategy.meaning(errno) {
                Meaning::ClosedSource => return Err(closed_source(&self.plan, name)),
                Meaning::StalePidfd if !self.has_renewed_pidfd => {
                    renew_pidfd();
                    self.has_renewed_pidfd = true;
                    (true, errno)
                }
                Meaning::Unavailable => {
                    self.strategy.learn_unavailable(&self.features, &self.plan.sources);
                    (self.advance(start), errno)
                }
                Meaning::StalePidfd | Meaning::Failed => (self.advance(start), errno),
            },
        };
        if has_next { Ok(true) } else { Err(no_child(start, errno)) }
    }

    fn after_clone(&mut self, errno: Errno, start: &Start<'_>) -> Result<bool> {
        let options = &mut self.options;
        // EPERM may concern the namespaces, or it may be a seccomp filter's answer to clone3 itself.
        if options.clone3 && matches!(errno, Errno::ENOSYS | Errno::EPERM) && !self.features.probe_clone3() {
            options.clone3 = false;
            if options.cgroup.is_some() {
                // The child itself has to join the cgroup.
                return Ok(false);
            }
            if options.namespaces == 0 || self.features.can_clone_namespaces() {
                return Ok(true);
            }
        }
        // Before Linux 6.3 a child in another time namespace cannot share the caller's memory (kernel/nsproxy.c,
        // copy_namespaces).
        if options.share_memory && errno == Errno::EINVAL {
            options.share_memory = false;
            return Ok(true);
        }
        Err(match self.cgroup {
            Some((index, dir)) if matches!(errno, Errno::EBADF | Errno::EACCES | Errno::EBUSY | Errno::EOPNOTSUPP) => {
                not_joined(index, dir, errno)
            }
            _ => no_child(start, errno),
        })
    }
}

/// How to repeat a start whose failure the library has learned after the start had returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Again {
    /// Use no parked process.
    Cold,
    /// As before: another descriptor table strategy, or a new template, will be used.
    AsBefore,
}

/// Returns how to repeat a start that has failed with this error, if no action has run and another attempt may
/// succeed.
///
/// # Errors
/// The executable of the command is not there any more.
pub(crate) fn again(command: &Command<'_>, error: &Error) -> Result<Option<Again>> {
    if error.is_unstarted() {
        return Ok(Some(Again::Cold));
    }
    let may_succeed = error.is_without_descriptors() || error.kind() == ErrorKind::Stale && command.is_named();
    if may_succeed {
        command.renew()?;
    }
    Ok(may_succeed.then_some(Again::AsBefore))
}
