// SPDX-License-Identifier: MIT OR Apache-2.0
//! The snapshot benchmark (seed 004): the time to open and map a 662 KB library.

mod library;
mod mapping;
mod ours;

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::ensure;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open, sendfile};

use crate::Result;
use crate::definitions::Definitions;
use crate::samples::{Key, Random, Samples};
use library::Library;
use mapping::{Mapping, timed};

/// A method of mapping the library.
trait Source {
    fn name(&self) -> &'static str;
    /// Opens and maps the library. Returns the time in ns, and the mapping.
    fn map(&mut self, library: &Library) -> Result<(u64, Mapping)>;
}

/// The lower bound: open and mmap, with a known length.
struct Plain;

impl Source for Plain {
    fn name(&self) -> &'static str {
        "open"
    }

    fn map(&mut self, library: &Library) -> Result<(u64, Mapping)> {
        timed(library.len(), || Ok(open_library(library.path())?))
    }
}

/// The lower bound of a copy: open, memfd_create and sendfile, without seals or a cache.
struct Sendfile;

impl Source for Sendfile {
    fn name(&self) -> &'static str {
        "sendfile"
    }

    fn map(&mut self, library: &Library) -> Result<(u64, Mapping)> {
        timed(library.len(), || {
            let from = open_library(library.path())?;
            let to = memfd_create("copy", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            let mut left = library.len();
            while left > 0 {
                let sent = sendfile(&to, &from, None, left)?;
                ensure!(sent > 0, "the library file has become shorter");
                left -= sent;
            }
            Ok(to)
        })
    }
}

fn open_library(path: &Path) -> rustix::io::Result<OwnedFd> {
    open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Measures every method, in random order for each sample. Creates the library's file in `directory`.
///
/// # Errors
///
/// A method fails, or maps other bytes than the library's.
pub fn run(definitions: &Definitions, directory: &Path, quick: bool) -> Result<Samples> {
    let def = &definitions.snapshot;
    let library = Library::create(directory, def.bytes)?;
    let mut sources: Vec<Box<dyn Source>> = vec![Box::new(Plain), Box::new(Sendfile)];
    sources.extend(ours::sources());
    let mut samples = Samples::default();
    let mut random = Random::new(0x51ab);
    for source in &mut sources {
        // This first call fills the page cache and the snapshot cache. It is not counted.
        source.map(&library)?;
    }
    for _ in 0..def.rounds.get(quick) {
        let mut taken = vec![Vec::new(); sources.len()];
        for _ in 0..def.per_round.get(quick) {
            let mut order: Vec<usize> = (0..sources.len()).collect();
            random.shuffle(&mut order);
            for i in order {
                let (ns, mapping) = sources[i].map(&library)?;
                ensure!(mapping.bytes() == library.content(), "{}: other bytes than the library's", sources[i].name());
                taken[i].push(ns as f64 / 1000.0);
            }
        }
        for (source, round) in sources.iter().zip(taken) {
            samples.push(key(source.name()), round);
        }
    }
    Ok(samples)
}

fn key(method: &str) -> Key {
    Key {
        suite: "snapshot".to_owned(),
        filter: "none".to_owned(),
        parent: "none".to_owned(),
        program: "library".to_owned(),
        search: false,
        method: method.to_owned(),
    }
}
