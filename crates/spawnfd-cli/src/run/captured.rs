// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs a program and captures its output (`--capture`).

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Arg, Args};
use rustix::fs::{Access, access};
use spawnfd::job::{Event, EventOptions, Events, Stop};
use spawnfd::limits::Resource;
use spawnfd::options::{Call, Group, Kind, OptionSpec, Value};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Error, Output};

use super::signals::{Signals, Woken};
use crate::failure::{FAILED, Failure, TIMEOUT, code_of, print_to, reason};
use crate::options::{Flags, Subcommand, flag_name};
use crate::os;

const HEADING: &str = "Captured runs";

#[derive(Debug, Args)]
pub struct Capture {
    /// Run the program in its own session, collect its output, and print the output when the program has ended
    #[arg(long, help_heading = HEADING)]
    capture: bool,
    /// Also print the output as it arrives, and not at the end. --json then prints on standard error
    #[arg(long, requires = "capture", conflicts_with = "combined", help_heading = HEADING)]
    stream: bool,
    /// Read the program's standard input from this file [default: empty input]
    #[arg(long, value_name = "FILE", requires = "capture", conflicts_with = "stdin", help_heading = HEADING)]
    input: Option<PathBuf>,
    #[command(flatten)]
    options: Flags<Run>,
}

/// The flags of a run's options.
#[derive(Debug)]
pub enum Run {}

impl Subcommand for Run {
    const CALL: Call = Call::Run;

    fn has(option: &OptionSpec) -> bool {
        // --input reads a file, and --spill keeps its file.
        option.group != Group::Program && !["input", "spill.persist"].contains(&option.name)
    }

    fn place(arg: Arg, option: &OptionSpec) -> Arg {
        let arg = arg.help_heading(match option.group {
            Group::Tree => "Time limit and process tree",
            Group::Limits => "Limits of the process tree",
            _ => HEADING,
        });
        let arg = if option.group == Group::Output { arg.requires("capture") } else { arg };
        match option.name {
            "spill.max_bytes" => arg.requires("spill"),
            "terminal" => arg.conflicts_with_all([
                "stdin",
                "stdout",
                "stderr",
                "process-group",
                "controlling-terminal",
                "foreground",
            ]),
            _ => arg,
        }
    }
}

/// The result of a captured run that has ended.
#[derive(Debug)]
pub struct Ended {
    pub output: Output,
    pub code: u8,
    /// The signal that this command received and that ended the run.
    pub ended_by: Option<i32>,
}

impl Capture {
    /// Whether to capture the program's output.
    pub fn is_wanted(&self) -> bool {
        self.capture
    }

    /// Whether to print the captured output as it arrives.
    pub fn streams(&self) -> bool {
        self.stream
    }

    /// Whether a flag asks for control of the program's process tree, with or without capturing its output.
    pub fn supervises(&self) -> bool {
        self.capture || self.options.any_of(&[Group::Tree, Group::Limits])
    }

    /// Whether the program's name looks like the value that the user meant for --terminal.
    pub fn is_misplaced_size(&self, name: &OsStr) -> bool {
        self.options.get("terminal").is_some() && Kind::TerminalSize.parse(name).is_ok()
    }

    /// Returns the flag of the option of the run that an error concerns.
    pub fn flag_of_error(error: &Error) -> Option<String> {
        if error.call().starts_with("marker(") {
            return Some("--marker".to_owned());
        }
        let limit = error.call().strip_prefix("limits(")?;
        Resource::ALL.iter().find(|resource| limit.starts_with(resource.name())).copied().map(Capture::flag_of)
    }

    /// Returns the flag that limits a resource.
    pub fn flag_of(resource: Resource) -> String {
        format!("--{}", flag_name(&format!("limits.{resource}")))
    }

    /// Whether the output says where bytes are omitted.
    pub fn has_marker(&self) -> bool {
        !matches!(self.options.get("marker"), Some(Value::Text(text)) if text.is_empty())
    }

    fn settings(&self) -> Result<spawnfd::Run, Failure> {
        let mut run = spawnfd::Run::new();
        self.options.apply(|name, value| run.set(name, value))?;
        if let Some(Value::Text(dir)) = self.options.get("spill.dir") {
            // Check the directory first. Otherwise the program would run, and part of its output would be lost.
            access(Path::new(dir).join("."), Access::WRITE_OK | Access::EXEC_OK)
                .map_err(|e| Failure::flag(format!("--spill {}", dir.display()), reason(&e.into())))?;
            run.set("spill.persist", Value::Bool(true))?;
        }
        if let Some(path) = &self.input {
            let flag = format!("--input {}", path.display());
            run = run.input(std::fs::read(path).map_err(|e| Failure::flag(flag, reason(&e)))?);
        }
        Ok(run)
    }

    /// Runs the program to its end, or until a signal ends this command.
    /// `shares_group`: the program is in this command's process group, so that the terminal's signals reach it.
    pub fn run(
        &self,
        command: &mut Command<'_>,
        shares_group: bool,
        failed: impl Fn(Error) -> Failure,
    ) -> Result<Ended, Failure> {
        let mut settings = self.settings()?;
        if shares_group && self.options.get("tree").is_none() {
            // In the lower tiers, the group of the program is necessary to find processes whose parents have ended.
            settings = settings.tree(TreeControl::Auto);
        }
        let grace = settings.get("grace").as_duration().unwrap_or_default();
        let signals = Signals::watch(None)?;
        let (woken, wake) = UnixStream::pair().map_err(|e| Failure::new(reason(&e)))?;
        let nonblocking = [&woken, &wake].into_iter().try_for_each(|socket| socket.set_nonblocking(true));
        nonblocking.map_err(|e| Failure::new(reason(&e)))?;
        let wake = Arc::new(wake);
        let write = move || _ = (&*wake).write(&[0]);
        os::close_streams_closed_at_start();
        let (job, mut events) = if self.stream {
            let (job, mut events) = command.start_events(&settings, EventOptions::default()).map_err(&failed)?;
            events.on_event(write.clone());
            (job, Some(events))
        } else {
            (command.start(&settings).map_err(&failed)?, None)
        };
        job.when_done(write);
        let mut ended_by = None;
        let mut printed = Ok(true);
        let outcome = loop {
            // Check for the outcome before taking the events. If the run has ended, the loop below then takes all its
            // events.
            let outcome = job.try_wait().map_err(&failed)?;
            while let Some(event) = events.as_mut().and_then(Events::try_next)
                && event != Event::End
            {
                if let (Ok(true), Event::Chunk { stream, bytes, .. }) = (&printed, &event) {
                    printed = print_to(*stream, bytes);
                    if !matches!(printed, Ok(true)) {
                        // The program would get SIGPIPE if it wrote to the closed pipe itself.
                        ended_by.get_or_insert(libc::SIGPIPE);
                        job.stop(grace);
                    }
                }
            }
            if let Some(outcome) = outcome {
                break outcome;
            }
            match signals.sleep(woken.as_fd())? {
                Woken::Ready => _ = (&woken).read(&mut [0; 64]),
                Woken::Signal { number: libc::SIGINT | libc::SIGQUIT, by_kernel: true } if shares_group => {}
                Woken::Signal { number, .. } => {
                    ended_by.get_or_insert(number);
                    job.stop(grace);
                }
            }
        };
        printed?;
        let output = Arc::unwrap_or_clone(outcome);
        let code = match (output.stop, ended_by) {
            _ if output.bound.as_duration().is_some() => TIMEOUT,
            (Stop::Cancelled, Some(signal)) => 128 + signal as u8,
            _ => output.status.map_or(FAILED, code_of),
        };
        Ok(Ended { output, code, ended_by })
    }
}
