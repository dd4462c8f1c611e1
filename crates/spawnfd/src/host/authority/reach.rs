// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's own power over processes and files, as a value that can be compared. A thread or a helper of the library acts for a
//! caller only if both have the same [`Reach`]. docs/adr/0022-reach.md has the proof.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use spawnfd_sys::{Errno, call, fork_generation, prctl};

use super::{CAP_SYS_ADMIN, Marker, comes_from_one_thread};
use crate::error::{self, Error, Stage};
use crate::host::features;
use crate::host::own_proc;

/// The power of a thread over processes and files, and its scheduling.
///
/// A thread that it starts has the same, and so has a process that it forks.
#[derive(Debug)]
pub(crate) struct Reach {
    generation: u64,
    thread: ThreadId,
    readable: Readable,
    user_namespace: Option<CString>,
    /// Of a thread that could change it without a new user namespace.
    mount_namespace: Option<CString>,
    /// How many seccomp filters there are; `None` if the kernel does not count them.
    filters: Option<u32>,
    domain: Domain,
}

/// The part that a thread can read of itself with a few cheap system calls.
#[derive(PartialEq, Debug)]
struct Readable {
    /// Real, effective and saved ids, and those for file access: users, then groups.
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
    /// The one that this process began with: a thread in any other cannot look into the process's parent, which is in the same user
    /// namespace. Nor can a thread in another user namespace.
    Inherited,
    /// Some domain. The thread cannot enter another one as long as its [`Readable`] part and its user namespace stay the same.
    Fixed,
    /// Some domain, which this marker shows.
    Marked(Marker),
    /// Some domain, which nothing shows: there is no /proc, or the kernel does not let this process be looked into.
    Hidden,
}

thread_local! {
    /// The calling thread's reach when it was last read. One with a marker, which is a process, is kept only while a service has it.
    static LAST: RefCell<(Weak<Reach>, Option<Arc<Reach>>)> = const { RefCell::new((Weak::new(), None)) };
}

impl Reach {
    /// The calling thread's: the same `Arc` as last time, if it is shown that nothing has changed.
    ///
    /// # Errors
    /// As [`Reach::read`], of that stage.
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
        // A thread that is ending has no place for it.
        let _ = LAST.try_with(|last| last.replace((Arc::downgrade(&reach), kept)));
        Ok(reach)
    }

    /// Whether the part that is not [`Readable`] is still the same for the thread that this was read of.
    fn is_unchanged(&self) -> bool {
        let is_settled = self.readable.is_settled();
        let same_filters = !self.readable.is_filtered
            || is_settled && comes_from_one_thread(self.user_namespace.as_deref())
            || self.readable.filters() == self.filters;
        let same_user_namespace = || namespace("user") == self.user_namespace;
        let same_domain = || match &self.domain {
            // Both at once.
            Domain::Inherited => own_proc::user_namespace_of_parent().is_some(),
            Domain::Fixed | Domain::Hidden => same_user_namespace(),
            Domain::Marked(marker) => same_user_namespace() && marker.is_visible(),
        };
        same_filters && same_domain() && self.readable.mount_namespace() == self.mount_namespace
    }

    /// Whether the thread can enter other namespaces, or another Landlock domain, only in a way that changes its reach.
    pub(crate) fn is_settled(&self) -> bool {
        self.readable.is_settled()
    }

    /// Whether the calling thread, which `other` was just read of, is shown to have the same reach as the thread that this was read of had.
    pub(crate) fn equals(self: &Arc<Reach>, other: &Arc<Reach>) -> bool {
        Arc::ptr_eq(self, other)
            || self.generation == other.generation
                && self.readable == other.readable
                && (&self.user_namespace, &self.mount_namespace) == (&other.user_namespace, &other.mount_namespace)
                && self.has_filters_of(other)
                && self.has_domain_of(other)
    }

    /// The same for seccomp filters alone.
    pub(super) fn has_filters_of(&self, other: &Reach) -> bool {
        // They are a chain that only grows: in one thread, or below one, the same length means the same filters.
        self.filters == other.filters
            && self
                .filters
                .is_some_and(|filters| filters == 0 || self.thread == other.thread || super::were_handed_down(filters))
    }

    /// The same for the Landlock domain alone, if both are in the same user namespace.
    pub(super) fn has_domain_of(&self, other: &Reach) -> bool {
        if std::ptr::eq(self, other) {
            return true;
        }
        let is_same_thread = self.thread == other.thread;
        match (&self.domain, &other.domain) {
            (Domain::Inherited, Domain::Inherited) => true,
            (Domain::Fixed, Domain::Fixed) => is_same_thread || comes_from_one_thread(self.user_namespace.as_deref()),
            // A domain is only ever left for one inside it, which the marker is not in.
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

    /// Whether the thread can enter another Landlock domain, or get another seccomp filter, only in a way that changes what is read here.
    ///
    /// Both ask for no_new_privs, which is never taken back, or for CAP_SYS_ADMIN, which a thread without it gets only in a new user
    /// namespace or by an exec. From Linux 7.0 on another thread can change the domain (LANDLOCK_RESTRICT_SELF_TSYNC).
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

/// The calling thread's namespace of that kind; `None` if there is none, or no /proc.
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
