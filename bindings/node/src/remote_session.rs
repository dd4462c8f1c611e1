// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions on another machine.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use napi::bindgen_prelude::{Null, Result, Unknown};
use napi_derive::napi;
use spawnfd::internal::{acquire_async, stopped_before_start};
use spawnfd::job::TerminalSize;
use spawnfd_remote::near::RemoteSession;

use crate::connection::{Connection, started, unless};
use crate::errors::{Failure, Origins};
use crate::job::NativeJob;
use crate::queue::{Outcome, Queue, lock};
use crate::request::{NativeCommandText, Request};
use crate::session::NativeProcess;
use crate::values::duration;

/// A shell on another machine, with the methods of [`NativeSession`](crate::session::NativeSession). Dropping it ends the
/// shell and its processes.
#[napi]
pub struct NativeRemoteSession {
    connection: Arc<Connection>,
    request: Arc<Request>,
    shell: Arc<Mutex<Shell>>,
}

#[derive(Default)]
struct Shell {
    /// `None` before the session is open. Later, the server starts a new shell if one is needed.
    session: Option<Arc<RemoteSession>>,
    is_closed: bool,
}

impl NativeRemoteSession {
    pub fn new(connection: Arc<Connection>, request: Request) -> NativeRemoteSession {
        NativeRemoteSession { connection, request: Arc::new(request), shell: Arc::default() }
    }

    fn session(&self) -> Option<Arc<RemoteSession>> {
        lock(&self.shell).session.clone()
    }
}

#[napi]
impl NativeRemoteSession {
    /// Whether the session is not open yet.
    #[napi(getter)]
    pub fn needs_shell(&self) -> bool {
        self.session().is_none()
    }

    /// The time that the shell has to exit after `close`, in milliseconds.
    #[napi(getter)]
    pub fn grace(&self) -> f64 {
        let (_, options) = self.request.parts();
        options.session.get("grace").as_duration().unwrap_or_default().as_secs_f64() * 1000.0
    }

    /// Opens the session. The queue gets null under `key` when the shell is ready. The stop of the call ends the shell.
    #[napi]
    pub fn open(&self, queue: &Queue, key: u32, _command: Option<&NativeCommandText>) -> Option<Failure> {
        let (connection, request, shell) = (self.connection.clone(), self.request.clone(), self.shell.clone());
        queue.begin(key, |mut stop| async move {
            let (command, options) = request.parts();
            let permits = connection.ready(&options.run, &mut stop).await?;
            let opening = connection.remote.begin_session(command, &options.session, permits)?;
            let session = unless(&mut stop, opening.wait_async()).await??;
            let mut shell = lock(&shell);
            // The drop of a session ends its shell.
            shell.session = Some(Arc::new(session)).filter(|_| !shell.is_closed);
            Ok::<_, spawnfd::Error>(Null)
        })
    }

    /// Starts a command in the shell. The queue gets its job under `key`.
    #[napi]
    pub fn start(&self, queue: &Queue, key: u32, command: &NativeCommandText) -> Option<Failure> {
        let (connection, session, (text, run, events, grace)) =
            (self.connection.clone(), self.session(), command.parts());
        queue.begin(key, |mut stop| async move {
            let session = session.ok_or_else(stopped_before_start)?;
            let permits = unless(&mut stop, acquire_async(&run)).await?;
            let (job, events) = started(session.begin_start(&text, &run, permits, events)?, &mut stop).await?;
            Ok::<_, spawnfd::Error>(NativeJob::remote((job, events, Origins::default(), grace), connection))
        })
    }

    #[napi]
    pub fn interrupt(&self) {
        if let Some(session) = self.session() {
            session.interrupt();
        }
    }

    #[napi]
    pub fn resize(&self, rows: u16, columns: u16) {
        if let Some(session) = self.session() {
            session.resize(TerminalSize::new(rows, columns));
        }
    }

    /// Asks for the processes of the session. The queue gets them under `key`.
    #[napi]
    pub fn processes(&self, queue: &Queue, key: u32) -> Option<Failure> {
        let session = self.session();
        queue.begin(key, |_stop| async move {
            let Some(session) = session else { return Ok(Vec::new()) };
            let asking = session.begin_processes()?;
            asking.job().wait_async().await?;
            let processes = asking.wait()?.into_iter();
            let native = processes.map(|process| NativeProcess { pid: process.pid, name: process.name });
            Ok::<_, spawnfd::Error>(native.collect())
        })
    }

    #[napi(getter)]
    pub fn pid(&self) -> Option<u32> {
        self.session().filter(|session| matches!(session.shell().try_wait(), Ok(None))).map(|session| session.id())
    }

    /// Closes the session: the shell reads the end of its input. The queue gets null under `key` when it has ended.
    #[napi]
    pub fn close(&self, queue: &Queue, key: u32) {
        lock(&self.shell).is_closed = true;
        let queue = queue.shared();
        let ended = move || queue.push(key, Outcome::woken());
        match self.session() {
            Some(session) => {
                session.begin_close();
                session.shell().when_done(ended);
            }
            None => ended(),
        }
    }

    /// Ends the shell and its processes: SIGTERM, then SIGKILL after `grace` milliseconds.
    #[napi]
    pub fn stop(&self, grace: Unknown<'_>) -> Result<()> {
        let grace: Duration = duration(&grace, "grace")?;
        if let Some(session) = self.session() {
            session.shell().stop(grace);
        }
        Ok(())
    }
}
