// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trees that each have a new pid namespace.

use crate::common;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use crate::common::job::sh;
use crate::common::tree::*;
use spawnfd::command::Namespaces;
use spawnfd::error::{Errno, Stage};
use spawnfd::tree::{Tier, Tree, TreeControl};
use spawnfd::{Command, Run};
use spawnfd_tests::{confine, isolated, require_root, skip};

/// Runs a test if a pid namespace can be created; skips it if not.
fn in_pid_namespace(body: impl FnOnce()) {
    become_subreaper();
    match Tree::prepare(TreeControl::Pidns).map(drop) {
        Ok(()) => body(),
        Err(error) => skip(&format!("cannot create a pid namespace: {error}")),
    }
}

macro_rules! in_pid_namespace {
    ($body:expr) => {
        isolated!(|| in_pid_namespace($body))
    };
}

/// The pids of this process's children named spawnfd-init.
fn inits() -> Vec<i32> {
    let own = std::process::id().to_string();
    let all = fs::read_dir("/proc").expect("/proc").filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains("(spawnfd-init) ")
            && stat.rsplit(')').next().unwrap_or_default().split(' ').nth(2) == Some(own.as_str())
    })
    .collect()
}

fn run() -> Run {
    Run::new().tree(TreeControl::Pidns)
}

#[test]
fn the_programs_own_status_is_reported() {
    in_pid_namespace!(|| {
        for code in [0, 1, 7, 127, 255] {
            let output = sh(&format!("exit {code}")).run_with(&run()).expect("runs");
            assert_eq!((output.code(), output.tree), (Some(code), Tier::Pidns));
        }
        for signal in [1, 9, 11, 15] {
            // Pid 2 is not an init, so a signal's default action ends it.
            let output = sh(&format!("kill -{signal} $$; sleep 1000")).run_with(&run()).expect("runs");
            assert_eq!(output.signal(), Some(signal));
        }
        let output = sh("echo $$ $PPID").run_with(&run()).expect("runs");
        assert_eq!(output.stdout, b"2 0\n");
        let error = Command::new("/bin/sh").current_dir("/nonexistent").run_with(&run()).expect_err("no directory");
        assert_eq!((error.stage(), error.errno()), (Stage::CurrentDir, Errno::ENOENT));
        wait_until("no init is left", || inits().is_empty());
    });
}

#[test]
fn a_second_pid_namespace_is_refused_by_name() {
    in_pid_namespace!(|| {
        let error = sh("exit 0").namespaces(Namespaces::PID).run_with(&run()).expect_err("two of them");
        assert_eq!((error.stage(), error.errno()), (Stage::Tree, Errno::EINVAL), "{error}");
        assert!(error.to_string().contains("beside a tree's"), "{error}");
        // Besides the tree's pid namespace, a command may have other namespaces. The test covers a user namespace
        // only if this system permits one.
        let mut others = vec![sh("echo $$")];
        others[0].namespaces(Namespaces::UTS);
        if sh("exit 0").user_namespace(0, 0).run().is_ok() {
            others.push(sh("echo $$"));
            others[1].user_namespace(0, 0);
        }
        for command in &mut others {
            match command.run_with(&run()) {
                Ok(output) => assert_eq!(output.stdout, b"2\n"),
                // A caller that needed a user namespace for the tree cannot have a second one.
                Err(error) => assert!(error.to_string().contains("beside a tree's user namespace"), "{error}"),
            }
        }
        wait_until("no init is left", || inits().is_empty());
    });
}

#[test]
fn an_unseen_daemon_ends_with_the_tree() {
    in_pid_namespace!(|| {
        let output = sh("setsid -f sleep 1000").run_with(&run()).expect("runs");
        assert_eq!(output.leftovers.len(), 1, "{output:?}");
        let daemon = output.leftovers[0].pid as i32;
        wait_until_gone(&[daemon]);
        wait_until("no init is left", || inits().is_empty());
    });
}

#[test]
fn a_stopped_tree_and_one_that_ignores_signals_are_killed() {
    in_pid_namespace!(|| {
        let mut sh = start(TreeControl::Pidns, "trap '' TERM; sleep 1000 & echo $!; kill -STOP $! $$; wait");
        sh.pid();
        wait_until("the shell is stopped", || state(sh.child.id() as i32) == 'T');
        let sleep = sh.survivors();
        assert_eq!(sleep.len(), 1);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep[0]) && !is_alive(sh.child.id() as i32));
        assert_eq!(sh.wait().signal(), Some(9));
        drop(sh.tree);
        wait_until("no init is left", || inits().is_empty());
        let mut sh = start(TreeControl::Pidns, "sleep 1000 & echo $!; kill -STOP $! $$; wait");
        sh.pid();
        wait_until("the shell is stopped", || state(sh.child.id() as i32) == 'T');
        let sleep = sh.survivors();
        wait_until("its child is stopped", || state(sleep[0]) == 'T');
        sh.tree.signal(TERM);
        wait_until_gone(&[sleep[0], sh.child.id() as i32]);
    });
}

#[test]
fn a_fork_bomb_is_killed() {
    in_pid_namespace!(|| {
        if !require_root() {
            return;
        }
        let user = 1_000_000_000 + std::process::id();
        let bomb = "use POSIX; while (1) { my $p = fork; setsid if defined $p and $p == 0; select undef, undef, undef, 0.001 }";
        let mut sh = start_command(TreeControl::Pidns, |command| {
            command
                .args(["-c", &format!("exec perl -e '{bomb}' 2>/dev/null")])
                .limit(6, Some(150), Some(150))
                .uid(user);
        });
        wait_until("there are many processes", || sh.survivors().len() > 100);
        let all = sh.survivors();
        assert!(sh.tree.kill(PATIENCE));
        wait_until_gone(&all);
    });
}

#[test]
fn killing_an_owner_at_any_moment_leaves_no_process() {
    in_pid_namespace!(|| {
        for round in 0..common::rounds(60) {
            let (owner, mut report) = fork_owner(|tell| {
                tell(0);
                (0..20)
                    .map(|_| sh("setsid -f sleep 1000; sleep 1000").start(&run()).expect("starts"))
                    .collect::<Vec<_>>()
            });
            assert_eq!(next_pid(&mut report), 0);
            std::thread::sleep(Duration::from_micros(round as u64 * 377 % 20_000));
            kill(owner, libc::SIGKILL);
            reap(owner);
            // This process is a subreaper: the kernel reparents orphans to it.
            wait_until("no process is left", || {
                loop {
                    // SAFETY: waitpid stores no status.
                    match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) } {
                        0 => break false,
                        -1 => break true,
                        _ => {}
                    }
                }
            });
        }
    });
}

/// A process outside the namespace can stop init. The thread that has started init may have ended.
#[test]
fn stopping_init_frees_no_program_of_an_owner_that_dies() {
    in_pid_namespace!(|| {
        for ends_thread in [false, true] {
            let (owner, mut report) = fork_owner(|tell| {
                let start = || sh("setsid -f sleep 1000; sleep 1000").start(&run()).expect("starts");
                let job = if ends_thread { std::thread::scope(|scope| scope.spawn(start).join()) } else { Ok(start()) };
                let job = job.expect("no panic");
                tell(wait_for_some(inits)[0]);
                tell(job.id() as i32);
                job
            });
            let (init, program) = (next_pid(&mut report), next_pid(&mut report));
            wait_until("init has stopped", || {
                kill(init, libc::SIGSTOP);
                state(init) == 'T'
            });
            kill(owner, libc::SIGKILL);
            reap(owner);
            wait_until("the program has ended", || !is_alive(program));
        }
    });
}

/// The program starts in the caller's group. Once an action has changed the group, there is no way back.
#[test]
fn a_program_stays_in_the_group_of_its_caller() {
    in_pid_namespace!(|| {
        // SAFETY: the call has no arguments.
        let own = unsafe { libc::getpgrp() };
        let job = sh("sleep 1000").process_group(own).start(&run()).expect("starts");
        // SAFETY: the call takes an integer.
        assert_eq!(unsafe { libc::getpgid(job.id() as i32) }, own);
        drop(job);
        let error = sh(":").setsid().process_group(own).run_with(&run()).expect_err("a session leader");
        assert_eq!((error.stage(), error.errno()), (Stage::Action(1), Errno::EPERM));
        let error = sh(":").process_group(0).process_group(own).run_with(&run()).expect_err("no such group");
        assert_eq!(error.stage(), Stage::Action(1), "{error}");
    });
}

#[test]
fn killing_init_ends_the_program() {
    in_pid_namespace!(|| {
        let job = sh("sleep 1000").start(&run()).expect("starts");
        let init = wait_for_some(inits)[0];
        kill(init, libc::SIGKILL);
        let output = job.wait().expect("a result");
        assert_eq!((output.signal(), output.tree), (Some(9), Tier::Pidns));
        wait_until("no init is left", || inits().is_empty());
    });
}

#[test]
fn an_unprivileged_program_has_no_capability() {
    in_pid_namespace!(|| {
        if !require_root() {
            return;
        }
        let script = "grep -E '^(Cap(Inh|Prm|Eff|Amb|Bnd)|Uid|Gid)' /proc/self/status";
        let own = sh(script).run().expect("runs").stdout;
        assert_eq!(sh(script).run_with(&run()).expect("runs").stdout, own, "root needs no user namespace");
        // SAFETY: the calls take integers and a null pointer, and change only this process, which belongs to the
        // test.
        unsafe {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!(libc::setresgid(12345, 12345, 12345), 0);
            assert_eq!(libc::setresuid(12345, 12345, 12345), 0);
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        }
        match Tree::prepare(TreeControl::Pidns) {
            Ok(tree) => drop(tree),
            Err(error) => return skip(&format!("cannot create a user namespace: {error}")),
        }
        let output = sh(&format!("{script}; echo $$ $PPID; exit 3")).run_with(&run()).expect("runs");
        let text = output.stdout_text();
        assert_eq!(text.matches("\t0000000000000000\n").count(), 5, "{text}");
        assert!(text.contains("Uid:\t12345\t12345") && text.ends_with("2 0\n"), "{text}");
        assert_eq!(output.code(), Some(3));
    });
}

#[test]
fn a_refused_namespace_is_an_error() {
    isolated!(|| {
        confine::docker().expect("confined");
        let error = Tree::prepare(TreeControl::Pidns).expect_err("refused");
        assert_eq!((error.stage(), error.errno()), (Stage::Tree, Errno::EPERM));
        assert_eq!(error.call(), "clone(CLONE_NEWUSER | CLONE_NEWPID)");
        assert_eq!(sh("true").run_with(&run()).expect_err("refused"), error);
    });
}

#[test]
fn no_init_and_no_descriptor_is_left() {
    in_pid_namespace!(|| {
        let count = || fs::read_dir("/proc/self/fd").expect("/proc").count();
        let _ = sh("true").run_with(&run()).expect("runs");
        let before = count();
        for _ in 0..common::rounds(20) {
            let _ = sh("sleep 1000 & true").run_with(&run()).expect("runs");
            Command::new("/nonexistent/program").run_with(&run()).expect_err("no such program");
        }
        wait_until("no init is left", || inits().is_empty());
        wait_until("as many descriptors as before", || count() <= before);
    });
}

#[test]
fn a_detached_daemon_lives_on() {
    in_pid_namespace!(|| {
        let (owner, mut report) = fork_owner(|tell| {
            let run = run().leftovers(spawnfd::job::Leftovers::Detach);
            let output = sh("setsid -f sleep 1000").run_with(&run).expect("runs");
            tell(output.leftovers[0].pid as i32);
        });
        let daemon = next_pid(&mut report);
        kill(owner, libc::SIGKILL);
        std::thread::sleep(Duration::from_millis(50));
        assert!(is_alive(daemon));
        kill(daemon, libc::SIGKILL);
        wait_until_gone(&[daemon]);
    });
}
