// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker: a parent process in the state that its definition describes. It measures on request.
//!
//! The worker reads requests from stdin and writes replies to stdout, one JSON object per line. It exits when stdin
//! ends.

pub mod busy;
pub(crate) mod measure;
mod parallel;
mod parent;
mod pinned;
pub mod protocol;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::Path;

use crate::methods::{self, Method, Target};
use crate::random::Random;
use crate::{Result, docker, programs};
use parent::ParentState;
use pinned::Pinned;
use protocol::{Block, WorkerReply, WorkerRequest, WorkerSpec};

/// The number of consecutive calls of a method. A real program uses one method repeatedly. If
/// methods alternated after each call, each call would find the caches and TLBs in the state that
/// another method left.
const STREAK: usize = 10;

/// The name of a method, its program, and whether the method searches the program in PATH.
type MethodKey = (String, String, bool);

/// The worker's state between requests.
struct Worker {
    spec: WorkerSpec,
    state: ParentState,
    methods: HashMap<MethodKey, Box<dyn Method>>,
    random: Random,
}

/// Runs a worker until its stdin ends.
///
/// # Errors
///
/// The specification is invalid, the filter cannot be installed, or the driver has exited. All other errors go to the
/// driver as replies.
pub fn run(spec: &str) -> Result<()> {
    let spec: WorkerSpec = serde_json::from_str(spec)?;
    if spec.filter == "docker" {
        docker::confine()?;
    }
    let mut worker =
        Worker { state: ParentState::default(), methods: HashMap::new(), random: Random::new(0xb10c), spec };
    let ready = worker.prepare();
    reply(ready.map(|()| WorkerReply::Done))?;
    for line in std::io::stdin().lock().lines() {
        let request: WorkerRequest = serde_json::from_str(&line?)?;
        let result = worker.perform(request);
        reply(result)?;
    }
    Ok(())
}

fn reply(result: Result<WorkerReply>) -> Result<()> {
    let reply = result.unwrap_or_else(|e| WorkerReply::Failed(format!("{e:#}")));
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    Ok(std::io::stdout().lock().write_all(&line)?)
}

impl Worker {
    /// Sets up the parent's state. With `library_first`, each method spawns once before that.
    fn prepare(&mut self) -> Result<()> {
        if self.spec.parent.library_first {
            let first = programs::first_instruction(&self.spec.programs).to_string_lossy().into_owned();
            for name in self.spec.methods.clone() {
                let method = self.method(&name, &first, false)?;
                measure::first_instruction(method)?;
            }
        }
        self.state = ParentState::set_up(&self.spec.parent)?;
        Ok(())
    }

    /// Returns the method, prepared for the program. Prepares it on first use.
    fn method(&mut self, name: &str, program: &str, search: bool) -> Result<&mut dyn Method> {
        let key = (name.to_owned(), program.to_owned(), search);
        let method = match self.methods.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(methods::open(name, &target(program, search))?)
            }
        };
        Ok(method.as_mut())
    }

    fn perform(&mut self, request: WorkerRequest) -> Result<WorkerReply> {
        match request {
            WorkerRequest::CheckDescriptors { only_stdio } => {
                let list = programs::list_fds(&self.spec.programs).to_string_lossy().into_owned();
                for name in self.spec.methods.clone() {
                    measure::check_only_stdio(&name, self.method(&name, &list, false)?)?;
                }
                let inheritable = rustix::io::dup(std::io::stdin())?;
                for name in only_stdio {
                    measure::check_only_stdio(&name, self.method(&name, &list, false)?)?;
                }
                drop(inheritable);
                Ok(WorkerReply::Done)
            }
            WorkerRequest::FirstInstruction { program, search, methods } => {
                self.block(&methods, &program, search, measure::first_instruction)
            }
            WorkerRequest::Lifecycle { program, methods } => self.block(&methods, &program, false, measure::lifecycle),
            WorkerRequest::Parallel { program, method, threads, calls } => {
                let method = self.method(&method, &program, false)?;
                Ok(WorkerReply::Rate(parallel::rate(method, threads, calls)?))
            }
        }
    }

    /// Takes one block of samples: streaks of all methods in random order, then of the methods that run apart.
    ///
    /// The first call of each method is not counted, because it finds the caches as the previous block left them.
    fn block(
        &mut self,
        methods: &[protocol::MethodSamples],
        program: &str,
        search: bool,
        sample: fn(&mut dyn Method) -> Result<u64>,
    ) -> Result<WorkerReply> {
        let mut taken: HashMap<String, Vec<u64>> = HashMap::new();
        self.state.start_busy()?;
        let pinned = Pinned::to_first_cpu()?;
        let (apart, together): (Vec<_>, Vec<_>) = methods.iter().partition(|m| m.apart);
        for group in [together, apart] {
            for entry in &group {
                let method = self.method(&entry.method, program, search)?;
                sample(method)?;
            }
            let before = measure::descriptors()?;
            let most = group.iter().map(|m| m.samples).max().unwrap_or(0);
            for done in (0..most).step_by(STREAK) {
                let mut order: Vec<_> = group.iter().filter(|m| done < m.samples).collect();
                self.random.shuffle(&mut order);
                for entry in order {
                    let method = self.method(&entry.method, program, search)?;
                    let taken = taken.entry(entry.method.clone()).or_default();
                    for _ in done..entry.samples.min(done + STREAK) {
                        taken.push(sample(method)?);
                    }
                }
            }
            measure::check_nothing_left(before)?;
        }
        pinned.release()?;
        let busy_share = self.state.stop_busy()?;
        Ok(WorkerReply::Samples(Block { taken, busy_share }))
    }
}

fn target(program: &str, search: bool) -> Target {
    let path = Path::new(program);
    match path.file_name().filter(|_| search) {
        Some(name) => Target::Name(name.to_string_lossy().into_owned()),
        None => Target::Path(path.to_owned()),
    }
}
