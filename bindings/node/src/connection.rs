// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection to another machine.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use spawnfd::internal::{acquire_async, stopped_before_start};
use spawnfd::job::Events;
use spawnfd::limits::Permit;
use spawnfd::{Job, Run};
use spawnfd_remote::Remote;
use spawnfd_remote::near::Waiting;

use crate::queue::Stop;
use crate::request::Request;
use crate::result::NativeResult;

/// A connection to another machine. Its jobs and sessions keep it. Its drop ends the transport, and with it all programs.
pub struct Connection {
    pub remote: Remote,
    /// The name of the transport's program.
    transport: String,
    began: Instant,
    /// How long the connection may take until the server answers.
    timeout: Option<Duration>,
}

impl Connection {
    pub fn new(remote: Remote, transport: String, timeout: Option<Duration>) -> Connection {
        Connection { remote, transport, began: Instant::now(), timeout }
    }

    /// Names the place where programs run: the host, once the server has told its name, and the transport.
    pub fn place(&self) -> String {
        match self.remote.hello() {
            Some(hello) => format!("{} ({})", hello.host, self.transport),
            None => self.transport.clone(),
        }
    }

    /// Waits for the server, and for the permit that a run's limiter gives, at most until `stop`.
    pub async fn ready(&self, run: &Run, stop: &mut Stop) -> spawnfd::Result<Vec<Permit>> {
        let ready = async {
            self.remote.answered().wait_async().await?;
            Ok(acquire_async(run).await)
        };
        unless(stop, ready).await?
    }

    /// Waits for the server, and blocks the thread.
    fn wait_for_answer(&self) -> spawnfd::Result<()> {
        let answered = self.remote.answered();
        let left = self.timeout.map(|timeout| timeout.saturating_sub(self.began.elapsed()));
        match left {
            None => answered.wait().map(drop),
            Some(left) if answered.wait_timeout(left)?.is_some() => Ok(()),
            Some(_) => Err(self.give_up()),
        }
    }

    /// Ends the connection, because the server has not answered in time. Returns the error, which further calls have, too.
    pub fn give_up(&self) -> spawnfd::Error {
        self.remote.give_up(self.timeout.unwrap_or_default())
    }

    /// Runs a program to its end. `stop` ends it before.
    pub async fn run(&self, request: &Request, mut stop: Stop) -> spawnfd::Result<NativeResult> {
        let (command, options) = request.parts();
        let permits = self.ready(&options.run, &mut stop).await?;
        let job = self.remote.begin_run(command, &options.run, permits)?;
        let output = match select(pin!(job.wait_async()), stop).await {
            Either::Left((output, _)) => output,
            Either::Right(((), output)) => {
                job.stop(request.grace());
                output.await
            }
        };
        job.detach();
        output.map(|output| NativeResult::at(output, Some(self.place())))
    }

    /// Runs a program to its end. The thread waits for the server and for the program.
    pub fn run_sync(&self, request: &Request) -> spawnfd::Result<NativeResult> {
        let (command, options) = request.parts();
        self.wait_for_answer()?;
        self.remote.run(command, &options.run).map(|output| NativeResult::at(output, Some(self.place())))
    }

    /// Starts a program as a job, unless `stop` comes before.
    pub async fn start(&self, request: &Request, mut stop: Stop) -> spawnfd::Result<(Job, Events)> {
        let (command, options) = request.parts();
        let permits = self.ready(&options.run, &mut stop).await?;
        started(self.remote.begin_start(command, &options.run, permits, request.events())?, &mut stop).await
    }
}

/// Waits for a future, at most until `stop`.
pub async fn unless<T>(stop: &mut Stop, future: impl Future<Output = T>) -> spawnfd::Result<T> {
    match select(pin!(future), stop).await {
        Either::Left((value, _)) => Ok(value),
        Either::Right(_) => Err(stopped_before_start()),
    }
}

/// Waits until a program has started. Before that, `stop` ends the program.
pub async fn started(waiting: Waiting, stop: &mut Stop) -> spawnfd::Result<(Job, Events)> {
    unless(stop, waiting.wait_async()).await?
}
