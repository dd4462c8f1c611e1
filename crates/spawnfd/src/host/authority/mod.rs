// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's authority as a value that the library can compare. A thread or helper process of the library starts a
//! child for the calling thread only if the child provably has the authority that a fork of the calling thread would
//! have: no more and no less.
//!
//! Authority belongs to threads, and /proc shows nearly all of it. /proc does not show two parts:
//!
//! - The seccomp filters of a thread: /proc shows only their number. A thread's filters form a chain, which new
//!   threads inherit and which only grows. So if one thread has the same number at two times, it has the same
//!   filters. Two threads with the same number have the same filters if their process once had a single thread with
//!   that number of filters: all threads inherited the filters from that single thread. Otherwise equality is not
//!   proven.
//! - Landlock. The kernel lets a task inspect another task only if the other is at least as confined. It does not
//!   check this between threads of one process. So the comparison needs another process, which a thread has created
//!   with the same credentials ([`Marker`]).
//!
//! [`Reach`] is the part of the authority that the library's threads and helpers need to act for a caller: they do so only
//! if both have the same reach. Decision record 0022 has the proof. `full.rs` has the whole authority, which the library
//! compares before it starts a program from a parked process.

#[cfg(feature = "warm")]
mod full;

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::ThreadId;

use spawnfd_child::{ChildMemory, leave_marker};
use spawnfd_sys::{Errno, call, fork_generation, prctl, wait_pidfd};

use crate::error::{self, Error, Stage};
use crate::host::descriptors::CheckedFd;
use crate::host::features;
use crate::host::one_start::{self, Remembered};
use crate::host::own_proc::{self, CAP_SYS_ADMIN, come_from_first_thread, descends_from_single_thread, read_status};

pub(crate) use crate::host::own_proc::remember_if_single_threaded;
#[cfg(feature = "warm")]
pub(crate) use full::{AddedConfinement, Authority, Reported};

/// A thread's power over processes and files, and its scheduling.
///
/// A new thread or process has the reach of the thread that starts it.
#[derive(Debug)]
pub(crate) struct Reach {
    generation: u64,
    thread: ThreadId,
    readable: Readable,
    user_namespace: Option<CString>,
    /// The mount namespace, if the thread can enter another one without creating a user namespace first.
    mount_namespace: Option<CString>,
    /// The number of seccomp filters; `None` if the kernel does not count them.
    filters: Option<u32>,
    domain: LandlockDomain,
}

/// The part of the reach that a thread can read with a few cheap system calls.
#[derive(PartialEq, Debug)]
struct Readable {
    /// The real, effective and saved ids of users and groups, and then the ids for file access.
    ids: ([u32; 6], [u32; 2]),
    /// The effective, permitted and inheritable capability sets.
    capabilities: Result<[u64; 3], Errno>,
    no_new_privs: bool,
    is_filtered: bool,
    label: rustix::io::Result<Vec<u8>>,
    scheduling: Result<[u64; 7], Errno>,
    processors: Result<[u64; 128], Errno>,
}

/// The thread's Landlock domain, which the kernel does not show.
#[derive(Debug)]
enum LandlockDomain {
    /// The domain that this process began with. The thread may inspect the process's parent, which is in the thread's
    /// user namespace. A thread that had entered another domain or another user namespace could not do that.
    Inherited,
    /// An unknown domain. The thread cannot enter another domain as long as its [`Readable`] part and its user
    /// namespace stay the same.
    Fixed,
    /// An unknown domain. The marker, a zombie child of the thread, is in the same domain.
    Marked(Marker),
    /// An unknown domain that the library cannot compare: there is no /proc, or the kernel does not permit inspection
    /// of this process.
    Hidden,
}

thread_local! {
    /// The calling thread's reach when it was last read. A reach with a marker owns a process, so this variable keeps
    /// only a weak reference to it.
    static LAST: RefCell<(Weak<Reach>, Option<Arc<Reach>>)> = const { RefCell::new((Weak::new(), None)) };

    /// The calling thread's reach during a start.
    static DURING_START: Remembered<Weak<Reach>> = const { RefCell::new(None) };
}

/// The reach that the calling thread has read in this start.
fn known_reach() -> Option<Arc<Reach>> {
    one_start::known(&DURING_START).and_then(|reach| reach.upgrade())
}

/// The ids of the calling thread, as [`call::ids`] reads them.
pub(crate) fn ids() -> [u32; 6] {
    known_reach().map_or_else(call::ids, |reach| reach.readable.ids.0)
}

/// The capabilities of the calling thread, as [`call::capabilities`] reads them.
pub(crate) fn capabilities() -> Result<[u64; 3], Errno> {
    known_reach().map_or_else(call::capabilities, |reach| reach.readable.capabilities)
}

impl Reach {
    /// The calling thread's reach. Returns the same `Arc` as the last call if the reach is provably unchanged.
    ///
    /// # Errors
    /// The errors of [`Reach::read`], with the stage `stage`.
    pub(crate) fn of_calling_thread(stage: Stage) -> error::Result<Arc<Reach>> {
        Reach::read().map_err(|errno| Error::new(stage, errno, "clone()"))
    }

    /// Reads the calling thread's reach, like `of_calling_thread`, but returns a plain errno.
    ///
    /// # Errors
    /// The errors of clone(2).
    pub(crate) fn read() -> Result<Arc<Reach>, Errno> {
        if let Some(reach) = known_reach() {
            return Ok(reach);
        }
        let reach = Reach::read_again()?;
        one_start::remember(&DURING_START, Arc::downgrade(&reach));
        Ok(reach)
    }

    fn read_again() -> Result<Arc<Reach>, Errno> {
        let generation = fork_generation()?;
        remember_if_single_threaded();
        let readable = Readable::of_calling_thread();
        let last = LAST.try_with(|last| last.borrow().0.upgrade()).ok().flatten();
        if let Some(last) = last
            && last.generation == generation
            && last.readable == readable
            && last.is_unchanged()
        {
            return Ok(last);
        }
        let user_namespace = namespace("user");
        let reach = Arc::new(Reach {
            generation,
            thread: std::thread::current().id(),
            filters: readable.filters(),
            domain: LandlockDomain::of_calling_thread(&readable, user_namespace.as_deref())?,
            user_namespace,
            mount_namespace: readable.mount_namespace(),
            readable,
        });
        let strong = (!matches!(reach.domain, LandlockDomain::Marked(_))).then(|| reach.clone());
        // A thread that is exiting has no thread-local storage.
        let _ = LAST.try_with(|last| last.replace((Arc::downgrade(&reach), strong)));
        Ok(reach)
    }

    /// Whether the part that is not [`Readable`] is unchanged. Call this function only in the thread from which the
    /// library has read this reach.
    fn is_unchanged(&self) -> bool {
        let shows_every_change = self.shows_every_change();
        let same_filters = !self.readable.is_filtered
            || shows_every_change && descends_from_single_thread(self.user_namespace.as_deref())
            || self.readable.filters() == self.filters;
        let same_user_namespace = || namespace("user") == self.user_namespace;
        let same_domain = || match &self.domain {
            // The thread may still inspect the parent, so its user namespace and its domain are unchanged.
            LandlockDomain::Inherited => own_proc::user_namespace_of_parent().is_some(),
            LandlockDomain::Fixed | LandlockDomain::Hidden => same_user_namespace(),
            LandlockDomain::Marked(marker) => same_user_namespace() && marker.is_visible(),
        };
        same_filters && same_domain() && self.readable.mount_namespace() == self.mount_namespace
    }

    /// Whether this reach changes visibly whenever the thread enters another namespace or Landlock domain.
    pub(crate) fn shows_every_change(&self) -> bool {
        self.readable.shows_every_change()
    }

    /// Whether both reaches are provably the same. `other` was just read from the calling thread.
    pub(crate) fn equals(self: &Arc<Reach>, other: &Arc<Reach>) -> bool {
        Arc::ptr_eq(self, other)
            || self.generation == other.generation
                && self.readable == other.readable
                && (&self.user_namespace, &self.mount_namespace) == (&other.user_namespace, &other.mount_namespace)
                && self.has_same_filters(other)
                && self.has_same_domain(other)
    }

    /// Whether both threads provably have the same seccomp filters.
    fn has_same_filters(&self, other: &Reach) -> bool {
        // A thread's filters form a chain that only grows. An equal length means equal filters in one thread, and in
        // threads that inherited that many filters from the process's first thread.
        self.filters == other.filters
            && self
                .filters
                .is_some_and(|filters| filters == 0 || self.thread == other.thread || come_from_first_thread(filters))
    }

    /// Whether both threads provably have the same Landlock domain, if both are in the same user namespace.
    fn has_same_domain(&self, other: &Reach) -> bool {
        if std::ptr::eq(self, other) {
            return true;
        }
        let is_same_thread = self.thread == other.thread;
        match (&self.domain, &other.domain) {
            (LandlockDomain::Inherited, LandlockDomain::Inherited) => true,
            (LandlockDomain::Fixed, LandlockDomain::Fixed) => {
                is_same_thread || descends_from_single_thread(self.user_namespace.as_deref())
            }
            // A thread can leave a domain only for a nested one. From there it cannot see the marker.
            (LandlockDomain::Marked(marker), _) => is_same_thread && marker.is_visible(),
            _ => false,
        }
    }
}

impl Readable {
    fn of_calling_thread() -> Readable {
        let features = features::of_calling_thread();
        let killed_calls = features.killed_calls;
        Readable {
            ids: (call::ids(), call::file_ids(killed_calls)),
            capabilities: call::capabilities(),
            no_new_privs: call::prctl(prctl::PR_GET_NO_NEW_PRIVS, 0, 0) != Ok(0),
            is_filtered: features.is_filtered(),
            label: own_proc::label(),
            scheduling: call::scheduling(killed_calls),
            processors: call::affinity(),
        }
    }

    /// Whether this value changes whenever the thread enters another Landlock domain or adds a seccomp filter.
    ///
    /// Both changes require CAP_SYS_ADMIN or no_new_privs, which the kernel never clears. A thread without
    /// CAP_SYS_ADMIN gets this capability only in a new user namespace or by exec. From Linux 7.0 on, another thread
    /// can change the domain (LANDLOCK_RESTRICT_SELF_TSYNC).
    fn shows_every_change(&self) -> bool {
        !self.no_new_privs && !has_sys_admin(&self.capabilities) && !threads_share_domains()
    }

    fn mount_namespace(&self) -> Option<CString> {
        if has_sys_admin(&self.capabilities) { namespace("mnt") } else { None }
    }

    fn filters(&self) -> Option<u32> {
        if !self.is_filtered {
            return Some(0);
        }
        let filters = read_status().ok()?.filters;
        features::probe_again_if_not(filters);
        filters
    }
}

fn has_sys_admin(capabilities: &Result<[u64; 3], Errno>) -> bool {
    capabilities.map_or(true, |[_, permitted, _]| permitted >> CAP_SYS_ADMIN & 1 == 1)
}

/// The calling thread's namespace of this kind. `None` if the kernel has no such namespaces, or if there is no /proc.
fn namespace(kind: &str) -> Option<CString> {
    own_proc::namespaces([kind]).ok().and_then(|[namespace]| namespace)
}

impl LandlockDomain {
    fn of_calling_thread(readable: &Readable, user_namespace: Option<&CStr>) -> Result<LandlockDomain, Errno> {
        if user_namespace.is_some() && own_proc::user_namespace_of_parent().as_deref() == user_namespace {
            Ok(LandlockDomain::Inherited)
        } else if readable.shows_every_change() {
            Ok(LandlockDomain::Fixed)
        } else {
            let marker = Marker::create()?;
            Ok(if marker.is_visible() { LandlockDomain::Marked(marker) } else { LandlockDomain::Hidden })
        }
    }
}

/// Whether a thread can put all other threads of its process into a Landlock domain: LANDLOCK_RESTRICT_SELF_TSYNC,
/// Linux 7.0.
fn threads_share_domains() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| features::kernel_version().is_none_or(|(major, _)| major >= 7))
}

/// A zombie child. It keeps the Landlock domain of the thread that created it. Dropping this value reaps the child.
#[derive(Debug)]
struct Marker {
    pidfd: CheckedFd,
    /// The path of the child's namespace link in /proc, which `is_visible` reads.
    namespace: PathBuf,
}

impl Marker {
    /// Creates a zombie child of the calling thread.
    ///
    /// # Errors
    /// The errors of clone(2).
    fn create() -> Result<Marker, Errno> {
        let clone3 = features::of_calling_thread().has_clone3();
        let marker = leave_marker(&mut ChildMemory::new()?, clone3)?;
        let pidfd = CheckedFd::new(OwnedFd::from(marker.pidfd));
        Ok(Marker { pidfd, namespace: format!("/proc/{}/ns/user", marker.pid).into() })
    }

    /// Whether the calling thread may read the marker's namespace link. Landlock permits this if it confines the
    /// thread no more than the marker.
    ///
    /// The kernel also refuses the read in these cases: this process is not dumpable (it has changed its ids); the
    /// thread's user ids, or its group ids, are not all equal; the thread has permitted capabilities that are not
    /// effective. CAP_SYS_PTRACE overrides all these refusals. Yama does not restrict ptrace's read access.
    ///
    /// # References
    /// proc_pid_ns(5); security/landlock/task.c, hook_ptrace_access_check(). A child that has ended keeps its
    /// credentials until it is reaped.
    fn is_visible(&self) -> bool {
        // If the host has reaped the marker, another process may have its pid.
        let is_own = |pidfd: &OwnedFd| call::pidfd_send_signal(features::killed_calls(), pidfd.as_raw_fd(), 0).is_ok();
        // Some kernels return an empty link instead of an error (seen in Debian's 5.10.262).
        self.pidfd.get().is_some_and(is_own)
            && std::fs::read_link(&self.namespace).is_ok_and(|name| !name.as_os_str().is_empty())
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        if let Some(pidfd) = self.pidfd.get() {
            // In a forked copy of this process the wait fails with ECHILD.
            let _ = wait_pidfd(pidfd.as_raw_fd(), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::one_start::OneStart;

    #[test]
    fn a_start_reads_the_reach_once_and_does_not_keep_it() {
        let start = OneStart::begin();
        let reach = Reach::read().expect("/proc");
        assert!(Arc::ptr_eq(&reach, &Reach::read().expect("/proc")));
        drop(start);
        // A reach with a marker owns a process. Otherwise `LAST` has a reference, too.
        let others = usize::from(!matches!(reach.domain, LandlockDomain::Marked(_)));
        assert_eq!(Arc::strong_count(&reach), 1 + others);
    }
}
