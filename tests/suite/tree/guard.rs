// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree ends when its owner dies. The guard, the helper process that then kills the tree, does not disturb the
//! owner.

use crate::common;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::Duration;

use crate::common::tree::*;
use spawnfd::Command;
use spawnfd::error::{Errno, Stage};
use spawnfd::tree::{Tier, Tree, TreeControl};
use spawnfd_tests::{confine, isolated, require_root, skip};

every_tier! {
    a_detached_process_lives_on: |want| {
        become_subreaper();
        let (owner, mut report) = fork_owner(|tell| {
            let mut sh = start(want, "sleep 1000 & echo $!");
            let sleep = sh.pid();
            sh.wait();
            assert_eq!(sh.survivors(), [sleep]);
            sh.tree.detach();
            // Because this other tree exists, the guard goes on running.
            let other = start(want, "sleep 1000");
            tell(sleep);
            tell(other.child.id() as i32);
            other
        });
        let (sleep, other) = (next_pid(&mut report), next_pid(&mut report));
        let guard = *wait_for_some(|| guards_of(owner)).first().expect("a guard");
        kill(owner, libc::SIGKILL);
        wait_until_gone(&[guard, other]);
        assert!(is_alive(sleep), "the detached process lives on");
        assert_eq!(groups_of(owner), Vec::<PathBuf>::new());
        kill(sleep, libc::SIGKILL);
    };
    the_tree_ends_with_its_owner: |want| {
        become_subreaper();
        let (owner, mut report) = fork_owner(|tell| {
            // Four trees: a running program; a leftover of an ended program; a stopped program that ignores signals;
            // a process in a session of its own.
            let mut trees = [
                start(want, "sleep 1000 & echo $!; wait"),
                start(want, "sleep 0.05; sleep 1000 & echo $!"),
                start(want, "trap '' TERM HUP INT; (trap '' TERM; sleep 1000) & echo $!; kill -STOP $$"),
                start(want, "setsid sh -c 'echo $$; exec sleep 1000' & wait"),
            ];
            for tree in &mut trees {
                tell(tree.pid());
                tell(tree.child.id() as i32);
                tree.survivors();
            }
            trees[1].wait();
            tell(0);
            trees
        });
        let pids: Vec<i32> = std::iter::from_fn(|| Some(next_pid(&mut report)).filter(|&pid| pid != 0)).collect();
        assert_eq!(pids.len(), 8);
        let guard = *wait_for_some(|| guards_of(owner)).first().expect("a guard");
        if want == TreeControl::Cgroup {
            assert_eq!(groups_of(owner).len(), 4);
        }
        kill(owner, libc::SIGKILL);
        let took = wait_until_gone(&pids);
        assert!(took < Duration::from_secs(20), "{took:?}");
        wait_until_gone(&[guard]);
        assert_eq!(groups_of(owner), Vec::<PathBuf>::new());
        reap(owner);
    };
    a_tree_without_a_program_leaves_nothing: |want| {
        become_subreaper();
        drop(Tree::prepare(want).expect("prepared"));
        assert_eq!(groups_of(std::process::id() as i32), Vec::<PathBuf>::new());
        let (owner, mut report) = fork_owner(|tell| {
            let tree = Tree::prepare(want).expect("prepared");
            tell(0);
            tree
        });
        assert_eq!(next_pid(&mut report), 0);
        let guard = guards_of(owner);
        assert_eq!((guard.len(), groups_of(owner).len()), (1, usize::from(want == TreeControl::Cgroup)));
        kill(owner, libc::SIGKILL);
        wait_until_gone(&guard);
        assert_eq!(groups_of(owner), Vec::<PathBuf>::new());
    };
    a_fork_of_the_owner_does_not_keep_the_tree_alive: |want| {
        become_subreaper();
        let (owner, mut report) = fork_owner(|tell| {
            let mut sh = start(want, "sleep 1000 & echo $!; wait");
            tell(sh.pid());
            let copy = fork(|| std::thread::sleep(PATIENCE * 2));
            tell(copy);
            sh
        });
        let (sleep, copy) = (next_pid(&mut report), next_pid(&mut report));
        kill(owner, libc::SIGKILL);
        wait_until_gone(&[sleep]);
        assert!(is_alive(copy));
        kill(copy, libc::SIGKILL);
    };
    a_fork_of_the_owner_cannot_change_the_tree: |want| {
        become_subreaper();
        let mut sh = Some(start(want, "sleep 1000 & echo $!; wait"));
        let sleep = sh.as_mut().expect("started").pid();
        reap(fork(|| drop(sh.take())));
        reap(fork(|| sh.take().expect("a copy").tree.detach()));
        reap(fork(|| {
            let mut sh = sh.take().expect("a copy");
            assert!(sh.tree.kill(PATIENCE) && sh.survivors().is_empty());
        }));
        let sh = sh.as_mut().expect("this process's");
        assert_eq!(sh.survivors(), [sleep]);
        assert_eq!(groups_of(std::process::id() as i32).len(), usize::from(want == TreeControl::Cgroup));
        // The forked children have dropped, detached or killed their copies of the tree. This must not tell the guard
        // that the tree has ended.
        std::thread::sleep(Duration::from_millis(1500));
        own_guard();
        assert!(sh.tree.kill(PATIENCE));
    };
    a_tree_works_with_sigchld_ignored: |want| {
        if want == TreeControl::Guard && !has_group_signals() {
            return skip("needs PIDFD_SIGNAL_PROCESS_GROUP");
        }
        become_subreaper();
        // SAFETY: SIG_IGN installs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let mut sh = start(want, "sleep 1000 & echo $!; exec >&-; read x");
        let sleep = sh.pid();
        let program = sh.child.id();
        wait_until("reaped by the kernel", || !std::path::Path::new(&format!("/proc/{program}")).exists());
        assert_eq!(sh.survivors(), [sleep]);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
        drop(sh);
        wait_until("the guard leaves no zombie", || guards_of(std::process::id() as i32).is_empty());
    };
    the_guard_ends_after_the_last_tree: |want| {
        let sh = start(want, "exit");
        let guard = own_guard();
        drop(sh);
        wait_until("the guard has ended and is reaped", || !std::path::Path::new(&format!("/proc/{guard}")).exists());
        wait_until("the guard's thread has ended", || fs::read_dir("/proc/self/task").expect("/proc").count() == 2);
        // The next tree gets a new guard.
        let mut sh = start(want, "sleep 1000");
        assert_ne!(own_guard(), guard);
        assert!(sh.tree.kill(PATIENCE));
    };
    a_guard_that_is_killed_is_replaced: |want| {
        become_subreaper();
        let (owner, mut report) = fork_owner(|tell| {
            let mut one = start(want, "sleep 1000 & echo $!; wait");
            tell(one.pid());
            let guard = own_guard();
            kill(guard, libc::SIGKILL);
            wait_until_gone(&[guard]);
            let mut other = start(want, "sleep 1000 & echo $!; wait");
            tell(other.pid());
            assert_ne!(own_guard(), guard);
            (one, other)
        });
        let (one, other) = (next_pid(&mut report), next_pid(&mut report));
        kill(owner, libc::SIGKILL);
        wait_until_gone(&[one, other]);
        reap(owner);
    };
}

every_tier_of_own_children! {
    a_tree_works_after_a_foreign_reap: |want| {
        if want == TreeControl::Guard && !has_group_signals() {
            return skip("needs PIDFD_SIGNAL_PROCESS_GROUP");
        }
        become_subreaper();
        let mut sh = start(want, "sleep 1000 & echo $!");
        let (sleep, program) = (sh.pid(), sh.child.id() as i32);
        // SAFETY: waitpid stores no status.
        wait_until("reaped", || unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } == program);
        assert_eq!(sh.survivors(), [sleep]);
        assert!(sh.tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
    };
}

/// Reaps all children of this process, orphans included, until none is left. Fails if a process lives on.
#[track_caller]
fn wait_until_childless() {
    wait_until("no process is left", || {
        loop {
            // SAFETY: waitpid stores no status.
            match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG | libc::__WALL) } {
                // A call that reaps nothing leaves the last error number unchanged.
                0 => return false,
                -1 => return std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD),
                _ => {}
            }
        }
    });
}

#[test]
fn the_guard_ignores_the_proc_of_another_namespace() {
    isolated!(|| {
        if !require_root() || !has_group_signals() {
            return;
        }
        let made = with_outer_proc_mounted(|| {
            let (owner, mut report) = fork_owner(|tell| {
                let first = Tree::prepare(TreeControl::Guard).expect("prepared");
                set_next_pid(ROOT_PID);
                let mut sh = start(TreeControl::Guard, "sleep 1000 & echo $!; wait");
                tell(sh.child.id() as i32);
                tell(sh.pid());
                (first, sh)
            });
            let (sh, sleep) = (next_pid(&mut report), next_pid(&mut report));
            assert_eq!(sh, ROOT_PID);
            let strangers = unrelated_processes();
            kill(owner, libc::SIGKILL);
            // This process is pid 1 of its namespace, so the kernel reparents orphans to it. It reaps four processes:
            // the shell, the shell's child, the owner and the guard.
            let mut status = 0;
            // SAFETY: waitpid stores an int.
            let ended: Vec<i32> = (0..4).map(|_| unsafe { libc::waitpid(-1, &raw mut status, 0) }).collect();
            assert!(ended.contains(&sh) && ended.contains(&sleep) && ended.contains(&owner), "{ended:?}");
            assert!(strangers.iter().all(|one| !ended.contains(&(one.id() as i32))), "{ended:?}");
        });
        if !made {
            skip("cannot create a pid namespace");
        }
    });
}

#[test]
fn killing_an_owner_during_a_start_leaves_no_process() {
    isolated!(|| {
        become_subreaper();
        let dir = spawnfd_tests::scratch();
        let fifo = dir.path().join("fifo");
        let path = std::ffi::CString::new(fifo.to_str().expect("UTF-8")).expect("no NUL");
        // SAFETY: mkfifo reads a C string.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
        for (wait, clone3) in [(true, true), (false, true), (true, false), (false, false)] {
            let (owner, mut report) = fork_owner(|tell| {
                if !clone3 {
                    confine::deny(&[("clone3", libc::ENOSYS)]).expect("confined");
                }
                // The owner starts a first program, because the library detaches only once it knows that this works.
                Command::new("/bin/true").start(&spawnfd::Run::new()).and_then(|job| job.wait()).expect("runs");
                let tree = Tree::prepare(TreeControl::Guard).expect("a guard");
                let mut command = Command::new("/bin/true");
                command.stdin(spawnfd::Stdio::Null).stdout(spawnfd::Stdio::Null).stderr(spawnfd::Stdio::Null);
                // No process writes to the FIFO, so the child blocks in this action.
                command.setsid().open(&fifo, spawnfd::command::OpenHow::READ, 3).tree(&tree).wait_for_exec(wait);
                tell(own_guard());
                let child = command.spawn();
                std::thread::sleep(PATIENCE * 2);
                (tree, child)
            });
            let guard = next_pid(&mut report);
            let children = || fs::read_to_string(format!("/proc/{owner}/task/{owner}/children")).unwrap_or_default();
            let child = || children().split_whitespace().filter_map(|pid| pid.parse().ok()).find(|&pid| pid != guard);
            wait_until("the child exists", || {
                child().is_some_and(|pid: i32| state(pid) == 'S' && is_in_session_of_its_own(pid))
            });
            kill(owner, libc::SIGKILL);
            wait_until_childless();
        }
    });
}

fn is_in_session_of_its_own(pid: i32) -> bool {
    // SAFETY: getsid takes an integer and changes nothing.
    unsafe { libc::getsid(pid) == pid }
}

#[test]
fn start_times_identify_programs_without_pidfd_inodes() {
    isolated!(|| {
        become_subreaper();
        let (owner, mut report) = fork_owner(|tell| {
            confine::deny(&[("fstatfs", libc::ENOSYS)]).expect("confined");
            let mut sh = start(TreeControl::Guard, "setsid sh -c 'echo $$; exec sleep 1000' & wait");
            tell(sh.pid());
            tell(sh.child.id() as i32);
            // The library has not searched the tree yet. The guard finds the process in the other session by its
            // parent, and the parent by its pid.
            sh
        });
        let pids = [next_pid(&mut report), next_pid(&mut report)];
        kill(owner, libc::SIGKILL);
        wait_until_gone(&pids);
        wait_until_childless();
    });
}

#[test]
fn killing_an_owner_at_any_moment_leaves_no_process() {
    isolated!(|| {
        become_subreaper();
        for round in 0..common::rounds(300) {
            let (owner, mut report) = fork_owner(|tell| {
                let run = spawnfd::Run::new().tree(TreeControl::Guard);
                let mut sh = Command::new("/bin/sh");
                sh.args(["-c", "sleep 1000 & sleep 1000"]);
                let mut jobs = vec![sh.start(&run).expect("starts")];
                tell(0);
                for number in 0..20 {
                    let mut sleep = Command::new("/bin/sleep");
                    sleep.arg("1000");
                    match number % 2 {
                        0 => jobs.push(sleep.start(&run).expect("starts")),
                        // The owner starts a blocking run in this thread, and waits for it.
                        _ => drop(sleep.run_with(&run.clone().timeout(Duration::ZERO).grace(Duration::ZERO))),
                    }
                }
                jobs
            });
            assert_eq!(next_pid(&mut report), 0);
            std::thread::sleep(Duration::from_micros(round as u64 * 37 % 4000));
            kill(owner, libc::SIGKILL);
            wait_until_childless();
        }
    });
}

#[test]
fn reused_guard_descriptors_are_left_alone() {
    isolated!(|| {
        let file = fs::File::open("/proc/self/status").expect("it exists");
        let first = start(TreeControl::Guard, "exec sleep 1000");
        let guard = own_guard();
        let is_guard_s = |number: &i32| {
            let read = |dir: &str| fs::read_to_string(format!("/proc/self/{dir}/{number}")).unwrap_or_default();
            let target = fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
            target.to_string_lossy().contains("spawnfd-trees")
                || read("fdinfo").lines().any(|line| line.split_whitespace().eq(["Pid:", &guard.to_string()]))
        };
        let numbers: Vec<i32> = (3..1000).filter(is_guard_s).collect();
        assert_eq!(numbers.len(), 2);
        let put = || {
            for &number in &numbers {
                // An application may reuse any number in this way, so the library must cope with it.
                // SAFETY: dup2 takes integers, and no other thread uses descriptors here.
                assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
            }
        };
        let stays = || {
            let are = numbers.iter().map(|number| fs::read_link(format!("/proc/self/fd/{number}")).expect("open"));
            are.for_each(|target| assert!(target.ends_with("status"), "{target:?}"));
        };
        put();
        // poll reports the file as readable, as it reports the pidfd of an ended guard. The library
        // must not take the file for that pidfd.
        let second = start(TreeControl::Guard, "exec sleep 1000");
        assert_eq!(own_guard(), guard);
        stays();
        // A new guard cannot get the old table, so it has a table of its own.
        kill(guard, libc::SIGKILL);
        wait_until("the guard has ended", || !is_alive(guard));
        let third = start(TreeControl::Guard, "exec sleep 1000");
        wait_until("the guard is reaped", || !fs::exists(format!("/proc/{guard}")).expect("/proc"));
        assert_ne!(own_guard(), guard);
        for tree in [first, second, third] {
            drop(tree);
            stays();
        }
        wait_until("no guard is left", || guards_of(std::process::id() as i32).is_empty());
        stays();
    });
}

#[test]
fn the_guard_inherits_nothing_from_its_host() {
    isolated!(|| {
        // The application has an inheritable descriptor.
        let file = fs::File::open("/dev/null").expect("/dev/null");
        // SAFETY: dup takes an integer; the duplicate is inheritable and is never closed.
        assert!(unsafe { libc::dup(std::os::fd::AsRawFd::as_raw_fd(&file)) } > 2);
        let mut sh = start(TreeControl::Guard, "sleep 1000");
        let guard = own_guard();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE, libc::SIGTSTP] {
            kill(guard, signal);
        }
        let stat = fs::read_to_string(format!("/proc/{guard}/stat")).expect("the guard runs");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("a line").split_whitespace().collect();
        assert_eq!(fields[2..4], [&*guard.to_string(), &*guard.to_string()], "a session of its own");
        let name = fs::read_to_string(format!("/proc/{guard}/comm")).expect("the guard runs");
        assert_eq!(name, "spawnfd-guard\n");
        std::thread::sleep(Duration::from_millis(50));
        assert!(is_alive(guard) && state(guard) != 'T');
        let link = |path: &str| fs::read_link(format!("/proc/{guard}/{path}"));
        let Ok(first) = link("fd/0") else {
            // The guard is not dumpable, so its own user cannot inspect or trace it.
            assert!(link("exe").is_err());
            return;
        };
        assert!(first.to_string_lossy().contains("pidfd"));
        // Besides the owner's pidfd, the guard has a pidfd of its second process, and a signalfd.
        let fds = fs::read_dir(format!("/proc/{guard}/fd")).expect("root can read it");
        let link_of = |fd: std::io::Result<fs::DirEntry>| fs::read_link(fd.expect("an entry").path()).expect("open");
        let fds: Vec<PathBuf> = fds.map(link_of).collect();
        assert!(fds.len() <= 3 && fds.iter().all(|fd| fd.to_string_lossy().starts_with("anon_inode:")), "{fds:?}");
        assert_eq!(link("cwd").expect("root can read it"), PathBuf::from("/"));
        assert_eq!(fs::read(format!("/proc/{guard}/environ")).expect("root can read it"), b"");
        assert!(sh.tree.kill(PATIENCE));
    });
}

#[test]
fn the_guard_starts_without_executable_memfds() {
    isolated!(|| {
        common::deny_executable_memory();
        let mut sh = start(TreeControl::Guard, "sleep 1000");
        let image = fs::read_link(format!("/proc/{}/exe", own_guard()));
        assert!(image.is_err() || !image.expect("readable").starts_with("/memfd:"));
        assert!(sh.tree.kill(PATIENCE));
    });
}

#[test]
fn auto_falls_back_to_the_process_group_without_a_guard() {
    isolated!(|| {
        become_subreaper();
        confine::deny(&[("memfd_create", libc::ENOSYS)]).expect("confined");
        let error = Tree::prepare(TreeControl::Guard).expect_err("no guard");
        assert_eq!((error.stage(), error.errno(), error.call()), (Stage::Tree, Errno::ENOSYS, "memfd_create()"));
        let mut tree = Tree::prepare(TreeControl::Auto).expect("Auto falls back to the process group");
        assert_eq!((tree.tier(), tree.tier().to_string().as_str()), (Tier::Group, "group"));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 1000 & wait"]).setsid();
        let child = command.spawn().expect("starts");
        tree.program_started(child.id(), child.as_fd());
        wait_until("the child is found", || tree.survivors().len() == 1);
        let sleep = tree.survivors()[0].pid as i32;
        assert!(tree.kill(PATIENCE));
        assert!(!is_alive(sleep));
    });
}

#[test]
fn a_guard_that_its_owner_may_not_kill_ends_by_itself() {
    isolated!(|| {
        confine::deny(&[("pidfd_send_signal", libc::EPERM)]).expect("confined");
        let _ = Command::new("true").run_with(&spawnfd::Run::new().tree(TreeControl::Guard)).expect("runs");
        let guard = own_guard();
        spawnfd::internal::end_idle_threads();
        wait_until_gone(&[guard]);
    });
}

#[test]
fn auto_falls_back_to_a_subreaper_and_then_to_the_guard() {
    isolated!(|| {
        confine::deny(&[("mkdir", libc::EACCES), ("mkdirat", libc::EACCES)]).expect("confined");
        for _ in 0..2 {
            let error = Tree::prepare(TreeControl::Cgroup).expect_err("no cgroup");
            assert_eq!(error.stage(), Stage::Tree);
            assert!(matches!(error.errno(), Errno::EACCES | Errno::ENOENT), "{error}");
            assert_eq!(Tree::prepare(TreeControl::Auto).expect("Auto has a fallback").tier(), Tier::Subreaper);
        }
        // A command with a parent-death signal is a child of this process.
        let run = spawnfd::Run::new().tree(TreeControl::Auto);
        let output = Command::new("true").parent_death_signal(libc::SIGTERM).run_with(&run).expect("runs");
        assert_eq!(output.tree, Tier::Guard);
        assert_eq!(Command::new("true").run_with(&run).expect("runs").tree, Tier::Subreaper);
    });
}
