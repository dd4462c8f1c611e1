// SPDX-License-Identifier: MIT OR Apache-2.0
//! Confinements x launchers x which thread comes first: a program has what a fork in its thread has.

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
use crate::confinements::{USER, WAYS};

/// What a child has from the thread that starts it: its authority, and what Landlock lets it do.
#[derive(Debug, PartialEq)]
pub struct Seen {
    authority: Vec<(&'static str, Value)>,
    scheduling: [Value; 3],
    reads: String,
}

/// Reads a file that no confinement here lets be read, if it forbids any.
const READ: &str = "cat /etc/hostname >/dev/null 2>&1 && echo yes || echo no";

fn seen(state: &State, reads: String) -> Seen {
    let json = serde_json::to_value(state).expect("a state");
    Seen {
        authority: state.authority(),
        scheduling: ["nice", "scheduler", "affinity"].map(|name| json[name].clone()),
        reads,
    }
}

/// By std's fork.
pub fn by_fork(oracle: &Path) -> Seen {
    let run = |path: &Path, args: &[&str]| {
        let mut command = std::process::Command::new(path);
        // SAFETY: the closure does nothing. With one, std forks.
        unsafe { command.pre_exec(|| Ok(())) };
        let output = command.args(args).stdin(std::process::Stdio::null()).output().expect("starts");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let state = State::from_json(&run(oracle, &[]));
    seen(&state, String::from_utf8(run(Path::new("/bin/sh"), &["-c", READ])).expect("text"))
}

/// By two commands: one for the oracle, one for /bin/sh.
pub fn seen_by(oracle: &mut Command<'_>, shell: &mut Command<'_>) -> Seen {
    let state = state(oracle.stdin(Stdio::Null));
    seen(&state, output(shell.args(["-c", READ]).stdin(Stdio::Null)))
}

/// Compares twice: the first start may park a process again.
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

/// One thread is confined, and the library is used by it `first`, or by another one before it.
fn one_way(launcher: Launcher, oracle: &Path, name: &str, apply: fn() -> bool, first: bool) {
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
        scope.spawn(body).join().expect("its assertions hold")
    });
    if !confined {
        return spawnfd_tests::skip(&format!("{name}: refused here"));
    }
    compare_times(1, launcher, oracle, &format!("the other thread, after {name}"));
}

/// Each way in a process of its own. `product`: with both orders, not with one by turns.
fn all_ways(launcher: Launcher, product: bool) {
    let directory = scratch();
    let oracle = copy_of_program("spawnfd-oracle", directory.path());
    let row = Launcher::ALL.iter().position(|&other| other == launcher).expect("one of all");
    for (column, way) in WAYS.iter().enumerate() {
        let has_threads = launcher.is_warm();
        let orders = match product {
            _ if has_threads && !way.can_start_threads => vec![false],
            true => vec![true, false],
            false => vec![(row + column) % 2 == 0],
        };
        for first in orders {
            wait_for(fork(|| {
                one_way(launcher, &oracle, way.name, way.apply, first);
                launcher.rest();
            }));
        }
    }
}

/// A set-uid program that a user's thread starts is root's, unless the thread has no_new_privs.
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
                std::thread::scope(|scope| scope.spawn(body).join().expect("its assertions hold"));
                other();
                launcher.rest();
            }));
        }
    }
}

/// The whole process is in a user namespace of its own.
fn user_namespace(launcher: Launcher) {
    let directory = scratch();
    let oracle = copy_of_program("spawnfd-oracle", directory.path());
    wait_for(fork(|| {
        // SAFETY: integers. A copy has one thread.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        // SAFETY: as above.
        if unsafe { libc::unshare(libc::CLONE_NEWUSER) } != 0 {
            return spawnfd_tests::skip("no user namespace can be made");
        }
        let write = |file: &str, text: String| std::fs::write(format!("/proc/self/{file}"), text);
        let mapped = write("setgroups", "deny".to_owned())
            .and_then(|()| write("uid_map", format!("{user} {user} 1")))
            .and_then(|()| write("gid_map", format!("{group} {group} 1")));
        mapped.expect("its own");
        launcher.enter();
        compare(launcher, &oracle, "in a user namespace");
        launcher.rest();
    }));
}

macro_rules! rows {
    ([$($name:ident $launcher:ident),*] [$($other:ident $further:ident),*]) => {
        mod by_turns {
            use super::*;
            $(#[test]
            fn $name() {
                isolated!(|| all_ways(Launcher::$launcher, false));
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
        mod product {
            use super::*;
            $(#[test]
            #[ignore = "make test-all runs the product"]
            fn $name() {
                isolated!(limit: std::time::Duration::from_secs(600), || all_ways(Launcher::$launcher, true));
            })*
        }
    };
}
common::launchers!(every, rows!());
