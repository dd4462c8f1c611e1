// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job of the other side: its output goes out as far as there is credit.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spawnfd::Job;
use spawnfd::internal::EngineOrder;
use spawnfd::job::{Event, Events, Until};

use super::{Calls, engine_order};
use crate::frame::{Kind, Malformed};
use crate::message::{CallMessage, FIRST_CREDIT, MAX_CREDIT, OrderMessage, StartedMessage, pack};
use crate::turns::{Turns, lock};

/// The kind of program that a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A program.
    Program,
    /// A program whose processes the job adopts. The call lasts until the other side ends it.
    Adopting,
    /// A command of a session.
    Command,
}

/// The properties of a job's streams that its call names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    /// The other side wants no output, only the result.
    is_silent: bool,
    /// The length of the whole input.
    input_length: Option<u64>,
}

impl From<&CallMessage> for Streams {
    fn from(message: &CallMessage) -> Streams {
        Streams { is_silent: message.is_silent, input_length: message.input_length }
    }
}

/// A job of the other side.
#[derive(Debug)]
pub(super) struct JobCall {
    call: u32,
    job: Job,
    calls: Calls,
    form: Form,
    streams: Streams,
    output: Turns<OutputState>,
    has_result: AtomicBool,
    has_ended: AtomicBool,
    is_over: AtomicBool,
    /// The other side has ended the job.
    is_stopped: AtomicBool,
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
    /// All bytes that the program's queue has taken.
    total: u64,
    /// The credit that the other side has used and not got back.
    spent: usize,
}

impl JobCall {
    pub(super) fn new(
        call: u32,
        (job, events): (Job, Events),
        calls: Calls,
        form: Form,
        streams: Streams,
    ) -> Arc<JobCall> {
        let output = OutputState { events, credit: FIRST_CREDIT.into(), is_past_result: false };
        Arc::new(JobCall {
            call,
            job,
            calls,
            form,
            streams,
            output: Turns::new(output),
            has_result: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
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
    pub(super) fn add_credit(&self, bytes: u32) -> Result<(), Malformed> {
        let credit = self.output.change(|output| {
            output.credit += i64::from(bytes);
            output.credit
        });
        self.pump();
        if credit > MAX_CREDIT {
            return Err(Malformed(format!("a credit of {credit} bytes; the largest is {MAX_CREDIT}")));
        }
        Ok(())
    }

    /// Sends output, as far as there is credit.
    fn pump(&self) {
        self.output.serve(|output| self.send_output(output));
    }

    fn send_output(&self, output: &mut OutputState) {
        while !self.has_ended.load(Ordering::SeqCst) && output.credit > 0 {
            match output.events.try_next() {
                Some(Event::Chunk { .. }) if self.streams.is_silent => {}
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
            Ok(Some(mut output)) => {
                if !output.input_refused && self.has_missing_input() {
                    Arc::make_mut(&mut output).input_refused = true;
                }
                self.calls.finish(self.call, Ok(output));
            }
            Ok(None) => return,
            Err(error) => {
                // An error is the last frame of a call.
                self.is_over.store(true, Ordering::SeqCst);
                self.has_ended.store(true, Ordering::SeqCst);
                self.calls.remove(self.call);
                return self.calls.finish(self.call, Err(error));
            }
        }
        self.has_result.store(true, Ordering::SeqCst);
        self.end_if_over();
    }

    /// Whether a part of the input has come too late, or not at all.
    fn has_missing_input(&self) -> bool {
        self.streams.input_length.is_some_and(|length| lock(&self.input).total < length)
    }

    /// Tells the end of the output once that and the result have been sent.
    fn end_if_over(&self) {
        let is_over = self.has_ended.load(Ordering::SeqCst) && self.has_result.load(Ordering::SeqCst);
        if is_over && !self.is_over.swap(true, Ordering::SeqCst) {
            // After this frame, the other side may use the number again.
            if self.form != Form::Adopting || self.is_stopped.load(Ordering::SeqCst) {
                self.calls.remove(self.call);
            }
            self.calls.connection().send(Kind::End, self.call, &[]);
        }
    }

    /// Bytes of the program's input. No bytes: its end.
    pub(super) fn input(&self, bytes: &[u8]) -> Result<(), Malformed> {
        let mut input = lock(&self.input);
        if input.is_closed {
            return Err(Malformed("input after its end".to_owned()));
        }
        input.is_closed = bytes.is_empty();
        input.spent += bytes.len();
        if input.spent > FIRST_CREDIT as usize {
            return Err(Malformed("more input than the credit of the call".to_owned()));
        }
        if !input.is_refused {
            input.pending.extend(bytes);
        }
        drop(input);
        self.feed();
        Ok(())
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
                    input.total += count as u64;
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
            input.spent -= taken as usize;
            self.calls.connection().send(Kind::Credit, self.call, &[&pack(&taken)]);
        }
        if input.is_closed && input.pending.is_empty() {
            drop(input);
            self.job.close_stdin();
        }
    }

    /// Carries out an order.
    pub(super) fn order(&self, order: OrderMessage) -> Result<(), Malformed> {
        match engine_order(&order)? {
            EngineOrder::End { grace } => self.stop(grace),
            order => self.job.order(order),
        }
        Ok(())
    }

    /// Ends the job: SIGTERM, and SIGKILL after `grace`. `None`: after the job's own grace.
    pub(super) fn stop(&self, grace: Option<Duration>) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.job.order(EngineOrder::End { grace });
        if self.is_over.load(Ordering::SeqCst) {
            self.calls.remove(self.call);
        }
    }
}
