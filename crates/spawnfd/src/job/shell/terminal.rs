// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal of a session. All commands of the session share it.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::termios::{
    LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr, tcsetattr,
};

use crate::command::Command;
use crate::error::{Error, Result, Stage, errno};
use crate::job::{Pty, TerminalSize};

/// The value of a special character that no key sends (_POSIX_VDISABLE on Linux).
const DISABLED: u8 = 0;

/// Both ends of a session's terminal, which is the controlling terminal of the shell.
#[derive(Debug)]
pub(crate) struct SessionTerminal {
    pty: Pty,
    /// The programs' end. While it is open, the shell keeps its controlling terminal.
    far_end: OwnedFd,
    settings: Termios,
}

impl SessionTerminal {
    /// Opens a terminal. With `echo`, it writes its input to its output.
    pub(crate) fn open(size: TerminalSize, echo: bool) -> Result<SessionTerminal> {
        let (pty, far_end) = Pty::open(size)?;
        let far_end = OwnedFd::from(far_end);
        let mut settings = tcgetattr(&far_end).map_err(|e| Error::new(Stage::Capture, errno(e), "tcgetattr()"))?;
        settings.local_modes.set(LocalModes::ECHO, echo);
        // The shell has no job control, so it could not continue a command that ^Z has stopped.
        settings.special_codes[SpecialCodeIndex::VSUSP] = DISABLED;
        let terminal = SessionTerminal { pty, far_end, settings };
        terminal.reset()?;
        Ok(terminal)
    }

    /// Makes the terminal the controlling terminal of the shell. The shell gets no descriptor of it.
    pub(crate) fn attach(&self, command: &mut Command<'static>) -> Result<()> {
        let far_end = self.far_end.try_clone();
        let far_end = far_end.map_err(|e| Error::new(Stage::Capture, crate::error::from_io(&e), "dup()"))?;
        let number = command.unused_descriptor();
        command.descriptor(far_end, number).controlling_terminal(number).close(number);
        Ok(())
    }

    /// Restores the settings, which the last command may have changed, and discards input that it has not read.
    pub(super) fn reset(&self) -> Result<()> {
        tcsetattr(&self.far_end, OptionalActions::Now, &self.settings)
            .and_then(|()| tcflush(&self.far_end, QueueSelector::IFlush))
            .map_err(|e| Error::new(Stage::Capture, errno(e), "tcsetattr()"))
    }

    /// The number of this process's descriptor that the shell opens for a command.
    pub(super) fn number(&self) -> i32 {
        self.far_end.as_raw_fd()
    }

    /// The programs' end.
    pub(crate) fn far_end(&self) -> &OwnedFd {
        &self.far_end
    }

    /// The library's end, for one command.
    pub(super) fn pty(&self) -> Pty {
        self.pty.clone()
    }

    pub(crate) fn resize(&self, size: TerminalSize) -> Result<()> {
        self.pty.resize(size)
    }
}
