// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forks children from a parked process.

use std::os::fd::AsRawFd;
use std::time::Duration;

use spawnfd_sys::send;

use super::channel::Channel;
use super::parked::ParkedProcess;
use super::request::{ACCEPT_TIMEOUT, why_unsent};
use super::wire::{self, Reply};
use crate::child::Child;
use crate::cold_reason::ColdReason;

/// The outcome of a request for children.
pub(super) struct ForkedChildren {
    pub(super) children: Vec<ParkedProcess>,
    /// Why there are fewer children than requested.
    pub(super) shortfall: Option<ColdReason>,
}

impl ParkedProcess {
    /// Forks children from the parked process. The children are parked processes too. If there are fewer children
    /// than requested, the parent is no longer usable.
    ///
    /// # Errors
    /// The reason why this process has requested no child.
    pub(super) fn fork(&mut self, count: usize) -> Result<ForkedChildren, ColdReason> {
        let (mut channels, mut shortfall) = (Vec::new(), self.fork_error);
        while shortfall.is_none() && channels.len() < count {
            match self.request_child(channels.is_empty()) {
                // Send all requests before waiting for the first answer.
                Ok(channel) => channels.push(channel),
                Err(why @ (ColdReason::Descriptors | ColdReason::DescriptorTable)) if channels.is_empty() => {
                    return Err(why);
                }
                Err(why) => shortfall = Some(why),
            }
        }
        let mut children = Vec::with_capacity(channels.len());
        for channel in channels {
            match self.receive_child(channel) {
                Ok(child) => children.push(child),
                Err(why) => shortfall = shortfall.or(Some(why)),
            }
        }
        self.forked += children.len() as u64;
        self.fork_error = shortfall;
        Ok(ForkedChildren { children, shortfall })
    }

    fn request_child(&self, is_first: bool) -> Result<Channel, ColdReason> {
        let (channel, child_ends) = Channel::new().map_err(|_| ColdReason::Descriptors)?;
        let socket = self.channel.socket().ok_or(ColdReason::DescriptorTable)?;
        let mut request = wire::encode_fork(self.child_private.is_none() && is_first);
        let sent = send(socket.as_raw_fd(), &mut request, &child_ends.each_ref().map(AsRawFd::as_raw_fd));
        sent.map(|()| channel).map_err(why_unsent)
    }

    fn receive_child(&mut self, mut channel: Channel) -> Result<ParkedProcess, ColdReason> {
        let mut message = [0; 64];
        // poll() also reports an event if the parent has ended.
        let has_event = channel.poll(ACCEPT_TIMEOUT);
        let received = channel
            .receive(Duration::ZERO, &mut message)
            .and_then(|(message, pidfd)| Some((wire::decode(message)?, pidfd?)));
        let child = received.and_then(|(reply, pidfd)| match reply {
            Reply::Parked { pid, private, .. } => Some((Child::new(pid, pidfd, self.origin.started, None), private)),
            Reply::Cannot { .. } => None,
        });
        let Some((child, private)) = child else {
            // End the parent first, so that it forks no other child.
            self.end();
            channel.kill_unreported_child();
            return Err(if has_event { ColdReason::Died } else { ColdReason::Slow });
        };
        let renumbered = channel.renumber();
        let mut parked = ParkedProcess::new(self.generation, child, channel, self.origin.clone());
        parked.start_up = self.start_up;
        parked.private = *self.child_private.get_or_insert(private);
        if renumbered.is_err() {
            // Dropping `parked` kills the child by its pidfd.
            self.end();
            return Err(ColdReason::Descriptors);
        }
        Ok(parked)
    }
}
