// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous spawns: the caller does not wait for exec.

use crate::common;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::{Launcher, Refused, executable, fifo};
use spawnfd::command::OpenHow;
use spawnfd::error::{Errno, Stage};
use spawnfd::job::Stop;
use spawnfd::template::TemplateCache;
use spawnfd::{Child, Command, Run, Stdio};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{confine, isolated, scratch};

/// Makes two tests of each body: one by clone3, one by clone. Each first calls `enter`, whose spawn
/// shows the library that it can pass descriptors.
macro_rules! asynchronous_starts {
    ($($name:ident: $body:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn clone3() {
                isolated!(|| check_asynchronous(Launcher::Asynchronous, $body));
            }

            #[test]
            fn clone() {
                isolated!(|| check_asynchronous(Launcher::AsynchronousClone, $body));
            }
        }
    )*};
}

fn check_asynchronous(launcher: Launcher, body: fn(Launcher, &Path)) {
    let directory = scratch();
    launcher.enter();
    common::drop_a_running_child();
    common::warm_up(launcher);
    let before = Snapshot::take();
    body(launcher, directory.path());
    common::assert_unchanged_except_sockets(&before);
}

/// Returns a command whose child blocks until a process opens `gate`, a FIFO, for writing. The
/// program then writes `text` to `result`.
fn blocked_at_gate(launcher: Launcher, gate: &Path, result: &Path, text: &str) -> Command<'static> {
    let mut command = launcher.command("/bin/sh");
    command.args(["-c", "echo \"$0\" > \"$1\"", text]).arg(result).open(gate, OpenHow::READ, 9);
    command
}

/// Opens the FIFO `gate` for writing. This releases the children that block on it, and those that
/// reach it while the returned file is open.
fn open_gate(gate: &Path) -> fs::File {
    fs::OpenOptions::new().write(true).open(gate).expect("a reader is there")
}

fn wait(mut child: Child) {
    assert!(child.wait().expect("own child").success());
}

asynchronous_starts! {
    spawn_returns_before_exec: |launcher, directory| {
        let (gate, result) = (fifo(directory, "gate"), directory.join("result"));
        let mut child = blocked_at_gate(launcher, &gate, &result, "here").spawn().expect("starts");
        // The child is blocked before its exec. If the parent waited for exec, it would never reach
        // this line.
        assert_eq!(child.try_wait().expect("own child"), None);
        open_gate(&gate);
        wait(child);
        assert_eq!(fs::read_to_string(result).expect("written"), "here\n");
    };

    arguments_outlive_the_command_and_the_handle: |launcher, directory| {
        let gates: Vec<_> = (0..20).map(|n| fifo(directory, &format!("gate{n}"))).collect();
        for (n, gate) in gates.iter().enumerate() {
            let text = format!("child {n} ").repeat(300);
            let result = directory.join(format!("result{n}"));
            drop(blocked_at_gate(launcher, gate, &result, &text).spawn().expect("starts"));
        }
        // Meanwhile the library starts other programs, on other stacks and sockets.
        for _ in 0..50 {
            wait(launcher.command("/bin/true").spawn().expect("starts"));
        }
        for gate in &gates {
            open_gate(gate);
        }
        for n in 0..gates.len() {
            let (path, expected) = (directory.join(format!("result{n}")), format!("child {n} ").repeat(300));
            common::eventually("written", || fs::read_to_string(&path).is_ok_and(|found| found.trim_end() == expected.trim_end()));
        }
        common::eventually("reaped", || common::children().is_empty());
    };

    a_failure_is_reported_by_wait: |launcher, directory| {
        let error = launcher.command("/bin/true").umask(0o77).chdir("/nowhere").refused("no such directory");
        assert_eq!((error.stage(), error.errno()), (Stage::Action(1), Errno::ENOENT), "{error}");
        let expected = "no such directory: /nowhere [action 1: chdir(\"/nowhere\") = -1 ENOENT]";
        assert_eq!(error.to_string(), expected);
        let path = directory.join("program");
        executable(&path, "no program");
        let command = launcher.command(&path);
        let mut child = command.spawn().expect("there is a child");
        let error = child.wait().expect_err("exec failed");
        assert_eq!((error.stage(), error.errno()), (Stage::Exec, Errno::ENOEXEC), "{error}");
        assert_eq!(child.wait().expect_err("the child has no status"), error);
    };

    a_kill_before_exec_is_reported_by_wait: |launcher, directory| {
        let gate = fifo(directory, "gate");
        let mut child = blocked_at_gate(launcher, &gate, &directory.join("result"), "").spawn().expect("starts");
        // SAFETY: kill takes integers, and the child has not been reaped.
        unsafe { libc::kill(child.id() as i32, libc::SIGKILL) };
        let error = child.wait().expect_err("killed before exec");
        assert_eq!((error.stage(), error.errno()), (Stage::Killed, Errno::ECANCELED), "{error}");
        assert!(error.call().ends_with(", signal: 9 (SIGKILL)"), "{error}");
        let mut child = blocked_at_gate(launcher, &gate, &directory.join("result"), "").spawn().expect("starts");
        child.kill().expect("own child");
        assert_eq!(child.wait().expect("a status").signal(), Some(9));
    };

    a_child_with_memory_of_its_own_holds_no_foreign_descriptor: |launcher, directory| {
        let (gate, result) = (fifo(directory, "gate"), directory.join("result"));
        let apart = |text: &str| {
            let mut command = blocked_at_gate(launcher, &gate, &result, text);
            command.oom_score_adj(500);
            command
        };
        let (mut reader, writer) = common::pipe();
        let mut child = apart("here").spawn().expect("starts");
        assert_eq!(child.try_wait().expect("own child"), None);
        drop(writer);
        assert_eq!(reader.read(&mut [0]).expect("own pipe"), 0, "the blocked child does not hold the caller's pipe");
        open_gate(&gate);
        wait(child);
        assert_eq!(fs::read_to_string(&result).expect("written"), "here\n");
        let error = launcher.command("/bin/true").oom_score_adj(500).open("/nowhere", OpenHow::READ, 8).refused("no such file");
        assert_eq!((error.stage(), error.errno()), (Stage::Action(1), Errno::ENOENT), "{error}");
        let mut child = apart("").spawn().expect("starts");
        // SAFETY: kill takes integers, and the child has not been reaped.
        unsafe { libc::kill(child.id() as i32, libc::SIGKILL) };
        assert_eq!(child.wait().expect_err("killed before exec").stage(), Stage::Killed);
    };

    a_timeout_ends_a_run_whose_child_is_blocked: |launcher, directory| {
        let gate = fifo(directory, "gate");
        let mut command = blocked_at_gate(launcher, &gate, &directory.join("result"), "");
        command.stdin(Stdio::Inherit).stdout(Stdio::Inherit).stderr(Stdio::Inherit);
        let output = command.run_with(&Run::new().timeout(Duration::from_millis(50)).grace(Duration::ZERO)).expect("a result");
        assert_eq!((output.stop, output.code()), (Stop::Timeout, None), "{output:?}");
    };

    a_job_can_be_killed_before_exec: |launcher, directory| {
        let gate = fifo(directory, "gate");
        for tree in [false, true] {
            let mut command = blocked_at_gate(launcher, &gate, &directory.join("result"), "");
            command.stdin(Stdio::Inherit).stdout(Stdio::Inherit).stderr(Stdio::Inherit);
            let job = command.start(&Run::new()).expect("starts");
            job.signal(9, tree).expect("a signal");
            let output = job.wait().expect("as after a stop");
            assert_eq!((output.stop, output.signal()), (Stop::Exited, Some(9)), "{output:?}");
            let job = command.start(&Run::new()).expect("starts");
            job.stop(Duration::ZERO);
            let output = job.wait().expect("a result");
            assert_eq!((output.stop, output.signal()), (Stop::Cancelled, Some(9)), "{output:?}");
            // If another process kills the child before exec, the job returns an error.
            let job = command.start(&Run::new()).expect("starts");
            // SAFETY: kill takes integers, and the child has not been reaped.
            unsafe { libc::kill(job.id() as i32, libc::SIGKILL) };
            assert_eq!(job.wait().expect_err("killed before exec").stage(), Stage::Killed);
        }
    };

    a_run_can_be_cancelled_before_exec: |launcher, directory| {
        let gate = fifo(directory, "gate");
        for (timeout, stop) in [(None, Stop::Cancelled), (Some(Duration::from_millis(50)), Stop::Timeout)] {
            let mut command = blocked_at_gate(launcher, &gate, &directory.join("result"), "");
            command.stdin(Stdio::Inherit).stdout(Stdio::Inherit).stderr(Stdio::Inherit);
            let (sender, receiver) = channel();
            // Without clone3 the child blocks all signals until exec. The library then kills it by
            // SIGKILL at the end of the grace time.
            let with_clone3 = launcher == Launcher::Asynchronous && spawnfd_tests::has_syscall("clone3");
            let grace = if with_clone3 { Duration::from_secs(60) } else { Duration::from_millis(300) };
            let run = Run::new().grace(grace).timeout(timeout);
            let handle = command.run_then(&run, move |output| sender.send(output).expect("the receiver is alive")).expect("starts");
            if stop == Stop::Cancelled {
                handle.cancel();
            }
            let output = receiver.recv().expect("a message").expect("a result");
            let signals: &[i32] = if with_clone3 { &[15] } else { &[9] };
            assert_eq!(output.stop, stop);
            assert!(signals.contains(&output.signal().expect("ended by one")), "{output:?}");
            drop(handle);
        }
        common::eventually("the engine has ended", || Snapshot::take().threads.len() <= 2);
    };

    a_cache_starts_the_new_file_after_a_replacement: |launcher, directory| {
        let tools = TemplateCache::new(4);
        let path = directory.join("program");
        for round in 0..20 {
            let new = directory.join("new");
            common::copy("/bin/sh", &new);
            fs::rename(&new, &path).expect("own directory");
            for _ in 0..2 {
                let mut command = tools.command(&path);
                launcher.prepare(&mut command);
                let status = command.args(["-c", "exit 7"]).spawn().expect("starts").wait().expect("the new file");
                assert_eq!(status.code(), Some(7), "round {round}");
            }
        }
        assert_eq!(tools.stats().renewed, 19, "{:?}", tools.stats());
    };

    the_host_can_fork_while_a_child_is_blocked: |launcher, directory| {
        let (gate, result) = (fifo(directory, "gate"), directory.join("result"));
        let child = blocked_at_gate(launcher, &gate, &result, "mine").spawn().expect("starts");
        // SAFETY: the forked child spawns programs and exits, as in a host that forks.
        let copy = unsafe { libc::fork() };
        if copy == 0 {
            let ok = (0..10).all(|_| {
                launcher.command("/bin/true").spawn().and_then(|mut child| child.wait()).is_ok_and(|status| status.success())
            });
            // SAFETY: _exit ends the child without running this process's destructors.
            unsafe { libc::_exit(i32::from(!ok)) };
        }
        let mut status = 0;
        // SAFETY: waitpid stores an int, and `copy` is a child of this process.
        assert_eq!(unsafe { libc::waitpid(copy, &mut status, 0) }, copy);
        assert_eq!(status, 0, "the forked child failed");
        open_gate(&gate);
        wait(child);
        assert_eq!(fs::read_to_string(result).expect("written"), "mine\n");
    };
}

#[test]
fn more_asynchronous_starts_than_pool_entries_do_not_block() {
    isolated!(|| {
        let directory = scratch();
        Launcher::Asynchronous.enter();
        let (gate, result) = (fifo(directory.path(), "gate"), directory.path().join("result"));
        let children: Vec<Child> = (0..32)
            .map(|_| blocked_at_gate(Launcher::Asynchronous, &gate, &result, "").spawn().expect("starts"))
            .collect();
        // These spawns do not wait for exec either. If they did, they would block forever.
        let more: Vec<Child> = (0..3)
            .map(|_| blocked_at_gate(Launcher::Asynchronous, &gate, &result, "").spawn().expect("starts"))
            .collect();
        assert_eq!(common::children().len(), 35);
        let gate = open_gate(&gate);
        children.into_iter().chain(more).for_each(wait);
        // The FIFO stays open until here, because the last child may open it after the others.
        drop(gate);
    });
}

#[test]
fn a_timeout_ends_a_blocked_run_without_close_range() {
    isolated!(|| {
        let directory = scratch();
        confine::deny(&[("close_range", libc::ENOSYS)]).expect("confined");
        let gate = fifo(directory.path(), "gate");
        let mut command = Command::new("/bin/true");
        command.open(&gate, OpenHow::READ, 9);
        let run = Run::new().timeout(Duration::from_millis(50)).grace(Duration::ZERO);
        assert_eq!(command.run_with(&run).expect("a result").stop, Stop::Timeout);
    });
}

#[test]
fn sources_that_a_child_did_not_receive_are_closed() {
    isolated!(|| {
        common::with_unnoticed_filter(
            || Launcher::Asynchronous.enter(),
            ("recvmsg", Some(libc::EPERM)),
            || {
                let (mut reader, writer) = common::pipe();
                let mut child = Launcher::Asynchronous.command("/bin/true").stdout(&writer).spawn().expect("starts");
                // The filter refuses recvmsg, so the child ends before it receives its descriptors.
                let error = child.wait().expect_err("the child ends before exec");
                assert_eq!((error.stage(), error.errno()), (Stage::Descriptors, Errno::EPERM), "{error}");
                drop(writer);
                assert_eq!(reader.read(&mut [0]).expect("own pipe"), 0, "no process has the other end");
            },
        );
    });
}
