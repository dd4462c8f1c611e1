// SPDX-License-Identifier: MIT OR Apache-2.0
//! A session of the other side.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use spawnfd::internal::{CallOptions, EnvChange, drive, invalid};
use spawnfd::job::{EventOptions, TerminalSize};
use spawnfd::limits::Limiter;
use spawnfd::options::Call;
use spawnfd::session::{CommandText, Session};
use spawnfd::{Command, Error};

use super::job::{Form, Streams};
use super::{Calls, PENDING, grace};
use crate::far::connection::Connection;
use crate::frame::{Kind, Malformed};
use crate::message::{CallMessage, OrderMessage, ProcessMessage, ResultMessage, StartedMessage, pack};
use crate::turns::lock;

/// A session of the other side.
#[derive(Debug)]
pub(super) struct SessionCall {
    call: u32,
    session: Session,
    calls: Calls,
    /// The commands of the session wait for each other.
    has_queue: bool,
    grace: Duration,
    /// A command that comes while the shell starts waits for the shell.
    starts: Limiter,
    /// The last frame of the call has been sent.
    is_over: Mutex<bool>,
}

impl SessionCall {
    pub(super) fn new(
        call: u32,
        command: Command<'static>,
        options: CallOptions,
        calls: Calls,
    ) -> Result<Arc<SessionCall>, Error> {
        let has_queue = options.session.get("queue").to_string() == "true";
        let grace = options.session.get("grace").as_duration().unwrap_or_default();
        let session = Session::new(command, options.session)?;
        Ok(Arc::new(SessionCall {
            call,
            session,
            calls,
            has_queue,
            grace,
            starts: Limiter::new(1),
            is_over: Mutex::default(),
        }))
    }

    /// Starts the shell, and then tells that the session is open.
    pub(super) fn open(self: &Arc<SessionCall>) -> Result<(), Error> {
        let this = self.clone();
        drive(async move {
            let outcome = this.ensure_shell().await;
            this.tell(outcome.is_err(), |connection| match outcome {
                Ok(()) => {
                    let started = StartedMessage { pid: this.session.id().unwrap_or_default(), tree: String::new() };
                    connection.send(Kind::Started, this.call, &[&pack(&started)]);
                }
                Err(error) => connection.send_error(this.call, &error),
            });
        })
    }

    async fn ensure_shell(&self) -> Result<(), Error> {
        let _turn = self.starts.acquire_async().await;
        self.session.ensure_shell_async().await
    }

    /// Lets `send` send a frame of the call, unless its last frame has been sent. `is_last`: this is the last one.
    fn tell(&self, is_last: bool, send: impl FnOnce(&Connection)) {
        let mut is_over = lock(&self.is_over);
        if *is_over {
            return;
        }
        *is_over = is_last;
        if is_last {
            // After the last frame, the other side may use the number again.
            self.calls.remove(self.call);
        }
        send(self.calls.connection());
    }

    /// Starts a command.
    pub(super) fn start(self: &Arc<SessionCall>, call: u32, message: &CallMessage) -> Result<(), Error> {
        let options = message.call.options(Call::Command)?;
        let Some(text) = message.call.argv.first() else { return Err(invalid("argv", "a command needs a text")) };
        let mut text = options.apply_to_text(CommandText::new(OsStr::from_bytes(text)));
        for change in message.call.env.iter().flatten() {
            match change {
                EnvChange::Set(name, value) if std::str::from_utf8(name).is_ok() => {
                    text = text.env(String::from_utf8_lossy(name), OsStr::from_bytes(value));
                }
                _ => return Err(invalid("env", "a command can only set variables, and their names are UTF-8")),
            }
        }
        text.validate()?;
        let (this, streams) = (self.clone(), Streams::from(message));
        drive(async move {
            if let Err(error) = this.start_text(call, &text, &options, streams).await {
                this.calls.remove(call);
                this.calls.connection().send_error(call, &error);
            }
        })
    }

    async fn start_text(
        &self,
        call: u32,
        text: &CommandText,
        options: &CallOptions,
        streams: Streams,
    ) -> Result<(), Error> {
        let turn = if self.has_queue { Some(self.session.turns().acquire_async().await) } else { None };
        self.session.start_in_directory_of(text);
        self.ensure_shell().await?;
        let (permits, events) = (turn.into_iter().collect(), EventOptions::new().max_bytes(PENDING));
        let started = self.session.start_events_with(text, &options.run, permits, events)?;
        self.calls.add_job(call, started, Form::Command, streams);
        Ok(())
    }

    /// Carries out an order.
    pub(super) fn order(self: &Arc<SessionCall>, order: OrderMessage) -> Result<(), Malformed> {
        match order {
            OrderMessage::Stop(seconds) => self.stop(seconds.map(grace)),
            OrderMessage::Interrupt => self.session.interrupt(),
            // Without a terminal, the call has no effect.
            OrderMessage::Resize(rows, columns) => _ = self.session.resize(TerminalSize::new(rows, columns)),
            OrderMessage::Processes(question) => {
                let processes = self.session.processes().into_iter();
                let processes = processes.map(|found| ProcessMessage { pid: found.pid, name: found.name }).collect();
                let result = ResultMessage::<()>::Processes(processes);
                self.calls.connection().send(Kind::Result, question, &[&pack(&result)]);
            }
            OrderMessage::Close => self.close(),
            OrderMessage::Signal(..) => return Err(Malformed("a signal for a session".to_owned())),
        }
        Ok(())
    }

    /// Ends the input of the shell, and tells once the shell has ended.
    fn close(self: &Arc<SessionCall>) {
        let this = self.clone();
        self.session.begin_close_with(move || {
            let result = pack(&ResultMessage::<()>::Closed);
            this.tell(true, |connection| connection.send(Kind::Result, this.call, &[&result]));
        });
    }

    /// Ends the shell and its processes: SIGTERM, and SIGKILL after `grace`. `None`: after the session's grace.
    pub(super) fn stop(self: &Arc<SessionCall>, grace: Option<Duration>) {
        self.session.stop_shell(grace.unwrap_or(self.grace));
        self.close();
    }
}
