// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the driver and a worker say to each other.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::definitions::ParentDef;

/// What a worker is, given on its command line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Role {
    pub parent: ParentDef,
    pub filter: String,
    pub methods: Vec<String>,
    /// Where the benchmark's own programs lie.
    pub programs: PathBuf,
}

/// One method's share of a block.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Turn {
    pub method: String,
    pub samples: usize,
    pub apart: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// By every method, start a child that lists its descriptors and see only 0, 1 and 2; by the promising ones also
    /// while the worker holds a descriptor that is not close-on-exec.
    CheckDescriptors {
        promising: Vec<String>,
    },
    FirstInstruction {
        program: String,
        search: bool,
        turns: Vec<Turn>,
    },
    Lifecycle {
        program: String,
        turns: Vec<Turn>,
    },
    Parallel {
        program: String,
        method: String,
        threads: usize,
        calls: usize,
    },
}

/// What a block brought.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Block {
    /// Nanoseconds by method.
    pub taken: HashMap<String, Vec<u64>>,
    /// The share of all CPUs' time that the busy threads had meanwhile, in %.
    pub busy_share: Option<f64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    Done,
    Samples(Block),
    /// Spawns per second.
    Rate(f64),
    Failed(String),
}
