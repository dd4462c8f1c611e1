// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reported problem: a call that runs a program hangs. A name such as opencode#20902 is a public report.

use std::fs::File;
use std::time::{Duration, Instant};

use spawnfd::job::{Drain, EventOptions, Leftovers, Stop, WhenFull};
use spawnfd::{Output, Run};
use spawnfd_tests::{isolated, scratch};

use super::{LONG, StdCall, both, both_timed_out, is_alive, kill, pid_from, pid_in, sh, std_sh};
use crate::common;

fn holders(output: &Output) -> &[u32] {
    match &output.drain {
        Drain::Cut(holders) => holders,
        other => panic!("{other:?}"),
    }
}

/// opencode#20902, opencode#22012, codex#4337, codex#7846: a background process keeps stdout open, and the call never
/// returns because it waits for end of file.
#[test]
fn a_grandchild_that_holds_stdout_does_not_delay_the_result() {
    isolated!(|| {
        let line = "setsid sleep 1000 & echo $!";
        let begun = Instant::now();
        both(
            || sh(line),
            &Run::new().leftovers(Leftovers::Detach),
            |output| {
                let pid = pid_in(&output.stdout_text());
                assert_eq!((output.stop, output.code()), (Stop::Exited, Some(0)));
                assert_eq!(holders(&output), [pid], "the result names the process that holds stdout");
                kill(pid);
            },
        );
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    });
}

/// opencode#20902 with `std::process::Command`: std waits for end of file on a pipe that a
/// background process keeps open.
#[test]
fn std_waits_for_a_grandchild_that_holds_stdout() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("pid");
        let mut command = std_sh(&format!("setsid sleep 1000 & echo $! > {}", path.display()));
        let call = StdCall::call(move || command.output());
        let pid = pid_from(&path);
        call.hangs();
        kill(pid);
        assert!(call.finish().expect("runs").status.success());
    });
}

/// As in opencode#20902, a background process keeps stdout open. Here the process is a daemon, which forks twice and
/// calls setsid, so no process of the run is its parent.
#[test]
fn a_daemon_that_holds_stdout_does_not_delay_the_result() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("pid");
        let line = format!("(setsid sh -c 'echo $$ > {}; exec sleep 1000' &) ; exit 7", path.display());
        both(
            || sh(&line),
            &Run::new().leftovers(Leftovers::Detach),
            |output| {
                let pid = pid_from(&path);
                assert_eq!((output.stop, output.code(), holders(&output)), (Stop::Exited, Some(7), &[pid][..]));
                assert!(is_alive(pid), "the daemon is left alone");
                kill(pid);
                std::fs::remove_file(&path).expect("own file");
            },
        );
    });
}

/// PizzaPi#891: the program reads its standard input, and no process ever closes the write end of that pipe.
#[test]
fn a_program_does_not_wait_for_the_hosts_stdin() {
    isolated!(|| {
        // The host process's own stdin is an open pipe without data, as under a supervisor.
        let (silent, writer) = common::pipe();
        std::mem::forget(common::at_number(&silent, 0));
        both(|| sh("cat; echo end"), &Run::new(), |output| assert_eq!(output.stdout_text(), "end\n"));
        both(
            || sh("cat; echo end"),
            &Run::new().input("given\n"),
            |output| assert_eq!(output.stdout_text(), "given\nend\n"),
        );

        let mut command = std_sh("cat; echo end");
        let child = command.stdout(std::process::Stdio::piped()).spawn().expect("starts");
        let call = StdCall::call(|| child.wait_with_output());
        call.hangs();
        drop(writer);
        assert_eq!(call.finish().expect("runs").stdout, b"end\n");
    });
}

/// A program that ignores SIGTERM must not delay the end of its run beyond the grace time.
#[test]
fn a_program_that_ignores_sigterm_is_killed_after_the_grace() {
    isolated!(|| {
        let run = Run::new().grace(Duration::from_millis(200));
        let begun = Instant::now();
        let line = "trap '' TERM; echo partial; : >\"$0\"; while :; do sleep 0.05; done";
        both_timed_out(line, &run, |output| {
            assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(9)));
            assert_eq!(output.stdout_text(), "partial\n");
            assert!(output.wall >= Duration::from_millis(500), "it had its grace: {:?}", output.wall);
        });
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    });
}

/// The program is stopped (^Z, or SIGTTIN on a read from the terminal), so a pending SIGTERM has no effect.
#[test]
fn a_stopped_program_is_continued_to_receive_sigterm() {
    isolated!(|| {
        let run = Run::new().grace(LONG * 2);
        let line = "trap 'echo bye; exit 3' TERM; : >\"$0\"; kill -STOP $$; sleep 1000";
        both_timed_out(line, &run, |output| {
            assert_eq!((output.stop, output.code()), (Stop::Timeout, Some(3)), "continued, and terminated");
            assert_eq!(output.stdout_text(), "bye\n");
            assert!(output.wall < LONG, "the program ends before its grace does: {:?}", output.wall);
        });
    });
}

/// The caller asks for events and never reads them, and the program blocks on a full pipe.
#[test]
fn unread_events_do_not_delay_a_timeout() {
    isolated!(|| {
        let line = "head -c 3000000 /dev/zero; echo done >&2";
        let waiting = EventOptions::new().max_bytes(10_000);
        let run = Run::new().timeout(Duration::from_millis(300)).grace(LONG);
        let (job, _unread) = sh(line).start_events(&run, waiting).expect("starts");
        let output = job.wait_timeout(LONG).expect("a job result").expect("the timeout ends it, read or not");
        assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(15)));

        let dropping = waiting.when_full(WhenFull::DropOldest);
        let (job, _unread) = sh(line).start_events(&Run::new(), dropping).expect("starts");
        assert!(job.wait_timeout(LONG).expect("a job result").expect("no reader is waited for").ok());

        let (job, unread) = sh(line).start_events(&Run::new(), waiting).expect("starts");
        drop(unread);
        assert!(job.wait_timeout(LONG).expect("a job result").expect("no reader is waited for").ok());

        // With std the program blocks until its pipe is read. A caller that waits for the program before it reads the
        // pipe hangs.
        let mut child = std_sh(line).stdout(std::process::Stdio::piped()).spawn().expect("starts");
        let mut stdout = child.stdout.take().expect("piped");
        let call = StdCall::call(move || child.wait());
        call.hangs();
        std::io::copy(&mut stdout, &mut File::create("/dev/null").expect("it exists")).expect("own pipe");
        assert!(call.finish().expect("runs").success());
    });
}

/// A program that never reads its input must not block the caller that supplies the input.
#[test]
fn unread_input_does_not_block_the_caller() {
    isolated!(|| {
        let run = Run::new().input(vec![b'x'; 3_000_000]).timeout(Duration::from_millis(200));
        both(
            || sh("exec sleep 1000"),
            &run,
            |output| {
                assert!(output.stop == Stop::Timeout && output.input_refused && output.wall < LONG);
            },
        );
        let job = sh("exec sleep 1000").start(&Run::new().writable(1000)).expect("starts");
        let all = vec![b'x'; 1_000_000];
        let mut written = 0;
        while let taken @ 1.. = job.write(&all).expect("stdin is open") {
            written += taken;
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(written < all.len(), "a write returns how much it took, at once");
        drop(job);
        common::eventually("the program is killed and reaped", || common::children().is_empty());
    });
}
