// SPDX-License-Identifier: MIT OR Apache-2.0
//! A connection to another machine. The jobs and sessions of the connection keep it.

use pyo3::prelude::*;
use spawnfd_remote::Remote;

use crate::errors::ErrorContext;

/// A connection, and what its results and errors report. Its drop ends the transport, and with it all programs.
#[derive(Debug)]
pub struct Connection {
    /// `Some` until the drop.
    core: Option<Remote>,
    /// The name of the transport's program.
    transport: String,
    context: ErrorContext,
}

impl Connection {
    pub fn new(core: Remote, transport: String, context: ErrorContext) -> Connection {
        Connection { core: Some(core), transport, context }
    }

    pub fn core(&self) -> &Remote {
        self.core.as_ref().expect("the connection is not dropped")
    }

    /// Names the place where programs run: the host, once the server has told its name, and the transport.
    pub fn place(&self) -> String {
        match self.core().hello() {
            Some(hello) => format!("{} ({})", hello.host, self.transport),
            None => self.transport.clone(),
        }
    }

    /// Returns the exception for an error that concerns the connection.
    pub fn exception(&self, py: Python<'_>, error: &spawnfd::Error) -> PyErr {
        self.context.exception(py, error)
    }
}

impl Drop for Connection {
    /// Ends the transport. That searches /proc, and may wait for the engine.
    fn drop(&mut self) {
        let core = self.core.take();
        // If the thread cannot attach, the closure drops the connection.
        let _ = Python::try_attach(|py| py.detach(|| drop(core)));
    }
}
