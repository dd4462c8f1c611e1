// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forking children from a parked process.

use std::os::fd::AsRawFd;
use std::time::Duration;

use spawnfd_sys::send;

use super::channel::Channel;
use super::parked::Parked;
use super::request::{PATIENCE, why_unsent};
use super::wire::{self, Reply};
use crate::child::Child;

/// The outcome of a request for children.
pub(super) struct ForkedChildren {
    pub(super) all: Vec<Parked>,
    /// Why there are fewer children than requested.
    pub(super) fewer: Option<&'static str>,
}

impl Parked {
    /// Forks children from the parked process; they are parked, too. If there are fewer than requested, the parent is
    /// no longer usable.
    ///
    /// # Errors
    /// Why no child was requested.
    pub(super) fn fork(&mut self, count: usize) -> Result<ForkedChildren, &'static str> {
        let (mut channels, mut fewer) = (Vec::new(), self.fork_error);
        while fewer.is_none() && channels.len() < count {
            match self.ask_for_child(channels.is_empty()) {
                // All requests are sent before the first answer is awaited.
                Ok(channel) => channels.push(channel),
                Err(why @ ("descriptors" | "descriptor table")) if channels.is_empty() => return Err(why),
                Err(why) => fewer = Some(why),
            }
        }
        let mut all = Vec::with_capacity(channels.len());
        for channel in channels {
            match self.expect_child(channel) {
                Ok(child) => all.push(child),
                Err(why) => fewer = fewer.or(Some(why)),
            }
        }
        self.forked += all.len() as u64;
        self.fork_error = fewer;
        Ok(ForkedChildren { all, fewer })
    }

    fn ask_for_child(&self, is_first: bool) -> Result<Channel, &'static str> {
        let (channel, theirs) = Channel::new().map_err(|_| "descriptors")?;
        let socket = self.channel.socket().ok_or("descriptor table")?;
        let mut request = wire::encode_fork(self.child_private.is_none() && is_first);
        let sent = send(socket.as_raw_fd(), &mut request, &theirs.each_ref().map(AsRawFd::as_raw_fd));
        sent.map(|()| channel).map_err(why_unsent)
    }

    fn expect_child(&mut self, mut channel: Channel) -> Result<Parked, &'static str> {
        let mut message = [0; 64];
        // The end of the parent is an event too.
        let answers = channel.poll(PATIENCE);
        let heard = channel
            .receive(Duration::ZERO, &mut message)
            .and_then(|(message, pidfd)| Some((wire::decode(message)?, pidfd?)));
        let child = heard.and_then(|(reply, pidfd)| match reply {
            Reply::Parked { pid, private, .. } => Some((Child::new(pid, pidfd, self.origin.started, None), private)),
            Reply::Cannot { .. } => None,
        });
        let Some((child, private)) = child else {
            // The parent ends before the unknown child, so that it forks no other.
            self.end();
            channel.end_unknown_child();
            return Err(if answers { "died" } else { "slow" });
        };
        let renumbered = channel.renumber();
        let mut parked = Parked::new(self.generation, child, channel, self.origin.clone());
        parked.private = *self.child_private.get_or_insert(private);
        if renumbered.is_err() {
            // The end of `parked` kills the child by its pidfd.
            self.end();
            return Err("descriptors");
        }
        Ok(parked)
    }
}
