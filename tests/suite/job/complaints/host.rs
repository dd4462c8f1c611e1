// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reported problem: the host process itself reaps children, closes descriptors, forks or ends threads. A name such
//! as openclaw#97616 is a public report.

use std::time::Duration;

use spawnfd::error::Errno;
use spawnfd::job::{Chunk, Event, EventOptions, Leftovers, Stop, TerminalSize};
use spawnfd::snapshot::SnapshotCache;
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Output, Run, Stdio, Template};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{confine, isolated};

use super::{LONG, both, is_alive, kill, pid_in, sh};
use crate::common::{self, eventually, reap_any, rounds, while_repeating};

/// Checks a result although another waiter may have taken the exit status. The status is never wrong. It may be
/// missing only if the kernel does not keep the status of reaped processes.
fn status_of(result: spawnfd::Result<Output>, expected: i32) {
    let output = result.expect("a result, although another waiter may have the status");
    assert_eq!(output.stop, Stop::Exited);
    match output.status {
        Some(status) => assert_eq!(status.code(), Some(expected)),
        None => assert!(!common::kernel_keeps_exit_status(), "this kernel keeps the status"),
    }
}

fn runs_while_others_wait() {
    for round in 0..rounds(200) {
        let code = round as i32 % 100;
        let line = format!("exit {code}");
        status_of(sh(&line).run(), code);
        let job = sh(&line).start(&Run::new()).expect("starts");
        status_of(job.wait().map(|output| (*output).clone()), code);
        let mut child = sh(&line).spawn().expect("starts");
        match child.wait() {
            Ok(status) => assert_eq!(status.code(), Some(code)),
            Err(_) => assert!(!common::kernel_keeps_exit_status()),
        }
    }
    let run = Run::new().timeout(Duration::from_millis(100)).grace(LONG);
    let output = sh("exec sleep 1000").run_with(&run).expect("runs");
    assert_eq!(output.stop, Stop::Timeout);
    match output.status {
        Some(_) => assert_eq!(output.signal(), Some(15)),
        None => assert!(!common::kernel_keeps_exit_status(), "this kernel keeps the status"),
    }
    eventually("no child is left", || common::children().is_empty());
}

/// To avoid zombies (openclaw#97616), a host process ignores SIGCHLD, so that the kernel reaps every child.
#[test]
fn runs_work_with_sigchld_ignored() {
    isolated!(|| {
        // SAFETY: SIG_IGN installs no handler; the kernel then reaps children by itself.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        runs_while_others_wait();
        // std cannot report how its program ended.
        let lost = std::process::Command::new("true").status().expect_err("the kernel has reaped it");
        assert_eq!(lost.raw_os_error(), Some(libc::ECHILD));
    });
}

/// To avoid zombies, a host process (an init, a supervisor, another library) reaps every child in a loop of
/// waitpid(-1).
#[test]
fn runs_work_while_another_thread_reaps_all_children() {
    isolated!(limit: Duration::from_secs(600), || {
        while_repeating(|| _ = reap_any(), runs_while_others_wait);
    });
}

/// If the kernel does not keep the status of reaped processes, only the status is lost: the output is kept.
#[test]
fn a_lost_status_is_reported_and_the_output_is_kept() {
    isolated!(|| {
        confine::deny(&[("ioctl", libc::ENOTTY)]).expect("confined");
        // SAFETY: SIG_IGN installs no handler; the kernel then reaps children by itself.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let line = "echo out; echo why >&2; exit 3";
        let check = |output: Output| {
            assert_eq!((output.status, output.code(), output.signal(), output.stop), (None, None, None, Stop::Lost));
            assert_eq!((&output.stdout_text()[..], &output.stderr_text()[..], output.ok()), ("out\n", "why\n", false));
            let error = output.check().expect_err("not known to be ok");
            let expected = "/bin/sh ended, and the status is lost: other code of this process has taken it: why";
            assert_eq!(error.to_string(), expected);
        };
        both(|| sh(line), &Run::new(), check);
        let (job, mut events) = sh(line).start_events(&Run::new(), EventOptions::default()).expect("starts");
        let mut chunks = 0;
        while let Some(event) = events.next_timeout(Duration::MAX).filter(|event| *event != Event::End) {
            chunks += usize::from(matches!(event, Event::Chunk { .. }));
        }
        assert_eq!(chunks, 2);
        check((*job.wait().expect("a job result")).clone());
        for grace in [Duration::ZERO, LONG] {
            let command = "echo out; exec sleep 1000";
            let (job, mut events) = sh(command).start_events(&Run::new(), EventOptions::default()).expect("starts");
            assert!(matches!(events.next_timeout(Duration::MAX), Some(Event::Chunk { .. })));
            job.stop(grace);
            let output = job.wait().expect("a job result");
            assert_eq!((output.stop, output.status, &output.stdout_text()[..]), (Stop::Cancelled, None, "out\n"));
        }
        let mut child = sh("exit 3").spawn().expect("starts");
        assert_eq!(child.wait().expect_err("the status is lost").errno(), Errno::ECHILD);
        assert_eq!(child.wait().expect_err("the status is lost").errno(), Errno::ECHILD);
        eventually("no child is left", || common::children().is_empty());
    });
}

/// If a child fails before exec, its exit status is not the status of a program. The start still
/// fails with the right error if another waiter takes this status.
#[test]
fn a_failed_start_is_an_error_although_its_child_was_reaped() {
    isolated!(|| {
        confine::deny(&[("ioctl", libc::ENOTTY)]).expect("confined");
        for _ in 0..rounds(100) {
            let error = match sh("exit 3").chdir("/nowhere").start(&Run::new()) {
                Ok(job) => {
                    // SAFETY: waitpid stores nothing, and the child belongs to this test.
                    unsafe { libc::waitpid(job.id().cast_signed(), std::ptr::null_mut(), libc::__WALL) };
                    job.wait().expect_err("no such place")
                }
                Err(error) => error,
            };
            assert_eq!((error.action(), error.errno()), (Some(0), Errno::ENOENT), "{error}");
        }
    });
}

/// The test takes the exit status by waitpid before the library asks for it.
#[test]
fn a_status_taken_by_waitpid_is_recovered() {
    isolated!(|| {
        for (line, expected) in [("exit 0", 0), ("exit 77", 77 << 8), ("kill -9 $$", 9), ("kill -15 $$", 15)] {
            let mut child = sh(line).spawn().expect("starts");
            let (pid, mut status) = (child.id().cast_signed(), 0);
            // SAFETY: waitpid stores an int, and the child belongs to this test.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert_eq!(status, expected);
            match child.wait() {
                Ok(status) => assert_eq!(std::os::unix::process::ExitStatusExt::into_raw(status), expected),
                Err(error) => assert!(error.errno() == Errno::ECHILD && !common::kernel_keeps_exit_status(), "{error}"),
            }
            assert_eq!(child.usage(), None, "the resource usage is lost");
            child.kill().expect("an ended child needs no kill");
        }
    });
}

/// Daemons close 0, 1 and 2. A descriptor that a library opens then gets one of these numbers.
#[test]
fn runs_work_with_standard_streams_closed() {
    isolated!(|| {
        for closed in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 1, 2]] {
            // A forked child closes the streams; the test needs only the child's exit status.
            wait_for(fork(|| {
                // SAFETY: no code of the forked child uses these descriptors.
                closed.iter().for_each(|&number| _ = unsafe { libc::close(number) });
                let line = "cat; echo out; echo err >&2; ls /proc/self/fd | wc -l";
                both(
                    || sh(line),
                    &Run::new().input("in\n"),
                    |output| {
                        assert_eq!((&output.stdout_text()[..], &output.stderr_text()[..]), ("in\nout\n4\n", "err\n"));
                    },
                );
            }));
        }
    });
}

/// An application that closes a standard stream may reopen it later, and then needs its number (0, 1 or 2) to be
/// free. So the library keeps no descriptor at these numbers.
#[test]
fn the_library_keeps_no_descriptor_at_numbers_0_to_2() {
    isolated!(|| {
        wait_for(fork(|| {
            let snapshots = SnapshotCache::default();
            // SAFETY: no code of the forked child uses these descriptors.
            (0..3).for_each(|number| _ = unsafe { libc::close(number) });
            let none_open = |what: &str| {
                for number in 0..3 {
                    // SAFETY: F_GETFD takes integers and changes nothing.
                    assert_eq!(unsafe { libc::fcntl(number, libc::F_GETFD) }, -1, "{what}: {number}");
                }
            };
            let template = Template::open("/bin/true").expect("a template");
            none_open("a template");
            drop(snapshots.open("/bin/true").expect("a snapshot"));
            none_open("a cached snapshot");
            assert!(template.command().run().expect("runs").ok());
            none_open("after a spawn");
            let run = Run::new().writable(10).window(10);
            let jobs = [run.clone(), run.clone().tree(TreeControl::Guard), run.terminal(TerminalSize::default())]
                .map(|run| sh("read x").start(&run).expect("starts"));
            none_open("running jobs, the engine, and the guard");
            let mut left = Command::new("/bin/cat");
            left.stdin(Stdio::Piped).stdout(Stdio::Null).stderr(Stdio::Null);
            let mut left = left.spawn().expect("starts");
            let stdin = left.stdin.take();
            drop(left);
            none_open("a dropped child that the reaper watches");
            drop((jobs, stdin));
            eventually("all are reaped", || common::children().is_empty());
        }));
    });
}

/// A host process forks (os.fork, multiprocessing) while jobs run. These jobs belong to the parent. Afterwards both
/// the parent and the forked child can run jobs.
#[test]
fn parent_and_forked_child_both_run_jobs() {
    isolated!(limit: Duration::from_secs(600), || {
        let line = "read x; echo got $x";
        for _ in 0..rounds(40) {
            let jobs: Vec<_> = (0..8).map(|_| sh(line).start(&Run::new().writable(100)).expect("starts")).collect();
            let copy = fork(|| {
                both(|| sh("echo copy"), &Run::new(), |output| assert_eq!(output.stdout_text(), "copy\n"));
                let job = sh(line).start(&Run::new().writable(100)).expect("starts");
                assert_eq!(job.write(b"copy\n").expect("stdin is open"), 5);
                assert_eq!(job.wait().expect("a job result").stdout_text(), "got copy\n");
            });
            both(|| sh("echo parent"), &Run::new(), |output| assert_eq!(output.stdout_text(), "parent\n"));
            wait_for(copy);
            for job in jobs {
                assert!(job.try_wait().expect("a job result").is_none(), "the forked child's end does not affect them");
                assert_eq!(job.write(b"parent\n").expect("stdin is open"), 7);
                assert_eq!(job.wait().expect("a job result").stdout_text(), "got parent\n");
            }
        }
    });
}

/// In a forked child, the copy of a job's handle has no effect, not even on the parent's job. This
/// is true for every lock that the engine thread (the library's thread that runs jobs) may hold at
/// the fork.
#[test]
fn a_job_handle_has_no_effect_in_a_forked_child() {
    isolated!(limit: Duration::from_secs(600), || {
        let run = Run::new().writable(100).window(4096);
        let options = EventOptions::new().max_bytes(4096);
        for _ in 0..rounds(20) {
            // The shell echoes what it reads, which keeps the engine busy.
            let mut held = Some(sh("while read x; do echo got $x; done").start_events(&run, options).expect("starts"));
            for _ in 0..20 {
                held.as_ref().map(|(job, _)| job.write(b"noise\n"));
                wait_for(fork(|| {
                    let (job, mut events) = held.take().expect("a copy");
                    assert_eq!(job.wait().expect_err("the parent's job").errno(), Errno::ECHILD);
                    assert_eq!(job.try_wait().expect_err("the parent's job").errno(), Errno::ECHILD);
                    assert_eq!(job.write(b"copy\n").expect_err("the parent's job").errno(), Errno::EPIPE);
                    assert_eq!(job.read(0), Chunk::default());
                    assert_eq!(events.next_timeout(Duration::MAX), Some(Event::End));
                    job.signal(libc::SIGKILL, true).expect("no process gets it");
                    job.stop(Duration::ZERO);
                }));
                while held.as_mut().is_some_and(|(_, events)| events.try_next().is_some()) {}
            }
            let (job, _) = held.expect("the parent's");
            assert!(job.try_wait().expect("a job result").is_none(), "it runs on");
            job.close_stdin();
            let output = job.wait().expect("a job result");
            let text = output.stdout_text();
            assert!(!text.contains("copy") && text.starts_with("got noise\n"), "{text}");
        }
    });
}

/// With PR_SET_PDEATHSIG, the kernel kills a child when the thread that created it ends, even if the process lives
/// on. In a thread pool, threads end while their programs run.
#[test]
fn programs_outlive_the_thread_that_started_them() {
    isolated!(|| {
        let run = Run::new().writable(100).leftovers(Leftovers::Detach);
        let (job, child) = std::thread::spawn(move || {
            let job = sh("sleep 1000 >/dev/null 2>&1 & echo $!; read x; echo got $x").start(&run).expect("starts");
            (job, Command::new("/bin/sleep").arg("1000").spawn().expect("starts"))
        })
        .join()
        .expect("no panic");
        eventually("the thread is gone", || Snapshot::take().threads.len() <= 3);
        assert!(job.wait_timeout(Duration::from_millis(100)).expect("a job result").is_none(), "it runs on");
        assert!(is_alive(child.id()));
        job.write(b"1\n").expect("stdin is open");
        let output = job.wait().expect("a job result");
        assert!(output.ok() && output.stdout_text().ends_with("got 1\n"), "{output:?}");
        let server = pid_in(&output.stdout_text());
        assert!(is_alive(server));
        kill(server);
        child.kill().expect("own child");
    });
}
