// SPDX-License-Identifier: MIT OR Apache-2.0
//! The call does not come back.

use std::fs::File;
use std::time::{Duration, Instant};

use spawnfd::{Drain, EventOptions, Leftovers, Output, Run, Stop, WhenFull};
use spawnfd_tests::{isolated, scratch};

use super::{LONG, Platform, both, both_timed_out, is_alive, kill, pid_from, pid_in, platform_sh, sh};
use crate::common;

fn holders(output: &Output) -> &[u32] {
    match &output.drain {
        Drain::Cut(holders) => holders,
        other => panic!("{other:?}"),
    }
}

/// opencode#20902, opencode#22012, codex#4337, codex#7846: a process left in the background keeps stdout open, and the call waits
/// for it for ever.
#[test]
fn a_grandchild_holds_stdout() {
    isolated!(|| {
        let line = "setsid sleep 1000 & echo $!";
        let begun = Instant::now();
        both(
            || sh(line),
            &Run::new().leftovers(Leftovers::Detach),
            |output| {
                let pid = pid_in(&output.text());
                assert_eq!((output.stop, output.code()), (Stop::Exited, Some(0)));
                assert_eq!(holders(&output), [pid], "the result names who holds it");
                kill(pid);
            },
        );
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    });
}

/// The same reports, as they come about: std's way waits for the end of the pipe.
#[test]
fn a_grandchild_holds_stdout_of_the_platform() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("pid");
        let mut command = platform_sh(&format!("setsid sleep 1000 & echo $! > {}", path.display()));
        let call = Platform::call(move || command.output());
        let pid = pid_from(&path);
        call.hangs();
        kill(pid);
        assert!(call.finish().expect("runs").status.success());
    });
}

/// The same reports; here a daemon forks twice and makes a session of its own, so that nobody is its parent any more.
#[test]
fn a_double_fork_with_setsid() {
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
                assert!(is_alive(pid), "it is left alone");
                kill(pid);
                std::fs::remove_file(&path).expect("own file");
            },
        );
    });
}

/// PizzaPi#891: nobody ever closes the program's standard input, and the program reads it.
#[test]
fn stdin_never_closes() {
    isolated!(|| {
        // What the host's own standard input is like in a terminal or under a supervisor: open, and silent.
        let (silent, writer) = common::pipe();
        std::mem::forget(common::at_number(&silent, 0));
        both(|| sh("cat; echo end"), &Run::new(), |output| assert_eq!(output.text(), "end\n"));
        both(|| sh("cat; echo end"), &Run::new().input("given\n"), |output| assert_eq!(output.text(), "given\nend\n"));

        let mut command = platform_sh("cat; echo end");
        let child = command.stdout(std::process::Stdio::piped()).spawn().expect("starts");
        let call = Platform::call(|| child.wait_with_output());
        call.hangs();
        drop(writer);
        assert_eq!(call.finish().expect("runs").stdout, b"end\n");
    });
}

/// The program does not react to SIGTERM.
#[test]
fn a_child_ignores_term() {
    isolated!(|| {
        let run = Run::new().grace(Duration::from_millis(200));
        let begun = Instant::now();
        let line = "trap '' TERM; echo partial; : >\"$0\"; while :; do sleep 0.05; done";
        both_timed_out(line, &run, |output| {
            assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(9)));
            assert_eq!(output.text(), "partial\n");
            assert!(output.wall >= Duration::from_millis(500), "it had its grace: {:?}", output.wall);
        });
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    });
}

/// The program is stopped (^Z, or SIGTTIN as it reads from the terminal), and so never notices that it is to end.
#[test]
fn a_stopped_child() {
    isolated!(|| {
        let run = Run::new().grace(LONG * 2);
        let line = "trap 'echo bye; exit 3' TERM; : >\"$0\"; kill -STOP $$; sleep 1000";
        both_timed_out(line, &run, |output| {
            assert_eq!((output.stop, output.code()), (Stop::Timeout, Some(3)), "woken, and told");
            assert_eq!(output.text(), "bye\n");
            assert!(output.wall < LONG, "not by the end of its grace: {:?}", output.wall);
        });
    });
}

/// Who asked for the output never reads it, and the program stands still with a full pipe.
#[test]
fn a_reader_that_never_reads() {
    isolated!(|| {
        let line = "head -c 3000000 /dev/zero; echo done >&2";
        let waiting = EventOptions { max_bytes: 10_000, ..EventOptions::default() };
        let run = Run::new().timeout(Duration::from_millis(300)).grace(LONG);
        let (job, _unread) = sh(line).start_events(&run, waiting).expect("starts");
        let output = job.wait_timeout(LONG).expect("watched").expect("its time is over, read or not");
        assert_eq!((output.stop, output.signal()), (Stop::Timeout, Some(15)));

        let dropping = EventOptions { when_full: WhenFull::DropOldest, ..waiting };
        let (job, _unread) = sh(line).start_events(&Run::new(), dropping).expect("starts");
        assert!(job.wait_timeout(LONG).expect("watched").expect("nobody holds it up").ok());

        let (job, unread) = sh(line).start_events(&Run::new(), waiting).expect("starts");
        drop(unread);
        assert!(job.wait_timeout(LONG).expect("watched").expect("nobody holds it up").ok());

        // The platform's program waits for its reader, and who waits for the program before reading waits for ever.
        let mut child = platform_sh(line).stdout(std::process::Stdio::piped()).spawn().expect("starts");
        let mut stdout = child.stdout.take().expect("piped");
        let call = Platform::call(move || child.wait());
        call.hangs();
        std::io::copy(&mut stdout, &mut File::create("/dev/null").expect("there")).expect("own pipe");
        assert!(call.finish().expect("runs").success());
    });
}

/// The other way round: a program that never reads what it is given.
#[test]
fn a_program_that_never_reads() {
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
        while let taken @ 1.. = job.write(&all).expect("it might read") {
            written += taken;
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(written < all.len(), "what is not taken is said, at once");
        drop(job);
        common::eventually("ended", || common::children().is_empty());
    });
}
