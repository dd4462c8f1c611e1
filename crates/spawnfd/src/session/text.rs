// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of a session's command.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The text of a command for a [`Session`](super::Session), and its own directory and variables.
///
/// A `&str` converts to a text that runs in the session's directory and environment.
///
/// # Examples
/// ```
/// use spawnfd::session::{CommandText, Session, SessionOptions};
/// use spawnfd::{Command, Run};
/// let session = Session::open(Command::new("bash"), SessionOptions::new())?;
/// let text = CommandText::new("echo $X in $PWD").cwd("/usr").env("X", "1");
/// assert_eq!(session.run(text, &Run::new())?.stdout, b"1 in /usr\n");
/// assert_eq!(session.run("echo $X; cd /", &Run::new())?.stdout, b"\n");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "a text has no effect until a session runs it"]
#[derive(Clone, Debug)]
pub struct CommandText {
    pub(crate) text: Vec<u8>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) env: Vec<(String, Vec<u8>)>,
}

impl CommandText {
    /// The text of a command. It may have bytes that are not UTF-8.
    pub fn new(text: impl AsRef<OsStr>) -> CommandText {
        CommandText { text: text.as_ref().as_bytes().to_vec(), cwd: None, env: Vec::new() }
    }

    /// Runs the text in this directory. Afterwards the shell returns to the session's directory. If the text changes the
    /// directory, that has no effect on later commands. If the directory cannot be entered, the status is that of `cd`,
    /// and the text does not run. If the session's directory is gone afterwards, the shell exits.
    pub fn cwd(mut self, directory: impl AsRef<Path>) -> CommandText {
        self.cwd = Some(directory.as_ref().to_owned());
        self
    }

    /// Adds a variable to the environment of this text alone. An assignment in the text has no effect on later commands.
    pub fn env(mut self, name: impl Into<String>, value: impl AsRef<OsStr>) -> CommandText {
        self.env.push((name.into(), value.as_ref().as_bytes().to_vec()));
        self
    }

    /// # Errors
    /// EINVAL: the text or an option of it cannot reach a shell.
    #[doc(hidden)]
    pub fn validate(&self) -> Result<()> {
        let invalid = |option: &str, why: &str| Err(Error::invalid(option).saying(format!("{option}: {why}")));
        if self.text.contains(&0) {
            return invalid("text", "a command cannot contain a NUL byte");
        }
        if self.cwd.as_ref().is_some_and(|cwd| cwd.as_os_str().as_bytes().contains(&0)) {
            return invalid("cwd", "a path cannot contain a NUL byte");
        }
        if let Some((name, _)) = self.env.iter().find(|(name, value)| !is_name(name) || value.contains(&0)) {
            return invalid("env", &format!("{name:?} is not a name of a variable, or its value has a NUL byte"));
        }
        Ok(())
    }
}

impl<T: AsRef<OsStr> + ?Sized> From<&T> for CommandText {
    fn from(text: &T) -> CommandText {
        CommandText::new(text)
    }
}

/// Whether a shell accepts a variable of this name.
pub(super) fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first == b'_' || first.is_ascii_alphabetic())
        && bytes.all(|byte| byte == b'_' || byte.is_ascii_alphanumeric())
}
