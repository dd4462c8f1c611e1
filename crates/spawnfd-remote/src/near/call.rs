// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's half of one call.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use spawnfd::internal::RemoteRun;
use spawnfd::job::Stream;
use spawnfd::{Error, Output, Result};

use crate::frame::Malformed;
use crate::message::{FIRST_CREDIT, MAX_CREDIT, StartedMessage};
use crate::turns::{Turns, lock};

/// When a call is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// With its result.
    Run,
    /// With the end of its output.
    Job,
    /// When the caller drops the job.
    Adopting,
    /// When the session is closed.
    Session,
}

/// The client's half of one call.
#[derive(Debug)]
pub(super) struct NearCall {
    /// The job that the caller has.
    pub(super) run: RemoteRun,
    /// Ends once the program has started, or not.
    start: RemoteRun,
    pub(super) started: OnceLock<StartedMessage>,
    is_over: AtomicBool,
    pub(super) form: Form,
    /// The time by which a server that works has sent the result.
    pub(super) due: Option<Instant>,
    /// The caller has ended the call.
    is_stopped: AtomicBool,
    has_result: AtomicBool,
    /// Output that came before the result.
    kept: Mutex<[Vec<u8>; 2]>,
    /// The number of bytes that a result can have of each stream.
    max_kept: usize,
    /// The number of bytes of input that the server accepts.
    input_credit: AtomicI64,
    /// Whether the end of the input has been sent.
    sending: Turns<bool>,
    /// The bytes of output that have come since the last `Credit` frame.
    received: AtomicU32,
    /// The number of bytes of output that the server may send.
    output_credit: AtomicI64,
}

impl NearCall {
    pub(super) fn new(run: RemoteRun, start: RemoteRun, form: Form, due: Option<Instant>, max_kept: usize) -> NearCall {
        NearCall {
            run,
            start,
            started: OnceLock::new(),
            is_over: AtomicBool::new(false),
            form,
            due,
            is_stopped: AtomicBool::new(false),
            has_result: AtomicBool::new(false),
            kept: Mutex::default(),
            max_kept,
            input_credit: AtomicI64::new(FIRST_CREDIT.into()),
            sending: Turns::default(),
            received: AtomicU32::new(0),
            output_credit: AtomicI64::new(FIRST_CREDIT.into()),
        }
    }

    /// Checks that the call is a job whose program has started.
    pub(super) fn expect_started(&self, what: &str) -> std::result::Result<(), Malformed> {
        match self.form {
            Form::Job | Form::Adopting if self.started.get().is_some() => Ok(()),
            Form::Job | Form::Adopting => Err(Malformed(format!("{what} of a program that has not started"))),
            Form::Run | Form::Session => Err(Malformed(format!("{what} of a call that is no job"))),
        }
    }

    /// Notes that the program has started, or that the session is open.
    pub(super) fn set_started(&self, started: StartedMessage) -> std::result::Result<(), Malformed> {
        if self.form == Form::Run || self.started.set(started).is_err() {
            return Err(Malformed("a start of a call that has started, or that is a run".to_owned()));
        }
        self.note_start(Ok(()));
        Ok(())
    }

    /// Passes the input that there is credit for to `send`. No bytes: its end.
    pub(super) fn feed(&self, send: impl Fn(&[u8])) {
        self.sending.serve(|has_ended| {
            while !*has_ended {
                let credit = self.input_credit.load(Ordering::SeqCst);
                if credit <= 0 {
                    return;
                }
                match self.run.take_input(credit.min(32 << 10) as usize) {
                    Some(bytes) if bytes.is_empty() => return,
                    Some(bytes) => {
                        self.input_credit.fetch_sub(bytes.len() as i64, Ordering::SeqCst);
                        send(&bytes);
                    }
                    None => {
                        *has_ended = true;
                        send(&[]);
                    }
                }
            }
        });
    }

    pub(super) fn add_input_credit(&self, bytes: u32) -> std::result::Result<(), Malformed> {
        self.expect_started("credit")?;
        let credit = self.input_credit.fetch_add(bytes.into(), Ordering::SeqCst) + i64::from(bytes);
        if credit > MAX_CREDIT {
            return Err(Malformed(format!("a credit of {credit} bytes; the largest is {MAX_CREDIT}")));
        }
        Ok(())
    }

    /// Delivers output. Returns the credit to give to the server, if it is time for that.
    pub(super) fn output(&self, stream: Stream, bytes: &[u8]) -> std::result::Result<Option<u32>, Malformed> {
        self.expect_started("output")?;
        // The server may exceed the credit by a part of one frame.
        if self.output_credit.fetch_sub(bytes.len() as i64, Ordering::SeqCst) <= 0 {
            return Err(Malformed("more output than the credit of the call".to_owned()));
        }
        self.run.output(stream, bytes);
        self.received.fetch_add(bytes.len() as u32, Ordering::SeqCst);
        Ok(self.credit())
    }

    /// The credit to give to the server, if it is time for that and the caller wants more output.
    pub(super) fn credit(&self) -> Option<u32> {
        let is_enough = self.received.load(Ordering::SeqCst) >= FIRST_CREDIT / 4;
        let given = (is_enough && self.run.wants_more()).then(|| self.received.swap(0, Ordering::SeqCst));
        given.filter(|&bytes| bytes > 0).inspect(|&bytes| {
            self.output_credit.fetch_add(bytes.into(), Ordering::SeqCst);
        })
    }

    /// Keeps a part of the result's output.
    pub(super) fn keep(&self, stream: Stream, bytes: &[u8]) -> std::result::Result<(), Malformed> {
        let mut kept = lock(&self.kept);
        let kept = &mut kept[stream.index()];
        if self.form == Form::Session || self.has_result.load(Ordering::SeqCst) {
            return Err(Malformed("output of a result that the call has not".to_owned()));
        }
        if kept.len() + bytes.len() > self.max_kept {
            return Err(Malformed(format!("a result with more than {} bytes of a stream", self.max_kept)));
        }
        kept.extend_from_slice(bytes);
        Ok(())
    }

    /// Delivers the result.
    pub(super) fn result(&self, output: Result<Output>) {
        self.has_result.store(true, Ordering::SeqCst);
        let [stdout, stderr] = std::mem::take(&mut *lock(&self.kept));
        self.run.result(output.map(|mut output| {
            output.stdout = joined(stdout, output.stdout);
            output.stderr = joined(stderr, output.stderr);
            output
        }));
    }

    /// Wakes the caller that waits for the start.
    pub(super) fn note_start(&self, outcome: Result<()>) {
        self.start.end(|| outcome.map(|()| Output::default()));
    }

    /// Whether the server has sent the result.
    pub(super) fn has_result(&self) -> bool {
        self.has_result.load(Ordering::SeqCst)
    }

    /// Whether the server has not kept the run's time limit.
    pub(super) fn is_overdue(&self) -> bool {
        !self.has_result() && self.due.is_some_and(|due| due < Instant::now())
    }

    /// The server has sent all output. Returns whether the call is over.
    pub(super) fn note_end(&self) -> bool {
        self.is_over.store(true, Ordering::SeqCst);
        self.form != Form::Adopting || self.is_stopped.load(Ordering::SeqCst)
    }

    /// The caller has ended the call. Returns whether the call is over.
    pub(super) fn note_stop(&self) -> bool {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.is_over.load(Ordering::SeqCst)
    }

    /// Ends a call that has no result: the connection is lost, or the call has failed.
    pub(super) fn fail(&self, outcome: impl FnOnce() -> Result<Output>, start_error: &Error) {
        self.note_start(Err(start_error.clone()));
        self.run.end(outcome);
    }
}

fn joined(mut first: Vec<u8>, rest: Vec<u8>) -> Vec<u8> {
    if first.is_empty() {
        return rest;
    }
    first.extend(rest);
    first
}
