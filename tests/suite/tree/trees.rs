// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process trees: all of one is found, signalled and ended, and nobody else is.

use crate::common;
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::common::Cgroup;
use crate::common::tree::*;
use spawnfd::tree::{Tier, Tree, Want};
use spawnfd::{Command, Enforce, Enforcer, Errno, Limits, Run, Stage, Stdio, Stop};
use spawnfd_tests::{isolated, require_root, skip};

every_tier! {
    a_grandchild_is_found_and_killed: |want| {
        become_subreaper();
        let mut sh = start(want, "sleep 1000 & echo $!; wait");
        let sleep = sh.pid();
        assert_eq!(sh.survivors(), [sleep], "the program itself is none");
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep) && !is_alive(sh.child.id() as i32));
        assert_eq!(sh.survivors(), [0; 0]);
    };
    what_outlives_the_program_is_named: |want| {
        become_subreaper();
        let mut sh = start(want, "sleep 1000 & echo $!");
        let sleep = sh.pid();
        assert!(sh.wait().success());
        // Between fork and exec it is a shell.
        wait_until("a program", || sh.tree.survivors().iter().all(|survivor| survivor.name == "sleep"));
        let survivors = sh.tree.survivors();
        assert_eq!(survivors.iter().map(|survivor| (survivor.pid, &*survivor.name)).collect::<Vec<_>>(), [(sleep as u32, "sleep")]);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
    };
    a_job_of_the_program_s_shell_is_found: |want| {
        become_subreaper();
        // In a process group of its own, of the same session.
        let mut sh = start(want, "set -m; sleep 1000 & echo $!");
        let sleep = sh.pid();
        wait_until("ended", || state(sh.child.id() as i32) == 'Z');
        sh.tree.program_ended();
        sh.wait();
        assert_eq!(sh.survivors(), [sleep]);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
    };
    nobody_is_left_of_most_programs: |want| {
        let mut sh = start(want, "true | true");
        assert!(sh.wait().success());
        assert_eq!(sh.survivors(), [0; 0]);
        assert!(sh.tree.kill(Duration::ZERO));
    };
    a_daemon_that_was_seen_is_killed: |want| {
        become_subreaper();
        // The one between lives until it has been seen, and dies of SIGTERM.
        let mut sh = start(want, "setsid sh -c 'sh -c \"sleep 1000 & echo \\$!; exec sleep 1000\" & wait' & wait");
        let daemon = sh.pid();
        wait_until("seen", || sh.survivors().contains(&daemon));
        for pid in sh.survivors().into_iter().filter(|&pid| pid != daemon) {
            kill(pid, libc::SIGKILL);
        }
        sh.child.kill().expect("own child");
        sh.wait();
        wait_until("alone", || sh.survivors() == [daemon]);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(daemon));
    };
    one_that_ignores_sigterm_is_killed: |want| {
        become_subreaper();
        let mut sh = start(want, "trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000");
        let sleep = sh.pid();
        sh.tree.signal(TERM);
        // What it ignores it is not even woken by: both live on, and would for long.
        std::thread::sleep(Duration::from_millis(100));
        assert!(is_alive(sleep) && sh.child.try_wait().expect("own child").is_none());
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep) && !is_alive(sh.child.id() as i32));
    };
    all_get_a_signal_once: |want| {
        become_subreaper();
        let script = "trap 'n=x$n' USR1; echo $$; i=0; while [ \"$n\" = '' ]; do sleep 0.01; done; sleep 0.2; echo ${#n}";
        let mut sh = start(want, &format!("sh -c '{}' & wait", script.replace('\'', "'\\''")));
        let inner = sh.pid();
        // Before it has its trap the signal would end it; it has, as it has printed.
        assert!(is_alive(inner));
        sh.tree.signal(libc::SIGUSR1);
        assert_eq!(sh.pid(), 1);
    };
    a_stopped_tree_sees_a_signal: |want| {
        become_subreaper();
        let mut sh = start(want, "sleep 1000 & echo $!; kill -STOP $! $$; wait");
        let sleep = sh.pid();
        wait_until("stopped", || state(sleep) == 'T' && state(sh.child.id() as i32) == 'T');
        sh.tree.signal(TERM);
        wait_until_gone(&[sleep, sh.child.id() as i32]);
    };
    a_stopped_tree_is_killed: |want| {
        become_subreaper();
        let mut sh = start(want, "sleep 1000 & echo $!; kill -STOP $! $$; wait");
        let sleep = sh.pid();
        wait_until("stopped", || state(sleep) == 'T');
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
    };
    a_fork_bomb_is_killed: |want| {
        if !require_root() {
            // RLIMIT_NPROC counts all of a user's processes: somebody else's, too.
            return;
        }
        // Each in a session of its own; whoever cannot fork tries again.
        let bomb = "use POSIX; while (1) { my $p = fork; setsid if defined $p and $p == 0; select undef, undef, undef, 0.001 }";
        let many = common::rounds(100);
        let user = 1_000_000_000 + std::process::id();
        let script = format!("exec perl -e '{bomb}'");
        let mut sh = start_command(want, |command| {
            command.args(["-c", &script]).setsid().limit(6, Some(many as u64 * 3 / 2), Some(many as u64 * 3 / 2)).stderr(Stdio::Null).uid(user);
        });
        wait_until("many", || sh.survivors().len() > many);
        assert!(sh.tree.kill(PATIENCE));
        let left = || fs::read_dir("/proc").expect("/proc").flatten().filter(|entry| {
            let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            status.contains(&format!("Uid:\t{user}\t")) && !status.contains("State:\tZ") && !status.contains("State:\tX")
        }).count();
        assert_eq!(left(), 0);
    };
    dropping_ends_the_tree: |want| {
        become_subreaper();
        let mut sh = start(want, "sleep 1000 & echo $!");
        let sleep = sh.pid();
        sh.wait();
        assert!(is_alive(sleep));
        drop(sh.tree);
        // Dropping waits a second at most.
        wait_until_gone(&[sleep]);
        wait_until("no cgroup is left", || groups_of(std::process::id() as i32).is_empty());
    };
    who_has_been_inherited_is_reaped: |want| {
        become_subreaper();
        // Two to be killed, one of them in another session, and one that has ended by itself.
        let mut sh = start(want, &format!("setsid sleep 1000 & echo $!; sleep 1000 & echo $!; {REAPS_NOBODY}"));
        let [stray, sleep, ended] = [sh.pid(), sh.pid(), sh.pid()];
        wait_until("seen", || sh.survivors().contains(&stray));
        wait_until("ended", || state(ended) == 'Z');
        let own = fork(|| ());
        sh.child.kill().expect("own child");
        sh.wait();
        assert!(exists(ended) && is_alive(stray) && is_alive(sleep));
        // Dropping waits a second at most.
        assert!(sh.tree.kill(PATIENCE));
        drop(sh.tree);
        assert!(![stray, sleep, ended].into_iter().any(exists));
        reap(own);
    };
    who_is_let_go_of_is_reaped_if_it_has_ended: |want| {
        become_subreaper();
        let mut sh = start(want, &format!("sleep 1000 & echo $!; {REAPS_NOBODY}"));
        let [sleep, ended] = [sh.pid(), sh.pid()];
        wait_until("ended", || state(ended) == 'Z');
        sh.child.kill().expect("own child");
        sh.wait();
        assert_eq!(sh.survivors(), [sleep]);
        sh.tree.detach();
        assert!(is_alive(sleep) && !exists(ended));
        kill(sleep, libc::SIGKILL);
        reap(sleep);
    };
}

/// Has a child that ends, and prints its number. (A shell would reap it.)
const REAPS_NOBODY: &str = r#"exec perl -e '$| = 1; my $p = fork; exit unless $p; print "$p\n"; sleep 1000'"#;

/// Whether a process is there, reaped by nobody.
fn exists(pid: i32) -> bool {
    fs::exists(format!("/proc/{pid}")).expect("/proc")
}

#[test]
fn without_proc_the_process_group_is_ended() {
    isolated!(|| {
        if !require_root() || !has_group_signals() {
            return;
        }
        become_subreaper();
        // SAFETY: changes this process's mounts only, which are its own.
        unsafe {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                return skip("no mount namespace may be made");
            }
            let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
            assert_eq!(libc::mount(none, c"/".as_ptr(), none, private, std::ptr::null()), 0);
            assert_eq!(libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH), 0);
        }
        for ends in ["exit", "wait"] {
            let mut sh = start(Want::Guard, &format!("sleep 1000 & echo $!; {ends}"));
            let sleep = sh.pid();
            match ends {
                "exit" => assert!(sh.wait().success()),
                _ => sh.tree.signal(TERM),
            }
            drop(sh.tree);
            let _ = sh.child.wait();
            let mut status = 0;
            // SAFETY: stores an int; signal 0 does nothing. The shell may have reaped it before its own end.
            let (reaped, left) = unsafe { (libc::waitpid(sleep, &raw mut status, 0), libc::kill(sleep, 0)) };
            assert!(reaped == sleep || left == -1, "{reaped} {left}");
            assert!(reaped == -1 || matches!(status, libc::SIGTERM | libc::SIGKILL), "{status:#x}");
        }
    });
}

/// A tree's cgroup, and its directory, in which nobody runs until somebody thaws it.
fn frozen() -> Option<(Tree, PathBuf)> {
    let Ok(tree) = Tree::prepare(Want::Cgroup) else {
        skip("no cgroup can be made");
        return None;
    };
    let dir = groups_of(std::process::id() as i32).pop().expect("made");
    fs::write(dir.join("cgroup.freeze"), "1").expect("own group");
    Some((tree, dir))
}

/// A program that nobody waits for, as far as that can be.
fn unattended() -> Command<'static> {
    let mut command = Command::new("true");
    command.stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null).wait_for_exec(false);
    command
}

/// Before it has left this memory the kernel could find it over its limit, and kill all who share that.
#[test]
fn a_start_into_a_tree_s_cgroup_is_waited_for() {
    isolated!(|| {
        // The first shows what works here.
        assert!(unattended().spawn().expect("starts").wait().expect("own child").success());
        let Some((mut tree, dir)) = frozen() else { return };
        let thawed = spawnfd_tests::scratch();
        let mark = thawed.path().join("thawed");
        let thaws = fork(|| {
            wait_until("there", || !fs::read_to_string(dir.join("cgroup.procs")).expect("own group").is_empty());
            std::thread::sleep(Duration::from_millis(200));
            fs::write(&mark, "").expect("own directory");
            fs::write(dir.join("cgroup.freeze"), "0").expect("own group");
        });
        let mut child = unattended().tree(&tree).spawn().expect("starts");
        assert!(mark.exists(), "it is the program");
        tree.program_started(child.id(), child.as_fd());
        assert!(child.wait().expect("own child").success());
        reap(thaws);
    });
}

#[test]
fn a_start_into_another_cgroup_has_memory_of_its_own_and_holds_nobody_up() {
    isolated!(|| {
        const KCMP_VM: i32 = 1;
        assert!(unattended().spawn().expect("starts").wait().expect("own child").success());
        let Some((tree, dir)) = frozen() else { return };
        let open = || fs::File::open(&dir).expect("own group");
        let mut child = unattended().cgroup(open()).spawn().expect("starts");
        // SAFETY: numbers only.
        let same = unsafe { libc::syscall(libc::SYS_kcmp, libc::getpid(), child.id() as i32, KCMP_VM, 0, 0) };
        assert_ne!(same, 0);
        child.kill().expect("own child");
        let _ = child.wait();
        let run = Run::new().timeout(Duration::from_millis(100)).grace(Duration::ZERO);
        let output = Command::new("true").cgroup(open()).run_with(&run).expect("a result");
        assert_eq!(output.stop, Stop::Timeout);
        if Tree::prepare(Want::Pidns).is_ok() {
            let output = Command::new("true").cgroup(open()).run_with(&run.clone().tree(Want::Pidns));
            assert_eq!(output.expect("a result").stop, Stop::Timeout, "nor where it is born by another");
        }
        drop(tree);
    });
}

#[test]
fn a_program_in_a_pid_namespace_has_its_cgroup() {
    isolated!(|| {
        let Some(group) = Cgroup::new() else { return skip("no writable cgroup v2") };
        if let Err(error) = Tree::prepare(Want::Pidns) {
            return skip(&format!("no pid namespace can be made: {error}"));
        }
        let mut command = Command::new("grep");
        command.args(["0::", "/proc/self/cgroup"]).cgroup(fs::File::open(&group.0).expect("own directory"));
        let output = command.run_with(&Run::new().tree(Want::Pidns)).expect("runs");
        let name = group.0.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(output.text().trim_end().ends_with(&name), "{output:?}");
    });
}

#[test]
fn a_program_is_in_one_cgroup() {
    isolated!(|| {
        let Some((tree, dir)) = frozen() else { return };
        let mut command = unattended();
        let error = command.tree(&tree).umask(0).cgroup(fs::File::open(&dir).expect("own group")).spawn();
        let error = error.expect_err("which of the two?");
        assert_eq!((error.stage(), error.errno()), (Stage::Action(1), Errno::EINVAL));
        assert!(error.call().starts_with("cgroup(") && error.call().ends_with("of a tree or of limits"), "{error}");
    });
}

#[test]
fn a_cgroup_of_the_caller_s_keeps_ours_away() {
    isolated!(|| {
        let Some(group) = Cgroup::new() else { return skip("no writable cgroup v2") };
        let name = group.0.file_name().expect("a name").to_string_lossy().into_owned();
        let run = |run: Run| {
            let mut command = Command::new("grep");
            command.args(["0::", "/proc/self/cgroup"]).cgroup(fs::File::open(&group.0).expect("own directory"));
            command.run_with(&run)
        };
        let time = || Limits::new().cpu_time(Duration::from_secs(1000));
        let chosen =
            [Run::new().tree(Want::Auto), Run::new().limits(time()), Run::new().tree(Want::Auto).limits(time())];
        for chosen in chosen {
            let output = run(chosen).expect("runs");
            assert!(output.text().trim_end().ends_with(&name) && output.tree != Tier::Cgroup, "{output:?}");
            assert!(output.limits.iter().all(|limit| limit.by == Enforcer::Rlimit), "{output:?}");
        }
        for insisted in [Run::new().tree(Want::Cgroup), Run::new().limits(time().enforce(Enforce::Cgroup))] {
            assert_eq!(run(insisted).expect_err("which of the two?").errno(), Errno::EINVAL);
        }
    });
}

#[test]
fn another_namespace_s_proc_is_not_looked_at() {
    isolated!(|| {
        if !require_root() || !has_group_signals() {
            return;
        }
        let made = with_outer_proc_mounted(|| {
            // The guard has its number before.
            let _first = Tree::prepare(Want::Guard).expect("prepared");
            set_next_pid(ROOT_PID);
            let mut sh = start(Want::Guard, "sleep 1000 & echo $!; wait");
            assert_eq!(sh.child.id() as i32, ROOT_PID);
            let sleep = sh.pid();
            let mut strangers = unrelated_processes();
            assert_eq!(sh.survivors(), [0; 0], "nobody is named");
            sh.tree.signal(TERM);
            let _ = sh.tree.kill(Duration::from_millis(10));
            let mut status = 0;
            // SAFETY: stores an int. Orphans come to the first of a namespace.
            let reaped = sh.child.wait().map(|_| unsafe { libc::waitpid(sleep, &raw mut status, 0) });
            assert_eq!(reaped.expect("own child"), sleep);
            assert!(matches!(status, libc::SIGTERM | libc::SIGKILL), "{status:#x}");
            assert!(strangers.iter_mut().all(|one| one.try_wait().expect("own child").is_none()));
            let result = Command::new("sh").args(["-c", "sleep 1000 > /dev/null 2>&1 &"]).run_with(&Run::new());
            let result = result.expect("starts");
            assert!(result.leftovers_unknown && result.leftovers.is_empty());
        });
        if !made {
            skip("no pid namespace may be made");
        }
    });
}

#[test]
fn a_child_of_its_owner_is_left_to_it() {
    isolated!(|| {
        // As a shell makes a pipeline.
        let mut sh = start_command(Want::Guard, |command| {
            command.args(["-c", "sleep 1000 & echo $!; wait"]).process_group(0);
        });
        let root = sh.child.id() as i32;
        let second = fork(|| std::thread::sleep(PATIENCE * 2));
        // SAFETY: numbers of this process's own children.
        assert_eq!(unsafe { libc::setpgid(second, root) }, 0);
        let sleep = sh.pid();
        wait_until("both are seen", || sh.survivors().len() == 2);
        assert!(sh.tree.kill(PATIENCE));
        sh.wait();
        drop(sh.tree);
        assert!(!is_alive(sleep));
        reap(second);
    });
}

#[test]
fn a_daemon_nobody_saw_survives_but_in_a_cgroup() {
    isolated!(|| {
        become_subreaper();
        for want in [Want::Guard, Want::Cgroup] {
            if Tree::prepare(want).is_err() {
                skip("no cgroup can be made");
                continue;
            }
            let mut sh = start(want, "setsid -f sh -c 'echo $$; exec sleep 1000'");
            let daemon = sh.pid();
            sh.wait();
            let survives = want == Want::Guard;
            assert_eq!(sh.survivors(), if survives { vec![] } else { vec![daemon] });
            assert!(sh.tree.kill(PATIENCE));
            assert_eq!(is_alive(daemon), survives, "docs/trees.md says so");
            kill(daemon, libc::SIGKILL);
        }
    });
}

#[test]
fn a_session_made_after_the_birth_is_the_tree_s() {
    isolated!(|| {
        become_subreaper();
        // The program is born into this session, and leaves it by itself; what it leaves behind is in a process group of its own.
        let mut sh = start_command(Want::Guard, |command| {
            command.args(["-c", "exec setsid sh -c 'set -m; sleep 1000 & echo $!'"]);
        });
        let sleep = sh.pid();
        wait_until("ended", || state(sh.child.id() as i32) == 'Z');
        sh.tree.program_ended();
        sh.child.wait().expect("own child");
        assert_eq!(sh.survivors(), [sleep]);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
    });
}

#[test]
fn this_process_s_own_session_and_group_are_spared() {
    isolated!(|| {
        become_subreaper();
        let bystander = fork(|| std::thread::sleep(PATIENCE * 2));
        let mut sh = start_command(Want::Guard, |command| {
            command.args(["-c", "sleep 1000 & echo $!; wait"]);
        });
        let sleep = sh.pid();
        assert_eq!(sh.survivors(), [sleep], "by descent");
        sh.tree.signal(TERM);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep) && is_alive(bystander));
        // The program has gone before its child was seen: then nothing shows whose it is.
        let mut sh = start_command(Want::Guard, |command| {
            command.args(["-c", "sleep 1000 & echo $!"]);
        });
        let sleep = sh.pid();
        sh.wait();
        assert_eq!(sh.survivors(), [0; 0]);
        drop(sh.tree);
        assert!(is_alive(sleep) && is_alive(bystander));
        kill(sleep, libc::SIGKILL);
        // In a group of its own, in this session.
        let mut sh = start_command(Want::Guard, |command| {
            command.args(["-c", "sleep 1000 & echo $!"]).process_group(0);
        });
        let sleep = sh.pid();
        sh.wait();
        let found = if has_group_signals() { vec![sleep] } else { vec![] };
        assert_eq!(sh.survivors(), found);
        drop(sh.tree);
        assert!(is_alive(sleep) == found.is_empty() && is_alive(bystander));
        if is_alive(sleep) {
            kill(sleep, libc::SIGKILL);
        }
        kill(bystander, libc::SIGKILL);
    });
}

/// Calls `body` in a copy of this process, in a session that nobody is in but the copy and one that leads it: the copy can leave it.
fn in_a_session_to_leave(body: impl FnOnce()) {
    common::in_single_threaded_fork(|| {
        // SAFETY: the copy leads no group.
        assert!(unsafe { libc::setsid() } > 0);
        common::in_single_threaded_fork(body);
    });
}

fn leave_session() {
    // SAFETY: a copy leads no group.
    assert!(unsafe { libc::setsid() } > 0);
}

#[test]
fn a_session_this_process_has_left_is_spared() {
    isolated!(|| {
        let run = Run::new().tree(Want::Group);
        in_a_session_to_leave(|| {
            let job = Command::new("/bin/sleep").arg("1000").process_group(0).start(&run).expect("starts");
            let bystander = fork(|| std::thread::sleep(PATIENCE * 2));
            leave_session();
            job.stop(Duration::ZERO);
            assert_eq!(job.wait().expect("own child").signal(), Some(libc::SIGKILL));
            assert!(is_alive(bystander));
            kill(bystander, libc::SIGKILL);
        });
        // The tree is looked at once the program has ended.
        in_a_session_to_leave(|| {
            let bystander = fork(|| std::thread::sleep(PATIENCE * 2));
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "sleep 1000 & read x"]).process_group(0).stdout(Stdio::Null).stderr(Stdio::Null);
            let job = command.start(&run.clone().writable(16)).expect("starts");
            leave_session();
            job.close_stdin();
            let left = &job.wait().expect("own child").leftovers;
            assert_eq!(left.len(), usize::from(has_group_signals()), "{left:?}");
            assert!(is_alive(bystander));
            kill(bystander, libc::SIGKILL);
        });
    });
}

#[test]
fn the_guard_knows_the_session_a_program_was_born_into() {
    isolated!(|| {
        become_subreaper();
        let (owner, mut report) = fork_owner(|tell| {
            let mut tree = Tree::prepare(Want::Guard).expect("prepared");
            leave_session();
            let mut command = Command::new("/bin/sleep");
            let child = command.arg("1000").process_group(0).tree(&tree).spawn().expect("starts");
            tree.program_started(child.id(), child.as_fd());
            tell(child.id() as i32);
            tell(fork(|| std::thread::sleep(PATIENCE * 2)));
            (tree, child)
        });
        let (sleep, bystander) = (next_pid(&mut report), next_pid(&mut report));
        let guard = *wait_for_some(|| guards_of(owner)).first().expect("a guard");
        kill(owner, libc::SIGKILL);
        wait_until_gone(&[sleep, guard]);
        assert!(is_alive(bystander));
        kill(bystander, libc::SIGKILL);
        reap(owner);
    });
}

#[test]
fn a_cgroup_with_groups_inside_is_removed() {
    isolated!(|| {
        become_subreaper();
        let Ok(tree) = Tree::prepare(Want::Cgroup) else { return skip("no cgroup can be made") };
        drop(tree);
        let mut sh = start(Want::Cgroup, "sleep 1000 & echo $!; wait");
        let sleep = sh.pid();
        let own = groups_of(std::process::id() as i32).pop().expect("a cgroup");
        fs::create_dir_all(own.join("a/b")).expect("own directory");
        fs::write(own.join("a/b/cgroup.procs"), sleep.to_string()).expect("own descendant");
        sh.child.kill().expect("own child");
        sh.wait();
        assert_eq!(sh.survivors(), [sleep]);
        drop(sh.tree);
        wait_until_gone(&[sleep]);
        wait_until("removed", || !own.exists());
    });
}

#[test]
fn a_cgroup_left_by_another_process_of_this_number_is_no_obstacle() {
    isolated!(|| {
        let own = std::process::id() as i32;
        let Ok(tree) = Tree::prepare(Want::Cgroup) else { return skip("no cgroup can be made") };
        let dir = groups_of(own).pop().expect("a cgroup");
        drop(tree);
        let left: Vec<PathBuf> = (0..20).map(|number| dir.with_file_name(format!("spawnfd-{own}-{number}"))).collect();
        left.iter().for_each(|dir| fs::create_dir(dir).expect("own directory"));
        let outcomes: Vec<_> = (0..2).map(|_| Tree::prepare(Want::Cgroup).map(drop)).collect();
        left.iter().for_each(|dir| fs::remove_dir(dir).expect("still there"));
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    });
}

#[test]
fn many_trees_at_once() {
    isolated!(|| {
        become_subreaper();
        let mut wants = vec![Want::Guard, Want::Cgroup];
        wants.retain(|&want| Tree::prepare(want).is_ok());
        let before = fs::read_dir("/proc/self/fd").expect("/proc").count();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..common::rounds(100) {
                        let mut sh = start(wants[round % wants.len()], "sleep 1000 & echo $!; [ $# = 0 ]");
                        let sleep = sh.pid();
                        assert!(sh.wait().success());
                        assert_eq!(sh.survivors(), [sleep]);
                        drop(sh.tree);
                        // Dropping waits a second at most.
                        wait_until_gone(&[sleep]);
                    }
                });
            }
        });
        wait_until("no cgroup is left", || groups_of(std::process::id() as i32).is_empty());
        // A stack's slot and its socket or pidfd for each thread that spawned. Under Docker's profile threads that cannot look into the
        // process's parent have a guard each: two descriptors, and two of the reaper's until the guard has ended.
        let after = fs::read_dir("/proc/self/fd").expect("/proc").count();
        assert!(after <= before + 36, "{before} then {after}");
    });
}
