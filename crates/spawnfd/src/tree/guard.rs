// SPDX-License-Identifier: MIT OR Apache-2.0
//! This process's guard: one helper for all its trees, started with the first, gone a while after the last.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use spawnfd_child::Announcement;
use spawnfd_guard::process::{Mark, Process};
use spawnfd_guard::sys;
use spawnfd_guard::table::{SIZE, SLOTS, State, Table};
use spawnfd_sys::{Errno, abi, call, wait_pidfd};

use super::{failed, image};
use crate::child::Child;
use crate::command::Command;
use crate::error::{Result, errno};
use crate::memfd;
use crate::numbers::{Known, above_standard};
use crate::per_process::PerProcess;
use crate::reaper;

static GUARD: PerProcess<Option<Guard>> = PerProcess::new(None);

#[derive(Debug)]
struct Guard {
    table: Arc<Table>,
    /// The table's memory, for another guard if this one is killed.
    memory: Known,
    helper: Helper,
    /// Where to look for a free slot.
    next: usize,
}

/// The guard's process.
#[derive(Debug)]
struct Helper {
    pid: i32,
    mark: Option<Mark>,
    pidfd: Known,
    /// To the reaper, as soon as there is no tree: it may end from then on. Before that it is reaped here if it is found dead.
    handed: bool,
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
        // Ended by itself, then nobody enters; or killed, then another takes over its trees.
        if let Some(current) = &mut *guard
            && current.helper.has_ended()
            && !current.restart()?
        {
            *guard = None;
        }
        let current = match &mut *guard {
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

/// Has the guard end now if it has no tree.
pub(crate) fn end_guard_if_idle() {
    let mut guard = GUARD.lock();
    if let Some(guard) = guard.as_mut().filter(|guard| guard.table.close()) {
        guard.helper.expect_end();
        let _ = guard.helper.signal(abi::SIGKILL as i32);
    }
}

/// Whether it is on its way out: until it has been reaped.
pub(crate) fn is_guard_leaving() -> bool {
    let is_left = |guard: &Guard| guard.table.is_closed() && guard.helper.signal(0).is_ok();
    GUARD.lock().as_ref().is_some_and(is_left) && reaper::is_there()
}

impl Guard {
    fn start() -> Result<Guard> {
        let broken = |call: &'static str| move |errno| failed(errno, call);
        let memory = memfd::create("spawnfd-trees", false).map(above_standard).map_err(broken("memfd_create()"))?;
        memfd::set_length(&memory, SIZE as u64).map_err(broken("ftruncate()"))?;
        memfd::seal(&memory, true).map_err(broken("fcntl(F_ADD_SEALS)"))?;
        let table = Table::map(memory.as_raw_fd()).map_err(|e| failed(Errno::from_raw(e.0), "mmap()"))?;
        let helper = Helper::start(&memory)?;
        let memory = Known::new(memory);
        Ok(Guard { table: Arc::new(table), memory, helper, next: 0 })
    }

    /// Starts another helper for the same table, unless the last one has ended by itself. `false`: the table's memory is not there any more
    /// to be handed on.
    fn restart(&mut self) -> Result<bool> {
        if self.table.is_closed() {
            return Ok(true);
        }
        let Some(memory) = self.memory.get() else { return Ok(false) };
        // The dead one is reaped as it is dropped.
        self.helper = Helper::start(memory)?;
        Ok(true)
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

impl Helper {
    fn start(memory: &OwnedFd) -> Result<Helper> {
        let child = start(memory, |_| ())?;
        let pid = child.id() as i32;
        let mark = sys::Fd::duplicate(child.as_fd().as_raw_fd()).ok().and_then(|pidfd| Mark::of(&pidfd, pid));
        let pidfd = Known::new(child.into_pidfd());
        Ok(Helper { pid, mark, pidfd, handed: false })
    }

    /// Its pidfd: another one, if the application has put something else at that number.
    fn pidfd(&mut self) -> Option<&OwnedFd> {
        if self.pidfd.get().is_none() {
            let pidfd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
            // The number is its own after that: so it was before.
            self.mark?.open(self.pid)?;
            self.pidfd = Known::new(pidfd);
            // The reaper's was at such a number, too.
            self.handed = false;
        }
        self.pidfd.get()
    }

    fn signal(&self, signal: i32) -> std::result::Result<usize, Errno> {
        let pidfd = self.pidfd.get().ok_or(Errno::EBADF)?;
        call::pidfd_send_signal(pidfd.as_raw_fd(), signal)
    }

    fn has_ended(&mut self) -> bool {
        self.pidfd().is_none_or(|pidfd| sys::wait_for_end(pidfd.as_raw_fd(), 0))
    }

    /// Has it reaped, whenever it ends.
    fn expect_end(&mut self) {
        if let Some(pidfd) = self.pidfd()
            && let Ok(None) = wait_pidfd(pidfd.as_raw_fd(), false)
            && let Ok(copy) = pidfd.try_clone()
            && !self.handed
        {
            reaper::adopt(Known::new(copy));
        }
        self.handed = true;
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.expect_end();
    }
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
            guard.helper.expect_end();
        }
    }
}
