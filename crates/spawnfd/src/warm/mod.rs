// SPDX-License-Identifier: MIT OR Apache-2.0
//! Warm starts: a program starts from a process that the library has started ahead, and that waits at main() or after
//! an interpreter's initialisation.
//!
//! If a warm start is not possible, the program starts cold, and the library counts the reason. The [guide] says when to
//! use warm starts.
//!
//! [guide]: https://github.com/spawnfd/spawnfd/blob/main/docs/warm.md

// `Warm` has the programs to park; its keeper thread (`keeper.rs`) parks them. A start leases a parked
// process for the command (`candidates.rs`), and checks that the process can become the program (`request.rs`). It sends
// the command's plan to the parked process (`wire.rs`), and meanwhile compares the calling thread's state with that at
// the time of parking (`caller.rs`). Then it commits the request. In the parked process, the code of
// `spawnfd-parked` performs the plan as a child would. A zygote is a parked process that executes any program; it is
// parked and leased in the same way.

mod caller;
mod candidates;
mod channel;
mod confinement;
mod entry;
mod entry_point;
mod explain;
mod image;
mod keeper;
mod kind;
mod options;
mod parked;
mod parking;
mod recipe;
mod refill;
mod request;
mod sandbox_command;
mod spare;
mod state;
mod usage;
mod watch;
mod wire;

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use explain::Explanation;
pub use kind::Kind;
pub use options::{Mode, Park, WarmOptions, WarmStats};

use crate::command::Command;
use crate::error::{Error, Result, Stage, from_io};
use crate::host::per_process::PerProcess;
use crate::template::{Template, search_path};
use channel::CallError;
use confinement::Confinement;
use entry_point::EntryPoint;
use keeper::Keeper;
use sandbox_command::SandboxCommand;
use state::WarmState;

/// A set of parked processes: programs that the library has started ahead.
///
/// A command with a `Warm` ([`Command::warm`]) starts from a parked process if there is one for it. The process must
/// have exactly the inherited state that a child of the calling thread would have. Otherwise the program starts by
/// clone and exec. [`Started`](crate::child::Started) says which, and why. The page on [differences] lists all other
/// differences.
///
/// [differences]: https://github.com/spawnfd/spawnfd/blob/main/docs/warm-differences.md
///
/// Clones share the parked processes. The processes end with the last clone, with [`close`](Warm::close), or with the
/// owner process. A thread starts them. They are children of this process: `wait(-1)` returns one that has ended. A
/// fork's copy of the host has no parked processes.
///
/// `SPAWNFD_WARM=0` in the environment turns warm starts off, and so does [`turn_off`](Warm::turn_off): the library
/// then parks no processes.
///
/// # Examples
/// ```
/// use spawnfd::child::Started;
/// use spawnfd::warm::{Park, WarmOptions};
/// use spawnfd::{Command, Warm};
/// let warm = Warm::new(WarmOptions::default())?;
/// warm.add("sh", Park::default())?;
/// warm.fill(std::time::Duration::from_secs(10));
/// let output = Command::new("sh").args(["-c", "echo $0 $1", "a", "b"]).warm(&warm).run()?;
/// assert_eq!(output.stdout, b"a b\n");
/// assert_eq!(output.started, Started::Reserve);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "dropping the last handle ends the parked processes"]
#[derive(Clone, Debug)]
pub struct Warm {
    state: Arc<PerProcess<WarmState>>,
    keeper: Arc<Keeper>,
    /// The largest number of programs that the library keeps warm without a call of `add`.
    keep: usize,
    /// True for a handle that only [`explain`](Warm::explain) uses: its starts do not count.
    explains: bool,
}

/// The shortest allowed `age`. With a shorter age, the keeper would only replace parked processes.
const SHORTEST: Duration = Duration::from_millis(100);

impl Warm {
    /// Creates a `Warm` without programs. The first [`add`](Warm::add) starts the thread.
    ///
    /// # Errors
    /// EINVAL: `age` is too short. EMFILE, ENFILE, ENOMEM. EFBIG: RLIMIT_FSIZE is too low. ENOSPC: the user has too
    /// many inotify instances (fs.inotify.max_user_instances).
    pub fn new(options: WarmOptions) -> Result<Warm> {
        if options.age < SHORTEST {
            return Err(Error::invalid(format!("warm(age = {:?})", options.age)));
        }
        let keep = options.keep;
        let state = WarmState::new(options).map_err(failed)?;
        let state = Arc::new(PerProcess::for_this_process(state, WarmState::default));
        Ok(Warm { keeper: Arc::new(Keeper::new(&state)), state, keep, explains: false })
    }

    /// Keeps a program warm. `program` is an absolute path, or a name to search in PATH now, in which relative parts
    /// start at this process's directory. The keeper thread parks it
    /// in the background; [`fill`](Warm::fill) waits for that.
    ///
    /// The keeper also finds out whether the program can be parked ([`WarmStats::cannot`]). Adding a program that
    /// cannot be parked is no error.
    ///
    /// # Errors
    /// The errors of [`Template::search`]. EAGAIN: the keeper thread cannot be started. EINVAL: the `Warm` is closed.
    pub fn add(&self, program: impl AsRef<OsStr>, park: Park) -> Result<()> {
        let path = park.env.as_ref().and_then(|env| env.get("PATH").map(OsStr::to_owned));
        let path = path.unwrap_or_else(search_path);
        self.add_template(&Template::search(program, path)?, park)
    }

    fn entry_point(template: &Template, park: &Park) -> Result<Option<EntryPoint>> {
        let Some(entry) = &park.entry else { return Ok(None) };
        let invalid = |why| Error::invalid(format!("add({:?}, entry = {entry:?}): {why}", template.name()));
        if park.kind_of(template) != Kind::Python {
            return Err(invalid("an entry, which only CPython has"));
        }
        if park.sandbox.is_some() {
            return Err(invalid("an entry in a sandbox"));
        }
        EntryPoint::parse(entry, park.current_dir.as_deref()).map(Some)
    }

    fn sandbox_command(template: &Template, park: &Park) -> Result<Option<SandboxCommand>> {
        let Some(sandbox) = &park.sandbox else {
            return match &park.current_dir {
                Some(directory) if park.entry.is_none() => {
                    Err(Error::invalid(format!("add: current_dir {directory:?} without a sandbox or an entry")))
                }
                _ => Ok(None),
            };
        };
        let sandbox_template = Template::open(&sandbox.program)?;
        let directory = park.current_dir.as_deref().map(sandbox_command::directory).transpose()?;
        Ok(Some(SandboxCommand::new(sandbox_template, sandbox, template.name(), directory)))
    }

    /// Keeps the program of a template warm, like [`add`](Warm::add). When the file changes, the
    /// library records it again.
    ///
    /// # Errors
    /// EAGAIN: no thread can be started. EMFILE. EINVAL: a directory without a sandbox or an entry, or modules for a
    /// program that is no interpreter, or an invalid [`entry`](Park::entry), or the `Warm` is closed.
    pub fn add_template(&self, template: &Template, park: Park) -> Result<()> {
        if park.kind_of(template) == Kind::Main && !park.preload.is_empty() {
            let call = format!("add({:?}): modules to load first, which only interpreters do", template.name());
            return Err(Error::invalid(call));
        }
        let entry_point = Warm::entry_point(template, &park)?;
        let sandbox = Warm::sandbox_command(template, &park)?;
        let confinement =
            Confinement::new(&park).map_err(|error| failed(("fcntl(F_DUPFD_CLOEXEC)", from_io(&error))))?;
        let mut state = self.state.lock();
        state.check_open("add")?;
        state.add(template, entry_point, sandbox, confinement, park);
        drop(state);
        self.wake_keeper()
    }

    /// Keeps the program of a command warm, as [`keep`](WarmOptions::keep) does after a first start: with the command's
    /// interpreter options, and with the variables of its environment that loaders and interpreters read. Returns
    /// `false` if the library cannot tell the command's options from its other arguments.
    ///
    /// # Errors
    /// The errors of [`Template::search`]. EAGAIN: no thread can be started. EINVAL: the `Warm` is closed.
    pub fn add_command(&self, command: &Command<'_>) -> Result<bool> {
        let (template, _) = command.template()?;
        let mut state = self.state.lock();
        state.check_open("add_command")?;
        let is_added = state.add_command(&template, command).is_some() || state.has_program(&template);
        drop(state);
        self.wake_keeper()?;
        Ok(is_added)
    }

    /// Adds a template with the default [`Park`], unless it has been added already. Additions with an entry point, a
    /// sandbox or another confinement do not count.
    ///
    /// # Errors
    /// EAGAIN: no thread can be started.
    pub fn add_once(&self, template: &Template) -> Result<()> {
        if self.state.lock().has_program(template) { Ok(()) } else { self.add_template(template, Park::default()) }
    }

    /// Returns a handle to the same parked processes, with [`keep`](WarmOptions::keep) at least `programs` for
    /// commands that use this handle.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::child::Started;
    /// use spawnfd::warm::WarmOptions;
    /// use spawnfd::{Command, Warm};
    /// let warm = Warm::new(WarmOptions::default())?.keeping(64);
    /// assert_eq!(Command::new("true").warm(&warm).run()?.started, Started::Cold("not added"));
    /// warm.fill(std::time::Duration::from_secs(10));
    /// assert_eq!(Command::new("true").warm(&warm).run()?.started, Started::Reserve);
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn keeping(&self, programs: usize) -> Warm {
        Warm { keep: self.keep.max(programs), ..self.clone() }
    }

    /// Adds processes that execute any program, for commands that no other parked process can serve. `depth` of them
    /// wait; two if 0.
    ///
    /// In mode fork a zygote forks them. They are children of this process and have a copy of the zygote's memory,
    /// not of this process's memory ([`Started::Zygote`](crate::child::Started::Zygote)). In mode reserve they form a pool
    /// of processes that were started by exec ([`Started::Pool`](crate::child::Started::Pool)). If `mode` is `None`, the
    /// mode of the [`WarmOptions`] applies. Each process executes the program, so the program can be of any kind: a
    /// static one, a script, or an interpreter.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM. EAGAIN: no thread can be started. EINVAL: the `Warm` is closed.
    pub fn add_any(&self, depth: usize, mode: Option<Mode>) -> Result<()> {
        let zygote = Template::from_descriptor(image::zygote_file().map_err(failed)?)?;
        let mut state = self.state.lock();
        state.check_open("add_any")?;
        state.add_any(zygote, depth, mode);
        drop(state);
        self.wake_keeper()
    }

    /// Wakes the keeper. Does nothing if warm starts are off and the keeper has no process to end.
    fn wake_keeper(&self) -> Result<()> {
        let mut state = self.state.lock();
        let idle = state.update_turned_off(is_off()) && state.to_end.is_empty();
        drop(state);
        let woken = if idle { Ok(()) } else { self.keeper.wake(Duration::ZERO) };
        woken.map_err(|errno| Error::new(Stage::Warm, errno, "clone()"))
    }

    /// Turns all warm starts of this process off permanently, as `SPAWNFD_WARM=0` does. Parked processes end within
    /// two seconds, and the library parks no more. Programs start cold, and [`fill`](Warm::fill) returns `false`.
    pub fn turn_off() {
        OFF.store(true, Ordering::Relaxed);
    }

    /// Waits until every program that can be parked has its full number of processes. Returns `true` if every program
    /// has been parked. Returns `false` if this takes longer than `timeout`, or if it is impossible now:
    ///
    /// - the `Warm` is closed, or warm starts are turned off
    /// - this process has closed descriptor 0, 1 or 2
    /// - a program cannot be parked ([`WarmStats::cannot`]); `fill` still waits for the other programs first
    /// - a resource was missing several times ([`WarmStats::cannot`]); the keeper tries again at intervals
    pub fn fill(&self, timeout: Duration) -> bool {
        let started_at = Instant::now();
        let deadline = started_at.checked_add(timeout);
        loop {
            if let Some(filled) = self.try_fill(started_at) {
                return filled;
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The same as [`fill`](Warm::fill), without a wait: `None` while the keeper parks processes. The caller asks again
    /// within a millisecond, and passes the time of its first call.
    #[doc(hidden)]
    pub fn try_fill(&self, started_at: Instant) -> Option<bool> {
        {
            let mut state = self.state.lock();
            if state.update_turned_off(is_off()) {
                return Some(false);
            }
            state.retry_now();
            if state.is_full() || state.is_blocked(started_at) {
                // Another caller of this function asks again within a millisecond.
                state.filling_until = None;
                return Some(state.is_full() && state.has_no_failures());
            }
            state.fill_now();
        }
        let _ = self.keeper.wake(Duration::ZERO);
        None
    }

    /// Returns the counters of this process. A forked copy of the host starts with zeros.
    pub fn stats(&self) -> WarmStats {
        self.state.lock().stats()
    }

    /// Ends all parked processes and the thread. Commands that still use this `Warm` start cold.
    pub fn close(&self) {
        let to_end = self.state.lock().close();
        self.keeper.end();
        drop(to_end);
        // The keeper may have parked another process before it ended.
        let to_end = self.state.lock().take_remaining();
        drop(to_end);
    }
}

impl Command<'_> {
    /// Starts the program from a parked process if there is one for it, else cold. See [`Warm`].
    pub fn warm(&mut self, warm: &Warm) -> &mut Self {
        self.parked = Some(Arc::new(warm.clone()));
        self
    }
}

/// True once the application has called [`Warm::turn_off`].
static OFF: AtomicBool = AtomicBool::new(false);

/// Whether the environment turns warm starts off. Only calling threads read the environment: the host may change it
/// at any time.
fn is_off() -> bool {
    std::env::var_os("SPAWNFD_WARM").is_some_and(|value| value == "0")
}

fn failed((call, errno): CallError) -> Error {
    Error::new(Stage::Warm, errno, call)
}
