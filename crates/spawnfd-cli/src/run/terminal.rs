// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passes the terminal to the program. To the shell, command and program are one job, but it watches only the command.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_current_process_group, kill_process_group, test_kill_process_group, waitid,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use spawnfd::Child;

use crate::os::{ignore, process_group, session};

/// This command's terminal.
#[derive(Debug)]
pub struct Terminal {
    file: File,
    /// The foreground process group before the program started.
    before: Pid,
}

impl Terminal {
    /// Opens the controlling terminal. `None`: there is none.
    pub fn open() -> Option<Terminal> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let before = tcgetpgrp(&file).ok()?;
        Some(Terminal { file, before })
    }

    /// Handles SIGCHLD. If the program has stopped, stops the rest of the job, like a stop signal from the terminal.
    pub fn look_at(&self, child: &Child) {
        let stopped = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        let Some(signal) = stopped.ok().flatten().and_then(|status| status.stopping_signal()) else { return };
        if [libc::SIGTTIN, libc::SIGTTOU].contains(&signal) && self.is_ours() {
            // The program stopped in the background, and the job has moved to the foreground since.
            self.go_on(child);
        } else if group_beside(child).is_some() {
            // Not SIGSTOP: the kernel discards SIGTSTP for an orphaned group, which no shell would continue.
            let _ = kill_current_process_group(Signal::TSTP);
        }
    }

    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|group| Some(group.as_raw_pid()) == process_group(0))
    }

    /// Handles SIGCONT: continues the program, and passes it the terminal if the job is in the foreground.
    pub fn go_on(&self, child: &Child) {
        let Some(group) = group_beside(child) else { return };
        if self.is_ours() {
            let _ = tcsetpgrp(&self.file, group);
        }
        let _ = kill_process_group(group, Signal::CONT);
    }

    /// Takes the terminal back from a program that has ended and is not reaped yet.
    pub fn take_back(&self, child: &Child) {
        if group_beside(child).is_some_and(|group| tcgetpgrp(&self.file) == Ok(group)) {
            self.give_back();
        }
    }

    /// Takes the terminal back after a failed start, in which the child may already have taken it.
    pub fn take_back_from_nobody(&self) {
        let group = tcgetpgrp(&self.file).ok();
        if group.is_some_and(|group| test_kill_process_group(group) == Err(Errno::SRCH)) {
            self.give_back();
        }
    }

    fn give_back(&self) {
        // Otherwise tcsetpgrp stops this process, which is in a background group.
        ignore(libc::SIGTTOU);
        let _ = tcsetpgrp(&self.file, self.before);
    }
}

/// Returns the program's process group, if it differs from this command's and is in the same session.
fn group_beside(child: &Child) -> Option<Pid> {
    let pid = child.id().try_into().ok()?;
    let group = process_group(pid).filter(|group| Some(*group) != process_group(0))?;
    Pid::from_raw(group).filter(|_| session(pid) == session(0))
}
