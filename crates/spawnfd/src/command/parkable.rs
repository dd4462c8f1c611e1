// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of a command that decide whether a parked process can become its program.

use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use spawnfd_child::Op;
use spawnfd_sys::call::FilterInstruction;
use spawnfd_sys::{abi, call};

use super::{Command, Namespaces, NewNamespaces, Start, Stdio};
use crate::cold_reason::ColdReason;
use crate::env::Env;

impl Command<'_> {
    /// The arguments, without the program's name.
    pub(crate) fn arguments(&self) -> &[OsString] {
        &self.args
    }

    /// The program's environment.
    pub(crate) fn variables(&self) -> Env {
        self.env.clone().unwrap_or_else(Env::inherit)
    }

    /// The first attribute that only exec can apply, or that only a new process can have.
    pub(crate) fn needs_exec(&self) -> Option<ColdReason> {
        let NewNamespaces { kinds, user_map } = &self.namespaces;
        (*kinds != Namespaces::NONE || user_map.is_some()).then_some(ColdReason::Namespaces)
    }

    /// The program's working directory. The path may be relative to that of the calling thread.
    pub(crate) fn working_directory(&self) -> PathBuf {
        let as_path = |path: &CStr| PathBuf::from(OsStr::from_bytes(path.to_bytes()));
        let first = self.current_dir.as_deref().map_or(PathBuf::from("."), as_path);
        self.all_actions().fold(first, |directory, action| match action {
            Op::Chdir { path } => directory.join(as_path(path)),
            Op::Fchdir { dir } => {
                let link = format!("/proc/self/fd/{}", self.source_number(*dir));
                std::fs::read_link(&link).unwrap_or(link.into())
            }
            _ => directory,
        })
    }

    /// The seccomp filter; empty if there is none.
    pub(crate) fn filter(&self) -> &[FilterInstruction] {
        self.filter.as_deref().unwrap_or_default()
    }

    /// The Landlock ruleset; the first one if there are several.
    pub(crate) fn first_ruleset(&self) -> Option<i32> {
        self.all_actions().find_map(|action| match action {
            Op::Landlock { ruleset } => Some(self.source_number(*ruleset)),
            _ => None,
        })
    }

    /// Whether the command sets no_new_privs.
    pub(crate) fn gives_up_privileges(&self) -> bool {
        self.all_actions().any(|action| matches!(action, Op::NoNewPrivs))
    }
}

impl Start<'_> {
    /// Returns which of the caller's descriptors 0, 1 and 2 are open.
    ///
    /// # Errors
    /// The program inherits a stream that is close-on-exec in the caller. A parked process's copy of that stream
    /// would stay open across exec.
    pub(crate) fn open_streams(&self) -> std::result::Result<[bool; 3], ColdReason> {
        let mut streams = [false; 3];
        for (number, (stdio, open)) in (0..).zip(self.streams().zip(&mut streams)) {
            match call::descriptor_flags(number) {
                Ok(abi::FD_CLOEXEC) if matches!(stdio, Stdio::Inherit) => return Err(ColdReason::CloseOnExecStream),
                flags => *open = flags.is_ok(),
            }
        }
        Ok(streams)
    }

    /// The first attribute that only a child of the calling thread can have.
    pub(crate) fn needs_calling_thread(&self) -> Option<ColdReason> {
        let command = self.command;
        command
            .signals
            .parent_death
            .map(|_| ColdReason::ParentDeathSignal)
            .or(command.inherit_descriptors.then_some(ColdReason::InheritedDescriptors))
            .or(self.namespace().is_some().then_some(ColdReason::PidNamespace))
            .or(self.subreaper().is_some().then_some(ColdReason::Subreaper))
    }
}
