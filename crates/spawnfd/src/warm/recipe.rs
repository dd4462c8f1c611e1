// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is to be parked, and whether it can be.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::confinement::Confinement;
use super::prefix::Prefix;
use super::{Kind, Mode, image};
use crate::child::Started;
use crate::env::Env;
use crate::template::Template;

/// What is to be parked.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub(super) template: Template,
    /// It executes other programs: the zygote of `spawnfd-parked`.
    pub(super) executes: bool,
    /// Arguments before those that differ from one start to the next.
    pub(super) args: Vec<OsString>,
    pub(super) env: Env,
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) preload: Vec<OsString>,
    /// It is started through another program.
    pub(super) prefix: Option<Prefix>,
    pub(super) confinement: Confinement,
}

impl Recipe {
    /// Whether what is parked leaves the processor to others. (A filter may refuse the way back.)
    pub(super) fn stands_back(&self) -> bool {
        self.mode == Mode::Reserve && !self.confinement.has_filter()
    }

    /// Whether its programs have something in common that is better drawn anew now and then.
    pub(super) fn grows_old(&self) -> bool {
        self.mode == Mode::Fork && !self.executes
    }

    /// The template that a command names: that of the program in front, or else the recipe's.
    pub(super) fn outer(&self) -> &Template {
        self.prefix.as_ref().map_or(&self.template, |prefix| &prefix.template)
    }

    /// The program's own arguments of a command; `None`: the command runs something else in front.
    pub(super) fn strip<'a>(&self, args: &'a [OsString]) -> Option<&'a [OsString]> {
        args.strip_prefix(self.prefix.as_ref().map_or(&[][..], |prefix| &prefix.args))
    }

    /// How its programs are started.
    pub(super) fn started(&self) -> Started {
        match (self.executes, self.mode) {
            (false, Mode::Reserve) => Started::Reserve,
            (false, Mode::Fork) => Started::Fork,
            (true, Mode::Reserve) => Started::Pool,
            (true, Mode::Fork) => Started::Zygote,
        }
    }

    /// What it is called in counts.
    pub(super) fn name(&self) -> &OsStr {
        if self.executes { OsStr::new("any program") } else { self.template.name() }
    }
}

/// Whether it can be parked at all; else why not.
pub(super) fn can_park(recipe: &Recipe) -> Result<(), &'static str> {
    if recipe.executes {
        return Ok(());
    }
    if recipe.env.iter().any(|(name, value)| tells_the_loader(name, value)) {
        return Err("loader");
    }
    if let Some(prefix) = &recipe.prefix {
        image::hands_on(&prefix.template)?;
        // A fork would not be a child of the one in front; and what parks is known by its file.
        if recipe.mode == Mode::Fork || prefix.template.has_file(recipe.template.identity()) {
            return Err("sandbox");
        }
    }
    image::can_park(&recipe.template)
}

/// Whether ld.so does something for a variable that it does not do for what is parked: in another directory, without its streams, with an
/// object of ours preloaded.
fn tells_the_loader(name: &OsStr, value: &OsStr) -> bool {
    let (name, value) = (name.as_bytes(), value.as_bytes());
    if !name.starts_with(b"LD_") || value.is_empty() || name == b"LD_BIND_NOW" {
        return false;
    }
    let is_relative = |place: &[u8]| !place.starts_with(b"/");
    name != b"LD_LIBRARY_PATH" || value.split(|byte| b":;".contains(byte)).any(is_relative)
}
