// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs on another machine.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use napi::bindgen_prelude::{Either as Answer, Null, Object, Result, Unknown};
use napi_derive::napi;
use spawnfd::internal::{acquire_async, stopped_before_start};
use spawnfd::job::Events;
use spawnfd::limits::Permit;
use spawnfd::options::Call;
use spawnfd::{Job, Run};
use spawnfd_remote::Remote;
use spawnfd_remote::near::{RemoteOptions, Waiting};

use crate::errors::{Failure, answer, wrong};
use crate::job::NativeJob;
use crate::queue::{Outcome, Queue, Stop};
use crate::remote_session::NativeRemoteSession;
use crate::request::Request;
use crate::result::NativeResult;
use crate::values::{duration, is_absent};

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
        match self.timeout {
            None => answered.wait().map(drop),
            Some(timeout) => match answered.wait_timeout(timeout.saturating_sub(self.began.elapsed()))? {
                Some(_) => Ok(()),
                None => Err(self.remote.give_up(timeout)),
            },
        }
    }

    /// Runs a program to its end. `stop` ends it before.
    async fn run(&self, request: &Request, mut stop: Stop) -> spawnfd::Result<NativeResult> {
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

    fn run_sync(&self, request: &Request) -> spawnfd::Result<NativeResult> {
        let (command, options) = request.parts();
        self.wait_for_answer()?;
        self.remote.run(command, &options.run).map(|output| NativeResult::at(output, Some(self.place())))
    }

    /// Starts a program as a job, unless `stop` comes before.
    async fn start(&self, request: &Request, mut stop: Stop) -> spawnfd::Result<(Job, Events)> {
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

#[napi]
pub struct NativeRemote(Arc<Connection>);

/// Starts a transport in the calling thread.
#[napi]
pub fn remote(
    argv: Unknown<'_>,
    options: Object<'_>,
    lease: Unknown<'_>,
    connect_timeout: Unknown<'_>,
) -> Result<Answer<NativeRemote, Failure>> {
    let request = Request::new(&argv, &options, Call::Start)?;
    let mut settings = RemoteOptions::default();
    settings.lease = optional_duration(&lease, "lease")?;
    if settings.lease.is_some_and(|lease| lease.is_zero()) {
        return Err(wrong("lease must be a number of milliseconds > 0, or null"));
    }
    let timeout = optional_duration(&connect_timeout, "connectTimeout")?;
    let (command, _) = request.parts();
    let transport = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    answer(
        Remote::begin(command, &settings)
            .map(|remote| NativeRemote(Arc::new(Connection { remote, transport, began: Instant::now(), timeout }))),
    )
}

fn optional_duration(value: &Unknown<'_>, name: &str) -> Result<Option<Duration>> {
    if is_absent(value)? { Ok(None) } else { duration(value, name).map(Some) }
}

#[napi]
impl NativeRemote {
    #[napi(getter, js_name = "where")]
    pub fn place(&self) -> String {
        self.0.place()
    }

    /// Ends the connection if the server has not answered, because the time for that is over.
    #[napi]
    pub fn give_up(&self) {
        let Connection { remote, timeout, .. } = &*self.0;
        if let (Some(timeout), Ok(None)) = (timeout, remote.answered().try_wait()) {
            remote.give_up(*timeout);
        }
    }

    /// Waits for the server. The queue gets null under `key`.
    #[napi]
    pub fn ready(&self, queue: &Queue, key: u32) -> Option<Failure> {
        let connection = self.0.clone();
        queue.begin(key, |mut stop| async move { connection.ready(&Run::new(), &mut stop).await.map(|_| Null) })
    }

    /// Asks the server for a sign of life. The queue gets the milliseconds until the answer under `key`.
    #[napi]
    pub fn ping(&self, queue: &Queue, key: u32) -> Option<Failure> {
        let connection = self.0.clone();
        queue.begin(key, |mut stop| async move {
            connection.ready(&Run::new(), &mut stop).await?;
            let asking = connection.remote.begin_ping()?;
            asking.job().wait_async().await?;
            Ok::<_, spawnfd::Error>(asking.elapsed().as_secs_f64() * 1000.0)
        })
    }

    /// Runs a program. The queue gets the outcome under `key`.
    #[napi]
    pub fn run(&self, queue: &Queue, key: u32, argv: Unknown<'_>, options: Object<'_>) -> Result<Option<Failure>> {
        let (connection, request) = (self.0.clone(), Request::remote(&argv, &options, Call::Run)?);
        Ok(queue.begin(key, |stop| async move {
            connection.run(&request, stop).await.map_err(|error| request.failure(error))
        }))
    }

    /// Runs a program to its end. The calling thread waits for it.
    #[napi]
    pub fn run_sync(&self, argv: Unknown<'_>, options: Object<'_>) -> Result<Answer<NativeResult, Failure>> {
        let request = Request::remote(&argv, &options, Call::Run)?;
        answer(self.0.run_sync(&request).map_err(|error| request.failure(error)))
    }

    /// Starts a program. The queue gets the job under `key`.
    #[napi]
    pub fn start(&self, queue: &Queue, key: u32, argv: Unknown<'_>, options: Object<'_>) -> Result<Option<Failure>> {
        let (connection, request) = (self.0.clone(), Request::remote(&argv, &options, Call::Start)?);
        Ok(queue.begin(key, |stop| async move {
            match connection.start(&request, stop).await {
                Ok(job) => Ok(NativeJob::remote(request.into_started(job), connection)),
                Err(error) => Err(request.failure(error)),
            }
        }))
    }

    /// Prepares a session whose shell has not started yet.
    #[napi]
    pub fn session(&self, argv: Unknown<'_>, options: Object<'_>) -> Result<NativeRemoteSession> {
        Request::remote(&argv, &options, Call::Session).map(|request| NativeRemoteSession::new(self.0.clone(), request))
    }

    /// Ends the connection, and with it all programs. The queue gets null under `key` when the transport has ended.
    #[napi]
    pub fn close(&self, queue: &Queue, key: u32) {
        let queue = queue.shared();
        self.0.remote.close();
        self.0.remote.transport().when_done(move || queue.push(key, Outcome::woken()));
    }
}
