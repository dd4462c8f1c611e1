// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's snapshots: cold, and from the cache.

use std::os::fd::OwnedFd;

use anyhow::ensure;
use spawnfd::snapshot::{Kind, SnapshotCache};

use super::library::Library;
use super::mapping::{Mapping, timed};
use super::{Source, open_library};
use crate::Result;

/// The size of the cache, as in seed 004.
const ENTRIES: usize = 64;

/// A cache miss: an empty cache opens the library and copies it to a sealed memfd. Creating the cache is not timed.
struct Cold;

impl Source for Cold {
    fn name(&self) -> &'static str {
        "cold"
    }

    fn map(&mut self, library: &Library) -> Result<(u64, Mapping)> {
        let cache = SnapshotCache::new(ENTRIES);
        timed(library.len(), || {
            let snapshot = cache.open(library.path())?;
            ensure!(
                snapshot.kind() == Kind::Memfd,
                "the snapshot is a reflink: choose an --out on a file system without reflinks"
            );
            Ok(snapshot)
        })
    }
}

/// A cache hit for a caller that has the library open: fstat and dup.
#[derive(Default)]
struct Hit {
    cache: SnapshotCache,
    file: Option<OwnedFd>,
}

impl Source for Hit {
    fn name(&self) -> &'static str {
        "hit"
    }

    fn map(&mut self, library: &Library) -> Result<(u64, Mapping)> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => empty.insert(open_library(library.path())?),
        };
        timed(library.len(), || Ok(self.cache.get(file)?))
    }
}

/// A cache hit for a caller that has a path: open, fstat, dup, close.
#[derive(Default)]
struct HitByPath(SnapshotCache);

impl Source for HitByPath {
    fn name(&self) -> &'static str {
        "hit_by_path"
    }

    fn map(&mut self, library: &Library) -> Result<(u64, Mapping)> {
        timed(library.len(), || Ok(self.0.open(library.path())?))
    }
}

pub(super) fn sources() -> Vec<Box<dyn Source>> {
    vec![Box::new(Cold), Box::<Hit>::default(), Box::<HitByPath>::default()]
}
