// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ways a child can be started.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use spawnfd::{Command, Mode, Park, Stdio, Template, Warm, WarmOptions, WarmStats};
use spawnfd_tests::{confine, has_builders, program};

use super::wait_success;

/// A way to start a child. All must come to the same for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// What is taken where nothing is refused: the kernel's own way where it has our patches, else clone3 with descriptors fetched from the
    /// caller.
    Clone3,
    /// clone3, descriptors passed over the low socket.
    Passed,
    /// clone, descriptors passed: Docker's profile.
    Clone,
    /// clone3, the table copied: close_range is refused.
    Copied,
    /// clone, the table copied.
    CopiedClone,
    /// clone3, without shared memory: the command changes ids (to what they are).
    OwnMemory,
    /// clone, without shared memory.
    OwnMemoryClone,
    /// execveat.
    ByDescriptor,
    /// clone3, descriptors passed, the caller goes on before the child has become the program.
    Detached,
    /// The same by clone.
    DetachedClone,
    /// From a process that was parked for it.
    Reserve,
    /// The same, parked by clone.
    ReserveClone,
    /// By a fork of a parked process.
    Fork,
    /// By a zygote.
    Zygote,
    /// The same by clone, and where the zygote was started by it.
    ZygoteClone,
    /// From a pool.
    Pool,
}

/// Where [`Launcher::Reserve`] and its like have their processes from, and for which programs.
static WARM: Mutex<Option<(Warm, Vec<PathBuf>)>> = Mutex::new(None);

impl Launcher {
    pub const ALL: [Launcher; 16] = [
        Launcher::Clone3,
        Launcher::Passed,
        Launcher::Clone,
        Launcher::Copied,
        Launcher::CopiedClone,
        Launcher::OwnMemory,
        Launcher::OwnMemoryClone,
        Launcher::ByDescriptor,
        Launcher::Detached,
        Launcher::DetachedClone,
        Launcher::Reserve,
        Launcher::ReserveClone,
        Launcher::Fork,
        Launcher::Zygote,
        Launcher::ZygoteClone,
        Launcher::Pool,
    ];

    /// Forces this way, for the calling thread and before its first spawn.
    pub fn enter(self) {
        let refused: &[(&str, i32)] = match self {
            Launcher::Passed => &[("pidfd_getfd", libc::EPERM)],
            Launcher::Clone | Launcher::OwnMemoryClone => &[("clone3", libc::ENOSYS), ("pidfd_getfd", libc::EPERM)],
            Launcher::Copied => &[("close_range", libc::ENOSYS)],
            Launcher::DetachedClone | Launcher::ReserveClone | Launcher::ZygoteClone => &[("clone3", libc::ENOSYS)],
            Launcher::CopiedClone => &[("clone3", libc::ENOSYS), ("close_range", libc::EPERM)],
            _ => &[],
        };
        // The library is not asked: it would remember what is about to be refused.
        let by_kernel = self != Launcher::Clone3 && has_builders();
        let refused: Vec<_> =
            refused.iter().copied().chain(by_kernel.then_some(("pidfd_spawn_run", libc::ENOSYS))).collect();
        if !refused.is_empty() {
            confine::deny(&refused).expect("confined");
        }
        self.renew();
        if self.does_not_wait() {
            // The first one is waited for: it shows whether descriptors can be passed.
            wait_success(self.command("/bin/true").stdin(Stdio::Null).stdout(Stdio::Null).spawn().expect("starts"));
        }
    }

    /// Whether it starts from parked processes.
    pub fn is_warm(self) -> bool {
        matches!(self, Launcher::Reserve | Launcher::ReserveClone | Launcher::Fork) || self.is_any()
    }

    /// Whether these execute any program.
    pub fn is_any(self) -> bool {
        matches!(self, Launcher::Zygote | Launcher::ZygoteClone | Launcher::Pool)
    }

    /// Ends what waits in parked processes, which come and go: what else there is can be compared.
    pub fn rest(self) {
        if self.is_warm() {
            self.renew();
        }
    }

    /// Parks anew, if that is the way: from what the calling thread is now.
    pub fn renew(self) {
        if self.is_warm() {
            *WARM.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// If the launcher starts from parked processes, it has done so, and no start was cold.
    #[track_caller]
    pub fn assert_used(self) {
        if self.is_warm() {
            let stats = self.warm(|(warm, _)| warm.stats());
            let warm = if self.is_any() { stats.zygote + stats.pool } else { stats.reserve + stats.fork };
            assert!(warm > 0 && but_for_slow(&stats).is_empty() && stats.cannot.is_empty(), "{stats:?}");
        }
    }

    fn warm<T>(self, look: impl FnOnce(&mut (Warm, Vec<PathBuf>)) -> T) -> T {
        let new = || {
            let forks = matches!(self, Launcher::Fork | Launcher::Zygote | Launcher::ZygoteClone);
            let mode = if forks { Mode::Fork } else { Mode::Reserve };
            let warm = Warm::new(WarmOptions { mode, ..WarmOptions::default() }).expect("a Warm");
            if self.is_any() {
                warm.add_any(1, None).expect("a keeper");
            }
            (warm, Vec::new())
        };
        look(WARM.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(new))
    }

    /// Parks the program, if that is the way, and waits until it is.
    fn park(self, template: &Template, command: &mut Command<'_>) {
        self.warm(|(warm, added)| {
            let path = template.path().expect("by path").to_owned();
            if !self.is_any() && !added.contains(&path) {
                warm.add_template(template, Park { depth: 1, ..Park::default() }).expect("a keeper");
                added.push(path);
            }
            // Nothing is parked while one of these is closed; nor shall a thread take for the stream what another has there for a moment.
            // SAFETY: asks for flags.
            match (0..3).all(|fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0) {
                true => assert!(warm.fill(Duration::from_secs(60)), "{:?}", warm.stats()),
                false => warm.close(),
            }
            command.warm(warm);
        });
    }

    /// How many starts were cold, and how many processes were parked anew.
    pub fn cold_and_parked(self) -> (u64, u64) {
        let stats = self.warm(|(warm, _)| warm.stats());
        (stats.cold.values().sum(), stats.made)
    }

    /// Whether what goes wrong in the child is told by its wait.
    pub fn does_not_wait(self) -> bool {
        matches!(self, Launcher::Detached | Launcher::DetachedClone)
    }

    pub fn template(self, path: impl AsRef<Path>) -> Template {
        let template = Template::open(path).expect("a template");
        if self == Launcher::ByDescriptor { template.by_descriptor().expect("no script") } else { template }
    }

    pub fn command<'fd>(self, path: impl AsRef<Path>) -> Command<'fd> {
        self.command_from(&self.template(path))
    }

    pub fn command_from<'fd>(self, template: &Template) -> Command<'fd> {
        let mut command = template.command();
        if self.is_warm() {
            self.park(template, &mut command);
        }
        self.prepare(&mut command);
        command
    }

    /// What makes a command go this way. May add an action.
    pub fn prepare(self, command: &mut Command<'_>) {
        if matches!(self, Launcher::OwnMemory | Launcher::OwnMemoryClone) {
            command.group_ids(u32::MAX, u32::MAX, u32::MAX);
        }
        if self.does_not_wait() {
            command.wait_for_exec(false);
            // What is inherited without a word is waited for.
            // SAFETY: tests leave 0, 1 and 2 open while they spawn.
            let [stdin, stdout, stderr] = [0, 1, 2].map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
            command.stdin(stdin).stdout(stdout).stderr(stderr);
        }
    }

    /// The oracle, with nothing to read.
    pub fn oracle<'fd>(self) -> Command<'fd> {
        let mut command = self.command(program("spawnfd-oracle"));
        command.stdin(Stdio::Null);
        command
    }
}

/// How often starts were cold for another reason than that this machine was too slow for what was parked.
pub fn but_for_slow(stats: &WarmStats) -> BTreeMap<&'static str, u64> {
    stats.cold.iter().map(|(reason, count)| (*reason, *count)).filter(|(reason, _)| *reason != "slow").collect()
}

/// Starts something from what is parked, until that was not too slow for it.
#[track_caller]
pub fn in_good_time<T>(warm: &Warm, mut start: impl FnMut() -> T) -> T {
    loop {
        assert!(warm.fill(Duration::from_secs(60)), "{:?}", warm.stats());
        let slow = || warm.stats().cold.get("slow").copied();
        let before = slow();
        let outcome = start();
        if slow() == before {
            return outcome;
        }
    }
}
