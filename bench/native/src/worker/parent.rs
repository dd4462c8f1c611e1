// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state a parent is in: memory, descriptors, threads.

use std::fs::File;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::busy::Busy;
use crate::Result;
use crate::definitions::ParentDef;

const PAGE: usize = 4096;
/// Descriptors left for the worker itself.
const SPARE: u64 = 256;

/// What a worker holds while it measures.
#[derive(Debug, Default)]
pub struct State {
    memory: Vec<Vec<u8>>,
    descriptors: Vec<File>,
    busy: Option<Busy>,
}

impl State {
    /// Brings this process into the state that `parent` describes.
    ///
    /// # Errors
    ///
    /// The limit of descriptors is too low, or a thread or process cannot be started.
    pub fn reach(parent: &ParentDef) -> Result<Self> {
        let mut state = Self::default();
        if parent.allocate_mib > 0 {
            state.memory.push(Vec::with_capacity(parent.allocate_mib << 20));
        }
        if parent.touch_mib > 0 {
            let mut touched = vec![0u8; parent.touch_mib << 20];
            touched.chunks_mut(PAGE).for_each(|page| page[0] = 1);
            state.memory.push(std::hint::black_box(touched));
        }
        if parent.descriptors > 0 {
            raise_limit(parent.descriptors as u64 + SPARE)?;
            state.descriptors =
                (0..parent.descriptors).map(|_| File::open("/dev/null")).collect::<std::io::Result<_>>()?;
        }
        if parent.busy_threads > 0 {
            state.busy = Some(Busy::new(parent.busy_threads, parent.busy_elsewhere, parent.busy_policy)?);
        }
        Ok(state)
    }

    /// Lets the busy threads run, and returns when each has done some work.
    pub fn start_busy(&mut self) -> Result<()> {
        self.busy.as_mut().map_or(Ok(()), Busy::start)
    }

    /// Parks the busy threads, so that the other workers' blocks are not disturbed.
    ///
    /// Returns the share of all CPUs' time that they had since `start_busy`.
    pub fn stop_busy(&self) -> Result<Option<f64>> {
        self.busy.as_ref().map(Busy::stop).transpose()
    }
}

/// Raises the limit of open files, the hard one too where this process may.
fn raise_limit(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let enough = |of: Option<u64>| of.is_none_or(|n| n >= wanted);
    if enough(limit.current) {
        return Ok(());
    }
    let maximum = if enough(limit.maximum) { limit.maximum } else { Some(wanted) };
    let raised = Rlimit { current: Some(wanted), maximum };
    setrlimit(Resource::Nofile, raised)
        .with_context(|| format!("raising the limit of open files from {limit:?} to {wanted}"))
}
