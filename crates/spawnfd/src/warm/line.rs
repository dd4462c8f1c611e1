// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an owner and a parked process have in common: a socket for what is said once, and a page that says how far a request has come.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use spawnfd_sys::{Errno, receive, wait_pidfd};

use super::protocol::PAGE_SIZE;
use super::wire::Page;
use crate::error::errno;
use crate::host::memfd;
use crate::host::numbers::{Known, above_standard};
use crate::reaper;

/// The time from the moment a process's files are closed until it can be reaped, at most.
const EXITS: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

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

    /// Kills and reaps a child that was forked for this line and has not said so, if there is one.
    ///
    /// Its pid is known from the page. A `wait(-1)` of the application may have reaped the child, and another process may have the pid.
    pub(super) fn end_unknown_child(&self) {
        let Some(pid) = Pid::from_raw(super::wire::child(&self.page)) else { return };
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return self.hang_up() };
        // A child that runs has the other end open. If it still has after pidfd_open(), the pidfd is that child's.
        let runs = self.is_held();
        if runs && pidfd_send_signal(&pidfd, Signal::KILL).is_err() {
            self.hang_up();
            reaper::adopt(Known::new(pidfd));
            return;
        }
        if !runs {
            // The child closes its end on exit, a moment before it can be reaped. A process that goes on running is not the child.
            let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&EXITS));
        }
        let _ = wait_pidfd(pidfd.as_raw_fd(), runs);
    }

    /// Whether a process has the other end open.
    fn is_held(&self) -> bool {
        let Some(socket) = self.socket.get() else { return false };
        let mut ready = [PollFd::new(socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut ready, Some(&now)).is_ok() && !ready[0].revents().contains(PollFlags::HUP)
    }

    /// Ends what is said for all who have a copy of the socket: who waits at the other side ends by that.
    pub(super) fn hang_up(&self) {
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
    use crate::warm::protocol::Page as Layout;

    /// Leaves a child's pid in the page, as the kernel does.
    fn note(line: &Line, child: &Child) {
        let shift = Layout::CHILD % 8 * 8;
        line.page.get()[Layout::CHILD / 8].store(u64::from(child.id()) << shift, Ordering::Release);
    }

    fn exists(child: &Child) -> bool {
        Path::new(&format!("/proc/{}", child.id())).exists()
    }

    #[test]
    fn a_child_that_holds_the_line_is_killed_and_reaped() {
        isolated!(|| {
            let (line, [theirs, _page]) = Line::new().expect("a line");
            let child = Command::new("/bin/sleep").arg("1000").descriptor(&theirs, 10).spawn().expect("starts");
            drop(theirs);
            note(&line, &child);
            line.end_unknown_child();
            assert!(!exists(&child));
        });
    }

    #[test]
    fn a_child_that_has_ended_is_reaped() {
        isolated!(|| {
            let (line, [theirs, _page]) = Line::new().expect("a line");
            let child = Command::new("/bin/true").descriptor(&theirs, 10).spawn().expect("starts");
            drop(theirs);
            waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).expect("own child");
            note(&line, &child);
            line.end_unknown_child();
            assert!(!exists(&child));
        });
    }

    #[test]
    fn another_process_with_the_pid_is_left_alone() {
        isolated!(|| {
            let (line, [theirs, _page]) = Line::new().expect("a line");
            drop(theirs);
            let mut other = Command::new("/bin/sleep").arg("1000").spawn().expect("starts");
            note(&line, &other);
            line.end_unknown_child();
            assert_eq!(other.try_wait().expect("own child"), None);
            other.kill().and_then(|()| other.wait()).expect("own child");
        });
    }
}
