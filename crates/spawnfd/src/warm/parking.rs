// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that the keeper has started and that is not parked yet. While the process starts, the
//! keeper does other work.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use spawnfd_guard::process::is_proc_foreign;

use super::channel::CallError;
use super::image;
use super::parked::{NotParked, ParkedProcess};
use super::recipe::Recipe;
use super::sandbox_command::SandboxCommand;
use super::start::{PROBE_PREFIX, SandboxProbe};
use crate::cold_reason::ColdReason;
use crate::error::errno;
use crate::host::authority::Reach;
use crate::host::descriptors::{CheckedFd, above_standard};

/// The longest time that a program may take to park.
const PARK_TIMEOUT: Duration = Duration::from_secs(20);

/// The entry for which the keeper parks a process, and the entry's version.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParkTarget {
    pub(super) entry: u64,
    pub(super) version: u64,
}

/// The sandbox command that starts a probe instead of the program.
#[derive(Debug)]
struct ProbedSandbox {
    /// The read end of the sandbox command's standard error.
    errors: CheckedFd,
    /// True if the probe's end of the channel is closed. Then only the sandbox command can report a reason.
    probe_ended: bool,
    output: Vec<u8>,
}

/// A process that the keeper has started and that is not parked yet.
#[derive(Debug)]
pub(super) struct ParkingProcess {
    pub(super) target: ParkTarget,
    recipe: Arc<Recipe>,
    object: Arc<CheckedFd>,
    /// The reach (credentials and scheduling) of the thread that started the keeper.
    starter: Arc<Reach>,
    /// Set while `parked` is a probe, which checks that the sandbox command passes the object and the channel on.
    probed: Option<ProbedSandbox>,
    began: Instant,
    deadline: Instant,
    /// `None` once the process is parked.
    parked: Option<ParkedProcess>,
}

impl ParkingProcess {
    /// Starts a program that parks. `starter` is the reach of the thread that started the calling thread.
    ///
    /// # Errors
    /// The reason why the program was not started.
    pub(super) fn begin(
        target: ParkTarget,
        recipe: Arc<Recipe>,
        object: Arc<CheckedFd>,
        starter: Arc<Reach>,
    ) -> Result<ParkingProcess, NotParked> {
        let began = Instant::now();
        let mut process =
            ParkingProcess { target, recipe, object, starter, probed: None, began, deadline: began, parked: None };
        process.start()?;
        Ok(process)
    }

    fn start(&mut self) -> Result<(), NotParked> {
        // If a successful probe is left, drop it, which ends the probe.
        self.parked = None;
        // Run a probe first, unless an earlier probe has succeeded.
        let (probed, probe) = self.unproven_sandbox().map(|_| ProbedSandbox::new()).transpose()?.unzip();
        self.probed = probed;
        self.began = Instant::now();
        self.deadline = self.began + PARK_TIMEOUT;
        self.parked = Some(ParkedProcess::start(&self.recipe, &self.object, &self.starter, probe.as_ref())?);
        Ok(())
    }

    /// Returns the sandbox command, if no probe has succeeded in this sandbox yet.
    fn unproven_sandbox(&self) -> Option<&SandboxCommand> {
        self.recipe.sandbox.as_ref().filter(|sandbox| !sandbox.passes_preload.load(Ordering::Relaxed))
    }

    /// The descriptor that becomes readable when the process reports.
    pub(super) fn report_fd(&self) -> Option<&OwnedFd> {
        match &self.probed {
            Some(probed) if probed.probe_ended => probed.errors.get(),
            _ => self.parked.as_ref()?.socket(),
        }
    }

    /// Takes the parked process, and measures its start-up.
    fn take_parked(&mut self) -> Option<ParkedProcess> {
        let mut parked = self.parked.take()?;
        // In a sandbox, this process's child is the sandbox command, so its CPU time is not the program's.
        let measured = if self.recipe.sandbox.is_some() { None } else { cpu_time(parked.pid()) };
        parked.start_up = measured.unwrap_or_else(|| self.began.elapsed());
        Some(parked)
    }

    /// Returns the outcome of parking, or `None` if the process has not reported yet.
    pub(super) fn poll_outcome(&mut self) -> Option<Result<ParkedProcess, NotParked>> {
        let timed_out = || (Instant::now() > self.deadline).then_some(NotParked::Permanent(ColdReason::Slow));
        let outcome = match &mut self.probed {
            Some(probed) if probed.probe_ended => return probed.failure_reason().or_else(timed_out).map(Err),
            _ => self.parked.as_mut()?.poll_report().or_else(|| timed_out().map(Err))?,
        };
        let Some(probed) = &mut self.probed else {
            return outcome.map(|()| self.take_parked()).transpose();
        };
        match outcome {
            Ok(()) => {
                if let Some(sandbox) = self.unproven_sandbox() {
                    sandbox.passes_preload.store(true, Ordering::Relaxed);
                }
                self.start().err().map(Err)
            }
            Err(NotParked::Permanent(ColdReason::NotParked)) => {
                probed.probe_ended = true;
                probed.failure_reason().map(Err)
            }
            // The probe itself has reported the reason `why`.
            Err(why) => Some(Err(why)),
        }
    }
}

/// The CPU time of a child's first thread so far. `None` if the kernel does not report it.
fn cpu_time(pid: i32) -> Option<Duration> {
    if is_proc_foreign() {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let nanoseconds = text.split(' ').next()?.parse().ok().filter(|&nanoseconds| nanoseconds > 0)?;
    Some(Duration::from_nanos(nanoseconds))
}

impl ProbedSandbox {
    fn new() -> Result<(ProbedSandbox, SandboxProbe), CallError> {
        let program = image::zygote_file()?;
        // Non-blocking, so that the sandbox command never blocks on unread output.
        let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        let (errors, write_end) = pipe.map_err(|error| ("pipe2()", errno(error)))?;
        let [program, write_end] = [program, write_end].map(above_standard);
        Ok((
            ProbedSandbox { errors: CheckedFd::new(errors), probe_ended: false, output: Vec::new() },
            SandboxProbe { program, errors: write_end },
        ))
    }

    /// Returns the reason for the failure, once the sandbox command has ended.
    fn failure_reason(&mut self) -> Option<NotParked> {
        const MAX_OUTPUT: usize = 16 << 10;
        let mut part = [0; 4096];
        match self.errors.get().map(|errors| rustix::io::read(errors, &mut part)) {
            Some(Err(Errno::AGAIN | Errno::INTR)) => return None,
            Some(Ok(length @ 1..)) => {
                let free = MAX_OUTPUT.saturating_sub(self.output.len());
                self.output.extend(&part[..length.min(free)]);
                return None;
            }
            _ => {}
        }
        // A sandbox command that cannot execute the probe prints the probe's path.
        let names_probe = self.output.windows(PROBE_PREFIX.len()).any(|part| part == PROBE_PREFIX.as_bytes());
        Some(match names_probe {
            true => NotParked::Permanent(ColdReason::SandboxDropsPreload),
            false => NotParked::Temporary(ColdReason::SandboxCommandFailed),
        })
    }
}
