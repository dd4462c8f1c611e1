// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is asked of a [`Warm`](super::Warm), and its counters.

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

/// How parked processes are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Mode {
    /// Each becomes one program: with a memory layout and secrets of its own.
    #[default]
    Reserve = protocol::Mode::Reserve as isize,
    /// They are forked from one: they share layout, and whatever was drawn or read before they were forked.
    Fork = protocol::Mode::Fork as isize,
}

impl Mode {
    pub(super) fn letter(self) -> char {
        self as u8 as char
    }
}

/// Bounds of a [`Warm`](super::Warm).
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
    /// commands that run this program so ([`Command::sandbox`](crate::Command::sandbox)), word for word, with this environment and directory, in a session of
    /// their own (as runs do). They give it the same files, unchanged, if it is given any.
    pub sandbox: Option<Sandbox>,
    /// With a sandbox: where it is started; the host's working directory if `None`.
    pub current_dir: Option<PathBuf>,
    /// It parks with no_new_privs, and serves commands that [ask for it](crate::Command::no_new_privs).
    pub no_new_privs: bool,
    /// It parks inside this Landlock ruleset, and serves commands whose first [`landlock`](crate::Command::landlock) is the same one: a
    /// duplicate of this descriptor. Rules that are added to the ruleset later are not in force in what is parked.
    pub landlock: Option<Arc<OwnedFd>>,
    /// It parks under this seccomp filter, and serves commands that ask for [the same](crate::Command::seccomp); empty: those that ask for none.
    pub seccomp: Vec<FilterInstruction>,
}

impl Park {
    /// Where this program is parked.
    pub(super) fn kind_of(&self, template: &Template) -> Kind {
        self.kind.unwrap_or_else(|| template.path().map_or(Kind::Main, Kind::of))
    }
}

/// What a [`Warm`](super::Warm) has done, and has.
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
