// SPDX-License-Identifier: MIT OR Apache-2.0
//! Warm starts: programs from processes that have been started ahead and wait at main(), or after an interpreter's initialisation.
//!
//! `Warm` holds what is to be parked; its keeper, a thread, parks it (`keeper.rs`). A start asks for an [`Offer`]: whether there is a
//! parked process for this command, and whether the calling thread is its equal ([`Standing`]). The command's plan then goes to the
//! parked process in a message (`wire.rs`), which `spawnfd-parked` carries out there as the child would. For any
//! reason not to, the program is started cold, and the reason counted. What executes any program (its zygote) parks, and is asked, in
//! just the same way. See docs/warm.md.

mod confinement;
mod entry;
mod held;
mod image;
mod keeper;
mod kind;
mod line;
mod making;
mod mounts;
mod parked;
mod prefix;
mod referent;
mod standing;
mod state;
mod tend;
mod watch;
mod wire;

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode as FileMode, OFlags, openat};
use spawnfd_child::{Op, Step};
use spawnfd_parked::protocol;
use spawnfd_sys::Errno;
use spawnfd_sys::call::FilterInstruction;

pub use kind::Kind;

use crate::command::{Command, Order, ParkedOffer, ParkedOutcome, ParkedSource};
use crate::env::Env;
use crate::error::from_io;
use crate::error::{Error, Result, Stage};
use crate::host::numbers::above_standard;
use crate::host::per_process::PerProcess;
use crate::sandbox::Sandbox;
use crate::template::Template;
use confinement::{CONFINED, Confinement};
use held::Held;
use keeper::Keeper;
use parked::{Answer, Parked};
use prefix::{Inside, Prefix};
use state::{ARGUMENTS, NOT_ADDED, State};
use wire::Request;

/// Programs that are kept warm: started ahead, waiting to become what a command asks for.
///
/// A command that is given one ([`Command::warm`]) starts from a parked process if there is one for it, and if it may do and has just
/// what a child of the calling thread would; otherwise it starts as ever. [`Started`](crate::Started) tells which, and why not. Nothing else
/// differs, but for what `docs/warm.md` lists.
///
/// Clones share the processes. They end with the last clone, with [`close`](Warm::close), or with the process that made it, and there is
/// a thread that starts them. They are children of this process: `wait(-1)` sees one that has ended. In a fork's copy
/// there are none.
///
/// `SPAWNFD_WARM=0` in the environment turns all of it off, and so does [`turn_off`](Warm::turn_off): nothing is parked then.
///
/// # Examples
/// ```
/// use spawnfd::{Command, Park, Started, Warm, WarmOptions};
/// let warm = Warm::new(WarmOptions::default())?;
/// warm.add("sh", Park::default())?;
/// warm.fill(std::time::Duration::from_secs(10));
/// let output = Command::new("sh").args(["-c", "echo $0 $1", "a", "b"]).warm(&warm).run()?;
/// assert_eq!(output.stdout, b"a b\n");
/// assert_eq!(output.started, Started::Reserve);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Warm {
    state: Arc<PerProcess<State>>,
    keeper: Arc<Keeper>,
    /// How many programs are kept that were not added.
    keep: usize,
}

/// How parked processes are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Mode {
    /// Each becomes one program: with a memory layout and secrets of its own.
    #[default]
    Reserve,
    /// They are forked from one: they share layout, and whatever was drawn or read before they were forked.
    Fork,
}

impl Mode {
    fn letter(self) -> char {
        match self {
            Mode::Reserve => protocol::Mode::Reserve as u8 as char,
            Mode::Fork => protocol::Mode::Fork as u8 as char,
        }
    }
}

/// Bounds of a [`Warm`].
#[derive(Clone, Debug)]
pub struct WarmOptions {
    /// How parked processes are used, where [`Park`] does not say.
    pub mode: Mode,
    /// How much memory parked processes may have for themselves, in bytes. More are not started then.
    pub memory: u64,
    /// How many there may be.
    pub processes: usize,
    /// How many programs that were not added are kept warm from their first start on; the one last used longest ago gives way. 0: none.
    /// They are parked with few variables (PATH, HOME, locale, loader's and interpreters' own) of that start.
    pub keep: usize,
    /// After how long without use the processes of a program are ended. The next start is cold, and parks it again.
    pub idle: Duration,
    /// How long after a start the next process is parked: what runs goes first.
    pub delay: Duration,
    /// Mode fork: after how many births the process they are forked from is replaced; after more if as many wait.
    pub forks: u64,
    /// Mode fork: after how long; a tenth of a second at least.
    pub age: Duration,
}

/// What is parked anew more often does nothing else.
const SHORTEST: Duration = Duration::from_millis(100);

impl Default for WarmOptions {
    fn default() -> WarmOptions {
        WarmOptions {
            mode: Mode::default(),
            memory: 512 << 20,
            processes: 64,
            keep: 0,
            idle: Duration::from_secs(300),
            delay: Duration::from_millis(2),
            forks: 1000,
            age: Duration::from_secs(600),
        }
    }
}

/// How one program is parked.
#[derive(Clone, Debug, Default)]
pub struct Park {
    /// How many processes wait; two if 0. In mode fork they are forked from one more.
    pub depth: usize,
    /// Its mode, if it is not that of the [`WarmOptions`].
    pub mode: Option<Mode>,
    /// Arguments that all starts have first: an interpreter's options.
    pub args: Vec<OsString>,
    /// The environment it is parked with, this process's if `None`. A start with another one is warm if what was looked at before parking
    /// is the same in both.
    pub env: Option<Env>,
    /// Where it parks; by the program's name if `None`.
    pub kind: Option<Kind>,
    /// Modules an interpreter loads before it parks; for Node.js, of its own ones.
    pub preload: Vec<OsString>,
    /// The command through which this program is started: `bwrap --unshare-net …`. The parked process sits inside that sandbox, and serves
    /// commands that run this program so ([`Command::sandbox`]), word for word, with this environment and directory, in a session of
    /// their own (as runs do). They give it the same files, unchanged, if it is given any.
    pub sandbox: Option<Sandbox>,
    /// With a sandbox: where it is started; the host's working directory if `None`.
    pub current_dir: Option<PathBuf>,
    /// It parks with no_new_privs, and serves commands that [ask for it](Command::no_new_privs).
    pub no_new_privs: bool,
    /// It parks inside this Landlock ruleset, and serves commands whose first [`landlock`](Command::landlock) is the same one: a
    /// duplicate of this descriptor. Rules that are added to the ruleset later are not in force in what is parked.
    pub landlock: Option<Arc<OwnedFd>>,
    /// It parks under this seccomp filter, and serves commands that ask for [the same](Command::seccomp); empty: those that ask for none.
    pub seccomp: Vec<FilterInstruction>,
}

impl Park {
    /// Where this program is parked.
    fn kind_of(&self, template: &Template) -> Kind {
        self.kind.unwrap_or_else(|| template.path().map_or(Kind::Main, Kind::of))
    }
}

/// What a [`Warm`] has done, and has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct WarmStats {
    /// Starts from a process of their own.
    pub reserve: u64,
    /// Starts by a fork.
    pub fork: u64,
    /// Starts by a zygote.
    pub zygote: u64,
    /// Starts from the pool.
    pub pool: u64,
    /// Starts by clone and exec, by the reason.
    pub cold: BTreeMap<&'static str, u64>,
    /// Processes that wait.
    pub parked: usize,
    /// Their own memory as they were parked, in bytes.
    pub memory: u64,
    /// Processes parked so far.
    pub made: u64,
    /// Programs that cannot be parked, or not now, and why.
    pub cannot: BTreeMap<OsString, String>,
}

impl Warm {
    /// Begins with nothing. The thread is started by the first [`add`](Warm::add).
    ///
    /// # Errors
    /// EINVAL: `age` is too short. EMFILE, ENFILE, ENOMEM. EFBIG: RLIMIT_FSIZE. ENOSPC: no more inotify instances
    /// (fs.inotify.max_user_instances).
    pub fn new(options: WarmOptions) -> Result<Warm> {
        if options.age < SHORTEST {
            return Err(Error::invalid(format!("warm(age = {:?})", options.age)));
        }
        let keep = options.keep;
        let state = State::new(options).map_err(|(call, errno)| Error::new(Stage::Warm, errno, call))?;
        let state = Arc::new(PerProcess::here(state, State::none));
        Ok(Warm { keeper: Arc::new(Keeper::new(&state)), state, keep })
    }

    /// Keeps a program warm: an absolute path, or a name searched in PATH. It is parked in the background; see [`fill`](Warm::fill).
    ///
    /// Whether it can be parked shows then, too ([`WarmStats::cannot`]): adding one that cannot be is no error.
    ///
    /// # Errors
    /// As [`Template::search`]. EAGAIN: no thread can be started.
    pub fn add(&self, program: impl AsRef<OsStr>, park: Park) -> Result<()> {
        let path = park.env.as_ref().and_then(|env| env.get("PATH").map(OsStr::to_owned));
        let path = path.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
        self.add_template(&Template::search(program, path)?, park)
    }

    fn prefix(template: &Template, park: &Park) -> Result<Option<Prefix>> {
        let Some(sandbox) = &park.sandbox else {
            return match &park.current_dir {
                Some(directory) => Err(Error::invalid(format!("add: current_dir {directory:?} without a sandbox"))),
                None => Ok(None),
            };
        };
        let front = Template::open(&sandbox.program)?;
        let directory = park.current_dir.as_deref().map(prefix::directory).transpose()?;
        Ok(Some(Prefix::new(front, sandbox, template.name(), directory)))
    }

    /// The same for a template. When its file changes it is recorded anew.
    ///
    /// # Errors
    /// EAGAIN: no thread can be started. EMFILE. EINVAL: a directory without a sandbox; modules for what is no interpreter.
    pub fn add_template(&self, template: &Template, park: Park) -> Result<()> {
        if park.kind_of(template) == Kind::Main && !park.preload.is_empty() {
            let call = format!("add({:?}): modules to load first, which only interpreters do", template.name());
            return Err(Error::invalid(call));
        }
        let prefix = Warm::prefix(template, &park)?;
        let confinement = Confinement::new(&park).map_err(|error| duplicated(&error))?;
        self.state.lock().add(template, prefix, confinement, park);
        self.ring().map_err(|errno| Error::new(Stage::Warm, errno, "clone()"))
    }

    /// Adds a template with the default [`Park`], unless it has been added already.
    ///
    /// # Errors
    /// EAGAIN: no thread can be started.
    pub fn add_once(&self, template: &Template) -> Result<()> {
        if self.state.lock().has(template) { Ok(()) } else { self.add_template(template, Park::default()) }
    }

    /// The same processes, with [`keep`](WarmOptions::keep) at least this large for commands that use this handle.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::{Command, Started, Warm, WarmOptions};
    /// let warm = Warm::new(WarmOptions::default())?.keeping(64);
    /// assert_eq!(Command::new("true").warm(&warm).run()?.started, Started::Cold("not added"));
    /// warm.fill(std::time::Duration::from_secs(10));
    /// assert_eq!(Command::new("true").warm(&warm).run()?.started, Started::Reserve);
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn keeping(&self, programs: usize) -> Warm {
        Warm { keep: self.keep.max(programs), ..self.clone() }
    }

    /// Has every program that has no parked process of its own, or cannot be started from it, executed by a process that was started
    /// ahead for that: `depth` of them wait, two if 0.
    ///
    /// In mode fork they are children of a zygote, born of its memory and this process's own
    /// ([`Started::Zygote`](crate::Started::Zygote)). In mode reserve they are a pool, started by exec
    /// ([`Started::Pool`](crate::Started::Pool)). The mode is that of the
    /// [`WarmOptions`] if `None`. As an exec follows, any program will do: static ones, scripts, other interpreters.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM. EAGAIN: no thread can be started.
    pub fn add_any(&self, depth: usize, mode: Option<Mode>) -> Result<()> {
        self.state.lock().add_any(image::zygote()?, depth, mode);
        self.ring().map_err(|errno| Error::new(Stage::Warm, errno, "clone()"))
    }

    /// Has the keeper look at once; no thread is started where all is switched off.
    fn ring(&self) -> std::result::Result<(), Errno> {
        let mut state = self.state.lock();
        let idle = state.switch(is_off()) && state.gone.is_empty();
        drop(state);
        if idle { Ok(()) } else { self.keeper.ring(Duration::ZERO) }
    }

    /// Turns all warm starts of this process off, for good, as `SPAWNFD_WARM=0` does: what is parked ends within a second or two, and nothing more is
    /// parked. Starts are cold; [`fill`](Warm::fill) is `false`.
    pub fn turn_off() {
        OFF.store(true, Ordering::Relaxed);
    }

    /// Waits until all that can be parked is, as often as it should be; `false` if that takes longer than `timeout`, or cannot be
    /// done now: it is closed or switched off, this process has closed 0, 1 or 2, or something was missing several times ([`WarmStats::cannot`]), for
    /// which it goes on to look now and then.
    pub fn fill(&self, timeout: Duration) -> bool {
        let begun = Instant::now();
        let deadline = begun.checked_add(timeout);
        loop {
            {
                let mut state = self.state.lock();
                if state.switch(is_off()) {
                    return false;
                }
                state.hurry();
                if state.is_full() {
                    return true;
                }
                if state.is_held_up(begun) {
                    return false;
                }
            }
            let _ = self.keeper.ring(Duration::ZERO);
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What it has done so far, in this process.
    pub fn stats(&self) -> WarmStats {
        self.state.lock().stats()
    }

    /// Ends all parked processes and the thread. Commands that still have it start cold.
    pub fn close(&self) {
        let gone = self.state.lock().close();
        self.keeper.end();
        drop(gone);
        // What the keeper was about meanwhile.
        let gone = self.state.lock().left_over();
        drop(gone);
    }

    /// One that executes any program, where `reason` is in the way of the program's own.
    fn take_any(&self, reason: &'static str) -> std::result::Result<Held, &'static str> {
        let any = self.state.lock().take_any();
        match any {
            Some(Err(any)) if reason == NOT_ADDED => Err(any),
            Some(Ok(held)) => self.born(held),
            _ => Err(reason),
        }
    }

    /// What a start has taken; or, where that is what others are forked from, and all these are in use, one more of them.
    fn born(&self, held: Held) -> std::result::Result<Held, &'static str> {
        if !held.is_parent {
            return Ok(held);
        }
        let born = held.lock().fork(1);
        let mut state = self.state.lock();
        let outcome = state.forked_now(held, born);
        let left_over = state.left_over();
        drop(state);
        drop(left_over);
        outcome
    }
}

impl ParkedSource for Warm {
    fn inspect<'a>(
        &'a self,
        command: &Command<'_>,
        template: &Template,
    ) -> std::result::Result<Box<dyn ParkedOffer + 'a>, &'static str> {
        let off = is_off();
        if off {
            self.state.lock().switch(off);
            return Err("off");
        }
        if let Some(reason) = command.needs_calling_thread().or_else(|| command.needs_exec()) {
            return Err(reason);
        }
        let own = {
            let mut state = self.state.lock();
            state.switch(off);
            state.take(template, command).inspect_err(|why| {
                if matches!(*why, NOT_ADDED | ARGUMENTS) {
                    state.keep(template, command, self.keep);
                }
            })
        };
        let held = own.and_then(|held| self.born(held)).or_else(|reason| self.take_any(reason))?;
        let mut offer = Offer { warm: self, held: Some(held), streams: [false; 3] };
        offer.streams = command.open_streams()?;
        Ok(Box::new(offer))
    }

    fn count_cold(&self, reason: &'static str) {
        let wanted = self.state.lock().count_cold(reason);
        // No thread is started if there is nothing to park.
        if let Some(delay) = wanted {
            let _ = self.keeper.ring(delay);
        }
    }
}

impl Command<'_> {
    /// Starts the program from a parked process, if there is one for it; else as ever. See [`Warm`].
    pub fn warm(&mut self, warm: &Warm) -> &mut Self {
        self.parked = Some(Arc::new(warm.clone()));
        self
    }
}

/// A parked process that a start has for itself; given back on drop if nothing has come of it.
#[derive(Debug)]
pub(crate) struct Offer<'a> {
    warm: &'a Warm,
    held: Option<Held>,
    streams: [bool; 3],
}

impl ParkedOffer for Offer<'_> {
    fn streams(&self) -> [bool; 3] {
        self.streams
    }

    fn start(mut self: Box<Self>, order: &Order<'_>) -> std::result::Result<ParkedOutcome, &'static str> {
        let executes = self.held.as_ref().is_some_and(Held::executes);
        let reason = match self.start_from_held(order) {
            Err(reason) if !executes => reason,
            outcome => return outcome,
        };
        self.finish(State::put_back);
        self.held = Some(self.warm.take_any(reason)?);
        self.start_from_held(order).map_err(|_| reason)
    }
}

impl Offer<'_> {
    fn start_from_held(&mut self, order: &Order<'_>) -> std::result::Result<ParkedOutcome, &'static str> {
        let Order { plan, template, cgroup, waits, may_block } = *order;
        let Some(held) = self.held.as_mut() else { return Err("empty") };
        held.fits(plan)?;
        // Nobody who execs lays it over.
        if held.executes() && plan.filter.is_some() {
            return Err("seccomp filter");
        }
        let mut parked = held.lock();
        if !held.is_sandboxed() {
            parked.agrees(&plan.envp)?;
        }
        let inside = held.inside(&parked, plan)?;
        // Node.js may yet refuse, and what fails inside may succeed outside; of an exec the caller is told.
        let waits = waits || held.kind() == Kind::Node || held.executes();
        if waits && may_block {
            return Err("files to open");
        }
        let waits = waits || held.is_confined();
        let steps = inside.as_ref().map_or(&plan.steps, |inside| &inside.steps);
        // A sandbox has a working directory of its own.
        let here = if !held.is_sandboxed() && is_from_here(steps) {
            let here = openat(CWD, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, FileMode::empty());
            Some(here.map(above_standard).map_err(|_| "working directory")?)
        } else {
            None
        };
        let mut sources = plan.sources.clone();
        sources.extend(inside.iter().flat_map(Inside::sources));
        let mut source = |fd: RawFd| {
            sources.push(fd);
            sources.len() - 1
        };
        let birth = cgroup.map(|(index, dir)| Step { index, op: Op::Cgroup { dir: source(dir) } });
        if held.is_confined() && birth.is_some() {
            return Err(CONFINED);
        }
        let here_at = here.as_ref().map(|here| source(here.as_raw_fd()));
        wire::fits(&sources)?;
        let request = Request {
            birth,
            steps,
            skip: inside.as_ref().map_or(0, |inside| inside.skip),
            handed_on: inside.as_ref().map_or(&[], |inside| &inside.handed_on),
            own_environment: held.is_sandboxed(),
            executes: held.executes(),
            sources,
        };
        let answer = match parked.offer(plan, &request) {
            Err(answer) => answer,
            // It gets ready meanwhile.
            Ok(claim) => match held.compare(&parked, plan, template, here_at) {
                Err(reason) => Parked::withdraw(&claim, reason),
                Ok(context) => {
                    for step in &plan.steps {
                        if let Op::Announce { to } = &step.op {
                            to.make_for(parked.pid());
                        }
                    }
                    parked.go(claim, &context, (!waits).then_some(plan))
                }
            },
        };
        drop(parked);
        match answer {
            Answer::Program(child) => {
                self.finish(State::used);
                Ok(Ok(*child))
            }
            Answer::Failed(failure) => {
                // Outside it may not.
                let confined = held.is_confined();
                self.finish(State::spoilt);
                if confined { Err(CONFINED) } else { Ok(Err(failure)) }
            }
            Answer::Gone(reason) => {
                self.finish(State::spoilt);
                Err(reason)
            }
            Answer::Refused(reason) => Err(reason),
        }
    }

    fn finish(&mut self, end: impl FnOnce(&mut State, Held)) {
        if let Some(held) = self.held.take() {
            let mut state = self.warm.state.lock();
            end(&mut state, held);
            let left_over = state.left_over();
            let wanted = state.wants_keeper();
            drop(state);
            drop(left_over);
            // Only where something is missing, and when what runs has had its turn.
            if let Some(delay) = wanted {
                let _ = self.warm.keeper.ring(delay);
            }
        }
    }
}

impl Drop for Offer<'_> {
    fn drop(&mut self) {
        self.finish(State::put_back);
    }
}

/// [`Warm::turn_off`].
static OFF: AtomicBool = AtomicBool::new(false);

fn switched_off() -> bool {
    OFF.load(Ordering::Relaxed)
}

/// The same, or by the environment: to be asked by callers only.
fn is_off() -> bool {
    switched_off() || std::env::var_os("SPAWNFD_WARM").is_some_and(|value| value == "0")
}

/// Whether the caller's working directory is of any use to what begins with these steps.
fn is_from_here(steps: &[Step]) -> bool {
    let is_relative = |path: &CStr| !path.to_bytes().starts_with(b"/");
    for step in steps {
        match &step.op {
            Op::Chdir { path } => return is_relative(path),
            Op::Fchdir { .. } => return false,
            Op::Open { dir: None, path, .. } | Op::Chroot { path } if is_relative(path) => return true,
            _ => {}
        }
    }
    true
}

fn duplicated(error: &std::io::Error) -> Error {
    Error::new(Stage::Warm, from_io(error), "fcntl(F_DUPFD_CLOEXEC)")
}
