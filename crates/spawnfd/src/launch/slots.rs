// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one spawn at a time needs and the next can use again: a stack, and a low socket for the child's descriptors.
//!
//! Slots are taken with `try_lock` and never waited for, so threads do not queue, and a slot that was taken when the
//! host forked merely stays out of use in the copy.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use spawnfd_child::{Room, Table};
use spawnfd_sys::{Errno, call, fork_generation, pass_descriptors};

use super::{LOW, forget};
use crate::error::errno;

/// How many spawns at once find everything ready; beyond, each brings its own.
const SLOTS: usize = 64;

static POOL: [Mutex<Option<Slot>>; SLOTS] = [const { Mutex::new(None) }; SLOTS];

/// A slot for one spawn.
pub(crate) enum Claim {
    Pooled(MutexGuard<'static, Option<Slot>>),
    Own(Option<Slot>),
}

#[derive(Debug)]
pub(crate) struct Slot {
    generation: u64,
    pub(crate) room: Room,
    channel: Option<Channel>,
}

/// A socket pair. Each end is checked before use, as applications dup2 over anything.
#[derive(Debug)]
struct Channel {
    receive: OwnedFd,
    receive_identity: (u64, u64),
    send: OwnedFd,
    send_identity: (u64, u64),
    tag: u64,
}

/// Takes a slot. The stack is there; the socket only if it can be had.
pub(crate) fn claim() -> Result<Claim, Errno> {
    let generation = fork_generation()?;
    for slot in &POOL {
        let Ok(mut guard) = slot.try_lock() else { continue };
        if guard.as_ref().is_some_and(|slot| slot.generation != generation) {
            // Forked from the process this slot belongs to: its sockets are shared with that one.
            guard.take();
        }
        if guard.is_none() {
            *guard = Some(Slot::new(generation)?);
        }
        return Ok(Claim::Pooled(guard));
    }
    Ok(Claim::Own(Some(Slot::new(generation)?)))
}

impl Claim {
    /// The slot, which [`claim`] has filled.
    pub(crate) fn slot(&mut self) -> Option<&mut Slot> {
        match self {
            Claim::Pooled(guard) => guard.as_mut(),
            Claim::Own(slot) => slot.as_mut(),
        }
    }
}

impl Slot {
    fn new(generation: u64) -> Result<Slot, Errno> {
        Ok(Slot { generation, room: Room::new()?, channel: None })
    }

    /// Puts `sources` where the child will find them, and says where. Falls back to a copied table when no low socket can be
    /// had, or does not take them.
    ///
    /// # Errors
    /// EBADF: a source is not open.
    pub(crate) fn pass(&mut self, sources: &[RawFd]) -> Result<Table, Errno> {
        if sources.len() > spawnfd_sys::MAX_PASSED {
            return Ok(Table::Copied);
        }
        if self.channel.as_ref().is_none_or(|channel| !channel.sends_to_itself()) {
            self.channel = Channel::new().ok();
        }
        let Some(channel) = &mut self.channel else { return Ok(Table::Copied) };
        channel.tag += 1;
        if !sources.is_empty() {
            match pass_descriptors(channel.send.as_raw_fd(), channel.tag, sources) {
                Ok(()) => {}
                Err(Errno::EBADF) => return Err(Errno::EBADF),
                Err(_) => {
                    self.channel = None;
                    return Ok(Table::Copied);
                }
            }
        }
        let socket = channel.receive.as_raw_fd();
        Ok(Table::Passed { socket, identity: channel.receive_identity, tag: channel.tag })
    }

    /// Gives the socket up, with what may be left in it.
    pub(crate) fn discard_channel(&mut self) {
        self.channel = None;
    }
}

impl Channel {
    fn new() -> Result<Channel, Errno> {
        let (receive, send) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(errno)?;
        let (receive, send) = (above_standard(receive)?, above_standard(send)?);
        if receive.as_raw_fd() > LOW {
            return Err(Errno::EMFILE);
        }
        Ok(Channel {
            receive_identity: call::identify(receive.as_raw_fd())?,
            send_identity: call::identify(send.as_raw_fd())?,
            receive,
            send,
            tag: 0,
        })
    }

    /// Whether the sending end's number still means that end. The child checks the receiving one, in its own table.
    fn sends_to_itself(&self) -> bool {
        call::identify(self.send.as_raw_fd()) == Ok(self.send_identity)
    }
}

impl Drop for Channel {
    /// Closes what is still ours; a number that has come to mean something else is the application's.
    fn drop(&mut self) {
        for (end, identity) in [(&mut self.receive, self.receive_identity), (&mut self.send, self.send_identity)] {
            if call::identify(end.as_raw_fd()) != Ok(identity) {
                forget(end);
            }
        }
    }
}

/// Moves a socket away from 0, 1 and 2 where the application has those closed: a child would take it for its own stream, or lose
/// the streams above it.
fn above_standard(socket: OwnedFd) -> Result<OwnedFd, Errno> {
    if socket.as_raw_fd() > 2 { Ok(socket) } else { rustix::io::fcntl_dupfd_cloexec(&socket, 3).map_err(errno) }
}
