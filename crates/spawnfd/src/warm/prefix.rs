// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are started through another one, which confines them: `bwrap … bash -c …`. The parked process sits inside its own sandbox,
//! and what is asked of it there is what the program in front would have handed on.

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

/// The program in front was given something else.
const GIVEN: &str = "descriptors of the sandbox";

/// What stands before the program.
#[derive(Clone, Debug)]
pub(super) struct Prefix {
    pub(super) template: Template,
    /// What it is called.
    pub(super) name: OsString,
    /// What it is given.
    pub(super) given: Vec<Given>,
    /// Its own arguments, and the program by the name that it is given.
    pub(super) args: Vec<OsString>,
    /// Where it is started; otherwise in the host's working directory, which was this one.
    pub(super) directory: Option<Arc<CStr>>,
    here: Option<Place>,
    /// A program behind it has been seen to have what parks it.
    pub(super) hands_on: Arc<AtomicBool>,
}

/// A plan as the program inside has to carry it out.
pub(super) struct Inside {
    pub(super) steps: Vec<Step>,
    /// What they name beyond the plan's sources.
    pub(super) opened: Vec<OwnedFd>,
    /// So many of the plan's arguments are not the program's.
    pub(super) skip: usize,
    /// Sources that the program has as these numbers, if the one in front has left it what it was given there.
    pub(super) handed_on: Vec<(usize, RawFd)>,
}

impl Prefix {
    pub(super) fn new(template: Template, sandbox: &Sandbox, program: &OsStr, directory: Option<Arc<CStr>>) -> Prefix {
        let Sandbox { name, args, given, .. } = sandbox.clone();
        let args = args.into_iter().chain([program.to_owned()]).collect();
        Prefix { template, name, given, args, directory, here: Place::of(c""), hands_on: Arc::default() }
    }

    /// # Errors
    /// What nobody but the program in front could do.
    pub(super) fn enter(
        &self,
        inside: &mut Inside,
        plan: &Plan,
        parked: &ArgBlock,
        given: &[Referent],
    ) -> Result<(), &'static str> {
        inside.skip = self.args.len();
        let (mut session, mut directory) = (false, None);
        for Step { index, op } in std::mem::take(&mut inside.steps) {
            let op = match op {
                // It is in a session of its own.
                Op::Setsid => {
                    session = true;
                    continue;
                }
                Op::Chdir { path } if directory.is_none() => {
                    directory = Some(path);
                    continue;
                }
                // The one that is there outside.
                Op::OpenNull { to } => inside.null(plan, to)?,
                Op::Place { source, to } if self.gives(to) => {
                    inside.handed_on.push((source, to));
                    continue;
                }
                // A sandbox with other descriptors, in the same words.
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
            (Some(asked), Some(has)) => asked == *has && has.to_bytes().starts_with(b"/"),
            (None, None) => self.here.is_some() && self.here == Place::of(c""),
            _ => false,
        };
        if !same_place {
            return Err("working directory");
        }
        // What it would make of another one, it alone knows.
        if !std::ptr::eq(parked, &raw const *plan.envp) && !parked.iter().eq(plan.envp.iter()) {
            return Err("environment");
        }
        Ok(())
    }

    /// Its own arguments.
    pub(super) fn own_args(&self) -> &[OsString] {
        self.args.split_last().map_or(&[], |(_, own)| own)
    }

    /// Whether that number is one it is given.
    fn gives(&self, number: RawFd) -> bool {
        self.given.iter().any(|given| given.number == number)
    }
}

impl Inside {
    /// Where nothing is different yet.
    pub(super) fn of(plan: &Plan) -> Inside {
        Inside { steps: plan.steps.clone(), opened: Vec::new(), skip: 0, handed_on: Vec::new() }
    }

    /// What makes `to` the /dev/null that is there outside.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(super) fn null(&mut self, plan: &Plan, to: RawFd) -> Result<Op, &'static str> {
        let flags = if to == 0 { OFlags::RDONLY } else { OFlags::WRONLY };
        let null = openat(CWD, c"/dev/null", flags | OFlags::CLOEXEC, Mode::empty()).map_err(|_| "descriptors")?;
        self.opened.push(above_standard(null));
        Ok(Op::Place { source: plan.sources.len() + self.opened.len() - 1, to })
    }
}

/// A directory as a command has it.
pub(super) fn directory(path: &std::path::Path) -> error::Result<Arc<CStr>> {
    let path = path.as_os_str();
    let directory = CString::new(path.as_bytes()).map_err(|_| Error::invalid(format!("add: current_dir {path:?}")))?;
    Ok(directory.into())
}
