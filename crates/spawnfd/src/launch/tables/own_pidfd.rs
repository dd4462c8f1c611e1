// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pidfd of the calling thread, at a low number of the caller's table. A child copies descriptors through it
//! (pidfd_getfd).
//!
//! Each thread that spawns has its own pidfd, because a thread can have its own table. The thread's first spawn opens
//! the pidfd, and the thread's exit closes it. If no low number is free, the child opens a pidfd itself, which costs
//! one system call.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use spawnfd_child::Table;
use spawnfd_sys::{call, fork_generation};

use super::Strategy;
use crate::host::descriptors::CheckedFd;
use crate::host::features::Features;
use crate::launch::slots::LOW;

/// The calling thread, as its children identify it.
struct Here {
    /// Distinguishes this process from the process that it was forked from; see [`fork_generation`].
    generation: u64,
    thread: i32,
    /// `None` if no low number was free.
    pidfd: Option<CheckedFd>,
}

thread_local! {
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

/// The table for a child that copies its descriptors through the pidfd; `None` if pidfds of threads are not
/// available.
pub(super) fn table(features: &Features) -> Option<Table> {
    let generation = fork_generation().ok()?;
    let fetched = HERE.try_with(|here| {
        let mut here = here.try_borrow_mut().ok()?;
        if here.as_ref().is_none_or(|here| here.generation != generation) {
            *here = Here::new(generation, features);
        }
        let Here { thread, pidfd, .. } = here.as_ref()?;
        let pidfd = pidfd.as_ref().map(|pidfd| (pidfd.as_fd().as_raw_fd(), pidfd.identity()));
        Some(Table::Fetched { pidfd, thread: *thread })
    });
    // A thread that is exiting has already closed its pidfd.
    fetched.ok().flatten()
}

/// Opens a new pidfd after the application has put another file at the old number. Leaves that file alone.
pub(in crate::launch) fn renew() {
    let _ = HERE.try_with(|here| here.try_borrow_mut().map(|mut here| *here = None));
}

impl Here {
    fn new(generation: u64, features: &Features) -> Option<Here> {
        let thread = call::gettid().ok()?;
        // PIDFD_THREAD needs Linux 6.9, which also gives each pidfd its own inode. EMFILE does not disable the
        // strategy.
        let thread_flag = PidfdFlags::from_bits_retain(spawnfd_sys::abi::O_EXCL);
        let pidfd = match pidfd_open(Pid::from_raw(thread)?, thread_flag) {
            Ok(pidfd) => Some(CheckedFd::new(pidfd)),
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => None,
            Err(_) => {
                Strategy::PidfdGetfd.learn_unavailable(features, &[]);
                return None;
            }
        };
        let pidfd = pidfd.filter(|pidfd| (3..=LOW).contains(&pidfd.as_fd().as_raw_fd()));
        Some(Here { generation, thread, pidfd })
    }
}
