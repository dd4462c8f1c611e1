// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that has been started and is not parked yet. The keeper watches it beside its other work.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::channel::Failed;
use super::image;
use super::parked::{NOT_PARKED, Parked};
use super::prefix::Prefix;
use super::recipe::Recipe;
use super::start::{NotParked, PROBES, Probe};
use crate::error::errno;
use crate::host::authority::Reach;
use crate::host::numbers::{Known, above_standard};

/// The longest time that a program may take to park.
const START: Duration = Duration::from_secs(20);

/// The entry, and its version, that a process is parked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct For {
    pub(super) entry: u64,
    pub(super) version: u64,
}

/// The program in front of a probe.
#[derive(Debug)]
struct Front {
    /// The read end of its standard error.
    errors: Known,
    /// The probe's channel has ended, so only the program in front can report.
    is_alone: bool,
    told: Vec<u8>,
}

/// A process that has been started and is not parked yet.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) whose: For,
    recipe: Arc<Recipe>,
    object: Arc<Known>,
    /// The reach of the thread that started the keeper.
    maker: Arc<Reach>,
    /// Set while `parked` is a probe, which checks that the program in front passes the channel on.
    front: Option<Front>,
    until: Instant,
    /// `None` once the process is parked.
    parked: Option<Parked>,
}

impl Making {
    /// Starts a program, in a thread that was started by a thread with the reach `maker`.
    ///
    /// # Errors
    /// The reason why the program was not started.
    pub(super) fn begin(
        whose: For,
        recipe: Arc<Recipe>,
        object: Arc<Known>,
        maker: Arc<Reach>,
    ) -> Result<Making, NotParked> {
        let until = Instant::now();
        let mut making = Making { whose, recipe, object, maker, front: None, until, parked: None };
        making.start()?;
        Ok(making)
    }

    fn start(&mut self) -> Result<(), NotParked> {
        // End a successful probe first.
        self.parked = None;
        // Unproven: run the probe instead of the program.
        let (front, probe) = self.unproven().map(|_| Front::new()).transpose()?.unzip();
        self.front = front;
        self.until = Instant::now() + START;
        self.parked = Some(Parked::start(&self.recipe, &self.object, &self.maker, probe.as_ref())?);
        Ok(())
    }

    /// The program in front, until it is known to pass the channel on.
    fn unproven(&self) -> Option<&Prefix> {
        self.recipe.prefix.as_ref().filter(|prefix| !prefix.hands_on.load(Ordering::Relaxed))
    }

    /// The descriptor to poll for its reports.
    pub(super) fn source(&self) -> Option<&OwnedFd> {
        match &self.front {
            Some(front) if front.is_alone => front.errors.get(),
            _ => self.parked.as_ref()?.socket(),
        }
    }

    /// The outcome; `None`: there is none yet.
    pub(super) fn look(&mut self) -> Option<Result<Parked, NotParked>> {
        let slow = || (Instant::now() > self.until).then(|| NotParked::Ever("slow".to_owned()));
        let outcome = match &mut self.front {
            Some(front) if front.is_alone => return front.trouble().or_else(slow).map(Err),
            _ => self.parked.as_mut()?.is_parked().or_else(|| slow().map(Err))?,
        };
        let Some(front) = &mut self.front else { return outcome.map(|()| self.parked.take()).transpose() };
        match outcome {
            Ok(()) => {
                if let Some(prefix) = self.unproven() {
                    prefix.hands_on.store(true, Ordering::Relaxed);
                }
                self.start().err().map(Err)
            }
            Err(NotParked::Ever(why)) if why == NOT_PARKED => {
                front.is_alone = true;
                front.trouble().map(Err)
            }
            // The probe itself reports this reason.
            Err(why) => Some(Err(why)),
        }
    }
}

impl Front {
    fn new() -> Result<(Front, Probe), Failed> {
        let program = image::zygote_file()?;
        // Non-blocking, so that the program in front never blocks on unread output.
        let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        let (errors, theirs) = pipe.map_err(|error| ("pipe2()", errno(error)))?;
        let [program, theirs] = [program, theirs].map(above_standard);
        Ok((Front { errors: Known::new(errors), is_alone: false, told: Vec::new() }, Probe { program, errors: theirs }))
    }

    /// The reason for the failure, once the program in front has ended.
    fn trouble(&mut self) -> Option<NotParked> {
        const MOST: usize = 16 << 10;
        let mut part = [0; 4096];
        match self.errors.get().map(|errors| rustix::io::read(errors, &mut part)) {
            Some(Err(Errno::AGAIN | Errno::INTR)) => return None,
            Some(Ok(length @ 1..)) => {
                let room = MOST.saturating_sub(self.told.len());
                self.told.extend(&part[..length.min(room)]);
                return None;
            }
            _ => {}
        }
        // A program that cannot execute the probe prints the probe's name.
        let names_it = self.told.windows(PROBES.len()).any(|part| part == PROBES.as_bytes());
        Some(match names_it {
            true => NotParked::Ever("not handed on".to_owned()),
            false => NotParked::Now("failed in front".to_owned()),
        })
    }
}
