// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal of a session. All commands of the session share it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::termios::{
    Action, LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, ioctl_tiocnxcl, tcflow, tcflush,
    tcgetattr, tcgetpgrp, tcsetattr,
};

use crate::command::Command;
use crate::error::{Error, Result, Stage, errno};
use crate::job::{Pty, TerminalSize};
use crate::session::shell::Shell;
use crate::tree::file_for_sandbox;

/// The value of a special character that no key sends (_POSIX_VDISABLE on Linux).
const DISABLED: u8 = 0;

/// Both ends of a session's terminal, which is the controlling terminal of the shell.
#[derive(Debug)]
pub(crate) struct SessionTerminal {
    /// The library's end.
    pub(crate) pty: Pty,
    /// The programs' end, which the shell opens for a command. While it is open, the shell keeps its controlling terminal.
    pub(super) peer_end: OwnedFd,
    settings: Termios,
    /// The helper that restores the foreground group. `None`: it has not been needed, or the library has no helper.
    helper: OnceLock<Option<OwnedFd>>,
}

impl SessionTerminal {
    /// Opens a terminal. With `echo`, it writes its input to its output.
    pub(crate) fn open(size: TerminalSize, echo: bool) -> Result<SessionTerminal> {
        let (pty, peer_end) = Pty::open(size)?;
        let peer_end = OwnedFd::from(peer_end);
        let mut settings = tcgetattr(&peer_end).map_err(|e| Error::new(Stage::Capture, errno(e), "tcgetattr()"))?;
        settings.local_modes.set(LocalModes::ECHO, echo);
        // The shell has no job control, so it could not continue a command that ^Z has stopped.
        settings.special_codes[SpecialCodeIndex::VSUSP] = DISABLED;
        let terminal = SessionTerminal { pty, peer_end, settings, helper: OnceLock::new() };
        terminal.reset()?;
        Ok(terminal)
    }

    /// Makes the terminal the controlling terminal of the shell. The shell gets no descriptor of it.
    pub(crate) fn attach(&self, command: &mut Command<'static>) -> Result<()> {
        let peer_end = self.peer_end.try_clone();
        let peer_end = peer_end.map_err(|e| Error::new(Stage::Capture, crate::error::from_io(&e), "dup()"))?;
        let number = command.unused_descriptor();
        command.descriptor(peer_end, number).controlling_terminal(number).close(number);
        Ok(())
    }

    /// Restores what the last command may have changed, except the foreground group: settings, stopped output, exclusive
    /// mode and size. Discards input that the command has not read.
    pub(super) fn reset(&self) -> Result<()> {
        let failed = |call: &'static str| move |e| Error::new(Stage::Capture, errno(e), call);
        tcsetattr(&self.peer_end, OptionalActions::Now, &self.settings).map_err(failed("tcsetattr()"))?;
        tcflush(&self.peer_end, QueueSelector::IFlush).map_err(failed("tcflush(TCIFLUSH)"))?;
        // TCOON continues only output that TCOOFF has stopped. After TCOOFF it also continues output that a typed ^S has
        // stopped.
        tcflow(&self.peer_end, Action::OOff).map_err(failed("tcflow(TCOOFF)"))?;
        tcflow(&self.peer_end, Action::OOn).map_err(failed("tcflow(TCOON)"))?;
        ioctl_tiocnxcl(&self.peer_end).map_err(failed("ioctl(TIOCNXCL)"))?;
        self.pty.restore_size()
    }

    /// Returns the program that makes the shell's process group the terminal's foreground group again. `None`: that
    /// group is the foreground group, or the library contains no helper.
    ///
    /// A shell without job control does not change the foreground group, but an interactive shell inside a command does.
    /// If SIGKILL ends that shell, its group stays the foreground group. Only a process of the terminal's session may
    /// change this, so the session's shell starts the program.
    pub(super) fn foreground_helper(&self, shell: &Shell) -> Option<BorrowedFd<'_>> {
        let foreground = tcgetpgrp(&self.pty).ok().map(|group| group.as_raw_nonzero().get());
        if foreground == Some(shell.group()?) {
            return None;
        }
        self.helper.get_or_init(|| file_for_sandbox().ok()).as_ref().map(AsFd::as_fd)
    }
}
