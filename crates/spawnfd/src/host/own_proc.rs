// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calling thread's files in /proc, kept open between reads: opening one costs more than reading it.

use std::cell::RefCell;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat, readlinkat};
use rustix::process::getppid;
use spawnfd_guard::process::is_foreign;
use spawnfd_sys::fork_generation;

use crate::host::numbers::Known;

/// A /proc file about the calling thread, or about its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    Status,
    Label,
    /// The label for the next exec; empty for the usual one. The next three are labels for new files, sockets and
    /// keys.
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
    /// The directory of the parent's namespaces, for the parent at the time of opening.
    Parent,
    /// The directory of the process's threads.
    Threads,
}

impl Own {
    const COUNT: usize = 13;

    fn path(self) -> &'static str {
        match self {
            Own::Status => "/proc/thread-self/status",
            Own::Label => "/proc/thread-self/attr/current",
            Own::ExecLabel => "/proc/thread-self/attr/exec",
            Own::FileLabel => "/proc/thread-self/attr/fscreate",
            Own::SocketLabel => "/proc/thread-self/attr/sockcreate",
            Own::KeyLabel => "/proc/thread-self/attr/keycreate",
            Own::LoginUid => "/proc/thread-self/loginuid",
            Own::Cgroup => "/proc/thread-self/cgroup",
            Own::OomScoreAdj => "/proc/self/oom_score_adj",
            Own::CoreFilter => "/proc/self/coredump_filter",
            Own::Namespaces => "/proc/thread-self/ns",
            Own::Parent => "/proc",
            Own::Threads => "/proc/self/task",
        }
    }

    fn flags(self) -> OFlags {
        match self {
            Own::Namespaces | Own::Parent | Own::Threads => OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            _ => OFlags::RDONLY | OFlags::CLOEXEC,
        }
    }
}

fn open(which: Own) -> rustix::io::Result<OwnedFd> {
    if which == Own::Parent {
        return open_parent();
    }
    let file = openat(CWD, which.path(), which.flags(), Mode::empty())?;
    // Another file system counts links in another way.
    let is_proc = which != Own::Threads || fstatfs(&file)?.f_type == PROC_SUPER_MAGIC;
    if is_proc { Ok(file) } else { Err(rustix::io::Errno::SRCH) }
}

fn open_parent() -> rustix::io::Result<OwnedFd> {
    let parent = || getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let pid = parent();
    // 0 means that the parent is in another pid namespace. In a foreign /proc, the number belongs to another
    // process.
    if pid == 0 || is_foreign() {
        return Err(rustix::io::Errno::SRCH);
    }
    let directory = openat(CWD, format!("{}/{pid}/ns", Own::Parent.path()), Own::Parent.flags(), Mode::empty())?;
    // If the parent is unchanged, the number was the parent's when the directory was opened.
    if parent() == pid { Ok(directory) } else { Err(rustix::io::Errno::SRCH) }
}

/// The open files of one thread in one process; see [`fork_generation`].
#[derive(Default)]
struct All {
    generation: Option<u64>,
    files: [Option<Known>; Own::COUNT],
}

thread_local! {
    static ALL: RefCell<All> = RefCell::new(All::default());
}

fn with<T>(which: Own, look: impl FnOnce(&OwnedFd) -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let mut look = Some(look);
    let kept = ALL.try_with(|all| {
        let mut all = all.try_borrow_mut().ok()?;
        let generation = fork_generation().ok()?;
        if all.generation != Some(generation) {
            *all = All { generation: Some(generation), ..All::default() };
        }
        let place = &mut all.files[which as usize];
        if let Some(file) = place.as_ref().and_then(Known::get) {
            return Some(look.take()?(file));
        }
        *place = None;
        match open(which) {
            Ok(file) => Some(look.take()?(place.insert(Known::new(file)).get()?)),
            Err(error) => Some(Err(error)),
        }
    });
    match kept {
        Ok(Some(outcome)) => outcome,
        // The thread is exiting.
        _ => match look {
            Some(look) => look(&open(which)?),
            None => Err(rustix::io::Errno::IO),
        },
    }
}

/// Closes the file, so that the calling thread opens it again the next time.
fn forget(which: Own) {
    let _ = ALL.try_with(|all| all.borrow_mut().files[which as usize] = None);
}

/// Whether the process has one thread.
///
/// The link count of the directory is two, and one for each thread.
pub(crate) fn has_one_thread() -> bool {
    with(Own::Threads, |directory| fstat(directory)).is_ok_and(|directory| directory.st_nlink == 3)
}

/// The file's current contents.
pub(crate) fn read(which: Own) -> rustix::io::Result<Vec<u8>> {
    with(which, |file| {
        let mut contents = Vec::with_capacity(2048);
        loop {
            contents.reserve(1024);
            let memory = contents.capacity() - contents.len();
            let at = contents.len() as u64;
            // The kernel generates the contents for each read. A short read returns all of a short file.
            if rustix::io::pread(file, rustix::buffer::spare_capacity(&mut contents), at)? < memory {
                return Ok(contents);
            }
        }
    })
}

/// The calling thread's namespaces with these names, as the kernel prints them; `None` for a kind that this kernel
/// lacks.
pub(crate) fn namespaces<const N: usize>(names: [&str; N]) -> rustix::io::Result<[Option<CString>; N]> {
    with(Own::Namespaces, |directory| {
        let mut found = [const { None }; N];
        for (namespace, name) in found.iter_mut().zip(names) {
            *namespace = match readlinkat(directory, name, Vec::with_capacity(32)) {
                // Some kernels refuse with an empty link.
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
    let look = || {
        with(Own::Parent, |directory| match readlinkat(directory, "user", Vec::with_capacity(32)) {
            // Some kernels refuse with an empty link.
            Ok(found) if found.is_empty() => Err(rustix::io::Errno::ACCESS),
            found => found,
        })
    };
    match look() {
        // The parent has exited, and this process has a new parent.
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::NOENT) => {
            forget(Own::Parent);
            look().ok()
        }
        found => found.ok(),
    }
}

/// The calling thread's security label.
pub(crate) fn label() -> rustix::io::Result<Vec<u8>> {
    /// No security module of this kernel has labels. That does not change at run time.
    static IS_ABSENT: AtomicBool = AtomicBool::new(false);
    if IS_ABSENT.load(Ordering::Relaxed) {
        return Err(rustix::io::Errno::INVAL);
    }
    let label = read(Own::Label);
    if label == Err(rustix::io::Errno::INVAL) {
        IS_ABSENT.store(true, Ordering::Relaxed);
        forget(Own::Label);
    }
    label
}
