// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calling thread as /proc shows it: its authority and namespaces, and the filters and namespace of the time when the
//! process had one thread.
//!
//! The library keeps the files open between reads, because opening a file costs more than reading it.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat, readlinkat};
use rustix::process::getppid;
use spawnfd_guard::process::is_proc_foreign;
use spawnfd_sys::fork_generation;

use crate::cold_reason::ColdReason;
use crate::host::descriptors::CheckedFd;
use crate::host::per_process::PerProcess;

/// A /proc file about the calling thread, or about its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "warm"), expect(dead_code, reason = "only a start from a parked process reads all files"))]
pub(crate) enum ProcFile {
    Status,
    Label,
    /// The label for the next exec; empty for the usual label. The three files after this one are
    /// the labels for new files, sockets and keys.
    ExecLabel,
    FileLabel,
    SocketLabel,
    KeyLabel,
    LoginUid,
    Cgroup,
    OomScoreAdj,
    CoreFilter,
    /// The directory of the thread's namespaces.
    Namespaces,
    /// The namespace directory of this process's parent at the time of opening.
    ParentNamespaces,
    /// The directory of the process's threads.
    Threads,
}

impl ProcFile {
    const COUNT: usize = 13;

    fn path(self) -> &'static str {
        match self {
            ProcFile::Status => "/proc/thread-self/status",
            ProcFile::Label => "/proc/thread-self/attr/current",
            ProcFile::ExecLabel => "/proc/thread-self/attr/exec",
            ProcFile::FileLabel => "/proc/thread-self/attr/fscreate",
            ProcFile::SocketLabel => "/proc/thread-self/attr/sockcreate",
            ProcFile::KeyLabel => "/proc/thread-self/attr/keycreate",
            ProcFile::LoginUid => "/proc/thread-self/loginuid",
            ProcFile::Cgroup => "/proc/thread-self/cgroup",
            ProcFile::OomScoreAdj => "/proc/self/oom_score_adj",
            ProcFile::CoreFilter => "/proc/self/coredump_filter",
            ProcFile::Namespaces => "/proc/thread-self/ns",
            ProcFile::ParentNamespaces => "/proc",
            ProcFile::Threads => "/proc/self/task",
        }
    }

    fn flags(self) -> OFlags {
        match self {
            ProcFile::Namespaces | ProcFile::ParentNamespaces | ProcFile::Threads => {
                OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC
            }
            _ => OFlags::RDONLY | OFlags::CLOEXEC,
        }
    }
}

fn open(which: ProcFile) -> rustix::io::Result<OwnedFd> {
    if which == ProcFile::ParentNamespaces {
        return open_parent();
    }
    let file = openat(CWD, which.path(), which.flags(), Mode::empty())?;
    // `has_one_thread` counts the directory's links, and only the proc file system has one link for each thread. So
    // refuse a directory of another file system.
    let is_proc = which != ProcFile::Threads || fstatfs(&file)?.f_type == PROC_SUPER_MAGIC;
    if is_proc { Ok(file) } else { Err(rustix::io::Errno::SRCH) }
}

fn open_parent() -> rustix::io::Result<OwnedFd> {
    let parent = || getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let pid = parent();
    // A parent pid of 0 means that the parent is in another pid namespace. If /proc belongs to
    // another pid namespace, the parent's pid means another process there.
    if pid == 0 || is_proc_foreign() {
        return Err(rustix::io::Errno::SRCH);
    }
    let directory = openat(
        CWD,
        format!("{}/{pid}/ns", ProcFile::ParentNamespaces.path()),
        ProcFile::ParentNamespaces.flags(),
        Mode::empty(),
    )?;
    // If the parent is still the same, it had this pid when the library opened the directory.
    if parent() == pid { Ok(directory) } else { Err(rustix::io::Errno::SRCH) }
}

/// The open /proc files of one thread in one process. [`fork_generation`] identifies the process.
#[derive(Default)]
struct OpenFiles {
    generation: Option<u64>,
    files: [Option<CheckedFd>; ProcFile::COUNT],
}

thread_local! {
    static OPEN_FILES: RefCell<OpenFiles> = RefCell::new(OpenFiles::default());
}

fn with_file<T>(which: ProcFile, read_from: impl FnOnce(&OwnedFd) -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let mut read_from = Some(read_from);
    let outcome = OPEN_FILES.try_with(|all| {
        let mut all = all.try_borrow_mut().ok()?;
        let generation = fork_generation().ok()?;
        if all.generation != Some(generation) {
            *all = OpenFiles { generation: Some(generation), ..OpenFiles::default() };
        }
        let entry = &mut all.files[which as usize];
        if let Some(file) = entry.as_ref().and_then(CheckedFd::get) {
            return Some(read_from.take()?(file));
        }
        *entry = None;
        match open(which) {
            Ok(file) => Some(read_from.take()?(entry.insert(CheckedFd::new(file)).get()?)),
            Err(error) => Some(Err(error)),
        }
    });
    match outcome {
        Ok(Some(outcome)) => outcome,
        // The thread's table of open files is not available, for example because the thread is exiting. So open the
        // file for this read only.
        _ => match read_from {
            Some(read_from) => read_from(&open(which)?),
            None => Err(rustix::io::Errno::IO),
        },
    }
}

/// Closes the file, so that the next read opens it again.
fn forget(which: ProcFile) {
    let _ = OPEN_FILES.try_with(|all| all.borrow_mut().files[which as usize] = None);
}

/// Whether the process has one thread.
///
/// The link count of /proc/self/task is two, plus one for each thread.
pub(crate) fn has_one_thread() -> bool {
    with_file(ProcFile::Threads, |directory| fstat(directory)).is_ok_and(|directory| directory.st_nlink == 3)
}

/// The file's current contents.
pub(crate) fn read(which: ProcFile) -> rustix::io::Result<Vec<u8>> {
    with_file(which, |file| {
        let mut contents = Vec::with_capacity(2048);
        loop {
            contents.reserve(1024);
            let memory = contents.capacity() - contents.len();
            let at = contents.len() as u64;
            // The kernel generates the contents for each read. A read that does not fill the buffer has reached the
            // end.
            if rustix::io::pread(file, rustix::buffer::spare_capacity(&mut contents), at)? < memory {
                return Ok(contents);
            }
        }
    })
}

/// The calling thread's namespaces with these names, as the kernel prints them; `None` for a kind that this kernel
/// lacks.
pub(crate) fn namespaces<const N: usize>(names: [&str; N]) -> rustix::io::Result<[Option<CString>; N]> {
    with_file(ProcFile::Namespaces, |directory| {
        let mut found = [const { None }; N];
        for (namespace, name) in found.iter_mut().zip(names) {
            *namespace = match read_link(directory, name) {
                Ok(found) => Some(found),
                Err(rustix::io::Errno::NOENT) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(found)
    })
}

fn read_link(directory: &OwnedFd, name: &str) -> rustix::io::Result<CString> {
    let found = readlinkat(directory, name, Vec::with_capacity(32))?;
    // Some kernels return an empty link instead of an error.
    if found.is_empty() { Err(rustix::io::Errno::ACCESS) } else { Ok(found) }
}

/// The user namespace of this process's parent; `None` if the calling thread may not inspect the parent.
pub(crate) fn user_namespace_of_parent() -> Option<CString> {
    let read_from = || with_file(ProcFile::ParentNamespaces, |directory| read_link(directory, "user"));
    match read_from() {
        // The parent has exited, and this process has a new parent. Open the new parent's directory.
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::NOENT) => {
            forget(ProcFile::ParentNamespaces);
            read_from().ok()
        }
        found => found.ok(),
    }
}

/// The calling thread's security label.
pub(crate) fn label() -> rustix::io::Result<Vec<u8>> {
    /// True once the kernel has answered that no security module has labels. This does not change
    /// at run time.
    static IS_ABSENT: AtomicBool = AtomicBool::new(false);
    if IS_ABSENT.load(Ordering::Relaxed) {
        return Err(rustix::io::Errno::INVAL);
    }
    let label = read(ProcFile::Label);
    if label == Err(rustix::io::Errno::INVAL) {
        IS_ABSENT.store(true, Ordering::Relaxed);
        forget(ProcFile::Label);
    }
    label
}

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
        && let Ok([user]) = namespaces(["user"])
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
    let status = ThreadStatus::parse(read(ProcFile::Status)?);
    if let (Some(filters), true) = (status.filters, status.single_threaded) {
        SINGLE_THREAD_FILTERS.store(filters, Ordering::Relaxed);
    }
    Ok(status)
}

/// The name and value of a status line.
pub(super) fn field(line: &str) -> (&str, &str) {
    line.split_once(':').map_or((line, ""), |(name, value)| (name, value.trim_ascii()))
}
