// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs to keep warm, and their parked processes. Starts and the keeper change them under one lock. No thread
//! waits while it holds that lock.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::channel::Failed;
use super::confinement::Confinement;
use super::entry::{Entry, Waiting};
use super::fork::ForkedChildren;
use super::leased::LeasedProcess;
use super::prefix::Prefix;
use super::recipe::{Recipe, can_park};
use super::watch::Watch;
use super::wire::Page;
use super::{Kind, Mode, OFF, Park, WarmOptions, WarmStats, image};
use crate::command::Command;
use crate::env::Env;
use crate::error::errno;
use crate::host::numbers::Known;
use crate::template::Template;

/// A reason for a cold start: the program was not added.
pub(super) const NOT_ADDED: &str = "not added";
/// A reason for a cold start: the parked processes have other options.
pub(super) const ARGUMENTS: &str = "arguments";

/// The variables that loaders, libraries and interpreters read before main. A program that was not added is parked
/// with these variables of its first start and no others, so that it does not keep secrets of that start.
const LOOKED_AT: [&str; 18] = [
    "PATH",
    "HOME",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LOCPATH",
    "LD_*",
    "GLIBC_TUNABLES",
    "MALLOC_*",
    "PYTHON*",
    "VIRTUAL_ENV",
    "NODE_OPTIONS",
    "NODE_PATH",
    "NODE_EXTRA_CA_CERTS",
    "NODE_NO_WARNINGS",
    "NODE_PENDING_DEPRECATION",
    "FORCE_COLOR",
];

/// Practically no limit, and still small enough to add to an `Instant`.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The state of a [`Warm`](super::Warm). In a fork's copy of the host it is the default.
#[derive(Debug, Default)]
pub(super) struct WarmState {
    pub(super) options: WarmOptions,
    pub(super) entries: Vec<Entry>,
    /// `None` in a fork's copy of the host, and when the `Warm` is closed.
    pub(super) shared: Option<Common>,
    pub(super) stats: WarmStats,
    /// Warm starts were off when a caller last asked. The keeper does not read the environment, which the host may
    /// change meanwhile.
    pub(super) off: bool,
    pub(super) next: u64,
    /// Processes that the keeper ends, without the lock.
    pub(super) gone: Vec<Waiting>,
    /// Pages of started programs. Unmapping a page costs more than the rest of a start's cleanup, so the keeper does
    /// it.
    pub(super) spent: Vec<Arc<Page>>,
}

#[derive(Debug)]
pub(super) struct Common {
    pub(super) object: Arc<Known>,
    pub(super) watch: Watch,
}

impl WarmState {
    pub(super) fn new(options: WarmOptions) -> Result<WarmState, Failed> {
        // Keep the durations small enough to be added to an `Instant`.
        let [idle, age, delay] = [options.idle, options.age, options.delay].map(|time| time.min(FOREVER));
        let options = WarmOptions { idle, age, delay, ..options };
        let object = image::object_file(spawnfd_parked::OBJECT)?;
        let watch = Watch::new().map_err(|error| ("inotify_init1()", errno(error)))?;
        let object = Arc::new(Known::new(object));
        Ok(WarmState { shared: Some(Common { object, watch }), options, ..WarmState::default() })
    }

    pub(super) fn add(
        &mut self,
        template: &Template,
        prefix: Option<Prefix>,
        confinement: Confinement,
        park: Park,
    ) -> &mut Entry {
        let kind = park.kind_of(template);
        let recipe = Recipe {
            template: template.clone(),
            executes: false,
            args: park.args,
            env: park.env.unwrap_or_else(Env::inherit),
            kind,
            mode: park.mode.unwrap_or(self.options.mode),
            preload: park.preload,
            prefix,
            confinement,
        };
        self.insert(recipe, park.depth)
    }

    /// Adds `zygote`, which executes any program.
    pub(super) fn add_any(&mut self, zygote: Template, depth: usize, mode: Option<Mode>) {
        let mode = mode.unwrap_or(self.options.mode);
        let recipe = Recipe {
            template: zygote,
            executes: true,
            args: vec![mode.letter().to_string().into()],
            env: Env::empty(),
            kind: Kind::Main,
            mode,
            preload: Vec::new(),
            prefix: None,
            confinement: Confinement::default(),
        };
        self.insert(recipe, depth);
    }

    fn insert(&mut self, recipe: Recipe, depth: usize) -> &mut Entry {
        let now = Instant::now();
        // Confined entries come first: they serve few commands, and serve these better than other entries.
        let place = if recipe.confinement.is_any() { 0 } else { self.entries.len() };
        let entry = Entry {
            id: self.next,
            cannot: can_park(&recipe).err(),
            lacks: None,
            recipe: Arc::new(recipe),
            depth: if depth == 0 { 2 } else { depth },
            parked: VecDeque::new(),
            parent: None,
            taken: 0,
            making: None,
            proven: false,
            stale: false,
            disturbed: 0,
            due: now,
            used: now,
            asleep: false,
            kept: false,
            version: 0,
        };
        self.next += 1;
        self.entries.insert(place, entry);
        &mut self.entries[place]
    }

    /// Whether a program has been added without a sandbox.
    pub(super) fn has(&self, template: &Template) -> bool {
        self.entries.iter().any(|entry| entry.recipe.prefix.is_none() && entry.recipe.outer().path() == template.path())
    }

    /// Adds a program that this command is just starting. At most `most` programs are added in this way; the one used
    /// longest ago makes room.
    pub(super) fn keep(&mut self, template: &Template, command: &Command<'_>, most: usize) {
        let args = command.arguments();
        let path = template.path().filter(|_| template.is_pinned() && !template.executed_by_descriptor());
        let Some(options) = path.map(Kind::of).and_then(|kind| kind.options(args)) else { return };
        let is_it = |entry: &Entry| {
            let plain = entry.recipe.prefix.is_none() && !entry.recipe.confinement.is_any();
            plain && entry.recipe.outer().path() == path && entry.recipe.args == options
        };
        if self.shared.is_none() || most == 0 || self.entries.iter().any(is_it) {
            return;
        }
        let kept = || self.entries.iter().enumerate().filter(|(_, entry)| entry.kept);
        if kept().count() >= most
            && let Some((oldest, _)) = kept().min_by_key(|(_, entry)| entry.used)
        {
            let mut oldest = self.entries.remove(oldest);
            let gone = HashSet::from([oldest.id]);
            self.shared.iter_mut().for_each(|common| common.watch.forget(&gone));
            self.gone.extend(oldest.drain());
        }
        let env = Some(command.variables().keep_only(LOOKED_AT));
        self.add(template, None, Confinement::default(), Park { args: options, env, ..Park::default() }).kept = true;
    }

    pub(super) fn entry(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// Leases a process that is parked for this template and this command.
    pub(super) fn take(&mut self, template: &Template, command: &Command<'_>) -> Result<LeasedProcess, &'static str> {
        let args = command.arguments();
        let Some(common) = &mut self.shared else { return Err("closed") };
        let changed = common.watch.changed()?;
        self.retire(&changed);
        let now = Instant::now();
        let delay = self.options.delay;
        let path = template.path().filter(|_| !template.executed_by_descriptor());
        // The reasons of entries for other commands, and of entries for this command.
        let (mut other, mut why) = (if path.is_some() { NOT_ADDED } else { "descriptor" }, None);
        for entry in self.entries.iter_mut().filter(|entry| path.is_some() && entry.recipe.outer().path() == path) {
            let Some(rest) = entry.recipe.strip(args) else { continue };
            // The file has been replaced, but the parked processes have not.
            if template.identity() != entry.recipe.outer().identity() && template.check().is_err() {
                why = Some("stale");
                continue;
            }
            let fits = entry.recipe.kind.fits(&entry.recipe.args, rest);
            if let Err(reason) = fits.and_then(|()| entry.recipe.confinement.suits(command)) {
                other = reason;
                continue;
            }
            if template.identity() != entry.recipe.outer().identity() {
                let recipe = Arc::make_mut(&mut entry.recipe);
                match &mut recipe.prefix {
                    None => recipe.template = template.clone(),
                    Some(prefix) => {
                        prefix.template = template.clone();
                        prefix.hands_on = Arc::default();
                    }
                }
                entry.cannot = can_park(&entry.recipe).err();
                entry.version += 1;
                entry.proven = false;
                entry.lacks = None;
                entry.stale = true;
                entry.disturbed = 0;
                entry.due = now;
                self.gone.extend(entry.drain());
            }
            match entry.take(now, delay) {
                Ok(leased) => return Ok(leased),
                Err(reason) => why = Some(reason),
            }
        }
        Err(why.unwrap_or(other))
    }

    /// Leases a process that executes any program. `None`: none was added.
    pub(super) fn take_any(&mut self) -> Option<Result<LeasedProcess, &'static str>> {
        let (now, delay) = (Instant::now(), self.options.delay);
        let mut found = None;
        for entry in self.entries.iter_mut().filter(|entry| entry.recipe.executes) {
            let taken = entry.take(now, delay);
            if taken.is_ok() {
                return Some(taken);
            }
            found = Some(taken);
        }
        found
    }

    /// Takes in the outcome of a start's request for a child of `parent`. The start then leases the child in place of
    /// the parent.
    pub(super) fn forked_for_start(
        &mut self,
        parent: LeasedProcess,
        forked: Result<ForkedChildren, &'static str>,
    ) -> Result<LeasedProcess, &'static str> {
        match forked.map(|mut forked| forked.all.pop().ok_or(forked.fewer.unwrap_or("died"))) {
            Ok(Ok(parked)) => {
                self.entry(parent.entry).into_iter().for_each(|entry| entry.disturbed = 0);
                Ok(LeasedProcess { shared: Waiting::new(parent.shared.version, parked), is_parent: false, ..parent })
            }
            Ok(Err(why)) => {
                // Several threads can have requested a child of this parent; only the first failure counts.
                let entry = self.entry(parent.entry).filter(|entry| entry.has_parent(&parent));
                entry.into_iter().for_each(|entry| entry.lacked(why));
                self.spoilt(parent);
                Err(why)
            }
            Err(reason) => {
                self.returned(&parent);
                Err(reason)
            }
        }
    }

    /// Ends a lease. Returns the entry that the process was leased from.
    fn returned(&mut self, leased: &LeasedProcess) -> Option<&mut Entry> {
        let entry = self.entry(leased.entry)?;
        entry.taken -= 1;
        Some(entry)
    }

    /// Returns a leased process that the start has not used.
    pub(super) fn put_back(&mut self, leased: LeasedProcess) {
        match self.returned(&leased).filter(|entry| entry.version == leased.shared.version) {
            Some(entry) => entry.parked.push_front(leased.shared),
            None => self.gone.push(leased.shared),
        }
    }

    /// Ends the lease of a process that has become a program.
    pub(super) fn used(&mut self, leased: LeasedProcess) {
        let counter = match (leased.recipe.executes, leased.recipe.mode) {
            (false, Mode::Reserve) => &mut self.stats.reserve,
            (false, Mode::Fork) => &mut self.stats.fork,
            (true, Mode::Reserve) => &mut self.stats.pool,
            (true, Mode::Fork) => &mut self.stats.zygote,
        };
        *counter += 1;
        self.spent.push(leased.lock().channel.page.clone());
        self.returned(&leased);
    }

    /// Ends the lease of a process that is no longer usable.
    pub(super) fn spoilt(&mut self, leased: LeasedProcess) {
        if let Some(entry) = self.returned(&leased).filter(|entry| entry.has_parent(&leased)) {
            entry.parent = None;
        }
        self.gone.push(leased.shared);
    }

    /// Counts a cold start, and returns when the keeper should check the state.
    pub(super) fn count_cold(&mut self, reason: &'static str) -> Option<Duration> {
        *self.stats.cold.entry(reason).or_default() += 1;
        self.wants_keeper()
    }

    /// Stores whether the environment turns warm starts off, and returns whether they are off. If so, ends all parked
    /// processes.
    pub(super) fn switch(&mut self, off: bool) -> bool {
        self.off = off || OFF.load(Ordering::Relaxed);
        if self.off {
            self.gone.extend(self.entries.iter_mut().flat_map(|entry| entry.drain().collect::<Vec<_>>()));
        }
        self.off
    }

    /// When the keeper should check the state, if it should.
    pub(super) fn wants_keeper(&self) -> Option<Duration> {
        let missing = |entry: &Entry| !self.off && entry.cannot.is_none() && entry.is_missing();
        (!self.gone.is_empty() || self.entries.iter().any(missing)).then_some(self.options.delay)
    }

    pub(super) fn stats(&self) -> WarmStats {
        let (_, memory) = self.usage();
        let cannot = self.entries.iter().filter_map(|entry| Some((entry.recipe.name().to_owned(), entry.why_not()?)));
        WarmStats {
            parked: self.entries.iter().map(|entry| entry.waiting().count()).sum(),
            memory,
            cannot: cannot.map(|(name, why)| (name, why.to_owned())).collect::<BTreeMap<_, _>>(),
            ..self.stats.clone()
        }
    }

    pub(super) fn close(&mut self) -> Vec<Waiting> {
        self.shared = None;
        self.gone.extend(self.entries.drain(..).flat_map(|mut entry| entry.drain().collect::<Vec<_>>()));
        self.left_over()
    }

    /// Takes the processes that no keeper will end after `close`. The caller drops them without the lock.
    pub(super) fn left_over(&mut self) -> Vec<Waiting> {
        if self.shared.is_none() { std::mem::take(&mut self.gone) } else { Vec::new() }
    }
}
