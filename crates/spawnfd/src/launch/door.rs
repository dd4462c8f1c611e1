// SPDX-License-Identifier: MIT OR Apache-2.0
//! The door a child fetches descriptors through: a pidfd of the calling thread, at a low number of the caller's table.
//!
//! One for each thread that spawns, as a thread can have a table of its own. It is opened with the first spawn and closed with
//! the thread. Where no low number is free any more the child opens one itself, which costs it a system call.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use spawnfd_child::Table;
use spawnfd_sys::{call, fork_generation};

use super::{LOW, Way};
use crate::host::features::Features;
use crate::host::numbers::Known;

/// The calling thread, as its children may know it.
struct Here {
    /// Not the thread of a process this one was forked from; see [`fork_generation`].
    generation: u64,
    thread: i32,
    door: Option<Door>,
}

struct Door {
    pidfd: Known,
}

thread_local! {
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

/// The table of a child that fetches its descriptors; `None` where there is no such thing.
pub(super) fn table(features: &Features) -> Option<Table> {
    let generation = fork_generation().ok()?;
    let fetched = HERE.try_with(|here| {
        let mut here = here.try_borrow_mut().ok()?;
        if here.as_ref().is_none_or(|here| here.generation != generation) {
            *here = Here::new(generation, features);
        }
        let Here { thread, door, .. } = here.as_ref()?;
        let door = door.as_ref().map(|door| (door.pidfd.as_fd().as_raw_fd(), door.pidfd.identity()));
        Some(Table::Fetched { door, thread: *thread })
    });
    // A thread that is ending has no door any more.
    fetched.ok().flatten()
}

/// Somebody else's file stands where the door was: leave it alone, and open another.
pub(super) fn renew() {
    let _ = HERE.try_with(|here| here.try_borrow_mut().map(|mut here| *here = None));
}

impl Here {
    fn new(generation: u64, features: &Features) -> Option<Here> {
        let thread = call::gettid().ok()?;
        // PIDFD_THREAD, Linux 6.9, which also gives each pidfd an inode of its own. EMFILE is no reason to do without.
        let thread_flag = PidfdFlags::from_bits_retain(spawnfd_sys::abi::O_EXCL);
        let door = match pidfd_open(Pid::from_raw(thread)?, thread_flag) {
            Ok(pidfd) => Door::new(pidfd),
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => None,
            Err(_) => {
                Way::Fetch.refuse(&features, &[]);
                return None;
            }
        };
        Some(Here { generation, thread, door })
    }
}

impl Door {
    fn new(pidfd: OwnedFd) -> Option<Door> {
        let pidfd = Known::new(pidfd);
        let number: RawFd = pidfd.as_fd().as_raw_fd();
        (3..=LOW).contains(&number).then_some(Door { pidfd })
    }
}
