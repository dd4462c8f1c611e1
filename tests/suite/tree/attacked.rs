// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree ends with its owner also if another process kills or stops the guard, or kills the owner's children as a
//! supervisor does.

use std::fs;
use std::time::Duration;

use spawnfd::tree::{Tree, TreeControl};
use spawnfd::{Command, Run};
use spawnfd_tests::isolated;

use crate::common::tree::*;

/// The children of a process.
fn children_of(process: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it runs").flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    children
        .flat_map(|pids| pids.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect::<Vec<_>>())
        .collect()
}

/// The two processes of the owner's guard.
fn both_guards_of(owner: i32) -> [i32; 2] {
    let of = |parent| wait_for_some(|| guards_of(parent).into_iter().filter(|&pid| is_alive(pid)).collect())[0];
    let first = of(owner);
    [first, of(first)]
}

/// Stops a process. The signal takes effect a moment after the call that sends it.
fn stop(pid: i32) {
    wait_until("it has stopped", || {
        kill(pid, libc::SIGSTOP);
        state(pid) == 'T'
    });
}

/// An owner of two trees. Returns the owner, and the processes of the trees.
fn owner_of_two(want: TreeControl) -> (i32, Vec<i32>) {
    let (owner, mut report) = fork_owner(|tell| {
        let mut trees = [(); 2].map(|()| start(want, "sleep 1000 & setsid sleep 1000 & echo $!; wait"));
        for tree in &mut trees {
            tell(tree.child.id() as i32);
            tell(tree.pid());
        }
        trees
    });
    let pids = (0..4).map(|_| next_pid(&mut report)).collect();
    (owner, pids)
}

every_tier! {
    killing_the_children_of_the_owner_frees_no_process: |want| {
        become_subreaper();
        let (owner, mut report) = fork_owner(|tell| {
            let mut sh = start(want, "sleep 1000 & echo $!; (sleep 1000 & echo $!); wait");
            tell(sh.pid());
            tell(sh.pid());
            sh
        });
        let pids = [next_pid(&mut report), next_pid(&mut report)];
        let [first, second] = both_guards_of(owner);
        let children = children_of(owner);
        assert!(children.contains(&first) && !children.contains(&second), "{children:?}");
        for child in children {
            kill(child, libc::SIGKILL);
        }
        wait_until_gone(&[first]);
        assert!(is_alive(second));
        kill(owner, libc::SIGKILL);
        wait_until_gone(&pids);
        wait_until_gone(&[second]);
        assert!(groups_of(owner).is_empty());
    };
    a_stopped_guard_kills_the_trees: |want| {
        become_subreaper();
        let (owner, pids) = owner_of_two(want);
        let guards = both_guards_of(owner);
        guards.into_iter().for_each(stop);
        kill(owner, libc::SIGKILL);
        wait_until_gone(&pids);
        wait_until_gone(&guards);
        assert!(groups_of(owner).is_empty());
    };
    the_second_process_of_the_guard_is_replaced: |want| {
        become_subreaper();
        let (owner, pids) = owner_of_two(want);
        let [first, second] = both_guards_of(owner);
        kill(second, libc::SIGKILL);
        wait_until("the first process has started another", || guards_of(first).iter().any(|&pid| pid != second));
        let guards = both_guards_of(owner);
        // A stopped process is continued by the other one.
        for guard in guards {
            stop(guard);
            wait_until("it is continued", || state(guard) != 'T');
        }
        kill(first, libc::SIGKILL);
        kill(owner, libc::SIGKILL);
        wait_until_gone(&pids);
        wait_until_gone(&guards);
    };
    the_next_tree_replaces_a_guard_that_lost_its_first_process: |want| {
        become_subreaper();
        let (owner, mut report) = fork_owner(|tell| {
            let mut one = start(want, "sleep 1000 & echo $!; wait");
            tell(one.pid());
            let [first, second] = both_guards_of(std::process::id() as i32);
            kill(first, libc::SIGKILL);
            wait_until_gone(&[first]);
            assert!(is_alive(second));
            let mut other = start(want, "sleep 1000 & echo $!; wait");
            tell(other.pid());
            // The second process of the replaced guard ends.
            wait_until_gone(&[second]);
            tell(0);
            (one, other)
        });
        let pids = [next_pid(&mut report), next_pid(&mut report)];
        assert_eq!(next_pid(&mut report), 0);
        kill(owner, libc::SIGKILL);
        wait_until_gone(&pids);
    };
}

/// Nothing ends the cgroup of an owner that is killed together with its guard, until another process uses the tier.
#[test]
fn the_next_owner_kills_an_abandoned_cgroup() {
    isolated!(|| in_cgroup(assert_next_owner_kills_an_abandoned_cgroup));
}

fn assert_next_owner_kills_an_abandoned_cgroup(want: TreeControl) {
    let (owner, pids) = owner_of_two(want);
    let groups = groups_of(owner);
    assert_eq!(groups.len(), 2);
    let guards = both_guards_of(owner);
    // A stopped owner cannot start another guard.
    stop(owner);
    guards.into_iter().for_each(|guard| kill(guard, libc::SIGKILL));
    wait_until_gone(&guards);
    kill(owner, libc::SIGKILL);
    assert!(pids.iter().all(|&pid| is_alive(pid)));
    let sweep = || reap(fork(|| drop(Tree::prepare(want).expect("prepared"))));
    // The owner's pid belongs to a zombie.
    sweep();
    assert_eq!(groups_of(owner), groups);
    reap(owner);
    sweep();
    wait_until_gone(&pids);
    assert!(groups_of(owner).is_empty());
}

/// A supervisor kills the owner's children, among them the subreaper. A daemon of the tree is then a child of pid 1.
#[test]
fn killing_a_subreaper_frees_no_daemon_of_an_owner_that_dies() {
    isolated!(|| {
        become_subreaper();
        let (owner, mut report) = fork_owner(|tell| {
            let mut sh = start(TreeControl::Subreaper, "(setsid sh -c 'echo $$; exec sleep 1000' &); exec sleep 1000");
            tell(sh.pid());
            sh
        });
        let daemon = next_pid(&mut report);
        let [_, second] = both_guards_of(owner);
        // The guard looks at the subreaper's children twice a second.
        std::thread::sleep(Duration::from_secs(3));
        for child in children_of(owner) {
            kill(child, libc::SIGKILL);
        }
        kill(owner, libc::SIGKILL);
        wait_until_gone(&[daemon, second]);
    });
}

/// A supervisor of the owner, such as a container's first process, may reap the program before the guard looks at it.
#[test]
fn a_program_that_is_reaped_with_its_owner_frees_no_process() {
    isolated!(|| {
        become_subreaper();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let owner = fork(|| {
            let mut command = Command::new("/bin/sh");
            // The guard knows only the time at which the program has started.
            command.args(["-c", "sleep 0.2; sleep 1000 & echo $! >&2; wait"]);
            command.stderr(writer.try_clone().expect("a descriptor"));
            let _ = command.run_with(&Run::new());
        });
        drop(writer);
        let process = next_pid(&mut std::io::BufReader::new(reader));
        let [first, second] = both_guards_of(owner);
        let children = children_of(owner);
        // The owner does not reap its children.
        stop(owner);
        for &child in &children {
            kill(child, libc::SIGKILL);
        }
        // The end of the first process continues the second one.
        wait_until_gone(&[first]);
        stop(second);
        kill(owner, libc::SIGKILL);
        reap(owner);
        children.into_iter().for_each(reap);
        assert!(is_alive(process));
        kill(second, libc::SIGCONT);
        wait_until_gone(&[process, second]);
    });
}

/// A thread that drives runs looks at the guard every few seconds.
mod both_processes_of_a_guard {
    use super::*;

    fn are_replaced_during(drive: fn(Command<'static>)) {
        become_subreaper();
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let owner = fork(|| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "sleep 1000 & wait"]).stderr(writer.try_clone().expect("a descriptor"));
            drive(command);
        });
        drop(writer);
        let guards = both_guards_of(owner);
        // Stopped processes are continued.
        guards.into_iter().for_each(stop);
        wait_until("they are continued", || guards.iter().all(|&guard| state(guard) != 'T'));
        for guard in guards {
            kill(guard, libc::SIGKILL);
        }
        wait_until_gone(&guards);
        wait_until("there is another guard", || guards_of(owner).iter().any(|guard| !guards.contains(guard)));
        let others = both_guards_of(owner);
        kill(owner, libc::SIGKILL);
        // Processes that are left keep the pipe open.
        assert_eq!(std::io::read_to_string(reader).expect("own pipe"), "");
        wait_until_gone(&others);
    }

    #[test]
    fn are_replaced_during_a_run() {
        isolated!(|| are_replaced_during(|command| _ = command.run_with(&Run::new())));
    }

    #[test]
    fn are_replaced_during_a_job() {
        isolated!(|| {
            are_replaced_during(|command| {
                let _job = command.start(&Run::new()).expect("starts");
                std::thread::sleep(PATIENCE);
            });
        });
    }
}
