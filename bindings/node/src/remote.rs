// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs on another machine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::Run;
use spawnfd::options::Call;
use spawnfd_remote::Remote;
use spawnfd_remote::near::RemoteOptions;

use crate::connection::Connection;
use crate::errors::{Failure, answer, wrong};
use crate::job::NativeJob;
use crate::queue::{Outcome, Queue};
use crate::remote_session::NativeRemoteSession;
use crate::request::Request;
use crate::result::NativeResult;
use crate::values::{duration, is_absent};

#[napi]
pub struct NativeRemote(Arc<Connection>);

/// Starts a transport in the calling thread.
#[napi]
pub fn remote(
    argv: Unknown<'_>,
    options: Object<'_>,
    lease: Unknown<'_>,
    connect_timeout: Unknown<'_>,
) -> Result<Either<NativeRemote, Failure>> {
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
            .map(|remote| NativeRemote(Arc::new(Connection::new(remote, transport, timeout)))),
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
        if matches!(self.0.remote.answered().try_wait(), Ok(None)) {
            self.0.give_up();
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
    pub fn run_sync(&self, argv: Unknown<'_>, options: Object<'_>) -> Result<Either<NativeResult, Failure>> {
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
