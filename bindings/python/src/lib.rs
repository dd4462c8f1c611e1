// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd._spawnfd`: the native part of the Python package. The public interface is in `python/spawnfd`.

mod actions;
mod arguments;
mod child;
mod classes;
mod connection;
mod env;
mod errors;
mod job;
mod limiter;
mod options;
mod placeholders;
mod popen;
mod queue;
mod remote;
mod reported;
mod request;
mod result;
mod run;
mod sandbox;
mod session;
mod snapshot;
mod stdio;
mod template;
mod warm;

/// The module that the package's Python part imports.
#[pyo3::pymodule]
mod _spawnfd {
    use std::sync::atomic::{AtomicI64, Ordering};

    use pyo3::exceptions::PyImportError;
    use pyo3::{ffi, prelude::*};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python packages use")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// Refuses a second interpreter in this process, as CPython does from 3.12 on. Interpreters cannot share objects.
    /// Then prepares the audit events, and reserves low descriptor numbers.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        static FIRST: AtomicI64 = AtomicI64::new(-1);
        // SAFETY: this thread is attached to an interpreter, so the interpreter's state exists.
        let own = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
        match FIRST.compare_exchange(-1, own, Ordering::Relaxed, Ordering::Relaxed) {
            Err(first) if first != own => {
                Err(PyImportError::new_err("module spawnfd._spawnfd does not support loading in subinterpreters"))
            }
            _ => {
                spawnfd::reserve_descriptors();
                crate::request::find_audit(module.py()).map(drop)
            }
        }
    }

    #[pymodule_export]
    use super::actions::printed_actions;
    #[pymodule_export]
    use super::child::Child;
    #[pymodule_export]
    use super::env::{Env, restore_env};
    #[pymodule_export]
    use super::job::{Chunk, Event, Job, Watcher, restore_chunk, restore_event};
    #[pymodule_export]
    use super::limiter::{Limiter, PermitRequest};
    #[pymodule_export]
    use super::popen::{PopenChild, pidfd_calls_are_killed, popen};
    #[pymodule_export]
    use super::queue::{Queue, Wakeup};
    #[pymodule_export]
    use super::remote::{Question, Remote, RemoteSession, RemoteShellStart, RemoteStart, Transfer, serve, supervise};
    #[pymodule_export]
    use super::result::{RunResult, restore};
    #[pymodule_export]
    use super::run::{ActiveRun, begin, end_idle_threads, explain, run};
    #[pymodule_export]
    use super::sandbox::Sandbox;
    #[pymodule_export]
    use super::session::{CommandText, Session, ShellStart};
    #[pymodule_export]
    use super::snapshot::{Snapshot, SnapshotCache, snapshot};
    #[pymodule_export]
    use super::template::{Template, TemplateCache};
    #[pymodule_export]
    use super::warm::Warm;
}
