// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error of a run that was not ok.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::{Fate, Leftover, Output, Stream};
use crate::child::Started;
use crate::error::{Error, RunError, shown};

/// A run that was not [`ok`](Output::ok).
///
/// Clones share the output. Debug prints what Display prints. The error converts to [`Error`](crate::Error).
///
/// # Examples
/// ```
/// use spawnfd::{Command, Error};
/// fn first_line() -> Result<String, Error> {
///     let output = Command::new("sh").args(["-c", "echo no such user >&2; exit 3"]).run()?;
///     output.check()?; // an ExitError becomes an Error
///     Ok(output.stdout_text().into_owned())
/// }
/// let error = first_line().unwrap_err();
/// let exit = error.exit().expect("the program has started");
/// assert_eq!(exit.output.code(), Some(3));
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ExitError {
    /// The run.
    pub output: Arc<Output>,
}

/// The maximum number of lines of standard error that an [`ExitError`] shows.
const SHOWN_LINES: usize = 5;

impl ExitError {
    pub(super) fn new(output: Arc<Output>) -> ExitError {
        ExitError { output }
    }

    /// Why the status of the program, or of a session's command, is lost.
    fn why_lost(&self) -> String {
        let Output { started, shell_exited, shell_status, .. } = &*self.output;
        match shell_status {
            _ if *started != Started::Session => "other code of this process has taken it".to_owned(),
            // std formats the status as "exit status: 3" or "signal: 9 (SIGKILL)".
            Some(status) => format!("the session's shell ended with {}", status.to_string().replacen(": ", " ", 1)),
            None if *shell_exited => "the session's shell exited".to_owned(),
            None => "the session's shell has not proved that it ran the command to its end".to_owned(),
        }
    }
}

impl RunError for ExitError {
    /// The program's name and how the program ended, in one sentence.
    fn message(&self) -> String {
        let Output { program, status, .. } = &*self.output;
        let program = shown(program);
        match (self.output.unkilled_program(), self.output.reason(), self.output.code(), status) {
            (Some(Leftover { pid, fate, .. }), ..) => {
                let why = if *fate == Fate::NotPermitted { "not permitted" } else { "SIGKILL had no effect" };
                format!("{program} could not be killed ({why}) and still runs as process {pid}")
            }
            (_, Some(reason), ..) => format!("{program} {reason}"),
            (.., Some(code), _) => format!("{program} exited with code {code}"),
            (.., None, Some(status)) => {
                // std formats the status as "signal: 9 (SIGKILL)".
                let status = status.to_string();
                format!("{program} was killed by signal {}", status.strip_prefix("signal: ").unwrap_or(&status))
            }
            (.., None, None) => format!("{program} ended, and the status is lost: {}", self.why_lost()),
        }
    }

    /// Why the run stopped, and the program's exit status.
    fn detail(&self) -> String {
        let status = self.output.status.map_or_else(|| "no status".to_owned(), |status| status.to_string());
        format!("{}, {status}", self.output.stop)
    }
}

impl From<ExitError> for Error {
    /// The message says how the program ended, without its standard error.
    fn from(error: ExitError) -> Error {
        Error::of_run(error)
    }
}

impl Error {
    /// The run that was not ok, if this error was made from an [`ExitError`].
    pub fn exit(&self) -> Option<&ExitError> {
        let run: &dyn Any = self.run_error()?;
        run.downcast_ref()
    }
}

impl fmt::Display for ExitError {
    /// Prints the program's name and how the program ended, then the last lines of standard error. A single line
    /// follows a colon; several lines follow on lines of their own. If bytes are omitted between these lines, the
    /// marker line stands there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        let [head, marker, tail] = self.output.cut(Stream::Stderr).texts(&self.output.stderr);
        let after = last_lines(&tail, SHOWN_LINES);
        let mut lines = last_lines(&head, SHOWN_LINES - after.len());
        if !lines.is_empty() {
            lines.extend(marker.lines().filter(|line| !line.is_empty()));
        }
        lines.extend(after);
        match lines[..] {
            [] => Ok(()),
            [line] => write!(f, ": {line}"),
            ref last => {
                write!(f, "; the last lines of its standard error:")?;
                last.iter().try_for_each(|line| write!(f, "\n  {line}"))
            }
        }
    }
}

impl fmt::Debug for ExitError {
    /// Prints what Display prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for ExitError {
    /// Whether both errors are clones of one error.
    fn eq(&self, other: &ExitError) -> bool {
        Arc::ptr_eq(&self.output, &other.output)
    }
}

impl Eq for ExitError {}

impl std::error::Error for ExitError {}

/// Returns at most `max` lines from the end of the text, without blank lines at its end.
fn last_lines(text: &str, max: usize) -> Vec<&str> {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(max)..].to_vec()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    use super::super::output::tests::{MARKER, combined};
    use super::super::{Limit, Stop};
    use super::*;
    use crate::error::{Errno, ErrorKind, Stage};
    use crate::job::limits::{Enforcer, Resource};
    use crate::option::Value;

    fn shows(change: impl FnOnce(&mut Output)) -> String {
        let mut output = Output { program: "rg".into(), ..Output::default() };
        change(&mut output);
        output.check().expect_err("not ok").to_string()
    }

    #[test]
    fn exit_error_says_how_the_program_ended() {
        let status = |raw| Some(ExitStatus::from_raw(raw));
        assert_eq!(shows(|output| output.status = status(3 << 8)), "rg exited with code 3");
        assert_eq!(shows(|output| output.status = status(9)), "rg was killed by signal 9 (SIGKILL)");
        let timeout = shows(|output| {
            (output.stop, output.bound) = (Stop::Timeout, Value::Duration(Duration::from_millis(200)));
        });
        assert_eq!(timeout, "rg timed out after 0.2 s");
        let limit = Limit { resource: Resource::Memory, by: Enforcer::Cgroup };
        let reached = shows(|output| (output.stop, output.limit) = (Stop::Limit, Some(limit)));
        assert_eq!(reached, "rg reached its memory limit (cgroup)");
        let exceeded = shows(|output| {
            (output.stop, output.bound) = (Stop::OutputLimit, Value::Integer(900));
        });
        assert_eq!(exceeded, "rg exceeded its output limit of 900 bytes");
        let lost = shows(|output| output.status_lost = true);
        assert_eq!(lost, "rg ended, and the status is lost: other code of this process has taken it");
    }

    #[test]
    fn exit_error_shows_the_last_lines_of_standard_error() {
        let shows = |stderr: &str| {
            shows(|output| (output.status, output.stderr) = (Some(ExitStatus::from_raw(1 << 8)), stderr.into()))
        };
        assert_eq!(shows("one\n\n"), "rg exited with code 1: one");
        let last = shows("1\n2\n3\n4\n5\n6\n");
        assert_eq!(last, "rg exited with code 1; the last lines of its standard error:\n  2\n  3\n  4\n  5\n  6");
    }

    #[test]
    fn exit_error_does_not_count_the_marker_as_a_line() {
        let shows = |keep, marker| {
            let stderr: String = (1..=99).map(|number| format!("{number}\n")).collect();
            let output = combined([(Stream::Stderr, stderr.as_bytes())], keep, marker);
            let output = Output { program: "rg".into(), status: Some(ExitStatus::from_raw(1 << 8)), ..output };
            let error = output.check().expect_err("not ok");
            error.to_string().replace("\n  ", "|")
        };
        let lines = "rg exited with code 1; the last lines of its standard error:";
        assert_eq!(shows((4, 15), Some(MARKER)), format!("{lines}|95|96|97|98|99"));
        assert_eq!(shows((4, 6), Some(MARKER)), format!("{lines}|1|2|[… 278 bytes omitted …]|98|99"));
        assert_eq!(shows((4, 6), None), format!("{lines}|1|2|98|99"));
        assert_eq!(shows((4, 0), Some(MARKER)), format!("{lines}|1|2|[… 284 bytes omitted …]"));
        assert_eq!(shows((0, 3), Some(MARKER)), "rg exited with code 1: 99");
        assert_eq!(shows((0, 0), Some(MARKER)), "rg exited with code 1");
    }

    #[test]
    fn an_exit_error_converts_to_an_error_and_back() {
        fn checked(output: &Output) -> crate::Result<&Output> {
            Ok(output.check()?)
        }
        let status = Some(ExitStatus::from_raw(3 << 8));
        let mut output = Output { status, stderr: b"no such file\n".to_vec(), ..Output::default() };
        let exit = output.check().expect_err("exit code 3");
        let error = checked(&output).expect_err("exit code 3");
        assert_eq!((error.stage(), error.stage().name(), error.kind()), (Stage::Exit, "exit", ErrorKind::Exit));
        assert_eq!((error.errno(), error.call(), error.action()), (Errno::EIO, "", None));
        assert_eq!((error.to_string(), format!("{error:?}")), (exit.to_string(), exit.to_string()));
        assert!(error.to_string().ends_with(" exited with code 3: no such file"), "{error}");
        assert!(error.message().ends_with(" exited with code 3"), "{}", error.message());
        assert_eq!(error.detail(), "exit: exited, exit status: 3");
        assert_eq!(error.exit().expect("made from an ExitError").output.code(), Some(3));
        assert_eq!(error.clone(), error);
        assert_eq!(Error::new(Stage::Exec, Errno::ENOENT, "").exit(), None);
        output.status = Some(ExitStatus::from_raw(0));
        assert_eq!(checked(&output).expect("ok").code(), Some(0));
        let converted = std::io::Error::from(error.clone());
        assert_eq!((converted.kind(), converted.to_string()), (std::io::ErrorKind::Other, error.to_string()));
    }

    #[test]
    fn the_detail_of_an_exit_error_names_the_stop_and_the_status() {
        let mut output = Output::default();
        (output.stop, output.status) = (Stop::Timeout, Some(ExitStatus::from_raw(15)));
        let detail = |output: &Output| Error::from(output.check().expect_err("a timeout")).detail();
        assert_eq!(detail(&output), "exit: timeout, signal: 15 (SIGTERM)");
        output.status = None;
        assert_eq!(detail(&output), "exit: timeout, no status");
    }

    #[test]
    fn check_returns_the_output_of_a_successful_run() {
        let output = Output { status: Some(ExitStatus::from_raw(0)), ..Output::default() };
        assert!(std::ptr::eq(output.check().expect("ok"), &output));
    }

    #[test]
    fn check_leaves_the_output_of_a_failed_run_usable() {
        let output =
            Output { stderr: b"why".to_vec(), ..combined([(Stream::Stdout, &b"0123456789"[..])], (3, 2), None) };
        let error = output.check().expect_err("no status");
        assert_eq!(
            (error.output.stdout_text(), error.output.stderr_text()),
            (output.stdout_text(), output.stderr_text())
        );
        assert_eq!(error.output.omitted(Stream::Stdout), output.omitted(Stream::Stdout));
    }

    #[test]
    fn clones_of_an_exit_error_share_the_output() {
        fn assert_error<T: std::error::Error + Clone + Send + Sync + 'static>(_: &T) {}
        let error = Output::default().check().expect_err("no status").clone();
        assert_error(&error);
        assert!(Arc::ptr_eq(&error.output, &error.clone().output));
        assert_eq!(error, error.clone());
        assert_ne!(error, Output::default().check().expect_err("no status"));
    }

    #[test]
    fn debug_of_an_exit_error_reads_like_its_display() {
        let output = Output { program: "rg".into(), status: Some(ExitStatus::from_raw(2 << 8)), ..Output::default() };
        let error = output.check().expect_err("code 2");
        assert_eq!((format!("{error:?}"), error.to_string()), (error.to_string(), "rg exited with code 2".to_owned()));
    }
}
