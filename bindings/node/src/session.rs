// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions: shells that keep their state from command to command.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{FutureExt, select};
use napi::bindgen_prelude::*;
use napi_derive::napi;
use spawnfd::Session;
use spawnfd::job::TerminalSize;
use spawnfd::options::Call;

use crate::errors::{Failure, Origins, answer, refused};
use crate::job::NativeJob;
use crate::queue::{Outcome, Queue};
use crate::request::{NativeCommandText, Request};
use crate::result::NativeResult;
use crate::values::duration;

/// A shell. Dropping it ends the shell and its processes.
#[napi]
pub struct NativeSession {
    session: Arc<Session>,
    grace: Duration,
}

/// A process of a session.
#[napi(object, object_from_js = false)]
pub struct NativeProcess {
    pub pid: u32,
    pub name: String,
}

/// Creates a session whose shell has not started yet.
#[napi]
pub fn session(argv: Unknown<'_>, options: Object<'_>) -> Result<Either<NativeSession, Failure>> {
    let created = Request::new(&argv, &options, Call::Session)?.session();
    answer(created.map(|(session, grace)| NativeSession { session: Arc::new(session), grace }))
}

#[napi]
impl NativeSession {
    /// Whether the next command has to start a shell.
    #[napi(getter)]
    pub fn needs_shell(&self) -> bool {
        self.session.needs_shell()
    }

    /// The time that the shell has to exit after `close`, in milliseconds.
    #[napi(getter)]
    pub fn grace(&self) -> f64 {
        self.grace.as_secs_f64() * 1000.0
    }

    /// Starts a shell if the session needs one. The queue gets null under `key` when the shell is ready. `command` is the
    /// command that needs the shell. The stop of the call ends the shell.
    #[napi]
    pub fn open(&self, queue: &Queue, key: u32, command: Option<&NativeCommandText>) -> Option<Failure> {
        if let Some(command) = command {
            self.session.start_in_directory_of(&command.parts().0);
        }
        let session = self.session.clone();
        queue.begin(key, |stop| async move {
            let opened = session.ensure_shell_async().map(Some);
            let (opened, _) = select(Box::pin(opened), stop.map(|()| None)).await.factor_first();
            match opened {
                Some(opened) => opened.map(|()| Null).map_err(Failure::from),
                None => {
                    session.stop_shell(Duration::ZERO);
                    Err(Failure::lost())
                }
            }
        })
    }

    /// Starts a command in the shell. The queue gets its job under `key`.
    #[napi]
    pub fn start(&self, queue: &Queue, key: u32, command: &NativeCommandText) -> Option<Failure> {
        let (session, (text, run, events, grace)) = (self.session.clone(), command.parts());
        queue.begin(key, |stop| async move {
            let started = session.start_until(&text, &run, events, stop).await;
            started.map(|(job, events)| NativeJob::of((job, events, Origins::default(), grace)))
        })
    }

    /// Runs a program beside the shell. The queue gets the outcome under `key`.
    #[napi]
    pub fn run_beside(
        &self,
        queue: &Queue,
        key: u32,
        argv: Unknown<'_>,
        options: Object<'_>,
    ) -> Result<Option<Failure>> {
        let (session, request) = (self.session.clone(), Request::new(&argv, &options, Call::Run)?);
        Ok(queue.begin(key, |stop| async move { request.run_beside(&session, stop).await.map(NativeResult::new) }))
    }

    #[napi]
    pub fn interrupt(&self) {
        self.session.interrupt();
    }

    #[napi]
    pub fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        self.session.resize(TerminalSize::new(rows, columns)).map_err(refused)
    }

    #[napi]
    pub fn processes(&self) -> Vec<NativeProcess> {
        let processes = self.session.processes().into_iter();
        processes.map(|process| NativeProcess { pid: process.pid, name: process.name }).collect()
    }

    #[napi(getter)]
    pub fn pid(&self) -> Option<u32> {
        self.session.id()
    }

    /// Closes the session: the shell reads the end of its input. The queue gets null under `key` when it has ended.
    #[napi]
    pub fn close(&self, queue: &Queue, key: u32) {
        let queue = queue.shared();
        self.session.begin_close_with(move || queue.push(key, Outcome::woken()));
    }

    /// Ends the shell and its processes: SIGTERM, then SIGKILL after `grace` milliseconds.
    #[napi]
    pub fn stop(&self, grace: Unknown<'_>) -> Result<()> {
        self.session.stop_shell(duration(&grace, "grace")?);
        Ok(())
    }
}
