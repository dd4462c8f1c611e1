// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files through which the library gives commands to a session's shell, and the text that the shell runs.
//!
//! No descriptor of the shell belongs to this channel while a program of a command runs. The shell opens each file by its
//! path in `/proc/OWNER/fd`, or in `/proc/HELPER/fd` of a sandbox's helper, and closes it before the command's text.
//!
//! - `lines` is the shell's standard input. Each line sources `boot`, and the shell reads a further line only after an
//!   interrupt or a number of commands. Because the lines are all alike, it does not matter which of them a hook reads.
//! - `boot` repeats a line: it sources `report`, reads a byte from the pipe `wake`, and sources `step`.
//! - `step` has the text of one command with its streams; `code` sets `$?` and the options for it.
//! - `report` writes the status of a command to the pipe `status`.
//!
//! While the shell waits, its standard streams are `/dev/null`. So a trap that runs then reads end-of-file.
//!
//! A status counts only if the shell has proved three things by a random number that occurs in this command's `step` and
//! `report` alone: it has run `step`, and not through a function of the user (record `B`); it has executed the text's own
//! `eval`, one of whose redirections empties `step` (for some statuses, record `V` too); and it has run `report` after that
//! (records `C` and `E`). Because the `eval` empties `step`, no text runs twice.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, OFlags, SeekFrom, fcntl_setfl, memfd_create, seek};
use rustix::io::{Errno as IoErrno, ioctl_fionread, pwrite};
use rustix::process::{Resource, getrlimit};
use spawnfd_guard::broker::FILES_VARIABLE;
use spawnfd_sys::call;

use super::report::Number;
use crate::error::{Errno, Error, Result, Stage, errno, from_io};

/// The size of the shell's standard input, unless this process has a smaller limit of file sizes. bash reads 1024 bytes
/// at once, and dash 8192. If the shell has read a part and is interrupted before it reads the file again, it goes on with
/// the next part.
const LINES_SIZE: usize = 64 << 10;

/// How many commands the shell runs for one line of its standard input.
const COMMANDS_A_LINE: usize = 128;

/// The words before a command of the shell's own, in a shell of either language. An expansion is no alias.
const OWN_OF_EITHER: &str = "${BASH_VERSION:+builtin} command";

/// The words that change the shell's own streams. After `builtin exec`, bash restores the streams. A function of the user
/// may take the place of `command`: then the shell cannot repair its streams.
const EXEC: &str = "\\command exec";

/// The path by which the shell sources `step`. A user sees it in messages, and as `${BASH_SOURCE[0]}`.
const STEP_PATH: &str = "/proc/self/fd/0";

/// The descriptor of bash during its read from the pipe `wake`. dash reads from standard input.
const WAKE_NUMBER: RawFd = 9;

/// The language of a shell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dialect {
    Bash,
    Dash,
}

impl Dialect {
    /// The word that makes the shell use its own command, not a function of the user. The backslash prevents an alias.
    /// After `command`, bash would run a DEBUG trap with the redirections of the command.
    fn own(self) -> &'static str {
        match self {
            Dialect::Bash => "\\builtin",
            Dialect::Dash => "\\command",
        }
    }
}

/// The last line of a file that the library may replace before the shell has left it. Without this line, dash would read
/// what follows in the new contents.
fn last_line(own: &str) -> String {
    format!("{own} return\n")
}

/// The text of one command, and what holds for it alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    /// The commands.
    pub(crate) text: &'a [u8],
    /// The directory in which the text runs. Afterwards the shell returns to `directory`.
    pub(crate) cwd: Option<&'a Path>,
    /// Variables that the text finds in its environment.
    pub(crate) env: &'a [(String, Vec<u8>)],
    /// The working directory of the shell before a command that has its own.
    pub(crate) directory: Option<&'a Path>,
}

/// State that the shell restores before it runs the next text.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    /// The value of `$?`.
    pub(crate) code: u8,
    /// `set -x` and `set -v`.
    pub(crate) traces: bool,
    pub(crate) is_verbose: bool,
    /// Variables that the shell has not had so far.
    pub(crate) exported: Vec<(String, Vec<u8>)>,
}

/// The streams of one command, as descriptors of this process.
#[derive(Debug)]
pub(super) struct Streams {
    /// `None`: /dev/null.
    pub(super) stdin: Option<RawFd>,
    pub(super) stdout: RawFd,
    /// `None`: the same as standard output.
    pub(super) stderr: Option<RawFd>,
    /// Whether `stdout` is a terminal, which the shell opens for reading and writing.
    pub(super) is_terminal: bool,
    /// A program that makes the shell's process group the foreground group of the terminal.
    pub(super) foreground: Option<RawFd>,
}

/// The state of the shell after the command that it has completed last.
#[derive(Clone, Debug)]
pub(crate) struct Completed {
    /// The working directory of the shell.
    pub(crate) cwd: PathBuf,
    /// The commands that set the exported variables and the umask, if the shell reports them.
    pub(crate) variables: Option<Vec<u8>>,
}

/// The paths by which the shell opens the library's files.
#[derive(Clone, Debug, Default)]
pub(super) struct Paths {
    /// The directory of the process that has the files, as a word of the shell.
    directory: String,
    /// For each descriptor its number in the helper, if there is one.
    held: Vec<(RawFd, RawFd)>,
}

impl Paths {
    /// The paths of this process's own descriptors.
    pub(super) fn own() -> Paths {
        Paths { directory: format!("/proc/{}/fd/", std::process::id()), held: Vec::new() }
    }

    /// The paths of descriptors that a helper holds. `None`: its pid is not known yet, so the shell uses a variable.
    pub(super) fn of_helper(pid: Option<i32>, held: Vec<(RawFd, RawFd)>) -> Paths {
        let directory = match pid {
            Some(pid) => format!("/proc/{pid}/fd/"),
            None => format!("\"${{{FILES_VARIABLE}:?}}\""),
        };
        Paths { directory, held }
    }

    /// Adds the descriptors of a command.
    pub(super) fn with(mut self, held: impl IntoIterator<Item = (RawFd, RawFd)>) -> Paths {
        self.held.extend(held);
        self
    }

    /// Whether the paths name a process.
    fn is_final(&self) -> bool {
        self.directory.starts_with('/')
    }

    fn of(&self, fd: RawFd) -> String {
        let number = self.held.iter().rev().find(|(own, _)| *own == fd).map_or(fd, |(_, held)| *held);
        format!("{}{number}", self.directory)
    }
}

/// The files of one shell.
#[derive(Debug)]
pub(super) struct Channel {
    lines: File,
    boot: File,
    step: File,
    code: File,
    report: File,
    wake: (PipeReader, PipeWriter),
    status: (PipeReader, PipeWriter),
    /// Whether the shell reports its exported variables after each command.
    reports_variables: bool,
}

impl Channel {
    pub(super) fn new(reports_variables: bool) -> Result<Channel> {
        let channel = Channel {
            lines: memory_file()?,
            boot: memory_file()?,
            step: memory_file()?,
            code: memory_file()?,
            report: memory_file()?,
            wake: new_pipe()?,
            status: new_pipe()?,
            reports_variables,
        };
        for end in [channel.status.0.as_fd(), channel.wake.1.as_fd()] {
            fcntl_setfl(end, OFlags::NONBLOCK).map_err(|e| failed(errno(e), "fcntl(F_SETFL, O_NONBLOCK)"))?;
        }
        Ok(channel)
    }

    /// The shell's standard input.
    pub(super) fn lines(&self) -> BorrowedFd<'_> {
        self.lines.as_fd()
    }

    /// The files that the shell opens by their paths, with the status pipe first.
    pub(super) fn files(&self) -> [BorrowedFd<'_>; 7] {
        let (wake, status) = (self.wake.0.as_fd(), self.status.1.as_fd());
        let [lines, boot, step, code, report] =
            [&self.lines, &self.boot, &self.step, &self.code, &self.report].map(AsFd::as_fd);
        [status, wake, lines, boot, step, code, report]
    }

    /// The end of the status pipe from which the library reads.
    pub(super) fn status(&self) -> Result<OwnedFd> {
        // Each command has an open file of its own, which leaves an epoll set when the command closes it.
        let path = format!("/proc/self/fd/{}", self.status.0.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, rustix::fs::Mode::empty())
            .map_err(|e| failed(errno(e), "openat(/proc/self/fd/N)"))
    }

    /// Prepares the start of a shell, which runs `report` first and reports its version in place of the directory.
    pub(super) fn prepare_start(&self, paths: &Paths, number: Number, restored: Option<&Completed>) -> Result<()> {
        let own = OWN_OF_EITHER;
        let [status, wake, step, report] =
            [self.status.1.as_fd(), self.wake.0.as_fd(), self.step.as_fd(), self.report.as_fd()]
                .map(|file| paths.of(file.as_raw_fd()));
        let mut state = Vec::new();
        if let Some(Completed { cwd, variables }) = restored {
            if let Some(variables) = variables {
                // Startup files may have exported more.
                let exported = format!(
                    "case ${{BASH_VERSION-}} in ?*) {own} export -n {FILES_VARIABLE}; {own} unset -v $({own} compgen -e);; esac\n"
                );
                state.extend(exported.bytes());
                state.extend(variables);
            }
            state.extend(format!("\n{own} cd -- ").bytes());
            state.extend(quoted(cwd.as_os_str().as_bytes()));
            state.push(b'\n');
        }
        replace(&self.step, &state)?;
        // A shell with a terminal has job control. It would make each command a foreground process group, and background
        // jobs would not ignore SIGINT.
        //
        // The shell reads its next line once the library knows the dialect, and has replaced `boot`.
        let report_text = format!(
            "{EXEC} >/dev/null 2>&1\n{own} set +m\n{own} . {step}\n\
             {own} printf '\\0B{number}sure\\0\\0C{number} %s =%s\\0\\0E{number}\\0' \"$?\" \"${{BASH_VERSION-}}\" \
             >{status}\n{own} read -r _ <{wake}\n{own} unset -v {FILES_VARIABLE}\n{}",
            last_line(own)
        );
        replace(&self.report, report_text.as_bytes())?;
        replace(&self.boot, format!("{own} . {report}\n{}", last_line(own)).as_bytes())?;
        self.replace_lines(paths, None)
    }

    /// Gives the shell the lines that run commands. `started_by` are the paths with which the shell has started.
    pub(super) fn complete_start(&self, started_by: &Paths, paths: &Paths, dialect: Dialect) -> Result<()> {
        let own = dialect.own();
        let [report, wake, status, step] =
            [self.report.as_fd(), self.wake.0.as_fd(), self.status.1.as_fd(), self.step.as_fd()]
                .map(|file| paths.of(file.as_raw_fd()));
        let (report, read) = match dialect {
            Dialect::Bash => {
                (format!("{own} . {report} \"$?\" \"$-\""), format!("read -r -u {WAKE_NUMBER} _ {WAKE_NUMBER}<{wake}"))
            }
            Dialect::Dash => (format!("\\: \"$?\";{own} . {report}"), format!("read -r _ <{wake}")),
        };
        // No loop: a `break` in a command's text would end it. No reserved word in bash: an alias could replace it.
        let turn = format!("{report};{own} {read}&&{own} . {STEP_PATH} <{step}\n");
        // The last report comes before a prompt.
        let (first, last) = (format!("{own} printf '\\0L\\0' >{status}\n"), format!("{report}\n"));
        let turns = COMMANDS_A_LINE.min(fitting(turn.len(), first.len() + last.len()));
        replace(&self.report, b"")?;
        replace(&self.boot, (first + &turn.repeat(turns) + &last).as_bytes())?;
        if dialect == Dialect::Dash || !started_by.is_final() {
            self.replace_lines(paths, Some(dialect))?;
            self.rewind()?;
        }
        self.wake()
    }

    /// Writes the lines of the shell's standard input, or one line if the paths will change. Each line lets the shell read
    /// the file from its beginning again, because dash discards what it has read after an interrupt.
    fn replace_lines(&self, paths: &Paths, dialect: Option<Dialect>) -> Result<()> {
        let own = dialect.map_or(OWN_OF_EITHER, Dialect::own);
        let [lines, boot, report] = [&self.lines, &self.boot, &self.report].map(|file| paths.of(file.as_raw_fd()));
        let boot = format!("{own} . {boot} </dev/null");
        let contents = if paths.is_final() {
            let code = match dialect {
                // The expansion of a prompt may have failed and changed `$?` to 2.
                Some(Dialect::Dash) => r#"case "$? ${PS1-}" in "2 "*[\$\`]*) \: unknown;; *) \: "$?";; esac;"#,
                // dash runs no command with the lines for either shell, and has reported the last one.
                Some(Dialect::Bash) | None => "",
            };
            // If the shell cannot run its own commands, it reads the lines to their end and exits.
            let read_again = format!("{own} eval '{EXEC} <{lines}'");
            let again = format!("{code}{own} . {report} \"$?\" \"$-\" </dev/null;{read_again};{boot}");
            // Neither shell reads a part of a line, because the length of a line divides the number of bytes.
            let length = (again.len() + 1).next_power_of_two();
            format!("{again:width$}\n", width = length - 1).repeat((LINES_SIZE / length).min(fitting(length, 0)))
        } else {
            format!("{boot}\n")
        };
        replace(&self.lines, contents.as_bytes())
    }

    /// Lets the shell read the lines again. Shell and library share the file's position.
    fn rewind(&self) -> Result<()> {
        seek(&self.lines, SeekFrom::Start(0)).map(drop).map_err(|e| failed(errno(e), "lseek(memfd)"))
    }

    /// Prepares a command. The shell runs it after [`wake`](Channel::wake).
    pub(super) fn prepare(
        &self,
        paths: &Paths,
        (dialect, options, number): (Dialect, &Options, Number),
        streams: &Streams,
        text: &Text<'_>,
    ) -> Result<()> {
        let own = dialect.own();
        replace(&self.report, &self.report_text(paths, dialect, number, text))?;
        let (step, code) = step_text(
            [self.status.1.as_fd(), self.code.as_fd(), self.step.as_fd()].map(|file| paths.of(file.as_raw_fd())),
            (dialect, options, number),
            (paths, streams),
            text,
        );
        if let Some(code) = code {
            replace(&self.code, &[&code[..], format!("{own} return {}\n", options.code).as_bytes()].concat())?;
        }
        replace(&self.step, &step)
    }

    /// The commands that report the status of a command.
    fn report_text(&self, paths: &Paths, dialect: Dialect, number: Number, text: &Text<'_>) -> Vec<u8> {
        let own = dialect.own();
        let status = paths.of(self.status.1.as_raw_fd());
        let returns_to = text.cwd.and(text.directory);
        let ends_later = self.reports_variables || returns_to.is_some();
        let slash = if dialect == Dialect::Bash { r"\" } else { r"\\" };
        let end = if ends_later { String::new() } else { format!("{slash}0{slash}0E{number}") };
        let hide = format!("{own} set +xv\n");
        let mut report = match dialect {
            // A trace may go to a file of the user, so it ends before a line has the number. A DEBUG trap writes to the
            // redirection of a group, so there is none.
            //
            // If the user has disabled `eval`, the step's `eval` has failed in one of these two ways. Of the forms of a
            // condition, an alias can replace all others.
            Dialect::Bash => format!(
                r#"{hide}(($1==1||$1==127))&&{own} eval '{own} printf "\0V{number}\0" >{status}'
{own} times >{status}
{own} printf '\0C{number} %s %s=%s{end}\0' "$1" "$2" "${{PWD-}}" >{status}
"#,
            ),
            // `$_` is the last argument of the previous command, and `$-` changes with `set`.
            Dialect::Dash => format!(
                r#"{own} eval "\{own} times;\{own} printf '\\0C{number} %s %s=%s{end}\\0' $_ $- \"\${{PWD-}}\"" >{status}
{hide}"#,
            ),
        }
        .into_bytes();
        report.extend(format!("{EXEC} <>/dev/null >&0 2>&0\n").bytes());
        if self.reports_variables {
            report.extend(format!("{own} export -p >{status}\n{own} umask >{status}\n").bytes());
        }
        let end = format!("{own} printf '\\0E{number}\\0' >{status}\n");
        if let Some(directory) = returns_to {
            report.extend(format!("{own} cd -- ").bytes());
            report.extend(quoted(directory.as_os_str().as_bytes()));
            // A later command must not run elsewhere.
            report.extend(format!("||{own} eval ").bytes());
            report.extend(quoted(format!("{end}{own} exit").as_bytes()));
            report.push(b'\n');
        }
        if ends_later {
            report.extend(end.bytes());
        }
        report.extend(last_line(own).bytes());
        report
    }

    /// Prepares the end of the shell. The shell runs its EXIT trap.
    pub(super) fn prepare_exit(&self) -> Result<()> {
        replace(&self.step, format!("{OWN_OF_EITHER} exit\n").as_bytes())
    }

    /// Makes the shell run the text in `step`.
    pub(super) fn wake(&self) -> Result<()> {
        match call::write_without_signal(self.wake.1.as_raw_fd(), b"\n") {
            // A program of the same user can fill the pipe, and the shell does not wait then.
            Ok(_) | Err(Errno::EAGAIN) => Ok(()),
            Err(errno) => Err(failed(errno, "write(wake)")),
        }
    }

    /// Whether the shell has read the byte of the last [`wake`](Channel::wake).
    pub(super) fn is_awake(&self) -> bool {
        ioctl_fionread(&self.wake.0).is_ok_and(|length| length == 0)
    }

    /// Forgets a text that the shell has not run, so that a late byte in `wake` does not make the shell run it.
    pub(super) fn forget_text(&self) {
        let _ = replace(&self.step, b"");
    }

    /// Whether the shell has executed the `eval` of the prepared text.
    pub(super) fn has_begun(&self) -> bool {
        self.step.metadata().is_ok_and(|metadata| metadata.len() == 0)
    }

    /// Whether the shell waits for a command: it has the pipe `wake` open.
    pub(super) fn is_awaited_by(&self, shell: i32, dialect: Dialect) -> bool {
        let number = if dialect == Dialect::Bash { WAKE_NUMBER } else { 0 };
        let own = std::fs::read_link(format!("/proc/self/fd/{}", self.wake.0.as_raw_fd()));
        let opened = std::fs::read_link(format!("/proc/{shell}/fd/{number}"));
        matches!((own, opened), (Ok(own), Ok(opened)) if own == opened)
    }
}

/// The text of `step`, and that of `code` before its last line if the shell sources it.
fn step_text(
    [status, code_path, step_path]: [String; 3],
    (dialect, options, number): (Dialect, &Options, Number),
    (paths, streams): (&Paths, &Streams),
    text: &Text<'_>,
) -> (Vec<u8>, Option<Vec<u8>>) {
    let own = dialect.own();
    let stdout = paths.of(streams.stdout);
    let stderr = streams.stderr.map(|fd| paths.of(fd));
    // All in one line: `$LINENO` of the text's first line is then 1.
    let mut step = match dialect {
        // FUNCNAME is not set while no function runs, or has only the names `source` after an interrupt.
        Dialect::Bash => format!("{own} printf '\\0B{number}%s\\0' \"${{FUNCNAME[1]-source}}\" >{status};"),
        // A function named `command` has the path as an argument. A shell that is no longer interactive does not set `$_`,
        // which the report needs.
        Dialect::Dash => format!(
            r#"\: sure;case "$*" in *{STEP_PATH}*) {own} printf '\0B{number}function\0';; *) {own} printf '\0B{number}%s\0' "$_";; esac >{status};"#
        ),
    }
    .into_bytes();
    if let Some(helper) = streams.foreground {
        // The list has the status 0, in case of `set -e`.
        step.extend(format!("{} foreground <{stdout}||{own} :;", paths.of(helper)).bytes());
    }
    if let Some(directory) = text.cwd {
        // `./`: no search in CDPATH, and no special meaning of `-`.
        let start = if directory.is_absolute() { "" } else { "./" };
        step.extend(format!("{own} cd -- {start}").bytes());
        step.extend(quoted(directory.as_os_str().as_bytes()));
        let stderr = stderr.as_ref().unwrap_or(&stdout);
        step.extend(format!(" >/dev/null 2>{stderr}||{own} eval '{own} return $?' 2>|{step_path};").bytes());
    }
    let code = (*options != Options::default()).then(|| {
        let join = if options.code == 0 { ";" } else { "||" };
        step.extend(format!("{own} . {code_path} {join}").bytes());
        let mut code = Vec::new();
        for (name, value) in &options.exported {
            code.extend([format!("{own} export {name}=").as_bytes(), &quoted(value), b"\n"].concat());
        }
        for option in [options.is_verbose.then_some("v"), options.traces.then_some("x")].into_iter().flatten() {
            code.extend(format!("{own} set -{option}\n").bytes());
        }
        code
    });
    for (name, value) in text.env {
        step.extend([name.as_bytes(), b"=", &quoted(value), b" "].concat());
    }
    // bash would not pass the variables on through `builtin eval`.
    let command = if dialect == Dialect::Bash && !text.env.is_empty() { " command" } else { "" };
    step.extend(format!("{own}{command} eval ").bytes());
    if dialect == Dialect::Bash {
        step.extend(b"-- ");
    }
    step.extend(quoted(text.text));
    let stdin = streams.stdin.map_or_else(|| "/dev/null".to_owned(), |fd| paths.of(fd));
    let opened = if streams.is_terminal { "1<>" } else { ">" };
    let stderr = stderr.unwrap_or_else(|| "&1".to_owned());
    // If the shell cannot open a stream, `step` does not become empty: the shell stops before it opens `step`, or writes
    // its message there. `2>&1` makes dash save its standard error before it opens `step`, because that can fail, too.
    step.extend(format!(" <{stdin} {opened}{stdout} 2>&1 2>|{step_path} 2>{stderr}\n").bytes());
    (step, code)
}

/// How many parts of this length a file can have besides `other` bytes. At least one, so that a write reports the error.
fn fitting(length: usize, other: usize) -> usize {
    let limit = getrlimit(Resource::Fsize).current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    (limit.saturating_sub(other) / length).max(1)
}

/// Replaces the contents of a file in memory. RLIMIT_FSIZE applies to such a file.
fn replace(file: &File, contents: &[u8]) -> Result<()> {
    let mut written = 0;
    let replaced = call::without_signal(|| {
        rustix::fs::ftruncate(file, 0).map_err(errno)?;
        while written < contents.len() {
            match pwrite(file, &contents[written..], written as u64) {
                Ok(length) => written += length,
                Err(IoErrno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(())
    });
    replaced.map_err(|errno| {
        let error = failed(errno, "pwrite64(memfd)");
        match errno {
            Errno::EFBIG => error.saying("the command is longer than this process's file size limit (RLIMIT_FSIZE)"),
            _ => error,
        }
    })
}

/// Creates a file in memory with these bytes.
pub(crate) fn file_with(contents: &[u8]) -> Result<File> {
    let file = memory_file()?;
    replace(&file, contents)?;
    Ok(file)
}

/// Creates an empty file in memory.
fn memory_file() -> Result<File> {
    let created = memfd_create("spawnfd-session", MemfdFlags::CLOEXEC);
    created.map(File::from).map_err(|e| failed(errno(e), "memfd_create(MFD_CLOEXEC)"))
}

pub(super) fn new_pipe() -> Result<(PipeReader, PipeWriter)> {
    pipe().map_err(|e| failed(from_io(&e), "pipe2(O_CLOEXEC)"))
}

fn failed(errno: Errno, call: &str) -> Error {
    Error::new(Stage::Capture, errno, call)
}

/// Quotes a word for a shell.
fn quoted(word: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = word.split(|byte| *byte == b'\'').collect();
    [b"'", &parts.join(&b"'\\''"[..])[..], b"'"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted() {
        assert_eq!(quoted(b"a'b\n\\ $c\xff"), b"'a'\\''b\n\\ $c\xff'");
    }
}
