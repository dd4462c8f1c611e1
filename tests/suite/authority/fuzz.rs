// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random sequences of "confine this thread" and "start a program". After each start, the test
//! compares the program with a child that the same thread forks.

use std::fmt::Write;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use spawnfd::warm::{Mode, Park, WarmOptions};
use spawnfd::{Command, Stdio, Template, Warm};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::{copy_of_program, isolated, scratch};

use crate::confinements::CONFINEMENTS;
use crate::programs::{Seen, by_fork, seen_by};

/// The number of threads. They take their steps one after the other.
const THREADS: usize = 2;
/// The number of different confinements, and of different starts, in one sequence. As there are
/// only a few, one sequence contains most combinations of them.
const KINDS: usize = 2;
/// The number of steps in one sequence.
const STEPS: usize = 12;

/// A random number generator with a seed: xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// How a program is started. Some starts need a `Warm`, which owns parked processes. The first
/// thread that needs it creates it, and all threads use it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    Clone,
    Asynchronous,
    SeparateMm,
    ByDescriptor,
    Warm(Mode, bool),
}

pub const STARTS: [Start; 8] = [
    Start::Clone,
    Start::Asynchronous,
    Start::SeparateMm,
    Start::ByDescriptor,
    Start::Warm(Mode::Reserve, false),
    Start::Warm(Mode::Fork, false),
    Start::Warm(Mode::Reserve, true),
    Start::Warm(Mode::Fork, true),
];

/// The `Warm` (owner of parked processes) of each kind of start.
static SHARED: Mutex<Vec<(Start, Warm)>> = Mutex::new(Vec::new());

impl Start {
    /// Returns a command that starts the program at `path` in this way. Returns `None` if the
    /// calling thread cannot add the program to the `Warm`.
    pub fn command(self, path: &Path) -> Option<Command<'static>> {
        let template = Template::open(path).expect("a template");
        let mut command = match self {
            Start::ByDescriptor => template.by_descriptor().expect("no script").command(),
            _ => template.command(),
        };
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        match self {
            Start::Clone | Start::ByDescriptor => {}
            Start::Asynchronous => drop(command.wait_for_exec(false)),
            Start::SeparateMm => drop(command.group_ids(u32::MAX, u32::MAX, u32::MAX)),
            Start::Warm(mode, any) => {
                let known = shared.iter().position(|(start, _)| *start == self);
                let place = match known {
                    Some(place) => place,
                    None => {
                        let options = WarmOptions::new().mode(mode);
                        shared.push((self, Warm::new(options).expect("a Warm")));
                        shared.len() - 1
                    }
                };
                let warm = &shared[place].1;
                let added = match any {
                    true => known.is_some() || warm.add_any(1, None).is_ok(),
                    false => warm.add_template(&template, Park::new().depth(1)).is_ok(),
                };
                if !added {
                    return None;
                }
                // If a confined thread cannot park a process, `fill` times out, and the program
                // starts without a parked process.
                warm.fill(Duration::from_secs(1));
                command.warm(warm);
            }
        }
        command.stdin(Stdio::Null);
        Some(command)
    }
}

/// A step that one thread takes.
#[derive(Clone, Copy)]
enum Step {
    Confine(usize),
    Start(Start),
}

/// Takes a step in the calling thread. Returns whether the step was possible.
fn take(step: Step, oracle: &Path, so_far: &str) -> bool {
    match step {
        Step::Confine(confinement) => (CONFINEMENTS[confinement].apply)(),
        Step::Start(start) => {
            let model: Seen = by_fork(oracle);
            let commands = (start.command(oracle), start.command(Path::new("/bin/sh")));
            let (Some(mut program), Some(mut shell)) = commands else { return false };
            assert_eq!(seen_by(&mut program, &mut shell), model, "{so_far}");
            true
        }
    }
}

/// Runs, in this process, the sequence of steps that a seed determines.
fn sequence(seed: u64, oracle: &Path) {
    let mut random = Random(seed);
    let mut so_far = format!("seed {seed:#x}:");
    let confinements: [usize; KINDS] = std::array::from_fn(|_| random.below(CONFINEMENTS.len()));
    let starts: [Start; KINDS] = std::array::from_fn(|_| STARTS[random.below(STARTS.len())]);
    std::thread::scope(|scope| {
        let (answer, answers) = channel();
        let threads: Vec<Sender<(Step, String)>> = (0..THREADS)
            .map(|_| {
                let (sender, steps) = channel::<(Step, String)>();
                let answer = answer.clone();
                scope.spawn(move || {
                    for (step, so_far) in steps {
                        let took = std::panic::catch_unwind(|| take(step, oracle, &so_far));
                        if answer.send(took.ok()).is_err() {
                            return;
                        }
                    }
                });
                sender
            })
            .collect();
        for _ in 0..STEPS {
            let thread = random.below(THREADS);
            // Two of three steps are starts, so that programs start before and after a confinement.
            let step = match random.below(3) {
                0 => Step::Confine(confinements[random.below(KINDS)]),
                _ => Step::Start(starts[random.below(KINDS)]),
            };
            let _ = match step {
                Step::Confine(confinement) => write!(so_far, " {thread}:{}", CONFINEMENTS[confinement].name),
                Step::Start(start) => write!(so_far, " {thread}:{start:?}"),
            };
            threads[thread].send((step, so_far.clone())).expect("the thread waits for steps");
            match answers.recv().expect("the thread answers") {
                Some(true) => {}
                Some(false) => so_far.push('-'),
                None => panic!("{so_far}"),
            }
        }
    });
    forget();
}

/// Drops the shared `Warm`s, which ends their parked processes.
pub fn forget() {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// How many seconds `make test` and `make test-all` run random sequences. `make soak` sets its own time.
const SECONDS: [u64; 2] = [10, 30];

#[test]
fn random_confinements_and_starts() {
    let seconds = std::env::var("SPAWNFD_FUZZ_SECONDS")
        .ok()
        .map_or(SECONDS[usize::from(std::env::var_os("SPAWNFD_FULL").is_some())], |text| {
            text.parse().expect("seconds")
        });
    isolated!(limit: Duration::from_secs(seconds + 120), || {
        let directory = scratch();
        let oracle = copy_of_program("spawnfd-oracle", directory.path());
        let given = std::env::var("SPAWNFD_FUZZ_SEED").ok();
        let given = given.map(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("a hexadecimal seed"));
        let begun = Instant::now();
        let mut seed = given.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64 | 1);
        let mut count = 0;
        while begun.elapsed() < Duration::from_secs(seconds) {
            wait_for(fork(|| sequence(seed, &oracle)));
            count += 1;
            if given.is_some() {
                break;
            }
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15) | 1;
        }
        println!("{count} sequences");
    });
}
