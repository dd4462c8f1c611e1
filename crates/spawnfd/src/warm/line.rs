// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an owner and a parked process have in common: a socket for what is said once, and a page that says how far a request has come.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, pidfd_open, waitid, waitpid,
};
use spawnfd_sys::{Errno, receive};

use super::protocol::PAGE_SIZE;
use super::wire::Page;
use crate::error::errno;
use crate::memfd;
use crate::numbers::{Known, above_standard};
use crate::reaper;

/// The owner's side.
#[derive(Debug)]
pub(super) struct Line {
    socket: Known,
    pub(super) page: Arc<Page>,
}

/// A system call that failed.
pub(super) type Failed = (&'static str, Errno);

impl Line {
    /// A line, and what the other side needs of it: its socket, and the page as a file.
    pub(super) fn new() -> Result<(Line, [OwnedFd; 2]), Failed> {
        let failed = |call| move |errno| (call, errno);
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| ("socketpair()", errno(error)))?;
        let memory = memfd::create("spawnfd-page", false).map_err(failed("memfd_create()"))?;
        memfd::set_length(&memory, PAGE_SIZE as u64).map_err(failed("ftruncate()"))?;
        memfd::seal(&memory, true).map_err(failed("fcntl()"))?;
        let page = Arc::new(Page::of(memory.as_raw_fd()).map_err(failed("mmap()"))?);
        let socket = Known::new(socket);
        Ok((Line { socket, page }, [theirs, memory].map(above_standard)))
    }

    /// Gives its socket a number that is younger than that of the process's pidfd: a descriptor table that has the one has the other.
    pub(super) fn renumber(&mut self) -> Result<(), Failed> {
        let socket = self.socket.get().ok_or(("fstat()", Errno::EBADF))?;
        let socket = rustix::io::fcntl_dupfd_cloexec(socket, 3).map_err(|error| ("fcntl()", errno(error)))?;
        self.socket = Known::new(socket);
        Ok(())
    }

    /// What is said goes there; `None`: the calling thread's descriptor table has not got it.
    pub(super) fn socket(&self) -> Option<&OwnedFd> {
        self.socket.get()
    }

    /// Whether there is something to hear, by then.
    pub(super) fn poll(&self, timeout: Duration) -> bool {
        let Some(socket) = self.socket.get() else { return false };
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&left)) {
                // A handler of the application's has run: this may be its thread.
                Err(rustix::io::Errno::INTR) => {}
                outcome => return outcome.is_ok_and(|ready| ready > 0),
            }
        }
    }

    /// What is said next; `None`: nobody is there, or nothing comes.
    pub(super) fn hear<'a>(&self, timeout: Duration, message: &'a mut [u8]) -> Option<(&'a mut [u8], Option<OwnedFd>)> {
        if !self.poll(timeout) {
            return None;
        }
        let (length, fd) = receive(self.socket.get()?.as_raw_fd(), message).ok()?;
        (length > 0).then(|| (&mut message[..length], fd))
    }

    /// Ends a child that has been born for this line and has not said so, if there is one.
    pub(super) fn bury_child(&self) {
        let Some(child) = Pid::from_raw(super::wire::child(&self.page)) else { return };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // Nobody has waited for it: its number is its own.
        let runs = matches!(waitid(WaitId::Pid(child), look), Ok(None));
        if !runs || kill_process(child, Signal::KILL).is_ok() {
            let _ = waitpid(Some(child), WaitOptions::empty());
        } else if let Ok(pidfd) = pidfd_open(child, PidfdFlags::empty()) {
            self.hang_up();
            reaper::adopt(Known::new(pidfd));
        }
    }

    /// Ends what is said for all who have a copy of the socket: who waits at the other side ends by that.
    pub(super) fn hang_up(&self) {
        let _ = self.socket.get().map(|socket| shutdown(socket, Shutdown::Both));
    }
}
