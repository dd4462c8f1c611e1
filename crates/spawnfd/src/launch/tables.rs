// SPDX-License-Identifier: MIT OR Apache-2.0
//! Strategies for a child's descriptor table, in the order in which the library tries them, and the meaning of each
//! refusal.
//!
//! With the first three strategies, the child leaves the caller's table by `close_range(CLOSE_RANGE_UNSHARE)`, so
//! they cost the same for ten descriptors and ten thousand. See decision records 0001 and 0009.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use spawnfd_child::{Plan, Table};
use spawnfd_sys::{CloneOptions, Errno, abi, call, fork_generation};

use super::slots::{LOW, Slot};
use crate::host::descriptors::CheckedFd;
use crate::host::features::Features;
use crate::host::own_proc;

/// A strategy for the child's descriptor table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Strategy {
    /// The child keeps the descriptors up to its highest source, under the caller's numbers. The caller must have only
    /// one thread.
    TrimTable,
    /// The child copies its sources from the calling thread, which sleeps, by pidfd_getfd(2).
    PidfdGetfd,
    /// The child receives its sources from a socket (SCM_RIGHTS).
    ScmRights,
    /// The kernel copies the whole table.
    CopyTable,
}

/// Strategies in order; `None` for those that are not available.
pub(super) type Strategies = [Option<Strategy>; 4];

/// No strategy.
pub(super) const NONE: Strategies = [None; 4];

/// The meaning of a failure in the child before any action has run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    /// A source is not open in the caller.
    ClosedSource,
    /// The application has put another file at the number of the caller's pidfd. The library tries again with a new
    /// pidfd.
    StalePidfd,
    /// This kernel or a filter never permits the strategy.
    Unavailable,
    /// The strategy failed this time.
    Failed,
}

impl Strategy {
    /// All strategies, cheapest first.
    const ALL: [Strategy; 4] = [Strategy::TrimTable, Strategy::PidfdGetfd, Strategy::ScmRights, Strategy::CopyTable];

    /// All strategies, for a start that finds out whether [`ScmRights`](Strategy::ScmRights) works.
    const EXPLORING: [Strategy; 4] =
        [Strategy::ScmRights, Strategy::TrimTable, Strategy::PidfdGetfd, Strategy::CopyTable];

    /// The strategies for a child for which the caller waits, in order.
    ///
    /// If `try_scm_rights` is true, the first strategy is [`ScmRights`](Strategy::ScmRights), unless it is already
    /// known to work or fail.
    pub(super) fn for_sleeping_caller(
        plan: &Plan<'_>,
        options: &CloneOptions,
        features: &Features,
        try_scm_rights: bool,
    ) -> Strategies {
        let leaves = plan.keep.is_some() && features.has_close_range();
        let explores = try_scm_rights && features.scm_rights(&plan.sources).known().is_none();
        // A child in another user namespace may not inspect the caller.
        let may_fetch = leaves && options.namespaces & abi::CLONE_NEWUSER == 0;
        let may_trim = leaves && can_trim_table(plan, features);
        let order = if explores { Strategy::EXPLORING } else { Strategy::ALL };
        let may_use = |strategy: &Strategy| match strategy {
            Strategy::TrimTable => may_trim,
            Strategy::PidfdGetfd => may_fetch,
            Strategy::ScmRights => leaves,
            Strategy::CopyTable => true,
        };
        order.map(|strategy| Some(strategy).filter(may_use))
    }

    /// Only this strategy.
    pub(super) fn alone(self) -> Strategies {
        [Some(self), None, None, None]
    }

    /// Prepares the sources for the child. Returns `None` if this strategy is not available for these sources.
    ///
    /// # Errors
    /// EBADF: a source is not open in the caller.
    pub(super) fn prepare(
        self,
        slot: &mut Slot,
        sources: &[RawFd],
        features: &Features,
    ) -> Result<Option<Table>, Errno> {
        Ok(match self {
            Strategy::TrimTable => {
                let highest = sources.iter().fold(2, |highest, &source| highest.max(source));
                Some(Table::Trimmed { above: highest + 1 })
            }
            Strategy::PidfdGetfd if features.can_use_pidfd_getfd() => fetched_table(features),
            Strategy::ScmRights if features.can_send_descriptors() => slot.pass(sources)?,
            Strategy::PidfdGetfd | Strategy::ScmRights => None,
            Strategy::CopyTable => Some(Table::Copied),
        })
    }

    /// The meaning of the child's errno. A filter that kills the child counts as EPERM.
    pub(super) fn meaning(self, errno: Errno) -> Meaning {
        use Strategy::{CopyTable, PidfdGetfd, ScmRights, TrimTable};
        match (self, errno) {
            (TrimTable | PidfdGetfd, Errno::EBADF) => Meaning::ClosedSource,
            (PidfdGetfd, Errno::ENOTSOCK) => Meaning::StalePidfd,
            (PidfdGetfd, Errno::EACCES) => Meaning::Unavailable,
            (TrimTable | PidfdGetfd | ScmRights, Errno::EPERM | Errno::ENOSYS | Errno::EINVAL) => Meaning::Unavailable,
            // One example is ESRCH: in a new pid namespace, the child cannot name the caller's
            // thread by its id.
            (TrimTable | PidfdGetfd | ScmRights | CopyTable, _) => Meaning::Failed,
        }
    }

    /// Records for later starts that the strategy is unavailable.
    pub(super) fn learn_unavailable(self, features: &Features, sources: &[RawFd]) {
        match self {
            Strategy::TrimTable => features.trim_table.learn(false),
            Strategy::PidfdGetfd => features.pidfd_getfd.learn(false),
            Strategy::ScmRights => {
                features.close_range.learn(false);
                features.scm_rights(sources).learn(false);
            }
            Strategy::CopyTable => {}
        }
    }

    /// Records for later starts that the strategy works. Asynchronous starts use only a strategy that is known to work.
    pub(super) fn learn_works(self, features: &Features, sources: &[RawFd]) {
        if self == Strategy::ScmRights {
            features.scm_rights(sources).learn(true);
        }
    }
}

/// Whether the child may keep copies of the caller's low descriptors until it closes them. The caller has one thread,
/// so no other thread notices the copies. The kernel copies up to 64 descriptors in any case.
fn can_trim_table(plan: &Plan<'_>, features: &Features) -> bool {
    const COPIED_AT_ONCE: RawFd = 64;
    // Without sources, this strategy gains nothing. If an action may block, the child would keep
    // the copies open for that time.
    features.can_trim_table()
        && !plan.sources.is_empty()
        && plan.sources.iter().all(|&source| source < COPIED_AT_ONCE)
        && plan.program.source.is_none()
        && !plan.may_block_forever()
        && is_alone()
}

/// Whether the calling thread is the main thread, and the process has no other thread.
///
/// Returns false at the first call in a process, so that the first spawn uses another strategy. Its
/// pidfd or socket then gets a low number while one is free, in case the process starts threads
/// later.
fn is_alone() -> bool {
    thread_local! {
        /// The process of the first call (see [`fork_generation`]), and whether this is its main thread.
        static ASKED: Cell<(u64, bool)> = const { Cell::new((0, false)) };
    }
    let Ok(generation) = fork_generation() else { return false };
    let is_first = ASKED.get().0 != generation;
    if is_first {
        ASKED.set((generation, call::gettid() == call::getpid()));
    }
    // The first call opens the directory whose links count the threads.
    ASKED.get().1 && own_proc::has_one_thread() && !is_first
}

/// The calling thread, as its children identify it.
///
/// Each thread that spawns has its own pidfd, because a thread can have its own table. The thread's first spawn opens the
/// pidfd, at a low number of the caller's table, and the thread's exit closes it. If no low number is free, the child
/// opens a pidfd itself, which costs one system call.
struct Here {
    /// Distinguishes this process from the process that it was forked from; see [`fork_generation`].
    generation: u64,
    thread: i32,
    /// `None` if no low number was free.
    pidfd: Option<CheckedFd>,
}

thread_local! {
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

/// The table for a child that copies its descriptors through the pidfd; `None` if pidfds of threads are not
/// available.
fn fetched_table(features: &Features) -> Option<Table> {
    let generation = fork_generation().ok()?;
    let fetched = HERE.try_with(|here| {
        let mut here = here.try_borrow_mut().ok()?;
        if here.as_ref().is_none_or(|here| here.generation != generation) {
            *here = Here::new(generation, features);
        }
        let Here { thread, pidfd, .. } = here.as_ref()?;
        let pidfd = pidfd.as_ref().map(|pidfd| (pidfd.as_fd().as_raw_fd(), pidfd.identity()));
        Some(Table::Fetched { pidfd, thread: *thread })
    });
    // A thread that is exiting has already closed its pidfd.
    fetched.ok().flatten()
}

/// Opens a new pidfd after the application has put another file at the old number. Leaves that file alone.
pub(super) fn renew_pidfd() {
    let _ = HERE.try_with(|here| here.try_borrow_mut().map(|mut here| *here = None));
}

impl Here {
    fn new(generation: u64, features: &Features) -> Option<Here> {
        let thread = call::gettid().ok()?;
        // PIDFD_THREAD needs Linux 6.9, which also gives each pidfd its own inode. EMFILE does not disable the
        // strategy.
        let thread_flag = PidfdFlags::from_bits_retain(abi::O_EXCL);
        let pidfd = match pidfd_open(Pid::from_raw(thread)?, thread_flag) {
            Ok(pidfd) => Some(CheckedFd::new(pidfd)),
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => None,
            Err(_) => {
                Strategy::PidfdGetfd.learn_unavailable(features, &[]);
                return None;
            }
        };
        let pidfd = pidfd.filter(|pidfd| (3..=LOW).contains(&pidfd.as_fd().as_raw_fd()));
        Some(Here { generation, thread, pidfd })
    }
}
