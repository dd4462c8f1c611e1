// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker: one parent process in the state its definition asks for, which measures on command.
//!
//! Commands come as JSON lines on stdin, answers go as JSON lines to stdout. It ends at the end of its stdin.

pub mod busy;
mod measure;
mod parallel;
mod parent;
mod pinned;
pub mod protocol;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::Path;

use crate::methods::{self, Method, Target};
use crate::samples::Random;
use crate::{Result, docker, programs};
use parent::State;
use pinned::Pinned;
use protocol::{Answer, Block, Request, Role};

/// How many calls a method makes in a row. A program spawns by one method again and again; calls that alternated one by one would
/// each begin in caches and TLBs that another method has left.
const STREAK: usize = 10;

/// A method by name, the program it starts, and whether it searches for it.
type Bound = (String, String, bool);

/// The worker's state between commands.
struct Worker {
    role: Role,
    state: State,
    methods: HashMap<Bound, Box<dyn Method>>,
    random: Random,
}

/// Runs a worker until its stdin ends.
///
/// # Errors
///
/// The state cannot be reached, or the driver is gone. A failed measurement is answered, not returned.
pub fn run(role: &str) -> Result<()> {
    let role: Role = serde_json::from_str(role)?;
    if role.filter == "docker" {
        docker::confine()?;
    }
    let mut worker = Worker { state: State::default(), methods: HashMap::new(), random: Random::new(0xb10c), role };
    let ready = worker.prepare();
    answer(ready.map(|()| Answer::Done))?;
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let result = worker.obey(request);
        answer(result)?;
    }
    Ok(())
}

fn answer(result: Result<Answer>) -> Result<()> {
    let answer = result.unwrap_or_else(|e| Answer::Failed(format!("{e:#}")));
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    Ok(std::io::stdout().lock().write_all(&line)?)
}

impl Worker {
    /// Takes on the state. Where the library comes first, every method spawns once before that.
    fn prepare(&mut self) -> Result<()> {
        if self.role.parent.library_first {
            let first = programs::first_instruction(&self.role.programs).to_string_lossy().into_owned();
            for name in self.role.methods.clone() {
                let method = self.bind(&name, &first, false)?;
                measure::first_instruction(method)?;
            }
        }
        self.state = State::reach(&self.role.parent)?;
        Ok(())
    }

    fn bind(&mut self, name: &str, program: &str, search: bool) -> Result<&mut dyn Method> {
        let bound = (name.to_owned(), program.to_owned(), search);
        let method = match self.methods.entry(bound) {
            std::collections::hash_map::Entry::Occupied(slot) => slot.into_mut(),
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(methods::open(name, &target(program, search))?)
            }
        };
        Ok(method.as_mut())
    }

    fn obey(&mut self, request: Request) -> Result<Answer> {
        match request {
            Request::CheckDescriptors { promising } => {
                let list = programs::list_fds(&self.role.programs).to_string_lossy().into_owned();
                for name in self.role.methods.clone() {
                    measure::only_stdio(&name, self.bind(&name, &list, false)?)?;
                }
                let inheritable = rustix::io::dup(std::io::stdin())?;
                for name in promising {
                    measure::only_stdio(&name, self.bind(&name, &list, false)?)?;
                }
                drop(inheritable);
                Ok(Answer::Done)
            }
            Request::FirstInstruction { program, search, turns } => {
                self.block(&turns, &program, search, measure::first_instruction)
            }
            Request::Lifecycle { program, turns } => self.block(&turns, &program, false, measure::lifecycle),
            Request::Parallel { program, method, threads, calls } => {
                let method = self.bind(&method, &program, false)?;
                Ok(Answer::Rate(parallel::rate(method, threads, calls)?))
            }
        }
    }

    /// One block of samples: the methods in streaks, in random order, then those that run apart.
    ///
    /// Each method's first call of the block is not counted: it meets what the previous block left behind.
    fn block(
        &mut self,
        turns: &[protocol::Turn],
        program: &str,
        search: bool,
        sample: fn(&mut dyn Method) -> Result<u64>,
    ) -> Result<Answer> {
        let mut taken: HashMap<String, Vec<u64>> = HashMap::new();
        self.state.start_busy()?;
        let pinned = Pinned::to_first_cpu()?;
        let (apart, together): (Vec<_>, Vec<_>) = turns.iter().partition(|t| t.apart);
        for group in [together, apart] {
            for turn in &group {
                let method = self.bind(&turn.method, program, search)?;
                sample(method)?;
            }
            let before = measure::descriptors()?;
            let most = group.iter().map(|t| t.samples).max().unwrap_or(0);
            for begun in (0..most).step_by(STREAK) {
                let mut order: Vec<_> = group.iter().filter(|t| begun < t.samples).collect();
                self.random.shuffle(&mut order);
                for turn in order {
                    let method = self.bind(&turn.method, program, search)?;
                    let taken = taken.entry(turn.method.clone()).or_default();
                    for _ in begun..turn.samples.min(begun + STREAK) {
                        taken.push(sample(method)?);
                    }
                }
            }
            measure::nothing_left(before)?;
        }
        pinned.release()?;
        let busy_share = self.state.stop_busy()?;
        Ok(Answer::Samples(Block { taken, busy_share }))
    }
}

fn target(program: &str, search: bool) -> Target {
    let path = Path::new(program);
    match path.file_name().filter(|_| search) {
        Some(name) => Target::Name(name.to_string_lossy().into_owned()),
        None => Target::Path(path.to_owned()),
    }
}
