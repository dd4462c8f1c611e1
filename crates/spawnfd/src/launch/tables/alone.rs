// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks whether the calling thread is the only one of its process. See docs/adr/0009-a-trimmed-table.md.
//!
//! The kernel counts a process's threads in the link count of /proc/PID/task. The main thread keeps that directory
//! open. Any other thread is not alone, since the main thread exists too.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstatfs, openat};
use spawnfd_sys::{call, fork_generation};

use crate::host::numbers::Known;

/// The link count with one thread: the directory's own two links, and one for the thread.
const ALONE: u64 = 3;

struct Here {
    /// Tells this process from the one that it was forked from; see [`fork_generation`].
    generation: u64,
    threads: Option<Threads>,
}

/// /proc/PID/task of this process.
struct Threads {
    directory: Known,
}

thread_local! {
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

/// Whether there is no other thread. `false` also if that is unknown, and at the first call: then the caller's
/// pidfd or socket gets a low number, in case threads appear later.
pub(super) fn is_alone() -> bool {
    let Ok(generation) = fork_generation() else { return false };
    let alone = HERE.try_with(|here| {
        let mut here = here.try_borrow_mut().ok()?;
        if here.as_ref().is_none_or(|here| here.generation != generation) {
            *here = Some(Here { generation, threads: Threads::open() });
            return None;
        }
        let Threads { directory } = here.as_ref()?.threads.as_ref()?;
        match call::identify_and_count_links(directory.as_fd().as_raw_fd()) {
            Ok((found, links)) if found == directory.identity() => Some(links == ALONE),
            // The application has put another file at the number: leave that file alone, and open the directory
            // again next time.
            _ => {
                *here = None;
                None
            }
        }
    });
    alone.ok().flatten().unwrap_or(false)
}

impl Threads {
    fn open() -> Option<Threads> {
        if call::gettid() != call::getpid() {
            return None;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = Known::new(openat(CWD, "/proc/self/task", flags, Mode::empty()).ok()?);
        let is_proc = fstatfs(&directory).ok()?.f_type == PROC_SUPER_MAGIC;
        (is_proc && directory.as_fd().as_raw_fd() > 2).then_some(Threads { directory })
    }
}
