// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of bench-launch. For each filter, it runs all workers at once, and requests blocks from them in
//! rotation.

mod handle;

use std::path::Path;

use anyhow::Context;

use crate::Result;
use crate::definitions::{Definitions, MethodDef};
use crate::methods::same_calls;
use crate::programs::Programs;
use crate::samples::{Key, Samples};
use crate::worker::protocol::{Block, MethodSamples, WorkerRequest};
use handle::WorkerHandle;

/// A run of bench-launch.
#[derive(Debug)]
pub struct Launch<'a> {
    pub definitions: &'a Definitions,
    pub quick: bool,
    /// Restrictions of the run, as KIND=NAME. A kind without an entry is not restricted.
    pub only: &'a [String],
    /// The benchmark's own programs.
    pub programs: &'a Programs,
}

impl Launch<'_> {
    /// Measures everything.
    ///
    /// # Errors
    ///
    /// A worker fails, or a check of a result fails.
    pub fn run(&self) -> Result<Samples> {
        hide_inherited_descriptors()?;
        let mut samples = Samples::default();
        for filter in &self.definitions.filters.names {
            if !self.selected("filter", filter) {
                continue;
            }
            if self.selected("suite", "first_insn") {
                self.first_insn(filter, &mut samples)?;
            }
            if self.selected("suite", "lifecycle") {
                self.lifecycle(filter, &mut samples)?;
            }
            if self.selected("suite", "parallel") {
                self.parallel(filter, &mut samples)?;
            }
        }
        Ok(samples)
    }

    fn selected(&self, kind: &str, name: &str) -> bool {
        let mut of_kind = self.only.iter().filter_map(|o| o.split_once('=')).filter(|(k, _)| *k == kind).peekable();
        of_kind.peek().is_none() || of_kind.any(|(_, n)| n == name)
    }

    /// The methods to measure. With `plain`, these include the methods that are only for plain spawns.
    fn methods(&self, plain: bool) -> impl Iterator<Item = &MethodDef> {
        let plain = plain && same_calls::is_supported();
        self.definitions.methods.iter().filter(move |method| plain || !method.plain)
    }

    fn method_samples(&self, plain: bool, samples: impl Fn(&str) -> usize) -> Vec<MethodSamples> {
        self.methods(plain)
            .map(|m| MethodSamples { method: m.name.clone(), samples: samples(&m.name), apart: m.apart })
            .collect()
    }

    fn worker(&self, parent: &str, filter: &str) -> Result<WorkerHandle> {
        let methods: Vec<_> = self.methods(is_plain(parent, filter)).map(|m| m.name.clone()).collect();
        WorkerHandle::start(self.definitions, self.programs, self.definitions.parent(parent)?, filter, &methods)
    }

    fn first_insn(&self, filter: &str, samples: &mut Samples) -> Result<()> {
        let def = &self.definitions.first_insn;
        let program = self.definitions.program(&def.program, self.programs)?;
        let parents = self.definitions.parents.iter().filter(|p| self.selected("parent", &p.name));
        let mut workers = parents.map(|p| self.worker(&p.name, filter)).collect::<Result<Vec<_>>>()?;
        for worker in &mut workers {
            let methods = self.methods(is_plain(&worker.parent().name, filter));
            let only_stdio = methods.filter(|m| m.only_stdio).map(|m| m.name.clone()).collect();
            worker.perform(&WorkerRequest::CheckDescriptors { only_stdio })?;
        }
        let rounds = def.rounds.get(self.quick);
        for round in 0..rounds {
            progress("first instruction", filter, round, rounds);
            // Each round starts with a different worker, so that no worker always follows the busy threads.
            let count = workers.len();
            for place in 0..count {
                let worker = &mut workers[(round + place) % count];
                let parent = worker.parent().clone();
                for &search in &parent.search {
                    let plain = !search && is_plain(&parent.name, filter);
                    let methods = self
                        .method_samples(plain, |m| self.definitions.first_insn_per_round(&parent.name, m, self.quick));
                    let Block { taken, busy_share } = worker.samples(&WorkerRequest::FirstInstruction {
                        program: program.clone(),
                        search,
                        methods,
                    })?;
                    let key = |suite: &str, method: String| Key {
                        suite: suite.to_owned(),
                        filter: filter.to_owned(),
                        parent: parent.name.clone(),
                        program: def.program.clone(),
                        search,
                        method,
                    };
                    for (method, ns) in taken {
                        samples.push(key("first_insn", method), micros(&ns));
                    }
                    if let Some(share) = busy_share {
                        samples.push(key("busy_share", "(busy)".to_owned()), vec![share]);
                    }
                }
            }
        }
        workers.into_iter().try_for_each(WorkerHandle::end)
    }

    fn lifecycle(&self, filter: &str, samples: &mut Samples) -> Result<()> {
        let def = &self.definitions.lifecycle;
        let per_round = if filter == "none" { def.per_round } else { def.per_round_filtered }.get(self.quick);
        let mut worker = self.worker(&def.parent, filter)?;
        let rounds = def.rounds.get(self.quick);
        for round in 0..rounds {
            progress("lifecycle", filter, round, rounds);
            for name in &def.programs {
                let program = self.definitions.program(name, self.programs)?;
                if !Path::new(&program).exists() {
                    continue;
                }
                let methods = self.method_samples(false, |_| per_round);
                let Block { taken, .. } = worker.samples(&WorkerRequest::Lifecycle { program, methods })?;
                for (method, ns) in taken {
                    let key = Key {
                        suite: "lifecycle".to_owned(),
                        filter: filter.to_owned(),
                        parent: def.parent.clone(),
                        program: name.clone(),
                        search: false,
                        method,
                    };
                    samples.push(key, micros(&ns));
                }
            }
        }
        worker.end()
    }

    fn parallel(&self, filter: &str, samples: &mut Samples) -> Result<()> {
        let def = &self.definitions.parallel;
        let mut worker = self.worker(&def.parent, filter)?;
        let measured: Vec<_> = self.methods(is_plain(&def.parent, filter)).map(|m| &m.name).collect();
        let methods: Vec<_> = def.methods.iter().filter(|name| measured.contains(name)).collect();
        let rounds = def.rounds.get(self.quick);
        for round in 0..rounds {
            progress("parallel", filter, round, rounds);
            for place in 0..methods.len() {
                let method = methods[(round + place) % methods.len()];
                let rate = worker.rate(&WorkerRequest::Parallel {
                    program: self.definitions.program(&def.program, self.programs)?,
                    method: method.clone(),
                    threads: def.threads,
                    calls: def.calls_per_thread.get(self.quick),
                })?;
                let key = Key {
                    suite: "parallel".to_owned(),
                    filter: filter.to_owned(),
                    parent: def.parent.clone(),
                    program: def.program.clone(),
                    search: false,
                    method: method.clone(),
                };
                samples.push(key, vec![rate]);
            }
        }
        worker.end()
    }
}

/// Whether spawns without a search are plain: from the small parent, without a filter.
fn is_plain(parent: &str, filter: &str) -> bool {
    parent == "small" && filter == "none"
}

/// Marks all descriptors above 2 close-on-exec, so that workers do not inherit those of the shell or the CI runner.
fn hide_inherited_descriptors() -> Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: close_range takes three integers, and with this flag it closes no descriptor.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context("close_range") }
}

fn micros(ns: &[u64]) -> Vec<f64> {
    ns.iter().map(|&n| n as f64 / 1000.0).collect()
}

fn progress(what: &str, filter: &str, round: usize, rounds: usize) {
    use std::io::IsTerminal;
    let last = round + 1 == rounds;
    if std::io::stderr().is_terminal() {
        eprint!("\r{what}, filter {filter}: round {} of {rounds}{}", round + 1, if last { "\n" } else { "" });
    } else if round == 0 {
        eprintln!("{what}, filter {filter}: {rounds} rounds");
    }
}
