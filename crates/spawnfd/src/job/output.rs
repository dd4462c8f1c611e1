// SPDX-License-Identifier: MIT OR Apache-2.0
//! The result of a run.

use std::borrow::Cow;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use super::kept::{Cut, LONGEST_CONTINUATION, continuation_len};
use super::order::ArrivalOrder;
use super::{Decoder, Limit, Spilled, Stream};
use crate::child::{Started, Usage};
use crate::option::Value;
use crate::tree::Tier;

named! {
    /// Why a run ended.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::job::Stop;
    /// use spawnfd::{Command, Run};
    /// use std::time::Duration;
    /// let output = Command::new("sleep").arg("60").run_with(&Run::new().timeout(Duration::from_millis(10)))?;
    /// assert_eq!(output.stop, Stop::Timeout);
    /// assert_eq!(output.stop.to_string(), "timeout");
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
    #[non_exhaustive]
    pub enum Stop {
        /// The program exited, or a signal from outside the library ended it.
        @ #[default]
        Exited = "exited",
        /// The library ended the program after its timeout.
        Timeout = "timeout",
        /// The library ended the program because it had written no output for its idle timeout.
        IdleTimeout = "idle_timeout",
        /// The library ended the program because the caller asked for it or dropped its handle.
        Cancelled = "cancelled",
        /// The library ended the program because it had written more than its output limit.
        OutputLimit = "output_limit",
        /// The program or its tree reached one of its [limits](super::Limits): see [`Output::limit`].
        Limit = "limit",
        /// The program has ended, and its status [is lost](Output::status_lost).
        Lost = "lost",
    }
}

/// How reading the program's output ended.
///
/// # Examples
/// ```
/// use spawnfd::job::Drain;
/// use spawnfd::{Command, Run};
/// use std::time::Duration;
/// // The shell ends at once, but `sleep` has the same output pipe.
/// let run = Run::new().drain(Duration::from_millis(10));
/// let output = Command::new("sh").args(["-c", "sleep 60 & exit"]).run_with(&run)?;
/// assert!(matches!(output.drain, Drain::Cut(_)));
/// assert!(output.ok());
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Drain {
    /// The library has read all output.
    #[default]
    Eof,
    /// After the program's end these processes still held its pipes or its terminal open; their later output is lost.
    /// The list is empty if the library could not identify such a process: it belongs to another user, or has just
    /// closed its end.
    Cut(Vec<u32>),
}

impl fmt::Display for Drain {
    /// Prints `eof`, or `cut: ` and the pids, or `cut: ?` if they are unknown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Drain::Eof => f.write_str("eof"),
            Drain::Cut(pids) if pids.is_empty() => f.write_str("cut: ?"),
            Drain::Cut(pids) => {
                f.write_str("cut:")?;
                pids.iter().try_for_each(|pid| write!(f, " {pid}"))
            }
        }
    }
}

/// A process that outlived the program that started it, or a program that could not be killed.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// let output = Command::new("sh").args(["-c", "sleep 60 >/dev/null 2>&1 & exit"]).run()?;
/// for leftover in &output.leftovers {
///     println!("{} ({}): {}", leftover.name, leftover.pid, leftover.fate); // sleep (4711): killed
/// }
/// assert_eq!(output.leftovers.len(), 1);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Leftover {
    /// The process id.
    pub pid: u32,
    /// The process's name (comm).
    pub name: String,
    /// The fate of the process.
    pub fate: Fate,
}

named! {
    /// The fate of a [`Leftover`].
    ///
    /// # Examples
    /// ```
    /// use spawnfd::Command;
    /// use spawnfd::job::Fate;
    /// let output = Command::new("sh").args(["-c", "sleep 60 >/dev/null 2>&1 & exit"]).run()?;
    /// let still_runs = |fate| matches!(fate, Fate::NotPermitted | Fate::Uninterruptible);
    /// assert!(!output.leftovers.iter().any(|leftover| still_runs(leftover.fate)));
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
    #[non_exhaustive]
    pub enum Fate {
        /// The library sent SIGKILL.
        Killed = "killed",
        /// The process keeps running until the job ends it ([`Leftovers::Adopt`](super::Leftovers::Adopt)).
        Adopted = "adopted",
        /// The process keeps running, and the library does not end it
        /// ([`Leftovers::Detach`](super::Leftovers::Detach)).
        Detached = "detached",
        /// The kernel refused SIGKILL (EPERM): the process has changed its user id, as a set-uid program does. The
        /// process keeps running.
        NotPermitted = "not_permitted",
        /// The kernel accepted SIGKILL, which had no effect within a second. The process waits in the kernel, usually
        /// for a disk or a network file system, and ends when that wait ends.
        Uninterruptible = "uninterruptible",
    }
}

/// The bytes of one stream that the library did not keep.
///
/// # Examples
/// ```
/// use spawnfd::job::Stream;
/// use spawnfd::{Command, Run};
/// let output = Command::new("seq").arg("13").run_with(&Run::new().keep(10, 5))?;
/// let omitted = output.omitted(Stream::Stdout);
/// assert_eq!((omitted.bytes, omitted.offset), (15, 10));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Omitted {
    /// The number of omitted bytes.
    pub bytes: u64,
    /// The position in the stream of the first omitted byte: the length of the [head](Output::head).
    pub offset: u64,
}

/// A piece of the output of a [combined](super::Run::combined) run: bytes that arrived from one stream in succession.
///
/// # Examples
/// ```
/// use spawnfd::{Command, Run};
/// let mut command = Command::new("sh");
/// command.args(["-c", "echo compiling; sleep 0.05; echo 'x.c: no such file' >&2"]);
/// let output = command.run_with(&Run::new().combined(true))?;
/// let pieces = output.pieces().unwrap();
/// let pieces: Vec<_> = pieces.iter().map(|piece| (piece.stream.name(), &piece.text[..])).collect();
/// assert_eq!(pieces, [("stdout", "compiling\n"), ("stderr", "x.c: no such file\n")]);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Piece<'a> {
    /// The stream.
    pub stream: Stream,
    /// The bytes. If bytes of the stream are omitted here: the marker line, or nothing if the run has no marker.
    pub bytes: &'a [u8],
    /// The bytes decoded as UTF-8; invalid bytes become U+FFFD. A character that is split between two pieces of the
    /// stream belongs to the second one. A character split by an omission is dropped.
    pub text: String,
    /// The number of bytes of the stream that are omitted here. 0 for a piece that the program wrote.
    pub omitted: u64,
}

/// The result of a run. A non-zero exit code, a timeout and cut output are results, not errors;
/// [`check`](Output::check) turns them into errors.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// let output = Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]).run()?;
/// assert_eq!((&*output.stdout_text(), &*output.stderr_text()), ("out\n", "err\n"));
/// assert_eq!((output.ok(), output.code()), (false, Some(3)));
/// assert!(output.check().is_err());
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "the output says whether the program succeeded"]
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(remote = "Self"))]
#[non_exhaustive]
pub struct Output {
    /// The exit status, whatever the reason of the stop. `None` if the status [is lost](Output::status_lost), or if
    /// the program could not be killed. A program that could not be killed is the first of the
    /// [`leftovers`](Output::leftovers), and the library reaps it when it ends.
    #[cfg_attr(feature = "serde", serde(with = "super::stored::status"))]
    pub status: Option<ExitStatus>,
    /// The program has ended, and its status is unknown. Of a child: the host took it (by `wait(-1)`, or by ignoring
    /// SIGCHLD), and before Linux 6.15 the library cannot recover it. Of a command of a [`Session`](crate::Session): the
    /// shell has not proved that it ran the command to its end.
    pub status_lost: bool,
    /// Why the run ended.
    pub stop: Stop,
    /// The value of the option that ended the run: its timeout, its idle timeout or its output limit. [`Value::None`] after
    /// any other stop.
    pub bound: Value,
    /// Captured standard output: its head, a line with the run's [marker](super::Run::marker) if bytes are omitted,
    /// and its tail.
    #[cfg_attr(feature = "serde", serde(with = "serde_bytes"))]
    pub stdout: Vec<u8>,
    /// Captured standard error, in the same form as [`stdout`](Output::stdout). Empty if the
    /// command merges it into standard output.
    #[cfg_attr(feature = "serde", serde(with = "serde_bytes"))]
    pub stderr: Vec<u8>,
    /// The number of bytes, of both streams together, that the library did not keep.
    pub omitted_bytes: u64,
    /// The number of bytes that the program wrote to both streams together, as far as the library read them.
    pub seen_bytes: u64,
    /// The file with all output, if the run asked for one and the output exceeded what is kept in memory. Dropping
    /// the last handle deletes the file.
    pub spill: Option<Spilled>,
    /// How reading the program's output ended.
    pub drain: Drain,
    /// The time from the start of the spawn to the end of reading.
    pub wall: Duration,
    /// The resources that the program used.
    pub usage: Usage,
    /// How far control of the process tree reached. [`is_complete`](Tier::is_complete) says whether it covered every
    /// process.
    pub tree: Tier,
    /// Processes of the program's tree that outlived the program, as far as the tier finds them. A program that could
    /// not be killed comes first.
    pub leftovers: Vec<Leftover>,
    /// The library could not look for survivors: no descriptor was free, or /proc cannot be read. Processes may have
    /// survived. The library has killed only those that it can kill without /proc.
    pub leftovers_unknown: bool,
    /// The limit that the run reached, if [`stop`](Output::stop) is [`Stop::Limit`].
    pub limit: Option<Limit>,
    /// All limits of the run, and the mechanism that enforced each.
    pub limits: Vec<Limit>,
    /// How the program was started.
    #[cfg_attr(feature = "serde", serde(with = "super::stored::started"))]
    pub started: Started,
    /// The program closed its standard input, or ended, before the library had written all input. Or a line of the input
    /// had more than 4,095 bytes, and a terminal cut it.
    pub input_refused: bool,
    /// The shell's working directory after a command of a [`Session`](crate::Session): the value of `$PWD` if it names the
    /// directory. `None` for other runs, and if the shell has exited.
    #[cfg_attr(feature = "serde", serde(with = "super::stored::path"))]
    pub cwd: Option<PathBuf>,
    /// The shell of the [`Session`](crate::Session) exited during the command: by `exit`, `exec`, a signal, or because
    /// the command did not end otherwise. The command's own status [is then lost](Output::status_lost).
    pub shell_exited: bool,
    /// The status of a shell that [has exited](Output::shell_exited). A trap may have chosen it, so it is not the status
    /// of the command.
    #[cfg_attr(feature = "serde", serde(with = "super::stored::status"))]
    pub shell_status: Option<ExitStatus>,
    pub(super) program: String,
    /// The place in each stream where bytes are omitted.
    pub(super) cuts: [Cut; 2],
    /// The order in which the bytes of a combined run arrived.
    pub(super) order: Option<ArrivalOrder>,
}

impl Output {
    /// Why the library ended the run, as a phrase that continues the program's name: `timed out after 0.2 s`. `None` if the
    /// run ended by itself.
    pub fn reason(&self) -> Option<String> {
        let bound = match &self.bound {
            Value::Duration(time) => format!("{} s", time.as_secs_f64()),
            bound => bound.to_string(),
        };
        match (self.stop, &self.limit) {
            (Stop::Exited | Stop::Lost, _) => None,
            (Stop::Timeout, _) => Some(format!("timed out after {bound}")),
            (Stop::IdleTimeout, _) => Some(format!("wrote no output for {bound}")),
            (Stop::Cancelled, _) => Some("was cancelled".to_owned()),
            (Stop::OutputLimit, _) => Some(format!("exceeded its output limit of {bound} bytes")),
            (Stop::Limit, Some(Limit { resource, by })) => Some(format!("reached its {resource} limit ({by})")),
            (Stop::Limit, None) => Some("reached a limit".to_owned()),
        }
    }

    /// Whether the program exited by itself with code 0.
    pub fn ok(&self) -> bool {
        self.stop == Stop::Exited && self.status.is_some_and(|status| status.success())
    }

    /// The exit code of the [shell that has exited](Output::shell_exited), or -N if signal N ended it.
    #[doc(hidden)]
    pub fn shell_code(&self) -> Option<i32> {
        let status = self.shell_status?;
        status.code().or_else(|| status.signal().map(|signal| -signal))
    }

    /// The program, as a leftover, if SIGKILL did not end it.
    pub(super) fn unkilled_program(&self) -> Option<&Leftover> {
        self.leftovers.first().filter(|_| self.status.is_none() && !self.status_lost)
    }

    /// The exit code; `None` if a signal ended the program, or there is no [status](Output::status).
    pub fn code(&self) -> Option<i32> {
        self.status?.code()
    }

    /// The signal that ended the program.
    pub fn signal(&self) -> Option<i32> {
        self.status?.signal()
    }

    /// Standard output decoded as UTF-8; invalid bytes become U+FFFD. Characters split by an omission are dropped.
    pub fn stdout_text(&self) -> Cow<'_, str> {
        self.cut(Stream::Stdout).text(&self.stdout)
    }

    /// Standard error decoded as UTF-8; invalid bytes become U+FFFD. Characters split by an omission are dropped.
    pub fn stderr_text(&self) -> Cow<'_, str> {
        self.cut(Stream::Stderr).text(&self.stderr)
    }

    pub(super) fn kept(&self, stream: Stream) -> &[u8] {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    pub(super) fn cut(&self, stream: Stream) -> Cut {
        self.cuts[stream.index()]
    }

    /// The kept bytes of a stream before the omitted ones; the whole stream if no byte is omitted.
    pub fn head(&self, stream: Stream) -> &[u8] {
        self.cut(stream).split(self.kept(stream))[0]
    }

    /// The kept bytes of a stream after the omitted ones; empty if no byte is omitted.
    pub fn tail(&self, stream: Stream) -> &[u8] {
        self.cut(stream).split(self.kept(stream))[2]
    }

    /// The bytes of a stream that the library did not keep. If it kept all bytes, the offset is the stream's length.
    pub fn omitted(&self, stream: Stream) -> Omitted {
        Omitted { bytes: self.cut(stream).omitted, offset: self.head(stream).len() as u64 }
    }

    /// The output of both streams in order of arrival; `None` unless the run was [combined](super::Run::combined).
    ///
    /// The bytes of all pieces of a stream are that stream's kept output. If bytes of the stream are omitted, one
    /// piece stands for them, at the place where the first of them arrived.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::{Command, Run};
    /// let output = Command::new("seq").arg("13").run_with(&Run::new().combined(true).keep(10, 5))?;
    /// let pieces = output.pieces().unwrap();
    /// let pieces: Vec<_> = pieces.iter().map(|piece| (&piece.text[..], piece.omitted)).collect();
    /// assert_eq!(pieces, [("1\n2\n3\n4\n5\n", 0), ("[… 15 bytes omitted …]\n", 15), ("2\n13\n", 0)]);
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    pub fn pieces(&self) -> Option<Vec<Piece<'_>>> {
        let order = self.order.as_ref()?;
        let mut pieces = Vec::new();
        let mut streams = Stream::ALL.map(|stream| Unread::new(stream, self.cut(stream), self.kept(stream)));
        for (stream, length) in order.runs() {
            streams[stream.index()].take(length, &mut pieces);
        }
        for Unread { stream, mut decoder, .. } in streams {
            // If the stream ends with an incomplete character, add it to the stream's last piece.
            if let Some(last) = pieces.iter_mut().rfind(|piece| piece.stream == stream) {
                decoder.finish(&mut last.text);
            }
        }
        Some(pieces)
    }
}

/// The part of a stream that is not yet in a [`Piece`].
struct Unread<'a> {
    stream: Stream,
    head: &'a [u8],
    marker: &'a [u8],
    tail: &'a [u8],
    /// The number of omitted bytes, until the piece for them exists.
    omitted: Option<u64>,
    /// The number of omitted bytes that belong to later runs.
    skip: u64,
    decoder: Decoder,
    /// The number of bytes at the beginning of the tail that may continue a character that the omission splits.
    continuation: usize,
}

impl<'a> Unread<'a> {
    fn new(stream: Stream, cut: Cut, kept: &'a [u8]) -> Unread<'a> {
        let [head, marker, tail] = cut.split(kept);
        let omitted = Some(cut.omitted).filter(|omitted| *omitted > 0);
        Unread { stream, head, marker, tail, omitted, skip: cut.omitted, decoder: Decoder::new(), continuation: 0 }
    }

    /// Adds the pieces for the next `length` bytes of the stream.
    fn take(&mut self, mut length: u64, pieces: &mut Vec<Piece<'a>>) {
        let stream = self.stream;
        let head = split_off(&mut self.head, &mut length);
        if !head.is_empty() {
            let mut text = String::new();
            self.decoder.decode(head, &mut text);
            pieces.push(Piece { stream, bytes: head, text, omitted: 0 });
        }
        if length == 0 {
            return;
        }
        if let Some(omitted) = self.omitted.take() {
            // Drops the beginning of a character that the omission splits.
            self.decoder = Decoder::new();
            self.continuation = LONGEST_CONTINUATION;
            let text = String::from_utf8_lossy(self.marker).into_owned();
            pieces.push(Piece { stream, bytes: self.marker, text, omitted });
        }
        let skipped = self.skip.min(length);
        self.skip -= skipped;
        length -= skipped;
        let tail = split_off(&mut self.tail, &mut length);
        if !tail.is_empty() {
            let mut text = String::new();
            let continuation = continuation_len(tail, self.continuation);
            self.continuation = if continuation == tail.len() { self.continuation - continuation } else { 0 };
            self.decoder.decode(&tail[continuation..], &mut text);
            pieces.push(Piece { stream, bytes: tail, text, omitted: 0 });
        }
    }
}

/// Removes up to `length` bytes from the beginning of `bytes`, and their number from `length`.
fn split_off<'a>(bytes: &mut &'a [u8], length: &mut u64) -> &'a [u8] {
    let at = usize::try_from(*length).unwrap_or(usize::MAX).min(bytes.len());
    let (taken, rest) = bytes.split_at(at);
    *bytes = rest;
    *length -= at as u64;
    taken
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::job::record::{Keep, Record, Recorded};
    use crate::job::text::tests::nearly_text;
    use proptest::prelude::*;

    pub(in crate::job) const MARKER: &str = "[… {omitted} omitted …]";

    /// The output of a combined run whose bytes arrived in these chunks.
    pub(in crate::job) fn combined<'a>(
        chunks: impl IntoIterator<Item = (Stream, &'a [u8])>,
        streams: (usize, usize),
        marker: Option<&str>,
    ) -> Output {
        let marker = marker.map(str::to_owned);
        let mut record = Record::new(&Keep { streams, marker, combined: true, ..Keep::default() });
        for (stream, bytes) in chunks {
            record.append(stream, bytes);
        }
        let Recorded { stdout, stderr, order, .. } = record.close();
        let cuts = [stdout.cut, stderr.cut];
        Output { stdout: stdout.bytes, stderr: stderr.bytes, cuts, order, ..Output::default() }
    }

    fn shown_pieces(output: &Output) -> Vec<(&'static str, String, u64)> {
        let pieces = output.pieces().expect("a combined run");
        pieces.into_iter().map(|piece| (piece.stream.name(), piece.text, piece.omitted)).collect()
    }

    fn piece(stream: &'static str, text: &str, omitted: u64) -> (&'static str, String, u64) {
        (stream, text.to_owned(), omitted)
    }

    #[test]
    fn head_tail_and_omission_are_known() {
        let output = combined([(Stream::Stdout, &b"0123456789"[..]), (Stream::Stderr, b"abc")], (3, 2), Some(MARKER));
        assert_eq!((output.head(Stream::Stdout), output.tail(Stream::Stdout)), (&b"012"[..], &b"89"[..]));
        assert_eq!(output.omitted(Stream::Stdout), Omitted { bytes: 5, offset: 3 });
        assert_eq!((output.head(Stream::Stderr), output.tail(Stream::Stderr)), (&b"abc"[..], &b""[..]));
        assert_eq!(output.omitted(Stream::Stderr), Omitted { bytes: 0, offset: 3 });
        assert_eq!((&output.stdout_text()[..], &output.stderr_text()[..]), ("012\n[… 5 bytes omitted …]\n89", "abc"));
    }

    #[test]
    fn fields_that_the_caller_has_shortened_are_read_safely() {
        let mut output = combined([(Stream::Stdout, &b"0123456789"[..])], (3, 2), Some(MARKER));
        for length in (0..output.stdout.len()).rev() {
            output.stdout.truncate(length);
            let pieces: Vec<u8> =
                output.pieces().into_iter().flatten().flat_map(|piece| piece.bytes).copied().collect();
            assert_eq!(pieces, output.stdout);
            assert!(output.head(Stream::Stdout).len() <= 3 && output.tail(Stream::Stdout).len() < 2);
            output.stdout_text();
        }
    }

    #[test]
    fn pieces_are_in_order_of_arrival() {
        use Stream::{Stderr, Stdout};
        let chunks = [
            (Stdout, &b"1\n"[..]),
            (Stdout, b"2\n"),
            (Stderr, b"3\n"),
            (Stdout, b""),
            (Stderr, b"4\n"),
            (Stdout, b"5"),
        ];
        let output = combined(chunks, (10, 10), Some(MARKER));
        let expected = [piece("stdout", "1\n2\n", 0), piece("stderr", "3\n4\n", 0), piece("stdout", "5", 0)];
        assert_eq!(shown_pieces(&output), expected);
        assert_eq!(Output::default().pieces(), None);
        assert_eq!(shown_pieces(&combined([], (10, 10), None)), []);
    }

    #[test]
    fn a_piece_stands_where_the_first_omitted_byte_arrived() {
        use Stream::{Stderr, Stdout};
        let chunks =
            [(Stdout, &b"ab"[..]), (Stderr, b"1"), (Stdout, b"cd"), (Stderr, b"2"), (Stdout, b"ef"), (Stderr, b"3")];
        let output = combined(chunks, (2, 1), Some("{omitted}"));
        let expected = [
            piece("stdout", "ab", 0),
            piece("stderr", "1", 0),
            piece("stdout", "\n3 bytes\n", 3),
            piece("stderr", "2", 0),
            piece("stdout", "f", 0),
            piece("stderr", "3", 0),
        ];
        assert_eq!(shown_pieces(&output), expected);
        let output = combined(chunks, (2, 1), None);
        assert_eq!(shown_pieces(&output)[2], piece("stdout", "", 3));
    }

    #[test]
    fn a_character_split_between_pieces_belongs_to_the_second() {
        use Stream::{Stderr, Stdout};
        let chunks = [(Stdout, &b"a\xC3"[..]), (Stderr, b"x"), (Stdout, b"\xA9"), (Stderr, b"\xC3")];
        let output = combined(chunks, (10, 10), None);
        let expected =
            [piece("stdout", "a", 0), piece("stderr", "x", 0), piece("stdout", "é", 0), piece("stderr", "\u{FFFD}", 0)];
        assert_eq!(shown_pieces(&output), expected);
    }

    proptest! {
        #[test]
        fn the_pieces_of_a_stream_are_its_output(
            chunks in prop::collection::vec((any::<bool>(), nearly_text()), 0..30),
            keep in (0..60_usize, 0..60_usize),
            marker in prop_oneof![Just(None), Just(Some(MARKER)), Just(Some(""))],
        ) {
            // Use many small chunks, so that the record prunes its runs while bytes arrive.
            let chunks = chunks.iter().flat_map(|(error, bytes)| bytes.chunks(3).enumerate().map(move |(at, bytes)| {
                (Stream::ALL[usize::from(*error != (at % 2 == 1))], bytes)
            }));
            let chunks: Vec<_> = chunks.collect();
            let output = combined(chunks.iter().copied(), keep, marker);
            let pieces = output.pieces().expect("a combined run");
            for (stream, bytes, text) in [
                (Stream::Stdout, &output.stdout, output.stdout_text()),
                (Stream::Stderr, &output.stderr, output.stderr_text()),
            ] {
                let own: Vec<&Piece<'_>> = pieces.iter().filter(|piece| piece.stream == stream).collect();
                prop_assert_eq!(&own.iter().flat_map(|piece| piece.bytes).copied().collect::<Vec<_>>(), bytes);
                prop_assert_eq!(own.iter().map(|piece| &piece.text[..]).collect::<String>(), text);
                prop_assert_eq!(own.iter().map(|piece| piece.omitted).sum::<u64>(), output.omitted(stream).bytes);
                prop_assert!(own.iter().filter(|piece| piece.omitted > 0).count() <= 1);
            }
            // The kept bytes of both streams are in order of arrival.
            let mut positions = [0, 0];
            let arrived = chunks.iter().flat_map(|(stream, bytes)| bytes.iter().map(move |byte| (*stream, *byte)));
            let kept: Vec<_> = arrived.filter(|(stream, _)| {
                let position = positions[stream.index()];
                positions[stream.index()] += 1;
                let Omitted { bytes, offset } = output.omitted(*stream);
                !(offset..offset + bytes).contains(&position)
            }).collect();
            let written = pieces.iter().filter(|piece| piece.omitted == 0);
            let written: Vec<_> = written.flat_map(|piece| piece.bytes.iter().map(|byte| (piece.stream, *byte))).collect();
            prop_assert_eq!(written, kept);
        }
    }
}
