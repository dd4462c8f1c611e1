// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies files and directories between the two sides. The server's own program packs and unpacks them, as a job.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spawnfd::error::{Errno, Stage};
use spawnfd::internal::error;
use spawnfd::job::{Event, EventOptions, Events, Stream, WhenFull};
use spawnfd::{Command, Error, Job, Result, Run};

use super::Remote;
use crate::files;
use crate::turns::lock;

/// The size in bytes of the queue for what goes to the other side.
const QUEUE: usize = 1 << 20;

/// The options of a transfer.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Transfer {
    /// The largest size of the transfer in bytes, with 512 bytes and more for each file. `None`: no limit.
    pub max_bytes: Option<u64>,
    /// The time that the transfer may take. `None`: no limit.
    pub timeout: Option<Duration>,
    /// Ends the transfer from another thread.
    pub stop: TransferStop,
}

/// Ends a transfer from another thread. The transfer then fails with ECANCELED, and leaves no part of a file.
#[derive(Clone, Debug, Default)]
pub struct TransferStop(Arc<Mutex<StopState>>);

#[derive(Debug, Default)]
struct StopState {
    is_stopped: bool,
    /// The job on the other side, as long as the transfer lasts.
    job: Option<Arc<Job>>,
}

impl TransferStop {
    /// Ends the transfer. One that begins later fails at once.
    pub fn stop(&self) {
        let mut state = lock(&self.0);
        state.is_stopped = true;
        let job = state.job.take();
        drop(state);
        if let Some(job) = job {
            // The end of the input lets `unpack` remove what it has written. Only `pack` has no input.
            if job.write(&[]).is_ok() { job.close_stdin() } else { job.stop(Duration::ZERO) }
        }
    }

    fn is_stopped(&self) -> bool {
        lock(&self.0).is_stopped
    }

    fn set_job(&self, job: Option<Arc<Job>>) -> Result<()> {
        let mut state = lock(&self.0);
        if state.is_stopped && job.is_some() {
            return Err(canceled());
        }
        let before = std::mem::replace(&mut state.job, job);
        drop((state, before));
        Ok(())
    }
}

fn canceled() -> Error {
    error(Stage::Capture, Errno::ECANCELED, "remote: files", "the transfer was stopped")
}

impl Remote {
    /// Copies a file or a directory to the other side. A file replaces the file that is there, once it is complete. A
    /// directory is merged with the one that is there. Links below the directory stay links.
    ///
    /// # Errors
    /// A file cannot be read here, or not be written there. EFBIG: the transfer is too large. ETIMEDOUT. EOPNOTSUPP: the
    /// server has no command for files.
    pub fn put(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, options: &Transfer) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let max = options.max_bytes.unwrap_or(u64::MAX).to_string();
        let run = Run::new().writable(QUEUE).timeout(options.timeout);
        let (job, _) = self.start_files(&["unpack".as_ref(), max.as_ref(), to.as_os_str()], &run, options)?;
        let packed = files::pack(from, io::BufWriter::with_capacity(64 << 10, Input(&job)));
        if let Err(error) = &packed
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            // The other side must not take a part for the whole.
            job.stop(Duration::ZERO);
            return Err(local(from, "pack", error));
        }
        job.close_stdin();
        check_files(&job, to, options)
    }

    /// Copies a file or a directory from the other side, as [`put`](Remote::put) does to it.
    ///
    /// # Errors
    /// The same as those of [`put`](Remote::put).
    pub fn get(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, options: &Transfer) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let run = Run::new().timeout(options.timeout);
        let (job, events) = self.start_files(&["pack".as_ref(), from.as_os_str()], &run, options)?;
        let unpacked =
            files::unpack(Received { events, rest: Vec::new(), taken: 0 }, to, options.max_bytes.unwrap_or(u64::MAX));
        match unpacked {
            Ok(()) => check_files(&job, from, options),
            // The end of the stream is the effect of a failure on the other side.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                check_files(&job, from, options)?;
                Err(local(to, "unpack", &error))
            }
            Err(error) => Err(local(to, "unpack", &error)),
        }
    }

    fn start_files(&self, args: &[&OsStr], run: &Run, options: &Transfer) -> Result<(Arc<Job>, Events)> {
        self.0.answered().wait()?;
        let Some([program, first @ ..]) = self.hello().map(|hello| &hello.files[..]) else {
            let message = "this server cannot transfer files";
            return Err(error(Stage::Capture, Errno::EOPNOTSUPP, "remote: files", message));
        };
        let mut command = Command::new(OsStr::from_bytes(program));
        command.args(first.iter().map(|word| OsStr::from_bytes(word))).args(args);
        let window = EventOptions::new().max_bytes(QUEUE).when_full(WhenFull::Wait);
        let (job, events) = self.start_events(&command, run, window)?;
        let job = Arc::new(job);
        options.stop.set_job(Some(job.clone()))?;
        Ok((job, events))
    }
}

/// Waits for the end of the other side. Returns its failure, if there is one.
fn check_files(job: &Job, path: &Path, options: &Transfer) -> Result<()> {
    let output = job.wait()?;
    options.stop.set_job(None)?;
    if output.ok() {
        return Ok(());
    }
    if options.stop.is_stopped() {
        return Err(canceled());
    }
    let words = output.stderr_text();
    let said = words.trim().lines().last().unwrap_or_default();
    let reason = if said.is_empty() { output.exit_message("the transfer", false) } else { said.to_owned() };
    let errno = match output.stop {
        spawnfd::job::Stop::Timeout => Errno::ETIMEDOUT,
        spawnfd::job::Stop::Lost => Errno::ENOTCONN,
        _ if reason.ends_with(files::TOO_LARGE) => Errno::EFBIG,
        _ => Errno::EIO,
    };
    let call = format!("remote: files, {path:?}");
    Err(error(Stage::Capture, errno, &call, &format!("{}: {reason}", path.display())))
}

fn local(path: &Path, what: &str, cause: &io::Error) -> Error {
    let errno = match cause.kind() {
        io::ErrorKind::FileTooLarge => Errno::EFBIG,
        _ => Errno::from_raw(cause.raw_os_error().unwrap_or(Errno::EIO.raw())),
    };
    error(Stage::Capture, errno, &format!("{what}({path:?})"), &format!("{}: {cause}", path.display()))
}

/// The input of a job.
#[derive(Debug)]
struct Input<'a>(&'a Job);

impl Write for Input<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            // The program's timeout bounds the wait: a program that has ended reads no more.
            match self.0.write_timeout(bytes, Duration::from_secs(60)) {
                Ok(0) if !bytes.is_empty() => {}
                Ok(count) => return Ok(count),
                Err(error) => return Err(io::Error::new(io::ErrorKind::BrokenPipe, error)),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The standard output of a job.
#[derive(Debug)]
struct Received {
    events: Events,
    rest: Vec<u8>,
    taken: usize,
}

impl Read for Received {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.rest.len() {
            match self.events.next_timeout(Duration::MAX) {
                Some(Event::Chunk { stream: Stream::Stdout, bytes, .. }) => (self.rest, self.taken) = (bytes, 0),
                Some(Event::End) => return Ok(0),
                _ => {}
            }
        }
        let count = buffer.len().min(self.rest.len() - self.taken);
        buffer[..count].copy_from_slice(&self.rest[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}
