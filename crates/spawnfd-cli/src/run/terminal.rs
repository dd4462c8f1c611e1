// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that this command gives the terminal to: for the shell both are one job, and it looks at this command alone.

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
    /// Whose it was before the program.
    before: Pid,
}

impl Terminal {
    /// `None`: there is none that a shell could take back.
    pub fn open() -> Option<Terminal> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let before = tcgetpgrp(&file).ok()?;
        Some(Terminal { file, before })
    }

    /// Something has become of the program. If it has stopped, the rest of the job does, as if the terminal had sent that to it, too.
    pub fn look_at(&self, child: &Child) {
        let stopped = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        let Some(signal) = stopped.ok().flatten().and_then(|status| status.stopping_signal()) else { return };
        if [libc::SIGTTIN, libc::SIGTTOU].contains(&signal) && self.is_ours() {
            // It has stopped in the background, and the job has come to the foreground since.
            self.go_on(child);
        } else if group_beside(child).is_some() {
            // Not by SIGSTOP: where there is no shell to continue it nothing stops by this.
            let _ = kill_current_process_group(Signal::TSTP);
        }
    }

    fn is_ours(&self) -> bool {
        tcgetpgrp(&self.file).is_ok_and(|group| Some(group.as_raw_pid()) == process_group(0))
    }

    /// The job has been continued, with the terminal or without.
    pub fn go_on(&self, child: &Child) {
        let Some(group) = group_beside(child) else { return };
        if self.is_ours() {
            let _ = tcsetpgrp(&self.file, group);
        }
        let _ = kill_process_group(group, Signal::CONT);
    }

    /// The program has ended, and is not reaped yet.
    pub fn take_back(&self, child: &Child) {
        if group_beside(child).is_some_and(|group| tcgetpgrp(&self.file) == Ok(group)) {
            self.give_back();
        }
    }

    /// The program was not started: its child had the terminal, if it came as far as that.
    pub fn take_back_from_nobody(&self) {
        let group = tcgetpgrp(&self.file).ok();
        if group.is_some_and(|group| test_kill_process_group(group) == Err(Errno::SRCH)) {
            self.give_back();
        }
    }

    fn give_back(&self) {
        // Else who is in the background stops.
        ignore(libc::SIGTTOU);
        let _ = tcsetpgrp(&self.file, self.before);
    }
}

/// The program's process group, where that is another one of this session.
fn group_beside(child: &Child) -> Option<Pid> {
    let pid = child.id().try_into().ok()?;
    let group = process_group(pid).filter(|group| Some(*group) != process_group(0))?;
    Pid::from_raw(group).filter(|_| session(pid) == session(0))
}
