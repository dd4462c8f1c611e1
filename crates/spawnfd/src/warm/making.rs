// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process on its way to where it waits: the keeper looks after it beside all else.

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

/// How long a program may take until it is parked.
const START: Duration = Duration::from_secs(20);

/// For whom something is parked.
#[derive(Clone, Copy, Debug)]
pub(super) struct For {
    pub(super) entry: u64,
    pub(super) version: u64,
}

/// The program in front of a probe.
#[derive(Debug)]
struct Front {
    /// Where it tells what is the matter.
    errors: Known,
    /// Of the probe nothing is to be heard any more.
    is_alone: bool,
    told: Vec<u8>,
}

/// One that has been started and is not parked yet.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) whose: For,
    recipe: Arc<Recipe>,
    object: Arc<Known>,
    /// Of the thread that started the keeper.
    maker: Arc<Reach>,
    /// It is there to show that this one in front hands on what parks.
    front: Option<Front>,
    until: Instant,
    /// Gone when it is parked.
    parked: Option<Parked>,
}

impl Making {
    /// Starts a program, from a thread that was started by one with the reach of `maker`.
    ///
    /// # Errors
    /// Why it is not.
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
        // One that has shown enough ends first.
        self.parked = None;
        // Before the program could run instead.
        let (front, probe) = self.unproven().map(|_| Front::new()).transpose()?.unzip();
        self.front = front;
        self.until = Instant::now() + START;
        self.parked = Some(Parked::start(&self.recipe, &self.object, &self.maker, probe.as_ref())?);
        Ok(())
    }

    /// The program in front, as long as it is not known to hand on.
    fn unproven(&self) -> Option<&Prefix> {
        self.recipe.prefix.as_ref().filter(|prefix| !prefix.hands_on.load(Ordering::Relaxed))
    }

    /// Where it is heard.
    pub(super) fn source(&self) -> Option<&OwnedFd> {
        match &self.front {
            Some(front) if front.is_alone => front.errors.get(),
            _ => self.parked.as_ref()?.socket(),
        }
    }

    /// What has come of it; `None`: nothing yet.
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
            // The probe itself says so.
            Err(why) => Some(Err(why)),
        }
    }
}

impl Front {
    fn new() -> Result<(Front, Probe), Failed> {
        let program = image::zygote_file()?;
        // It is not kept from its end by what nobody reads.
        let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK);
        let (errors, theirs) = pipe.map_err(|error| ("pipe2()", errno(error)))?;
        let [program, theirs] = [program, theirs].map(above_standard);
        Ok((Front { errors: Known::new(errors), is_alone: false, told: Vec::new() }, Probe { program, errors: theirs }))
    }

    /// Why it has come to nothing, once it has ended.
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
        // Who cannot execute the probe names it.
        let names_it = self.told.windows(PROBES.len()).any(|part| part == PROBES.as_bytes());
        Some(match names_it {
            true => NotParked::Ever("not handed on".to_owned()),
            false => NotParked::Now("failed in front".to_owned()),
        })
    }
}
