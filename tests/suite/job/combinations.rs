// SPDX-License-Identifier: MIT OR Apache-2.0
//! Combinations of limits, and limits that the library watches.

use std::time::Duration;

use spawnfd::error::{Errno, Stage};
use spawnfd::job::Stop;
use spawnfd::limits::{Enforce, Enforcer, Limits, Resource};
use spawnfd::tree::{Tier, Tree, TreeControl};
use spawnfd::{Command, Output};
use spawnfd_tests::isolated;

use crate::common;
use crate::common::job::sh;
use crate::limits::{LONG, assert_reached, within, without_cgroup};

/// The maximum memory in the test of all combinations, and what its program allocates.
const MAX_MEMORY: u64 = 128 << 20;
const ALLOCATED: u64 = 256 << 20;

/// Checks that `by` enforces the limit of memory of these runs.
fn assert_memory_is_limited(by: Enforcer, run: impl Fn(&mut Command<'static>) -> Output) {
    let line = format!("$x = 'x' x {ALLOCATED}; print 1; sleep 1000");
    let mut perl = Command::new("perl");
    let output = run(perl.args(["-e", &line]));
    match by {
        // The allocation fails in the program.
        Enforcer::Rlimit => assert_eq!((output.stop, output.ok()), (Stop::Exited, false), "{output:?}"),
        by => assert_reached(&output, Resource::Memory, by),
    }
}

/// The product of the limits, the ways to enforce them, and the tiers: the run enforces each limit that it reports.
#[test]
fn every_reported_limit_is_enforced_in_every_combination() {
    isolated!(|| {
        common::tree::become_subreaper();
        let tiers = [
            None,
            Some(TreeControl::Auto),
            Some(TreeControl::Group),
            Some(TreeControl::Guard),
            Some(TreeControl::Subreaper),
            Some(TreeControl::Pidns),
            Some(TreeControl::Cgroup),
        ];
        let is_available = |tier: &Option<TreeControl>| tier.is_none_or(|tier| Tree::prepare(tier).is_ok());
        let mut enforcers = std::collections::BTreeSet::new();
        // SAFETY: getuid takes no arguments and changes nothing.
        let is_root = unsafe { libc::getuid() } == 0;
        for tier in tiers.into_iter().filter(is_available) {
            for enforce in [Enforce::Auto, Enforce::Cgroup, Enforce::Watch, Enforce::BestEffort] {
                for set in 1_u32..8 {
                    let has = |bit: u32| set & 1 << bit != 0;
                    let limits = Limits::new()
                        .pids(has(0).then_some(8))
                        .memory(has(1).then_some(MAX_MEMORY))
                        .cpu_time(has(2).then_some(LONG))
                        .enforce(enforce);
                    let options = within(limits).tree(tier).drain(Duration::ZERO);
                    let run = |command: &mut Command<'static>| {
                        if enforce == Enforce::Auto && is_root {
                            // RLIMIT_NPROC does not apply to root.
                            command.uid(1_000_000_000 + std::process::id());
                        }
                        command.run_with(&options)
                    };
                    let told = format!("{limits:?} {tier:?}");
                    let output = match run(&mut sh("ulimit -t; ulimit -v")) {
                        Ok(output) => output,
                        Err(error) => {
                            assert_eq!((error.stage(), error.errno()), (Stage::Limit, Errno::EOPNOTSUPP), "{told}");
                            assert_eq!(enforce, Enforce::Cgroup, "{told}: {error}");
                            continue;
                        }
                    };
                    let run = |command: &mut Command<'static>| run(command).expect("runs");
                    assert_eq!(output.limits.len(), set.count_ones() as usize, "{told}");
                    let rlimits: Vec<String> = output.stdout_text().lines().map(str::to_owned).collect();
                    for limit in &output.limits {
                        enforcers.insert(limit.to_string());
                        match (limit.resource, limit.by) {
                            (_, Enforcer::Unenforced) => panic!("{told}: {limit}"),
                            (Resource::Memory, by) => assert_memory_is_limited(by, run),
                            (Resource::Pids, by) => {
                                let line = "i=0; while [ $((i += 1)) -lt 20 ]; do sleep 1000 & done; wait";
                                let output = run(&mut sh(line));
                                // Other tests of this user may have processes. RLIMIT_NPROC counts them, but the library
                                // does not.
                                let is_shared = by == Enforcer::Rlimit && !is_root;
                                if !is_shared || !output.stderr_text().contains("Cannot fork") {
                                    assert_reached(&output, Resource::Pids, by);
                                }
                            }
                            // Other tests use up CPU time, which takes long. Here the program shows the rlimit.
                            (Resource::CpuTime, Enforcer::Rlimit) => {
                                assert_eq!(rlimits.first(), Some(&LONG.as_secs().to_string()), "{told}");
                            }
                            (_, by) => assert_eq!((by, output.tree), (Enforcer::Cgroup, Tier::Cgroup), "{told}"),
                        }
                    }
                    let address_space = output.limits.iter().any(|l| l.to_string() == "memory (rlimit)");
                    let shown = if address_space { (MAX_MEMORY >> 10).to_string() } else { "unlimited".to_owned() };
                    assert_eq!(rlimits.get(1), Some(&shown), "{told}");
                }
            }
        }
        assert!(enforcers.contains("pids (watch)") && enforcers.contains("memory (watch)"), "{enforcers:?}");
    });
}

#[test]
fn watched_memory_is_that_of_the_whole_tree() {
    isolated!(|| {
        let limits = Limits::new().memory(128 << 20).enforce(Enforce::Watch);
        // The two processes together exceed the limit, but no single process does.
        let part = "perl -e '$n = 80 << 20; $x = \"x\" x $n; sleep 1000'";
        let output = sh(&format!("{part} & {part} & wait")).run_with(&without_cgroup(limits)).expect("runs");
        assert_reached(&output, Resource::Memory, Enforcer::Watch);
        assert_eq!(output.signal(), Some(9));
        // The program reserves more address space than the limit, and uses little of it.
        let reserves = "import mmap; mmap.mmap(-1, 1 << 30); print('reserved')";
        let output = Command::new("python3").args(["-c", reserves]).run_with(&without_cgroup(limits)).expect("runs");
        assert_eq!((output.ok(), &output.stdout_text()[..]), (true, "reserved\n"), "{output:?}");
    });
}
