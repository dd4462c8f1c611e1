// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much a thread may do, as a value that can be compared: a child of another task is started only where it is shown that it
//! may do no more, and no less, than a fork in the calling thread.
//!
//! Authority belongs to threads, and nearly all of it shows in /proc. Two things do not:
//!
//! - *Which* seccomp filters there are; only how many. They are a chain, handed down from thread to thread, and only ever get longer.
//!   So the same number means the same filters in one and the same thread, or in any two of a process that was once seen with that
//!   number and no other thread: all have theirs from there. Otherwise equality is not shown.
//! - Landlock. The kernel lets a task look into another only if the other is at least as confined ([`reach`]); not asked between
//!   threads of one process, so there has to be a process born with the credentials in question.

use std::cell::RefCell;
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::ThreadId;

use spawnfd_child::{Room, leave_marker};
use spawnfd_sys::{Errno, call, fork_generation, wait_pidfd};

use crate::launch::features;
use crate::numbers::Known;
use crate::own_proc::{self, Own};

/// The lines of /proc/thread-self/status that say what a thread may do, and what to call them.
const LINES: [(&str, &str); 14] = [
    ("Uid", "user ids"),
    ("Gid", "group ids"),
    ("Groups", "groups"),
    ("CapInh", "capabilities"),
    ("CapPrm", "capabilities"),
    ("CapEff", "capabilities"),
    ("CapBnd", "capabilities"),
    ("CapAmb", "capabilities"),
    ("NoNewPrivs", "no_new_privs"),
    ("Seccomp", "seccomp"),
    ("Seccomp_filters", "seccomp"),
    ("Speculation_Store_Bypass", "speculation"),
    ("SpeculationIndirectBranch", "speculation"),
    ("Mems_allowed", "cpuset"),
];

const CAP_SYS_ADMIN: u32 = 21;

/// What a child is born into: `pid` and `time` themselves never change for a running thread.
const NAMESPACES: [&str; 8] = ["user", "mnt", "pid_for_children", "net", "ipc", "uts", "cgroup", "time_for_children"];

type Namespaces = [Option<CString>; NAMESPACES.len()];

thread_local! {
    /// Those of a thread that cannot change them, of the process of that generation.
    static SETTLED: RefCell<Option<(u64, Arc<Namespaces>)>> = const { RefCell::new(None) };
}

/// The calling thread's.
///
/// A thread that is not permitted CAP_SYS_ADMIN can only move into others by a user namespace that it makes or owns, and then never
/// comes back: of one that was without it before, that one is looked at (user_namespaces(7)).
fn namespaces(status: &Status) -> rustix::io::Result<Arc<Namespaces>> {
    let all = || own_proc::namespaces(NAMESPACES).map(Arc::new);
    let (false, Ok(generation)) = (status.administers, fork_generation()) else { return all() };
    let [user] = own_proc::namespaces(["user"])?;
    // A thread that is ending has nowhere to keep them.
    let settled = SETTLED.try_with(|kept| kept.borrow().clone()).ok().flatten();
    if let Some((made, namespaces)) = settled
        && made == generation
        && namespaces[0] == user
    {
        return Ok(namespaces);
    }
    let namespaces = all()?;
    let _ = SETTLED.try_with(|kept| kept.replace(Some((generation, namespaces.clone()))));
    Ok(namespaces)
}

/// What one thread may do, at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Authority {
    thread: ThreadId,
    /// How many seccomp filters; `None` from a kernel that does not count them.
    filters: Option<u32>,
    umask: String,
    /// Of signals.
    ignored: u64,
    /// The [`LINES`] there are, in the kernel's order.
    status: String,
    securebits: Result<usize, Errno>,
    namespaces: Arc<Namespaces>,
    /// The security module's label, and the user who has logged in, for audit; errors where there is no such thing.
    labels: [rustix::io::Result<Vec<u8>>; 2],
    /// Session keyring, and where keys that are asked for go. Process and thread keyrings are not handed down.
    keyrings: [Result<usize, Errno>; 2],
}

/// How many filters this process, or the one it was forked from, had when it was last seen with one thread; [`NEVER`] if it was not.
static ALONE_WITH: AtomicU32 = AtomicU32::new(NEVER);
const NEVER: u32 = u32::MAX;

/// Looks whether this process has one thread yet, when it first uses the library.
pub(crate) fn remember_if_alone() {
    /// The generation of the process that has looked.
    static LOOKED: AtomicU64 = AtomicU64::new(0);
    let generation = fork_generation().unwrap_or(1);
    if LOOKED.load(Ordering::Relaxed) != generation {
        LOOKED.store(generation, Ordering::Relaxed);
        let _ = read_status();
    }
}

/// What /proc/thread-self/status says, of what counts.
struct Status {
    /// The [`LINES`] there are, in the kernel's order.
    lines: String,
    filters: Option<u32>,
    umask: String,
    ignored: u64,
    /// CAP_SYS_ADMIN is permitted, or may be.
    administers: bool,
}

/// /proc/thread-self/status, in one pass: this is done for each start.
fn read_status() -> rustix::io::Result<Status> {
    // A name may hold any bytes; the lines that count do not.
    let text = own_proc::read(Own::Status)?;
    let text = String::from_utf8(text).unwrap_or_else(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
    let mut status = Status {
        lines: String::with_capacity(512),
        filters: Some(0),
        umask: String::new(),
        ignored: 0,
        administers: true,
    };
    let (mut mode, mut count, mut alone) = (None, None, false);
    for line in text.split_inclusive('\n') {
        let Some((name, value)) = line.split_once(':') else { continue };
        let value = value.trim_ascii();
        match name {
            "Umask" => value.clone_into(&mut status.umask),
            "SigIgn" => status.ignored = u64::from_str_radix(value, 16).unwrap_or(0),
            "CapPrm" => {
                status.administers =
                    u64::from_str_radix(value, 16).map_or(true, |permitted| permitted >> CAP_SYS_ADMIN & 1 == 1);
            }
            "Threads" => alone = value == "1",
            "Seccomp" => mode = Some(value),
            "Seccomp_filters" => count = value.parse().ok(),
            _ => {}
        }
        if LINES.iter().any(|(known, _)| *known == name) {
            status.lines.push_str(line);
        }
    }
    status.filters = match mode {
        None | Some("0") => Some(0),
        Some(_) => count,
    };
    if let (Some(filters), true) = (status.filters, alone) {
        ALONE_WITH.store(filters, Ordering::Relaxed);
    }
    Ok(status)
}

impl Authority {
    /// The calling thread's.
    ///
    /// # Errors
    /// /proc cannot be read: nothing can be shown.
    pub(crate) fn of_calling_thread() -> rustix::io::Result<Authority> {
        const PR_GET_SECUREBITS: u32 = 27;
        let status = read_status()?;
        let namespaces = namespaces(&status)?;
        let Status { lines, filters, umask, ignored, .. } = status;
        let labels = [Own::Label, Own::LoginUid].map(own_proc::read);
        Ok(Authority {
            thread: std::thread::current().id(),
            filters,
            umask,
            ignored,
            status: lines,
            securebits: call::prctl(PR_GET_SECUREBITS, 0, 0),
            namespaces,
            labels,
            keyrings: [call::session_keyring(), call::request_key_destination()],
        })
    }

    /// In what `other`, read later, differs, or cannot be shown not to.
    pub(crate) fn differs(&self, other: &Authority) -> Option<&'static str> {
        if self.status != other.status {
            let mut pairs = self.status.lines().zip(other.status.lines());
            let line = pairs.find(|(one, another)| one != another).map_or("", |(line, _)| line);
            let what = LINES.iter().find(|(name, _)| line.split_once(':').is_some_and(|(line, _)| line == *name));
            return Some(what.map_or("status", |(_, what)| what));
        }
        let same_filters = match self.filters {
            None => false,
            Some(0) => true,
            Some(filters) => self.thread == other.thread || ALONE_WITH.load(Ordering::Relaxed) == filters,
        };
        if !same_filters {
            return Some("seccomp");
        }
        let namespaces = NAMESPACES.iter().zip(self.namespaces.iter().zip(&*other.namespaces));
        namespaces
            .filter(|(_, (one, another))| one != another)
            .map(|_| "namespaces")
            .next()
            .or((self.securebits != other.securebits).then_some("securebits"))
            .or((self.labels != other.labels).then_some("security label"))
            .or((self.keyrings != other.keyrings).then_some("keyrings"))
    }

    /// Whether a thread that the calling one has just started, and that has done nothing since, still has it.
    pub(crate) fn is_held_by_its_heir(&self, heir: &Authority) -> bool {
        self.differs(&heir.clone().of_heir_of(self.thread)).is_none()
    }

    /// The same as that of the thread which started the one it was taken of: seccomp filters are handed down, and that one has added none.
    pub(crate) fn of_heir_of(self, thread: ThreadId) -> Authority {
        Authority { thread, ..self }
    }

    /// The signals that are ignored, as a set. No authority either.
    pub(crate) fn ignored(&self) -> u64 {
        self.ignored
    }

    /// The file creation mask, as /proc prints it. No authority; it is just read along.
    pub(crate) fn umask(&self) -> &str {
        &self.umask
    }
}

/// The path by which a process is looked into.
pub(crate) fn inside(pid: i32) -> PathBuf {
    format!("/proc/{pid}/ns/user").into()
}

/// Looks [`inside`] a process, which the calling thread may if Landlock confines it no more than that one. That it is
/// not *less* confined does not follow.
///
/// Asks for no more than ptrace's right to read, which Yama does not restrict.
///
/// # Errors
/// Why it may not: there is no such process; without CAP_SYS_PTRACE, because this one is not dumpable (it has changed its ids),
/// or the calling thread has capabilities permitted that are not effective, or several user or group ids; or Landlock.
///
/// # References
/// proc_pid_ns(5); security/landlock/task.c, hook_ptrace_access_check(). An ended process that nobody has waited for will do:
/// it keeps its credentials.
pub(crate) fn reach(inside: &Path) -> Result<(), &'static str> {
    const PR_GET_DUMPABLE: u32 = 3;
    match std::fs::read_link(inside) {
        // With nothing in it: so some kernels refuse (seen in Debian's 5.10.262).
        Ok(name) if !name.as_os_str().is_empty() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err("marker"),
        _ if call::prctl(PR_GET_DUMPABLE, 0, 0) != Ok(1) => Err("not dumpable"),
        _ if call::capabilities().is_ok_and(|[effective, permitted, _]| effective != permitted) => Err("capabilities"),
        _ if has_several(call::ids()) => Err("several ids"),
        _ => Err("landlock"),
    }
}

/// A child of the thread that makes it, which has ended, and shows to others that thread's Landlock domain until this is dropped.
#[derive(Debug)]
pub(crate) struct Marker {
    pidfd: Known,
    inside: PathBuf,
}

impl Marker {
    /// # Errors
    /// As clone(2).
    pub(crate) fn leave() -> Result<Marker, Errno> {
        let marker = leave_marker(&mut Room::new()?, features::CLONE3.works()).map_err(|refused| refused.0)?;
        let pidfd = Known::new(OwnedFd::from(marker.pidfd));
        Ok(Marker { pidfd, inside: inside(marker.pid) })
    }

    /// As [`reach`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn reach(&self) -> Result<(), &'static str> {
        let pidfd = self.pidfd.get().ok_or("marker")?;
        // Somebody may have waited for it: then its number may be another's.
        call::pidfd_send_signal(pidfd.as_raw_fd(), 0).map_err(|_| "marker")?;
        reach(&self.inside)
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        if let Some(pidfd) = self.pidfd.get() {
            // ECHILD in a fork's copy.
            let _ = wait_pidfd(pidfd.as_raw_fd(), true);
        }
    }
}

fn has_several([user, effective_user, saved_user, group, effective_group, saved_group]: [u32; 6]) -> bool {
    [effective_user, saved_user] != [user; 2] || [effective_group, saved_group] != [group; 2]
}
