// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits for the program, and forwards the signals that this command receives during the wait.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;

use libc::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use rustix::event::{PollFd, PollFlags, poll};
use spawnfd::Child;
use spawnfd::internal::call::is_ignored;

use super::terminal::Terminal;
use crate::failure::{Failure, reason};
use crate::os::{make_default, on_signal, process_group};

const WATCHED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// The signals that report that the program stopped, or that the shell continued this command.
const JOB_CONTROL: [i32; 2] = [SIGCHLD, SIGCONT];

/// Receives this command's signals. Each signal has a socket, to which its handler writes a byte.
#[derive(Debug)]
pub struct Signals {
    sockets: Vec<(i32, UnixStream)>,
    /// The terminal, if the program's group becomes the terminal's foreground group.
    terminal: Option<Terminal>,
}

/// The reason why `sleep` returned.
pub enum Woken {
    /// The descriptor is readable.
    Ready,
    /// A signal has arrived. `by_kernel` is true if the kernel generated it, and false if a process sent it.
    Signal { number: i32, by_kernel: bool },
}

impl Signals {
    /// Installs the handlers. An ignored signal stays ignored, here and in the program, as nohup(1) requires.
    pub fn watch(terminal: Option<Terminal>) -> Result<Signals, Failure> {
        let mut sockets = Vec::new();
        let job_control = if terminal.is_some() { &JOB_CONTROL[..] } else { &[] };
        for &signal in WATCHED.iter().chain(job_control) {
            if is_ignored(signal as u32) {
                continue;
            }
            let failed = |e: std::io::Error| Failure::new(format!("cannot install signal handlers: {}", reason(&e)));
            let (ours, theirs) = UnixStream::pair().map_err(failed)?;
            on_signal(signal, theirs).map_err(failed)?;
            ours.set_nonblocking(true).map_err(failed)?;
            sockets.push((signal, ours));
        }
        Ok(Signals { sockets, terminal })
    }

    /// Sleeps until `fd` is readable or a signal arrives.
    pub fn sleep(&self, fd: BorrowedFd<'_>) -> Result<Woken, Failure> {
        loop {
            let mut fds = vec![PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            fds.extend(self.sockets.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(Failure::new(format!("cannot wait for signals: poll: {}", reason(&e.into())))),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            let sent = self.sockets.iter().zip(&ready[1..]).find(|(_, ready)| **ready);
            if let Some(((signal, socket), _)) = sent {
                let mut socket: &UnixStream = socket;
                let mut byte = [0];
                let _ = socket.read(&mut byte);
                return Ok(Woken::Signal { number: *signal, by_kernel: byte == [1] });
            }
            if ready[0] {
                return Ok(Woken::Ready);
            }
        }
    }

    /// Takes the terminal back after the program failed to start.
    pub fn start_failed(&self) {
        self.terminal.iter().for_each(Terminal::reclaim_after_failed_start);
    }

    /// Waits for the program to end. Calls `ended` before it reaps the program.
    pub fn wait(&self, child: &mut Child, ended: impl FnOnce()) -> Result<ExitStatus, Failure> {
        loop {
            match self.sleep(child.as_fd())? {
                Woken::Ready => {
                    self.terminal.iter().for_each(|terminal| terminal.reclaim(child));
                    ended();
                    return Ok(child.wait()?);
                }
                Woken::Signal { number: SIGCHLD, .. } => {
                    self.terminal.iter().for_each(|terminal| terminal.child_changed(child));
                }
                Woken::Signal { number: SIGCONT, .. } => {
                    self.terminal.iter().for_each(|terminal| terminal.continue_child(child));
                }
                Woken::Signal { number: SIGHUP | SIGINT | SIGQUIT, by_kernel: true } if shares_group(child) => {}
                Woken::Signal { number, .. } => {
                    // The call fails if the program has ended or runs under other ids. No other
                    // call would help.
                    let _ = child.signal(number);
                }
            }
        }
    }
}

/// Whether the program is in this command's process group, so that the terminal's signals reach it, too.
fn shares_group(child: &Child) -> bool {
    i32::try_from(child.id()).is_ok_and(|pid| process_group(pid).is_some_and(|group| Some(group) == process_group(0)))
}

impl Drop for Signals {
    /// Restores the default actions of the signals. By then the program has ended.
    fn drop(&mut self) {
        self.sockets.iter().for_each(|(signal, _)| make_default(*signal));
    }
}
