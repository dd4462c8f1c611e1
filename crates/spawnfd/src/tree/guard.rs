// SPDX-License-Identifier: MIT OR Apache-2.0
//! This process's guard: one helper for all its trees, started with the first, gone a while after the last.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use spawnfd_child::Announcement;
use spawnfd_guard::process::{Mark, Process};
use spawnfd_guard::sys;
use spawnfd_guard::table::{SIZE, SLOTS, State, Table};
use spawnfd_sys::Errno;

use super::{failed, image};
use crate::child::Child;
use crate::command::Command;
use crate::error::{Result, errno};
use crate::numbers::above_standard;
use crate::per_process::PerProcess;

static GUARD: PerProcess<Option<Guard>> = PerProcess::new(None);

#[derive(Debug)]
struct Guard {
    table: Arc<Table>,
    /// The table's memory, for another guard if this one is killed.
    memory: OwnedFd,
    pidfd: OwnedFd,
    /// Reaped here if it is found dead; handed to the reaper as soon as there is no tree, as it may end from then on.
    child: Option<Child>,
    /// Where to look for a free slot.
    next: usize,
}

/// One tree's line in the guard's table.
#[derive(Debug)]
pub(super) struct Watch {
    table: Arc<Table>,
    slot: usize,
    /// What stands in the line until the program is born.
    ticket: u64,
}

/// Has a tree guarded, which has this cgroup's directory if it is not empty.
pub(super) fn watch(cgroup: &[u8]) -> Result<Watch> {
    let mut guard = GUARD.lock();
    // One that has just ended is replaced; the next is there to stay.
    for _ in 0..3 {
        let current = match &mut *guard {
            Some(current) if sys::wait_for_end(current.pidfd.as_raw_fd(), 0) => {
                // Ended by itself, then nobody enters; or killed, then another takes over its trees.
                current.restart()?;
                current
            }
            Some(current) => current,
            none => none.insert(Guard::start()?),
        };
        if current.table.enter() {
            return current.take(cgroup);
        }
        *guard = None;
    }
    Err(failed(Errno::EAGAIN, "guard"))
}

impl Guard {
    fn start() -> Result<Guard> {
        let broken = |call: &'static str| move |e| failed(errno(e), call);
        let memory =
            memfd_create("spawnfd-trees", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::NOEXEC_SEAL)
                // Before Linux 6.3 there is no such flag.
                .or_else(|_| memfd_create("spawnfd-trees", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING))
                .map(above_standard)
                .map_err(broken("memfd_create()"))?;
        ftruncate(&memory, SIZE as u64).map_err(broken("ftruncate()"))?;
        fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::SHRINK).map_err(broken("fcntl(F_ADD_SEALS)"))?;
        let table = Table::map(memory.as_raw_fd()).map_err(|e| failed(Errno::from_raw(e.0), "mmap()"))?;
        let child = launch(&memory)?;
        let pidfd = duplicate(&child)?;
        Ok(Guard { table: Arc::new(table), memory, pidfd, child: Some(child), next: 0 })
    }

    /// Starts another helper for the same table, unless the last one has ended by itself.
    fn restart(&mut self) -> Result<()> {
        if self.table.is_closed() {
            return Ok(());
        }
        let child = launch(&self.memory)?;
        self.pidfd = duplicate(&child)?;
        // The dead one is reaped as it is dropped.
        self.child = Some(child);
        Ok(())
    }

    /// Takes a slot for a tree that has been counted.
    fn take(&mut self, cgroup: &[u8]) -> Result<Watch> {
        let slots = (self.next..SLOTS).chain(0..self.next);
        let Some(slot) = slots.into_iter().find(|&slot| self.table.state(slot) == State::Free) else {
            self.table.leave();
            return Err(failed(Errno::ENOSPC, "guard"));
        };
        self.next = (slot + 1) % SLOTS;
        let ticket = self.table.take(slot, sys::getsid(0).unwrap_or(0), cgroup);
        Ok(Watch { table: self.table.clone(), slot, ticket })
    }
}

fn duplicate(child: &Child) -> Result<OwnedFd> {
    child.as_fd().try_clone_to_owned().map_err(|e| failed(crate::template::from_io(&e), "fcntl(F_DUPFD_CLOEXEC)"))
}

fn launch(memory: &OwnedFd) -> Result<Child> {
    start(memory, |_| ())
}

/// Starts the helper, with what `configure` adds, and returns when it watches.
pub(super) fn start(memory: &OwnedFd, configure: impl Fn(&mut Command<'_>)) -> Result<Child> {
    let owner = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|e| failed(errno(e), "pidfd_open()"))?;
    let (ready, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(errno(e), "pipe2()"))?;
    let child = image::spawn([&owner, memory, &writer], configure)?;
    drop(writer);
    loop {
        match rustix::io::read(&ready, &mut [0; 1]) {
            Ok(1) => return Ok(child),
            Err(rustix::io::Errno::INTR) => {}
            // It has ended; how is of no use to the caller.
            _ => return Err(failed(Errno::ECHILD, "guard")),
        }
    }
}

impl Watch {
    pub(super) fn announcement(&self) -> Announcement {
        let (slot, ticket) = (self.slot, self.ticket);
        Announcement::new(self.table.clone(), move |table| table.root(slot), ticket, getpid().as_raw_nonzero().get())
    }

    pub(super) fn born(&self, root: i32, home: i32, mark: Mark, seen: u64) {
        self.table.born(self.slot, root, home, mark, seen);
    }

    pub(super) fn seen(&self, at: u64) {
        self.table.seen(self.slot, at);
    }

    pub(super) fn learn(&self, process: Process) {
        self.table.learn(self.slot, process);
    }

    /// The tree is over.
    pub(super) fn release(self) {
        self.table.free(self.slot);
        if self.table.leave() == 0 {
            self.expect_end();
        }
    }

    /// The tree is over; its cgroup is to be removed when that can be.
    pub(super) fn leave_to_clean(self) {
        self.table.leave_to_clean(self.slot);
        self.expect_end();
    }

    /// Has the helper reaped, whenever it ends.
    fn expect_end(&self) {
        if let Some(guard) = GUARD.lock().as_mut().filter(|guard| Arc::ptr_eq(&guard.table, &self.table)) {
            drop(guard.child.take());
        }
    }
}
