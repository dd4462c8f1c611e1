// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's handle of a worker process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::Result;
use crate::definitions::{Definitions, ParentDef};
use crate::programs::Programs;
use crate::worker::protocol::{Block, WorkerReply, WorkerRequest, WorkerSpec};

/// A worker process that waits for requests. Dropping the handle kills the worker.
#[derive(Debug)]
pub struct WorkerHandle {
    parent: ParentDef,
    filter: String,
    process: Child,
    /// `None` after `end`.
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
}

impl WorkerHandle {
    /// Starts a worker, and waits until it has set up its state.
    ///
    /// # Errors
    ///
    /// The worker cannot be started, or fails to set up its state.
    pub fn start(
        definitions: &Definitions,
        programs: &Programs,
        parent: &ParentDef,
        filter: &str,
        methods: &[String],
    ) -> Result<Self> {
        let own = programs.directory();
        let spec = WorkerSpec {
            parent: parent.clone(),
            filter: filter.to_owned(),
            methods: methods.to_vec(),
            programs: own.into(),
        };
        let mut search_path = definitions.environment.search_path.clone();
        search_path.push(own.to_string_lossy().into_owned());
        let mut process = Command::new(std::env::current_exe()?)
            .arg("--worker")
            .arg(serde_json::to_string(&spec)?)
            .env_clear()
            .envs(&definitions.environment.variables)
            .env("PATH", search_path.join(":"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a worker")?;
        let requests = process.stdin.take();
        let replies = BufReader::new(process.stdout.take().context("a worker without stdout")?);
        let mut worker = Self { parent: parent.clone(), filter: filter.to_owned(), process, requests, replies };
        match worker.reply()? {
            WorkerReply::Done => Ok(worker),
            other => bail!("unexpected reply of a new worker: {other:?}"),
        }
    }

    /// The parent that the worker represents.
    pub fn parent(&self) -> &ParentDef {
        &self.parent
    }

    /// Sends a request that has no result, and waits until the worker has performed it.
    pub fn perform(&mut self, request: &WorkerRequest) -> Result<()> {
        match self.send(request)? {
            WorkerReply::Done => Ok(()),
            other => bail!("unexpected reply of a worker: {other:?}"),
        }
    }

    /// Requests a block of samples.
    pub fn samples(&mut self, request: &WorkerRequest) -> Result<Block> {
        match self.send(request)? {
            WorkerReply::Samples(block) => Ok(block),
            other => bail!("unexpected reply of a worker: {other:?}"),
        }
    }

    /// Requests a rate.
    pub fn rate(&mut self, request: &WorkerRequest) -> Result<f64> {
        match self.send(request)? {
            WorkerReply::Rate(rate) => Ok(rate),
            other => bail!("unexpected reply of a worker: {other:?}"),
        }
    }

    fn send(&mut self, request: &WorkerRequest) -> Result<WorkerReply> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.requests.as_mut().context("the worker has been told to exit")?.write_all(&line)?;
        self.reply()
    }

    fn reply(&mut self) -> Result<WorkerReply> {
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        let name = || format!("worker {} under filter {}", self.parent.name, self.filter);
        ensure!(!line.is_empty(), "{} exited without a reply", name());
        match serde_json::from_str(&line).with_context(name)? {
            WorkerReply::Failed(why) => bail!("{}: {why}", name()),
            reply => Ok(reply),
        }
    }

    /// Closes the worker's stdin, so that it exits, and waits for it.
    ///
    /// # Errors
    ///
    /// The worker failed.
    pub fn end(mut self) -> Result<()> {
        drop(self.requests.take());
        let status = self.process.wait()?;
        ensure!(status.success(), "worker {} under filter {}: {status}", self.parent.name, self.filter);
        Ok(())
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        // The worker still runs only after an error. It may be in any state, so kill it.
        if self.requests.take().is_some() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
