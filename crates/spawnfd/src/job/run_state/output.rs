// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of a run, which the run shares with handles and readers: its sources, and the record of what has arrived.

use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};

use crate::error::{Error, Result, Stage, errno};
use crate::host::per_process::PerProcess;
use crate::job::{Keep, Pty, Record, Stream};

/// The output so far. The run writes it; handles of the run read it.
#[derive(Debug)]
pub(in crate::job) struct SharedRecord {
    record: PerProcess<Record>,
    /// Notified when output arrives, if a thread waits.
    arrived: Condvar,
}

impl SharedRecord {
    /// An empty record for the output of a run.
    pub(super) fn new(keep: &Keep) -> SharedRecord {
        let record = PerProcess::for_this_process(Record::new(keep), || Record::new(&Keep::default()));
        SharedRecord { record, arrived: Condvar::new() }
    }

    pub(in crate::job) fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock()
    }

    pub(super) fn belongs_to_this_process(&self) -> bool {
        self.record.belongs_to_this_process()
    }

    /// Closes the record of a run that ends without a result.
    pub(super) fn close_without_result(&self) {
        let mut record = self.lock();
        if !record.is_closed() {
            record.close();
            self.announce(record);
        }
    }

    /// Unlocks the record, and then wakes the threads and the callback that wait for output.
    pub(super) fn announce(&self, record: MutexGuard<'_, Record>) {
        let callback = record.callback.clone();
        if record.waiting > 0 {
            self.arrived.notify_all();
        }
        // The callback may call functions that lock the record.
        drop(record);
        if let Some(callback) = callback {
            callback.call();
        }
    }

    /// Waits until more than `seen` bytes have arrived or the record is closed, at most until `deadline`.
    pub(in crate::job) fn wait(&self, seen: u64, deadline: Option<Instant>) {
        let mut record = self.lock();
        record.waiting += 1;
        let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let is_old = |record: &mut Record| record.seen() <= seen && !record.is_closed();
        let waited = self.arrived.wait_timeout_while(record, left, is_old);
        waited.unwrap_or_else(PoisonError::into_inner).0.waiting -= 1;
    }
}

/// A source of output. Reads do not block.
#[derive(Debug)]
pub(in crate::job) enum OutputSource {
    Pipe(PipeReader),
    Terminal(Pty),
}

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
