// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error type: the stage in which a spawn failed, the reason, and which of the caller's actions failed.

pub(crate) mod message;
mod run_error;
mod stage;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use spawnfd_sys::Ended;
/// The errno of an [`Error`].
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::error::Errno;
/// let error = Command::new("true").current_dir("/nonexistent").run().unwrap_err();
/// assert_eq!((error.errno(), error.errno().name()), (Errno::ENOENT, "ENOENT"));
/// ```
///
pub use spawnfd_sys::Errno;
pub use stage::Stage;

pub(crate) use message::{of_path, of_too_large, os_text, reason, shown, shown_c};
pub(crate) use run_error::RunError;
use run_error::SharedRunError;

/// The class of an error, by the caller's possible reaction.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::error::ErrorKind;
/// let error = Command::new("no-such-program").run().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The executable is not the one that the template recorded: make a new template.
    Stale,
    /// Permission was denied, or the caller's credentials are not those of the template's creator.
    Access,
    /// The program does not exist.
    NotFound,
    /// The file cannot be executed.
    NotExecutable,
    /// An argument is wrong.
    Invalid,
    /// The request exceeds a fixed maximum.
    TooMany,
    /// The system has run out of processes, memory or descriptors.
    Exhausted,
    /// The program ran, and its run was not ok: see [`Error::exit`].
    Exit,
    /// Anything else; see the errno.
    Other,
}

/// The error of a spawn, a template, a wait or a capture. A spawn that fails leaves no process behind.
///
/// Display prints one line: the [message](Error::message), then the [detail](Error::detail) in
/// brackets. For example: `no such working directory: /x [cwd: chdir("/x") = -1 ENOENT]`.
///
/// An [`ExitError`](crate::job::ExitError) converts to an `Error`, and Display then prints what the `ExitError` prints.
/// Debug prints what Display prints, because Rust shows the Debug form of an error that `main` returns.
///
/// ```
/// use spawnfd::Command;
///
/// fn main() -> Result<(), spawnfd::Error> {
///     let job = Command::new("echo").arg("hello").start(&Default::default())?;
///     job.wait()?.check()?;
///     Ok(())
/// }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Fields>);

#[derive(Clone, PartialEq, Eq)]
struct Fields {
    stage: Stage,
    errno: Errno,
    call: String,
    /// The sentence for the user. `None`: the default sentence for the stage and errno.
    message: Option<String>,
    /// True if the library rejected an argument before it did anything, whatever the stage.
    refused: bool,
    /// The child had performed actions of the caller before it failed, whatever the stage.
    actions_ran: bool,
    /// The error of a run that was not ok.
    run: Option<SharedRunError>,
}

/// The parts of an error for another process.
#[cfg(feature = "serde")]
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct StoredError {
    stage: String,
    #[serde(default)]
    action: usize,
    errno: i32,
    call: String,
    message: String,
    #[serde(default)]
    refused: bool,
    #[serde(default)]
    actions_ran: bool,
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(stage: Stage, errno: Errno, call: impl Into<String>) -> Error {
        Error(Box::new(Fields {
            stage,
            errno,
            call: call.into(),
            message: None,
            refused: stage == Stage::Validate,
            actions_ran: false,
            run: None,
        }))
    }

    /// Creates the error of a run that was not ok.
    pub(crate) fn of_run(run: impl RunError) -> Error {
        let mut error = Error::new(Stage::Exit, Errno::EIO, "").saying(run.message());
        error.0.run = Some(SharedRunError::new(run));
        error
    }

    /// The error of a run that was not ok, if this error was made from one.
    pub(crate) fn run_error(&self) -> Option<&dyn RunError> {
        self.0.run.as_ref().map(SharedRunError::get)
    }

    /// Sets the sentence for the user.
    pub(crate) fn saying(mut self, message: impl Into<String>) -> Error {
        self.0.message = Some(message.into());
        self
    }

    /// Sets the sentence for the user, if there is one for this error.
    pub(crate) fn saying_if(self, message: Option<String>) -> Error {
        match message {
            Some(message) => self.saying(message),
            None => self,
        }
    }

    /// Creates an error that the library found before the child existed.
    pub(crate) fn refused(stage: Stage, errno: Errno, call: impl Into<String>) -> Error {
        let mut error = Error::new(stage, errno, call);
        error.0.refused = true;
        error
    }

    /// The parts of an error for another process.
    #[cfg(feature = "serde")]
    pub(crate) fn parts(&self) -> StoredError {
        let Fields { stage, errno, call, refused, actions_ran, .. } = &*self.0;
        StoredError {
            stage: stage.name().to_owned(),
            action: self.action().unwrap_or_default(),
            errno: errno.raw(),
            call: call.clone(),
            message: self.message().into_owned(),
            refused: *refused,
            actions_ran: *actions_ran,
        }
    }

    /// The error with these parts. `None`: the stage is not known.
    #[cfg(feature = "serde")]
    pub(crate) fn of_parts(parts: StoredError) -> Option<Error> {
        let stage = Stage::from_name(&parts.stage, parts.action)?;
        let mut error = Error::new(stage, Errno::from_raw(parts.errno), parts.call).saying(parts.message);
        (error.0.refused, error.0.actions_ran) = (parts.refused, parts.actions_ran);
        Some(error)
    }

    /// Marks the error as one of a child that has performed actions of the caller, so the start must not be repeated.
    pub(crate) fn after_actions(mut self) -> Error {
        self.0.actions_ran = true;
        self
    }

    /// Marks the error as one of a child that a seccomp filter killed for the call (ECANCELED).
    pub(crate) fn by_filter(mut self) -> Error {
        self.0.message = Some(format!("a seccomp filter killed the child in {}", self.0.call));
        self.0.call += ", killed by SIGSYS (a seccomp filter)";
        self
    }

    /// Creates the error for an argument that is not valid. `call` says why.
    pub(crate) fn invalid(call: impl Into<String>) -> Error {
        Error::new(Stage::Validate, Errno::EINVAL, call)
    }

    /// The failure in the user's terms: one sentence in lower case, without a full stop.
    pub fn message(&self) -> Cow<'_, str> {
        let Fields { stage, errno, call, message, refused, .. } = &*self.0;
        match (message, stage) {
            (Some(message), _) => Cow::Borrowed(message),
            (None, Stage::Action(_)) if *refused && *errno == Errno::EINVAL => format!("invalid action {call}").into(),
            (None, Stage::Action(_)) if *refused => format!("invalid action {call}: {}", reason(*errno)).into(),
            (None, _) => Cow::Owned(message::of_stage(*stage, *errno, call)),
        }
    }

    /// Stage, action, call and errno of the failure, in the notation of strace.
    ///
    /// For example `action 3: dup2(7, 1) = -1 EBADF`. An [`ExitError`](crate::job::ExitError) has no failed call; its
    /// detail says why the run stopped and how the program ended: `exit: timeout, signal: 15 (SIGTERM)`.
    pub fn detail(&self) -> String {
        if let Some(run) = self.run_error() {
            return format!("{}: {}", Stage::Exit.name(), run.detail());
        }
        let Fields { stage, errno, call, .. } = &*self.0;
        let index = self.action().map_or_else(String::new, |index| format!(" {index}"));
        format!("{}{index}: {call} = -1 {}", stage.name(), errno.name())
    }

    /// The stage that failed.
    pub fn stage(&self) -> Stage {
        self.0.stage
    }

    /// The errno of the failed call. EIO for an [`ExitError`](crate::job::ExitError), which has no failed call.
    pub fn errno(&self) -> Errno {
        self.0.errno
    }

    /// The index of the caller's action that failed, counted from 0.
    pub fn action(&self) -> Option<usize> {
        match self.0.stage {
            Stage::Action(index) => Some(index),
            _ => None,
        }
    }

    /// The call that failed, with its arguments; empty for an [`ExitError`](crate::job::ExitError).
    pub fn call(&self) -> &str {
        &self.0.call
    }

    /// Adds the signal that killed the child to the call.
    pub(crate) fn with_signal(mut self, ended: Option<Ended>) -> Error {
        let status = ended.map(|ended| ExitStatus::from_raw(ended.status)).filter(|status| status.signal().is_some());
        if let (Stage::Killed, Some(status)) = (self.0.stage, status) {
            self.0.message = Some(format!("{}, {status}", self.message()));
            self.0.call += &format!(", {status}");
        }
        self
    }

    /// Whether a signal ended the child before exec.
    pub(crate) fn is_signal_before_exec(&self) -> bool {
        self.0.stage == Stage::Killed || self.0.errno == Errno::ECANCELED
    }

    /// Whether the child failed to set up its descriptors, before any action ran.
    pub(crate) fn is_without_descriptors(&self) -> bool {
        self.0.stage == Stage::Descriptors && !self.0.actions_ran
    }

    /// Whether the kernel refused this process another process or thread, before any action ran.
    pub(crate) fn is_without_processes(&self) -> bool {
        self.0.errno == Errno::EAGAIN && matches!(self.0.stage, Stage::Clone | Stage::Tree)
    }

    /// Whether a parked process was killed before it began to start the program. Nothing has happened, so the start
    /// may be repeated.
    pub(crate) fn is_unstarted(&self) -> bool {
        self.0.stage == Stage::Killed && self.0.errno == Errno::ESRCH
    }

    /// The class of the error.
    pub fn kind(&self) -> ErrorKind {
        match (self.0.errno, self.0.stage) {
            (_, Stage::Exit) => ErrorKind::Exit,
            (Errno::ESTALE, _) => ErrorKind::Stale,
            (Errno::ENOENT, Stage::Template | Stage::Exec | Stage::Revalidate) => ErrorKind::NotFound,
            (Errno::ENOEXEC, _) => ErrorKind::NotExecutable,
            (Errno::EACCES | Errno::EPERM, _) => ErrorKind::Access,
            (Errno::E2BIG, _) => ErrorKind::TooMany,
            (Errno::EINVAL | Errno::EBADF, _) if self.0.refused => ErrorKind::Invalid,
            (Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC, _) => ErrorKind::Exhausted,
            _ => ErrorKind::Other,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.run_error() {
            Some(run) => fmt::Display::fmt(run, f),
            None => write!(f, "{} [{}]", self.message(), self.detail()),
        }
    }
}

impl fmt::Debug for Error {
    /// Prints what Display prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    /// The kind is the one that std assigns to the errno, and `Other` for an [`ExitError`](crate::job::ExitError). The
    /// source is the whole error.
    fn from(error: Error) -> io::Error {
        let kind = match error.stage() {
            Stage::Exit => io::ErrorKind::Other,
            _ => io::Error::from_raw_os_error(error.errno().raw()).kind(),
        };
        io::Error::new(kind, error)
    }
}

/// Converts rustix's errno into this crate's.
pub(crate) fn errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// The errno of a std error; 0 if it has none.
pub(crate) fn from_io(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_comes_before_detail() {
        let error = Error::new(Stage::Action(3), Errno::EBADF, "dup2(7, 1)");
        assert_eq!(error.to_string(), "dup2(7, 1) failed: bad file descriptor [action 3: dup2(7, 1) = -1 EBADF]");
        assert_eq!((error.action(), error.kind(), error.call()), (Some(3), ErrorKind::Other, "dup2(7, 1)"));
        let refused = Error::refused(Stage::Action(3), Errno::EBADF, "dup2(7, 1)");
        assert_eq!(
            (refused.message(), refused.kind()),
            ("invalid action dup2(7, 1): bad file descriptor".into(), ErrorKind::Invalid)
        );
        let error = Error::new(Stage::Clone, Errno::ENOMEM, "spawn(\"x\")").saying("x does not fit");
        assert_eq!(
            (error.message(), error.detail()),
            ("x does not fit".into(), "clone: spawn(\"x\") = -1 ENOMEM".into())
        );
        let error = io::Error::from(Error::new(Stage::Exec, Errno::ENOENT, r#"execve("/x")"#));
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn debug_of_an_error_reads_like_its_display() {
        let error = Error::new(Stage::Exec, Errno::ENOENT, r#"execve("/x")"#);
        assert_eq!(format!("{error:?}"), error.to_string());
        assert_eq!(format!("{error:#?}"), error.to_string());
    }

    #[test]
    fn messages_have_one_line() {
        assert_eq!(shown("a b"), "a b");
        assert_eq!(shown("a\nb"), r#""a\nb""#);
        assert_eq!(of_path("program", c"/x", Errno::ENOENT).as_deref(), Some("no such program: /x"));
        assert_eq!(of_path("directory", c"/x\n", Errno::ENOTDIR).as_deref(), Some(r#"not a directory: "/x\n""#));
        assert_eq!(of_path("program", c"/x", Errno::ENOMEM), None);
    }
}
