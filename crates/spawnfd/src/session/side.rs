// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands beside a session's shell, in its directory and environment.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::shell::file_with;
use super::{Session, not_ours};
use crate::command::Command;
use crate::env::Env;
use crate::error::{Errno, Error, Result, Stage};
use crate::job::{Output, Run};

/// The descriptor of [`READ`] that has the saved variables and umask.
const SAVED: i32 = 3;

/// Prints the umask, and then the variables that the shell has saved. env(1) is searched without the saved PATH.
const READ: &str = "unset PATH; . /proc/self/fd/3; umask; exec /usr/bin/env -0";

/// The length of an environment is bounded: Linux permits 6 MiB for argv and environment together.
const MAX_STATE: usize = 8 << 20;

/// The state of a session that a command beside its shell gets.
#[derive(Debug)]
pub struct SideState {
    /// `None`: the directory of this process.
    pub directory: Option<PathBuf>,
    /// `None`: the environment of this process.
    pub environment: Option<Env>,
    /// `None`: the umask of this process.
    pub umask: Option<u32>,
}

/// The state that a session has saved, in the shell's own form, for the bindings of this project.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum SavedState {
    /// No command has completed yet.
    First(SideState),
    /// A shell reads the file, which becomes its descriptor 3.
    Saved { argv: Vec<OsString>, file: File, directory: PathBuf },
}

impl SideState {
    /// Gives a command this state.
    pub fn apply(&self, command: &mut Command<'_>) {
        self.directory.iter().for_each(|directory| _ = command.current_dir(directory));
        self.environment.iter().for_each(|environment| _ = command.environment(environment));
        self.umask.iter().for_each(|umask| _ = command.umask(*umask));
    }
}

/// A command that prints the state in a file.
fn reader<'fd>(argv: &[OsString], file: &'fd File) -> Command<'fd> {
    let mut reader = Command::new(&argv[0]);
    reader.args(&argv[1..]).environment(&Env::empty()).descriptor(file.as_fd(), SAVED);
    reader
}

impl SavedState {
    /// The state that the shell has printed.
    pub fn parse(directory: PathBuf, output: &Output) -> Result<SideState> {
        let unreadable = || {
            let message = format!("the saved state of the session is not readable: {}", output.stderr_text().trim());
            Error::new(Stage::Capture, Errno::EIO, "session.side_command()").saying(message)
        };
        let end =
            output.stdout.iter().position(|byte| *byte == b'\n').filter(|_| output.ok()).ok_or_else(unreadable)?;
        let umask = std::str::from_utf8(&output.stdout[..end]).ok().and_then(|mask| u32::from_str_radix(mask, 8).ok());
        let variables = output.stdout[end + 1..].split(|byte| *byte == 0);
        // A shell sets `_` to the name of the program.
        let variables = variables.filter(|variable| !variable.is_empty() && !variable.starts_with(b"_="));
        Ok(SideState {
            directory: Some(directory),
            environment: Some(Env::verbatim(variables)?),
            umask: Some(umask.ok_or_else(unreadable)?),
        })
    }
}

impl Session {
    /// Returns a command that runs beside the session's shell, also while the shell runs another command. It has the
    /// working directory, the exported variables and the umask of the last completed command, and is not a process of the
    /// session.
    ///
    /// The session must have the option [`restart`](super::SessionOptions::restart), because only such a session saves
    /// this state. The call starts a short-lived shell that reads the state.
    ///
    /// # Errors
    /// EINVAL: the session was opened without `restart`, has a sandbox, or `argv` is empty. The state could not be read.
    ///
    /// # Examples
    #[cfg_attr(feature = "tree", doc = "```")]
    #[cfg_attr(not(feature = "tree"), doc = "```no_run")]
    /// use spawnfd::session::{Session, SessionOptions};
    /// use spawnfd::{Command, Run};
    /// let session = Session::open(Command::new("bash"), SessionOptions::new().restart(true))?;
    /// session.run("cd /usr; export X=1", &Run::new())?;
    /// let job = session.start("sleep 600", &Run::new())?;
    /// let output = session.side_command(["sh", "-c", "echo $X in $PWD"])?.run_with(&Run::new())?;
    /// assert_eq!(output.stdout, b"1 in /usr\n");
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn side_command<S: AsRef<OsStr>>(&self, argv: impl IntoIterator<Item = S>) -> Result<Command<'static>> {
        let mut argv = argv.into_iter();
        let Some(program) = argv.next() else { return Err(Error::invalid("argv").saying("argv must not be empty")) };
        let mut command = Command::new(program);
        command.args(argv);
        let state = match self.saved_state()? {
            SavedState::First(state) => state,
            SavedState::Saved { argv, file, directory } => {
                let output = reader(&argv, &file).run_with(&self.reading())?;
                SavedState::parse(directory, &output)?
            }
        };
        state.apply(&mut command);
        Ok(command)
    }

    /// Returns the state for a command beside the shell, without blocking the thread while another shell prints it.
    #[doc(hidden)]
    pub async fn side_state_async(&self) -> Result<SideState> {
        self.read_state_async(self.saved_state()?).await
    }

    /// Reads what [`saved_state`](Self::saved_state) has returned, without blocking the thread while another shell prints
    /// it.
    #[doc(hidden)]
    pub async fn read_state_async(&self, saved: SavedState) -> Result<SideState> {
        match saved {
            SavedState::First(state) => Ok(state),
            SavedState::Saved { argv, file, directory } => {
                let output = reader(&argv, &file).run_async(&self.reading()).await?;
                SavedState::parse(directory, &output)
            }
        }
    }

    fn reading(&self) -> Run {
        Run::new().keep(MAX_STATE, 0).timeout(self.options.startup_timeout)
    }

    /// The state for a command beside the shell.
    #[doc(hidden)]
    pub fn saved_state(&self) -> Result<SavedState> {
        let invalid = |message: &str| Err(Error::invalid("session.side_command()").saying(message));
        if self.options.sandbox.is_some() {
            return invalid("a session in a sandbox has no side commands: they would run outside the sandbox");
        }
        let state = self.state.lock();
        let Some(state) = state.as_ref() else { return Err(not_ours()) };
        if !self.options.restart {
            return invalid("a session has side commands only with the option restart, which saves the shell's state");
        }
        let last = state.shell.as_ref().and_then(|shell| shell.last()).or_else(|| state.restored.clone());
        let Some((directory, variables)) = last.and_then(|last| Some((last.cwd, last.variables?))) else {
            let directory = state.command.get_current_dir().map(PathBuf::from);
            let environment = state.command.get_env().cloned();
            return Ok(SavedState::First(SideState { directory, environment, umask: None }));
        };
        let file = file_with(&variables)?;
        let name = state.shell.as_ref().and_then(|shell| std::fs::read_link(format!("/proc/{}/exe", shell.id())).ok());
        let name = name.filter(|path| path.exists()).map_or_else(|| state.name.clone(), PathBuf::into_os_string);
        Ok(SavedState::Saved { argv: vec![name, "-c".into(), READ.into()], file, directory })
    }
}
