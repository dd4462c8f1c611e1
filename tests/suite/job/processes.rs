// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs of a caller that may have only one or two more processes (RLIMIT_NPROC): the library does without helpers.

use std::time::Duration;

use crate::common::job::{block_on, future, sh};
use spawnfd::error::{ErrorKind, Stage};
use spawnfd::limits::Limits;
use spawnfd::tree::{Tier, TreeControl};
use spawnfd::{Command, Run};
use spawnfd_tests::isolated;

/// Changes this process to a user without other processes. Returns `false` without root.
fn become_lonely_user() -> bool {
    let user = 1_000_000_000 + std::process::id();
    // SAFETY: the calls take integers, and change all threads of this process, which runs this test alone. Without
    // PR_SET_DUMPABLE, /proc/self would belong to root.
    unsafe {
        libc::setresgid(user, user, user) == 0
            && libc::setresuid(user, user, user) == 0
            && libc::prctl(libc::PR_SET_DUMPABLE, 1) == 0
    }
}

fn tasks() -> u64 {
    std::fs::read_dir("/proc/self/task").expect("/proc").count() as u64
}

/// Limits the number of this user's processes and threads.
fn limit_processes(number: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write a valid struct.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limit), 0);
        limit.rlim_cur = number;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit), 0);
    }
}

#[test]
fn a_run_succeeds_with_the_last_free_process() {
    isolated!(|| {
        if !spawnfd_tests::require_root() || !become_lonely_user() {
            return;
        }
        limit_processes(tasks() + 1);
        for tree in [None, Some(TreeControl::Auto), Some(TreeControl::Group), None] {
            let output = sh("echo done; exit 3").run_with(&Run::new().tree(tree)).expect("runs");
            assert_eq!((output.code(), &output.stdout[..], output.tree), (Some(3), &b"done\n"[..], Tier::Group));
        }
        let limits = Limits::new().memory(1 << 30).cpu_time(Duration::from_secs(60));
        let output = sh("ulimit -v").run_with(&Run::new().limits(limits)).expect("runs");
        assert_eq!((output.stdout_text().trim(), output.tree), ("1048576", Tier::Group));
    });
}

/// Starts an idle guard, an idle reaper thread and an idle engine thread. Returns the number of tasks without them.
fn leave_idle_helpers() -> u64 {
    let own = tasks();
    limit_processes(own + 10);
    assert_eq!(Command::new("true").run().expect("runs").tree, Tier::Guard);
    assert!(Command::new("true").start(&Run::new()).expect("starts").wait().expect("a result").ok());
    assert!(tasks() > own, "idle threads");
    own
}

#[test]
fn idle_helpers_end_for_a_program_without_a_run() {
    isolated!(|| {
        if !spawnfd_tests::require_root() || !become_lonely_user() {
            return;
        }
        let own = leave_idle_helpers();
        limit_processes(own + 1);
        assert!(Command::new("true").status().expect("starts").success());
    });
}

#[test]
fn idle_helpers_end_for_the_last_free_process() {
    isolated!(|| {
        if !spawnfd_tests::require_root() || !become_lonely_user() {
            return;
        }
        let own = leave_idle_helpers();
        limit_processes(own + 1);
        for tree in [TreeControl::Group, TreeControl::Auto] {
            let output = Command::new("true").run_with(&Run::new().tree(tree)).expect("runs");
            assert_eq!((output.ok(), output.tree), (true, Tier::Group));
        }
    });
}

#[test]
fn a_job_and_a_future_succeed_with_a_process_and_a_thread() {
    isolated!(|| {
        if !spawnfd_tests::require_root() || !become_lonely_user() {
            return;
        }
        limit_processes(tasks() + 2);
        for _ in 0..3 {
            let output = sh("exit 3").start(&Run::new()).expect("starts").wait().expect("a result");
            assert_eq!((output.code(), output.tree), (Some(3), Tier::Group));
            let output = block_on(future(sh("exit 4"), &Run::new())).expect("runs");
            assert_eq!((output.code(), output.tree), (Some(4), Tier::Group));
        }
    });
}

#[test]
fn a_tier_that_needs_a_helper_is_refused_at_the_limit_of_processes() {
    isolated!(|| {
        if !spawnfd_tests::require_root() || !become_lonely_user() {
            return;
        }
        limit_processes(tasks() + 1);
        for tree in [TreeControl::Guard, TreeControl::Subreaper] {
            let error = Command::new("true").run_with(&Run::new().tree(tree)).expect_err("no process is free");
            assert_eq!((error.kind(), error.stage()), (ErrorKind::Exhausted, Stage::Clone), "{tree:?}: {error}");
            assert!(error.message().contains("limit on processes"), "{error}");
        }
        assert!(Command::new("true").run().expect("runs").ok());
    });
}
