// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resource limits of a run, enforced by a cgroup if possible, else by rlimits. Reaching a limit ends the run, and
//! the output reports it.

use crate::common;
use std::time::Duration;

use crate::common::eventually;
use crate::common::job::sh;
use spawnfd::command::MAX_ACTIONS;
use spawnfd::error::{Errno, Stage};
use spawnfd::job::{Stop, TerminalSize};
use spawnfd::limits::{Enforce, Enforcer, Limits, Resource};
use spawnfd::tree::{Tier, Tree, TreeControl};
use spawnfd::{Command, Output, Run};
use spawnfd_tests::{isolated, skip};

/// Longer than any test takes, unless the library fails to end a program.
pub(crate) const LONG: Duration = Duration::from_secs(200);

const BURN: &str = "while :; do :; done";

pub(crate) fn within(limits: Limits) -> Run {
    Run::new().limits(limits).timeout(LONG).grace(Duration::from_secs(60))
}

/// A run with these limits in the guard tier, which has no cgroup: rlimits enforce the limits.
pub(crate) fn without_cgroup(limits: Limits) -> Run {
    within(limits).tree(TreeControl::Guard)
}

fn by(output: &Output) -> Vec<String> {
    output.limits.iter().map(ToString::to_string).collect()
}

#[track_caller]
pub(crate) fn assert_reached(output: &Output, resource: Resource, enforcer: Enforcer) {
    let limit = output.limit.map(|limit| (limit.resource, limit.by));
    assert_eq!((output.stop, limit, output.ok()), (Stop::Limit, Some((resource, enforcer)), false), "{output:?}");
    let told = output.check().expect_err("not ok").to_string();
    assert!(told.contains(&format!("reached its {resource} limit ({enforcer})")), "{told}");
}

#[test]
fn actions_of_a_run_do_not_count_against_max_actions() {
    isolated!(|| {
        let null = std::fs::File::open("/dev/null").expect("it exists");
        let mut command = Command::new("/bin/true");
        // The command has the greatest allowed number of actions, one for each descriptor.
        for number in 0..MAX_ACTIONS {
            command.descriptor(null.try_clone().expect("a copy"), 300 + number as i32);
        }
        let limits = Limits::new().cpu_time(LONG).memory(1 << 30);
        let run = without_cgroup(limits).terminal(TerminalSize::new(24, 80));
        for _ in 0..2 {
            assert!(command.run_with(&run).expect("runs").ok());
        }
        let error = command.umask(0).run_with(&run).expect_err("one too many");
        assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::E2BIG), "{error}");
    });
}

/// Returns whether a cgroup can be created. If not, skips the test.
fn has_cgroups() -> bool {
    let made = Tree::prepare(TreeControl::Cgroup);
    if let Err(error) = &made {
        skip(&format!("no cgroup can be created: {error}"));
    }
    made.is_ok()
}

/// Returns whether a cgroup can enforce these limits. If not, skips the test.
fn has_controllers(limits: Limits) -> bool {
    match Command::new("true").run_with(&within(limits.enforce(Enforce::Cgroup))) {
        Ok(_) => true,
        Err(error) => {
            skip(&format!("no cgroup with these controllers can be created: {error}"));
            false
        }
    }
}

#[test]
fn a_cpu_time_limit_applies_to_the_tree_in_a_cgroup() {
    isolated!(|| {
        if !has_cgroups() {
            return;
        }
        // The processes together exceed the limit of CPU time, but no single process uses half of it.
        let line = "i=0; while [ $i -lt 200 ]; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done";
        let limits = Limits::new().cpu_time(Duration::from_millis(700));
        let output = sh(line).run_with(&within(limits)).expect("runs");
        assert_reached(&output, Resource::CpuTime, Enforcer::Cgroup);
        assert_eq!((output.signal(), output.tree), (Some(15), Tier::Cgroup), "ended as by a timeout");
        let spared = sh("exit 3").run_with(&within(Limits::new().cpu_time(LONG))).expect("runs");
        assert_eq!(
            (spared.stop, spared.code(), by(&spared)),
            (Stop::Exited, Some(3), vec!["cpu_time (cgroup)".into()])
        );
    });
}

#[test]
fn a_cpu_time_limit_applies_to_each_process_without_a_cgroup() {
    isolated!(|| {
        let limits = Limits::new().cpu_time(Duration::from_millis(300));
        let output = sh(BURN).run_with(&without_cgroup(limits)).expect("runs");
        assert_reached(&output, Resource::CpuTime, Enforcer::Rlimit);
        assert_eq!(
            (output.signal(), output.usage.cpu >= Duration::from_millis(500)),
            (Some(24), true),
            "whole seconds"
        );
        // First a child of the program reaches the limit, then a program that ignores SIGXCPU.
        let output = sh(&format!("sh -c '{BURN}'; exit $?")).run_with(&without_cgroup(limits)).expect("runs");
        assert_reached(&output, Resource::CpuTime, Enforcer::Rlimit);
        let deaf = format!("trap '' XCPU; {BURN}");
        let output = sh(&deaf).run_with(&without_cgroup(limits).grace(Duration::from_secs(1))).expect("runs");
        assert_reached(&output, Resource::CpuTime, Enforcer::Rlimit);
        assert_eq!(output.signal(), Some(9));
        // The program sends itself SIGXCPU long before it has used half of the limit, even on a
        // slow machine.
        let much = without_cgroup(Limits::new().cpu_time(LONG));
        let other = sh("kill -XCPU $$").run_with(&much).expect("runs");
        assert_eq!((other.stop, other.signal()), (Stop::Exited, Some(24)), "the signal is not the limit's");
    });
}

#[test]
fn a_memory_limit_applies_to_each_process_without_a_cgroup() {
    isolated!(|| {
        let run = without_cgroup(Limits::new().memory(256 << 20));
        let output = Command::new("perl").args(["-e", "$x = 'x' x (400 << 20); print 1"]).run_with(&run).expect("runs");
        assert_eq!((output.stop, output.ok(), by(&output)), (Stop::Exited, false, vec!["memory (rlimit)".into()]));
        assert_eq!(sh("ulimit -v").run_with(&run).expect("runs").stdout_text(), format!("{}\n", 256 << 10));
        // If the command itself sets a lower limit than the run, the command's limit applies.
        let mut lower = sh("ulimit -v");
        lower.limit(9, Some(200 << 20), Some(200 << 20));
        assert_eq!(lower.run_with(&run).expect("runs").stdout_text(), format!("{}\n", 200 << 10));
        // The limit of the earlier runs does not apply to a run without limits.
        assert_eq!(sh("ulimit -v").run().expect("runs").stdout_text(), "unlimited\n");
    });
}

#[test]
fn a_limit_that_cannot_be_enforced_is_an_error() {
    isolated!(|| {
        let refused = |limits: Limits| {
            let error = sh("exit").run_with(&without_cgroup(limits)).expect_err("the limit cannot be enforced");
            assert_eq!((error.stage(), error.errno()), (Stage::Limit, Errno::EOPNOTSUPP), "{error}");
        };
        refused(Limits::new().cpus(1.0));
        for limits in [Limits::new().memory(1 << 30), Limits::new().pids(9), Limits::new().cpu_time(LONG)] {
            refused(limits.enforce(Enforce::Cgroup));
        }
        // SAFETY: getuid takes no arguments and changes nothing.
        if unsafe { libc::getuid() } == 0 {
            refused(Limits::new().pids(9));
        }
        let effort = Limits::new().cpus(1.0).memory(1 << 30).enforce(Enforce::BestEffort);
        let output = sh("exit").run_with(&without_cgroup(effort)).expect("runs");
        assert_eq!((output.ok(), by(&output)), (true, vec!["memory (rlimit)".into(), "cpus (unenforced)".into()]));
        let error = sh("exit").run_with(&within(Limits::new().pids(0))).expect_err("nothing runs");
        assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL));
    });
}

#[test]
fn a_pids_limit_is_polled_for_root_without_a_cgroup() {
    isolated!(|| {
        // SAFETY: getuid takes no arguments and changes nothing.
        if unsafe { libc::getuid() } != 0 {
            return skip("RLIMIT_NPROC enforces the limit for users other than root");
        }
        let run = without_cgroup(Limits::new().pids(8).enforce(Enforce::BestEffort));
        let line = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1000 & done; wait";
        let output = sh(line).run_with(&run).expect("runs");
        assert_reached(&output, Resource::Pids, Enforcer::Watch);
        assert_eq!(output.signal(), Some(9));
        let within = sh("for i in 1 2 3 4 5; do sleep 0.3 & done; wait").run_with(&run).expect("runs");
        assert!(within.ok(), "{within:?}");
    });
}

#[test]
fn a_timeout_works_beside_limits() {
    isolated!(|| {
        let limits = Limits::new().cpu_time(LONG).pids(100).enforce(Enforce::BestEffort);
        let run = Run::new().limits(limits).timeout(Duration::from_millis(100));
        for run in [run.clone(), run.tree(TreeControl::Guard)] {
            let job = Command::new("sleep").arg("1000").start(&run).expect("starts");
            let output = job.wait().expect("a job result");
            assert_eq!((output.stop, output.limit, output.limits.len()), (Stop::Timeout, None, 2));
        }
    });
}

#[test]
fn the_cgroup_of_a_limit_is_removed() {
    isolated!(|| {
        if !has_cgroups() {
            return;
        }
        let run = within(Limits::new().cpu_time(LONG));
        let output = sh("sleep 1000 & exit").run_with(&run).expect("runs");
        assert_eq!((output.tree, output.leftovers.len()), (Tier::Cgroup, 1));
        let own = i32::try_from(std::process::id()).expect("a pid");
        eventually("no cgroup is left", || common::tree::groups_of(own).is_empty());
    });
}

#[test]
fn a_memory_limit_applies_to_the_tree_in_a_cgroup() {
    isolated!(|| {
        let limits = Limits::new().memory(64 << 20);
        if !has_controllers(limits) {
            return;
        }
        // The two processes together exceed the limit of memory, but no single process does. The kernel kills one of
        // them, not the shell.
        let part = "perl -e '$n = 40 << 20; $x = \"x\" x $n; sleep 1000'";
        let output = sh(&format!("{part} & {part} & wait; exit 0")).run_with(&within(limits)).expect("runs");
        assert_reached(&output, Resource::Memory, Enforcer::Cgroup);
        assert_eq!((output.signal(), output.tree), (Some(9), Tier::Cgroup));
        let fits = sh("perl -e '$n = 16 << 20; $x = \"x\" x $n'").run_with(&within(limits)).expect("runs");
        assert!(fits.ok(), "{fits:?}");
    });
}

#[test]
fn a_pids_limit_applies_to_the_tree_in_a_cgroup() {
    isolated!(|| {
        let limits = Limits::new().pids(8);
        if !has_controllers(limits) {
            return;
        }
        let output = sh("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 1000 & done; wait").run_with(&within(limits));
        assert_reached(&output.expect("runs"), Resource::Pids, Enforcer::Cgroup);
        let fits = sh("for i in 1 2 3 4 5 6 7; do sleep 0.3 & done; wait").run_with(&within(limits)).expect("runs");
        assert!(fits.ok(), "{fits:?}");
    });
}

#[test]
fn a_cpus_limit_throttles_the_tree() {
    isolated!(|| {
        let limits = Limits::new().cpus(0.2);
        if !has_controllers(limits) {
            return;
        }
        let output = sh(BURN).run_with(&within(limits).timeout(Duration::from_secs(2))).expect("runs");
        assert_eq!((output.stop, by(&output)), (Stop::Timeout, vec!["cpus (cgroup)".into()]));
        assert!(output.usage.cpu < Duration::from_secs(1), "{:?}", output.usage);
    });
}
