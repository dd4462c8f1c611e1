// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the program's output.

use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::ioctl_fionread;

use super::{Phase, RunState, SharedRecord};
use crate::error::{Error, Result, Stage, errno};
use crate::job::{Pty, Stop, Stream};

/// A source of output. Reads do not block.
#[derive(Debug)]
pub(in crate::job) enum OutputSource {
    Pipe(PipeReader),
    Terminal(Pty),
}

/// The number of reads from one stream before the thread serves other streams.
const READS_IN_A_ROW: usize = 4;

impl OutputSource {
    pub(in crate::job) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            OutputSource::Pipe(pipe) => pipe.as_fd(),
            OutputSource::Terminal(terminal) => terminal.as_fd(),
        }
    }

    pub(in crate::job) fn is_terminal(&self) -> bool {
        matches!(self, OutputSource::Terminal(_))
    }

    /// Reads once and returns the number of bytes. `Some(0)`: the end of the output. `None`: nothing can be read for
    /// now.
    fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        let read = match self {
            OutputSource::Pipe(pipe) => (&*pipe).read(buffer),
            OutputSource::Terminal(terminal) => (&*terminal).read(buffer),
        };
        match read {
            Ok(length) => Some(length),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted) => None,
            Err(_) => Some(0),
        }
    }

    /// Reads once, records the bytes, and passes them with their position to `deliver`. Returns the number of bytes and
    /// what `deliver` returned. `Some` with 0 bytes: the end of the output. `None`: nothing can be read for now.
    ///
    /// The engine and the job's consumer may both read one pipe. The record's lock, which this function holds from the
    /// read until `deliver` returns, keeps the bytes in order.
    pub(in crate::job) fn read_recorded<T: Default>(
        &self,
        stream: Stream,
        shared: &SharedRecord,
        buffer: &mut [u8],
        deliver: impl FnOnce(u64, &[u8]) -> T,
    ) -> Option<(usize, T)> {
        let mut record = shared.lock();
        let length = self.read(buffer)?;
        if length == 0 {
            return Some((0, T::default()));
        }
        let position = record.append(stream, &buffer[..length]);
        let delivered = deliver(position, &buffer[..length]);
        shared.announce(record);
        Some((length, delivered))
    }

    /// Makes reads of a pipe non-blocking. A terminal is non-blocking from the start.
    ///
    /// # Errors
    /// EBADF: the descriptor is closed. No other error is possible.
    pub(super) fn stop_blocking(&self) -> Result<()> {
        let OutputSource::Pipe(pipe) = self else { return Ok(()) };
        fcntl_setfl(pipe, OFlags::NONBLOCK)
            .map_err(|error| Error::new(Stage::Capture, errno(error), "fcntl(F_SETFL, O_NONBLOCK)"))
    }
}

impl RunState {
    /// Reads all output, or as much as the event consumer accepts now. Returns `false` if there may be more output,
    /// which the caller must read after it has served other streams.
    pub(super) fn read(&mut self, stream: Stream, hung_up: bool, buffer: &mut [u8]) -> bool {
        // The job's consumer may have read the bytes that exceed the limit.
        self.check_output_limit();
        for _ in 0..READS_IN_A_ROW {
            if self.events.as_ref().is_some_and(|events| !events.wants_more()) {
                // When the consumer accepts more, it wakes the engine, which reads again.
                return true;
            }
            let Some(length) = self.read_once(stream, buffer) else { return true };
            // A read that does not fill the buffer has emptied the pipe. Later output causes a new event.
            if !hung_up && length < buffer.len() {
                return true;
            }
        }
        false
    }

    /// Reads once and records the bytes. Returns their number; `None`: no bytes for now, or the end.
    fn read_once(&mut self, stream: Stream, buffer: &mut [u8]) -> Option<usize> {
        let output = self.outputs[stream.index()].clone()?;
        let push =
            |position, bytes: &[u8]| self.events.as_ref().and_then(|events| events.push(stream, position, bytes));
        let (length, consumer) = output.read_recorded(stream, &self.record, buffer, push)?;
        if length == 0 {
            // A terminal's end is not final: the program can open the terminal again as /dev/tty. Closing this end
            // would send SIGHUP to the program.
            if !output.is_terminal() || !self.awaits_program() {
                self.outputs[stream.index()] = None;
            }
            if self.adopted && self.is_read() {
                self.events = None;
            }
            return None;
        }
        if let Some(consumer) = consumer {
            consumer.call();
        }
        self.check_output_limit();
        Some(length)
    }

    /// Ends a program that has written more than its output limit.
    fn check_output_limit(&mut self) {
        let is_over = |limit| self.record.lock().seen() > limit;
        if matches!(self.phase, Phase::Running(_)) && self.options.output_limit.is_some_and(is_over) {
            self.end(Stop::OutputLimit, None);
        }
    }

    /// Reads the rest of the output after the program has ended, even if the consumer has not read earlier output.
    /// The rest is at most one full pipe, and would be lost when the pipe is closed.
    pub(super) fn read_left(&mut self, stream: Stream, buffer: &mut [u8]) {
        let Some(output) = &self.outputs[stream.index()] else { return };
        // FIONREAD on a terminal reports at most 4 KiB, but a terminal may hold about 20 KiB.
        let mut left = if output.is_terminal() { 1 << 16 } else { ioctl_fionread(output.as_fd()).unwrap_or(0) };
        // Read once more than needed for `left`, to detect the end of the output.
        while let Some(length) = self.read_once(stream, buffer) {
            match left.checked_sub(length as u64) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    }
}
