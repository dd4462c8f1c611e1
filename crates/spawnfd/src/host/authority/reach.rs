// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's power over processes and files, as a value that the library can compare.
//!
//! A thread or helper of the library acts for a caller only if both have the same [`Reach`]. Decision record 0022 has
//! the proof.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use spawnfd_sys::{Errno, call, fork_generation, prctl};

use super::Marker;
use crate::error::{self, Error, Stage};
use crate::host::features;
use crate::host::own_proc;
use crate::host::thread_status::{CAP_SYS_ADMIN, come_from_first_thread, descends_from_single_thread, read_status};

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
        let generation = fork_generation()?;
        super::remember_if_single_threaded();
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
    pub(super) fn has_same_filters(&self, other: &Reach) -> bool {
        // A thread's filters form a chain that only grows. An equal length means equal filters in one thread, and in
        // threads that inherited that many filters from the process's first thread.
        self.filters == other.filters
            && self
                .filters
                .is_some_and(|filters| filters == 0 || self.thread == other.thread || come_from_first_thread(filters))
    }

    /// Whether both threads provably have the same Landlock domain, if both are in the same user namespace.
    pub(super) fn has_same_domain(&self, other: &Reach) -> bool {
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
        let killed = features::killed();
        Readable {
            ids: (call::ids(), call::file_ids(killed)),
            capabilities: call::capabilities(),
            no_new_privs: call::prctl(prctl::PR_GET_NO_NEW_PRIVS, 0, 0) != Ok(0),
            is_filtered: call::prctl(prctl::PR_GET_SECCOMP, 0, 0) != Ok(0),
            label: own_proc::label(),
            scheduling: call::scheduling(killed),
            processors: call::affinity(),
        }
    }

    /// Whether this value changes whenever the thread enters another Landlock domain or adds a seccomp filter.
    ///
    /// Both changes require CAP_SYS_ADMIN or no_new_privs, which the kernel never clears. A thread without
    /// CAP_SYS_ADMIN gets this capability only in a new user namespace or by exec. From Linux 7.0 on, another thread
    /// can change the domain (LANDLOCK_RESTRICT_SELF_TSYNC).
    fn shows_every_change(&self) -> bool {
        !self.no_new_privs && !has_sys_admin(&self.capabilities) && !super::threads_share_domains()
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
