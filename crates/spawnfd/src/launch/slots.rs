// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slots: resources that spawns reuse. A slot has a stack, and a socket with a low number for the
//! child's descriptors.

use std::iter;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use spawnfd_child::{ChildMemory, ChildStage, Outcome, SlotInUse, Table};
use spawnfd_sys::{Errno, send};

use crate::host::descriptors::CheckedFd;
use crate::host::features::socket_pair;
use crate::host::per_process::PerProcess;

/// The number of pooled slots. If more spawns run at once, they create slots of their own, which takes 10 us, and whose
/// sockets may get numbers above the application's descriptors (decision record 0001). A spawn uses a slot only until its
/// child is at exec, so few slots are in use at once. Each slot keeps two descriptors open.
const SLOTS: usize = 16;

/// The number of pooled slots that stay when nothing starts. If the library closed their sockets, and the application
/// then opened hundreds of descriptors, later sockets would get no low number.
const RESERVED: usize = 4;

/// The highest number for a socket or pidfd through which a child gets its descriptors. The kernel copies all of the
/// caller's descriptors up to that socket or pidfd into the child's table, so the number must be low.
pub(super) const LOW: RawFd = 256;

/// A forked process drops its copies, because it shares their sockets with its parent.
static POOL: PerProcess<Vec<Slot>> = PerProcess::for_reuse(Vec::new());

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) memory: ChildMemory,
    /// Dropping the socket also closes the descriptors left in it.
    pub(super) channel: Option<Channel>,
}

/// A socket pair. The library checks each end before use, because the application may dup2 another file over any
/// number.
#[derive(Debug)]
pub(super) struct Channel {
    receive: CheckedFd,
    send: CheckedFd,
    tag: u64,
}

/// Takes a slot. A slot has a stack, but not always a socket.
pub(super) fn take() -> Result<Slot, Errno> {
    let pooled = POOL.lock().pop();
    pooled.map_or_else(|| Ok(Slot { memory: ChildMemory::new()?, channel: None }), Ok)
}

/// Returns a slot to the pool.
pub(super) fn put(slot: Slot) {
    let mut pool = POOL.lock();
    if pool.len() < SLOTS {
        pool.push(slot);
    }
}

/// Drops the slots that no child uses, except the reserved ones, after a time without spawns.
pub(crate) fn drop_unused() {
    reclaim();
    let mut pool = POOL.lock();
    pool.sort_by_key(|slot| slot.channel.as_ref().map_or(RawFd::MAX, |channel| channel.receive.as_fd().as_raw_fd()));
    let kept = pool.len().min(RESERVED);
    let unused = pool.split_off(kept);
    drop(pool);
    drop(unused);
}

/// Opens a few descriptors at low numbers, which the library otherwise opens when programs start, and keeps them for the
/// starts of this process.
///
/// A program that starts while hundreds of descriptors are open needs such a number. Without one, a start takes longer:
/// the caller waits for the program's exec, and if a seccomp filter refuses pidfd_getfd(2), as Docker's does, the kernel
/// copies all descriptors (1 ms for 10,000). So call this early in a program that will have hundreds of descriptors
/// before its first start. Eight descriptors stay open, close-on-exec.
///
/// If no low number is free, the call does nothing.
pub fn reserve_descriptors() {
    let reserved = POOL.lock().iter().filter(|slot| slot.channel.is_some()).count();
    let missing = RESERVED.saturating_sub(reserved);
    let new = || Some(Slot { memory: ChildMemory::new().ok()?, channel: Some(Channel::new().ok()?) });
    iter::from_fn(new).take(missing).for_each(put);
}

impl Slot {
    /// Replaces the socket, which may still contain descriptors for a child. Usually the new one gets the same number.
    pub(super) fn renew_channel(&mut self) {
        if self.channel.take().is_some() {
            self.channel = Channel::new().ok();
        }
    }

    /// Sends `sources` to the child's end of the socket. `None` if no low number is free for a socket, or the
    /// socket refuses them.
    ///
    /// # Errors
    /// EBADF: a source is not open.
    pub(super) fn pass(&mut self, sources: &[RawFd]) -> Result<Option<Table>, Errno> {
        if sources.len() > spawnfd_sys::MAX_PASSED {
            return Ok(None);
        }
        // The child checks the receiving end in its own table.
        if self.channel.as_ref().is_none_or(|channel| channel.send.get().is_none()) {
            self.channel = Channel::new().ok();
        }
        let Some(channel) = &mut self.channel else { return Ok(None) };
        channel.tag += 1;
        if !sources.is_empty() {
            match send(channel.send.as_fd().as_raw_fd(), &mut channel.tag.to_ne_bytes(), sources) {
                Ok(()) => {}
                Err(Errno::EBADF) => return Err(Errno::EBADF),
                Err(_) => {
                    self.channel = None;
                    return Ok(None);
                }
            }
        }
        let socket = channel.receive.as_fd().as_raw_fd();
        Ok(Some(Table::Passed { socket, identity: channel.receive.identity(), tag: channel.tag }))
    }
}

impl Channel {
    fn new() -> Result<Channel, Errno> {
        let (receive, send) = socket_pair()?;
        let (receive, send) = (CheckedFd::new(receive), CheckedFd::new(send));
        if !(3..=LOW).contains(&receive.as_fd().as_raw_fd()) || send.as_fd().as_raw_fd() < 3 {
            return Err(Errno::EMFILE);
        }
        Ok(Channel { receive, send, tag: 0 })
    }
}

/// A slot that an asynchronous child uses.
pub(super) struct Taken {
    pub(super) in_use: SlotInUse,
    pub(super) channel: Option<Channel>,
}

static TAKEN: PerProcess<Vec<Taken>> = PerProcess::new(Vec::new());

/// Records that an asynchronous child uses a slot.
pub(super) fn lend(taken: Taken) {
    TAKEN.lock().push(taken);
}

/// Returns the slots of children that have left the caller's memory to the pool. Returns the number of children that
/// have not left it.
pub(super) fn reclaim() -> usize {
    let mut all = TAKEN.lock();
    let mut left = Vec::new();
    for Taken { in_use, channel } in all.drain(..) {
        match in_use.back() {
            Ok((memory, outcome)) => {
                // A child that ended early may not have received its descriptors.
                let early = match outcome {
                    Outcome::Program { .. } => false,
                    Outcome::Failed(failure) => failure.stage == ChildStage::Descriptors,
                    Outcome::Killed(_) => true,
                };
                let mut slot = Slot { memory, channel };
                if early {
                    slot.renew_channel();
                }
                put(slot);
            }
            Err(in_use) => left.push(Taken { in_use, channel }),
        }
    }
    *all = left;
    all.len()
}
