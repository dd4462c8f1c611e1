// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process trees: the library finds, signals and ends every process of a tree, and no other process.

use crate::common;
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::common::Cgroup;
use crate::common::tree::*;
use spawnfd::error::{Errno, Stage};
use spawnfd::job::Stop;
use spawnfd::limits::{Enforce, Enforcer, Limits};
use spawnfd::tree::{Tier, Tree, TreeControl};
use spawnfd::{Command, Run, Stdio};
use spawnfd_tests::{isolated, require_root, skip};

every_tier! {
    a_grandchild_is_found_and_killed: |want| {
        become_subreaper();
        let mut sh = start(want, "sleep 1000 & echo $!; wait");
        let sleep = sh.pid();
        assert_eq!(sh.survivors(), [sleep], "the program itself is not listed");
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep) && !is_alive(sh.child.id() as i32));
        assert_eq!(sh.survivors(), [0; 0]);
    };
    a_leftover_of_the_program_is_named: |want| {
        become_subreaper();
        let mut sh = start(want, "sleep 1000 & echo $!");
        let sleep = sh.pid();
        assert!(sh.wait().success());
        // Between fork and exec, the child still has the name of the shell.
        wait_until("the child has called exec", || sh.tree.survivors().iter().all(|survivor| survivor.name == "sleep"));
        let survivors = sh.tree.survivors();
        assert_eq!(survivors.iter().map(|survivor| (survivor.pid, &*survivor.name)).collect::<Vec<_>>(), [(sleep as u32, "sleep")]);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
    };
    a_background_job_of_a_shell_is_found: |want| {
        become_subreaper();
        // With `set -m` (job control), the background job is in a new process group of the same session.
        let mut sh = start(want, "set -m; sleep 1000 & echo $!");
        let sleep = sh.pid();
        wait_until("the shell has ended", || state(sh.child.id() as i32) == 'Z');
        sh.tree.program_ended();
        sh.wait();
        assert_eq!(sh.survivors(), [sleep]);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
    };
    a_program_without_children_leaves_no_process: |want| {
        let mut sh = start(want, "true | true");
        assert!(sh.wait().success());
        assert_eq!(sh.survivors(), [0; 0]);
        assert!(sh.tree.kill(Duration::ZERO));
    };
    a_daemon_found_earlier_is_killed: |want| {
        become_subreaper();
        // The daemon's parent, a process between the program and the daemon, lives until the library has found the
        // daemon. The test then kills the parent.
        let mut sh = start(want, "setsid sh -c 'sh -c \"sleep 1000 & echo \\$!; exec sleep 1000\" & wait' & wait");
        let daemon = sh.pid();
        wait_until("the daemon is found", || sh.survivors().contains(&daemon));
        for pid in sh.survivors().into_iter().filter(|&pid| pid != daemon) {
            kill(pid, libc::SIGKILL);
        }
        sh.child.kill().expect("own child");
        sh.wait();
        wait_until("only the daemon is left", || sh.survivors() == [daemon]);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(daemon));
    };
    a_tree_that_ignores_sigterm_is_killed: |want| {
        become_subreaper();
        let mut sh = start(want, "trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000");
        let sleep = sh.pid();
        sh.tree.signal(TERM);
        // Both processes ignore SIGTERM, so both are still alive after this delay.
        std::thread::sleep(Duration::from_millis(100));
        assert!(is_alive(sleep) && sh.child.try_wait().expect("own child").is_none());
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep) && !is_alive(sh.child.id() as i32));
    };
    each_process_gets_a_signal_once: |want| {
        become_subreaper();
        let script = "trap 'n=x$n' USR1; echo $$; i=0; while [ \"$n\" = '' ]; do sleep 0.01; done; sleep 0.2; echo ${#n}";
        let mut sh = start(want, &format!("sh -c '{}' & wait", script.replace('\'', "'\\''")));
        let inner = sh.pid();
        // The shell has printed, so its trap is set. Without the trap the signal would kill it.
        assert!(is_alive(inner));
        sh.tree.signal(libc::SIGUSR1);
        assert_eq!(sh.pid(), 1);
    };
    a_stopped_tree_receives_sigterm: |want| {
        become_subreaper();
        let mut sh = start(want, "sleep 1000 & echo $!; kill -STOP $! $$; wait");
        let sleep = sh.pid();
        wait_until("both are stopped", || state(sleep) == 'T' && state(sh.child.id() as i32) == 'T');
        sh.tree.signal(TERM);
        wait_until_gone(&[sleep, sh.child.id() as i32]);
    };
    a_stopped_tree_is_killed: |want| {
        become_subreaper();
        let mut sh = start(want, "sleep 1000 & echo $!; kill -STOP $! $$; wait");
        let sleep = sh.pid();
        wait_until("the child is stopped", || state(sleep) == 'T');
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
    };
    a_fork_bomb_is_killed: |want| {
        if !require_root() {
            // RLIMIT_NPROC counts all processes of a user, those of other programs included.
            return;
        }
        // Each process calls setsid. A process that cannot fork tries again.
        let bomb = "use POSIX; while (1) { my $p = fork; setsid if defined $p and $p == 0; select undef, undef, undef, 0.001 }";
        let many = common::rounds(100);
        let user = 1_000_000_000 + std::process::id();
        let script = format!("exec perl -e '{bomb}'");
        let mut sh = start_command(want, |command| {
            command.args(["-c", &script]).setsid().limit(6, Some(many as u64 * 3 / 2), Some(many as u64 * 3 / 2)).stderr(Stdio::Null).uid(user);
        });
        wait_until("there are many processes", || sh.survivors().len() > many);
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
        // Dropping waits at most one second.
        wait_until_gone(&[sleep]);
        wait_until("no cgroup is left", || groups_of(std::process::id() as i32).is_empty());
    };
}

every_tier_of_own_children! {
    orphans_of_a_subreaper_host_are_reaped: |want| {
        become_subreaper();
        // The tree has two processes that the library must kill, one of them in another session. A third ends by
        // itself.
        let mut sh = start(want, &format!("setsid sleep 1000 & echo $!; sleep 1000 & echo $!; {LEAVES_A_ZOMBIE}"));
        let [in_session, sleep, ended] = [sh.pid(), sh.pid(), sh.pid()];
        wait_until("the process in the other session is found", || sh.survivors().contains(&in_session));
        wait_until("the third process has ended", || state(ended) == 'Z');
        let own = fork(|| ());
        sh.child.kill().expect("own child");
        sh.wait();
        assert!(exists(ended) && is_alive(in_session) && is_alive(sleep));
        // Dropping waits at most one second.
        assert!(sh.tree.kill(PATIENCE));
        drop(sh.tree);
        assert!(![in_session, sleep, ended].into_iter().any(exists));
        reap(own);
    };
    an_ended_process_is_reaped_on_detach: |want| {
        become_subreaper();
        let mut sh = start(want, &format!("sleep 1000 & echo $!; {LEAVES_A_ZOMBIE}"));
        let [sleep, ended] = [sh.pid(), sh.pid()];
        wait_until("the second process has ended", || state(ended) == 'Z');
        sh.child.kill().expect("own child");
        sh.wait();
        assert_eq!(sh.survivors(), [sleep]);
        sh.tree.detach();
        assert!(is_alive(sleep) && !exists(ended));
        kill(sleep, libc::SIGKILL);
        reap(sleep);
    };
}

/// A program that starts a child, prints the child's pid and never reaps it. The child ends at once. The program is
/// perl(1), because a shell would reap the child.
const LEAVES_A_ZOMBIE: &str = r#"exec perl -e '$| = 1; my $p = fork; exit unless $p; print "$p\n"; sleep 1000'"#;

/// Returns whether a process exists, running or not yet reaped.
fn exists(pid: i32) -> bool {
    fs::exists(format!("/proc/{pid}")).expect("/proc")
}

#[test]
fn the_process_group_is_killed_without_proc() {
    isolated!(|| {
        if !require_root() || !has_group_signals() {
            return;
        }
        become_subreaper();
        // SAFETY: the calls read C strings and null pointers, and change only the mounts of this process.
        unsafe {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                return skip("cannot create a mount namespace");
            }
            let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
            assert_eq!(libc::mount(none, c"/".as_ptr(), none, private, std::ptr::null()), 0);
            assert_eq!(libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH), 0);
        }
        for ends in ["exit", "wait"] {
            let mut sh = start(TreeControl::Guard, &format!("sleep 1000 & echo $!; {ends}"));
            let sleep = sh.pid();
            match ends {
                "exit" => assert!(sh.wait().success()),
                _ => sh.tree.signal(TERM),
            }
            drop(sh.tree);
            let _ = sh.child.wait();
            let mut status = 0;
            // The shell may have reaped its child before its own end; waitpid then fails.
            // SAFETY: waitpid stores an int, and signal 0 has no effect.
            let (reaped, left) = unsafe { (libc::waitpid(sleep, &raw mut status, 0), libc::kill(sleep, 0)) };
            assert!(reaped == sleep || left == -1, "{reaped} {left}");
            assert!(reaped == -1 || matches!(status, libc::SIGTERM | libc::SIGKILL), "{status:#x}");
        }
    });
}

/// A tree's cgroup, frozen: no process in it runs until it is thawed. Returns the tree and the cgroup's directory.
fn frozen_cgroup() -> Option<(Tree, PathBuf)> {
    let Ok(tree) = Tree::prepare(TreeControl::Cgroup) else {
        skip("cannot create a cgroup");
        return None;
    };
    let dir = groups_of(std::process::id() as i32).pop().expect("made");
    fs::write(dir.join("cgroup.freeze"), "1").expect("own group");
    Some((tree, dir))
}

/// Returns a command that does not wait for exec, if the library can start it in this way.
fn detached() -> Command<'static> {
    let mut command = Command::new("true");
    command.stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null).wait_for_exec(false);
    command
}

/// Until exec, a child may share the memory of this process. If such a child exceeded the memory limit of the cgroup,
/// the kernel would kill every process that shares the memory. So a start into a cgroup waits for exec.
#[test]
fn a_start_into_a_trees_cgroup_waits_for_exec() {
    isolated!(|| {
        // At the first start, the library learns which features work here.
        assert!(detached().spawn().expect("starts").wait().expect("own child").success());
        let Some((mut tree, dir)) = frozen_cgroup() else { return };
        let thawed = spawnfd_tests::scratch();
        let mark = thawed.path().join("thawed");
        let thaws = fork(|| {
            wait_until("the child is in the cgroup", || {
                !fs::read_to_string(dir.join("cgroup.procs")).expect("own group").is_empty()
            });
            std::thread::sleep(Duration::from_millis(200));
            fs::write(&mark, "").expect("own directory");
            fs::write(dir.join("cgroup.freeze"), "0").expect("own group");
        });
        let mut child = detached().tree(&tree).spawn().expect("starts");
        assert!(mark.exists(), "spawn has waited until the cgroup was thawed");
        tree.program_started(child.id(), child.as_fd());
        assert!(child.wait().expect("own child").success());
        reap(thaws);
    });
}

#[test]
fn a_start_into_another_cgroup_does_not_share_memory_or_block() {
    isolated!(|| {
        const KCMP_VM: i32 = 1;
        assert!(detached().spawn().expect("starts").wait().expect("own child").success());
        let Some((tree, dir)) = frozen_cgroup() else { return };
        let open = || fs::File::open(&dir).expect("own group");
        let mut child = detached().cgroup(open()).spawn().expect("starts");
        // SAFETY: kcmp takes integers and changes nothing.
        let same = unsafe { libc::syscall(libc::SYS_kcmp, libc::getpid(), child.id() as i32, KCMP_VM, 0, 0) };
        assert_ne!(same, 0);
        child.kill().expect("own child");
        let _ = child.wait();
        let run = Run::new().timeout(Duration::from_millis(100)).grace(Duration::ZERO);
        let output = Command::new("true").cgroup(open()).run_with(&run).expect("a result");
        assert_eq!(output.stop, Stop::Timeout);
        if Tree::prepare(TreeControl::Pidns).is_ok() {
            let output = Command::new("true").cgroup(open()).run_with(&run.clone().tree(TreeControl::Pidns));
            assert_eq!(output.expect("a result").stop, Stop::Timeout, "also if the init of a pid namespace forks it");
        }
        drop(tree);
    });
}

#[test]
fn a_program_in_a_pid_namespace_is_in_its_cgroup() {
    isolated!(|| {
        let Some(group) = Cgroup::new() else { return skip("no writable cgroup v2") };
        if let Err(error) = Tree::prepare(TreeControl::Pidns) {
            return skip(&format!("cannot create a pid namespace: {error}"));
        }
        let mut command = Command::new("grep");
        command.args(["0::", "/proc/self/cgroup"]).cgroup(fs::File::open(&group.0).expect("own directory"));
        let output = command.run_with(&Run::new().tree(TreeControl::Pidns)).expect("runs");
        let name = group.0.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(output.stdout_text().trim_end().ends_with(&name), "{output:?}");
    });
}

#[test]
fn a_command_with_two_cgroups_is_refused() {
    isolated!(|| {
        let Some((tree, dir)) = frozen_cgroup() else { return };
        let mut command = detached();
        let error = command.tree(&tree).umask(0).cgroup(fs::File::open(&dir).expect("own group")).spawn();
        let error = error.expect_err("two cgroups");
        assert_eq!((error.stage(), error.errno()), (Stage::Action(1), Errno::EINVAL));
        assert!(error.call().starts_with("cgroup(") && error.call().ends_with("of a tree or of limits"), "{error}");
    });
}

#[test]
fn a_callers_cgroup_replaces_the_trees() {
    isolated!(|| {
        let Some(group) = Cgroup::new() else { return skip("no writable cgroup v2") };
        let name = group.0.file_name().expect("a name").to_string_lossy().into_owned();
        let run = |run: Run| {
            let mut command = Command::new("grep");
            command.args(["0::", "/proc/self/cgroup"]).cgroup(fs::File::open(&group.0).expect("own directory"));
            command.run_with(&run)
        };
        let time = || Limits::new().cpu_time(Duration::from_secs(1000));
        let chosen = [
            Run::new().tree(TreeControl::Auto),
            Run::new().limits(time()),
            Run::new().tree(TreeControl::Auto).limits(time()),
        ];
        for chosen in chosen {
            let output = run(chosen).expect("runs");
            assert!(output.stdout_text().trim_end().ends_with(&name) && output.tree != Tier::Cgroup, "{output:?}");
            assert!(output.limits.iter().all(|limit| limit.by == Enforcer::Rlimit), "{output:?}");
        }
        for insisted in [Run::new().tree(TreeControl::Cgroup), Run::new().limits(time().enforce(Enforce::Cgroup))] {
            assert_eq!(run(insisted).expect_err("two cgroups").errno(), Errno::EINVAL);
        }
    });
}

#[test]
fn the_proc_of_another_namespace_is_ignored() {
    isolated!(|| {
        if !require_root() || !has_group_signals() {
            return;
        }
        let made = with_outer_proc_mounted(|| {
            // This tree starts the guard (the helper process), so that the guard does not take the pid of the
            // program.
            let _first = Tree::prepare(TreeControl::Guard).expect("prepared");
            set_next_pid(ROOT_PID);
            let mut sh = start(TreeControl::Guard, "sleep 1000 & echo $!; wait");
            assert_eq!(sh.child.id() as i32, ROOT_PID);
            let sleep = sh.pid();
            let mut strangers = unrelated_processes();
            assert_eq!(sh.survivors(), [0; 0], "no process of the outer namespace is named");
            sh.tree.signal(TERM);
            let _ = sh.tree.kill(Duration::from_millis(10));
            let mut status = 0;
            // This process is pid 1 of its namespace, so the kernel has reparented the orphan to it.
            // SAFETY: waitpid stores an int.
            let reaped = sh.child.wait().map(|_| unsafe { libc::waitpid(sleep, &raw mut status, 0) });
            assert_eq!(reaped.expect("own child"), sleep);
            assert!(matches!(status, libc::SIGTERM | libc::SIGKILL), "{status:#x}");
            assert!(strangers.iter_mut().all(|one| one.try_wait().expect("own child").is_none()));
            let result = Command::new("sh").args(["-c", "sleep 1000 > /dev/null 2>&1 &"]).run_with(&Run::new());
            let result = result.expect("starts");
            assert!(result.leftovers_unknown && result.leftovers.is_empty());
        });
        if !made {
            skip("cannot create a pid namespace");
        }
    });
}

#[test]
fn another_child_of_the_owner_is_spared() {
    isolated!(|| {
        // The owner puts another child into the program's process group, as a shell does in a
        // pipeline.
        let mut sh = start_command(TreeControl::Guard, |command| {
            command.args(["-c", "sleep 1000 & echo $!; wait"]).process_group(0);
        });
        let root = sh.child.id() as i32;
        let second = fork(|| std::thread::sleep(PATIENCE * 2));
        // SAFETY: setpgid takes integers, the pids of two children of this process.
        assert_eq!(unsafe { libc::setpgid(second, root) }, 0);
        let sleep = sh.pid();
        wait_until("both are found", || sh.survivors().len() == 2);
        assert!(sh.tree.kill(PATIENCE));
        sh.wait();
        drop(sh.tree);
        assert!(!is_alive(sleep));
        reap(second);
    });
}

#[test]
fn an_unseen_daemon_survives_except_in_a_cgroup() {
    isolated!(|| {
        become_subreaper();
        for want in [TreeControl::Guard, TreeControl::Cgroup] {
            if Tree::prepare(want).is_err() {
                skip("cannot create a cgroup");
                continue;
            }
            let mut sh = start(want, "setsid -f sh -c 'echo $$; exec sleep 1000'");
            let daemon = sh.pid();
            sh.wait();
            let survives = want == TreeControl::Guard;
            assert_eq!(sh.survivors(), if survives { vec![] } else { vec![daemon] });
            assert!(sh.tree.kill(PATIENCE));
            assert_eq!(is_alive(daemon), survives, "as docs/trees.md says");
            kill(daemon, libc::SIGKILL);
        }
    });
}

#[test]
fn a_session_that_the_program_creates_belongs_to_the_tree() {
    isolated!(|| {
        become_subreaper();
        // The program starts in the session of this process, and then creates a new session. It leaves a process
        // behind in a new process group of that session.
        let mut sh = start_command(TreeControl::Guard, |command| {
            command.args(["-c", "exec setsid sh -c 'set -m; sleep 1000 & echo $!'"]);
        });
        let sleep = sh.pid();
        wait_until("the program has ended", || state(sh.child.id() as i32) == 'Z');
        sh.tree.program_ended();
        sh.child.wait().expect("own child");
        assert_eq!(sh.survivors(), [sleep]);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
    });
}

#[test]
fn the_owners_session_and_group_are_spared() {
    isolated!(|| {
        become_subreaper();
        let bystander = fork(|| std::thread::sleep(PATIENCE * 2));
        let mut sh = start_command(TreeControl::Guard, |command| {
            command.args(["-c", "sleep 1000 & echo $!; wait"]);
        });
        let sleep = sh.pid();
        assert_eq!(sh.survivors(), [sleep], "found by descent");
        sh.tree.signal(TERM);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep) && is_alive(bystander));
        // The program ends before the library has found its child. The library then cannot know that the child
        // belongs to the tree, so the child must survive.
        let mut sh = start_command(TreeControl::Guard, |command| {
            command.args(["-c", "sleep 1000 & echo $!"]);
        });
        let sleep = sh.pid();
        sh.wait();
        assert_eq!(sh.survivors(), [0; 0]);
        drop(sh.tree);
        assert!(is_alive(sleep) && is_alive(bystander));
        kill(sleep, libc::SIGKILL);
        // Now the program starts in a new process group of the session of this process.
        let mut sh = start_command(TreeControl::Guard, |command| {
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

/// Calls `body` in a forked child whose session contains only the child and a leader, so the child can leave the
/// session.
fn in_shared_session(body: impl FnOnce()) {
    common::in_single_threaded_fork(|| {
        // SAFETY: setsid takes no arguments. The forked child leads no process group, so the call succeeds.
        assert!(unsafe { libc::setsid() } > 0);
        common::in_single_threaded_fork(body);
    });
}

fn leave_session() {
    // SAFETY: setsid takes no arguments. A forked child leads no process group, so the call succeeds.
    assert!(unsafe { libc::setsid() } > 0);
}

#[test]
fn a_session_that_the_owner_has_left_is_spared() {
    isolated!(|| {
        let run = Run::new().tree(TreeControl::Group);
        in_shared_session(|| {
            let job = Command::new("/bin/sleep").arg("1000").process_group(0).start(&run).expect("starts");
            let bystander = fork(|| std::thread::sleep(PATIENCE * 2));
            leave_session();
            job.stop(Duration::ZERO);
            assert_eq!(job.wait().expect("own child").signal(), Some(libc::SIGKILL));
            assert!(is_alive(bystander));
            kill(bystander, libc::SIGKILL);
        });
        // Here the library searches the tree only after the program has ended.
        in_shared_session(|| {
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
fn the_guard_spares_the_session_a_program_started_in() {
    isolated!(|| {
        become_subreaper();
        let (owner, mut report) = fork_owner(|tell| {
            let mut tree = Tree::prepare(TreeControl::Guard).expect("prepared");
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
fn a_cgroup_with_nested_groups_is_removed() {
    isolated!(|| {
        become_subreaper();
        let Ok(tree) = Tree::prepare(TreeControl::Cgroup) else { return skip("cannot create a cgroup") };
        drop(tree);
        let mut sh = start(TreeControl::Cgroup, "sleep 1000 & echo $!; wait");
        let sleep = sh.pid();
        let own = groups_of(std::process::id() as i32).pop().expect("a cgroup");
        fs::create_dir_all(own.join("a/b")).expect("own directory");
        fs::write(own.join("a/b/cgroup.procs"), sleep.to_string()).expect("own descendant");
        sh.child.kill().expect("own child");
        sh.wait();
        assert_eq!(sh.survivors(), [sleep]);
        drop(sh.tree);
        wait_until_gone(&[sleep]);
        wait_until("the cgroup is removed", || !own.exists());
    });
}

#[test]
fn a_stale_cgroup_of_the_same_pid_is_skipped() {
    isolated!(|| {
        let own = std::process::id() as i32;
        let Ok(tree) = Tree::prepare(TreeControl::Cgroup) else { return skip("cannot create a cgroup") };
        let dir = groups_of(own).pop().expect("a cgroup");
        drop(tree);
        let left: Vec<PathBuf> = (0..20).map(|number| dir.with_file_name(format!("spawnfd-{own}-{number}"))).collect();
        left.iter().for_each(|dir| fs::create_dir(dir).expect("own directory"));
        let outcomes: Vec<_> = (0..2).map(|_| Tree::prepare(TreeControl::Cgroup).map(drop)).collect();
        left.iter().for_each(|dir| fs::remove_dir(dir).expect("still there"));
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    });
}

#[test]
fn many_trees_at_once_keep_few_descriptors() {
    isolated!(|| {
        become_subreaper();
        let mut wants = vec![TreeControl::Guard, TreeControl::Cgroup];
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
                        // Dropping waits at most one second.
                        wait_until_gone(&[sleep]);
                    }
                });
            }
        });
        wait_until("no cgroup is left", || groups_of(std::process::id() as i32).is_empty());
        // For each thread that spawned, the library keeps a stack slot, with a socket or a pidfd. Under Docker's
        // profile, a thread that cannot read the parent of this process gets its own guard. Such a guard takes two
        // descriptors, and until it has ended the reaper thread has two more.
        let after = fs::read_dir("/proc/self/fd").expect("/proc").count();
        assert!(after <= before + 36, "{before} then {after}");
    });
}
