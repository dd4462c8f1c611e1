// SPDX-License-Identifier: MIT OR Apache-2.0
//! The active calls of a connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spawnfd::internal::{EngineOrder, Stored, invalid};
use spawnfd::job::{EventOptions, Events, Leftovers, RunHandle};
use spawnfd::options::Call;
use spawnfd::{Job, Output, Result};

use super::connection::Connection;
use super::job::{Form, JobCall};
use super::session::SessionCall;
use crate::frame::Kind;
use crate::message::{CallMessage, OrderMessage, ResultMessage, What, pack};

/// The output of a job that may wait in this process, in bytes.
pub(super) const PENDING: usize = 256 << 10;

/// Output above this size comes in frames of its own.
const INLINE: usize = 128 << 10;

/// The size of such a frame.
const PIECE: usize = 64 << 10;

/// An active call.
#[derive(Clone, Debug)]
enum Active {
    Run(RunHandle),
    /// A command whose shell is not ready yet, and what has come for it.
    Starting(Arc<Mutex<Vec<Early>>>),
    Job(Arc<JobCall>),
    Session(Arc<SessionCall>),
}

/// The grace of an order.
pub(super) fn grace(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// What has come for a command before its start.
#[derive(Debug)]
enum Early {
    Input(Vec<u8>),
    Order(OrderMessage),
}

/// The calls of a connection.
#[derive(Clone, Debug)]
pub(super) struct Calls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connection: Arc<Connection>,
    active: Mutex<HashMap<u32, Active>>,
    /// Results with a spill file, which exists as long as they do.
    spilled: Mutex<Vec<Arc<Output>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Calls {
    pub(super) fn new(connection: Arc<Connection>) -> Calls {
        Calls(Arc::new(Shared { connection, active: Mutex::default(), spilled: Mutex::default() }))
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.0.connection
    }

    /// Begins a call.
    pub(super) fn begin(&self, call: u32, message: CallMessage) {
        let begun = match message.what {
            What::Run => self.run(call, message),
            What::Start => self.start(call, &message),
            What::Session => self.open(call, &message),
            What::Command => self.command(call, &message),
        };
        if let Err(error) = begun {
            self.connection().send_error(call, &error);
        }
    }

    fn run(&self, call: u32, message: CallMessage) -> Result<()> {
        let (command, mut options) = message.call.command(Call::Run)?;
        if let Some(input) = message.input {
            options.run = options.run.input(input.into_vec());
        }
        let calls = self.clone();
        // The callback can come before this call has been added.
        let mut active = lock(&self.0.active);
        let handle = command.run_then(&options.run, move |output| {
            lock(&calls.0.active).remove(&call);
            calls.finish(call, output.map(Arc::new));
        })?;
        active.insert(call, Active::Run(handle));
        Ok(())
    }

    fn start(&self, call: u32, message: &CallMessage) -> Result<()> {
        let (command, options) = message.call.command(Call::Start)?;
        let started = command.start_events(&options.run, EventOptions::new().max_bytes(PENDING))?;
        let adopts = options.run.get("leftovers").to_string() == format!("{:?}", Leftovers::Adopt.name());
        self.add_job(call, started, if adopts { Form::Adopting } else { Form::Program }, message.is_silent);
        Ok(())
    }

    /// Adds a started job.
    pub(super) fn add_job(&self, call: u32, started: (Job, Events), form: Form, is_silent: bool) {
        let job = JobCall::new(call, started, self.clone(), form, is_silent);
        let mut active = lock(&self.0.active);
        if let Some(Active::Starting(early)) = active.insert(call, Active::Job(job.clone())) {
            // Later input waits for the lock of the active calls.
            for early in lock(&early).drain(..) {
                match early {
                    Early::Input(bytes) => job.input(&bytes),
                    Early::Order(order) => job.order(order),
                }
            }
        }
        drop(active);
        job.begin();
    }

    fn open(&self, call: u32, message: &CallMessage) -> Result<()> {
        let (command, options) = message.call.command(Call::Session)?;
        let session = SessionCall::new(call, command, options, self.clone())?;
        lock(&self.0.active).insert(call, Active::Session(session.clone()));
        session.open()
    }

    fn command(&self, call: u32, message: &CallMessage) -> Result<()> {
        let session = match lock(&self.0.active).get(&message.session) {
            Some(Active::Session(session)) => session.clone(),
            _ => return Err(invalid("session", "the session is closed, or was never opened")),
        };
        lock(&self.0.active).insert(call, Active::Starting(Arc::default()));
        session.start(call, message).inspect_err(|_| self.remove(call))
    }

    /// Bytes of a program's input. No bytes: its end.
    pub(super) fn input(&self, call: u32, bytes: &[u8]) {
        match self.get(call) {
            Some(Active::Job(job)) => job.input(bytes),
            Some(Active::Starting(early)) => self.note_early(call, &early, Early::Input(bytes.to_vec())),
            _ => {}
        }
    }

    /// The other side accepts further bytes of output.
    pub(super) fn credit(&self, call: u32, bytes: u32) {
        if let Some(Active::Job(job)) = self.get(call) {
            job.add_credit(bytes);
        }
    }

    /// Carries out an order. A call that has ended ignores it.
    pub(super) fn order(&self, call: u32, order: OrderMessage) {
        match (self.get(call), order) {
            (Some(Active::Run(run)), OrderMessage::Stop(seconds)) => {
                run.order(EngineOrder::End { grace: seconds.map(grace) });
            }
            (Some(Active::Starting(early)), order) => self.note_early(call, &early, Early::Order(order)),
            (Some(Active::Job(job)), order) => {
                let stops = matches!(order, OrderMessage::Stop(_));
                job.order(order);
                if stops && job.is_over() {
                    self.remove(call);
                }
            }
            (Some(Active::Session(session)), OrderMessage::Stop(seconds)) => {
                session.stop(seconds.map(grace));
                self.remove(call);
            }
            (Some(Active::Session(session)), order) => session.order(order),
            _ => {}
        }
    }

    /// Notes what has come for a command, or passes it on if the command has started meanwhile.
    fn note_early(&self, call: u32, starting: &Mutex<Vec<Early>>, early: Early) {
        let active = lock(&self.0.active);
        match (active.get(&call), early) {
            (Some(Active::Starting(_)), early) => lock(starting).push(early),
            (Some(Active::Job(job)), early) => {
                let job = job.clone();
                drop(active);
                match early {
                    Early::Input(bytes) => job.input(&bytes),
                    Early::Order(order) => job.order(order),
                }
            }
            _ => {}
        }
    }

    fn get(&self, call: u32) -> Option<Active> {
        lock(&self.0.active).get(&call).cloned()
    }

    pub(super) fn remove(&self, call: u32) {
        // The drop of a call may call back.
        let removed = lock(&self.0.active).remove(&call);
        drop(removed);
    }

    /// Sends the result of a call.
    pub(super) fn finish(&self, call: u32, output: Result<Arc<Output>>) {
        let connection = self.connection();
        let output = match output {
            Ok(output) => output,
            Err(error) => return connection.send_error(call, &error),
        };
        if output.spill.is_some() {
            lock(&self.0.spilled).push(output.clone());
        }
        let result = |output: &Output| pack(&ResultMessage::Output(Stored(output)));
        if output.stdout.len() + output.stderr.len() <= INLINE {
            return connection.send(Kind::Result, call, &[&result(&output)]);
        }
        for (stream, bytes) in [(1, &output.stdout), (2, &output.stderr)] {
            for piece in bytes.chunks(PIECE) {
                connection.send(Kind::Kept, call, &[&[stream], piece]);
            }
        }
        let mut rest = Output::clone(&output);
        (rest.stdout, rest.stderr) = (Vec::new(), Vec::new());
        connection.send(Kind::Result, call, &[&result(&rest)]);
    }

    /// Tells all programs to end at once. The caller exits next.
    pub(super) fn end_all(&self) {
        let all: Vec<Active> = lock(&self.0.active).drain().map(|(_, active)| active).collect();
        for active in all {
            match active {
                Active::Run(run) => run.order(EngineOrder::End { grace: Some(Duration::ZERO) }),
                // The command has not started.
                Active::Starting(_) => {}
                Active::Job(job) => job.order(OrderMessage::Stop(Some(0.0))),
                Active::Session(session) => session.stop(Some(Duration::ZERO)),
            }
        }
    }
}
