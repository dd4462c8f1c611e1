// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job's output and input as tokio's `AsyncRead` and `AsyncWrite`. They need no tokio runtime: the engine's thread
//! wakes the tasks.

use crate::callback::Callback;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Event, Events, InputWriter, Job, Stream};

/// A job's output, read from its [`Events`]. While no task reads, the program blocks or output is lost, depending on
/// the [event options](super::EventOptions).
///
/// # Errors
/// A read fails once with [`InvalidData`](io::ErrorKind::InvalidData) where output was lost
/// ([`WhenFull::DropOldest`](super::WhenFull::DropOldest)). The next read continues after the gap.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use spawnfd::job::{EventOptions, JobOutput};
/// use spawnfd::{Command, Run};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// let (mut job, events) = Command::new("cat").start_events(&Run::new().writable(1024), EventOptions::default())?;
/// let mut input = job.take_input().expect("writable");
/// let mut output = JobOutput::new(events);
/// input.write_all(b"there and back").await?;
/// input.shutdown().await?;
/// let mut text = String::new();
/// output.read_to_string(&mut text).await?;
/// assert_eq!(text, "there and back");
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct JobOutput {
    events: Events,
    only: Option<Stream>,
    /// Bytes from the queue that have not been read yet, from index `at` on.
    rest: Vec<u8>,
    at: usize,
}

impl JobOutput {
    /// Reads both streams, in order of arrival.
    pub fn new(events: Events) -> JobOutput {
        JobOutput { events, only: None, rest: Vec::new(), at: 0 }
    }

    /// Reads one stream and skips the bytes of the other. The job's result still has the kept bytes of both streams.
    pub fn of(events: Events, stream: Stream) -> JobOutput {
        JobOutput { only: Some(stream), ..JobOutput::new(events) }
    }

    /// Takes the next bytes from the queue. The caller must have read all of `rest` before. At the
    /// end of the output, `rest` stays empty.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.rest.clear();
        self.at = 0;
        while self.rest.is_empty() {
            let (stream, bytes) = match ready!(self.events.poll_next(context)) {
                Some(Event::Chunk { stream, bytes, .. }) => (stream, bytes),
                Some(Event::Line { stream, mut bytes, end, .. }) => {
                    bytes.extend_from_slice(end.as_bytes());
                    (stream, bytes)
                }
                Some(Event::Lost { bytes }) => {
                    let lost = format!("{bytes} bytes of output came faster than they were read");
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, lost)));
                }
                Some(Event::End) | None => break,
            };
            if self.only.is_none_or(|only| only == stream) {
                self.rest = bytes;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for JobOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.at == self.rest.len() {
            ready!(self.poll_rest(context))?;
        }
        let length = buffer.remaining().min(self.rest.len() - self.at);
        buffer.put_slice(&self.rest[self.at..][..length]);
        self.at += length;
        Poll::Ready(Ok(()))
    }
}

/// A job's standard input, taken from the job. Shutting down or dropping this value ends the input.
///
/// Flushing does not wait until the program has read the bytes. Writing fails with
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe) when the program has closed its input or ended.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use spawnfd::{Command, Run};
/// use tokio::io::AsyncWriteExt;
/// let mut job = Command::new("wc").arg("-c").start(&Run::new().writable(1024))?;
/// let mut input = job.take_input().expect("writable");
/// input.write_all(b"12345").await?;
/// input.shutdown().await?; // wc reads the end of its input
/// assert_eq!(job.wait_async().await?.stdout_text().trim(), "5");
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
#[must_use = "dropping the input ends it: the program reads EOF"]
#[derive(Debug)]
pub struct JobInput(InputWriter);

impl Job {
    /// Takes the input of a [writable](super::Run::writable) run; `None` the second time. After that,
    /// [`write`](Job::write) fails.
    pub fn take_input(&mut self) -> Option<JobInput> {
        self.writer.take().map(JobInput)
    }
}

impl AsyncWrite for JobInput {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let JobInput(writer) = &*self;
        let mut length = writer.write(bytes)?;
        if length == 0 && !bytes.is_empty() {
            writer.set_callback(Callback::waking(context));
            // The queue may have got space between the first write and `set_callback`.
            length = writer.write(bytes)?;
            if length == 0 {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.close();
        Poll::Ready(Ok(()))
    }
}
