// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passes the terminal to the program, and takes it back.
//!
//! To the shell, this command and the program are one job, but the shell watches only this command.

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
    /// The terminal's foreground process group before the program started.
    before: Pid,
}

impl Terminal {
    /// Opens the controlling terminal. Returns `None` if this process has none.
    pub fn open() -> Option<Terminal> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let before = tcgetpgrp(&file).ok()?;
        Some(Terminal { file, before })
    }

    /// Handles SIGCHLD. If the program has stopped, stops this command's process group, as Ctrl-Z would.
    pub fn child_changed(&self, child: &Child) {
        let stopped = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        let Some(signal) = stopped.ok().flatten().and_then(|status| status.stopping_signal()) else { return };
        if [libc::SIGTTIN, libc::SIGTTOU].contains(&signal) && self.is_ours() {
            // The program stopped in the background. Since then, the shell has moved the job to the foreground.
            self.continue_child(child);
        } else if other_group(child).is_some() {
            // Do not use SIGSTOP, because no shell would continue an orphaned group. The kernel
            // discards SIGTSTP for such a group.
            let _ = kill_current_process_group(Signal::TSTP);
        }
    }

    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|group| Some(group.as_raw_pid()) == process_group(0))
    }

    /// Handles SIGCONT: continues the program, and passes it the terminal if the job is in the foreground.
    pub fn continue_child(&self, child: &Child) {
        let Some(group) = other_group(child) else { return };
        if self.is_ours() {
            let _ = tcsetpgrp(&self.file, group);
        }
        let _ = kill_process_group(group, Signal::CONT);
    }

    /// Takes the terminal back from a program that has ended, but is not reaped yet.
    pub fn reclaim(&self, child: &Child) {
        if other_group(child).is_some_and(|group| tcgetpgrp(&self.file) == Ok(group)) {
            self.restore();
        }
    }

    /// Takes the terminal back after a failed start. The child may already have become the foreground group.
    pub fn reclaim_after_failed_start(&self) {
        let group = tcgetpgrp(&self.file).ok();
        if group.is_some_and(|group| test_kill_process_group(group) == Err(Errno::SRCH)) {
            self.restore();
        }
    }

    fn restore(&self) {
        // This process is in a background group, so the kernel would stop it by SIGTTOU for
        // tcsetpgrp().
        ignore(libc::SIGTTOU);
        let _ = tcsetpgrp(&self.file, self.before);
    }
}

/// Returns the program's process group, if it differs from this command's group but is in the same session.
fn other_group(child: &Child) -> Option<Pid> {
    let pid = child.id().try_into().ok()?;
    let group = process_group(pid).filter(|group| Some(*group) != process_group(0))?;
    Pid::from_raw(group).filter(|_| session(pid) == session(0))
}
