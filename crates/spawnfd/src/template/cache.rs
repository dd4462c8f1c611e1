// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cache that makes a template on demand, and makes it again when the template is stale.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use super::search::start_of_relative_parts;
use super::{Template, search_path};
use crate::error::{Error, ErrorKind, Result};
use crate::host::descriptors::descriptor_limit;
use crate::host::per_process::PerProcess;

/// The number of attempts to record a file that changes during the recording.
const MAX_TRIES: usize = 16;

/// The cache holds at most RLIMIT_NOFILE / `DESCRIPTOR_SHARE` templates. The other descriptors are for the application.
const DESCRIPTOR_SHARE: usize = 8;

/// A bounded set of templates by name. The cache drops the least recently used template first.
///
/// Commands made from a cache do not fail as stale: if an executable has changed, the cache makes its template
/// again. Cloning shares the cache.
///
/// A template keeps its files open, so their file system stays busy until the cache drops the template or
/// [`clear`](TemplateCache::clear) is called. A deleted file occupies disk space until the next cache miss.
///
/// # Examples
/// ```
/// let tools = spawnfd::template::TemplateCache::new(64);
/// assert!(tools.command("true").run()?.ok());
/// assert!(tools.command("true").run()?.ok());
/// assert_eq!((tools.stats().misses, tools.stats().hits), (1, 1));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TemplateCache(CacheHandle);

#[derive(Clone, Debug)]
enum CacheHandle {
    Global,
    Own(Arc<SharedCache>),
}

/// The process-wide cache. Its initialization is static: if another thread forked during a lazy initialization, the
/// forked process would have a cache in an invalid state.
static GLOBAL: SharedCache = SharedCache {
    capacity: TemplateCache::DEFAULT_CAPACITY,
    state: PerProcess::for_reuse(CacheState {
        entries: BTreeMap::new(),
        clock: 0,
        stats: CacheStats { hits: 0, misses: 0, renewed: 0, evicted: 0, entries: 0 },
    }),
};

#[derive(Debug)]
struct SharedCache {
    capacity: usize,
    state: PerProcess<CacheState>,
}

#[derive(Debug, Default)]
struct CacheState {
    entries: BTreeMap<CacheKey, CacheEntry>,
    clock: u64,
    stats: CacheStats,
}

impl CacheState {
    /// Drops the templates for which `keep` is false. Returns the number of dropped templates.
    fn retain(&mut self, keep: impl Fn(&CacheKey, &Template) -> bool) -> usize {
        let before = self.entries.len();
        self.entries.retain(|key, entry| keep(key, &entry.template));
        let dropped = before - self.entries.len();
        self.stats.evicted += dropped as u64;
        dropped
    }
}

#[derive(Debug)]
struct CacheEntry {
    template: Template,
    used: u64,
}

/// The counters of a cache.
///
/// # Examples
/// ```
/// let tools = spawnfd::template::TemplateCache::new(1);
/// for program in ["true", "false"] {
///     tools.command(program).run()?;
/// }
/// let stats = tools.stats();
/// assert_eq!((stats.misses, stats.evicted, stats.entries), (2, 1, 1));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "the counters are the only effect of the call"]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CacheStats {
    /// The number of lookups that found a template in the cache.
    pub hits: u64,
    /// The number of templates made because the cache did not have them.
    pub misses: u64,
    /// The number of templates made again because they were stale.
    pub renewed: u64,
    /// The number of templates dropped because the cache was full, or because the file was deleted.
    pub evicted: u64,
    /// The number of templates in the cache now.
    pub entries: usize,
}

/// A program by name or absolute path, the PATH to search for a name, and the directory at which the relative parts
/// of this PATH start, if there are any.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CacheKey {
    program: OsString,
    path: Option<OsString>,
    directory: Option<PathBuf>,
}

impl CacheKey {
    /// Creates a key. It uses `path` only for a name without a slash. Relative parts of `path` start at `directory`,
    /// or at this process's directory.
    pub(crate) fn new(program: &OsStr, path: Option<&OsStr>, directory: Option<&Path>) -> CacheKey {
        use std::os::unix::ffi::OsStrExt;
        let plain = !program.as_bytes().contains(&b'/');
        let path = plain.then(|| path.map_or_else(search_path, OsStr::to_owned));
        let directory = path.as_deref().and_then(|path| start_of_relative_parts(path, directory));
        CacheKey { program: program.to_owned(), path, directory }
    }

    /// Makes the template. Retries if the file changes while it is recorded.
    fn template(&self) -> Result<Template> {
        let once = || match &self.path {
            Some(path) => Template::search_from(&self.program, path, self.directory.as_deref()),
            None => Template::open(&self.program),
        };
        let is_stale = |made: &Result<Template>| made.as_ref().is_err_and(|error| error.kind() == ErrorKind::Stale);
        (0..MAX_TRIES).map(|_| once()).find(|made| !is_stale(made)).unwrap_or_else(once)
    }
}

impl TemplateCache {
    /// The number of templates that the process-wide cache can hold.
    pub const DEFAULT_CAPACITY: usize = 64;

    /// Makes an empty cache for `capacity` templates (at least one).
    ///
    /// Each template keeps one descriptor open, a script's template two. If an eighth of RLIMIT_NOFILE is less than
    /// `capacity`, the cache is limited to that eighth. If a start finds no free descriptor, the cache drops all
    /// templates except the template of the start.
    pub fn new(capacity: usize) -> TemplateCache {
        let state = PerProcess::for_reuse(CacheState::default());
        TemplateCache(CacheHandle::Own(Arc::new(SharedCache { capacity: capacity.max(1), state })))
    }

    /// The process-wide cache, which [`Command::new`](crate::Command::new) uses.
    pub fn global() -> &'static TemplateCache {
        static HANDLE: TemplateCache = TemplateCache(CacheHandle::Global);
        &HANDLE
    }

    /// The template for a program: an absolute path, or a name searched in `path` (by default this process's PATH).
    ///
    /// # Errors
    /// The errors of [`Template::open`] and [`Template::search`]. Failures are not cached.
    pub fn get(&self, program: impl AsRef<OsStr>, path: Option<&OsStr>) -> Result<Template> {
        self.find(&CacheKey::new(program.as_ref(), path, None))
    }

    pub(crate) fn find(&self, key: &CacheKey) -> Result<Template> {
        let mut state = self.lock();
        state.clock += 1;
        let now = state.clock;
        if let Some(entry) = state.entries.get_mut(key) {
            entry.used = now;
            let template = entry.template.clone();
            state.stats.hits += 1;
            return Ok(template);
        }
        state.stats.misses += 1;
        state.retain(|_, template| !template.is_deleted());
        drop(state);
        self.insert(key, key.template()?)
    }

    /// Makes the template again after a spawn found it stale.
    pub(crate) fn renew(&self, key: &CacheKey) -> Result<Template> {
        let mut state = self.lock();
        state.entries.remove(key);
        state.stats.renewed += 1;
        drop(state);
        self.insert(key, key.template()?)
    }

    /// Returns the error of a start with this template whose exec failed with `error`. Renews the template if it is
    /// stale.
    ///
    /// The kernel reports a missing interpreter of a replaced script as a failure of execve(script). The new template
    /// names the interpreter.
    pub(crate) fn exec_failed(&self, key: &CacheKey, template: &Template, error: Error) -> Error {
        if !template.check().is_err_and(|check| check.kind() == ErrorKind::Stale) {
            return error;
        }
        // Without free descriptors, the library learns nothing about the new file.
        self.renew(key).err().filter(|renewal| renewal.kind() != ErrorKind::Exhausted).unwrap_or(error)
    }

    /// Drops a template that a child found out of date. The next `find` makes it again.
    pub(crate) fn drop_stale(&self, key: &CacheKey) {
        let mut state = self.lock();
        if state.entries.remove(key).is_some() {
            state.stats.renewed += 1;
        }
    }

    fn insert(&self, key: &CacheKey, template: Template) -> Result<Template> {
        let mut state = self.lock();
        let used = state.clock;
        let max_entries = descriptor_limit().map_or(usize::MAX, |limit| limit as usize / DESCRIPTOR_SHARE).max(1);
        while state.entries.len() >= self.shared().capacity.min(max_entries) && !state.entries.contains_key(key) {
            let oldest = state.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                state.entries.remove(&oldest);
                state.stats.evicted += 1;
            }
        }
        state.entries.insert(key.clone(), CacheEntry { template: template.clone(), used });
        Ok(template)
    }

    /// Drops all templates except the template of `key`, because descriptors are scarce. Returns whether the cache
    /// dropped any template.
    pub(crate) fn drop_others(&self, key: &CacheKey) -> bool {
        self.lock().retain(|other, _| other == key) > 0
    }

    /// Drops all templates. Spawns in progress keep their templates.
    pub fn clear(&self) {
        self.lock().entries.clear();
    }

    /// The counters, and the number of templates in the cache.
    pub fn stats(&self) -> CacheStats {
        let state = self.lock();
        CacheStats { entries: state.entries.len(), ..state.stats }
    }

    fn shared(&self) -> &SharedCache {
        match &self.0 {
            CacheHandle::Global => &GLOBAL,
            CacheHandle::Own(shared) => shared,
        }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.shared().state.lock()
    }
}

impl Default for TemplateCache {
    fn default() -> TemplateCache {
        TemplateCache::new(TemplateCache::DEFAULT_CAPACITY)
    }
}
