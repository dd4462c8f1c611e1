// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's authority as /proc shows it, and the filters and namespace of the time when the process had one thread.

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use spawnfd_sys::fork_generation;

use crate::cold_reason::ColdReason;
use crate::host::own_proc::{self, ProcFile};
use crate::host::per_process::PerProcess;

/// The lines of /proc/thread-self/status that describe authority, and the reasons for a cold start if they differ.
pub(super) const LINES: [(&str, ColdReason); 14] = [
    ("Uid", ColdReason::UserIds),
    ("Gid", ColdReason::GroupIds),
    ("Groups", ColdReason::Groups),
    ("CapInh", ColdReason::Capabilities),
    ("CapPrm", ColdReason::Capabilities),
    ("CapEff", ColdReason::Capabilities),
    ("CapBnd", ColdReason::Capabilities),
    ("CapAmb", ColdReason::Capabilities),
    ("NoNewPrivs", ColdReason::NoNewPrivs),
    ("Seccomp", ColdReason::Seccomp),
    ("Seccomp_filters", ColdReason::Seccomp),
    ("Speculation_Store_Bypass", ColdReason::Speculation),
    ("SpeculationIndirectBranch", ColdReason::Speculation),
    ("Mems_allowed", ColdReason::Cpuset),
];

pub(super) const CAP_SYS_ADMIN: u32 = 21;

/// The number of seccomp filters that this process had when it last had a single thread. A forked process inherits
/// the value. [`NEVER`] if the library has never seen this process with a single thread.
static SINGLE_THREAD_FILTERS: AtomicU32 = AtomicU32::new(NEVER);
const NEVER: u32 = u32::MAX;

/// Whether all threads of this process with this number of seccomp filters inherited the filters from its first
/// thread.
pub(super) fn come_from_first_thread(filters: u32) -> bool {
    SINGLE_THREAD_FILTERS.load(Ordering::Relaxed) == filters
}

/// The user namespace of this process when it had a single thread, which had neither no_new_privs nor CAP_SYS_ADMIN.
///
/// All later threads descend from that thread. A later thread cannot have entered another Landlock domain as long as
/// it has neither no_new_privs nor CAP_SYS_ADMIN and is in the same user namespace.
static SINGLE_THREAD_USER_NAMESPACE: PerProcess<Option<CString>> = PerProcess::new(None);

/// Whether the calling thread is in the Landlock domain of the thread that `SINGLE_THREAD_USER_NAMESPACE` describes.
/// The caller must have checked that the calling thread has neither no_new_privs nor CAP_SYS_ADMIN, and is in
/// `user_namespace`.
pub(super) fn descends_from_single_thread(user_namespace: Option<&CStr>) -> bool {
    user_namespace.is_some() && SINGLE_THREAD_USER_NAMESPACE.lock().as_deref() == user_namespace
}

/// Records whether this process has a single thread when it first uses the library.
pub(crate) fn remember_if_single_threaded() {
    /// The fork generation of the process that this function has checked: a number that differs in each forked
    /// process.
    static CHECKED: AtomicU64 = AtomicU64::new(0);
    let generation = fork_generation().unwrap_or(1);
    if CHECKED.load(Ordering::Relaxed) == generation {
        return;
    }
    CHECKED.store(generation, Ordering::Relaxed);
    let Ok(status) = read_status() else { return };
    let is_plain = status.lines.lines().any(|line| field(line) == ("NoNewPrivs", "0")) && !status.has_sys_admin;
    if status.single_threaded
        && is_plain
        && let Ok([user]) = own_proc::namespaces(["user"])
    {
        *SINGLE_THREAD_USER_NAMESPACE.lock() = user;
    }
}

/// A thread's authority as its /proc status file shows it, and other fields of that file.
pub(super) struct ThreadStatus {
    /// The [`LINES`] that the kernel's status file has, in the kernel's order.
    pub(super) lines: String,
    pub(super) filters: Option<u32>,
    pub(super) umask: String,
    pub(super) ignored: u64,
    /// True if CAP_SYS_ADMIN is permitted, or if the status file does not show capabilities.
    has_sys_admin: bool,
    /// True if the process has one thread.
    single_threaded: bool,
}

impl ThreadStatus {
    /// Parses a /proc status file in one pass, because each start from a parked process parses one.
    pub(super) fn parse(text: Vec<u8>) -> ThreadStatus {
        // The process name may have any bytes; the other lines are ASCII.
        let text = String::from_utf8(text).unwrap_or_else(|text| String::from_utf8_lossy(text.as_bytes()).into_owned());
        let mut status = ThreadStatus {
            lines: String::with_capacity(512),
            filters: Some(0),
            umask: String::new(),
            ignored: 0,
            has_sys_admin: true,
            single_threaded: false,
        };
        let (mut mode, mut count) = (None, None);
        for line in text.split_inclusive('\n') {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim_ascii();
            match name {
                "Umask" => value.clone_into(&mut status.umask),
                "SigIgn" => status.ignored = u64::from_str_radix(value, 16).unwrap_or(0),
                "CapPrm" => {
                    status.has_sys_admin =
                        u64::from_str_radix(value, 16).map_or(true, |permitted| permitted >> CAP_SYS_ADMIN & 1 == 1);
                }
                "Threads" => status.single_threaded = value == "1",
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
        status
    }
}

/// The calling thread's status.
pub(super) fn read_status() -> rustix::io::Result<ThreadStatus> {
    let status = ThreadStatus::parse(own_proc::read(ProcFile::Status)?);
    if let (Some(filters), true) = (status.filters, status.single_threaded) {
        SINGLE_THREAD_FILTERS.store(filters, Ordering::Relaxed);
    }
    Ok(status)
}

/// The name and value of a status line.
pub(super) fn field(line: &str) -> (&str, &str) {
    line.split_once(':').map_or((line, ""), |(name, value)| (name, value.trim_ascii()))
}
