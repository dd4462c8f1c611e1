// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hosts that do something of their own: with children, descriptors, threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spawnfd::snapshot::SnapshotCache;
use spawnfd::tree::Want;
use spawnfd::{
    Chunk, Command, Errno, Event, EventOptions, Leftovers, Output, Run, Stdio, Stop, Template, TerminalSize,
};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{confine, isolated};

use super::{LONG, both, is_alive, kill, pid_in, sh};
use crate::common::{self, eventually, rounds};

/// The result where somebody else may have taken the status: never a wrong one, and lost only where the kernel does not keep it.
fn status_of(result: spawnfd::Result<Output>, expected: i32) {
    let output = result.expect("a result, whoever has the status");
    assert_eq!(output.stop, Stop::Exited);
    match output.status {
        Some(status) => assert_eq!(status.code(), Some(expected)),
        None => assert!(!common::kernel_keeps_exit_status(), "this kernel knows"),
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
        None => assert!(!common::kernel_keeps_exit_status(), "this kernel knows"),
    }
    eventually("nobody is left", || common::children().is_empty());
}

/// A cure for zombies (openclaw#97616): a host that ignores SIGCHLD, so that the kernel reaps.
#[test]
fn sigchld_is_ignored() {
    isolated!(|| {
        // SAFETY: SIG_IGN: the kernel reaps children by itself.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        runs_while_others_wait();
        // The platform cannot tell how its program ended.
        let lost = std::process::Command::new("true").status().expect_err("nobody knows");
        assert_eq!(lost.raw_os_error(), Some(libc::ECHILD));
    });
}

/// Another one: a host (an init, a supervisor, another library) that loops on wait(-1).
#[test]
fn a_foreign_wait_takes_the_status() {
    isolated!(limit: Duration::from_secs(600), || {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // SAFETY: any child of this process; that is the test.
                    unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
                }
            });
            let done = std::panic::catch_unwind(runs_while_others_wait);
            over.store(true, Ordering::Relaxed);
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    });
}

/// And where the kernel does not keep what was taken: only the status is lost.
#[test]
fn a_status_is_lost() {
    isolated!(|| {
        confine::deny(&[("ioctl", libc::ENOTTY)]).expect("confined");
        // SAFETY: SIG_IGN: the kernel reaps children by itself.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let line = "echo out; echo why >&2; exit 3";
        let check = |output: Output| {
            assert_eq!((output.status, output.code(), output.signal(), output.stop), (None, None, None, Stop::Exited));
            assert_eq!((&output.text()[..], &output.error_text()[..], output.ok()), ("out\n", "why\n", false));
            let error = output.check().expect_err("not known to be ok");
            let expected = "how /bin/sh ended is not known: somebody else has taken its status: why";
            assert_eq!(error.to_string(), expected);
        };
        both(|| sh(line), &Run::new(), check);
        let (job, mut events) = sh(line).start_events(&Run::new(), EventOptions::default()).expect("starts");
        let mut chunks = 0;
        while let Some(event) = events.next_timeout(Duration::MAX).filter(|event| *event != Event::End) {
            chunks += usize::from(matches!(event, Event::Chunk { .. }));
        }
        assert_eq!(chunks, 2);
        check((*job.wait().expect("watched")).clone());
        for grace in [Duration::ZERO, LONG] {
            let command = "echo out; exec sleep 1000";
            let (job, mut events) = sh(command).start_events(&Run::new(), EventOptions::default()).expect("starts");
            assert!(matches!(events.next_timeout(Duration::MAX), Some(Event::Chunk { .. })));
            job.stop(grace);
            let output = job.wait().expect("watched");
            assert_eq!((output.stop, output.status, &output.text()[..]), (Stop::Cancelled, None, "out\n"));
        }
        let mut child = sh("exit 3").spawn().expect("starts");
        assert_eq!(child.wait().expect_err("nobody knows").errno(), Errno::ECHILD);
        assert_eq!(child.wait().expect_err("nor later").errno(), Errno::ECHILD);
        eventually("nobody is left", || common::children().is_empty());
    });
}

/// Whoever has the status of a child that was never a program: it is no result.
#[test]
fn the_status_of_what_was_no_program_is_taken() {
    isolated!(|| {
        confine::deny(&[("ioctl", libc::ENOTTY)]).expect("confined");
        for _ in 0..rounds(100) {
            let error = match sh("exit 3").chdir("/nowhere").start(&Run::new()) {
                Ok(job) => {
                    // SAFETY: this test's own child; nothing is stored.
                    unsafe { libc::waitpid(job.id().cast_signed(), std::ptr::null_mut(), libc::__WALL) };
                    job.wait().expect_err("no such place")
                }
                Err(error) => error,
            };
            assert_eq!((error.action(), error.errno()), (Some(0), Errno::ENOENT), "{error}");
        }
    });
}

/// A status that was surely taken before it was asked for.
#[test]
fn a_status_that_was_taken_is_recovered() {
    isolated!(|| {
        for (line, expected) in [("exit 0", 0), ("exit 77", 77 << 8), ("kill -9 $$", 9), ("kill -15 $$", 15)] {
            let mut child = sh(line).spawn().expect("starts");
            let (pid, mut status) = (child.id().cast_signed(), 0);
            // SAFETY: this test's own child.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert_eq!(status, expected);
            match child.wait() {
                Ok(status) => assert_eq!(std::os::unix::process::ExitStatusExt::into_raw(status), expected),
                Err(error) => assert!(error.errno() == Errno::ECHILD && !common::kernel_keeps_exit_status(), "{error}"),
            }
            assert_eq!(child.usage(), None, "what it used is gone");
            child.kill().expect("nobody is left to kill");
        }
    });
}

/// Daemons close 0, 1 and 2; what a library opens then lands there.
#[test]
fn standard_streams_are_closed() {
    isolated!(|| {
        for closed in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 1, 2]] {
            // In a copy of this process, of which only the exit status is needed.
            wait_for(fork(|| {
                // SAFETY: the copy needs none of them.
                closed.iter().for_each(|&number| _ = unsafe { libc::close(number) });
                let line = "cat; echo out; echo err >&2; ls /proc/self/fd | wc -l";
                both(
                    || sh(line),
                    &Run::new().input("in\n"),
                    |output| {
                        assert_eq!((&output.text()[..], &output.error_text()[..]), ("in\nout\n4\n", "err\n"));
                    },
                );
            }));
        }
    });
}

/// And stays there: the stream that the application opens later is closed with what the library kept.
#[test]
fn standard_streams_are_opened_later() {
    isolated!(|| {
        wait_for(fork(|| {
            let snapshots = SnapshotCache::default();
            // SAFETY: the copy needs none of them.
            (0..3).for_each(|number| _ = unsafe { libc::close(number) });
            let none_open = |what: &str| {
                for number in 0..3 {
                    // SAFETY: asks for a flag.
                    assert_eq!(unsafe { libc::fcntl(number, libc::F_GETFD) }, -1, "{what}: {number}");
                }
            };
            let template = Template::open("/bin/true").expect("a template");
            none_open("a template");
            drop(snapshots.open("/bin/true").expect("a snapshot"));
            none_open("a cached snapshot");
            assert!(template.command().run().expect("runs").ok());
            none_open("what a spawn keeps");
            let run = Run::new().writable(10).window(10);
            let jobs = [run.clone(), run.clone().tree(Want::Guard), run.terminal(TerminalSize::default())]
                .map(|run| sh("read x").start(&run).expect("starts"));
            none_open("jobs under way, the engine, and the guard");
            let mut left = Command::new("/bin/cat");
            left.stdin(Stdio::Piped).stdout(Stdio::Null).stderr(Stdio::Null);
            let mut left = left.spawn().expect("starts");
            let stdin = left.stdin.take();
            drop(left);
            none_open("a child that is left to the reaper");
            drop((jobs, stdin));
            eventually("all are reaped", || common::children().is_empty());
        }));
    });
}

/// A host that forks (os.fork, multiprocessing) while jobs run: the jobs are the parent's, and both go on.
#[test]
fn a_fork_while_jobs_run() {
    isolated!(limit: Duration::from_secs(600), || {
        let line = "read x; echo got $x";
        for _ in 0..rounds(40) {
            let jobs: Vec<_> = (0..8).map(|_| sh(line).start(&Run::new().writable(100)).expect("starts")).collect();
            let copy = fork(|| {
                both(|| sh("echo copy"), &Run::new(), |output| assert_eq!(output.text(), "copy\n"));
                let job = sh(line).start(&Run::new().writable(100)).expect("starts");
                assert_eq!(job.write(b"copy\n").expect("reads"), 5);
                assert_eq!(job.wait().expect("watched").text(), "got copy\n");
            });
            both(|| sh("echo parent"), &Run::new(), |output| assert_eq!(output.text(), "parent\n"));
            wait_for(copy);
            for job in jobs {
                assert!(job.try_wait().expect("watched").is_none(), "the copy's end is nothing to them");
                assert_eq!(job.write(b"parent\n").expect("reads"), 7);
                assert_eq!(job.wait().expect("watched").text(), "got parent\n");
            }
        }
    });
}

/// A copy of a job's handle is good for nothing in a fork's copy, and leaves the parent's job alone; whatever the engine's thread
/// held when the host forked.
#[test]
fn a_copy_drops_its_handle() {
    isolated!(limit: Duration::from_secs(600), || {
        let run = Run::new().writable(100).window(4096);
        let options = EventOptions { max_bytes: 4096, ..EventOptions::default() };
        for _ in 0..rounds(20) {
            // Its echo, of what it is told at once, keeps the engine busy.
            let mut held = Some(sh("while read x; do echo got $x; done").start_events(&run, options).expect("starts"));
            for _ in 0..20 {
                held.as_ref().map(|(job, _)| job.write(b"noise\n"));
                wait_for(fork(|| {
                    let (job, mut events) = held.take().expect("a copy");
                    assert_eq!(job.wait().expect_err("not its own").errno(), Errno::ECHILD);
                    assert_eq!(job.try_wait().expect_err("not its own").errno(), Errno::ECHILD);
                    assert_eq!(job.write(b"copy\n").expect_err("not its own").errno(), Errno::EPIPE);
                    assert_eq!(job.read(0), Chunk::default());
                    assert_eq!(events.next_timeout(Duration::MAX), Some(Event::End));
                    job.signal(libc::SIGKILL, true).expect("to nobody");
                    job.stop(Duration::ZERO);
                }));
                while held.as_mut().is_some_and(|(_, events)| events.try_next().is_some()) {}
            }
            let (job, _) = held.expect("the parent's");
            assert!(job.try_wait().expect("watched").is_none(), "it runs on");
            job.close_stdin();
            let output = job.wait().expect("watched");
            let text = output.text();
            assert!(!text.contains("copy") && text.starts_with("got noise\n"), "{text}");
        }
    });
}

/// PDEATHSIG kills the child when the creating thread ends, the process alive. A pool's threads come and go.
#[test]
fn the_creating_thread_ends() {
    isolated!(|| {
        let run = Run::new().writable(100).leftovers(Leftovers::Detach);
        let (job, child) = std::thread::spawn(move || {
            let job = sh("sleep 1000 >/dev/null 2>&1 & echo $!; read x; echo got $x").start(&run).expect("starts");
            (job, Command::new("/bin/sleep").arg("1000").spawn().expect("starts"))
        })
        .join()
        .expect("no panic");
        eventually("the thread is gone", || Snapshot::take().threads.len() <= 3);
        assert!(job.wait_timeout(Duration::from_millis(100)).expect("watched").is_none(), "it runs on");
        assert!(is_alive(child.id()));
        job.write(b"1\n").expect("reads");
        let output = job.wait().expect("watched");
        assert!(output.ok() && output.text().ends_with("got 1\n"), "{output:?}");
        let server = pid_in(&output.text());
        assert!(is_alive(server));
        kill(server);
        child.kill().expect("own child");
    });
}
