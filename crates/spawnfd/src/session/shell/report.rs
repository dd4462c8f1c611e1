// SPDX-License-Identifier: MIT OR Apache-2.0
//! The records that a session's shell writes to its status pipe.
//!
//! A NUL byte stands before and after each record. Between records, the shell writes the output of `times` and
//! `export -p`.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use spawnfd_guard::broker::ANSWER;

/// The largest number of bytes that the library keeps of the shell's variables. Any program of the same user can write to
/// the pipe, so the buffer needs a bound.
const MAX_TEXT: usize = 16 << 20;

/// The largest record. It has the path of the working directory.
const MAX_RECORD: usize = 64 << 10;

/// The random number of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Number(u64);

impl Number {
    pub(super) fn random() -> Number {
        let mut bytes = [0; 8];
        let mut filled = 0;
        // The kernel interrupts no call for so few bytes, and blocks none once the system has started.
        while filled < bytes.len() {
            filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty()).unwrap_or(bytes.len());
        }
        Number(u64::from_ne_bytes(bytes))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The values of `$?` after an `eval` that the user has disabled.
const WITHOUT_EVAL: [u8; 2] = [1, 127];

/// The value of `$?` after an interrupt.
const INTERRUPTED: u8 = 130;

/// The report of the shell at the end of a command.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ShellReport {
    /// The value of `$?`. `None`: it may not be that of the command.
    pub(super) code: Option<u8>,
    /// The value of `$-`.
    pub(super) flags: String,
    /// The CPU time of the shell and of the children that it has waited for. `None`: `times` has printed something else.
    pub(super) cpu: Option<Duration>,
    pub(super) cwd: PathBuf,
    /// The commands that set the exported variables and the umask, if the shell reports them.
    pub(super) variables: Option<Vec<u8>>,
}

/// The shell's reports of one command so far.
#[derive(Debug, Default)]
pub(super) struct ShellReports {
    pub(super) number: Number,
    received: Vec<u8>,
    /// The text since the last record.
    text: Vec<u8>,
    /// The shell has run the file with the command's text.
    pub(super) has_begun: bool,
    /// A function of the user may have run this file, so that `$?` may be the function's.
    is_indirect: bool,
    /// The shell is bash, and the report does not say that it has a command `eval`.
    may_lack_eval: bool,
    /// Another program has written into a report, so the status is lost.
    is_damaged: bool,
    status: Option<ShellReport>,
    /// The complete report.
    pub(super) end: Option<ShellReport>,
    /// How many lines of its standard input the shell has read.
    pub(super) lines: u32,
    /// How often the shell has run the report before it has begun with the command, other than after an interrupt.
    pub(super) early: u32,
    /// How often the shell has reported an interrupt before it has begun with the command.
    pub(super) interrupts: u32,
    /// How many answers of the helper have arrived that have not been taken.
    answers: usize,
}

impl ShellReports {
    pub(super) fn new(number: Number) -> ShellReports {
        ShellReports { number, ..ShellReports::default() }
    }

    /// Reads the records in these bytes, which continue the earlier ones. They begin and end where a write of the helper
    /// does.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        // bash writes a directory with a newline in two parts, and the helper may answer between them.
        while let Some(start) = rest.windows(ANSWER.len()).position(|part| part == ANSWER) {
            self.received.extend(&rest[..start]);
            rest = &rest[start + ANSWER.len()..];
            self.answers += 1;
        }
        self.received.extend(rest);
        let received = std::mem::take(&mut self.received);
        let mut at = 0;
        while let Some(nul) = received[at..].iter().position(|byte| *byte == 0) {
            self.add_text(&received[at..at + nul]);
            at += nul;
            let unread = &received[at + 1..];
            let length = match unread.iter().position(|byte| *byte == 0) {
                // The second NUL byte begins a record, and the first one belonged to none.
                Some(0) => {
                    at += 1;
                    continue;
                }
                Some(length) => length,
                None if unread.len() >= MAX_RECORD => unread.len(),
                None => {
                    self.received = received[at..].to_vec();
                    return;
                }
            };
            self.add_record(&unread[..length]);
            at = (at + length + 2).min(received.len());
        }
        self.add_text(&received[at..]);
    }

    fn add_text(&mut self, text: &[u8]) {
        if self.text.len() + text.len() <= MAX_TEXT {
            self.text.extend(text);
        }
    }

    fn add_record(&mut self, record: &[u8]) {
        let text = std::mem::take(&mut self.text);
        match record.split_first() {
            Some((b'L', b"")) => self.lines += 1,
            Some((kind, rest)) => {
                let Some(rest) = rest.strip_prefix(self.number.to_string().as_bytes()) else { return };
                match kind {
                    // The shell takes the command again if an interrupt has kept it from the text.
                    b'B' => {
                        (self.has_begun, self.status) = (true, None);
                        self.is_indirect = rest != b"source" && rest != b"sure";
                        self.may_lack_eval = rest != b"sure";
                    }
                    b'V' => self.may_lack_eval = false,
                    // After an interrupt, the shell runs the report again. `$?` is then that of the interrupt.
                    b'C' if self.has_begun && self.status.is_some() => {}
                    b'C' if self.has_begun => {
                        self.status = ShellReport::parse(rest).map(|report| {
                            let is_doubtful = |code| self.may_lack_eval && WITHOUT_EVAL.contains(&code);
                            let is_sure = |code: &u8| !self.is_damaged && !self.is_indirect && !is_doubtful(*code);
                            let code = report.code.filter(is_sure);
                            ShellReport { code, cpu: parse_times(&text), ..report }
                        });
                    }
                    b'C' => match ShellReport::parse(rest) {
                        Some(ShellReport { code: Some(INTERRUPTED), .. }) => {
                            self.interrupts = self.interrupts.saturating_add(1)
                        }
                        _ => self.early = self.early.saturating_add(1),
                    },
                    b'E' if self.has_begun && self.status.is_none() => self.is_damaged = true,
                    b'E' if self.end.is_none() => {
                        let variables = Some(text).filter(|text| !text.is_empty()).and_then(with_umask);
                        self.end = self.status.take().map(|report| ShellReport { variables, ..report });
                    }
                    _ => {}
                }
            }
            None => {}
        }
    }

    /// Takes an answer of the helper. Returns whether one has arrived.
    pub(super) fn take_answer(&mut self) -> bool {
        let has_arrived = self.answers > 0;
        self.answers = self.answers.saturating_sub(1);
        has_arrived
    }
}

impl ShellReport {
    /// Parses `STATUS FLAGS=DIRECTORY`.
    fn parse(record: &[u8]) -> Option<ShellReport> {
        let equals = record.iter().position(|byte| *byte == b'=')?;
        let (words, cwd) = record.split_at(equals);
        let mut words = std::str::from_utf8(words).ok()?.strip_prefix(' ')?.split(' ');
        let (code, flags) = (words.next()?.parse().ok(), words.next()?.to_owned());
        let cwd = OsString::from_vec(cwd[1..].to_vec()).into();
        Some(ShellReport { code, flags, cpu: None, cwd, variables: None })
    }
}

/// Turns the last line, which is the output of `umask`, into a command.
fn with_umask(mut variables: Vec<u8>) -> Option<Vec<u8>> {
    let last = variables.strip_suffix(b"\n")?.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    variables.splice(last..last, *b"umask ");
    Some(variables)
}

/// Parses the output of `times`: the last two lines that have two times each. A DEBUG trap may have written more lines.
fn parse_times(text: &[u8]) -> Option<Duration> {
    let text = String::from_utf8_lossy(text);
    let line = |line: &str| {
        let (user, system) = line.split_once(' ')?;
        Some(parse_time(user)? + parse_time(system)?)
    };
    let mut lines = text.lines().rev().filter_map(line);
    Some(lines.next()? + lines.next()?)
}

/// Parses a time such as `1m2.345s`. Some locales have a comma.
fn parse_time(text: &str) -> Option<Duration> {
    let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
    let seconds: f64 = seconds.replace(',', ".").parse().ok()?;
    Duration::try_from_secs_f64(minutes.parse::<f64>().ok()? * 60.0 + seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports(bytes: &[u8], at_once: usize) -> ShellReports {
        let mut reports = ShellReports::new(Number(1));
        bytes.chunks(at_once).for_each(|chunk| reports.add(chunk));
        reports
    }

    const BEGUN: &[u8] = b"\0B0000000000000001source\0";

    #[test]
    fn a_report_has_status_options_times_and_directory() {
        let bytes = [
            BEGUN,
            b"0m0.010s 0m1,002s\ntrap\n1m0.000s 0m0.000000s\n\0C0000000000000001 130 hxB=/a\nb=\0\0E0000000000000001\0",
        ]
        .concat();
        for at_once in [1, 3, 1000] {
            let report = reports(&bytes, at_once).end.expect("a report");
            let cpu = Some(Duration::from_millis(61_012));
            let expected = ShellReport { code: Some(130), flags: "hxB".into(), cpu, ..ShellReport::default() };
            assert_eq!(report, ShellReport { cwd: "/a\nb=".into(), ..expected });
        }
    }

    #[test]
    fn a_report_counts_only_with_its_number_after_the_begin() {
        let status: &[u8] = b"\0C0000000000000001 0 hB=/\0\0E0000000000000001\0";
        assert!(reports(status, 1000).end.is_none());
        assert!(reports(&[status, BEGUN].concat(), 1000).end.is_none());
        let other = b"\0C0000000000000002 0 hB=/\0\0E0000000000000002\0";
        assert!(reports(&[BEGUN, other].concat(), 1000).end.is_none());
        assert!(reports(&[BEGUN, b"junk\0\0\0L\0", status].concat(), 1).end.is_some());
        for wrong in [&b" 300 hB=/"[..], b" 0 hB", b"0 hB=/", b" =/", b" 0 hB"] {
            let status = [b"\0C0000000000000001", wrong, b"\0\0E0000000000000001\0"].concat();
            assert!(reports(&[BEGUN, &status].concat(), 1000).end.is_none_or(|end| end.code.is_none()), "{wrong:?}");
        }
    }

    #[test]
    fn no_later_status_replaces_a_damaged_one() {
        let damaged: &[u8] = b"\0C0000000\0\0E0000000000000001\0";
        let later = b"\0C0000000000000001 0 hB=/\0\0E0000000000000001\0";
        let end = reports(&[BEGUN, damaged, later].concat(), 1000).end.expect("a report");
        assert_eq!((end.code, end.cwd), (None, "/".into()));
    }

    #[test]
    fn an_answer_of_the_helper_may_be_anywhere() {
        let status: &[u8] =
            b"\0C0000000000000001 3 hB=/a\n\0A\0b\0export A='1'\n\0A\0export B='2'\n0022\n\0E0000000000000001\0";
        let mut reports = reports(&[BEGUN, status].concat(), 1000);
        assert!(reports.take_answer() && reports.take_answer() && !reports.take_answer());
        let report = reports.end.expect("a report");
        assert_eq!((report.code, report.cwd), (Some(3), "/a\nb".into()));
        assert_eq!(report.variables.as_deref(), Some(&b"export A='1'\nexport B='2'\numask 0022\n"[..]));
    }

    #[test]
    fn variables_end_with_the_umask() {
        let bytes = [BEGUN, b"\0C0000000000000001 0 hB=/\0export A='1'\n0022\n\0E0000000000000001\0"].concat();
        let report = reports(&bytes, 7).end.expect("a report");
        assert_eq!(report.variables.as_deref(), Some(&b"export A='1'\numask 0022\n"[..]));
    }

    #[test]
    fn junk_is_bounded() {
        let mut reports = ShellReports::new(Number(1));
        for _ in 0..20 {
            reports.add(&vec![b'x'; 1 << 20]);
        }
        reports.add(b"\0");
        reports.add(&vec![b'y'; 1 << 20]);
        assert!(reports.text.len() <= MAX_TEXT && reports.received.len() <= MAX_RECORD + 2);
        assert!(reports.end.is_none() && !reports.take_answer());
    }
}
