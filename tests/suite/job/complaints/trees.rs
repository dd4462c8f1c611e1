// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a kill hits, and what it misses.

use std::time::Duration;

use spawnfd::tree::{Tier, Tree, Want};
use spawnfd::{Command, Drain, Enforce, Enforcer, Fate, Leftovers, Limits, Output, Resource, Run, Stop};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{isolated, scratch, skip};

use super::{LONG, both, both_timed_out, is_alive, kill, pid_from, pid_in, platform_sh, sh};
use crate::common::eventually;

/// With patience for all who end, and let go of the output, by themselves.
fn patient() -> Run {
    Run::new().grace(LONG).drain(LONG)
}

/// claude-code#79902, claude-code#84647, codex#21994: a timeout ends the shell; what the shell has started lives on.
#[test]
fn a_tree_survives_the_kill() {
    isolated!(|| {
        let line = "sh -c 'sleep 1000 & echo $!; : >\"$0\"; wait' \"$0\" & wait";
        both_timed_out(line, &patient(), |output| {
            let grandchild = pid_in(&output.text());
            assert_eq!((output.stop, output.drain.clone()), (Stop::Timeout, Drain::Eof));
            eventually("it is gone", || !is_alive(grandchild));
        });

        // The platform's kill is for the one process.
        let directory = scratch();
        let path = directory.path().join("pid");
        let line = format!("sh -c 'sleep 1000 & echo $! > {}; wait' & wait", path.display());
        let mut child = platform_sh(&line).spawn().expect("starts");
        let grandchild = pid_from(&path);
        child.kill().and_then(|()| child.wait()).expect("own child");
        assert!(is_alive(grandchild), "the platform does it now, too: tell the documents");
        // The shell between them ends with it.
        kill(grandchild);
    });
}

/// The same reports; what has made a session of its own (setsid, a second shell) survives a kill of the process group.
#[test]
fn a_session_of_its_own_survives_the_kill() {
    isolated!(|| {
        let line = "setsid sh -c 'echo $$; : >\"$0\"; exec sleep 1000' \"$0\" & wait";
        both_timed_out(line, &patient(), |output| {
            let escaped = pid_in(&output.text());
            assert_eq!((output.stop, output.drain.clone()), (Stop::Timeout, Drain::Eof));
            eventually("it is gone", || !is_alive(escaped));
        });
    });
}

/// And a daemon, which has no parent any more either: it is gone where the tier reaches it, and else named.
#[test]
fn a_daemon_survives_the_kill() {
    isolated!(|| {
        let line = "(setsid sh -c 'echo $$; : >\"$0\"; exec sleep 1000' \"$0\" &); exec sleep 1000";
        for want in [Want::Group, Want::Auto] {
            let run = patient().drain(Duration::from_secs(1)).tree(want);
            both_timed_out(line, &run, |output| {
                let daemon = pid_in(&output.text());
                assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(15)));
                match &output.drain {
                    Drain::Cut(holders) if output.tree != Tier::Cgroup => {
                        assert_eq!(holders, &[daemon], "docs/trees.md tells of it");
                        kill(daemon);
                    }
                    _ => eventually("it is gone", || !is_alive(daemon)),
                }
            });
        }
    });
}

/// A program that multiplies takes the machine, or the user's session, down with it.
#[test]
fn a_fork_bomb() {
    // A guard has no cgroup: then it is an rlimit.
    isolated!(|| {
        fork_bomb(&Run::new().limits(Limits::new().pids(80)).tree(Want::Guard), Enforcer::Rlimit);
    });
}

/// The same. A fork that is refused shows in a cgroup, and the run ends at once.
#[test]
fn a_fork_bomb_in_a_cgroup() {
    isolated!(|| {
        let run = Run::new().limits(Limits::new().pids(80).enforce(Enforce::Cgroup));
        match Command::new("true").run_with(&run) {
            Ok(_) => fork_bomb(&run, Enforcer::Cgroup),
            Err(error) => skip(&format!("no cgroup with a controller of pids: {error}")),
        }
    });
}

fn fork_bomb(run: &Run, by: Enforcer) {
    let marker = format!("bomb-{}", std::process::id());
    // Each in a session of its own; whoever cannot fork tries again.
    let bomb = format!(
        "use POSIX; while (1) {{ my $p = fork; setsid if defined $p and $p == 0; select undef, undef, undef, 0.001 }} # {marker}"
    );
    let left = || {
        let is_one = |pid: &u32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            is_alive(*pid) && String::from_utf8_lossy(&words).contains(&marker)
        };
        let pids = std::fs::read_dir("/proc").expect("/proc").flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_one).count()
    };
    let mut command = Command::new("perl");
    command.args(["-e", &bomb]).stderr(spawnfd::Stdio::Null);
    // SAFETY: no arguments.
    if unsafe { libc::getuid() } == 0 {
        // RLIMIT_NPROC means nothing to root.
        command.uid(1_000_000_000 + std::process::id());
    }
    let output = command.run_with(run).expect("starts");
    let limit = output.limit.map(|limit| (limit.resource, limit.by));
    assert_eq!((output.stop, limit), (Stop::Limit, Some((Resource::Pids, by))), "{output:?}");
    eventually("nobody is left", || left() == 0);
}

/// The server a user wants to keep: `server &` at the end of a command.
const SERVER: &str = "sleep 1000 >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do sleep 0.01; done; echo $!";

fn run_server(leftovers: Leftovers, check: impl Fn(u32, &Output)) {
    both(
        || sh(SERVER),
        &Run::new().leftovers(leftovers).drain(LONG),
        |output| {
            let server = pid_in(&output.text());
            assert!(output.ok() && output.drain == Drain::Eof, "{output:?}");
            check(server, &output);
        },
    );
}

/// A development server that is meant to stay is killed with the command that started it.
#[test]
fn a_server_must_survive() {
    isolated!(|| {
        run_server(Leftovers::Detach, |server, _| {
            std::thread::sleep(Duration::from_millis(100));
            assert!(is_alive(server));
            kill(server);
        });
    });
}

/// claude-code#79902, claude-code#84647, codex#21994: and the one that nobody wanted stays.
#[test]
fn a_server_must_die() {
    isolated!(|| {
        run_server(Leftovers::Kill, |server, output| {
            assert_eq!(
                output.leftovers.iter().map(|left| (left.pid, left.fate)).collect::<Vec<_>>(),
                [(server, Fate::Killed)]
            );
            assert_eq!(output.leftovers[0].name, "sleep");
            eventually("it is gone", || !is_alive(server));
        });
    });
}

/// An agent that is pid 1 of its container (`docker run` without `--init`) inherits what its tools leave behind, and never reaps it.
#[test]
fn zombies_pile_up_under_pid_1() {
    isolated!(|| {
        // SAFETY: a flag of this process: to be given orphans is what counts.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
        // One that has to be killed, and one that ends by itself.
        const BEHIND: &str = "sleep 1000 >/dev/null 2>&1 & ended=$(sleep 0.05 >/dev/null 2>&1 & echo $!)
            while grep -qs 'State:.[^Z]' /proc/$ended/status; do sleep 0.01; done";
        let run_behind = |line: &str, want, leftovers| {
            both(
                || sh(line),
                &Run::new().tree(want),
                |output| {
                    assert_eq!(output.leftovers.len(), leftovers, "{output:?}");
                    eventually("none is left", || !Snapshot::take().has_zombie);
                },
            );
        };
        for want in [Want::Group, Want::Guard, Want::Auto] {
            run_behind(BEHIND, want, 1);
        }
        if Tree::prepare(Want::Cgroup).is_ok() {
            run_behind(&format!("(setsid sleep 1000 >/dev/null 2>&1 &); {BEHIND}"), Want::Cgroup, 2);
        }
        let timeout = Run::new().timeout(Duration::from_millis(200)).grace(Duration::from_millis(50));
        both(
            || sh("sleep 1000 & sleep 1000; true"),
            &timeout,
            |output| {
                assert_eq!(output.stop, Stop::Timeout);
                eventually("none is left", || !Snapshot::take().has_zombie);
            },
        );
        let mut platform = platform_sh("sleep 0.05 & exit").spawn().expect("starts");
        platform.wait().expect("own child");
        eventually("it stays", || Snapshot::take().has_zombie);
    });
}

/// Nobody is told what was left behind.
#[test]
fn what_is_left_is_listed() {
    isolated!(|| {
        run_server(Leftovers::Detach, |server, output| {
            let left = output.leftovers.iter().find(|left| left.pid == server).expect("listed");
            assert_eq!((&left.name[..], left.fate), ("sleep", Fate::Detached));
            kill(server);
        });
    });
}

/// What runs on is read on, and ends with the job.
#[test]
fn what_is_adopted_is_read_and_ends_with_the_job() {
    isolated!(|| {
        let run = Run::new().leftovers(Leftovers::Adopt).window(1000);
        let job = sh("(while :; do echo more; sleep 0.02; done) & echo $! >&2").start(&run).expect("starts");
        let output = job.wait().expect("watched");
        let loop_ = pid_in(&output.error_text());
        assert!(output.leftovers.iter().any(|left| (left.pid, left.fate) == (loop_, Fate::Adopted)));
        let next = job.read(0).next;
        eventually("it is read on", || job.read(next).text().matches("more").count() >= 3);
        drop(job);
        eventually("it is gone", || !is_alive(loop_));
    });
}

/// claude-code#45717: the kill at the end of the timeout hits the agent itself, as the program was in the agent's own group.
#[test]
fn the_kill_hits_the_caller() {
    isolated!(|| {
        // SAFETY: no arguments.
        let own_group = unsafe { libc::getpgrp() };
        let mut neighbour = std::process::Command::new("sleep").arg("1000").spawn().expect("starts");
        let plain: fn() -> Command<'static> = || sh("exec sleep 1000");
        let run = patient().timeout(Duration::from_secs(1));
        both(plain, &run, |output| assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(15))));
        // Also where the program asks for the group of its caller, or has gone there by the time of the kill.
        let joined = || {
            let mut command = sh("ps -o pgid= -p $$; exec sleep 1000");
            command.process_group(own_group);
            command
        };
        let refused = |error: spawnfd::Error| assert_eq!(error.errno(), spawnfd::Errno::EPERM, "{error}");
        match joined().run_with(&run) {
            // A group of another session cannot be joined.
            Err(error) => refused(error),
            Ok(output) => assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(15))),
        }
        assert!(neighbour.try_wait().expect("own child").is_none(), "nor what else is in the caller's group");
        neighbour.kill().and_then(|()| neighbour.wait()).expect("own child");
    });
}

/// The same, with a kill for each of hundreds of programs that end by themselves in just that moment.
#[test]
fn a_kill_comes_too_late() {
    isolated!(|| {
        for round in 0..crate::common::rounds(400) {
            let job =
                sh(if round % 2 == 0 { "exit 4" } else { "sleep 0.002; exit 4" }).start(&Run::new()).expect("starts");
            let pid = job.id();
            job.stop(Duration::ZERO);
            let output = job.wait().expect("watched");
            assert!(output.code() == Some(4) || output.signal() == Some(9), "{output:?}");
            // Over: its number may be another's.
            job.stop(Duration::ZERO);
            job.signal(9, true).expect("a signal");
            assert!(!is_alive(pid));
        }
    });
}
