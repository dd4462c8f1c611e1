// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages between the driver and a worker.
//!
//! bench-compare sends the same messages, even to workers of older commits. So their JSON names
//! stay the same.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::definitions::ParentDef;

/// A worker's specification, passed on its command line as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WorkerSpec {
    pub parent: ParentDef,
    pub filter: String,
    pub methods: Vec<String>,
    /// The directory of the benchmark's own programs.
    pub programs: PathBuf,
}

/// The samples of one method in a block.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MethodSamples {
    pub method: String,
    pub samples: usize,
    /// True if the method runs at the end of the block, after all other methods.
    pub apart: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum WorkerRequest {
    /// Check that the child of each method has only descriptors 0, 1 and 2. For the methods in `only_stdio`, check
    /// this also while the worker has a descriptor without close-on-exec.
    CheckDescriptors {
        #[serde(rename = "promising")]
        only_stdio: Vec<String>,
    },
    FirstInstruction {
        program: String,
        search: bool,
        #[serde(rename = "turns")]
        methods: Vec<MethodSamples>,
    },
    Lifecycle {
        program: String,
        #[serde(rename = "turns")]
        methods: Vec<MethodSamples>,
    },
    Parallel {
        program: String,
        method: String,
        threads: usize,
        calls: usize,
    },
}

/// The samples of a block.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Block {
    /// The samples of each method, in ns.
    pub taken: HashMap<String, Vec<u64>>,
    /// The busy threads' share of all CPU time during the block, in %.
    pub busy_share: Option<f64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum WorkerReply {
    Done,
    Samples(Block),
    /// Spawns per second.
    Rate(f64),
    Failed(String),
}
