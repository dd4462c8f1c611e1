// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are started by a program in front, which confines them: `bwrap … bash -c …`. The parked process runs
//! inside its own sandbox. It performs the parts of a request that the program in front would pass on.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{CWD, Mode, OFlags, openat};
use spawnfd_child::{Op, Plan, Step};
use spawnfd_sys::ArgBlock;

use super::referent::Referent;
use crate::command;
use crate::error::{self, Error};
use crate::host::inherited::Place;
use crate::host::numbers::above_standard;
use crate::sandbox::{Given, Sandbox};
use crate::template::Template;

/// A reason for a cold start: the program in front got other descriptors.
const GIVEN: &str = "descriptors of the sandbox";

/// The program in front, and its arguments.
#[derive(Clone, Debug)]
pub(super) struct Prefix {
    pub(super) template: Template,
    /// Its argv[0].
    pub(super) name: OsString,
    /// The descriptors that it gets.
    pub(super) given: Vec<Given>,
    /// Its own arguments, followed by the name of the program to run.
    pub(super) args: Vec<OsString>,
    /// Its working directory. `None`: the host's, which was `here`.
    pub(super) directory: Option<Arc<CStr>>,
    here: Option<Place>,
    /// A probe has shown that the program in front passes on the object that parks a process.
    pub(super) hands_on: Arc<AtomicBool>,
}

/// The part of a plan that the parked process carries out inside the sandbox.
pub(super) struct Inside {
    pub(super) steps: Vec<Step<'static>>,
    /// Additional sources of the steps, after the plan's.
    pub(super) opened: Vec<OwnedFd>,
    /// The number of leading arguments of the plan that belong to the program in front.
    pub(super) skip: usize,
    /// Sources that the program has at these numbers, if the program in front has passed on the descriptors that it
    /// got there.
    pub(super) handed_on: Vec<(usize, RawFd)>,
}

impl Prefix {
    pub(super) fn new(template: Template, sandbox: &Sandbox, program: &OsStr, directory: Option<Arc<CStr>>) -> Prefix {
        let Sandbox { name, args, given, .. } = sandbox.clone();
        let args = args.into_iter().chain([program.to_owned()]).collect();
        Prefix { template, name, given, args, directory, here: Place::of(c""), hands_on: Arc::default() }
    }

    /// # Errors
    /// An action that only the program in front can perform.
    pub(super) fn enter(
        &self,
        inside: &mut Inside,
        plan: &Plan<'_>,
        parked: &ArgBlock<'_>,
        given: &[Referent],
    ) -> Result<(), &'static str> {
        inside.skip = self.args.len();
        let (mut session, mut directory) = (false, None);
        for Step { index, op } in std::mem::take(&mut inside.steps) {
            let op = match op {
                // The parked process leads a session already.
                Op::Setsid => {
                    session = true;
                    continue;
                }
                Op::Chdir { path } if directory.is_none() => {
                    directory = Some(path);
                    continue;
                }
                // The /dev/null outside the sandbox.
                Op::OpenNull { to } => inside.null(plan, to)?,
                Op::Place { source, to } if self.gives(to) => {
                    inside.handed_on.push((source, to));
                    continue;
                }
                // The command's sandbox has other descriptors, although its arguments are the same.
                Op::Place { .. } if index == command::GIVEN => return Err(GIVEN),
                Op::Dup2 { from, to } if self.gives(from) || self.gives(to) => return Err(GIVEN),
                Op::Close { fd } if self.gives(fd) => return Err(GIVEN),
                Op::Place { .. } | Op::Dup2 { .. } | Op::Close { .. } | Op::Announce { .. } => op,
                _ => return Err("sandbox"),
            };
            inside.steps.push(Step { index, op });
        }
        let same = |(own, given): (&Given, &Referent)| {
            let mut now = inside.handed_on.iter().filter(|(_, number)| *number == own.number);
            matches!((now.next(), now.next()), (Some((source, _)), None)
                if Referent::of(plan.sources[*source]).as_ref() == Some(given))
        };
        if !self.given.iter().zip(given).all(same) {
            return Err(GIVEN);
        }
        if !session {
            return Err("session");
        }
        let same_place = match (directory, &self.directory) {
            (Some(asked), Some(has)) => *asked == **has && has.to_bytes().starts_with(b"/"),
            (None, None) => self.here.is_some() && self.here == Place::of(c""),
            _ => false,
        };
        if !same_place {
            return Err("working directory");
        }
        // Only the program in front knows what it does with another environment.
        if !std::ptr::eq(parked, &raw const *plan.envp) && !parked.iter().eq(plan.envp.iter()) {
            return Err("environment");
        }
        Ok(())
    }

    /// The arguments of the program in front, without the name of the program to run.
    pub(super) fn own_args(&self) -> &[OsString] {
        self.args.split_last().map_or(&[], |(_, own)| own)
    }

    /// Whether the program in front gets a descriptor at this number.
    fn gives(&self, number: RawFd) -> bool {
        self.given.iter().any(|given| given.number == number)
    }
}

impl Inside {
    /// The plan's steps, unchanged.
    pub(super) fn of(plan: &Plan<'static>) -> Inside {
        Inside { steps: plan.steps.to_vec(), opened: Vec::new(), skip: 0, handed_on: Vec::new() }
    }

    /// A step that places the /dev/null outside the confinement at `to`.
    ///
    /// # Errors
    /// /dev/null cannot be opened.
    pub(super) fn null(&mut self, plan: &Plan<'_>, to: RawFd) -> Result<Op<'static>, &'static str> {
        let flags = if to == 0 { OFlags::RDONLY } else { OFlags::WRONLY };
        let null = openat(CWD, c"/dev/null", flags | OFlags::CLOEXEC, Mode::empty()).map_err(|_| "descriptors")?;
        self.opened.push(above_standard(null));
        Ok(Op::Place { source: plan.sources.len() + self.opened.len() - 1, to })
    }
}

/// Converts a directory to the form that commands use.
pub(super) fn directory(path: &std::path::Path) -> error::Result<Arc<CStr>> {
    let path = path.as_os_str();
    let directory = CString::new(path.as_bytes()).map_err(|_| Error::invalid(format!("add: current_dir {path:?}")))?;
    Ok(directory.into())
}
