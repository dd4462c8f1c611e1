// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client: runs programs on the other side of a pipe.
//!
//! `link.rs` has the pipe and distributes the frames; `call.rs` has the client's half of one call; `session.rs` has
//! sessions. The pipe is a job of this process, whose program is the transport, such as ssh. So the library's thread
//! reads and writes it, and a guard ends the transport with this process.

mod call;
mod inject;
mod link;
mod session;
mod transfer;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use spawnfd::internal::{RemoteCall, acquire, acquire_async};
use spawnfd::job::{EventOptions, Events, Leftovers};
use spawnfd::limits::Permit;
use spawnfd::options::{Call, Value};
use spawnfd::session::SessionOptions;
use spawnfd::tree::Tier;
use spawnfd::{Command, Error, Job, Output, Result, Run};

use crate::message::{CallMessage, FarHello, What};
use call::Form;
use inject::Injection;
pub use inject::ServerProgram;
pub use link::Asking;
use link::Link;
pub use session::{Opening, RemoteSession};
pub use transfer::{Transfer, TransferStop};
pub use waiting::Waiting;

/// An input of at most this size comes with its call.
const INLINE_INPUT: usize = 64 << 10;

/// The options of a connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// How long each side waits for a sign of life of the other before it regards the connection as lost. Then the
    /// server ends all programs, and the results on this side say `lost`. `None`: only the end of the pipe counts.
    pub lease: Option<Duration>,
    /// How long the connection may take until the server answers.
    pub connect_timeout: Option<Duration>,
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions { lease: Some(Duration::from_secs(30)), connect_timeout: Some(Duration::from_secs(60)) }
    }
}

/// How a transport passes a command on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// As arguments, as `docker exec` does.
    Arguments,
    /// As a line for a shell, as ssh does.
    Line,
}

/// A connection to `spawnfd serve` on another machine, or in a container. Dropping it ends the transport, and with it all
/// programs of the connection.
#[derive(Debug)]
pub struct Remote(Arc<Link>);

impl Remote {
    /// Starts a transport, such as `ssh HOST spawnfd serve`, and waits until the server answers.
    ///
    /// # Errors
    /// The transport could not be started, or it ended before the server answered: the message has its last words.
    /// EPROTO: the other side is no server, or speaks no version of the protocol that this side speaks.
    pub fn connect(command: &Command<'_>) -> Result<Remote> {
        Remote::connect_with(command, &RemoteOptions::default())
    }

    /// The same as [`connect`](Remote::connect), with options.
    ///
    /// # Errors
    /// The same as those of [`connect`](Remote::connect). ETIMEDOUT: the server has not answered in time.
    pub fn connect_with(command: &Command<'_>, options: &RemoteOptions) -> Result<Remote> {
        let remote = Remote::begin(command, options)?;
        remote.0.wait_for_answer(options.connect_timeout)?;
        Ok(remote)
    }

    /// Starts a transport, without waiting for the server. Calls may begin at once.
    ///
    /// # Errors
    /// The transport could not be started.
    pub fn begin(command: &Command<'_>, options: &RemoteOptions) -> Result<Remote> {
        Link::start(command, options, None).map(Remote)
    }

    /// Starts a transport that runs a shell on the other side, such as `docker exec -i ID` or `ssh HOST`. The shell starts
    /// the server. If its program is not there yet, this side sends it through the transport. The other side needs sh,
    /// uname, mkdir, head, chmod and mv, and a directory in which the user can write and execute files.
    ///
    /// # Errors
    /// The transport could not be started, or a program cannot be read. The first call fails if the other side cannot run
    /// the server: the message says why.
    pub fn begin_with_program(
        mut transport: Command<'_>,
        kind: TransportKind,
        programs: &[ServerProgram],
        options: &RemoteOptions,
    ) -> Result<Remote> {
        let (injection, script) = Injection::new(programs)?;
        inject::add_shell(&mut transport, &script, kind == TransportKind::Line);
        Link::start(&transport, options, Some(injection)).map(Remote)
    }

    /// The job that has its result once the server has answered.
    #[doc(hidden)]
    pub fn answered(&self) -> &Job {
        self.0.answered()
    }

    /// The job of the transport.
    #[doc(hidden)]
    pub fn transport(&self) -> &Job {
        self.0.transport()
    }

    /// Ends a connection whose server has not answered in time. Returns the error, which further calls have, too.
    #[doc(hidden)]
    pub fn give_up(&self, timeout: Duration) -> Error {
        self.0.give_up(timeout)
    }

    /// The server's description of itself. `None`: it has not answered yet.
    pub fn hello(&self) -> Option<&FarHello> {
        self.0.hello()
    }

    /// Runs a program on the other side to its end, as [`Command::run_with`] does here.
    ///
    /// If the connection is lost, the output's `stop` is [`Stop::Lost`](spawnfd::job::Stop::Lost).
    ///
    /// # Errors
    /// The program could not be started. EINVAL: an argument has a meaning in this process alone, such as a descriptor.
    /// ENOTCONN: the connection was lost before this call.
    pub fn run(&self, command: &Command<'_>, run: &Run) -> Result<Output> {
        let job = self.begin_run(command, run, acquire(run)?)?;
        let output = job.wait();
        job.detach();
        output.map(Arc::unwrap_or_clone)
    }

    /// The same as [`run`](Remote::run), as a lazy future. Dropping the future ends the program.
    ///
    /// # Errors
    /// The same as those of [`run`](Remote::run).
    pub async fn run_async(&self, command: &Command<'_>, run: &Run) -> Result<Output> {
        let job = self.begin_run(command, run, acquire_async(run).await)?;
        let output = job.wait_async().await;
        job.detach();
        output.map(Arc::unwrap_or_clone)
    }

    /// Begins a run, and returns the job that has its result. The caller has the permits of its limiter.
    ///
    /// # Errors
    /// The same as those of [`run`](Remote::run).
    #[doc(hidden)]
    pub fn begin_run(&self, command: &Command<'_>, run: &Run, permits: Vec<Permit>) -> Result<Job> {
        let mut message = CallMessage { call: RemoteCall::new(command, run, Call::Run)?, ..CallMessage::default() };
        let mut form = Form::Run;
        if let Value::Bytes(input) = run.get("input") {
            if input.as_bytes().len() <= INLINE_INPUT {
                message.input = Some(input.as_bytes().to_vec().into());
            } else {
                form = Form::Job;
                (message.what, message.is_silent) = (What::Start, true);
                stream_input(&mut message, run);
            }
        }
        self.0.begin(&message, form, run, permits, None).map(|begun| begun.job.started(0, Tier::default()))
    }

    /// Starts a program on the other side, and returns its handle and the events of its output.
    ///
    /// # Errors
    /// The same as those of [`run`](Remote::run). If the connection was lost during this call (ENOTCONN), the program may
    /// have started.
    pub fn start_events(&self, command: &Command<'_>, run: &Run, options: EventOptions) -> Result<(Job, Events)> {
        self.begin_start(command, run, acquire(run)?, options)?.wait()
    }

    /// The same as [`start_events`](Remote::start_events), as a lazy future.
    ///
    /// # Errors
    /// The same as those of [`start_events`](Remote::start_events).
    pub async fn start_events_async(
        &self,
        command: &Command<'_>,
        run: &Run,
        options: EventOptions,
    ) -> Result<(Job, Events)> {
        self.begin_start(command, run, acquire_async(run).await, options)?.wait_async().await
    }

    /// Begins to start a program. The caller has the permits of its limiter.
    ///
    /// # Errors
    /// The same as those of [`run`](Remote::run).
    #[doc(hidden)]
    pub fn begin_start(
        &self,
        command: &Command<'_>,
        run: &Run,
        permits: Vec<Permit>,
        options: EventOptions,
    ) -> Result<Waiting> {
        let call = RemoteCall::new(command, run, Call::Start)?;
        let mut message = CallMessage { what: What::Start, call, ..CallMessage::default() };
        stream_input(&mut message, run);
        let adopts = run.get("leftovers").to_string() == format!("{:?}", Leftovers::Adopt.name());
        let form = if adopts { Form::Adopting } else { Form::Job };
        self.0.begin(&message, form, run, permits, Some(options)).map(Waiting)
    }

    /// Opens a session on the other side: a shell that keeps its state.
    ///
    /// # Errors
    /// The shell could not be started there. EINVAL: an argument has a meaning in this process alone.
    pub fn session(&self, command: &Command<'_>, options: &SessionOptions) -> Result<RemoteSession> {
        self.begin_session(command, options, Vec::new())?.wait()
    }

    /// The same as [`session`](Remote::session), as a lazy future.
    ///
    /// # Errors
    /// The same as those of [`session`](Remote::session).
    pub async fn session_async(&self, command: &Command<'_>, options: &SessionOptions) -> Result<RemoteSession> {
        self.begin_session(command, options, Vec::new())?.wait_async().await
    }

    /// Checks the arguments of a session.
    ///
    /// # Errors
    /// EINVAL: an argument has a meaning in this process alone.
    #[doc(hidden)]
    pub fn check_session(&self, command: &Command<'_>, options: &SessionOptions) -> Result<()> {
        RemoteCall::of_session(command, options).map(drop)
    }

    /// Begins to open a session. Its end returns the permits.
    ///
    /// # Errors
    /// The same as those of [`session`](Remote::session).
    #[doc(hidden)]
    pub fn begin_session(
        &self,
        command: &Command<'_>,
        options: &SessionOptions,
        permits: Vec<Permit>,
    ) -> Result<Opening> {
        RemoteSession::open(&self.0, command, options, permits)
    }

    /// Ends the connection, and with it all programs of it.
    pub fn close(&self) {
        self.0.close();
    }

    /// Measures the time until the server answers.
    ///
    /// # Errors
    /// ENOTCONN: the connection is lost.
    pub fn ping(&self) -> Result<Duration> {
        let answer = self.begin_ping()?;
        answer.wait()?;
        Ok(answer.elapsed())
    }

    /// Asks the server for a sign of life.
    ///
    /// # Errors
    /// ENOTCONN: the connection is lost.
    #[doc(hidden)]
    pub fn begin_ping(&self) -> Result<Asking> {
        self.0.ping()
    }
}

/// The largest number of bytes of one stream in a result: the head, the line of the marker, and the tail.
fn max_kept(run: &Run) -> usize {
    let Value::Pair(head, tail) = run.get("keep") else { return usize::MAX };
    let marker = (run.get("marker").to_string().len() as u64 + 100) * AMOUNT;
    usize::try_from(head.saturating_add(tail).saturating_add(marker)).unwrap_or(usize::MAX)
}

/// How many times as long as its marker a marker's line can be, because it has the number of omitted bytes.
const AMOUNT: u64 = 10;

/// Lets the program read the input of the run, if it has one, from `Input` frames.
fn stream_input(message: &mut CallMessage, run: &Run) {
    if let Value::Bytes(input) = run.get("input") {
        message.input_length = Some(input.as_bytes().len() as u64);
        message.call.options.insert("stdin".to_owned(), Some(b"stream".to_vec().into()));
    }
}
