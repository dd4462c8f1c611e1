// SPDX-License-Identifier: MIT OR Apache-2.0
//! Warm starts: programs from processes that have been started ahead and wait at main(), or after an interpreter's initialisation.
//!
//! `Warm` holds what is to be parked; its keeper, a thread, parks it (`keeper.rs`). A start asks for an [`Offer`]: whether there is a
//! parked process for this command, and whether the calling thread is its equal ([`CallerState`]). The command's plan then goes to the
//! parked process in a message (`wire.rs`), which `spawnfd-parked` carries out there as the child would. For any
//! reason not to, the program is started cold, and the reason counted. What executes any program (its zygote) parks, and is asked, in
//! just the same way. See docs/warm.md.

mod caller;
mod channel;
mod confinement;
mod entry;
mod fork;
mod image;
mod keeper;
mod kind;
mod leased;
mod making;
mod mounts;
mod offer;
mod options;
mod parked;
mod prefix;
mod recipe;
mod referent;
mod refill;
mod request;
mod start;
mod state;
mod watch;
mod wire;

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spawnfd_sys::Errno;

pub use kind::Kind;
pub use options::{Mode, Park, WarmOptions, WarmStats};

use crate::command::Command;
use crate::error::{Error, Result, Stage, from_io};
use crate::host::per_process::PerProcess;
use crate::template::Template;
use channel::Failed;
use confinement::Confinement;
use keeper::Keeper;
use leased::LeasedProcess;
use prefix::Prefix;
use state::{NOT_ADDED, WarmState};

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
    state: Arc<PerProcess<WarmState>>,
    keeper: Arc<Keeper>,
    /// How many programs are kept that were not added.
    keep: usize,
}

/// What is parked anew more often does nothing else.
const SHORTEST: Duration = Duration::from_millis(100);

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
        let state = WarmState::new(options).map_err(failed)?;
        let state = Arc::new(PerProcess::here(state, WarmState::default));
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
        let confinement =
            Confinement::new(&park).map_err(|error| failed(("fcntl(F_DUPFD_CLOEXEC)", from_io(&error))))?;
        self.state.lock().add(template, prefix, confinement, park);
        self.wake_keeper().map_err(|errno| Error::new(Stage::Warm, errno, "clone()"))
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
    /// In mode fork they are children of a zygote, forked from its memory and this process's own
    /// ([`Started::Zygote`](crate::Started::Zygote)). In mode reserve they are a pool, started by exec
    /// ([`Started::Pool`](crate::Started::Pool)). The mode is that of the
    /// [`WarmOptions`] if `None`. As an exec follows, any program will do: static ones, scripts, other interpreters.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM. EAGAIN: no thread can be started.
    pub fn add_any(&self, depth: usize, mode: Option<Mode>) -> Result<()> {
        let zygote = Template::from_descriptor(image::zygote_file().map_err(failed)?)?;
        self.state.lock().add_any(zygote, depth, mode);
        self.wake_keeper().map_err(|errno| Error::new(Stage::Warm, errno, "clone()"))
    }

    /// Has the keeper look at once; no thread is started where all is switched off.
    fn wake_keeper(&self) -> std::result::Result<(), Errno> {
        let mut state = self.state.lock();
        let idle = state.switch(is_off()) && state.gone.is_empty();
        drop(state);
        if idle { Ok(()) } else { self.keeper.wake(Duration::ZERO) }
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
            let _ = self.keeper.wake(Duration::ZERO);
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
        // The keeper may have parked another process meanwhile.
        let gone = self.state.lock().left_over();
        drop(gone);
    }

    /// A process that executes any program. `reason`: why no process of the program's own serves the command.
    fn take_any(&self, reason: &'static str) -> std::result::Result<LeasedProcess, &'static str> {
        let any = self.state.lock().take_any();
        match any {
            Some(Err(any)) if reason == NOT_ADDED => Err(any),
            Some(Ok(leased)) => self.fork_if_parent(leased),
            _ => Err(reason),
        }
    }

    /// The leased process; if that is the parent that others are forked from, a new child of it.
    fn fork_if_parent(&self, leased: LeasedProcess) -> std::result::Result<LeasedProcess, &'static str> {
        if !leased.is_parent {
            return Ok(leased);
        }
        let forked = leased.lock().fork(1);
        let mut state = self.state.lock();
        let outcome = state.forked_for_start(leased, forked);
        let left_over = state.left_over();
        drop(state);
        drop(left_over);
        outcome
    }
}

impl Command<'_> {
    /// Starts the program from a parked process, if there is one for it; else as ever. See [`Warm`].
    pub fn warm(&mut self, warm: &Warm) -> &mut Self {
        self.parked = Some(Arc::new(warm.clone()));
        self
    }
}

/// [`Warm::turn_off`] has been called.
static OFF: AtomicBool = AtomicBool::new(false);

/// Whether the environment turns warm starts off. Only callers ask: the host may change the environment at any time.
fn is_off() -> bool {
    std::env::var_os("SPAWNFD_WARM").is_some_and(|value| value == "0")
}

fn failed((call, errno): Failed) -> Error {
    Error::new(Stage::Warm, errno, call)
}
