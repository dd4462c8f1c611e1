// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's end of a worker.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::Result;
use crate::definitions::{Definitions, ParentDef};
use crate::programs::Programs;
use crate::worker::protocol::{Answer, Block, Request, Role};

/// A worker process that waits for commands.
#[derive(Debug)]
pub struct Worker {
    parent: ParentDef,
    filter: String,
    process: Child,
    /// `None` once the worker was told to end.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker, and waits until it is in its state.
    ///
    /// # Errors
    ///
    /// It cannot be started, or does not reach its state.
    pub fn start(
        definitions: &Definitions,
        programs: &Programs,
        parent: &ParentDef,
        filter: &str,
        methods: &[String],
    ) -> Result<Self> {
        let own = programs.directory();
        let role =
            Role { parent: parent.clone(), filter: filter.to_owned(), methods: methods.to_vec(), programs: own.into() };
        let mut search_path = definitions.environment.search_path.clone();
        search_path.push(own.to_string_lossy().into_owned());
        let mut process = Command::new(std::env::current_exe()?)
            .arg("--worker")
            .arg(serde_json::to_string(&role)?)
            .env_clear()
            .envs(&definitions.environment.variables)
            .env("PATH", search_path.join(":"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a worker")?;
        let requests = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().context("a worker without stdout")?);
        let mut worker = Self { parent: parent.clone(), filter: filter.to_owned(), process, requests, answers };
        match worker.answer()? {
            Answer::Done => Ok(worker),
            other => bail!("the worker does not start: {other:?}"),
        }
    }

    /// What the worker is.
    pub fn parent(&self) -> &ParentDef {
        &self.parent
    }

    /// Asks for something that has no figures.
    pub fn ask_done(&mut self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Answer::Done => Ok(()),
            other => bail!("the worker answered {other:?}"),
        }
    }

    /// Asks for a block of samples.
    pub fn ask_samples(&mut self, request: &Request) -> Result<Block> {
        match self.ask(request)? {
            Answer::Samples(block) => Ok(block),
            other => bail!("the worker answered {other:?}"),
        }
    }

    /// Asks for a rate.
    pub fn ask_rate(&mut self, request: &Request) -> Result<f64> {
        match self.ask(request)? {
            Answer::Rate(rate) => Ok(rate),
            other => bail!("the worker answered {other:?}"),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.requests.as_mut().context("the worker was told to end")?.write_all(&line)?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let whose = || format!("the worker {} under filter {}", self.parent.name, self.filter);
        ensure!(!line.is_empty(), "{} is gone", whose());
        match serde_json::from_str(&line).with_context(whose)? {
            Answer::Failed(why) => bail!("{}: {why}", whose()),
            answer => Ok(answer),
        }
    }

    /// Tells the worker to end, and waits for it.
    ///
    /// # Errors
    ///
    /// It did not end well.
    pub fn end(mut self) -> Result<()> {
        drop(self.requests.take());
        let status = self.process.wait()?;
        ensure!(status.success(), "the worker {} under filter {} ended with {status}", self.parent.name, self.filter);
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Reached with a live worker only after an error: the worker may be in any state.
        if self.requests.take().is_some() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
