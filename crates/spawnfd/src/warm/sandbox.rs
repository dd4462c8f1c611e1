// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are started through another one, which confines them: `bwrap … bash -c …`. The parked process sits inside its own sandbox,
//! and what is asked of it there is what the program in front would have handed on.

use std::ffi::{CStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use spawnfd_child::{Op, Plan, Step};
use spawnfd_sys::{ArgBlock, abi, call};

use crate::numbers::above_standard;
use crate::template::Template;

/// What stands before the program.
#[derive(Clone, Debug)]
pub(super) struct Prefix {
    pub(super) template: Template,
    /// Its own arguments, and the program by the name that it is given.
    pub(super) args: Vec<OsString>,
    /// Where it is started; otherwise in the host's working directory, which was this one.
    pub(super) directory: Option<Arc<CStr>>,
    here: Option<(u64, u64)>,
}

/// A plan as the program inside has to carry it out.
pub(super) struct Inside {
    pub(super) steps: Vec<Step>,
    /// What they name beyond the plan's sources.
    pub(super) opened: Vec<OwnedFd>,
    /// So many of the plan's arguments are not the program's.
    pub(super) skip: usize,
}

impl Prefix {
    pub(super) fn new(template: Template, args: Vec<OsString>, directory: Option<Arc<CStr>>) -> Prefix {
        Prefix { template, args, directory, here: working_directory() }
    }

    /// # Errors
    /// What nobody but the program in front could do.
    pub(super) fn inside(&self, plan: &Plan, parked: &ArgBlock) -> Result<Inside, &'static str> {
        let mut inside = Inside { steps: Vec::new(), opened: Vec::new(), skip: self.args.len() };
        let (mut session, mut directory) = (false, None);
        for Step { index, op } in &plan.steps {
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
                Op::OpenNull { to } => {
                    let flags = if *to == 0 { OFlags::RDONLY } else { OFlags::WRONLY };
                    let null =
                        openat(CWD, c"/dev/null", flags | OFlags::CLOEXEC, Mode::empty()).map_err(|_| "descriptors")?;
                    inside.opened.push(above_standard(null));
                    Op::Place { source: plan.sources.len() + inside.opened.len() - 1, to: *to }
                }
                Op::Place { .. } | Op::Dup2 { .. } | Op::Close { .. } | Op::Announce { .. } => op.clone(),
                _ => return Err("sandbox"),
            };
            inside.steps.push(Step { index: *index, op });
        }
        if !session {
            return Err("session");
        }
        let same_place = match (directory, &self.directory) {
            (Some(asked), Some(has)) => asked == has && has.to_bytes().starts_with(b"/"),
            (None, None) => self.here.is_some() && self.here == working_directory(),
            _ => false,
        };
        if !same_place {
            return Err("working directory");
        }
        // What it would make of another one, it alone knows.
        if !std::ptr::eq(parked, &raw const *plan.envp) && !parked.iter().eq(plan.envp.iter()) {
            return Err("environment");
        }
        Ok(inside)
    }

    /// The arguments of a command that are the program's; `None`: it is another command.
    pub(super) fn strip<'a>(&self, args: &'a [OsString]) -> Option<&'a [OsString]> {
        args.strip_prefix(self.args.as_slice())
    }
}

impl Inside {
    pub(super) fn sources(&self) -> impl Iterator<Item = RawFd> {
        self.opened.iter().map(AsRawFd::as_raw_fd)
    }
}

/// Device and inode.
fn working_directory() -> Option<(u64, u64)> {
    let found = call::statx(abi::AT_FDCWD, c"").ok()?;
    Some((u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor), found.stx_ino))
}

/// A directory as a command has it.
pub(super) fn directory(path: &std::path::Path) -> Option<Arc<CStr>> {
    std::ffi::CString::new(path.as_os_str().as_bytes()).ok().map(Into::into)
}
