// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calling thread's files in /proc. The library keeps them open between reads, because opening
//! a file costs more than reading it.

use std::cell::RefCell;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat, readlinkat};
use rustix::process::getppid;
use spawnfd_guard::process::is_proc_foreign;
use spawnfd_sys::fork_generation;

use crate::host::descriptors::CheckedFd;

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
            *namespace = match readlinkat(directory, name, Vec::with_capacity(32)) {
                // Some kernels return an empty link instead of an error.
                Ok(found) if found.is_empty() => return Err(rustix::io::Errno::ACCESS),
                Ok(found) => Some(found),
                Err(rustix::io::Errno::NOENT) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(found)
    })
}

/// The user namespace of this process's parent; `None` if the calling thread may not inspect the parent.
pub(crate) fn user_namespace_of_parent() -> Option<CString> {
    let read_from = || {
        with_file(ProcFile::ParentNamespaces, |directory| match readlinkat(directory, "user", Vec::with_capacity(32)) {
            // Some kernels return an empty link instead of an error.
            Ok(found) if found.is_empty() => Err(rustix::io::Errno::ACCESS),
            found => found,
        })
    };
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
