// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a parent: memory, descriptors, threads.

use std::fs::File;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::busy::Busy;
use super::protocol::ParentDef;
use crate::Result;

const PAGE: usize = 4096;
/// Descriptors left for the worker itself.
const SPARE: u64 = 256;

/// The memory, descriptors and threads that a worker keeps while it measures.
#[derive(Debug, Default)]
pub struct ParentState {
    memory: Vec<Vec<u8>>,
    descriptors: Vec<File>,
    busy: Option<Busy>,
}

impl ParentState {
    /// Sets up the state that `parent` describes.
    ///
    /// # Errors
    ///
    /// The limit of open files cannot be raised, or a thread or process cannot be started.
    pub fn set_up(parent: &ParentDef) -> Result<Self> {
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

    /// Starts the busy threads, and returns when each of them has run.
    pub fn start_busy(&mut self) -> Result<()> {
        self.busy.as_mut().map_or(Ok(()), Busy::start)
    }

    /// Parks the busy threads, so that they do not disturb the blocks of other workers.
    ///
    /// Returns their share of all CPU time since `start_busy`, in %.
    pub fn stop_busy(&self) -> Result<Option<f64>> {
        self.busy.as_ref().map(Busy::stop).transpose()
    }
}

/// Raises the limit of open files. Also raises the hard limit, if necessary and permitted.
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
