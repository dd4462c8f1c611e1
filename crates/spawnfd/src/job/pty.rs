// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pseudoterminal for a run.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetwinsize, tcsetwinsize};
use spawnfd_child::Op;

use crate::command::{Command, Start, Stdio};
use crate::error::{Error, Result, Stage, errno};
use crate::host::descriptors::above_standard;

/// The end-of-input character of a terminal: ^D, unless the program has changed it.
pub(super) const END_OF_INPUT: u8 = 4;

/// A terminal's size in characters.
///
/// # Examples
/// ```
/// use spawnfd::job::TerminalSize;
/// use spawnfd::{Command, Run};
/// let run = Run::new().terminal(TerminalSize::new(24, 80));
/// assert_eq!(Command::new("stty").arg("size").run_with(&run)?.stdout_text().trim(), "24 80");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

impl TerminalSize {
    /// A size in characters.
    pub const fn new(rows: u16, columns: u16) -> TerminalSize {
        TerminalSize { rows, columns }
    }

    fn winsize(self) -> Winsize {
        Winsize { ws_row: self.rows, ws_col: self.columns, ws_xpixel: 0, ws_ypixel: 0 }
    }
}

impl Default for TerminalSize {
    /// 24 rows of 80 columns.
    fn default() -> TerminalSize {
        TerminalSize { rows: 24, columns: 80 }
    }
}

/// The library's end of a pseudoterminal. Reads return the program's output, and writes become the program's input.
/// Neither blocks.
///
/// The terminal converts the bytes: it turns `\n` in output into `\r\n` and echoes input, unless the program changes
/// that. A line of input has at most 4,095 bytes.
///
/// A clone shares the descriptor.
#[derive(Clone, Debug)]
pub struct Pty(Arc<SharedPty>);

#[derive(Debug)]
struct SharedPty {
    fd: OwnedFd,
    /// The size that this process has set last: rows and columns.
    size: AtomicU32,
}

/// The program's end of a pseudoterminal. Dropping the command that it is attached to closes it.
#[derive(Debug)]
pub struct Terminal(OwnedFd);

impl Pty {
    /// Creates a terminal. Both ends are close-on-exec, and neither becomes the controlling terminal of this process.
    ///
    /// # Errors
    /// ENOENT: there is no /dev/ptmx. EAGAIN: the system's limit of terminals is reached (/proc/sys/kernel/pty/max).
    /// EMFILE.
    ///
    /// # References
    /// TIOCGPTPEER, ioctl_tty(2), Linux 4.13: opens the program's end without a path. A path could lead to another
    /// devpts mount.
    #[doc(alias = "openpty")]
    pub fn open(size: TerminalSize) -> Result<(Pty, Terminal)> {
        let failed = |call: &'static str| move |e| Error::new(Stage::Capture, errno(e), call);
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).map(above_standard).map_err(failed("open(\"/dev/ptmx\")"))?;
        unlockpt(&ours).map_err(failed("ioctl(TIOCSPTLCK)"))?;
        let theirs = ioctl_tiocgptpeer(&ours, flags).map(above_standard).map_err(failed("ioctl(TIOCGPTPEER)"))?;
        fcntl_setfl(&ours, OFlags::RDWR | OFlags::NONBLOCK).map_err(failed("fcntl(F_SETFL, O_NONBLOCK)"))?;
        let pty = Pty(Arc::new(SharedPty { fd: ours, size: AtomicU32::new(0) }));
        pty.resize(size)?;
        Ok((pty, Terminal(theirs)))
    }

    /// Changes the size; the foreground process group gets SIGWINCH.
    ///
    /// # Errors
    /// No errors are known.
    #[doc(alias = "TIOCSWINSZ")]
    pub fn resize(&self, size: TerminalSize) -> Result<()> {
        self.0.size.store(u32::from(size.rows) << 16 | u32::from(size.columns), Ordering::Relaxed);
        tcsetwinsize(&self.0.fd, size.winsize()).map_err(|e| {
            let call = format!("ioctl(TIOCSWINSZ, {} x {})", size.rows, size.columns);
            Error::new(Stage::Capture, errno(e), call)
        })
    }

    /// Restores the size that this process has set last, if a program has changed it.
    pub(crate) fn restore_size(&self) -> Result<()> {
        let set = self.0.size.load(Ordering::Relaxed);
        let size = TerminalSize::new((set >> 16) as u16, set as u16);
        let is_changed =
            tcgetwinsize(&self.0.fd).is_ok_and(|now| (now.ws_row, now.ws_col) != (size.rows, size.columns));
        if is_changed { self.resize(size) } else { Ok(()) }
    }

    /// Writes the end-of-input character before the program has the terminal, so that the program's first read
    /// returns EOF. If it were written later, a program that has changed the terminal's settings could read it as a
    /// key, or the terminal could echo it.
    pub(super) fn end_input(&self) -> Result<()> {
        let written = rustix::io::write(&self.0.fd, &[END_OF_INPUT]);
        written.map(drop).map_err(|e| Error::new(Stage::Capture, errno(e), "write(terminal)"))
    }

    /// Returns a copy of this end's descriptor, for [`Feed::terminal`](super::Feed::terminal).
    ///
    /// # Errors
    /// EMFILE.
    pub fn writer(&self) -> Result<OwnedFd> {
        self.0
            .fd
            .try_clone()
            .map_err(|e| Error::new(Stage::Capture, crate::error::from_io(&e), "fcntl(F_DUPFD_CLOEXEC)"))
    }
}

impl Read for &Pty {
    /// Reads the program's output. Returns 0 once no process has the program's end open (the kernel reports EIO). So
    /// this process must have closed the [`Terminal`], or the command that owns it.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match rustix::io::read(&self.0.fd, buffer) {
            Err(rustix::io::Errno::IO) => Ok(0),
            read => Ok(read?),
        }
    }
}

impl AsFd for Pty {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

impl From<Terminal> for OwnedFd {
    fn from(terminal: Terminal) -> OwnedFd {
        terminal.0
    }
}

impl Terminal {
    /// Makes the terminal the program's standard input, output and error, and the controlling terminal of the session
    /// that the command creates.
    ///
    /// The command owns the terminal from then on. To read the end of the output, drop the command after the spawn,
    /// or give its streams another target.
    ///
    /// # Errors
    /// EMFILE.
    pub fn attach(self, command: &mut Command<'_>) -> Result<()> {
        let [stdin, stdout, stderr] = self.streams()?;
        command.stdin(stdin).stdout(stdout).stderr(stderr).controlling_terminal(0);
        Ok(())
    }

    /// Makes the terminal the streams of one start, and the controlling terminal of its session.
    pub(super) fn attach_to_start(self, start: &mut Start<'_>) -> Result<()> {
        start.connect(self.streams()?);
        start.actions.push(Op::ControllingTerminal { fd: 0 });
        Ok(())
    }

    fn streams(self) -> Result<[Stdio<'static>; 3]> {
        let copy = self.0.try_clone();
        let copy = copy.map_err(|e| Error::new(Stage::Capture, crate::error::from_io(&e), "fcntl(F_DUPFD_CLOEXEC)"))?;
        Ok([self.0.into(), copy.into(), Stdio::SameAsStdout])
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::{Feed, FeedStatus, Source};
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use spawnfd_tests::deadline;
    use std::time::Duration;

    /// Reads until `enough` accepts the text so far, or until the other end is closed.
    fn read_until(mut pty: &Pty, so_far: &mut String, enough: impl Fn(&str) -> bool) {
        let mut buffer = [0; 4096];
        while !enough(so_far) {
            let mut ready = [PollFd::new(pty, PollFlags::IN)];
            poll(&mut ready, None).expect("own descriptor");
            match pty.read(&mut buffer).expect("readable") {
                0 => return,
                length => *so_far += std::str::from_utf8(&buffer[..length]).expect("ASCII"),
            }
        }
    }

    fn start(script: &str, size: TerminalSize) -> (Pty, crate::child::Child) {
        let (pty, terminal) = Pty::open(size).expect("a terminal");
        let mut command = Command::new("/bin/sh");
        // Reset all signals to their default action: the tests may run with SIGHUP ignored (nohup).
        command.args(["-c", script]).default_signals(crate::signal::SignalSet::ALL).setsid();
        terminal.attach(&mut command).expect("descriptors");
        // Dropping the command closes this process's copy of the program's end.
        (pty, command.spawn().expect("starts"))
    }

    fn within<T>(body: impl FnOnce() -> T) -> T {
        deadline(Duration::from_secs(60), body)
    }

    #[test]
    fn a_program_has_the_pty_as_its_controlling_terminal() {
        within(|| {
            let script = "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && stty size && echo err >&2 && echo ctl >/dev/tty; ls /proc/self/fd | wc -l";
            let (pty, mut child) = start(script, TerminalSize { rows: 33, columns: 101 });
            let mut text = String::new();
            read_until(&pty, &mut text, |_| false);
            // The fourth descriptor is the directory that ls reads.
            assert_eq!(text, "33 101\r\nerr\r\nctl\r\n4\r\n");
            assert!(child.wait().expect("own child").success());
        });
    }

    #[test]
    fn a_resize_sends_sigwinch() {
        within(|| {
            let script = r#"trap "stty size; exit 0" WINCH; echo ready; while :; do sleep 0.05; done"#;
            let (pty, mut child) = start(script, TerminalSize::default());
            let mut text = String::new();
            read_until(&pty, &mut text, |text| text.contains("ready\r\n"));
            pty.resize(TerminalSize { rows: 5, columns: 7 }).expect("own terminal");
            assert_eq!(tcgetwinsize(&pty).expect("own terminal"), TerminalSize { rows: 5, columns: 7 }.winsize());
            read_until(&pty, &mut text, |_| false);
            assert_eq!(text, "ready\r\n5 7\r\n");
            assert!(child.wait().expect("own child").success());
        });
    }

    #[test]
    fn input_ends_with_or_without_a_newline() {
        within(|| {
            for (input, output) in [("a\nb\n", "a\r\nb\r\n"), ("a\nb", "a\r\nb"), ("", "")] {
                // The script turns echo off, and only then prints "ready".
                let (pty, mut child) = start("stty -echo; echo ready; exec cat", TerminalSize::default());
                let mut text = String::new();
                read_until(&pty, &mut text, |text| text.contains("ready\r\n"));
                let source = Source::bytes(input.into());
                let writer = pty.writer().expect("a descriptor");
                let mut feed = Feed::terminal(writer, source).expect("own terminal");
                assert_eq!((feed.write(), feed.has_more()), (FeedStatus::Done, false));
                read_until(&pty, &mut text, |_| false);
                assert_eq!(text, format!("ready\r\n{output}"), "{input:?}");
                assert!(child.wait().expect("own child").success());
            }
        });
    }

    #[test]
    fn a_line_that_the_terminal_cuts_is_refused_input() {
        within(|| {
            for (mode, length, refused) in [("icanon", 4095, false), ("icanon", 4096, true), ("-icanon", 4096, false)] {
                let script = format!("stty -echo {mode}; echo ready; exec cat >/dev/null");
                let (pty, mut child) = start(&script, TerminalSize::default());
                read_until(&pty, &mut String::new(), |text| text.contains("ready\r\n"));
                let source = Source::bytes(format!("{}\n", "x".repeat(length)).into_bytes().into());
                let mut feed = Feed::terminal(pty.writer().expect("a descriptor"), source).expect("own terminal");
                while feed.write() != FeedStatus::Done {
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(feed.refused(), refused, "{mode} {length}");
                child.kill().expect("own child");
                child.wait().expect("own child");
            }
        });
    }

    #[test]
    fn closing_the_master_sends_sighup() {
        within(|| {
            let (pty, mut child) = start("echo ready; exec sleep 60", TerminalSize::default());
            read_until(&pty, &mut String::new(), |text| text.contains("ready"));
            drop(pty);
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().expect("own child")), Some(1));
        });
    }
}
