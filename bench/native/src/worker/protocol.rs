// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages between the driver (bench/native/nativebench) and a worker.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A parent process: the state that a worker sets up before it spawns.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParentDef {
    pub name: String,
    pub allocate_mib: usize,
    pub touch_mib: usize,
    pub descriptors: usize,
    pub library_first: bool,
    pub busy_threads: usize,
    pub busy_elsewhere: bool,
    pub busy_policy: BusyPolicy,
}

/// How the busy threads compete for the CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BusyPolicy {
    /// SCHED_OTHER: a launch competes with the threads for the CPUs.
    #[default]
    Other,
    /// SCHED_IDLE: the threads run only on an otherwise idle CPU, so a launch preempts them.
    Idle,
}

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
