// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process on its way to where it waits: the keeper looks after it beside all else.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::image;
use super::parked::{NotParked, Parked, Recipe};
use super::prefix::Prefix;
use crate::authority::Marker;
use crate::error::errno;
use crate::numbers::{Known, above_standard};

/// How long a program may take until it is parked.
const START: Duration = Duration::from_secs(20);

/// For whom something is parked.
#[derive(Clone, Copy, Debug)]
pub(super) struct For {
    pub(super) entry: u64,
    pub(super) version: u64,
}

/// One that has been started and is not parked yet.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) whose: For,
    recipe: Arc<Recipe>,
    object: Arc<Known>,
    maker: ThreadId,
    marker: Arc<Marker>,
    /// It is there to show that the program in front hands on what parks.
    probes: bool,
    until: Instant,
    /// Gone when it is parked.
    parked: Option<Parked>,
}

impl Making {
    /// Starts a program, from a thread that `maker` has started.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn begin(
        whose: For,
        recipe: Arc<Recipe>,
        object: Arc<Known>,
        maker: ThreadId,
        marker: Arc<Marker>,
    ) -> Result<Making, NotParked> {
        let until = Instant::now();
        let mut making = Making { whose, recipe, object, maker, marker, probes: false, until, parked: None };
        making.start()?;
        Ok(making)
    }

    fn start(&mut self) -> Result<(), NotParked> {
        // One that has shown enough ends first.
        self.parked = None;
        // Before the program could run instead.
        self.probes = self.unproven().is_some();
        let probe = self.probes.then(image::zygote_file).transpose();
        let probe = probe.map_err(|error| ("memfd_create()", errno(error)))?.map(above_standard);
        let marker = self.marker.clone();
        self.until = Instant::now() + START;
        self.parked = Some(Parked::begin(&self.recipe, &self.object, self.maker, marker, probe.as_ref())?);
        Ok(())
    }

    /// The program in front, as long as it is not known to hand on.
    fn unproven(&self) -> Option<&Prefix> {
        self.recipe.prefix.as_ref().filter(|prefix| !prefix.hands_on.load(Ordering::Relaxed))
    }

    /// Where it is heard.
    pub(super) fn socket(&self) -> Option<&OwnedFd> {
        self.parked.as_ref()?.socket()
    }

    /// What has come of it; `None`: nothing yet.
    pub(super) fn look(&mut self) -> Option<Result<Parked, NotParked>> {
        let outcome = match self.parked.as_mut()?.is_parked() {
            None if Instant::now() > self.until => Err(NotParked::Ever("slow".to_owned())),
            outcome => outcome?,
        };
        if !self.probes {
            return outcome.map(|()| self.parked.take()).transpose();
        }
        if outcome.is_err() {
            return Some(Err(NotParked::Ever("not handed on".to_owned())));
        }
        if let Some(prefix) = self.unproven() {
            prefix.hands_on.store(true, Ordering::Relaxed);
        }
        self.start().err().map(Err)
    }
}
