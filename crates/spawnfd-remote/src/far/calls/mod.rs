// SPDX-License-Identifier: MIT OR Apache-2.0
//! The active calls of a connection.

mod job;
mod session;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spawnfd::internal::{EngineOrder, Stored, invalid};
use spawnfd::job::{EventOptions, Events, Leftovers, RunHandle, SpillFile, TerminalSize};
use spawnfd::options::Call;
use spawnfd::{Error, Job, Output};

use super::connection::Connection;
use crate::frame::{Kind, Malformed};
use crate::message::{CallMessage, FIRST_CREDIT, OrderMessage, ResultMessage, What, pack};
use crate::turns::lock;
use job::{Form, JobCall, Streams};
use session::SessionCall;

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
    /// A run that begins now, or a command whose shell is not ready yet, and what has come for it.
    Starting(Arc<Mutex<Vec<Early>>>),
    Job(Arc<JobCall>),
    Session(Arc<SessionCall>),
}

impl Active {
    fn noun(&self) -> &'static str {
        match self {
            Active::Run(_) => "run",
            Active::Starting(_) => "command that has not started",
            Active::Job(_) => "job",
            Active::Session(_) => "session",
        }
    }
}

/// The grace of an order. A time that a duration cannot have is no bound.
pub(super) fn grace(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// The largest number of a signal (SIGRTMAX).
const LAST_SIGNAL: i32 = 64;

/// Translates an order to a run or a job for the engine.
pub(super) fn engine_order(order: &OrderMessage) -> Result<EngineOrder, Malformed> {
    match *order {
        OrderMessage::Stop(seconds) => Ok(EngineOrder::End { grace: seconds.map(grace) }),
        OrderMessage::Signal(signal, tree) if (0..=LAST_SIGNAL).contains(&signal) => {
            Ok(EngineOrder::Signal { signal, tree })
        }
        OrderMessage::Signal(signal, _) => Err(Malformed(format!("a signal with the number {signal}"))),
        OrderMessage::Resize(rows, columns) => Ok(EngineOrder::Resize(TerminalSize::new(rows, columns))),
        _ => Err(Malformed(format!("an order {order:?} to a program"))),
    }
}

/// Input or an order for a command that has not started.
#[derive(Debug)]
enum Early {
    Input(Vec<u8>),
    Order(OrderMessage),
}

/// The number of frames that may come for a command before its start.
const MAX_EARLY: usize = 10_000;

/// Adds input or an order for a command that has not started.
fn add_early(list: &mut Vec<Early>, early: Early) -> Result<(), Malformed> {
    let inputs = || list.iter().filter_map(|early| if let Early::Input(bytes) = early { Some(bytes) } else { None });
    if let Early::Input(bytes) = &early {
        let length: usize = inputs().map(Vec::len).sum();
        if inputs().any(Vec::is_empty) {
            return Err(Malformed("input after its end".to_owned()));
        }
        if length + bytes.len() > FIRST_CREDIT as usize {
            return Err(Malformed("more input than the credit of the call".to_owned()));
        }
    }
    if list.len() >= MAX_EARLY {
        return Err(Malformed(format!("more than {MAX_EARLY} frames for a command that has not started")));
    }
    list.push(early);
    Ok(())
}

/// The calls of a connection.
#[derive(Clone, Debug)]
pub(super) struct Calls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    connection: Arc<Connection>,
    active: Mutex<HashMap<u32, Active>>,
    /// Spill files of results, which exist as long as their handles.
    spilled: Mutex<Vec<SpillFile>>,
}

impl Calls {
    pub(super) fn new(connection: Arc<Connection>) -> Calls {
        Calls(Arc::new(Shared { connection, active: Mutex::default(), spilled: Mutex::default() }))
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.0.connection
    }

    /// Begins a call.
    pub(super) fn begin(&self, call: u32, message: CallMessage) -> Result<(), Malformed> {
        self.check_new(call)?;
        let begun = match message.what {
            What::Run => self.run(call, message),
            What::Start => self.start(call, &message),
            What::Session => self.open(call, &message),
            What::Command => self.command(call, &message),
        };
        if let Err(error) = begun {
            self.remove(call);
            self.connection().send_error(call, &error);
        }
        Ok(())
    }

    /// Checks the number of a call or a question.
    fn check_new(&self, call: u32) -> Result<(), Malformed> {
        match call {
            0 => Err(Malformed("a call with the number 0".to_owned())),
            _ if lock(&self.0.active).contains_key(&call) => {
                Err(Malformed(format!("a second call with the number {call}, whose first call is active")))
            }
            _ => Ok(()),
        }
    }

    fn run(&self, call: u32, message: CallMessage) -> Result<(), Error> {
        let (command, mut options) = message.call.command(Call::Run)?;
        if let Some(input) = message.input {
            options.run = options.run.input(input.into_vec());
        }
        let calls = self.clone();
        lock(&self.0.active).insert(call, Active::Starting(Arc::default()));
        let handle = command.run_then(&options.run, move |output| {
            calls.remove(call);
            calls.finish(call, output.map(Arc::new));
        })?;
        // The run may have ended already.
        if let Some(active) = lock(&self.0.active).get_mut(&call) {
            *active = Active::Run(handle);
        }
        Ok(())
    }

    fn start(&self, call: u32, message: &CallMessage) -> Result<(), Error> {
        let (command, options) = message.call.command(Call::Start)?;
        let started = command.start_events(&options.run, EventOptions::new().max_bytes(PENDING))?;
        let adopts = options.run.get("leftovers").to_string() == format!("{:?}", Leftovers::Adopt.name());
        self.add_job(call, started, if adopts { Form::Adopting } else { Form::Program }, message.into());
        Ok(())
    }

    /// Adds a started job.
    fn add_job(&self, call: u32, started: (Job, Events), form: Form, streams: Streams) {
        let job = JobCall::new(call, started, self.clone(), form, streams);
        let mut active = lock(&self.0.active);
        if let Some(Active::Starting(early)) = active.insert(call, Active::Job(job.clone())) {
            // Later input waits for the lock of the active calls.
            for early in lock(&early).drain(..) {
                // The checks have been made.
                _ = match early {
                    Early::Input(bytes) => job.input(&bytes),
                    Early::Order(order) => job.order(order),
                };
            }
        }
        drop(active);
        job.begin();
    }

    fn open(&self, call: u32, message: &CallMessage) -> Result<(), Error> {
        let (command, options) = message.call.command(Call::Session)?;
        let session = SessionCall::new(call, command, options, self.clone())?;
        lock(&self.0.active).insert(call, Active::Session(session.clone()));
        session.open()
    }

    fn command(&self, call: u32, message: &CallMessage) -> Result<(), Error> {
        let session = match lock(&self.0.active).get(&message.session) {
            Some(Active::Session(session)) => session.clone(),
            _ => return Err(invalid("session", "the session is closed, or was never opened")),
        };
        lock(&self.0.active).insert(call, Active::Starting(Arc::default()));
        session.start(call, message)
    }

    /// Bytes of a program's input. No bytes: its end. A call that has ended ignores them.
    pub(super) fn input(&self, call: u32, bytes: &[u8]) -> Result<(), Malformed> {
        match self.get(call) {
            Some(Active::Job(job)) => job.input(bytes),
            Some(Active::Starting(early)) => self.note_early(call, &early, Early::Input(bytes.to_vec())),
            Some(active) => Err(Malformed(format!("input for a {}", active.noun()))),
            None => Ok(()),
        }
    }

    /// The other side accepts further bytes of output. A call that has ended ignores that.
    pub(super) fn credit(&self, call: u32, bytes: u32) -> Result<(), Malformed> {
        match self.get(call) {
            Some(Active::Job(job)) => job.add_credit(bytes),
            Some(active) => Err(Malformed(format!("credit for a {}", active.noun()))),
            None => Ok(()),
        }
    }

    /// Carries out an order. A call that has ended ignores it.
    pub(super) fn order(&self, call: u32, order: OrderMessage) -> Result<(), Malformed> {
        let is_of_session = matches!(order, OrderMessage::Interrupt | OrderMessage::Processes(_) | OrderMessage::Close);
        if let OrderMessage::Processes(question) = order {
            self.check_new(question)?;
        }
        match (self.get(call), order) {
            (Some(Active::Session(session)), order) => return session.order(order),
            (Some(active), order) if is_of_session => {
                return Err(Malformed(format!("an order {order:?} to a {}", active.noun())));
            }
            (Some(Active::Run(run)), order) => run.order(engine_order(&order)?),
            (Some(Active::Starting(early)), order) => {
                engine_order(&order)?;
                return self.note_early(call, &early, Early::Order(order));
            }
            (Some(Active::Job(job)), order) => return job.order(order),
            (None, OrderMessage::Processes(question)) => {
                let error = invalid("session", "the session is closed, or was never opened");
                self.connection().send_error(question, &error);
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// Notes what has come for a command, or passes it on if the command has started meanwhile.
    fn note_early(&self, call: u32, starting: &Mutex<Vec<Early>>, early: Early) -> Result<(), Malformed> {
        let active = lock(&self.0.active);
        match (active.get(&call), early) {
            (Some(Active::Starting(_)), early) => add_early(&mut lock(starting), early),
            (Some(Active::Job(job)), early) => {
                let job = job.clone();
                drop(active);
                match early {
                    Early::Input(bytes) => job.input(&bytes),
                    Early::Order(order) => job.order(order),
                }
            }
            _ => Ok(()),
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
    pub(super) fn finish(&self, call: u32, output: Result<Arc<Output>, Error>) {
        let connection = self.connection();
        let output = match output {
            Ok(output) => output,
            Err(error) => return connection.send_error(call, &error),
        };
        if let Some(file) = output.spill.as_ref().and_then(|spilled| spilled.file.clone()) {
            lock(&self.0.spilled).push(file);
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
                Active::Job(job) => job.stop(Some(Duration::ZERO)),
                Active::Session(session) => session.stop(Some(Duration::ZERO)),
            }
        }
    }
}
