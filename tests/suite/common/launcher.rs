// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launchers: all the ways in which the library can start a child.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use spawnfd::error::Stage;
use spawnfd::tree::{Tree, TreeControl};
use spawnfd::warm::{Mode, Park, WarmOptions, WarmStats};
use spawnfd::{Command, Stdio, Template, Warm};
use spawnfd_tests::{confine, has_builders, program};

use super::wait_success;

/// A way to start a child. A program must not be able to tell by which launcher it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// The library's own choice: pidfd_spawn_run on a kernel with kernel/patches, else clone3 with `PidfdGetfd` (the
    /// child copies its descriptors from the sleeping caller).
    Clone3,
    /// clone3 with `ScmRights`: the child receives its descriptors through a socket.
    ScmRights,
    /// clone with `ScmRights`, as under Docker's seccomp profile, which refuses clone3.
    Clone,
    /// clone3 with `CopyTable`, a copy of the caller's descriptor table: close_range is refused.
    CopyTable,
    /// clone with `CopyTable`.
    CopyTableClone,
    /// clone3 without CLONE_VM. The library uses it because the command sets group ids, to their
    /// present values.
    OwnMemory,
    /// clone without CLONE_VM.
    OwnMemoryClone,
    /// The child executes the template's open descriptor by execveat.
    ByDescriptor,
    /// A detached spawn by clone3 with `ScmRights`: the caller does not wait for the child's exec.
    Detached,
    /// A detached spawn by clone.
    DetachedClone,
    /// A process that was parked for this program.
    Reserve,
    /// A process that was parked for this program by clone.
    ReserveClone,
    /// A fork of a process that was parked for this program.
    Fork,
    /// A child of a zygote, a parked process that forks to start any program.
    Zygote,
    /// A child of a zygote that was started by clone and itself forks by clone.
    ZygoteClone,
    /// A parked process of the pool for any program.
    Pool,
    /// A child of a new subreaper, by clone3.
    Subreaper,
    /// A child of a new subreaper, by clone.
    SubreaperClone,
}

/// The trees of the launchers with a subreaper, until `drop_parked`.
static TREES: Mutex<Vec<Tree>> = Mutex::new(Vec::new());

/// The `Warm` (pools of parked processes) of the warm launchers, and the programs that were added to it.
static WARM: Mutex<Option<(Warm, Vec<PathBuf>)>> = Mutex::new(None);

impl Launcher {
    pub const ALL: [Launcher; 18] = [
        Launcher::Clone3,
        Launcher::ScmRights,
        Launcher::Clone,
        Launcher::CopyTable,
        Launcher::CopyTableClone,
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
        Launcher::Subreaper,
        Launcher::SubreaperClone,
    ];

    /// Makes the calling thread use this launcher. The thread must not have spawned before.
    pub fn enter(self) {
        let refused: &[(&str, i32)] = match self {
            Launcher::ScmRights => &[("pidfd_getfd", libc::EPERM)],
            Launcher::Clone | Launcher::OwnMemoryClone => &[("clone3", libc::ENOSYS), ("pidfd_getfd", libc::EPERM)],
            Launcher::CopyTable => &[("close_range", libc::ENOSYS)],
            Launcher::DetachedClone | Launcher::ReserveClone | Launcher::ZygoteClone | Launcher::SubreaperClone => {
                &[("clone3", libc::ENOSYS)]
            }
            Launcher::CopyTableClone => &[("clone3", libc::ENOSYS), ("close_range", libc::EPERM)],
            _ => &[],
        };
        // The test itself probes for the patched kernel. If it asked the library, the library would remember that
        // pidfd_spawn_run works, before the filter refuses that call.
        let by_kernel = self != Launcher::Clone3 && has_builders();
        let refused: Vec<_> =
            refused.iter().copied().chain(by_kernel.then_some(("pidfd_spawn_run", libc::ENOSYS))).collect();
        if !refused.is_empty() {
            confine::deny(&refused).expect("confined");
        }
        self.drop_parked();
        if self.is_detached() {
            // The library detaches only once it knows that it can pass descriptors; this first spawn shows it.
            wait_success(self.command("/bin/true").stdin(Stdio::Null).stdout(Stdio::Null).spawn().expect("starts"));
        }
    }

    /// Returns whether this launcher starts programs from parked processes.
    pub fn is_warm(self) -> bool {
        matches!(self, Launcher::Reserve | Launcher::ReserveClone | Launcher::Fork) || self.runs_any_program()
    }

    /// Returns whether the parked processes of this launcher can execute any program.
    pub fn runs_any_program(self) -> bool {
        matches!(self, Launcher::Zygote | Launcher::ZygoteClone | Launcher::Pool)
    }

    /// Whether the program's parent is a subreaper and not this process.
    pub fn has_subreaper(self) -> bool {
        matches!(self, Launcher::Subreaper | Launcher::SubreaperClone)
    }

    /// Ends the parked processes and the trees with a subreaper. The next start parks new processes from the calling
    /// thread's state at that time.
    pub fn drop_parked(self) {
        TREES.lock().unwrap_or_else(PoisonError::into_inner).clear();
        if self.is_warm() {
            *WARM.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Asserts that a warm launcher has started programs, all of them from parked processes.
    #[track_caller]
    pub fn assert_used(self) {
        if self.is_warm() {
            let stats = self.warm(|(warm, _)| warm.stats());
            let warm = if self.runs_any_program() { stats.zygote + stats.pool } else { stats.reserve + stats.fork };
            assert!(warm > 0 && cold_except_slow(&stats).is_empty() && stats.cannot.is_empty(), "{stats:?}");
        }
    }

    fn warm<T>(self, look: impl FnOnce(&mut (Warm, Vec<PathBuf>)) -> T) -> T {
        let new = || {
            let forks = matches!(self, Launcher::Fork | Launcher::Zygote | Launcher::ZygoteClone);
            let mode = if forks { Mode::Fork } else { Mode::Reserve };
            let warm = Warm::new(WarmOptions::new().mode(mode)).expect("a Warm");
            if self.runs_any_program() {
                warm.add_any(1, None).expect("a keeper");
            }
            (warm, Vec::new())
        };
        look(WARM.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(new))
    }

    /// If the launcher is warm, parks the program, and waits until it is parked.
    fn park(self, template: &Template, command: &mut Command<'_>) {
        self.warm(|(warm, added)| {
            let path = template.path().expect("by path").to_owned();
            if !self.runs_any_program() && !added.contains(&path) {
                warm.add_template(template, Park::new().depth(1)).expect("a keeper");
                added.push(path);
            }
            // While descriptor 0, 1 or 2 is closed, another thread may open a temporary descriptor at that number.
            // The keeper, the thread that parks processes, would pass it on as the standard stream, so nothing is
            // parked.
            // SAFETY: F_GETFD takes integers and changes nothing.
            match (0..3).all(|fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0) {
                // `fill` also returns false if a program cannot be parked. Such a program starts cold.
                true => {
                    let filled = warm.fill(Duration::from_secs(60));
                    let stats = warm.stats();
                    assert!(filled || !stats.cannot.is_empty(), "{stats:?}");
                }
                false => warm.close(),
            }
            command.warm(warm);
        });
    }

    /// Returns the number of cold starts (starts without a parked process), and the number of
    /// processes parked so far.
    pub fn cold_and_parked(self) -> (u64, u64) {
        let stats = self.warm(|(warm, _)| warm.stats());
        (stats.cold.values().sum(), stats.made)
    }

    /// Returns whether `wait`, and not `spawn`, reports a failure in the child.
    pub fn is_detached(self) -> bool {
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

    /// Makes a command use this launcher. For some launchers this adds an action to the command.
    pub fn prepare(self, command: &mut Command<'_>) {
        if matches!(self, Launcher::OwnMemory | Launcher::OwnMemoryClone) {
            command.group_ids(u32::MAX, u32::MAX, u32::MAX);
        }
        if self.has_subreaper() {
            // This tree keeps the guard running, so that a test finds the same guard before and after its subject.
            static WITH_GUARD: OnceLock<Option<Tree>> = OnceLock::new();
            WITH_GUARD.get_or_init(|| Tree::prepare(TreeControl::Guard).ok());
            match Tree::prepare(TreeControl::Subreaper) {
                Ok(tree) => {
                    command.tree(&tree);
                    TREES.lock().unwrap_or_else(PoisonError::into_inner).push(tree);
                }
                // In some confinements no helper can start. The program then starts as by the tier `group`.
                Err(error) => assert_eq!(error.stage(), Stage::Tree, "{error}"),
            }
        }
        if self.is_detached() {
            command.wait_for_exec(false);
            // If the child inherits a standard stream, the caller waits for exec. The command therefore names a
            // descriptor for each stream.
            // SAFETY: the tests keep 0, 1 and 2 open while they spawn.
            let [stdin, stdout, stderr] = [0, 1, 2].map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
            command.stdin(stdin).stdout(stdout).stderr(stderr);
        }
    }

    /// Returns a command for the oracle (a program that prints its own state), with stdin from
    /// /dev/null.
    pub fn oracle<'fd>(self) -> Command<'fd> {
        let mut command = self.command(program("spawnfd-oracle"));
        command.stdin(Stdio::Null);
        command
    }
}

/// The number of cold starts (starts without a parked process) by reason, without the reason "slow": a parked process
/// was not ready in time on this machine.
pub fn cold_except_slow(stats: &WarmStats) -> BTreeMap<&'static str, u64> {
    stats.cold.iter().map(|(reason, count)| (*reason, *count)).filter(|(reason, _)| *reason != "slow").collect()
}

/// Repeats `start` until it is not cold for the reason "slow": a parked process was not ready in time.
#[track_caller]
pub fn retry_while_slow<T>(warm: &Warm, mut start: impl FnMut() -> T) -> T {
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
