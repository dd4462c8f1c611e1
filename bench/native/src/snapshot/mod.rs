// SPDX-License-Identifier: MIT OR Apache-2.0
//! The snapshot benchmark (seed 004): the time to open and map a 662 KB library.

mod library;
mod mapping;
mod ours;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open, sendfile};
use serde::Deserialize;

use crate::Result;
use crate::random::Random;
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

/// The size of a run, and where it creates the library's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotSpec {
    directory: PathBuf,
    bytes: usize,
    rounds: usize,
    per_round: usize,
}

/// Measures every method, in random order for each sample. Prints the ns of each method and round as JSON.
///
/// # Errors
///
/// A method fails, or maps other bytes than the library's.
pub fn run(spec: &str) -> Result<()> {
    let spec: SnapshotSpec = serde_json::from_str(spec)?;
    let library = Library::create(&spec.directory, spec.bytes)?;
    let mut sources: Vec<Box<dyn Source>> = vec![Box::new(Plain), Box::new(Sendfile)];
    sources.extend(ours::sources());
    let mut samples: BTreeMap<&str, Vec<Vec<u64>>> = BTreeMap::new();
    let mut random = Random::new(0x51ab);
    for source in &mut sources {
        // This first call fills the page cache and the snapshot cache. It is not counted.
        source.map(&library)?;
    }
    for _ in 0..spec.rounds {
        let mut taken = vec![Vec::new(); sources.len()];
        for _ in 0..spec.per_round {
            let mut order: Vec<usize> = (0..sources.len()).collect();
            random.shuffle(&mut order);
            for i in order {
                let (ns, mapping) = sources[i].map(&library)?;
                ensure!(mapping.bytes() == library.content(), "{}: other bytes than the library's", sources[i].name());
                taken[i].push(ns);
            }
        }
        for (source, round) in sources.iter().zip(taken) {
            samples.entry(source.name()).or_default().push(round);
        }
    }
    println!("{}", serde_json::to_string(&samples)?);
    Ok(())
}
