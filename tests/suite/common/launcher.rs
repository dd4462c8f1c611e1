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

/// Passes the table of launchers to another macro. This table is the only list of launchers in the tests. Each row has:
///
/// - the launcher's description, its name in the names of tests, and its variant of [`Launcher`]
/// - the sets of launchers to which it belongs: `[tables steps authority exec]`, with `-` in place of other sets
/// - the fields of [`Properties`] in which it differs from `PLAIN`
///
/// A test body names a set for the subject of the test, and the launchers of the set differ in that subject. `make
/// test` runs the body through the launchers of the set, `make test-all` through all launchers.
///
/// - `tables`: how the child gets its descriptors.
/// - `steps`: the process that performs the actions. It is a child that shares the caller's memory, a child with its
///   own memory, or a parked process.
/// - `authority`: with most of these launchers, a process that the calling thread did not create executes the program,
///   and must have the calling thread's authority.
/// - `exec`: how the child executes the program, and how the caller learns of it.
macro_rules! launchers {
    ($then:ident! { $($words:tt)* }) => { $then! { $($words)*
        /// The library's own choice: pidfd_spawn_run on a kernel with kernel/patches, else clone3 with `PidfdGetfd`
        /// (the child copies its descriptors from the sleeping caller).
        clone3 Clone3 [tables steps - -] { kernel: true }
        /// clone3 with `ScmRights`: the child receives its descriptors through a socket.
        scm_rights ScmRights [tables - - -] { refused: &[("pidfd_getfd", libc::EPERM)] }
        /// clone with `ScmRights`, as under Docker's seccomp profile, which refuses clone3.
        clone Clone [- - authority -] { refused: &[("clone3", libc::ENOSYS), ("pidfd_getfd", libc::EPERM)] }
        /// clone3 with `CopyTable`, a copy of the caller's descriptor table: close_range is refused.
        copy_table CopyTable [tables - - -] { refused: &[("close_range", libc::ENOSYS)] }
        /// clone with `CopyTable`.
        copy_table_clone CopyTableClone [tables - - -] {
            refused: &[("clone3", libc::ENOSYS), ("close_range", libc::EPERM)]
        }
        /// clone3 without CLONE_VM. The library uses it because the command sets group ids, to their present values.
        separate_mm SeparateMm [- steps - -] { separate_mm: true }
        /// clone without CLONE_VM.
        separate_mm_by_clone SeparateMmClone [- steps - -] {
            separate_mm: true, refused: &[("clone3", libc::ENOSYS), ("pidfd_getfd", libc::EPERM)]
        }
        /// The child executes the template's open descriptor by execveat.
        by_descriptor ByDescriptor [- - - exec] { by_descriptor: true }
        /// An asynchronous spawn by clone3 with `ScmRights`: the caller does not wait for the child's exec.
        asynchronous Asynchronous [- steps - -] { asynchronous: true }
        /// An asynchronous spawn by clone.
        asynchronous_clone AsynchronousClone [- - - exec] { asynchronous: true, refused: NO_CLONE3 }
        /// A process that was parked for this program.
        reserve Reserve [- steps authority -] { parks: Some(Parks::Program(Mode::Reserve)) }
        /// A process that was parked for this program by clone.
        reserve_clone ReserveClone [- - - exec] { parks: Some(Parks::Program(Mode::Reserve)), refused: NO_CLONE3 }
        /// A fork of a process that was parked for this program.
        fork Fork [- - authority -] { parks: Some(Parks::Program(Mode::Fork)) }
        /// A child of a zygote, a parked process that forks to start any program.
        zygote Zygote [tables - - -] { parks: Some(Parks::Any(Mode::Fork)) }
        /// A child of a zygote that was started by clone and itself forks by clone.
        zygote_clone ZygoteClone [- - - exec] { parks: Some(Parks::Any(Mode::Fork)), refused: NO_CLONE3 }
        /// A parked process of the pool for any program.
        pool Pool [- - authority -] { parks: Some(Parks::Any(Mode::Reserve)) }
        /// A child of a new subreaper, by clone3.
        subreaper Subreaper [- - authority -] { subreaper: true }
        /// A child of a new subreaper, by clone.
        subreaper_clone SubreaperClone [- - authority -] { subreaper: true, refused: NO_CLONE3 }
    } };
}
pub(crate) use launchers;

/// The facts about a launcher that the helpers of the tests need.
struct Properties {
    sets: &'static [&'static str],
    /// The system calls that a filter refuses so that the library uses this launcher, with the errno.
    refused: &'static [(&'static str, i32)],
    /// Whether the library may use pidfd_spawn_run of the patched kernel.
    kernel: bool,
    /// The parked processes from which this launcher starts programs.
    parks: Option<Parks>,
    /// Whether the command has an action that needs a child with memory of its own.
    separate_mm: bool,
    by_descriptor: bool,
    asynchronous: bool,
    subreaper: bool,
}

#[derive(Clone, Copy)]
enum Parks {
    /// Processes of the program itself.
    Program(Mode),
    /// Processes that can execute any program.
    Any(Mode),
}

const PLAIN: Properties = Properties {
    sets: &[],
    refused: &[],
    kernel: false,
    parks: None,
    separate_mm: false,
    by_descriptor: false,
    asynchronous: false,
    subreaper: false,
};
const NO_CLONE3: &[(&str, i32)] = &[("clone3", libc::ENOSYS)];

macro_rules! define_launchers {
    ($($(#[$doc:meta])* $test:ident $launcher:ident [$($set:tt)*] { $($property:ident: $value:expr),* })*) => {
        /// A way to start a child. A program must not be able to tell by which launcher it was started.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Launcher {
            $($(#[$doc])* $launcher,)*
        }

        impl Launcher {
            pub const ALL: &[Launcher] = &[$(Launcher::$launcher),*];

            const fn properties(self) -> Properties {
                match self {
                    $(Launcher::$launcher => {
                        Properties { sets: &[$(stringify!($set)),*], $($property: $value,)* ..PLAIN }
                    })*
                }
            }
        }
    };
}
launchers! { define_launchers! {} }

/// The trees of the launchers with a subreaper, until `drop_parked`.
static TREES: Mutex<Vec<Tree>> = Mutex::new(Vec::new());

/// The `Warm` (pools of parked processes) of the warm launchers, and the programs that were added to it.
static WARM: Mutex<Option<(Warm, Vec<PathBuf>)>> = Mutex::new(None);

impl Launcher {
    /// Whether the launcher belongs to a set of launchers. All launchers belong to the set `every`.
    pub fn is_in(self, set: &str) -> bool {
        set == "every" || self.properties().sets.contains(&set)
    }

    /// Makes the calling thread use this launcher. The thread must not have spawned before.
    pub fn enter(self) {
        // The test itself probes for the patched kernel. If it asked the library, the library would remember that
        // pidfd_spawn_run works, before the filter refuses that call.
        let by_kernel = (!self.may_use_kernel() && has_builders()).then_some(("pidfd_spawn_run", libc::ENOSYS));
        let refused: Vec<_> = self.properties().refused.iter().copied().chain(by_kernel).collect();
        if !refused.is_empty() {
            confine::deny(&refused).expect("confined");
        }
        self.drop_parked();
        if self.is_asynchronous() {
            // The library detaches only once it knows that it can pass descriptors; this first spawn shows it.
            wait_success(self.command("/bin/true").stdin(Stdio::Null).stdout(Stdio::Null).spawn().expect("starts"));
        }
    }

    /// Whether the library may use pidfd_spawn_run of the patched kernel.
    pub fn may_use_kernel(self) -> bool {
        self.properties().kernel
    }

    /// Returns whether this launcher starts programs from parked processes.
    pub fn is_warm(self) -> bool {
        self.properties().parks.is_some()
    }

    /// Returns whether the parked processes of this launcher can execute any program.
    pub fn runs_any_program(self) -> bool {
        matches!(self.properties().parks, Some(Parks::Any(_)))
    }

    /// Whether the program's parent is a subreaper and not this process.
    pub fn has_subreaper(self) -> bool {
        self.properties().subreaper
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
            let Some(Parks::Program(mode) | Parks::Any(mode)) = self.properties().parks else {
                panic!("{self:?} parks nothing")
            };
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
    pub fn is_asynchronous(self) -> bool {
        self.properties().asynchronous
    }

    pub fn template(self, path: impl AsRef<Path>) -> Template {
        let template = Template::open(path).expect("a template");
        if self.properties().by_descriptor { template.by_descriptor().expect("no script") } else { template }
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
        if self.properties().separate_mm {
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
        if self.is_asynchronous() {
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
