// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reported problem: a kill misses processes of the program's tree, or hits processes outside the tree. A name such
//! as codex#21994 is a public report.

use std::io::{Read, Write};
use std::time::Duration;

use spawnfd::job::{Drain, Fate, Leftovers, Stop};
use spawnfd::limits::{Enforce, Enforcer, Limits, Resource};
use spawnfd::tree::{Tree, TreeControl};
use spawnfd::{Command, Output, Run};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{isolated, scratch, skip};

use super::{LONG, both, both_timed_out, is_alive, kill, pid_from, pid_in, sh, std_sh};
use crate::common::eventually;

/// A run that gives every process much time to end after SIGTERM, and to close the output.
fn patient() -> Run {
    Run::new().grace(LONG).drain(LONG)
}

/// claude-code#79902, claude-code#84647, codex#21994: a timeout ends the shell, and the shell's children live on.
#[test]
fn a_timeout_kills_the_whole_tree() {
    isolated!(|| {
        let line = "sh -c 'sleep 1000 & echo $!; : >\"$0\"; wait' \"$0\" & wait";
        both_timed_out(line, &patient(), |output| {
            let grandchild = pid_in(&output.stdout_text());
            assert_eq!((output.stop, output.drain.clone()), (Stop::Timeout, Drain::Eof));
            eventually("the process is gone", || !is_alive(grandchild));
        });

        // std kills one process only.
        let directory = scratch();
        let path = directory.path().join("pid");
        let line = format!("sh -c 'sleep 1000 & echo $! > {}; wait' & wait", path.display());
        let mut child = std_sh(&line).spawn().expect("starts");
        let grandchild = pid_from(&path);
        child.kill().and_then(|()| child.wait()).expect("own child");
        assert!(is_alive(grandchild), "std kills the grandchild now: update the documents");
        // The shell that started the grandchild waits for it, and ends when the grandchild is killed.
        kill(grandchild);
    });
}

/// claude-code#79902 and codex#21994 also concern a process in another session (setsid, a second shell), which
/// survives a kill of the process group.
#[test]
fn a_timeout_kills_processes_in_other_sessions() {
    isolated!(|| {
        let line = "setsid sh -c 'echo $$; : >\"$0\"; exec sleep 1000' \"$0\" & wait";
        both_timed_out(line, &patient(), |output| {
            let escaped = pid_in(&output.stdout_text());
            assert_eq!((output.stop, output.drain.clone()), (Stop::Timeout, Drain::Eof));
            eventually("the process is gone", || !is_alive(escaped));
        });
    });
}

/// claude-code#79902 and codex#21994 also concern a daemon, which has its own session and no parent in the tree. If
/// the tier (the way to control the tree) does not reach the daemon, the daemon's open pipe shows that it belongs to the
/// run.
#[test]
fn a_timeout_kills_a_daemon_that_holds_the_output() {
    isolated!(|| {
        let line = "(setsid sh -c 'echo $$; : >\"$0\"; exec sleep 1000' \"$0\" &); exec sleep 1000";
        for want in [TreeControl::Group, TreeControl::Auto] {
            let run = patient().drain(Duration::from_secs(1)).tree(want);
            both_timed_out(line, &run, |output| {
                let daemon = pid_in(&output.stdout_text());
                assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(15)));
                eventually("the process is gone", || !is_alive(daemon));
            });
        }
    });
}

/// A program that leaves a daemon, which has its own session, no parent in the tree, and the program's output.
const LEAVES_A_DAEMON: &str = "(setsid sh -c 'echo $$; : >\"$0\"; exec sleep 1000' \"$0\" &); until test -e \"$0\"; do sleep 0.01; done; rm \"$0\"";

#[test]
fn a_daemon_that_holds_the_output_is_listed_and_ended_unless_detached() {
    isolated!(|| {
        let directory = scratch();
        let leave = || {
            let mut command = sh(LEAVES_A_DAEMON);
            command.arg(directory.path().join("done"));
            command
        };
        for want in [TreeControl::Group, TreeControl::Guard] {
            for (leftovers, fate) in [(Leftovers::Kill, Fate::Killed), (Leftovers::Detach, Fate::Detached)] {
                both(leave, &Run::new().tree(want).leftovers(leftovers), |output| {
                    let daemon = pid_in(&output.stdout_text());
                    assert_eq!((output.code(), &output.drain), (Some(0), &Drain::Cut(vec![daemon])));
                    assert_eq!(fates(&output), [(daemon, fate)], "{want:?}");
                    if fate == Fate::Detached {
                        assert!(is_alive(daemon));
                        kill(daemon);
                    }
                    eventually("the process is gone", || !is_alive(daemon));
                });
            }
            let job = leave().start(&Run::new().tree(want).leftovers(Leftovers::Adopt)).expect("starts");
            let output = job.wait().expect("ends");
            let daemon = pid_in(&output.stdout_text());
            assert_eq!(fates(&output), [(daemon, Fate::Adopted)]);
            assert!(is_alive(daemon));
            drop(job);
            eventually("the process is gone", || !is_alive(daemon));
        }
    });
}

fn fates(output: &Output) -> Vec<(u32, Fate)> {
    output.leftovers.iter().map(|left| (left.pid, left.fate)).collect()
}

/// A caller may end the drain time. What happens to leftovers is still the run's choice.
#[test]
fn a_stop_during_the_drain_time_detaches_leftovers() {
    isolated!(|| {
        let run = patient().leftovers(Leftovers::Detach);
        let job = sh("setsid sleep 1000 & echo $!").start(&run).expect("starts");
        let program = std::path::PathBuf::from(format!("/proc/{}", job.id()));
        eventually("the program is reaped", || !program.exists());
        job.stop(Duration::ZERO);
        let output = job.wait().expect("ends");
        let sleep = pid_in(&output.stdout_text());
        assert_eq!((output.stop, fates(&output)), (Stop::Exited, vec![(sleep, Fate::Detached)]));
        assert!(is_alive(sleep));
        kill(sleep);
    });
}

/// A process may hold the output although it is no descendant of the program. It is named, and lives on.
#[test]
fn a_process_that_is_older_than_the_run_is_no_leftover() {
    isolated!(|| {
        let mut older = std::process::Command::new("setsid");
        older.args(["sh", "-c", "read pid; exec 3>/proc/$pid/fd/1; echo opened; exec sleep 1000"]);
        let pipe = std::process::Stdio::piped;
        let mut older = older.stdin(pipe()).stdout(pipe()).spawn().expect("starts");
        // A process that starts within a clock tick of the run counts as younger.
        std::thread::sleep(Duration::from_millis(50));
        let job = sh("echo ready; read x").start(&Run::new().writable(10).window(100)).expect("starts");
        // Now the program has its own standard output.
        eventually("ready", || job.read(0).text() == "ready\n");
        let (mut ask, mut answer) = (older.stdin.take().expect("a pipe"), older.stdout.take().expect("a pipe"));
        writeln!(ask, "{}", job.id()).expect("own pipe");
        answer.read_exact(&mut [0; 7]).expect("own pipe");
        job.write(b"\n").expect("writable");
        let output = job.wait().expect("ends");
        assert_eq!((&output.drain, fates(&output)), (&Drain::Cut(vec![older.id()]), vec![]));
        assert!(is_alive(older.id()));
        older.kill().and_then(|()| older.wait()).expect("own child");
    });
}

/// A fork of the host has copies of the host's ends of the pipes.
#[test]
fn a_fork_of_the_host_is_no_leftover() {
    isolated!(|| {
        let directory = scratch();
        let done = directory.path().join("done");
        let mut command = sh(&format!("read x; {LEAVES_A_DAEMON}"));
        let job = command.arg(&done).start(&Run::new().writable(10)).expect("starts");
        let copy = crate::common::tree::fork(|| {
            // SAFETY: setsid takes no arguments and changes only the forked process.
            unsafe { libc::setsid() };
            std::thread::sleep(LONG);
        });
        job.write(b"\n").expect("writable");
        let output = job.wait().expect("ends");
        let daemon = pid_in(&output.stdout_text());
        assert_eq!((&output.drain, fates(&output)), (&Drain::Cut(vec![daemon]), vec![(daemon, Fate::Killed)]));
        assert!(is_alive(copy as u32));
        kill(copy as u32);
        // SAFETY: the call stores no status.
        assert_eq!(unsafe { libc::waitpid(copy, std::ptr::null_mut(), 0) }, copy);
    });
}

/// Until exec, a child that another thread starts is such a fork: it has copies of the host's descriptors.
#[test]
fn a_fork_of_the_host_that_can_write_is_no_leftover() {
    isolated!(|| {
        let job = sh("echo ready; read x").start(&Run::new().writable(10).window(100)).expect("starts");
        // Now the program has its own standard output.
        eventually("ready", || job.read(0).text() == "ready\n");
        let (mut opened, mut tell) = std::io::pipe().expect("a pipe");
        let stdout = format!("/proc/{}/fd/1", job.id());
        let copy = crate::common::tree::fork(|| {
            // SAFETY: setsid takes no arguments and changes only the forked process.
            unsafe { libc::setsid() };
            let _stdout = std::fs::File::options().write(true).open(stdout).expect("a pipe");
            tell.write_all(b"x").expect("own pipe");
            std::thread::sleep(LONG);
        });
        opened.read_exact(&mut [0]).expect("own pipe");
        job.write(b"\n").expect("writable");
        let output = job.wait().expect("ends");
        assert_eq!((&output.drain, fates(&output)), (&Drain::Cut(vec![copy as u32]), vec![]));
        assert!(is_alive(copy as u32));
        kill(copy as u32);
        // SAFETY: the call stores no status.
        assert_eq!(unsafe { libc::waitpid(copy, std::ptr::null_mut(), 0) }, copy);
    });
}

/// Reported problem: a fork bomb takes down the machine or the user's session.
#[test]
fn a_fork_bomb_reaches_the_pids_limit() {
    // The guard tier has no cgroup, so an rlimit enforces the limit.
    isolated!(|| {
        fork_bomb(&Run::new().limits(Limits::new().pids(80)).tree(TreeControl::Guard), Enforcer::Rlimit);
    });
}

/// The kernel reports a fork that the cgroup's pids limit refuses, and the library ends the run at once.
#[test]
fn a_fork_bomb_reaches_the_pids_limit_in_a_cgroup() {
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
    // Each process calls setsid. A process that cannot fork tries again.
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
    // SAFETY: getuid takes no arguments and changes nothing.
    if unsafe { libc::getuid() } == 0 {
        // RLIMIT_NPROC does not apply to root.
        command.uid(1_000_000_000 + std::process::id());
    }
    let output = command.run_with(run).expect("starts");
    let limit = output.limit.map(|limit| (limit.resource, limit.by));
    assert_eq!((output.stop, limit), (Stop::Limit, Some((Resource::Pids, by))), "{output:?}");
    eventually("no process is left", || left() == 0);
}

/// A line of shell that starts a server in the background and prints its pid. sleep(1) stands for the server.
const SERVER: &str = "sleep 1000 >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do sleep 0.01; done; echo $!";

fn run_server(leftovers: Leftovers, check: impl Fn(u32, &Output)) {
    both(
        || sh(SERVER),
        &Run::new().leftovers(leftovers),
        |output| {
            let server = pid_in(&output.stdout_text());
            assert!(output.ok() && output.drain == Drain::Eof, "{output:?}");
            check(server, &output);
        },
    );
}

/// Reported problem: a development server that should stay is killed with the command that started it.
#[test]
fn a_detached_server_survives_the_run() {
    isolated!(|| {
        run_server(Leftovers::Detach, |server, _| {
            std::thread::sleep(Duration::from_millis(100));
            assert!(is_alive(server));
            kill(server);
        });
    });
}

/// claude-code#79902, claude-code#84647, codex#21994: a server that should end lives on.
#[test]
fn a_leftover_server_is_killed() {
    isolated!(|| {
        run_server(Leftovers::Kill, |server, output| {
            assert_eq!(
                output.leftovers.iter().map(|left| (left.pid, left.fate)).collect::<Vec<_>>(),
                [(server, Fate::Killed)]
            );
            assert_eq!(output.leftovers[0].name, "sleep");
            eventually("the process is gone", || !is_alive(server));
        });
    });
}

/// Reported problem: an agent is pid 1 of its container (`docker run` without `--init`). The kernel reparents the
/// orphans of its tools to the agent, which never reaps them.
#[test]
fn a_subreaper_host_gets_no_zombies() {
    isolated!(|| {
        // The kernel reparents orphans to a subreaper, as to pid 1.
        // SAFETY: prctl takes integers and sets a flag of this process.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }, 0);
        // The line leaves two orphans: one that the library must kill, and one that ends by itself.
        const BEHIND: &str = "sleep 1000 >/dev/null 2>&1 & ended=$(sleep 0.05 >/dev/null 2>&1 & echo $!)
            while grep -qs 'State:.[^Z]' /proc/$ended/status; do sleep 0.01; done";
        let run_behind = |line: &str, want, leftovers| {
            both(
                || sh(line),
                &Run::new().tree(want),
                |output| {
                    assert_eq!(output.leftovers.len(), leftovers, "{output:?}");
                    eventually("no zombie is left", || !Snapshot::take().has_zombie);
                },
            );
        };
        for want in [TreeControl::Group, TreeControl::Guard, TreeControl::Auto] {
            run_behind(BEHIND, want, 1);
        }
        if Tree::prepare(TreeControl::Cgroup).is_ok() {
            run_behind(&format!("(setsid sleep 1000 >/dev/null 2>&1 &); {BEHIND}"), TreeControl::Cgroup, 2);
        }
        let timeout = Run::new().timeout(Duration::from_millis(200)).grace(Duration::from_millis(50));
        both(
            || sh("sleep 1000 & sleep 1000; true"),
            &timeout,
            |output| {
                assert_eq!(output.stop, Stop::Timeout);
                eventually("no zombie is left", || !Snapshot::take().has_zombie);
            },
        );
        let mut platform = std_sh("sleep 0.05 & exit").spawn().expect("starts");
        platform.wait().expect("own child");
        eventually("the zombie stays", || Snapshot::take().has_zombie);
    });
}

/// Reported problem: the caller does not learn which processes a command leaves behind.
#[test]
fn leftovers_are_listed() {
    isolated!(|| {
        run_server(Leftovers::Detach, |server, output| {
            let left = output.leftovers.iter().find(|left| left.pid == server).expect("listed");
            assert_eq!((&left.name[..], left.fate), ("sleep", Fate::Detached));
            kill(server);
        });
    });
}

/// An adopted process lives on; the job reads its output and ends it.
#[test]
fn an_adopted_process_is_read_and_ends_with_the_job() {
    isolated!(|| {
        let run = Run::new().leftovers(Leftovers::Adopt).window(1000);
        let job = sh("(while :; do echo more; sleep 0.02; done) & echo $! >&2").start(&run).expect("starts");
        let output = job.wait().expect("a job result");
        let loop_ = pid_in(&output.stderr_text());
        assert!(output.leftovers.iter().any(|left| (left.pid, left.fate) == (loop_, Fate::Adopted)));
        let next = job.read(0).next;
        eventually("its output is read", || job.read(next).text().matches("more").count() >= 3);
        drop(job);
        eventually("the process is gone", || !is_alive(loop_));
    });
}

/// claude-code#45717: the kill at a timeout hits the agent itself, because the program is in the agent's process
/// group.
#[test]
fn a_kill_spares_the_callers_group() {
    isolated!(|| {
        // SAFETY: getpgrp takes no arguments and changes nothing.
        let own_group = unsafe { libc::getpgrp() };
        let mut neighbour = std::process::Command::new("sleep").arg("1000").spawn().expect("starts");
        let plain: fn() -> Command<'static> = || sh("exec sleep 1000");
        let run = patient().timeout(Duration::from_secs(1));
        both(plain, &run, |output| assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(15))));
        // The kill also spares the caller's group if the command asks for this process group: the program has then
        // joined the group by the time of the kill.
        let joined = || {
            let mut command = sh("ps -o pgid= -p $$; exec sleep 1000");
            command.process_group(own_group);
            command
        };
        let refused = |error: spawnfd::Error| assert_eq!(error.errno(), spawnfd::error::Errno::EPERM, "{error}");
        match joined().run_with(&run) {
            // The kernel refuses the group if it belongs to another session.
            Err(error) => refused(error),
            Ok(output) => assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(15))),
        }
        assert!(neighbour.try_wait().expect("own child").is_none(), "another process of the caller's group is spared");
        neighbour.kill().and_then(|()| neighbour.wait()).expect("own child");
    });
}

/// The library must not signal a pid after its program has ended. The test kills hundreds of programs, each at about
/// the moment when the program ends by itself.
#[test]
fn a_kill_after_the_end_has_no_effect() {
    isolated!(|| {
        for round in 0..crate::common::rounds(400) {
            let job =
                sh(if round % 2 == 0 { "exit 4" } else { "sleep 0.002; exit 4" }).start(&Run::new()).expect("starts");
            let pid = job.id();
            job.stop(Duration::ZERO);
            let output = job.wait().expect("a job result");
            assert!(output.code() == Some(4) || output.signal() == Some(9), "{output:?}");
            // The program has ended, so another process may have its pid: these calls must not send a signal.
            job.stop(Duration::ZERO);
            job.signal(9, true).expect("a signal");
            assert!(!is_alive(pid));
        }
    });
}
