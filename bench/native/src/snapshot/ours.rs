// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's snapshots: cold, and from its cache.

use super::Source;
use crate::Result;

#[cfg(not(feature = "ours"))]
pub(super) fn sources() -> Result<Vec<Box<dyn Source>>> {
    Ok(Vec::new())
}

#[cfg(feature = "ours")]
pub(super) use built::sources;

#[cfg(feature = "ours")]
mod built {
    use spawnfd::snapshot::SnapshotCache;

    use super::*;
    use crate::snapshot::library::Library;
    use crate::snapshot::mapping::{Mapping, timed};

    /// As many entries as the seed's cache.
    const ENTRIES: usize = 64;

    /// A miss: an empty cache copies the library into a sealed memfd. Making the cache is not timed.
    struct Cold;

    impl Source for Cold {
        fn name(&self) -> &'static str {
            "cold"
        }

        fn map(&mut self, library: &Library) -> Result<(u64, Mapping)> {
            let cache = SnapshotCache::new(ENTRIES);
            timed(library.len(), || Ok(cache.get(library.path())?))
        }
    }

    /// A hit: the cache has the library.
    struct Hit(SnapshotCache);

    impl Source for Hit {
        fn name(&self) -> &'static str {
            "hit"
        }

        fn map(&mut self, library: &Library) -> Result<(u64, Mapping)> {
            timed(library.len(), || Ok(self.0.get(library.path())?))
        }
    }

    pub(in crate::snapshot) fn sources() -> Result<Vec<Box<dyn Source>>> {
        Ok(vec![
            Box::new(Cold),
            Box::new(Hit(SnapshotCache::new(ENTRIES))),
        ])
    }
}
