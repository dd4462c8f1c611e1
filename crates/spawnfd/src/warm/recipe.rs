// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of a process to park, and whether it can be parked.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::confinement::Confinement;
use super::entry_point::EntryPoint;
use super::sandbox_command::SandboxCommand;
use super::{Kind, Mode, image};
use crate::child::Started;
use crate::cold_reason::ColdReason;
use crate::command::Command;
use crate::env::Env;
use crate::template::Template;

/// The description of a process to park.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) template: Template,
    /// True if the process executes other programs: it is the zygote of `spawnfd-parked`.
    pub(super) executes: bool,
    /// The leading arguments, which all starts have in common.
    pub(super) args: Vec<OsString>,
    pub(super) env: Env,
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) preload: Vec<OsString>,
    /// The script or module that all starts run.
    pub(super) entry_point: Option<EntryPoint>,
    /// The sandbox command that starts the process.
    pub(super) sandbox: Option<SandboxCommand>,
    pub(super) confinement: Confinement,
}

impl Recipe {
    /// Whether the parked process runs under SCHED_BATCH. A process with a seccomp filter does not, because the filter
    /// may refuse the return to SCHED_NORMAL.
    pub(super) fn runs_as_batch(&self) -> bool {
        self.mode == Mode::Reserve && !self.confinement.has_filter()
    }

    /// Whether the keeper replaces the parent at intervals, because all its children share its memory layout and
    /// secrets.
    pub(super) fn needs_parent_renewal(&self) -> bool {
        self.mode == Mode::Fork && !self.executes
    }

    /// The template of the program that a command names: the sandbox command if there is one, else the recipe's
    /// program.
    pub(super) fn command_template(&self) -> &Template {
        self.sandbox.as_ref().map_or(&self.template, |sandbox| &sandbox.template)
    }

    /// The arguments of a command without those of the sandbox command. `None` if the command has another sandbox
    /// command.
    pub(super) fn program_args<'a>(&self, args: &'a [OsString]) -> Option<&'a [OsString]> {
        args.strip_prefix(self.sandbox.as_ref().map_or(&[][..], |sandbox| &sandbox.args))
    }

    /// Checks that a process of this recipe can become the program of `command`. `args` are the program's arguments.
    ///
    /// # Errors
    /// The reason why not.
    pub(super) fn fits(&self, args: &[OsString], command: &Command<'_>) -> Result<(), ColdReason> {
        self.kind.fits(&self.args, args)?;
        if let Some(entry) = &self.entry_point {
            entry.fits(&args[self.args.len()..], || command.working_directory())?;
        }
        self.confinement.check_command(command)
    }

    /// Whether a process of this recipe serves ordinary starts: it has no entry point and no confinement.
    pub(super) fn is_plain(&self) -> bool {
        self.entry_point.is_none() && self.sandbox.is_none() && !self.confinement.is_any()
    }

    /// How the library reports starts from this process.
    pub(super) fn started(&self) -> Started {
        match (self.executes, self.mode == Mode::Fork) {
            (false, false) => Started::Reserve,
            (false, true) => Started::Fork,
            (true, false) => Started::Pool,
            (true, true) => Started::Zygote,
        }
    }

    /// The name of the program in [`WarmStats`](super::WarmStats).
    pub(super) fn name(&self) -> &OsStr {
        if self.executes { OsStr::new("any program") } else { self.template.name() }
    }
}

/// Checks that the keeper can park the process; the error is the reason why not.
pub(super) fn can_park(recipe: &Recipe) -> Result<(), ColdReason> {
    if !spawnfd_parked::HAS_IMAGES {
        return Err(ColdReason::Platform);
    }
    if recipe.kind == Kind::Node && !spawnfd_parked::HAS_NODE {
        return Err(ColdReason::NodeProcessor);
    }
    if recipe.executes {
        return Ok(());
    }
    if recipe.env.iter().any(|(name, value)| changes_loader(name, value)) {
        return Err(ColdReason::Loader);
    }
    if let Some(sandbox) = &recipe.sandbox {
        image::keeps_preload(&sandbox.template)?;
        // A forked child would not be a child of the sandbox command. The library recognises the
        // process to park by its executable, so the sandbox command must have another executable.
        if recipe.mode == Mode::Fork || sandbox.template.has_file(recipe.template.identity()) {
            return Err(ColdReason::Sandbox);
        }
    }
    image::can_park(&recipe.template)
}

/// Whether a variable changes how ld.so loads the parked program. The parked process has another
/// working directory and other standard streams than a cold start, and it preloads the library's
/// object.
fn changes_loader(name: &OsStr, value: &OsStr) -> bool {
    let (name, value) = (name.as_bytes(), value.as_bytes());
    if !name.starts_with(b"LD_") || value.is_empty() || name == b"LD_BIND_NOW" {
        return false;
    }
    let is_relative = |directory: &[u8]| !directory.starts_with(b"/");
    name != b"LD_LIBRARY_PATH" || value.split(|byte| b":;".contains(byte)).any(is_relative)
}
