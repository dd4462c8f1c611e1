// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jobs: programs whose output the caller can read while they run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::Job;
use spawnfd::job::{Event, Events, LineEnd, TerminalSize, WhenFull};
use spawnfd::options::Call;

use crate::connection::Connection;
use crate::errors::{Failure, Origins, refused};
use crate::queue::{Outcome, Queue, Shared, lock};
use crate::request::{Request, Started};
use crate::result::NativeResult;
use crate::values::{data, duration, is_absent};

/// A running program. Dropping it ends the program.
#[napi]
pub struct NativeJob {
    job: Job,
    /// The time between SIGTERM and SIGKILL.
    grace: Duration,
    origins: Origins,
    events: Mutex<Events>,
    /// The connection to the machine where the program runs, if that is another one.
    connection: Option<Arc<Connection>>,
    /// The states that callers can wait for: the result, events, space for input.
    waits: [Arc<Wait>; 3],
}

/// A state to wait for, in the order of [`NativeJob::waits`].
#[napi]
pub enum Awaited {
    Result,
    Event,
    Writable,
}

#[derive(Default)]
struct Wait(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    /// Whether the state has changed since the last wait.
    has_changed: bool,
    caller: Option<(Arc<Shared>, u32)>,
}

impl Wait {
    /// Updates the wait, and answers a caller that waits if the state has changed.
    fn update(&self, update: impl FnOnce(&mut Waiting)) {
        let mut wait = lock(&self.0);
        update(&mut wait);
        if wait.has_changed
            && let Some((queue, key)) = wait.caller.take()
        {
            wait.has_changed = false;
            drop(wait);
            queue.push(key, Outcome::woken());
        }
    }

    fn firing(self: &Arc<Wait>) -> impl Fn() + Send + Sync + 'static {
        let wait = self.clone();
        move || wait.update(|wait| wait.has_changed = true)
    }
}

/// An event of a job's output. Without `stream`: `lost` bytes were dropped. Without both: the end.
#[napi(object, object_from_js = false)]
pub struct NativeEvent<'env> {
    pub stream: Option<&'static str>,
    pub data: Option<BufferSlice<'env>>,
    /// Whether `data` is the part of a line that has no end yet, or that is too long.
    pub partial: bool,
    pub lost: f64,
}

/// Output from a position on.
#[napi(object, object_from_js = false)]
pub struct NativeChunk<'env> {
    pub data: BufferSlice<'env>,
    pub next: f64,
    pub lost: f64,
}

/// Starts a program. The library's thread starts it, and the queue gets the job under `key`.
#[napi]
pub fn start(queue: &Queue, key: u32, argv: Unknown<'_>, options: Object<'_>) -> Result<Option<Failure>> {
    let request = Request::new(&argv, &options, Call::Start)?;
    Ok(queue.begin(key, |stop| async move { request.start(stop).await.map(NativeJob::of) }))
}

impl NativeJob {
    pub fn of((job, mut events, origins, grace): Started) -> NativeJob {
        let waits: [Arc<Wait>; 3] = Default::default();
        job.when_done(waits[Awaited::Result as usize].firing());
        events.on_event(waits[Awaited::Event as usize].firing());
        job.on_writable(waits[Awaited::Writable as usize].firing());
        NativeJob { job, grace, origins, events: Mutex::new(events), connection: None, waits }
    }

    /// A job on another machine.
    pub fn remote(started: Started, connection: Arc<Connection>) -> NativeJob {
        NativeJob { connection: Some(connection), ..NativeJob::of(started) }
    }
}

#[napi]
impl NativeJob {
    #[napi(getter)]
    pub fn pid(&self) -> u32 {
        self.job.id()
    }

    /// Puts an outcome under `key` into the queue once the state has changed since the last call.
    #[napi]
    pub fn wait(&self, queue: &Queue, key: u32, awaited: Awaited) {
        self.waits[awaited as usize].update(|wait| wait.caller = Some((queue.shared(), key)));
    }

    /// The result, if there is one.
    #[napi]
    pub fn result(&self) -> Either3<NativeResult, Failure, Null> {
        match self.job.try_wait() {
            Ok(None) => Either3::C(Null),
            Ok(Some(output)) => {
                Either3::A(NativeResult::at(output, self.connection.as_ref().map(|connection| connection.place())))
            }
            Err(error) => Either3::B(self.origins.failure(error)),
        }
    }

    /// The events that have arrived, at most `max`.
    #[napi]
    pub fn take_events<'env>(&self, env: &'env Env, max: u32) -> Result<Vec<NativeEvent<'env>>> {
        let mut events = lock(&self.events);
        let mut taken = Vec::new();
        while taken.len() < max as usize {
            let (stream, bytes, partial, lost) = match events.try_next() {
                Some(Event::Chunk { stream, bytes, .. }) => (Some(stream), Some(bytes), false, 0),
                Some(Event::Line { stream, mut bytes, end, .. }) => {
                    bytes.extend_from_slice(end.as_bytes());
                    (Some(stream), Some(bytes), end == LineEnd::Split, 0)
                }
                Some(Event::Lost { bytes, .. }) => (None, None, false, bytes),
                Some(Event::End) => (None, None, false, 0),
                Some(_) => continue,
                None => break,
            };
            let is_end = stream.is_none() && lost == 0;
            let data = bytes.map(|bytes| BufferSlice::copy_from(env, bytes)).transpose()?;
            taken.push(NativeEvent { stream: stream.map(|stream| stream.name()), data, partial, lost: lost as f64 });
            if is_end {
                break;
            }
        }
        Ok(taken)
    }

    /// Delivers lines of at most this many bytes, or chunks.
    #[napi]
    pub fn set_lines(&self, max: Option<u32>) {
        lock(&self.events).set_lines(max.map(|max| max as usize));
    }

    /// Whether the program blocks while the caller does not read events.
    #[napi]
    pub fn hold(&self, hold: bool) {
        lock(&self.events).set_when_full(if hold { WhenFull::Wait } else { WhenFull::DropOldest });
    }

    /// The output of both streams from a position on.
    #[napi]
    pub fn read<'env>(&self, env: &'env Env, since: f64) -> Result<NativeChunk<'env>> {
        let chunk = self.job.read(since as u64);
        let data = BufferSlice::copy_from(env, &chunk.bytes)?;
        Ok(NativeChunk { data, next: chunk.next as f64, lost: chunk.lost as f64 })
    }

    /// Queues input. Returns how many bytes were accepted, or why the program reads no more.
    #[napi]
    pub fn write(&self, input: Unknown<'_>) -> Result<Either<u32, Failure>> {
        let bytes = data(&input, "data")?;
        Ok(match self.job.write(&bytes) {
            Ok(accepted) => Either::A(accepted as u32),
            Err(error) => Either::B(Failure::from(error)),
        })
    }

    #[napi]
    pub fn close_stdin(&self) {
        self.job.close_stdin();
    }

    /// Ends the program. `grace` is in milliseconds; undefined: that of the options.
    #[napi]
    pub fn stop(&self, grace: Unknown<'_>) -> Result<()> {
        self.job.stop(if is_absent(&grace)? { self.grace } else { duration(&grace, "grace")? });
        Ok(())
    }

    #[napi]
    pub fn signal(&self, signal: i32, tree: bool) -> Result<()> {
        self.job.signal(signal, tree).map_err(refused)
    }

    #[napi]
    pub fn resize(&self, rows: u16, columns: u16) {
        self.job.resize(TerminalSize::new(rows, columns));
    }
}
