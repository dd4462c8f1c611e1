// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calling thread's own files in /proc, kept open from one look to the next: opening one costs more than reading it.

use std::cell::RefCell;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::process::getppid;
use spawnfd_guard::process::is_foreign;
use spawnfd_sys::fork_generation;

use crate::host::numbers::Known;

/// A file that says something of the calling thread, or of its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    Status,
    Label,
    /// The label that the next exec gives; empty if the usual one. The other three are the same of what is made.
    ExecLabel,
    FileLabel,
    SocketLabel,
    KeyLabel,
    LoginUid,
    Cgroup,
    OomScoreAdj,
    CoreFilter,
    /// The directory of its namespaces.
    Namespaces,
    /// The same of the process's parent, as of when it was opened.
    Parent,
}

impl Own {
    const COUNT: usize = 12;

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
        }
    }

    fn flags(self) -> OFlags {
        match self {
            Own::Namespaces | Own::Parent => OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            _ => OFlags::RDONLY | OFlags::CLOEXEC,
        }
    }
}

fn open(which: Own) -> rustix::io::Result<OwnedFd> {
    if which == Own::Parent {
        return open_parent();
    }
    openat(CWD, which.path(), which.flags(), Mode::empty())
}

fn open_parent() -> rustix::io::Result<OwnedFd> {
    let parent = || getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let pid = parent();
    // 0: the parent is in another pid namespace. In the /proc of another one, its number is another process's.
    if pid == 0 || is_foreign() {
        return Err(rustix::io::Errno::SRCH);
    }
    let directory = openat(CWD, format!("{}/{pid}/ns", Own::Parent.path()), Own::Parent.flags(), Mode::empty())?;
    // The parent had its number when the directory was opened.
    if parent() == pid { Ok(directory) } else { Err(rustix::io::Errno::SRCH) }
}

/// All of one thread, of one process: see [`fork_generation`].
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
        // The thread is ending.
        _ => match look {
            Some(look) => look(&open(which)?),
            None => Err(rustix::io::Errno::IO),
        },
    }
}

/// Has the calling thread open that file anew, the next time.
fn forget(which: Own) {
    let _ = ALL.try_with(|all| all.borrow_mut().files[which as usize] = None);
}

/// What it says now.
pub(crate) fn read(which: Own) -> rustix::io::Result<Vec<u8>> {
    with(which, |file| {
        let mut contents = Vec::with_capacity(2048);
        loop {
            contents.reserve(1024);
            let room = contents.capacity() - contents.len();
            let at = contents.len() as u64;
            // The kernel writes it anew for each read: where it is not long, one is all.
            if rustix::io::pread(file, rustix::buffer::spare_capacity(&mut contents), at)? < room {
                return Ok(contents);
            }
        }
    })
}

/// The calling thread's namespaces of these names, as the kernel prints them; `None` of a kind that this kernel has not.
pub(crate) fn namespaces<const N: usize>(names: [&str; N]) -> rustix::io::Result<[Option<CString>; N]> {
    with(Own::Namespaces, |directory| {
        let mut found = [const { None }; N];
        for (namespace, name) in found.iter_mut().zip(names) {
            *namespace = match readlinkat(directory, name, Vec::with_capacity(32)) {
                // So some kernels refuse.
                Ok(found) if found.is_empty() => return Err(rustix::io::Errno::ACCESS),
                Ok(found) => Some(found),
                Err(rustix::io::Errno::NOENT) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(found)
    })
}

/// The user namespace of this process's parent; `None`: the calling thread may not look into the parent.
pub(crate) fn user_namespace_of_parent() -> Option<CString> {
    let look = || {
        with(Own::Parent, |directory| match readlinkat(directory, "user", Vec::with_capacity(32)) {
            // So some kernels refuse.
            Ok(found) if found.is_empty() => Err(rustix::io::Errno::ACCESS),
            found => found,
        })
    };
    match look() {
        // The parent has ended, and another process is the parent now.
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
