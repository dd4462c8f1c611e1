// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job of the other side: its output goes out as far as there is credit.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spawnfd::Job;
use spawnfd::internal::EngineOrder;
use spawnfd::job::{Event, Events, TerminalSize, Until};

use super::calls::{Calls, grace};
use crate::frame::Kind;
use crate::message::{OrderMessage, StartedMessage, pack};
use crate::turns::Turns;

/// The bytes that a side accepts of each call before it sends a `Credit` frame.
pub(crate) const FIRST_CREDIT: u32 = 256 << 10;

/// What a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A program.
    Program,
    /// A program whose processes the job adopts. The call lasts until the other side ends it.
    Adopting,
    /// A command of a session.
    Command,
}

/// A job of the other side.
#[derive(Debug)]
pub(super) struct JobCall {
    call: u32,
    job: Job,
    calls: Calls,
    form: Form,
    /// The other side wants no output, only the result.
    is_silent: bool,
    output: Turns<OutputState>,
    has_result: AtomicBool,
    has_ended: AtomicBool,
    is_over: AtomicBool,
    input: Mutex<InputState>,
}

#[derive(Debug)]
struct OutputState {
    events: Events,
    /// The number of bytes that the other side accepts. Below zero after a chunk that was larger than the rest of the
    /// credit.
    credit: i64,
    /// The events have ended with the result of a session's command, and now go on with its background jobs.
    is_past_result: bool,
}

#[derive(Debug, Default)]
struct InputState {
    pending: VecDeque<u8>,
    /// No more input follows.
    is_closed: bool,
    /// The program reads no more.
    is_refused: bool,
    /// The bytes that the program's queue has taken since the last `Credit` frame.
    taken: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl JobCall {
    pub(super) fn new(
        call: u32,
        (job, events): (Job, Events),
        calls: Calls,
        form: Form,
        is_silent: bool,
    ) -> Arc<JobCall> {
        let output = OutputState { events, credit: FIRST_CREDIT.into(), is_past_result: false };
        Arc::new(JobCall {
            call,
            job,
            calls,
            form,
            is_silent,
            output: Turns::new(output),
            has_result: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            input: Mutex::default(),
        })
    }

    /// Tells that the program has started, and sends its output and its result from now on.
    pub(super) fn begin(self: &Arc<JobCall>) {
        let started = StartedMessage { pid: self.job.id(), tree: self.job.tier().name().to_owned() };
        self.calls.connection().send(Kind::Started, self.call, &[&pack(&started)]);
        self.job.on_writable(self.calling(JobCall::feed));
        self.output.change(|output| output.events.on_event(self.calling(JobCall::pump)));
        self.pump();
        self.job.when_done(self.calling(JobCall::finish));
    }

    /// A callback that calls `function`, as long as the call lasts.
    fn calling(self: &Arc<JobCall>, function: fn(&JobCall)) -> impl Fn() + Send + Sync + 'static {
        let call = Arc::downgrade(self);
        move || {
            if let Some(call) = call.upgrade() {
                function(&call);
            }
        }
    }

    /// The other side accepts further bytes of output.
    pub(super) fn add_credit(&self, bytes: u32) {
        self.output.change(|output| output.credit += i64::from(bytes));
        self.pump();
    }

    /// Sends output, as far as there is credit.
    fn pump(&self) {
        self.output.serve(|output| self.send_output(output));
    }

    fn send_output(&self, output: &mut OutputState) {
        while !self.has_ended.load(Ordering::SeqCst) && output.credit > 0 {
            match output.events.try_next() {
                Some(Event::Chunk { .. }) if self.is_silent => {}
                Some(Event::Chunk { stream, bytes, .. }) => {
                    output.credit -= bytes.len() as i64;
                    let number = [stream.index() as u8 + 1];
                    self.calls.connection().send(Kind::Output, self.call, &[&number, &bytes]);
                }
                Some(Event::End) if self.form == Form::Command && !output.is_past_result => {
                    output.is_past_result = true;
                    output.events.set_until(Until::Closed);
                }
                Some(Event::End) => {
                    self.has_ended.store(true, Ordering::SeqCst);
                    self.end_if_over();
                }
                Some(_) => {}
                None => return,
            }
        }
    }

    /// Sends the result.
    fn finish(&self) {
        match self.job.try_wait() {
            Ok(Some(output)) => self.calls.finish(self.call, Ok(output)),
            Ok(None) => return,
            Err(error) => self.calls.finish(self.call, Err(error)),
        }
        self.has_result.store(true, Ordering::SeqCst);
        self.end_if_over();
    }

    /// Tells the end of the output once that and the result have been sent.
    fn end_if_over(&self) {
        let is_over = self.has_ended.load(Ordering::SeqCst) && self.has_result.load(Ordering::SeqCst);
        if is_over && !self.is_over.swap(true, Ordering::SeqCst) {
            self.calls.connection().send(Kind::End, self.call, &[]);
            if self.form != Form::Adopting {
                self.calls.remove(self.call);
            }
        }
    }

    /// Bytes of the program's input. No bytes: its end.
    pub(super) fn input(&self, bytes: &[u8]) {
        let mut input = lock(&self.input);
        input.is_closed |= bytes.is_empty();
        if !input.is_refused {
            input.pending.extend(bytes);
        }
        drop(input);
        self.feed();
    }

    /// Passes input on, as far as the program's queue has room.
    fn feed(&self) {
        let mut input = lock(&self.input);
        while !input.pending.is_empty() {
            let bytes = input.pending.as_slices().0;
            match self.job.write(bytes) {
                Ok(0) => break,
                Ok(count) => {
                    input.pending.drain(..count);
                    input.taken += count as u32;
                }
                Err(_) => {
                    input.is_refused = true;
                    input.pending.clear();
                    self.calls.connection().send(Kind::Input, self.call, &[]);
                }
            }
        }
        if input.taken >= FIRST_CREDIT / 4 {
            let taken = std::mem::take(&mut input.taken);
            self.calls.connection().send(Kind::Credit, self.call, &[&pack(&taken)]);
        }
        if input.is_closed && input.pending.is_empty() {
            drop(input);
            self.job.close_stdin();
        }
    }

    /// Carries out an order.
    pub(super) fn order(&self, order: OrderMessage) {
        match order {
            OrderMessage::Stop(seconds) => self.job.order(EngineOrder::End { grace: seconds.map(grace) }),
            // The other side has checked the number.
            OrderMessage::Signal(signal, tree) => _ = self.job.signal(signal, tree),
            OrderMessage::Resize(rows, columns) => self.job.resize(TerminalSize::new(rows, columns)),
            _ => {}
        }
    }

    /// Whether the result and all output have been sent.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}
