// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error of a run that was not ok.

use std::any::Any;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use super::{Fate, Leftover, Output, Stream};
use crate::child::Started;
use crate::command::names::signal_name;
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

/// The maximum number of lines, and of bytes, of the output in an error.
const SHOWN_LINES: usize = 10;
const SHOWN_BYTES: usize = 2048;

impl Output {
    /// Returns the output if the run was [`ok`](Output::ok), and otherwise an error with a copy of the output.
    ///
    /// The error converts to [`Error`](crate::Error), so `?` works in a function that returns
    /// [`spawnfd::Result`](crate::Result).
    ///
    /// # Errors
    /// [`ExitError`]: the run was not ok.
    pub fn check(&self) -> Result<&Output, ExitError> {
        if self.ok() { Ok(self) } else { Err(ExitError { output: Arc::new(self.clone()) }) }
    }

    /// Returns the message of the Python package's ExitError: the arguments, how the run ended, and the last lines of
    /// standard error. If the run merged standard error into standard output, they are the last lines of the latter.
    #[doc(hidden)]
    pub fn exit_message(&self, args: &str, stderr_merged: bool) -> String {
        let (stream, name) = if stderr_merged { (Stream::Stdout, "output") } else { (Stream::Stderr, "stderr") };
        let (lines, is_cut) = self.last_lines(stream);
        let of = if is_cut { "last lines of " } else { "" };
        let end = self.end("other code reaped the program, or SIGCHLD is ignored");
        match &lines[..] {
            [] => format!("{args} {end}"),
            [line] => format!("{args} {end}; {of}{name}: {line}"),
            lines => format!("{args} {end}; {of}{name}:\n{}", lines.join("\n")),
        }
    }

    /// How an unsuccessful run ended, as a phrase that continues the program's name. `taken` says why the status of a
    /// child is lost.
    fn end(&self, taken: &str) -> String {
        let why = |left: &Leftover| match left.fate {
            Fate::NotPermitted => "not permitted",
            _ => "SIGKILL had no effect",
        };
        match (self.reason(), self.status.map(end_of), self.unkilled_program()) {
            (Some(reason), Some(status), _) => format!("{reason} and {status}"),
            (None, Some(status), _) => status,
            (reason, None, Some(left)) => {
                let reason = reason.map(|reason| reason + ", ").unwrap_or_default();
                format!("{reason}could not be killed ({}) and still runs as process {}", why(left), left.pid)
            }
            (Some(reason), ..) => reason,
            (None, ..) => format!("ended, and the status is lost: {}", self.why_lost(taken)),
        }
    }

    /// Why the status of the program, or of a session's command, is lost.
    fn why_lost(&self, taken: &str) -> String {
        match self.shell_status {
            _ if self.started != Started::Session => taken.to_owned(),
            Some(status) => format!("the session's shell {}", end_of(status)),
            None if self.shell_exited => "the session's shell exited".to_owned(),
            None => "the session's shell has not proved that it ran the command to its end".to_owned(),
        }
    }

    /// Returns the last lines of a stream, and whether the program wrote more lines to it. If bytes are omitted between
    /// these lines, the marker line stands there.
    fn last_lines(&self, stream: Stream) -> (Vec<String>, bool) {
        let [head, marker, tail] = self.cut(stream).texts(self.kept(stream));
        let (after, is_cut) = last_lines(&tail, SHOWN_LINES, SHOWN_BYTES);
        if is_cut {
            return (after, true);
        }
        let bytes = SHOWN_BYTES.saturating_sub(tail.trim_end().len());
        let (mut lines, is_cut) = last_lines(&head, SHOWN_LINES - after.len(), bytes);
        if !lines.is_empty() {
            lines.extend(marker.lines().filter(|line| !line.is_empty()).map(str::to_owned));
        }
        lines.extend(after);
        (lines, is_cut || self.omitted(stream).bytes > 0)
    }
}

/// How a process with this status ended, as a phrase that continues its name.
fn end_of(status: ExitStatus) -> String {
    match (status.code(), status.signal().map(signal_name)) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(number)) if number.parse::<i32>().is_ok() => format!("was killed by signal {number}"),
        (None, name) => format!("was killed by SIG{}", name.unwrap_or_default()),
    }
}

impl RunError for ExitError {
    /// The program's name and how the program ended, in one sentence.
    fn message(&self) -> String {
        let end = self.output.end("other code of this process has taken it");
        format!("{} {end}", shown(&self.output.program))
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
        let (lines, _) = self.output.last_lines(Stream::Stderr);
        f.write_str(&self.message())?;
        match &lines[..] {
            [] => Ok(()),
            [line] => write!(f, ": {line}"),
            lines => write!(f, "; the last lines of its standard error:\n  {}", lines.join("\n  ")),
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

/// Returns the last lines of a text, and whether there are more. Blank lines at the end do not count.
fn last_lines(text: &str, max_lines: usize, max_bytes: usize) -> (Vec<String>, bool) {
    let text = text.trim_end();
    let start = (text.len().saturating_sub(max_bytes)..).find(|&at| text.is_char_boundary(at)).unwrap_or_default();
    let (before, mut text) = text.split_at(start);
    let mut prefix = "";
    if !before.is_empty() && !before.ends_with('\n') {
        // The first line is incomplete: drop it, unless it is the only one.
        match text.split_once('\n') {
            Some((_, rest)) => text = rest,
            None => prefix = "...",
        }
    }
    if text.is_empty() {
        return (Vec::new(), !before.is_empty());
    }
    let text = format!("{prefix}{text}");
    // A progress bar overwrites its line by carriage returns: keep the last text of such a line.
    let last = |line: &str| line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default().to_owned();
    let lines: Vec<String> = text.split('\n').map(last).collect();
    let surplus = lines.len().saturating_sub(max_lines);
    (lines[surplus..].to_vec(), surplus > 0 || !before.is_empty())
}

#[cfg(test)]
mod tests {
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
        assert_eq!(shows(|output| output.status = status(3 << 8)), "rg exited with status 3");
        assert_eq!(shows(|output| output.status = status(9)), "rg was killed by SIGKILL");
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
        assert_eq!(shows("one\n\n"), "rg exited with status 1: one");
        let last = shows("1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n");
        let lines = "3\n  4\n  5\n  6\n  7\n  8\n  9\n  10\n  11\n  12";
        assert_eq!(last, format!("rg exited with status 1; the last lines of its standard error:\n  {lines}"));
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
        let lines = "rg exited with status 1; the last lines of its standard error:";
        assert_eq!(shows((4, 30), Some(MARKER)), format!("{lines}|90|91|92|93|94|95|96|97|98|99"));
        assert_eq!(shows((4, 6), Some(MARKER)), format!("{lines}|1|2|[… 278 bytes omitted …]|98|99"));
        assert_eq!(shows((4, 6), None), format!("{lines}|1|2|98|99"));
        assert_eq!(shows((4, 0), Some(MARKER)), format!("{lines}|1|2|[… 284 bytes omitted …]"));
        assert_eq!(shows((0, 3), Some(MARKER)), "rg exited with status 1: 99");
        assert_eq!(shows((0, 0), Some(MARKER)), "rg exited with status 1");
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
        assert!(error.to_string().ends_with(" exited with status 3: no such file"), "{error}");
        assert!(error.message().ends_with(" exited with status 3"), "{}", error.message());
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
        assert_eq!(
            (format!("{error:?}"), error.to_string()),
            (error.to_string(), "rg exited with status 2".to_owned())
        );
    }
}
