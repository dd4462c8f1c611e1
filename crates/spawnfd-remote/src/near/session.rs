// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions on the other side.

use std::sync::Arc;
use std::time::Duration;

use spawnfd::internal::{RemoteCall, acquire, acquire_async};
use spawnfd::job::{EventOptions, Events, TerminalSize};
use spawnfd::limits::Permit;
use spawnfd::session::{CommandText, SessionOptions};
use spawnfd::{Command, Job, Output, Result, Run};

use super::call::Form;
use super::link::{Asking, Link};
use super::waiting::{Begun, Waiting};
use crate::message::{CallMessage, OrderMessage, ProcessMessage, What};

/// A shell on the other side that keeps its state from command to command. Dropping it ends the shell.
#[derive(Debug)]
pub struct RemoteSession {
    link: Arc<Link>,
    number: u32,
    /// Has its result once the shell has ended. Its drop ends the shell.
    shell: Job,
    grace: Duration,
    pid: u32,
}

/// A session whose shell the server has been told to start.
#[derive(Debug)]
pub struct Opening {
    link: Arc<Link>,
    begun: Begun,
    grace: Duration,
}

impl Opening {
    /// The job that ends once the shell is ready, or has failed to start.
    pub fn start(&self) -> &Job {
        &self.begun.start
    }

    /// Waits until the shell is ready.
    ///
    /// # Errors
    /// The shell could not be started, or the connection was lost.
    pub fn wait(self) -> Result<RemoteSession> {
        let outcome = self.begun.start.wait();
        self.complete(outcome)
    }

    /// The same as [`wait`](Opening::wait), as a lazy future.
    ///
    /// # Errors
    /// The same as those of [`wait`](Opening::wait).
    pub async fn wait_async(self) -> Result<RemoteSession> {
        let outcome = self.begun.start.wait_async().await;
        self.complete(outcome)
    }

    fn complete(self, outcome: Result<Arc<Output>>) -> Result<RemoteSession> {
        let Opening { link, begun, grace } = self;
        begun.start.detach();
        outcome?;
        let pid = begun.call.started.get().map_or(0, |started| started.pid);
        Ok(RemoteSession { link, number: begun.number, shell: begun.job.started(pid, Default::default()), grace, pid })
    }
}

impl RemoteSession {
    pub(super) fn open(
        link: &Arc<Link>,
        command: &Command<'_>,
        options: &SessionOptions,
        permits: Vec<Permit>,
    ) -> Result<Opening> {
        let call = RemoteCall::of_session(command, options)?;
        let message = CallMessage { what: What::Session, call, ..CallMessage::default() };
        let begun = link.begin(&message, Form::Session, &Run::new(), permits, None)?;
        let grace = options.get("grace").as_duration().unwrap_or_default();
        Ok(Opening { link: link.clone(), begun, grace })
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// Those of [`Session::run`](spawnfd::Session::run). ENOTCONN: the connection is lost.
    pub fn run(&self, text: impl Into<CommandText>, run: &Run) -> Result<Output> {
        let begun = self.begin(&text.into(), run, acquire(run)?, None)?;
        let job = begun.job.started(0, Default::default());
        let output = job.wait();
        job.detach();
        output.map(Arc::unwrap_or_clone)
    }

    /// The same as [`run`](RemoteSession::run), as a lazy future. Dropping the future ends the command.
    ///
    /// # Errors
    /// The same as those of [`run`](RemoteSession::run).
    pub async fn run_async(&self, text: impl Into<CommandText>, run: &Run) -> Result<Output> {
        let begun = self.begin(&text.into(), run, acquire_async(run).await, None)?;
        let job = begun.job.started(0, Default::default());
        let output = job.wait_async().await;
        job.detach();
        output.map(Arc::unwrap_or_clone)
    }

    /// Starts a command, and returns its handle and the events of its output.
    ///
    /// # Errors
    /// The same as those of [`run`](RemoteSession::run).
    pub fn start_events(
        &self,
        text: impl Into<CommandText>,
        run: &Run,
        options: EventOptions,
    ) -> Result<(Job, Events)> {
        self.begin_start(&text.into(), run, acquire(run)?, options)?.wait()
    }

    /// The same as [`start_events`](RemoteSession::start_events), as a lazy future.
    ///
    /// # Errors
    /// The same as those of [`run`](RemoteSession::run).
    pub async fn start_events_async(
        &self,
        text: impl Into<CommandText>,
        run: &Run,
        options: EventOptions,
    ) -> Result<(Job, Events)> {
        self.begin_start(&text.into(), run, acquire_async(run).await, options)?.wait_async().await
    }

    /// Begins to start a command. The caller has the permits of its limiter.
    ///
    /// # Errors
    /// The same as those of [`run`](RemoteSession::run).
    #[doc(hidden)]
    pub fn begin_start(
        &self,
        text: &CommandText,
        run: &Run,
        permits: Vec<Permit>,
        options: EventOptions,
    ) -> Result<Waiting> {
        self.begin(text, run, permits, Some(options)).map(Waiting)
    }

    fn begin(
        &self,
        text: &CommandText,
        run: &Run,
        permits: Vec<Permit>,
        options: Option<EventOptions>,
    ) -> Result<Begun> {
        let mut message = CallMessage {
            what: What::Command,
            call: RemoteCall::of_text(text, run)?,
            session: self.number,
            is_silent: options.is_none(),
            ..CallMessage::default()
        };
        super::stream_input(&mut message, run);
        let until_result = |options: EventOptions| options.until(spawnfd::job::Until::Result);
        self.link.begin(&message, Form::Job, run, permits, options.map(until_result))
    }

    /// Sends SIGINT to the running command, and to the shell so that it abandons the rest of the command.
    pub fn interrupt(&self) {
        self.link.send_order(self.number, &OrderMessage::Interrupt);
    }

    /// Changes the size of the session's terminal. Without a terminal, the call has no effect.
    pub fn resize(&self, size: TerminalSize) {
        self.link.send_order(self.number, &OrderMessage::Resize(size.rows, size.columns));
    }

    /// The processes of the session except its shell.
    ///
    /// # Errors
    /// ENOTCONN: the connection is lost.
    pub fn processes(&self) -> Result<Vec<ProcessMessage>> {
        self.begin_processes()?.wait()
    }

    /// Asks for the processes of the session.
    ///
    /// # Errors
    /// ENOTCONN: the connection is lost.
    #[doc(hidden)]
    pub fn begin_processes(&self) -> Result<Asking> {
        self.link.processes(self.number)
    }

    /// The process id that the first shell had, on its machine.
    pub fn id(&self) -> u32 {
        self.pid
    }

    /// Ends the shell: it reads the end of its input, runs its EXIT trap and exits. If it has not exited after the
    /// session's grace, the server kills it and its processes.
    ///
    /// # Errors
    /// ENOTCONN: the connection is lost.
    pub fn close(self) -> Result<()> {
        self.begin_close();
        if self.shell.wait_timeout(self.grace)?.is_none() {
            self.shell.stop(Duration::ZERO);
        }
        self.shell.wait().map(drop)
    }

    /// Begins to end the shell, like [`close`](RemoteSession::close). The caller may then stop the [shell's job].
    ///
    /// [shell's job]: RemoteSession::shell
    #[doc(hidden)]
    pub fn begin_close(&self) {
        self.link.send_order(self.number, &OrderMessage::Close);
    }

    /// The job that has its result once the session has ended. Its stop ends the shell.
    #[doc(hidden)]
    pub fn shell(&self) -> &Job {
        &self.shell
    }
}
