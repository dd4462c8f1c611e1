// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output streams of a program.

/// One of a program's two output streams.
///
/// A job that merges the streams gives its program one pipe or one terminal for both, and all
/// output is [`Stream::Stdout`]. Only in this case does the library know the order in which the
/// program wrote. With two pipes, it knows only the order in which the bytes arrived.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::job::Stream;
/// let output = Command::new("sh").args(["-c", "echo problem >&2"]).run()?;
/// assert_eq!(Stream::ALL.map(|stream| output.head(stream)), [&b""[..], b"problem\n"]);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

names!(Stream { Stdout = "stdout", Stderr = "stderr", });

impl Stream {
    /// Both streams.
    pub const ALL: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    /// 0 for standard output, 1 for standard error.
    pub fn index(self) -> usize {
        self as usize
    }
}
