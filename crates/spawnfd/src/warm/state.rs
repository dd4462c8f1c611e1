// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is kept warm, and what waits: changed by starts and by the keeper, under one lock that is never held while anybody waits.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use spawnfd_child::{Op, Plan};
use spawnfd_sys::{Errno, abi, call};

use super::parked::{NotParked, Parked, Recipe};
use super::sandbox::{Inside, Prefix};
use super::standing::Standing;
use super::watch::Watch;
use super::wire::Context;
use super::{Kind, Mode, Park, WarmOptions, WarmStats, image, reason};
use crate::env::Env;
use crate::error::errno;
use crate::numbers::standard_is_open;
use crate::template::Template;

/// How long the keeper waits where the host has a standard stream closed.
const LATER: Duration = Duration::from_millis(50);
/// How often a program is parked anew because a file of its has changed meanwhile.
const PATIENCE: u32 = 50;

/// As good as no limit.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// How many children are forked at once.
const AT_ONCE: usize = 16;

/// When to try again what failed for want of something, and how often.
const AGAIN: Duration = Duration::from_millis(200);
const ATTEMPTS: u32 = 5;

/// One program.
#[derive(Debug)]
struct Entry {
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
    /// How often in a row something has changed while it was being parked.
    disturbed: u32,
    /// Not before then.
    due: Instant,
    used: Instant,
    asleep: bool,
    /// Tells what was parked before a change from what is parked now.
    version: u64,
}

impl Entry {
    /// What a command for it runs.
    fn started(&self) -> &Template {
        self.recipe.prefix.as_ref().map_or(&self.recipe.template, |prefix| &prefix.template)
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

/// What a start is given.
pub(super) enum Taken {
    /// A process of its own.
    Waiting(Held),
    /// One that is to be forked for it.
    Parent(Held),
}

/// One that a start has taken.
#[derive(Debug)]
pub(super) struct Held {
    entry: u64,
    recipe: Arc<Recipe>,
    shared: Waiting,
}

impl Held {
    pub(super) fn kind(&self) -> Kind {
        self.recipe.kind
    }

    pub(super) fn is_sandboxed(&self) -> bool {
        self.recipe.prefix.is_some()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Parked> {
        self.shared.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of the plan is to be done in a sandbox; `None`: it is in none.
    ///
    /// # Errors
    /// What nobody but the program in front could do.
    pub(super) fn inside(&self, parked: &Parked, plan: &Plan) -> Result<Option<Inside>, &'static str> {
        self.recipe.prefix.as_ref().map(|prefix| prefix.inside(plan, parked.environment())).transpose()
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
        let mut steps = parked.birth.standing.steps_to(&now)?;
        match here {
            Some(dir) => steps.push(Op::Fchdir { dir }),
            None if steps.len() > 1 => return Err("limits"),
            None => {}
        }
        if now.is_ordinary() && self.recipe.mode == Mode::Reserve {
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
    if let Some(prefix) = &recipe.prefix {
        image::hands_on(&prefix.template)?;
        // A fork would not be a child of the one in front.
        if recipe.mode == Mode::Fork {
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

    pub(super) fn add(&mut self, template: &Template, prefix: Option<Prefix>, park: Park) {
        let kind = park.kind.or_else(|| template.path().map(Kind::of)).unwrap_or(Kind::Main);
        let now = Instant::now();
        let recipe = Recipe {
            template: template.clone(),
            args: park.args,
            env: park.env.unwrap_or_else(Env::inherit),
            kind,
            mode: park.mode.unwrap_or(self.options.mode),
            preload: park.preload,
            prefix,
        };
        self.entries.push(Entry {
            id: self.next,
            cannot: can_park(&recipe).err(),
            recipe: Arc::new(recipe),
            depth: if park.depth == 0 { 2 } else { park.depth },
            parked: VecDeque::new(),
            parent: None,
            taken: 0,
            making: false,
            disturbed: 0,
            due: now,
            used: now,
            asleep: false,
            version: 0,
        });
        self.next += 1;
    }

    fn entry(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// Takes one that is parked for this template, and for arguments that begin so.
    pub(super) fn take(&mut self, template: &Template, args: &[OsString]) -> Result<Taken, &'static str> {
        let Some(common) = &mut self.shared else { return Err("closed") };
        let changed = common.watch.changed()?;
        self.retire(&changed);
        let now = Instant::now();
        let delay = self.options.delay;
        let path = template.path().filter(|_| !template.executed_by_descriptor());
        let mut why = "not added";
        for entry in self.entries.iter_mut().filter(|entry| path.is_some() && entry.started().path() == path) {
            let rest = match &entry.recipe.prefix {
                None => args,
                Some(prefix) => match prefix.strip(args) {
                    Some(rest) => rest,
                    None => continue,
                },
            };
            if let Err(reason) = entry.recipe.kind.fits(&entry.recipe.args, rest) {
                why = reason;
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
                entry.disturbed = 0;
                entry.due = now;
                self.gone.extend(entry.drain());
            }
            if let Some(cannot) = entry.cannot {
                why = cannot;
                continue;
            }
            let waits = entry.parked.pop_front();
            let is_there = waits.is_some();
            let Some(shared) = waits.or_else(|| entry.parent.clone()) else {
                why = if standard_is_open() { "empty" } else { "closed standard stream" };
                continue;
            };
            if entry.parked.len() + 1 >= entry.depth {
                entry.due = now + delay;
            }
            entry.taken += 1;
            let held = Held { entry: entry.id, recipe: entry.recipe.clone(), shared };
            return Ok(if is_there { Taken::Waiting(held) } else { Taken::Parent(held) });
        }
        Err(why)
    }

    /// What has come of a start's wish for one more: it has that, in the place of its parent.
    pub(super) fn forked_now(
        &mut self,
        parent: Held,
        born: Result<Vec<Parked>, &'static str>,
    ) -> Result<Held, &'static str> {
        match born.map(|mut born| born.pop()) {
            Ok(Some(parked)) => Ok(Held { shared: Waiting::new(parent.shared.version, parked), ..parent }),
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
        let (forks, again) = (self.options.forks, Instant::now() + AGAIN);
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
        match held.recipe.mode {
            Mode::Reserve => self.stats.reserve += 1,
            Mode::Fork => self.stats.fork += 1,
        }
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
    pub(super) fn count_cold(&mut self, reason: &'static str) -> Duration {
        *self.stats.cold.entry(reason).or_default() += 1;
        self.options.delay
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
            if entry.recipe.mode == Mode::Fork {
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
                work = Some(Work::Fork(Held { entry: entry.id, recipe: entry.recipe.clone(), shared }, count));
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
                if common.watch.add(id, &parked.birth.files).is_err() {
                    entry.cannot = Some("inotify");
                    return Some(parked);
                }
                if parked.is_outdated() {
                    entry.disturbed += 1;
                    entry.due = Instant::now() + self.options.delay.max(Duration::from_millis(20));
                    entry.cannot = (entry.disturbed >= PATIENCE).then_some("changing files");
                    return Some(parked);
                }
                entry.disturbed = 0;
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
                match why {
                    NotParked::Now(why) => {
                        entry.disturbed += 1;
                        entry.due = Instant::now() + AGAIN;
                        entry.cannot = (entry.disturbed >= ATTEMPTS).then(|| reason(&why));
                    }
                    NotParked::Ever(why) => entry.cannot = Some(reason(&why)),
                }
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
        let cannot = self
            .entries
            .iter()
            .filter_map(|entry| Some((entry.recipe.template.name().to_owned(), entry.cannot?.to_owned())));
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
