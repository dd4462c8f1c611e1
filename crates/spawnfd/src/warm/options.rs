// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a [`Warm`](super::Warm), and its counters.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use spawnfd_parked::protocol;
use spawnfd_sys::call::FilterInstruction;

use super::Kind;
use crate::env::Env;
use crate::sandbox::Sandbox;
use crate::template::Template;

/// How the library uses parked processes.
///
/// # Examples
/// ```
/// use spawnfd::Warm;
/// use spawnfd::warm::{Mode, Park, WarmOptions};
/// let warm = Warm::new(WarmOptions::new())?;
/// // All starts share the modules that the parent has loaded.
/// warm.add("python3", Park::new().mode(Mode::Fork).preload(["json"]))?;
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Each parked process becomes one program, with its own memory layout and its own random secrets.
    #[default]
    Reserve = protocol::Mode::Reserve as isize,
    /// The processes are forked from one parent. They share its memory layout, and all data that it read or generated
    /// before the fork.
    Fork = protocol::Mode::Fork as isize,
    /// The library chooses for each program: no parked process, mode reserve, or mode fork. It chooses from what it has
    /// measured in this process: how often the program starts, and how many starts found no parked process. It chooses
    /// mode fork only if the program's inputs are [trusted](WarmOptions::trusted).
    Auto = b'a' as isize,
}

impl Mode {
    pub(super) fn code(self) -> char {
        self as u8 as char
    }
}

settings! {
    /// Options and bounds of a [`Warm`](super::Warm).
    ///
    /// # Examples
    /// ```
    /// use spawnfd::Warm;
    /// use spawnfd::warm::WarmOptions;
    /// // Keeps the four programs that were used last warm, in at most 16 processes.
    /// let warm = Warm::new(WarmOptions::new().keep(4).processes(16).memory(128 << 20))?;
    /// assert_eq!(warm.stats().parked, 0);
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[must_use = "the options have no effect until a Warm uses them"]
    #[derive(Clone, Debug)]
    pub struct WarmOptions;

    /// Sets the mode of programs whose [`Park`] does not set one.
    mode: Mode = Mode::Reserve;
    /// Says that the inputs of all programs in mode auto are trusted, so that the library may choose mode fork. Forked
    /// programs share a memory layout and secrets. So a program that parses data of an attacker may reveal them.
    trusted: bool = false;
    /// Sets the maximum private memory of all parked processes, in bytes (512 MiB by default). For a further process,
    /// the keeper first ends processes of programs that save less time for each start and MiB.
    memory: u64 = 512 << 20;
    /// Sets the maximum number of parked processes (64 by default).
    processes: usize = 64;
    /// Sets the number of programs that the library keeps warm from their first start on, without a call of
    /// [`add`](super::Warm::add). A new program replaces the program used longest ago. 0, the default, means none. The
    /// library parks such a program with a few variables of its first start: PATH, HOME, the locale, and the variables
    /// of the loader and interpreters.
    keep: usize = 0;
    /// Sets the time without use after which the processes of a program end (300 s by default). The next start is cold,
    /// and the keeper parks the program again.
    idle: Duration = Duration::from_secs(300);
    /// Sets the delay between a start and the parking of the next process (2 ms by default). It keeps the CPU free for
    /// the started program.
    delay: Duration = Duration::from_millis(2);
    /// In mode fork, sets the number of forks after which the keeper replaces the parent process (1,000 by default). If
    /// `depth` is at least this number, the keeper uses `depth` plus one.
    forks: u64 = 1000;
    /// In mode fork, sets the age at which the keeper replaces the parent process (600 s by default, at least 100 ms).
    age: Duration = Duration::from_secs(600);
}

impl WarmOptions {
    /// Returns the default options.
    pub fn new() -> WarmOptions {
        WarmOptions::default()
    }
}

settings! {
    /// How to park one program.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::Warm;
    /// use spawnfd::warm::{Park, WarmOptions};
    /// let warm = Warm::new(WarmOptions::new().processes(8))?;
    /// warm.add("python3", Park::new().depth(1).preload(["json"]))?;
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[must_use = "the options have no effect until a Warm uses them"]
    #[derive(Clone, Debug)]
    pub struct Park;

    /// Sets the number of parked processes that wait for starts; 0, the default, means two. Mode fork needs one more,
    /// their parent.
    depth: usize = 0;
    /// Sets the mode. By default it is the mode of the [`WarmOptions`].
    mode: Option<Mode> = None, (mode: impl Into<Option<Mode>>) => mode.into();
    /// Sets the leading arguments of all starts, such as an interpreter's options.
    args: Vec<OsString> = Vec::new(),
        (args: impl IntoIterator<Item = impl Into<OsString>>) => args.into_iter().map(Into::into).collect();
    /// Sets the environment of the parked process. By default it is the environment of this process. A start with
    /// another environment is warm if all variables that the process read before parking have the same values in both.
    env: Option<Env> = None, (env: impl Into<Option<Env>>) => env.into();
    /// Sets the point at which the process parks. By default the library chooses the point by the program's name.
    kind: Option<Kind> = None, (kind: impl Into<Option<Kind>>) => kind.into();
    /// Sets modules that an interpreter loads before it parks. Node.js loads only its built-in modules.
    preload: Vec<OsString> = Vec::new(),
        (preload: impl IntoIterator<Item = impl Into<OsString>>) => preload.into_iter().map(Into::into).collect();
    /// Sets the script or module that all starts of CPython run: `tool.py`, or `-m pytest`. The process imports the
    /// modules that this program imports first, and then parks. It serves starts whose arguments begin with
    /// [`args`](Park::args) and this entry. A relative path starts at the working directory of the host.
    ///
    /// The process imports the modules of the leading import statements, up to the first statement that has another
    /// effect. The [reference] describes the conditions.
    ///
    /// [reference]: https://github.com/spawnfd/spawnfd/blob/main/docs/warm-reference.md
    ///
    /// # Examples
    /// ```
    /// use spawnfd::warm::{Park, WarmOptions};
    /// use spawnfd::{Command, Warm};
    /// let warm = Warm::new(WarmOptions::new())?;
    /// warm.add("python3", Park::new().entry("-m json.tool"))?;
    /// warm.fill(std::time::Duration::from_secs(10));
    /// Command::new("python3").args(["-m", "json.tool", "--help"]).warm(&warm).run()?.check()?;
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    entry: Option<OsString> = None, (entry: impl Into<OsString>) => Some(entry.into());
    /// Sets the sandbox command in front of this program: `bwrap --unshare-net …`. The process parks inside that
    /// sandbox. It serves commands that run this program in the same sandbox
    /// ([`Command::sandbox`](crate::Command::sandbox)): with the same words, environment and directory, and in a session
    /// of their own (as runs do). If the sandbox command gets files, they must be the same and unchanged.
    sandbox: Option<Sandbox> = None, (sandbox: impl Into<Option<Sandbox>>) => sandbox.into();
    /// Sets the working directory of the sandbox command, if there is one. By default it is the host's working
    /// directory. With an [`entry`](Park::entry), sets the working directory in which the process parks. It then serves
    /// only starts with the same working directory.
    current_dir: Option<PathBuf> = None, (current_dir: impl Into<PathBuf>) => Some(current_dir.into());
    /// Parks the process with no_new_privs. It serves commands that [ask for it](crate::Command::no_new_privs).
    no_new_privs: bool = false;
    /// Parks the process inside this Landlock ruleset. It serves commands whose first
    /// [`landlock`](crate::Command::landlock) is a duplicate of this descriptor. Rules that are added to the ruleset
    /// later do not apply to parked processes.
    landlock: Option<Arc<OwnedFd>> = None, (landlock: Arc<OwnedFd>) => Some(landlock);
    /// Parks the process under this seccomp filter. It serves commands that ask for [the same
    /// filter](crate::Command::seccomp). If the filter is empty, the process serves commands without a filter.
    seccomp: Vec<FilterInstruction> = Vec::new(), (seccomp: impl Into<Vec<FilterInstruction>>) => seccomp.into();
}

impl Park {
    /// Returns the default options.
    pub fn new() -> Park {
        Park::default()
    }

    /// The point at which this program parks.
    pub(super) fn kind_of(&self, template: &Template) -> Kind {
        self.kind.unwrap_or_else(|| template.path().map_or(Kind::Main, Kind::of))
    }
}

/// The counters of a [`Warm`](super::Warm).
///
/// # Examples
/// ```
/// use spawnfd::warm::{Park, WarmOptions};
/// use spawnfd::{Command, Warm};
/// let warm = Warm::new(WarmOptions::new())?;
/// warm.add("true", Park::new())?;
/// warm.fill(std::time::Duration::from_secs(10));
/// Command::new("true").warm(&warm).run()?.check()?;
/// Command::new("false").warm(&warm).run()?;
/// let stats = warm.stats();
/// assert_eq!((stats.reserve, stats.cold["not added"]), (1, 1));
/// assert_eq!(stats.hit_rate(), Some(0.5));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "the counters are the only effect of the call"]
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct WarmStats {
    /// Starts from a process parked for one program.
    pub reserve: u64,
    /// Starts from a forked child of a parked process.
    pub fork: u64,
    /// Starts from a child of a zygote.
    pub zygote: u64,
    /// Starts from the pool of `add_any`.
    pub pool: u64,
    /// Cold starts (by clone and exec), counted by reason.
    pub cold: BTreeMap<&'static str, u64>,
    /// The number of processes that are parked now.
    pub parked: usize,
    /// The private memory of these processes at the time of parking, in bytes.
    pub memory: u64,
    /// The number of processes parked so far.
    pub made: u64,
    /// The start-up time that warm starts have saved so far. It is the start-up time of the parked processes that have
    /// become programs, or of their parents.
    pub time_saved: Duration,
    /// The CPU time of parking so far: the start-up time of all processes parked, and the time of the keeper thread.
    pub refill_time: Duration,
    /// The programs that the keeper cannot park, or cannot park now, and the reason.
    pub cannot: BTreeMap<OsString, String>,
}

impl WarmStats {
    /// The share of starts that were warm, from 0 to 1. `None` before the first start.
    pub fn hit_rate(&self) -> Option<f64> {
        let warm = self.reserve + self.fork + self.zygote + self.pool;
        let all = warm + self.cold.values().sum::<u64>();
        (all > 0).then(|| warm as f64 / all as f64)
    }
}
