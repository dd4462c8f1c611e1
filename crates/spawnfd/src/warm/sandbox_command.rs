// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sandbox commands, which confine the program that they start: `bwrap … bash -c …`. The keeper
//! runs the sandbox command, and the program parks inside the sandbox. At a start, the parked
//! program performs the parts of the plan that the sandbox command would leave to the program.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use spawnfd_child::{Op, Plan, Step};
use spawnfd_sys::{ArgBlock, abi, call};

use super::caller::FileId;
use crate::cold_reason::ColdReason;
use crate::command;
use crate::error::{self, Error};
use crate::host::descriptors::above_standard;
use crate::host::features;
use crate::sandbox::{Sandbox, SandboxDescriptor, position};
use crate::template::Template;

/// The sandbox command, and its arguments.
#[derive(Clone, Debug)]
pub(super) struct SandboxCommand {
    pub(super) template: Template,
    /// The argument `argv[0]` of the sandbox command.
    pub(super) name: OsString,
    /// The descriptors that the sandbox command gets.
    pub(super) given: Vec<SandboxDescriptor>,
    /// The sandbox command's own arguments, followed by the name of the program to run.
    pub(super) args: Vec<OsString>,
    /// The sandbox command's working directory. If it is `None`, the sandbox command inherited the
    /// host's working directory, which was `host_directory`.
    pub(super) directory: Option<Arc<CStr>>,
    host_directory: Option<FileId>,
    /// True if a probe has shown that the sandbox command passes LD_PRELOAD and the descriptors on to its program.
    pub(super) passes_preload: Arc<AtomicBool>,
}

/// The part of a plan that the parked process performs inside the confinement or sandbox.
pub(super) struct InnerPlan {
    pub(super) steps: Vec<Step<'static>>,
    /// Additional sources of the steps. Their indexes follow the plan's sources.
    pub(super) opened: Vec<OwnedFd>,
    /// The number of leading arguments of the plan that belong to the sandbox command.
    pub(super) skip: usize,
    /// Sources, and the descriptor numbers at which the sandbox command got them. If the sandbox
    /// command has passed a descriptor on, the source replaces the parked process's descriptor at
    /// that number.
    pub(super) handed_on: Vec<(usize, RawFd)>,
}

impl SandboxCommand {
    pub(super) fn new(
        template: Template,
        sandbox: &Sandbox,
        program: &OsStr,
        directory: Option<Arc<CStr>>,
    ) -> SandboxCommand {
        let Sandbox { name, args, descriptors: given, .. } = sandbox.clone();
        let args = args.into_iter().chain([program.to_owned()]).collect();
        SandboxCommand {
            template,
            name,
            given,
            args,
            directory,
            host_directory: FileId::of(c""),
            passes_preload: Arc::default(),
        }
    }

    /// # Errors
    /// An action that only the sandbox command can perform.
    pub(super) fn adapt_steps(
        &self,
        inner: &mut InnerPlan,
        plan: &Plan<'_>,
        parked: &ArgBlock<'_>,
        given: &[Referent],
    ) -> Result<(), ColdReason> {
        inner.skip = self.args.len();
        let (mut session, mut directory) = (false, None);
        for Step { index, op } in std::mem::take(&mut inner.steps) {
            let op = match op {
                // The parked process leads a session already, so it needs no setsid.
                Op::Setsid => {
                    session = true;
                    continue;
                }
                Op::Chdir { path } if directory.is_none() => {
                    directory = Some(path);
                    continue;
                }
                // Use /dev/null from outside the sandbox, as a cold start does.
                Op::OpenNull { to } => inner.place_null(plan, to)?,
                Op::Place { source, to } if self.passes_descriptor(to) => {
                    inner.handed_on.push((source, to));
                    continue;
                }
                // The command passes a descriptor that the parked process's sandbox command did not get.
                Op::Place { .. } if index == command::GIVEN => return Err(ColdReason::SandboxDescriptors),
                Op::Dup2 { from, to } if self.passes_descriptor(from) || self.passes_descriptor(to) => {
                    return Err(ColdReason::SandboxDescriptors);
                }
                Op::Close { fd } if self.passes_descriptor(fd) => return Err(ColdReason::SandboxDescriptors),
                Op::Place { .. } | Op::Dup2 { .. } | Op::Close { .. } | Op::Register { .. } => op,
                _ => return Err(ColdReason::Sandbox),
            };
            inner.steps.push(Step { index, op });
        }
        let same = |(own, given): (&SandboxDescriptor, &Referent)| {
            let mut now = inner.handed_on.iter().filter(|(_, number)| *number == own.number);
            matches!((now.next(), now.next()), (Some((source, _)), None)
                if Referent::of(plan.sources[*source]).as_ref() == Some(given))
        };
        if !self.given.iter().zip(given).all(same) {
            return Err(ColdReason::SandboxDescriptors);
        }
        if !session {
            return Err(ColdReason::Session);
        }
        let same_directory = match (directory, &self.directory) {
            (Some(asked), Some(has)) => *asked == **has && has.to_bytes().starts_with(b"/"),
            (None, None) => self.host_directory.is_some() && self.host_directory == FileId::of(c""),
            _ => false,
        };
        if !same_directory {
            return Err(ColdReason::WorkingDirectory);
        }
        // The library does not know what the sandbox command does with another environment.
        if !std::ptr::eq(parked, &raw const *plan.envp) && !parked.iter().eq(plan.envp.iter()) {
            return Err(ColdReason::Environment);
        }
        Ok(())
    }

    /// The arguments of the sandbox command, without the name of the program to run.
    pub(super) fn own_args(&self) -> &[OsString] {
        self.args.split_last().map_or(&[], |(_, own)| own)
    }

    /// Whether the sandbox command gets a descriptor at this number.
    fn passes_descriptor(&self, number: RawFd) -> bool {
        self.given.iter().any(|given| given.number == number)
    }
}

impl InnerPlan {
    /// The plan's steps, unchanged.
    pub(super) fn of(plan: &Plan<'static>) -> InnerPlan {
        InnerPlan { steps: plan.steps.to_vec(), opened: Vec::new(), skip: 0, handed_on: Vec::new() }
    }

    /// Opens /dev/null outside the confinement. Returns the step that places it at `to`.
    ///
    /// # Errors
    /// /dev/null cannot be opened.
    pub(super) fn place_null(&mut self, plan: &Plan<'_>, to: RawFd) -> Result<Op<'static>, ColdReason> {
        let flags = if to == 0 { OFlags::RDONLY } else { OFlags::WRONLY };
        let null =
            openat(CWD, c"/dev/null", flags | OFlags::CLOEXEC, Mode::empty()).map_err(|_| ColdReason::Descriptors)?;
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

/// The identity of the file behind a descriptor that a sandbox command gets, as in `bwrap --seccomp 10 …`: all differences
/// that the sandbox command can notice. It uses the file before its program parks. A start is warm if the command's own
/// descriptors refer to the same files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Referent {
    flags: i32,
    place: FileId,
    contents: Option<Contents>,
}

/// The length, the times of change, and the read position of a regular file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Contents {
    length: u64,
    changed: [(i64, u32); 2],
    position: Option<u64>,
}

impl Referent {
    /// Identifies the file behind a descriptor. Returns `None` if the descriptor is not open.
    pub(super) fn of(fd: RawFd) -> Option<Referent> {
        let found = call::statx(features::killed_calls(), fd, c"").ok()?;
        let time = |time: abi::statx_timestamp| (time.tv_sec, time.tv_nsec);
        let is_regular = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
        let flags = call::status_flags(fd).ok()?;
        Some(Referent {
            flags,
            place: FileId::from(&found),
            contents: is_regular.then(|| Contents {
                length: found.stx_size,
                changed: [time(found.stx_ctime), time(found.stx_mtime)],
                position: position(fd, flags, found.stx_mode),
            }),
        })
    }
}
