// SPDX-License-Identifier: MIT OR Apache-2.0
//! The channel between an owner and a parked process: a socket for messages, and a shared page with the state of a
//! request.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use spawnfd_parked::protocol::PAGE_SIZE;
use spawnfd_sys::{Errno, wait_pidfd};

use super::wire::Page;
use crate::error::errno;
use crate::host::descriptors::{CheckedFd, above_standard};
use crate::host::features::socket_pair;
use crate::host::memfd;
use crate::reaper;

/// The longest time between the exit of a process, which closes its files, and the time when it can be reaped.
const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The owner's end of the channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) socket: CheckedFd,
    pub(super) page: Arc<Page>,
}

/// The name of a system call that failed, and its errno.
pub(super) type CallError = (&'static str, Errno);

impl Channel {
    /// Creates a channel. Also returns the parked process's descriptors: its socket, and the page as a file.
    pub(super) fn new() -> Result<(Channel, [OwnedFd; 2]), CallError> {
        let (socket, peer) = socket_pair().map_err(|errno| ("socketpair()", errno))?;
        let memory = memfd::shared("spawnfd-page", PAGE_SIZE)?;
        let page = Arc::new(Page::of(memory.as_raw_fd()).map_err(|errno| ("mmap()", errno))?);
        let socket = CheckedFd::new(socket);
        Ok((Channel { socket, page }, [peer, memory].map(above_standard)))
    }

    /// Moves the socket to a descriptor number that is allocated after the parked process's pidfd.
    /// So a descriptor table that has the socket also has the pidfd.
    pub(super) fn renumber(&mut self) -> Result<(), CallError> {
        let socket = self.socket.get().ok_or(("fstat()", Errno::EBADF))?;
        let socket = rustix::io::fcntl_dupfd_cloexec(socket, 3).map_err(|error| ("fcntl()", errno(error)))?;
        self.socket = CheckedFd::new(socket);
        Ok(())
    }

    /// Whether a message or the end of the channel arrives within `timeout`.
    pub(super) fn poll(&self, timeout: Duration) -> bool {
        let Some(socket) = self.socket.get() else { return false };
        let deadline = Instant::now() + timeout;
        loop {
            let remaining = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
            match poll(&mut [PollFd::new(socket, PollFlags::IN)], remaining.as_ref()) {
                // The calling thread may belong to the application, so a signal handler can
                // interrupt poll().
                Err(rustix::io::Errno::INTR) => {}
                outcome => return outcome.is_ok_and(|ready| ready > 0),
            }
        }
    }

    /// Receives the next message. Returns `None` if the other end is closed, or if no message
    /// arrives within `timeout`.
    pub(super) fn receive<'a>(
        &self,
        timeout: Duration,
        message: &'a mut [u8],
    ) -> Option<(&'a mut [u8], Option<OwnedFd>)> {
        if !self.poll(timeout) {
            return None;
        }
        let (length, fd) = spawnfd_sys::receive(self.socket.get()?.as_raw_fd(), message).ok()?;
        (length > 0).then(|| (&mut message[..length], fd))
    }

    /// Kills and reaps a child that the parked process forked for this channel, but that has sent no reply.
    ///
    /// The shared page has the child's pid. But a `wait(-1)` of the application may have reaped the
    /// child, and the pid may now belong to another process.
    pub(super) fn kill_unreported_child(&self) {
        let Some(pid) = Pid::from_raw(super::wire::child(&self.page)) else { return };
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return self.shut_down() };
        // A running child has the other end open. If the other end is open after pidfd_open(), the pidfd refers to
        // the child.
        let runs = self.is_peer_open();
        if runs && pidfd_send_signal(&pidfd, Signal::KILL).is_err() {
            self.shut_down();
            reaper::adopt(CheckedFd::new(pidfd));
            return;
        }
        if !runs {
            // The child closes its end on exit, a moment before it can be reaped. A process that does not exit within
            // that time is not the child.
            let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&EXIT_TIMEOUT));
        }
        let _ = wait_pidfd(pidfd.as_raw_fd(), runs);
    }

    /// Whether a process has the other end open.
    fn is_peer_open(&self) -> bool {
        let Some(socket) = self.socket.get() else { return false };
        let mut ready = [PollFd::new(socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut ready, Some(&now)).is_ok() && !ready[0].revents().contains(PollFlags::HUP)
    }

    /// Shuts the socket down for all processes that have it. The parked process reads EOF and exits.
    pub(super) fn shut_down(&self) {
        let _ = self.socket.get().map(|socket| shutdown(socket, Shutdown::Both));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::sync::atomic::Ordering;

    use rustix::process::{WaitId, WaitIdOptions, waitid};
    use spawnfd_tests::isolated;

    use super::*;
    use crate::child::Child;
    use crate::command::Command;
    use spawnfd_parked::protocol::Page as Layout;

    /// Writes a child's pid to the page, as the kernel does when a parked process forks.
    fn note(channel: &Channel, child: &Child) {
        let shift = Layout::CHILD % 8 * 8;
        channel.page.get()[Layout::CHILD / 8].store(u64::from(child.id()) << shift, Ordering::Release);
    }

    fn exists(child: &Child) -> bool {
        Path::new(&format!("/proc/{}", child.id())).exists()
    }

    #[test]
    fn a_child_with_an_open_socket_is_killed_and_reaped() {
        isolated!(|| {
            let (channel, [peer, _page]) = Channel::new().expect("a channel");
            let child = Command::new("/bin/sleep").arg("1000").descriptor(&peer, 10).spawn().expect("starts");
            drop(peer);
            note(&channel, &child);
            channel.kill_unreported_child();
            assert!(!exists(&child));
        });
    }

    #[test]
    fn a_child_that_has_ended_is_reaped() {
        isolated!(|| {
            let (channel, [peer, _page]) = Channel::new().expect("a channel");
            let child = Command::new("/bin/true").descriptor(&peer, 10).spawn().expect("starts");
            drop(peer);
            waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("own child");
            note(&channel, &child);
            channel.kill_unreported_child();
            assert!(!exists(&child));
        });
    }

    #[test]
    fn another_process_with_the_pid_is_left_alone() {
        isolated!(|| {
            let (channel, [peer, _page]) = Channel::new().expect("a channel");
            drop(peer);
            let mut other = Command::new("/bin/sleep").arg("1000").spawn().expect("starts");
            note(&channel, &other);
            channel.kill_unreported_child();
            assert_eq!(other.try_wait().expect("own child"), None);
            other.kill().and_then(|()| other.wait()).expect("own child");
        });
    }
}
