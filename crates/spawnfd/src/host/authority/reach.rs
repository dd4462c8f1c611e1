// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's power over processes and files, as a value that can be compared.
//!
//! A thread or helper of the library acts for a caller only if both have the same [`Reach`]. docs/adr/0022-reach.md
//! has the proof.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use spawnfd_sys::{Errno, call, fork_generation, prctl};

use super::{CAP_SYS_ADMIN, Marker, comes_from_one_thread};
use crate::error::{self, Error, Stage};
use crate::host::features;
use crate::host::own_proc;

/// A thread's power over processes and files, and its scheduling.
///
/// New threads and forked processes have the same reach.
#[derive(Debug)]
pub(crate) struct Reach {
    generation: u64,
    thread: ThreadId,
    readable: Readable,
    user_namespace: Option<CString>,
    /// The mount namespace, recorded only for a thread that can change it without a new user namespace.
    mount_namespace: Option<CString>,
    /// The number of seccomp filters; `None` if the kernel does not count them.
    filters: Option<u32>,
    domain: Domain,
}

/// The part that a thread can read with a few cheap system calls.
#[derive(PartialEq, Debug)]
struct Readable {
    /// Real, effective and saved ids of users and groups; then the ids for file access.
    ids: ([u32; 6], [u32; 2]),
    /// Effective, permitted and inheritable.
    capabilities: Result<[u64; 3], Errno>,
    no_new_privs: bool,
    is_filtered: bool,
    label: rustix::io::Result<Vec<u8>>,
    scheduling: Result<[u64; 7], Errno>,
    processors: Result<[u64; 128], Errno>,
}

/// The thread's Landlock domain, which the kernel does not show.
#[derive(Debug)]
enum Domain {
    /// The domain that this process began with. A thread in another domain, or in another user namespace, cannot
    /// inspect the process's parent, which is in the same user namespace.
    Inherited,
    /// An unknown domain. The thread cannot enter another one as long as its [`Readable`] part and its user
    /// namespace stay the same.
    Fixed,
    /// An unknown domain, which this marker has too.
    Marked(Marker),
    /// An unknown domain that nothing shows: there is no /proc, or the kernel does not permit inspection of this
    /// process.
    Hidden,
}

thread_local! {
    /// The calling thread's reach when it was last read. A reach with a marker, which is a process, is kept only
    /// while other code uses it.
    static LAST: RefCell<(Weak<Reach>, Option<Arc<Reach>>)> = const { RefCell::new((Weak::new(), None)) };
}

impl Reach {
    /// The calling thread's reach. Returns the same `Arc` as last time if nothing has provably changed.
    ///
    /// # Errors
    /// As [`Reach::read`], with this stage.
    pub(crate) fn of_calling_thread(stage: Stage) -> error::Result<Arc<Reach>> {
        Reach::read().map_err(|errno| Error::new(stage, errno, "clone()"))
    }

    /// # Errors
    /// As clone(2).
    pub(crate) fn read() -> Result<Arc<Reach>, Errno> {
        let generation = fork_generation()?;
        super::remember_if_alone();
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
            domain: Domain::of_calling_thread(&readable, user_namespace.as_deref())?,
            user_namespace,
            mount_namespace: readable.mount_namespace(),
            readable,
        });
        let kept = (!matches!(reach.domain, Domain::Marked(_))).then(|| reach.clone());
        // A thread that is exiting has no thread-local storage.
        let _ = LAST.try_with(|last| last.replace((Arc::downgrade(&reach), kept)));
        Ok(reach)
    }

    /// Whether the part that is not [`Readable`] is unchanged. Called in the thread that this reach was read from.
    fn is_unchanged(&self) -> bool {
        let is_settled = self.readable.is_settled();
        let same_filters = !self.readable.is_filtered
            || is_settled && comes_from_one_thread(self.user_namespace.as_deref())
            || self.readable.filters() == self.filters;
        let same_user_namespace = || namespace("user") == self.user_namespace;
        let same_domain = || match &self.domain {
            // This check covers the user namespace and the domain.
            Domain::Inherited => own_proc::user_namespace_of_parent().is_some(),
            Domain::Fixed | Domain::Hidden => same_user_namespace(),
            Domain::Marked(marker) => same_user_namespace() && marker.is_visible(),
        };
        same_filters && same_domain() && self.readable.mount_namespace() == self.mount_namespace
    }

    /// Whether any entry into other namespaces or another Landlock domain changes the thread's reach.
    pub(crate) fn is_settled(&self) -> bool {
        self.readable.is_settled()
    }

    /// Whether both reaches are provably the same. `other` was just read from the calling thread.
    pub(crate) fn equals(self: &Arc<Reach>, other: &Arc<Reach>) -> bool {
        Arc::ptr_eq(self, other)
            || self.generation == other.generation
                && self.readable == other.readable
                && (&self.user_namespace, &self.mount_namespace) == (&other.user_namespace, &other.mount_namespace)
                && self.has_filters_of(other)
                && self.has_domain_of(other)
    }

    /// Whether both provably have the same seccomp filters.
    pub(super) fn has_filters_of(&self, other: &Reach) -> bool {
        // Filters form a chain that only grows. In one thread, or in threads that it started, an equal length means
        // equal filters.
        self.filters == other.filters
            && self
                .filters
                .is_some_and(|filters| filters == 0 || self.thread == other.thread || super::were_handed_down(filters))
    }

    /// Whether both provably have the same Landlock domain, if both are in the same user namespace.
    pub(super) fn has_domain_of(&self, other: &Reach) -> bool {
        if std::ptr::eq(self, other) {
            return true;
        }
        let is_same_thread = self.thread == other.thread;
        match (&self.domain, &other.domain) {
            (Domain::Inherited, Domain::Inherited) => true,
            (Domain::Fixed, Domain::Fixed) => is_same_thread || comes_from_one_thread(self.user_namespace.as_deref()),
            // A thread leaves a domain only for a nested one, and the marker is not in the nested one.
            (Domain::Marked(marker), _) => is_same_thread && marker.is_visible(),
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

    /// Whether any entry into another Landlock domain, and any new seccomp filter, changes this value.
    ///
    /// Both require no_new_privs, which is never cleared, or CAP_SYS_ADMIN. A thread without CAP_SYS_ADMIN gets it
    /// only in a new user namespace or by exec. From Linux 7.0 on, another thread can change the domain
    /// (LANDLOCK_RESTRICT_SELF_TSYNC).
    fn is_settled(&self) -> bool {
        !self.no_new_privs && !administers(&self.capabilities) && !super::threads_share_domains()
    }

    fn mount_namespace(&self) -> Option<CString> {
        if administers(&self.capabilities) { namespace("mnt") } else { None }
    }

    fn filters(&self) -> Option<u32> {
        if !self.is_filtered {
            return Some(0);
        }
        let filters = super::read_status().ok()?.filters;
        features::probe_again_if_not(filters);
        filters
    }
}

fn administers(capabilities: &Result<[u64; 3], Errno>) -> bool {
    capabilities.map_or(true, |[_, permitted, _]| permitted >> CAP_SYS_ADMIN & 1 == 1)
}

/// The calling thread's namespace of this kind; `None` if the kernel has none, or without /proc.
fn namespace(kind: &str) -> Option<CString> {
    own_proc::namespaces([kind]).ok().and_then(|[namespace]| namespace)
}

impl Domain {
    fn of_calling_thread(readable: &Readable, user_namespace: Option<&CStr>) -> Result<Domain, Errno> {
        if user_namespace.is_some() && own_proc::user_namespace_of_parent().as_deref() == user_namespace {
            Ok(Domain::Inherited)
        } else if readable.is_settled() {
            Ok(Domain::Fixed)
        } else {
            let marker = Marker::leave()?;
            Ok(if marker.is_visible() { Domain::Marked(marker) } else { Domain::Hidden })
        }
    }
}
