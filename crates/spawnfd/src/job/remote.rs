// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job whose program another process drives, usually on another machine.
//!
//! The caller has the same [`Job`] and [`Events`] as for a program of this process. The connection to the other process
//! has a [`RemoteRun`]: it delivers the output and the result that arrive, and takes the input that the caller writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::engine::{EngineOrder, RemoteRuns, RunHandle};
use super::handle::{Job, JobState};
use super::input::{InputEngine, Source};
use super::record::SharedRecord;
use super::{EventOptions, Events, Output, Producer, Run, Stream, connect_events};
use crate::callback::Callback;
use crate::error::Result;
use crate::limiter::{Limiter, Permit};
use crate::tree::Tier;

/// The connection's half of a remote job. It calls the caller's callbacks without holding a lock.
#[derive(Debug)]
pub struct RemoteRun {
    state: Arc<JobState>,
    record: Arc<SharedRecord>,
    events: Mutex<Option<Arc<Producer>>>,
    input: Mutex<Option<Source>>,
    /// The program reads no more.
    is_refused: AtomicBool,
    end: Mutex<End>,
}

#[derive(Debug, Default)]
struct End {
    /// The result, until it is delivered.
    result: Option<Result<Arc<Output>>>,
    /// There is a result, or there was one.
    is_decided: bool,
    /// The position in the output at which the result comes, until the output has reached it.
    position: Option<u64>,
    /// The job's places with limiters.
    permits: Vec<Permit>,
}

/// A remote job before the program has started.
#[derive(Debug)]
pub struct UnstartedJob(Job);

impl UnstartedJob {
    /// The job of a program that has started with this pid.
    pub fn started(mut self, pid: u32, tier: Tier) -> Job {
        (self.0.pid, self.0.tier) = (pid, tier);
        self.0
    }
}

/// Waits for the place that the run needs with its limiter.
///
/// # Errors
/// EAGAIN: the caller is a run's callback, which cannot wait.
pub fn acquire(run: &Run) -> Result<Vec<Permit>> {
    let permit = run.take_permit();
    let limiter = run.limiter.as_ref().filter(|_| permit.is_none());
    Ok(limiter.map(Limiter::acquire).transpose()?.or(permit).into_iter().collect())
}

/// The same as [`acquire`], without blocking the thread.
pub async fn acquire_async(run: &Run) -> Vec<Permit> {
    let permit = run.take_permit();
    match run.limiter.as_ref().filter(|_| permit.is_none()) {
        Some(limiter) => vec![limiter.acquire_async().await],
        None => permit.into_iter().collect(),
    }
}

/// Creates a job with the id `id` of a connection. The options of `run` have been checked. The job returns `permits` at
/// its end.
pub fn remote_job(
    runs: Weak<dyn RemoteRuns>,
    id: u64,
    run: &Run,
    permits: Vec<Permit>,
    events: Option<EventOptions>,
) -> (UnstartedJob, RemoteRun, Option<Events>) {
    let handle = RunHandle::remote(runs, id);
    let (writer, source) = run.writable.map(Source::stream).unzip();
    if let Some(writer) = &writer {
        writer.set_engine(InputEngine { wake: handle.callback(EngineOrder::Feed), is_watched: Box::new(|_| false) });
    }
    let (producer, events) = events.map(|options| connect_events(options)(&handle)).unzip();
    let state = Arc::new(JobState::new());
    let record = Arc::new(SharedRecord::new(&run.record_of_remote()));
    let job = Job {
        handle,
        pid: 0,
        state: state.clone(),
        record: record.clone(),
        writer,
        sources: Default::default(),
        output_limit: u64::MAX,
        tier: Tier::default(),
        command_limits: None,
        program: None,
        ends_on_drop: true,
    };
    let input = Mutex::new(source.or_else(|| run.input.clone().map(Source::bytes)));
    let events_of_run = Mutex::new(producer.flatten().map(Arc::new));
    let end = Mutex::new(End { permits, ..End::default() });
    (
        UnstartedJob(job),
        RemoteRun { state, record, events: events_of_run, input, is_refused: AtomicBool::new(false), end },
        events,
    )
}

impl RemoteRun {
    /// Delivers output.
    pub fn output(&self, stream: Stream, bytes: &[u8]) {
        let mut record = self.record.lock();
        let position = record.append(stream, bytes);
        self.record.announce(record);
        call(self.producer().and_then(|events| events.push(stream, position, bytes)));
        self.deliver();
    }

    fn producer(&self) -> Option<Arc<Producer>> {
        lock(&self.events).clone()
    }

    /// Whether the caller wants more output now. If not, an order `Read` follows once it does.
    pub fn wants_more(&self) -> bool {
        self.producer().is_none_or(|events| events.wants_more())
    }

    /// Whether the program has input.
    pub fn has_input(&self) -> bool {
        lock(&self.input).is_some()
    }

    /// Takes at most `max` bytes of input. Returns `None` after the last.
    pub fn take_input(&self, max: usize) -> Option<Vec<u8>> {
        // Keep the source, so that the caller's callback runs without the lock.
        let mut source = lock(&self.input).take()?;
        let taken = source.take(max);
        let mut slot = lock(&self.input);
        if !self.is_refused.load(Ordering::SeqCst) {
            *slot = Some(source);
        }
        taken
    }

    /// The program reads no more. Writes of the caller fail with EPIPE.
    pub fn refuse_input(&self) {
        self.is_refused.store(true, Ordering::SeqCst);
        let source = lock(&self.input).take();
        drop(source);
    }

    /// Delivers the result once the output before it has arrived, or at once if the caller reads no more for now.
    /// Only the first result counts.
    pub fn result(&self, output: Result<Output>) {
        self.refuse_input();
        let mut end = lock(&self.end);
        if std::mem::replace(&mut end.is_decided, true) {
            return;
        }
        end.position = Some(output.as_ref().map_or(0, |output| output.seen_bytes));
        end.result = Some(output.map(Arc::new));
        drop(end);
        self.deliver();
    }

    /// Ends the output. `lost` is the outcome of a job that has no result by now.
    pub fn end(&self, lost: impl FnOnce() -> Result<Output>) {
        let is_decided = lock(&self.end).is_decided;
        if !is_decided {
            self.result(lost());
        }
        self.close();
        let events = lock(&self.events).take();
        drop(events);
    }

    /// Delivers a result that waits for nothing any more.
    pub fn deliver(&self) {
        let Some(position) = lock(&self.end).position else { return };
        let seen = self.record.lock().seen();
        match self.producer() {
            Some(events) if position > seen && events.wants_more() => {}
            Some(_) if position > seen => self.set(),
            _ => self.close(),
        }
    }

    /// Marks the end of the output before the result, and delivers the result.
    fn close(&self) {
        let position = lock(&self.end).position.take();
        if position.is_some() {
            let consumer = self.producer().and_then(|events| events.mark_result());
            self.record.close_without_result();
            self.set();
            call(consumer);
        }
    }

    fn set(&self) {
        let mut end = lock(&self.end);
        let (result, permits) = (end.result.take(), std::mem::take(&mut end.permits));
        drop(end);
        drop(permits);
        if let Some(result) = result {
            self.state.set(result);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn call(callback: Option<Callback>) {
    if let Some(callback) = callback {
        callback.call();
    }
}
