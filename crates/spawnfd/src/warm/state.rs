// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is kept warm, and what waits: changed by starts and by the keeper, under one lock that is never held while anybody waits.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spawnfd_child::{Op, Plan};
use spawnfd_sys::{Errno, abi, call};

use super::confinement::Confinement;
use super::parked::{NotParked, Parked, Recipe};
use super::sandbox::{Inside, Prefix};
use super::standing::Standing;
use super::watch::Watch;
use super::wire::Context;
use super::{Kind, Mode, Park, WarmOptions, WarmStats, image, reason};
use crate::command::Command;
use crate::env::Env;
use crate::error::errno;
use crate::numbers::standard_is_open;
use crate::template::Template;

/// How long the keeper waits where the host has a standard stream closed.
const LATER: Duration = Duration::from_millis(50);
/// How often a program is parked anew because a file of its has changed meanwhile.
const PATIENCE: u32 = 50;

/// A reason to be cold: nobody has added it.
pub(super) const NOT_ADDED: &str = "not added";
/// Another: what is parked has other options.
pub(super) const ARGUMENTS: &str = "arguments";

/// What loaders, libraries and interpreters look at before main. A program that was not added is parked with these of its first start,
/// and no others: it must not hold what only that was to know.
const LOOKED_AT: [&str; 17] = [
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
];

/// As good as no limit.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// How many children are forked at once.
const AT_ONCE: usize = 16;

/// When to try again what failed for want of something, and how often.
const AGAIN: Duration = Duration::from_millis(200);
const ATTEMPTS: u32 = 5;

/// One program.
#[derive(Debug)]
pub(super) struct Entry {
    id: u64,
    recipe: Arc<Recipe>,
    depth: usize,
    /// Those that wait, the oldest first.
    parked: VecDeque<Waiting>,
    /// Mode fork: the process they are forked from.
    parent: Option<Waiting>,
    /// How many a start has for itself.
    taken: usize,
    /// One is being parked.
    making: bool,
    /// Why it cannot be parked.
    cannot: Option<&'static str>,
    /// It has been parked before, as it is.
    proven: bool,
    /// How often in a row something has changed while it was being parked.
    disturbed: u32,
    /// Not before then.
    due: Instant,
    used: Instant,
    asleep: bool,
    /// Not added, but started.
    kept: bool,
    /// Tells what was parked before a change from what is parked now.
    version: u64,
}

impl Entry {
    /// What a command for it runs.
    fn started(&self) -> &Template {
        self.recipe.prefix.as_ref().map_or(&self.recipe.template, |prefix| &prefix.template)
    }

    /// One that waits, for one start; or the parent, for one to be forked from it.
    fn take(&mut self, now: Instant, delay: Duration) -> Result<Held, &'static str> {
        let waiting = self.parked.pop_front();
        let is_parent = waiting.is_none();
        let shared = waiting
            .or_else(|| self.parent.clone())
            .ok_or_else(|| if standard_is_open() { "empty" } else { "closed standard stream" })?;
        if self.parked.len() + 1 >= self.depth {
            self.due = now + delay;
        }
        self.taken += 1;
        Ok(Held { entry: self.id, recipe: self.recipe.clone(), shared, is_parent })
    }

    fn is_missing(&self) -> bool {
        self.lacks_parent() || self.parked.len() < self.depth
    }

    fn lacks_parent(&self) -> bool {
        self.recipe.mode == Mode::Fork && self.parent.as_ref().is_none_or(|parent| parent.old)
    }

    /// All its processes, to be ended.
    fn drain(&mut self) -> impl Iterator<Item = Waiting> {
        self.parked.drain(..).chain(self.parent.take())
    }

    /// All its processes that no start has for itself.
    fn waiting(&self) -> impl Iterator<Item = &Waiting> + Clone {
        self.parked.iter().chain(&self.parent)
    }
}

/// A parked process. From a parent several threads may want something.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    version: u64,
    /// To be replaced, and used until it is.
    old: bool,
    memory: u64,
    process: Arc<Mutex<Parked>>,
}

impl Waiting {
    fn new(version: u64, parked: Parked) -> Waiting {
        Waiting { version, old: false, memory: parked.private, process: Arc::new(Mutex::new(parked)) }
    }
}

/// One that a start has taken.
#[derive(Debug)]
pub(super) struct Held {
    entry: u64,
    recipe: Arc<Recipe>,
    shared: Waiting,
    /// One is yet to be forked from it.
    is_parent: bool,
}

impl Held {
    pub(super) fn is_parent(&self) -> bool {
        self.is_parent
    }

    pub(super) fn kind(&self) -> Kind {
        self.recipe.kind
    }

    /// Whether exec follows.
    pub(super) fn executes(&self) -> bool {
        self.recipe.executes
    }

    pub(super) fn is_sandboxed(&self) -> bool {
        self.recipe.prefix.is_some()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Parked> {
        self.shared.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this plan's actions suit it.
    pub(super) fn fits(&self, plan: &Plan) -> Result<(), &'static str> {
        // CPython looks for itself by argv[0]: a name will do where it is found by that, too.
        let as_parked = |name: &[u8]| name == self.recipe.template.name().as_bytes() || !name.contains(&b'/');
        let name = plan.argv.iter().next().map(std::ffi::CStr::to_bytes);
        if self.recipe.kind == Kind::Python && !self.is_sandboxed() && !name.is_some_and(as_parked) {
            return Err(ARGUMENTS);
        }
        Ok(())
    }

    /// What of the plan is to be done inside, where it is confined or in a sandbox; `None`: it is neither.
    ///
    /// # Errors
    /// What nobody but the program in front could do.
    pub(super) fn inside(&self, parked: &Parked, plan: &Plan) -> Result<Option<Inside>, &'static str> {
        if !self.is_confined() && !self.is_sandboxed() {
            return Ok(None);
        }
        let mut inside = Inside::of(plan);
        self.recipe.confinement.enter(&mut inside, plan)?;
        if let Some(prefix) = &self.recipe.prefix {
            prefix.enter(&mut inside, plan, parked.environment(), &parked.birth.given)?;
        }
        Ok(Some(inside))
    }

    /// Whether it is confined more than its owner.
    pub(super) fn is_confined(&self) -> bool {
        self.recipe.confinement.is_any()
    }

    /// How the calling thread differs from what `parked` was born with. `here`: the place of its working directory in the sources.
    ///
    /// # Errors
    /// In what they differ, where nothing can be done about it.
    pub(super) fn compare(
        &self,
        parked: &Parked,
        plan: &Plan,
        template: &Template,
        here: Option<usize>,
    ) -> Result<Context, &'static str> {
        template.check().map_err(|_| "stale")?;
        if self.is_sandboxed() {
            self.recipe.template.check().map_err(|_| "stale")?;
        }
        let now = Standing::of_calling_thread().ok_or("/proc")?;
        parked.birth.marker.reach()?;
        let mut steps = parked.birth.standing.steps_to(&now, self.executes())?;
        match here {
            Some(dir) => steps.push(Op::Fchdir { dir }),
            None if steps.len() > 1 => return Err("limits"),
            None => {}
        }
        if now.is_ordinary() && self.recipe.stands_back() {
            // Parked processes stand back.
            steps.push(Op::Scheduler { policy: abi::SCHED_NORMAL, priority: 0 });
        }
        let ignored = parked.ignored();
        let wanted = now.ignored() & !plan.default_signals;
        // The program in front has looked at them, or not.
        if self.is_sandboxed() && ignored != wanted {
            return Err("ignored signals");
        }
        Ok(Context {
            steps,
            make_default: ignored & !wanted,
            make_ignored: wanted & !ignored,
            mask: plan.signal_mask.unwrap_or_else(call::signal_mask),
        })
    }
}

fn can_park(recipe: &Recipe) -> Result<(), &'static str> {
    if recipe.executes {
        return Ok(());
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

/// What the keeper is to do next.
pub(super) enum Work {
    /// Park one for this entry.
    Park { entry: u64, version: u64, recipe: Arc<Recipe>, object: Arc<OwnedFd> },
    /// Fork so many more.
    Fork(Held, usize),
    /// Nothing before then.
    Wait(Option<Instant>),
}

/// All of a [`Warm`](super::Warm)'s.
#[derive(Debug)]
pub(super) struct State {
    options: WarmOptions,
    entries: Vec<Entry>,
    /// `None` in a fork's copy, and when it is closed.
    shared: Option<Common>,
    stats: WarmStats,
    next: u64,
    /// To be ended by the keeper, outside the lock.
    gone: Vec<Waiting>,
}

#[derive(Debug)]
struct Common {
    object: Arc<OwnedFd>,
    watch: Watch,
}

impl State {
    pub(super) fn new(options: WarmOptions) -> Result<State, (&'static str, Errno)> {
        // What is added to a time of day has to stay one.
        let [idle, age, delay] = [options.idle, options.age, options.delay].map(|time| time.min(FOREVER));
        let options = WarmOptions { idle, age, delay, ..options };
        let object = image::object().map_err(|error| ("memfd_create()", errno(error)))?;
        let watch = Watch::new().map_err(|error| ("inotify_init1()", errno(error)))?;
        let object = Arc::new(crate::numbers::above_standard(object));
        Ok(State { shared: Some(Common { object, watch }), options, ..State::none() })
    }

    /// That of a process which has none.
    pub(super) fn none() -> State {
        State {
            options: WarmOptions::default(),
            entries: Vec::new(),
            shared: None,
            stats: WarmStats::default(),
            next: 1,
            gone: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        template: &Template,
        prefix: Option<Prefix>,
        confinement: Confinement,
        park: Park,
    ) -> &mut Entry {
        let kind = park.kind.or_else(|| template.path().map(Kind::of)).unwrap_or(Kind::Main);
        let recipe = Recipe {
            template: template.bare(),
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

    /// Keeps `zygote`, which executes whatever it is asked for.
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
        // What is confined serves few commands, and these better than another.
        let place = if recipe.confinement.is_any() { 0 } else { self.entries.len() };
        let entry = Entry {
            id: self.next,
            cannot: can_park(&recipe).err(),
            recipe: Arc::new(recipe),
            depth: if depth == 0 { 2 } else { depth },
            parked: VecDeque::new(),
            parent: None,
            taken: 0,
            making: false,
            proven: false,
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

    /// Whether a program is added, as it is.
    pub(super) fn has(&self, template: &Template) -> bool {
        self.entries.iter().any(|entry| entry.recipe.prefix.is_none() && entry.started().path() == template.path())
    }

    /// Adds a program that is just being started by this command; at most so many are, the one last used longest ago gives way.
    pub(super) fn keep(&mut self, template: &Template, command: &Command<'_>, most: usize) {
        let args = command.arguments();
        let path = template.path().filter(|_| template.is_pinned() && !template.executed_by_descriptor());
        let late = self.options.mode == Mode::Fork;
        let Some(options) = path.map(Kind::of).and_then(|kind| kind.options(late, args)) else { return };
        let is_it = |entry: &Entry| {
            let plain = entry.recipe.prefix.is_none() && !entry.recipe.confinement.is_any();
            plain && entry.started().path() == path && entry.recipe.args == options
        };
        if self.shared.is_none() || most == 0 || self.entries.iter().any(is_it) {
            return;
        }
        let kept = || self.entries.iter().enumerate().filter(|(_, entry)| entry.kept);
        if kept().count() >= most
            && let Some((oldest, _)) = kept().min_by_key(|(_, entry)| entry.used)
        {
            self.gone.extend(self.entries.remove(oldest).drain());
        }
        let env = Some(command.variables().keep_only(LOOKED_AT));
        self.add(template, None, Confinement::default(), Park { args: options, env, ..Park::default() }).kept = true;
    }

    fn entry(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// Takes one that is parked for this template, and for this command.
    pub(super) fn take(&mut self, template: &Template, command: &Command<'_>) -> Result<Held, &'static str> {
        let args = command.arguments();
        let Some(common) = &mut self.shared else { return Err("closed") };
        let changed = common.watch.changed()?;
        self.retire(&changed);
        let now = Instant::now();
        let delay = self.options.delay;
        let path = template.path().filter(|_| !template.executed_by_descriptor());
        // Of those that are for something else, and of those that are for this.
        let (mut other, mut why) = (if path.is_some() { NOT_ADDED } else { "descriptor" }, None);
        for entry in self.entries.iter_mut().filter(|entry| path.is_some() && entry.started().path() == path) {
            let rest = match &entry.recipe.prefix {
                None => args,
                Some(prefix) => match prefix.strip(args) {
                    Some(rest) => rest,
                    None => continue,
                },
            };
            // It has been replaced, but what is parked has not.
            if template.identity() != entry.started().identity() && template.check().is_err() {
                why = Some("stale");
                continue;
            }
            let late = entry.recipe.mode == Mode::Fork || !entry.recipe.preload.is_empty();
            if let Err(reason) = entry.recipe.kind.fits(late, &entry.recipe.args, rest) {
                other = reason;
                continue;
            }
            if let Err(reason) = entry.recipe.confinement.suits(command) {
                other = reason;
                continue;
            }
            entry.used = now;
            entry.asleep = false;
            if template.identity() != entry.started().identity() {
                let recipe = Arc::make_mut(&mut entry.recipe);
                match &mut recipe.prefix {
                    None => recipe.template = template.clone(),
                    Some(prefix) => prefix.template = template.clone(),
                }
                entry.cannot = can_park(&entry.recipe).err();
                entry.version += 1;
                entry.proven = false;
                entry.disturbed = 0;
                entry.due = now;
                self.gone.extend(entry.drain());
            }
            if let Some(cannot) = entry.cannot {
                why = Some(cannot);
                continue;
            }
            match entry.take(now, delay) {
                Ok(held) => return Ok(held),
                Err(reason) => why = Some(reason),
            }
        }
        Err(why.unwrap_or(other))
    }

    /// Takes one that executes whatever it is asked for. `None`: nothing of that kind was added.
    pub(super) fn take_any(&mut self) -> Option<Result<Held, &'static str>> {
        let (now, delay) = (Instant::now(), self.options.delay);
        let mut found = None;
        for entry in self.entries.iter_mut().filter(|entry| entry.recipe.executes) {
            (entry.used, entry.asleep) = (now, false);
            let taken = match entry.cannot {
                Some(cannot) => Err(cannot),
                None => entry.take(now, delay),
            };
            if taken.is_ok() {
                return Some(taken);
            }
            found = Some(taken);
        }
        found
    }

    /// What has come of a start's wish for one more: it has that, in the place of its parent.
    pub(super) fn forked_now(
        &mut self,
        parent: Held,
        born: Result<Vec<Parked>, &'static str>,
    ) -> Result<Held, &'static str> {
        match born.map(|mut born| born.pop()) {
            Ok(Some(parked)) => {
                Ok(Held { shared: Waiting::new(parent.shared.version, parked), is_parent: false, ..parent })
            }
            Ok(None) => {
                self.spoilt(parent);
                Err("died")
            }
            Err(reason) => {
                self.entry(parent.entry).into_iter().for_each(|entry| entry.taken -= 1);
                Err(reason)
            }
        }
    }

    /// What has come of the keeper's wish for so many.
    pub(super) fn forked(&mut self, parent: Held, count: usize, born: Result<Vec<Parked>, &'static str>) {
        let version = parent.shared.version;
        let forks = if parent.recipe.grows_old() { self.options.forks } else { u64::MAX };
        let again = Instant::now() + AGAIN;
        let born_all = born.as_ref().is_ok_and(|born| born.len() == count);
        let spoilt = born.is_ok() && !born_all;
        let born = born.unwrap_or_default().into_iter().map(|parked| Waiting::new(version, parked));
        match self.entries.iter_mut().find(|entry| entry.id == parent.entry && entry.version == version) {
            Some(entry) => {
                entry.parked.extend(born);
                if let Some(parent) = &mut entry.parent {
                    parent.old |= parent.process.try_lock().is_ok_and(|parent| parent.forked >= forks);
                }
            }
            None => self.gone.extend(born),
        }
        if let Some(entry) = self.entry(parent.entry) {
            entry.taken -= count;
            if !born_all {
                entry.due = again;
            }
            if spoilt {
                entry.parent.take_if(|one| Arc::ptr_eq(&one.process, &parent.shared.process));
                self.gone.push(parent.shared);
            }
        }
    }

    /// Nothing has come of it, or nothing that concerns it.
    pub(super) fn put_back(&mut self, held: Held) {
        if let Some(entry) = self.entry(held.entry) {
            entry.taken -= 1;
            if entry.version == held.shared.version {
                entry.parked.push_front(held.shared);
                return;
            }
        }
        self.gone.push(held.shared);
    }

    /// A program has come of it.
    pub(super) fn used(&mut self, held: Held) {
        let counter = match (held.recipe.executes, held.recipe.mode) {
            (false, Mode::Reserve) => &mut self.stats.reserve,
            (false, Mode::Fork) => &mut self.stats.fork,
            (true, Mode::Reserve) => &mut self.stats.pool,
            (true, Mode::Fork) => &mut self.stats.zygote,
        };
        *counter += 1;
        if let Some(entry) = self.entry(held.entry) {
            entry.taken -= 1;
        }
    }

    /// It is of no use any more.
    pub(super) fn spoilt(&mut self, held: Held) {
        if let Some(entry) = self.entry(held.entry) {
            entry.taken -= 1;
            entry.parent.take_if(|parent| Arc::ptr_eq(&parent.process, &held.shared.process));
        }
        self.gone.push(held.shared);
    }

    /// Counts a start that was cold, and says when the keeper should look.
    pub(super) fn count_cold(&mut self, reason: &'static str) -> Option<Duration> {
        *self.stats.cold.entry(reason).or_default() += 1;
        self.wants_keeper()
    }

    /// When the keeper should look, if it should.
    pub(super) fn wants_keeper(&self) -> Option<Duration> {
        let missing = |entry: &Entry| entry.cannot.is_none() && entry.is_missing();
        (!self.gone.is_empty() || self.entries.iter().any(missing)).then_some(self.options.delay)
    }

    /// Ends what was parked before something changed.
    fn retire(&mut self, changed: &HashSet<u64>) {
        for entry in self.entries.iter_mut().filter(|entry| changed.contains(&entry.id)) {
            entry.version += 1;
            entry.proven = false;
            entry.cannot = None;
            self.gone.extend(entry.drain());
        }
    }

    /// What is due; ends what is idle or too old.
    pub(super) fn next_work(&mut self) -> (Work, Vec<Waiting>) {
        let Some(common) = &mut self.shared else { return (Work::Wait(None), std::mem::take(&mut self.gone)) };
        let changed = common.watch.changed().unwrap_or_default();
        let object = common.object.clone();
        self.retire(&changed);
        let mut gone = std::mem::take(&mut self.gone);
        let now = Instant::now();
        let (parked, memory) = self.held();
        let room = parked < self.options.processes && memory < self.options.memory;
        let mut next: Option<Instant> = None;
        let mut sooner = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        let mut work = None;
        for entry in &mut self.entries {
            if !entry.asleep && now >= entry.used + self.options.idle {
                entry.asleep = true;
                gone.extend(entry.drain());
            }
            if entry.asleep || entry.cannot.is_some() {
                continue;
            }
            sooner(entry.used + self.options.idle);
            if entry.recipe.grows_old() {
                let age = self.options.age;
                if let Some(parent) = &mut entry.parent {
                    parent.old |= parent.process.try_lock().is_ok_and(|parent| now >= parent.birth.since + age);
                    sooner(now + age);
                }
            }
            let missing = entry.is_missing() && !entry.making && room;
            if missing && !standard_is_open() {
                sooner(now + LATER);
            } else if missing
                && now >= entry.due
                && work.is_none()
                && let Some(parent) = entry.parent.as_ref().filter(|parent| !parent.old)
            {
                let count = (entry.depth - entry.parked.len()).min(AT_ONCE).min(self.options.processes - parked);
                let shared = parent.clone();
                entry.taken += count;
                let recipe = entry.recipe.clone();
                work = Some(Work::Fork(Held { entry: entry.id, recipe, shared, is_parent: true }, count));
            } else if missing && now >= entry.due && work.is_none() {
                entry.making = true;
                work = Some(Work::Park {
                    entry: entry.id,
                    version: entry.version,
                    recipe: entry.recipe.clone(),
                    object: object.clone(),
                });
            } else if missing {
                sooner(entry.due);
            }
        }
        (work.unwrap_or(Work::Wait(next)), gone)
    }

    /// What the keeper has parked, or why it could not.
    pub(super) fn parked(&mut self, id: u64, version: u64, outcome: Result<Parked, NotParked>) -> Option<Parked> {
        let Some(common) = &mut self.shared else { return outcome.ok() };
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) else { return outcome.ok() };
        entry.making = false;
        match outcome {
            Ok(parked) if entry.version == version => {
                if !entry.recipe.executes && common.watch.add(id, &parked.birth.files).is_err() {
                    entry.cannot = Some("inotify");
                    return Some(parked);
                }
                if parked.is_outdated() {
                    entry.disturbed += 1;
                    entry.due = Instant::now() + self.options.delay.max(Duration::from_millis(20));
                    entry.cannot = (entry.disturbed >= PATIENCE).then_some("changing files");
                    return Some(parked);
                }
                (entry.disturbed, entry.proven) = (0, true);
                self.stats.made += 1;
                let waiting = Waiting::new(version, parked);
                match entry.recipe.mode {
                    Mode::Reserve => entry.parked.push_back(waiting),
                    // What the old one has left shares its layout.
                    Mode::Fork => {
                        self.gone.extend(entry.drain());
                        entry.parent = Some(waiting);
                    }
                }
                None
            }
            Ok(parked) => Some(parked),
            // It was another version's, which a start has put away meanwhile.
            Err(_) if entry.version != version => None,
            Err(why) => {
                // A file that was replaced is recorded anew; all else stays as it is until something changes.
                if entry.recipe.template.revalidate().is_err() {
                    let path = entry.recipe.template.path().map(std::path::Path::to_owned);
                    match path.map(Template::open) {
                        Some(Ok(template)) => {
                            Arc::make_mut(&mut entry.recipe).template = template;
                            entry.cannot = can_park(&entry.recipe).err();
                        }
                        // Until a start finds it again.
                        _ => entry.cannot = Some("not found"),
                    }
                    return None;
                }
                let (why, again) = match why {
                    NotParked::Now(why) => (why, true),
                    // What has been parked before met with something.
                    NotParked::Ever(why) => (why, entry.proven),
                };
                entry.disturbed += 1;
                entry.due = Instant::now() + AGAIN;
                entry.cannot = (!again || entry.disturbed >= ATTEMPTS).then(|| reason(&why));
                None
            }
        }
    }

    /// How many processes there are, and their memory.
    fn held(&self) -> (usize, u64) {
        let all = self.entries.iter().flat_map(Entry::waiting);
        let taken: usize = self.entries.iter().map(|entry| entry.taken).sum();
        (all.clone().count() + taken, all.map(|shared| shared.memory).sum())
    }

    /// Whether all that can be parked is.
    pub(super) fn is_full(&self) -> bool {
        let (parked, memory) = self.held();
        let room = parked < self.options.processes && memory < self.options.memory;
        let done = |entry: &Entry| entry.cannot.is_some() || !entry.is_missing();
        !room || self.entries.iter().all(done)
    }

    /// Whether nothing is parked for the time being.
    pub(super) fn is_held_up(&self) -> bool {
        self.shared.is_none() || !standard_is_open()
    }

    /// Nobody is to wait for what could be parked now.
    pub(super) fn hurry(&mut self) {
        let now = Instant::now();
        for entry in &mut self.entries {
            entry.due = entry.due.min(now);
            if entry.asleep {
                (entry.asleep, entry.used) = (false, now);
            }
        }
    }

    pub(super) fn stats(&self) -> WarmStats {
        let (_, memory) = self.held();
        let cannot =
            self.entries.iter().filter_map(|entry| Some((entry.recipe.name().to_owned(), entry.cannot?.to_owned())));
        WarmStats {
            parked: self.entries.iter().map(|entry| entry.waiting().count()).sum(),
            memory,
            cannot: cannot.collect::<BTreeMap<_, _>>(),
            ..self.stats.clone()
        }
    }

    pub(super) fn close(&mut self) -> Vec<Waiting> {
        self.shared = None;
        self.entries.drain(..).flat_map(|mut entry| entry.drain().collect::<Vec<_>>()).collect()
    }
}
