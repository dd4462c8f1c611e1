// SPDX-License-Identifier: MIT OR Apache-2.0
//! Confinements x launchers x which thread comes first. A program has the same authority as a child
//! that the same thread forks.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use serde_json::Value;
use spawnfd::{Command, Stdio};
use spawnfd_tests::confine::Confinement;
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::{State, copy_of_program, isolated, require_root, scratch};

use crate::common::{self, Launcher, output, state};
use crate::confinements::{CONFINEMENTS, USER};

/// The attributes that a child inherits from the thread that starts it: authority, scheduling, and
/// the permission to read a file.
#[derive(Debug, PartialEq)]
pub struct Seen {
    authority: Vec<(&'static str, Value)>,
    scheduling: [Value; 3],
    reads: String,
}

/// A shell line that tries to read a file, which every confinement with file rules forbids.
const READ: &str = "cat /etc/hostname >/dev/null 2>&1 && echo yes || echo no";

fn seen(state: &State, reads: String) -> Seen {
    let json = serde_json::to_value(state).expect("a state");
    Seen {
        authority: state.authority(),
        scheduling: ["nice", "scheduler", "affinity"].map(|name| json[name].clone()),
        reads,
    }
}

/// The attributes of a child that the standard library forks.
pub fn by_fork(oracle: &Path) -> Seen {
    let run = |path: &Path, args: &[&str]| {
        let mut command = std::process::Command::new(path);
        // SAFETY: the closure does nothing. A command with such a closure forks and does not use
        // posix_spawn.
        unsafe { command.pre_exec(|| Ok(())) };
        let output = command.args(args).stdin(std::process::Stdio::null()).output().expect("starts");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let state = State::from_json(&run(oracle, &[]));
    seen(&state, String::from_utf8(run(Path::new("/bin/sh"), &["-c", READ])).expect("text"))
}

/// The attributes of the children of two commands: one for the oracle, one for /bin/sh.
pub fn seen_by(oracle: &mut Command<'_>, shell: &mut Command<'_>) -> Seen {
    let state = state(oracle.stdin(Stdio::Null));
    seen(&state, output(shell.args(["-c", READ]).stdin(Stdio::Null)))
}

/// Compares two programs with a forked child. The first start may park a process, which the second
/// start then uses.
#[track_caller]
fn compare(launcher: Launcher, oracle: &Path, what: &str) {
    compare_times(2, launcher, oracle, what);
}

#[track_caller]
fn compare_times(times: u32, launcher: Launcher, oracle: &Path, what: &str) {
    let fork = by_fork(oracle);
    for round in 0..times {
        let ours = seen_by(&mut launcher.command(oracle), &mut launcher.command("/bin/sh"));
        assert_eq!(ours, fork, "{what}, start {round}");
    }
}

/// Confines one thread. If `first`, this thread is the first to use the library; else another
/// thread is.
fn check_confinement(launcher: Launcher, oracle: &Path, name: &str, apply: fn() -> bool, first: bool) {
    launcher.enter();
    if !first {
        compare_times(1, launcher, oracle, "the other thread, before");
    }
    let confined = std::thread::scope(|scope| {
        let body = || {
            apply() && {
                compare(launcher, oracle, &format!("{name}, confined"));
                true
            }
        };
        scope.spawn(body).join().expect("the thread's assertions hold")
    });
    if !confined {
        return spawnfd_tests::skip(&format!("{name}: refused here"));
    }
    compare_times(1, launcher, oracle, &format!("the other thread, after {name}"));
}

/// Checks each confinement in a process of its own: with both orders of the threads, or with one order, alternating.
fn check_each_confinement(launcher: Launcher, both_orders: bool) {
    let directory = scratch();
    let oracle = copy_of_program("spawnfd-oracle", directory.path());
    let row = Launcher::ALL.iter().position(|&other| other == launcher).expect("one of all");
    for (column, confinement) in CONFINEMENTS.iter().enumerate() {
        let has_threads = launcher.is_warm();
        let orders = match both_orders {
            _ if has_threads && !confinement.can_start_threads => vec![false],
            true => vec![true, false],
            false => vec![(row + column) % 2 == 0],
        };
        for first in orders {
            wait_for(fork(|| {
                check_confinement(launcher, &oracle, confinement.name, confinement.apply, first);
                launcher.drop_parked();
            }));
        }
    }
}

/// A set-uid root program runs as root when a user's thread starts it, unless the thread has no_new_privs.
fn set_uid_program(launcher: Launcher) {
    if !require_root() {
        return;
    }
    let directory = scratch();
    let oracle = copy_of_program("spawnfd-oracle", directory.path());
    std::fs::set_permissions(&oracle, Permissions::from_mode(0o4755)).expect("own file");
    for no_new_privs in [false, true] {
        for first in [true, false] {
            wait_for(fork(|| {
                launcher.enter();
                let other = || compare_times(1, launcher, &oracle, "root");
                if !first {
                    other();
                }
                let body = || {
                    let user = Confinement::default().user(USER, USER);
                    let user = if no_new_privs { user.no_new_privs() } else { user };
                    user.apply().expect("root");
                    compare(launcher, &oracle, &format!("a user, no_new_privs: {no_new_privs}"));
                };
                std::thread::scope(|scope| scope.spawn(body).join().expect("the thread's assertions hold"));
                other();
                launcher.drop_parked();
            }));
        }
    }
}

/// Starts programs while the whole process is in a user namespace of its own.
fn user_namespace(launcher: Launcher) {
    let directory = scratch();
    let oracle = copy_of_program("spawnfd-oracle", directory.path());
    wait_for(fork(|| {
        // SAFETY: both calls take nothing and return integers.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        // SAFETY: unshare takes an integer. The forked child has one thread, as CLONE_NEWUSER
        // requires.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
            return spawnfd_tests::skip("cannot create a user namespace");
        }
        let write = |file: &str, text: String| std::fs::write(format!("/proc/self/{file}"), text);
        let mapped = write("setgroups", "deny".to_owned())
            .and_then(|()| write("uid_map", format!("{user} {user} 1")))
            .and_then(|()| write("gid_map", format!("{group} {group} 1")));
        mapped.expect("own user namespace");
        launcher.enter();
        compare(launcher, &oracle, "in a user namespace");
        launcher.drop_parked();
    }));
}

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident $launcher:ident $sets:tt $properties:tt)*) => {
        mod alternating_order {
            use super::*;
            $(#[test]
            fn $name() {
                isolated!(|| check_each_confinement(Launcher::$launcher, false));
            })*
        }
        mod set_uid {
            use super::*;
            $(#[test]
            fn $name() {
                isolated!(|| set_uid_program(Launcher::$launcher));
            })*
        }
        mod in_a_user_namespace {
            use super::*;
            $(#[test]
            fn $name() {
                isolated!(|| user_namespace(Launcher::$launcher));
            })*
        }
        mod both_orders {
            use super::*;
            $(#[test]
            #[ignore = "make test-all runs both orders"]
            fn $name() {
                isolated!(limit: std::time::Duration::from_secs(600), || check_each_confinement(Launcher::$launcher, true));
            })*
        }
    };
}
common::launchers! { rows! {} }
