// SPDX-License-Identifier: MIT OR Apache-2.0
//! The description of a process to park, and whether it can be parked.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::confinement::Confinement;
use super::prefix::Prefix;
use super::{Kind, Mode, image};
use crate::child::Started;
use crate::env::Env;
use crate::template::Template;

/// The description of a process to park.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) template: Template,
    /// The process executes other programs: the zygote of `spawnfd-parked`.
    pub(super) executes: bool,
    /// The first arguments, which all starts have in common.
    pub(super) args: Vec<OsString>,
    pub(super) env: Env,
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) preload: Vec<OsString>,
    /// The program in front that starts the process.
    pub(super) prefix: Option<Prefix>,
    pub(super) confinement: Confinement,
}

impl Recipe {
    /// Whether the parked process runs under SCHED_BATCH. (A seccomp filter may refuse the return to SCHED_NORMAL.)
    pub(super) fn stands_back(&self) -> bool {
        self.mode == Mode::Reserve && !self.confinement.has_filter()
    }

    /// Whether the programs share a memory layout and secrets, which a new parent renews at intervals.
    pub(super) fn grows_old(&self) -> bool {
        self.mode == Mode::Fork && !self.executes
    }

    /// The template that a command names: that of the program in front, or else the recipe's.
    pub(super) fn outer(&self) -> &Template {
        self.prefix.as_ref().map_or(&self.template, |prefix| &prefix.template)
    }

    /// The arguments of a command without those of the program in front; `None`: the command runs another program in
    /// front.
    pub(super) fn strip<'a>(&self, args: &'a [OsString]) -> Option<&'a [OsString]> {
        args.strip_prefix(self.prefix.as_ref().map_or(&[][..], |prefix| &prefix.args))
    }

    /// How the library reports starts from this process.
    pub(super) fn started(&self) -> Started {
        match (self.executes, self.mode) {
            (false, Mode::Reserve) => Started::Reserve,
            (false, Mode::Fork) => Started::Fork,
            (true, Mode::Reserve) => Started::Pool,
            (true, Mode::Fork) => Started::Zygote,
        }
    }

    /// The name in the counters.
    pub(super) fn name(&self) -> &OsStr {
        if self.executes { OsStr::new("any program") } else { self.template.name() }
    }
}

/// Checks whether the process can be parked; the error is the reason.
pub(super) fn can_park(recipe: &Recipe) -> Result<(), &'static str> {
    if recipe.executes {
        return Ok(());
    }
    if recipe.env.iter().any(|(name, value)| tells_the_loader(name, value)) {
        return Err("loader");
    }
    if let Some(prefix) = &recipe.prefix {
        image::hands_on(&prefix.template)?;
        // A forked child would not be a child of the program in front. And the library recognises the process to park
        // by its file.
        if recipe.mode == Mode::Fork || prefix.template.has_file(recipe.template.identity()) {
            return Err("sandbox");
        }
    }
    image::can_park(&recipe.template)
}

/// Whether a variable makes ld.so act differently in the parked process, which runs in another directory, without its
/// streams, and with a preloaded object of the library.
fn tells_the_loader(name: &OsStr, value: &OsStr) -> bool {
    let (name, value) = (name.as_bytes(), value.as_bytes());
    if !name.starts_with(b"LD_") || value.is_empty() || name == b"LD_BIND_NOW" {
        return false;
    }
    let is_relative = |place: &[u8]| !place.starts_with(b"/");
    name != b"LD_LIBRARY_PATH" || value.split(|byte| b":;".contains(byte)).any(is_relative)
}
