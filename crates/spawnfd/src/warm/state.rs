// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs to keep warm, and their parked processes. Starts and the keeper change them under one lock. No thread
//! waits while it holds that lock.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::channel::CallError;
use super::confinement::Confinement;
use super::entry::{Auto, LeasedProcess, WarmEntry};
use super::entry_point::EntryPoint;
use super::parked::{ForkedChildren, ParkedHandle};
use super::recipe::{Recipe, can_park};
use super::sandbox_command::SandboxCommand;
use super::spare::{Finding, KeeperShare};
use super::usage::Usage;
use super::watch::FileWatch;
use super::wire::Page;
use super::{Kind, Mode, OFF, Park, WarmOptions, WarmStats, image};
use crate::child::Started;
use crate::cold_reason::ColdReason;
use crate::command::Command;
use crate::env::Env;
use crate::error::errno;
use crate::host::descriptors::CheckedFd;
use crate::template::Template;

/// The variables that loaders, libraries and interpreters read before main. The keeper parks a program that the
/// application has not added with only these variables of the program's first start. So the parked process does not
/// keep secrets of that start.
const EARLY_VARIABLES: [&str; 18] = [
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

/// The upper bound of all durations: practically no limit, but small enough to add to an `Instant`.
const MAX_DURATION: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The state of a [`Warm`](super::Warm). A forked copy of the host has the default value.
#[derive(Debug, Default)]
pub(super) struct WarmState {
    pub(super) options: WarmOptions,
    pub(super) entries: Vec<WarmEntry>,
    /// `None` in a forked copy of the host, and when the `Warm` is closed.
    pub(super) resources: Option<WarmResources>,
    /// True after `close`.
    closed: bool,
    pub(super) stats: WarmStats,
    /// True if warm starts were off at a caller's last check. The keeper itself does not read the environment, because
    /// the host may change the environment at the same time.
    pub(super) turned_off: bool,
    pub(super) next_id: u64,
    /// Processes that the keeper will end, after it has released the lock.
    pub(super) to_end: Vec<ParkedHandle>,
    /// Pages of started programs. Unmapping a page costs more than the rest of a start's cleanup, so the keeper unmaps
    /// them.
    pub(super) spent_pages: Vec<Arc<Page>>,
    /// The keeper's last finding about CPU time to spare.
    pub(super) load: Option<Finding>,
    /// The share of CPU time that the keeper thread may use.
    pub(super) keeper_share: KeeperShare,
    /// A caller waits in [`Warm::fill`](super::Warm::fill), until this time at least. So the keeper starts processes
    /// also on a busy machine.
    pub(super) filling_until: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct WarmResources {
    pub(super) object: Arc<CheckedFd>,
    pub(super) watch: FileWatch,
}

impl WarmState {
    pub(super) fn new(options: WarmOptions) -> Result<WarmState, CallError> {
        // Keep the durations small enough to be added to an `Instant`.
        let [idle, age, delay] = [options.idle, options.age, options.delay].map(|time| time.min(MAX_DURATION));
        let options = WarmOptions { idle, age, delay, ..options };
        let object = image::object_file(spawnfd_parked::OBJECT)?;
        let watch = FileWatch::new().map_err(|error| ("inotify_init1()", errno(error)))?;
        let object = Arc::new(CheckedFd::new(object));
        Ok(WarmState { resources: Some(WarmResources { object, watch }), options, ..WarmState::default() })
    }

    /// Fails if the `Warm` is closed. A forked copy of the host has no resources either, but is not closed.
    pub(super) fn check_open(&self, function: &str) -> crate::error::Result<()> {
        if !self.closed {
            return Ok(());
        }
        Err(crate::error::Error::invalid(format!("{function}(): closed")).saying("the Warm is closed"))
    }

    /// Whether no entry has a reason why it has too few processes.
    pub(super) fn has_no_failures(&self) -> bool {
        self.entries.iter().all(|entry| entry.missing_reason().is_none())
    }

    pub(super) fn add(
        &mut self,
        template: &Template,
        entry_point: Option<EntryPoint>,
        sandbox: Option<SandboxCommand>,
        confinement: Confinement,
        park: Park,
    ) -> &mut WarmEntry {
        let kind = park.kind_of(template);
        let confined = sandbox.is_some() || confinement.is_any();
        let (mode, auto) = self.mode(park.mode, !confined);
        let recipe = Recipe {
            template: template.clone(),
            executes: false,
            args: park.args,
            env: park.env.unwrap_or_else(Env::inherit),
            kind,
            mode,
            preload: park.preload,
            entry_point,
            sandbox,
            confinement,
        };
        self.insert(recipe, auto, park.depth)
    }

    /// The first mode of a program, and its state if that mode is to change. `may_fork`: the program can be forked.
    fn mode(&self, mode: Option<Mode>, may_fork: bool) -> (Mode, Option<Auto>) {
        match mode.unwrap_or(self.options.mode) {
            Mode::Auto => {
                let is_trusted = may_fork && self.options.trusted;
                (Mode::Reserve, Some(Auto { is_trusted, may_fork: is_trusted, stays_cold: None }))
            }
            mode => (mode, None),
        }
    }

    /// Adds `zygote`, which executes any program.
    pub(super) fn add_any(&mut self, zygote: Template, depth: usize, mode: Option<Mode>) {
        // A zygote's children share only the memory of the zygote, which has no secrets and does not become a program.
        let mode = match mode.unwrap_or(self.options.mode) {
            Mode::Auto => Mode::Fork,
            mode => mode,
        };
        let recipe = Recipe {
            template: zygote,
            executes: true,
            args: vec![mode.code().to_string().into()],
            env: Env::empty(),
            kind: Kind::Main,
            mode,
            preload: Vec::new(),
            entry_point: None,
            sandbox: None,
            confinement: Confinement::default(),
        };
        self.insert(recipe, None, depth);
    }

    fn insert(&mut self, recipe: Recipe, auto: Option<Auto>, depth: usize) -> &mut WarmEntry {
        let now = Instant::now();
        // Put entries with a confinement or an entry point first, so that a search finds them before others. Only
        // commands with the same confinement and entry point use them.
        let is_specific = recipe.confinement.is_any() || recipe.entry_point.is_some();
        let index = if is_specific { 0 } else { self.entries.len() };
        let entry = WarmEntry {
            id: self.next_id,
            cannot: can_park(&recipe).err(),
            missing_resource: None,
            recipe: Arc::new(recipe),
            depth: if depth == 0 { 2 } else { depth },
            parked: VecDeque::new(),
            parent: None,
            leased: 0,
            parking: None,
            was_parked: false,
            stale: false,
            failures: 0,
            next_attempt: now,
            last_used: now,
            idle: false,
            auto_added: false,
            auto,
            usage: Usage::default(),
            watched: None,
            version: 0,
        };
        self.next_id += 1;
        self.entries.insert(index, entry);
        &mut self.entries[index]
    }

    /// Whether a program has been added for ordinary starts.
    pub(super) fn has_program(&self, template: &Template) -> bool {
        self.entries.iter().any(|entry| entry.recipe.is_plain() && entry.recipe.template.path() == template.path())
    }

    /// Adds the program that this command starts, after a start. If starts have added `max` programs already, first
    /// removes the least recently used of these.
    pub(super) fn auto_add(&mut self, template: &Template, command: &Command<'_>, max: usize) {
        if max == 0 {
            return;
        }
        let now = Instant::now();
        let Some(entry) = self.add_command(template, command) else { return };
        entry.auto_added = true;
        entry.record_start(false, now);
        let auto_added = || self.entries.iter().enumerate().filter(|(_, entry)| entry.auto_added);
        if auto_added().count() > max
            && let Some((oldest, _)) = auto_added().min_by_key(|(_, entry)| entry.last_used)
        {
            let mut oldest = self.entries.remove(oldest);
            let removed = HashSet::from([oldest.id]);
            self.resources.iter_mut().for_each(|resources| resources.watch.forget(&removed));
            self.to_end.extend(oldest.drain());
        }
    }

    /// Adds the program that this command starts, with the command's interpreter options. `None`: it is there already,
    /// or the library cannot tell its options from its other arguments.
    pub(super) fn add_command(&mut self, template: &Template, command: &Command<'_>) -> Option<&mut WarmEntry> {
        let args = command.arguments();
        let path = template.path().filter(|_| template.is_pinned() && !template.executed_by_descriptor());
        let options = path.map(Kind::of)?.options(args)?;
        let is_same_program = |entry: &WarmEntry| {
            entry.recipe.is_plain() && entry.recipe.template.path() == path && entry.recipe.args == options
        };
        if self.resources.is_none() || self.entries.iter().any(is_same_program) {
            return None;
        }
        let env = Some(command.variables().keep_only(EARLY_VARIABLES));
        Some(self.add(template, None, None, Confinement::default(), Park { args: options, env, ..Park::default() }))
    }

    pub(super) fn entry(&mut self, id: u64) -> Option<&mut WarmEntry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// Leases a process that is parked for this template and this command. `counts`: the program starts. `after`: the
    /// entry whose process has refused the command. The search then continues behind this entry.
    pub(super) fn lease(
        &mut self,
        template: &Template,
        command: &Command<'_>,
        counts: bool,
        after: Option<u64>,
    ) -> Result<LeasedProcess, ColdReason> {
        let args = command.arguments();
        let Some(resources) = &mut self.resources else { return Err(ColdReason::Closed) };
        let changed = resources.watch.take_changed()?;
        self.retire(&changed);
        let now = Instant::now();
        let delay = self.options.delay;
        let path = template.path().filter(|_| !template.executed_by_descriptor());
        // `other` is the reason why no entry is for this command. `why` is the reason why an entry
        // for this command does not serve it.
        let (mut other, mut why) = (if path.is_some() { ColdReason::NotAdded } else { ColdReason::Descriptor }, None);
        let behind = |id| self.entries.iter().position(|entry| entry.id == id).map_or(usize::MAX, |index| index + 1);
        let first = after.map_or(0, behind);
        let entries = self.entries.iter_mut().skip(first);
        for entry in entries.filter(|entry| path.is_some() && entry.recipe.command_template().path() == path) {
            let Some(rest) = entry.recipe.program_args(args) else { continue };
            // The caller's own template is out of date, and the entry's is current, so keep the entry.
            if template.identity() != entry.recipe.command_template().identity() && template.check().is_err() {
                why = Some(ColdReason::Stale);
                continue;
            }
            if let Err(reason) = entry.recipe.fits(rest, command) {
                match reason {
                    ColdReason::WorkingDirectory => why = Some(reason),
                    _ => other = reason,
                }
                continue;
            }
            if template.identity() != entry.recipe.command_template().identity() {
                let recipe = Arc::make_mut(&mut entry.recipe);
                match &mut recipe.sandbox {
                    None => recipe.template = template.clone(),
                    Some(sandbox) => {
                        sandbox.template = template.clone();
                        sandbox.passes_preload = Arc::default();
                    }
                }
                entry.cannot = can_park(&entry.recipe).err();
                entry.version += 1;
                entry.was_parked = false;
                entry.missing_resource = None;
                entry.stale = true;
                entry.failures = 0;
                entry.next_attempt = now;
                entry.usage.forget_program();
                self.to_end.extend(entry.drain());
            }
            match entry.lease(now, delay, counts) {
                Ok(leased) => return Ok(leased),
                Err(reason) => why = Some(reason),
            }
        }
        Err(why.unwrap_or(other))
    }

    /// Leases a process that executes any program. Returns `None` if the application has added no such
    /// process.
    pub(super) fn lease_any(&mut self, counts: bool) -> Option<Result<LeasedProcess, ColdReason>> {
        let (now, delay) = (Instant::now(), self.options.delay);
        let mut refusal = None;
        for entry in self.entries.iter_mut().filter(|entry| entry.recipe.executes) {
            let leased = entry.lease(now, delay, counts);
            if leased.is_ok() {
                return Some(leased);
            }
            refusal = Some(leased);
        }
        refusal
    }

    /// Records whether the parked process `parent` has forked the child that a start asked for. The start then leases
    /// the child in place of the parent.
    pub(super) fn finish_fork_for_start(
        &mut self,
        parent: LeasedProcess,
        forked: Result<ForkedChildren, ColdReason>,
    ) -> Result<LeasedProcess, ColdReason> {
        match forked.map(|mut forked| forked.children.pop().ok_or(forked.shortfall.unwrap_or(ColdReason::Died))) {
            Ok(Ok(parked)) => {
                self.entry(parent.entry).into_iter().for_each(|entry| entry.failures = 0);
                Ok(LeasedProcess {
                    handle: ParkedHandle::new(parent.handle.version, parked),
                    is_parent: false,
                    ..parent
                })
            }
            Ok(Err(why)) => {
                // Several threads can have requested a child of this parent; only the first failure counts.
                let entry = self.entry(parent.entry).filter(|entry| entry.has_parent(&parent));
                entry.into_iter().for_each(|entry| entry.record_missing_resource(why));
                self.discard(&parent);
                Err(why)
            }
            Err(reason) => {
                self.end_lease(&parent);
                Err(reason)
            }
        }
    }

    /// Ends a lease. Returns the entry that the process was leased from.
    fn end_lease(&mut self, leased: &LeasedProcess) -> Option<&mut WarmEntry> {
        let entry = self.entry(leased.entry)?;
        entry.leased -= 1;
        Some(entry)
    }

    /// Takes back a leased process that the start has not used.
    pub(super) fn return_unused(&mut self, leased: &LeasedProcess) {
        match self.end_lease(leased).filter(|entry| entry.version == leased.handle.version && !entry.idle) {
            // Several starts may have leased a parent, which stays in its entry.
            Some(_) if leased.is_parent => {}
            Some(entry) => entry.parked.push_front(leased.handle.clone()),
            None => self.to_end.push(leased.handle.clone()),
        }
        self.keep_memory_limit();
    }

    /// Ends the lease of a process that has become a program.
    pub(super) fn became_program(&mut self, leased: &LeasedProcess) {
        let (started, page) = {
            let parked = leased.lock();
            (parked.origin.started, parked.channel.page.clone())
        };
        match started {
            Started::Reserve => self.stats.reserve += 1,
            Started::Fork => self.stats.fork += 1,
            Started::Pool => self.stats.pool += 1,
            _ => self.stats.zygote += 1,
        }
        if !leased.recipe.executes {
            self.stats.time_saved += leased.handle.start_up;
        }
        self.spent_pages.push(page);
        self.end_lease(leased).into_iter().for_each(|entry| entry.record_start(true, Instant::now()));
    }

    /// Ends the lease of a process that is no longer usable.
    pub(super) fn discard(&mut self, leased: &LeasedProcess) {
        if let Some(entry) = self.end_lease(leased).filter(|entry| entry.has_parent(leased)) {
            entry.parent = None;
        }
        self.to_end.push(leased.handle.clone());
    }

    /// Counts a cold start. Returns the delay after which the keeper should check the state, or `None` if the keeper
    /// has nothing to do.
    pub(super) fn count_cold(&mut self, reason: ColdReason) -> Option<Duration> {
        *self.stats.cold.entry(reason.word()).or_default() += 1;
        self.wants_keeper()
    }

    /// Stores whether the environment turns warm starts off, and returns whether they are off. If so, ends all parked
    /// processes.
    pub(super) fn update_turned_off(&mut self, off: bool) -> bool {
        self.turned_off = off || OFF.load(Ordering::Relaxed);
        if self.turned_off {
            self.to_end.extend(self.entries.iter_mut().flat_map(|entry| entry.drain().collect::<Vec<_>>()));
        }
        self.turned_off
    }

    /// Returns the delay after which the keeper should check the state. `None` if the keeper has nothing to do.
    pub(super) fn wants_keeper(&self) -> Option<Duration> {
        if !self.to_end.is_empty() {
            return Some(self.options.delay);
        }
        if self.turned_off {
            return None;
        }
        let now = Instant::now();
        let busy_until = self.load.filter(|load| load.is_busy).map(|load| load.until);
        let share_from = self.keeper_share.used_up_until(now);
        let missing = self.entries.iter().filter(|entry| !entry.is_unserved() && entry.lacks_processes());
        let due = missing.map(|entry| {
            let share_from = share_from.filter(|_| !entry.usage.has_long_start_up());
            let waits_until = busy_until.max(share_from).filter(|_| !entry.lacks_parent());
            waits_until.unwrap_or(now).max(entry.next_attempt).saturating_duration_since(now)
        });
        due.min().map(|pause| pause.max(self.options.delay))
    }

    /// Records CPU time that the keeper thread has used.
    pub(super) fn record_keeper_time(&mut self, used: Duration) {
        self.keeper_share.record(used, Instant::now());
        self.stats.refill_time += used;
    }

    pub(super) fn stats(&self) -> WarmStats {
        let (_, memory) = self.usage();
        let cannot =
            self.entries.iter().filter_map(|entry| Some((entry.recipe.name().to_owned(), entry.missing_reason()?)));
        WarmStats {
            parked: self.entries.iter().map(|entry| entry.unleased().count()).sum(),
            memory,
            cannot: cannot.map(|(name, why)| (name, why.word().to_owned())).collect::<BTreeMap<_, _>>(),
            ..self.stats.clone()
        }
    }

    pub(super) fn close(&mut self) -> Vec<ParkedHandle> {
        self.resources = None;
        self.closed = true;
        self.to_end.extend(self.entries.drain(..).flat_map(|mut entry| entry.drain().collect::<Vec<_>>()));
        self.take_remaining()
    }

    /// After `close`, takes the processes that the keeper no longer ends. The caller drops them after it has released
    /// the lock.
    pub(super) fn take_remaining(&mut self) -> Vec<ParkedHandle> {
        if self.resources.is_none() { std::mem::take(&mut self.to_end) } else { Vec::new() }
    }
}
