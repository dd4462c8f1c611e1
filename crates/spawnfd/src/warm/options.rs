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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Mode {
    /// Each parked process becomes one program, with its own memory layout and its own random secrets.
    #[default]
    Reserve = protocol::Mode::Reserve as isize,
    /// The processes are forked from one parent. They share its memory layout, and all data that it read or generated
    /// before the fork.
    Fork = protocol::Mode::Fork as isize,
}

impl Mode {
    pub(super) fn code(self) -> char {
        self as u8 as char
    }
}

/// Options and bounds of a [`Warm`](super::Warm).
#[derive(Clone, Debug)]
pub struct WarmOptions {
    /// The mode of programs whose [`Park`] does not set one.
    pub mode: Mode,
    /// The private memory of all parked processes, in bytes. At this limit the keeper parks no more.
    pub memory: u64,
    /// The largest number of parked processes.
    pub processes: usize,
    /// The number of programs that the library keeps warm from their first start on, without a call of
    /// [`add`](super::Warm::add). A new program replaces the program used longest ago. 0 means none. The library
    /// parks such a program with a few variables of its first start: PATH, HOME, the locale, and the variables of the
    /// loader and interpreters.
    pub keep: usize,
    /// The time without use after which the processes of a program end. The next start is cold, and the keeper parks
    /// the program again.
    pub idle: Duration,
    /// The delay between a start and the parking of the next process. It keeps the CPU free for the started program.
    pub delay: Duration,
    /// In mode fork, the number of forks after which the keeper replaces the parent process. If
    /// `depth` is at least this number, the keeper uses `depth` plus one.
    pub forks: u64,
    /// In mode fork, the age at which the keeper replaces the parent process. It is at least 100 ms.
    pub age: Duration,
}

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

/// How to park one program.
#[derive(Clone, Debug, Default)]
pub struct Park {
    /// The number of parked processes that wait for starts; 0 means two. Mode fork needs one more, their parent.
    pub depth: usize,
    /// The mode. `None` means the mode of the [`WarmOptions`].
    pub mode: Option<Mode>,
    /// The leading arguments of all starts, such as an interpreter's options.
    pub args: Vec<OsString>,
    /// The environment of the parked process. `None` means the environment of this process. A start with another
    /// environment is warm if all variables that the process read before parking have the same values in both.
    pub env: Option<Env>,
    /// The point at which the process parks. If it is `None`, the library chooses the point by the program's name.
    pub kind: Option<Kind>,
    /// Modules that an interpreter loads before it parks. Node.js loads only its built-in modules.
    pub preload: Vec<OsString>,
    /// The sandbox command in front of this program: `bwrap --unshare-net …`. The process parks inside that sandbox.
    /// It serves commands that run this program in the same sandbox ([`Command::sandbox`](crate::Command::sandbox)):
    /// with the same words, environment and directory, and in a session of their own (as runs do). If the sandbox
    /// command gets files, they must be the same and unchanged.
    pub sandbox: Option<Sandbox>,
    /// The working directory of the sandbox command, if there is one. `None` means the host's working
    /// directory.
    pub current_dir: Option<PathBuf>,
    /// The process parks with no_new_privs, and serves commands that [ask for it](crate::Command::no_new_privs).
    pub no_new_privs: bool,
    /// The process parks inside this Landlock ruleset. It serves commands whose first
    /// [`landlock`](crate::Command::landlock) is a duplicate of this descriptor. Rules that are added to the ruleset
    /// later do not apply to parked processes.
    pub landlock: Option<Arc<OwnedFd>>,
    /// The process parks under this seccomp filter, and serves commands that ask for [the same
    /// filter](crate::Command::seccomp). If it is empty, the process serves commands without a filter.
    pub seccomp: Vec<FilterInstruction>,
}

impl Park {
    /// The point at which this program parks.
    pub(super) fn kind_of(&self, template: &Template) -> Kind {
        self.kind.unwrap_or_else(|| template.path().map_or(Kind::Main, Kind::of))
    }
}

/// The counters of a [`Warm`](super::Warm).
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
    /// The programs that the keeper cannot park, or cannot park now, and the reason.
    pub cannot: BTreeMap<OsString, String>,
}
