// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs that get a new terminal each.

use std::fs;
use std::time::Duration;

use crate::common::eventually;
use crate::common::job::{read_until, sh, start, text};
use spawnfd::error::{Errno, Stage};
use spawnfd::job::{Drain, EventOptions, TerminalSize};
use spawnfd::{Command, Output, Run};
use spawnfd_tests::isolated;

#[test]
fn a_run_in_a_terminal_is_read_written_and_resized() {
    isolated!(|| {
        let run = Run::new().terminal(TerminalSize::new(33, 77)).writable(100).window(1000);
        let command = sh("stty -echo; tty >/dev/null && stty size; read line; stty size; echo \"got $line\"; cat");
        for _ in 0..2 {
            let job = command.start(&run).expect("starts");
            let (_, next) = read_until(&job, 0, "33 77\r\n");
            job.resize(TerminalSize::new(5, 6));
            job.write(b"hello\n").expect("stdin is open");
            let (text, _) = read_until(&job, next, "got hello\r\n");
            assert!(text.starts_with("5 6\r\n"), "{text:?}");
            job.close_stdin();
            let output = job.wait().expect("a job result");
            assert!(output.ok() && output.stderr.is_empty(), "{output:?}");
        }
        assert_eq!(command.action_count(), 0, "the command is unchanged");
        assert_eq!(command.run().expect("runs").stdout_text().trim(), "got", "the next run has no terminal");
    });
}

/// An error names an action by its number among the caller's actions. The actions that a run adds for its terminal do
/// not count.
#[test]
fn errors_in_a_terminal_run_name_the_callers_action() {
    isolated!(|| {
        let run = Run::new().terminal(TerminalSize::default());
        for with_job in [false, true] {
            let outcome = |command: &mut Command<'static>| match with_job {
                false => command.run_with(&run),
                true => command.start(&run)?.wait().map(|output| Output::clone(&output)),
            };
            let output = outcome(sh("echo x >/dev/tty").setsid()).expect("a terminal needs a session");
            assert_eq!((text(&output).as_str(), output.ok()), ("x\r\n", true));
            let error = outcome(sh("true").process_group(0)).expect_err("a session leader cannot change its group");
            assert_eq!((error.action(), error.errno()), (Some(0), Errno::EPERM), "{error}");
            let error = outcome(sh("true").close(0)).expect_err("descriptor 0 is not a terminal");
            assert_eq!((error.action(), error.stage(), error.errno()), (None, Stage::Capture, Errno::EBADF), "{error}");
        }
    });
}

#[test]
fn a_terminal_without_input_is_at_end_of_file() {
    isolated!(|| {
        let run = Run::new().terminal(TerminalSize::default()).timeout(Duration::from_secs(30));
        for (run, read) in [(run.clone(), ""), (run.input("x\n"), "x\r\nx\r\n")] {
            let outputs = [
                sh("cat; echo over").run_with(&run),
                start("cat; echo over", &run).wait().map(|of| Output::clone(&of)),
            ];
            for output in outputs.map(|output| output.expect("a job result")) {
                assert_eq!((text(&output), output.input_refused), (format!("{read}over\r\n"), false));
                assert!(output.ok(), "{output:?}");
            }
        }
    });
}

#[test]
fn output_left_in_the_terminal_is_read_at_the_end() {
    isolated!(|| {
        let directory = spawnfd_tests::scratch();
        let written = directory.path().join("written");
        let fill = r#"stty raw -echo; exec perl -MFcntl -e '
            fcntl STDOUT, F_SETFL, O_WRONLY | O_NONBLOCK;
            my ($n, $begun) = (0, time);
            while (time < $begun + 2) { my $w = syswrite STDOUT, "x" x 100; $n += $w // 0; }
            open my $f, ">", $ARGV[0]; print $f "$n\n";' "$0""#;
        let run = Run::new().terminal(TerminalSize::default()).drain(Duration::ZERO).keep(1 << 20, 0);
        // The test does not read the events, so their queue fills.
        let events = EventOptions::new().max_bytes(100);
        let mut command = Command::new("sh");
        let (job, _events) = command.args(["-c", fill]).arg(&written).start_events(&run, events).expect("starts");
        let count = || fs::read_to_string(&written).ok()?.strip_suffix('\n')?.parse().ok();
        eventually("written", || count().is_some());
        let output = job.wait().expect("a job result");
        assert_eq!((output.stdout.len(), &output.drain), (count().expect("written"), &Drain::Eof));
    });
}

#[test]
fn a_process_that_holds_the_terminal_is_named() {
    isolated!(|| {
        let run = Run::new().terminal(TerminalSize::new(24, 80));
        let output = start("trap '' HUP; sleep 1000 & echo $!", &run).wait().expect("a job result");
        let left = output.stdout_text().trim().parse().expect("a number");
        assert_eq!(output.drain, Drain::Cut(vec![left]));
    });
}

fn cpu_of_this_thread() -> Duration {
    // SAFETY: an all-zero rusage is valid, and getrusage stores one rusage.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[test]
fn output_after_the_terminal_was_closed_for_a_while_is_read() {
    isolated!(|| {
        let run = Run::new().terminal(TerminalSize::default()).window(1000).keep(1 << 20, 0);
        let line = "echo early; exec </dev/null >/dev/null 2>&1; sleep 0.2; seq 20000 >/dev/tty; exit 7";
        let expected: String = (1..=20000).map(|number| format!("{number}\r\n")).collect();
        // For a run with input, the library opens one more descriptor of the terminal. It closes this descriptor once
        // it has written all input.
        for run in [run.clone(), run.input(&b"x\n"[..])] {
            for output in [
                sh(line).run_with(&run).expect("runs"),
                start(line, &run).wait().expect("a job result").as_ref().clone(),
            ] {
                assert_eq!((output.code(), output.signal(), &output.drain), (Some(7), None, &Drain::Eof));
                let text = output.stdout_text();
                assert!(text.starts_with("early\r\n") || text.starts_with("x\r\n"), "{:?}", &text[..20]);
                assert!(text.ends_with(&expected), "{} bytes", text.len());
            }
        }
        // While no process has the terminal open, the library must not poll it in a busy loop.
        let before = cpu_of_this_thread();
        let run = Run::new().terminal(TerminalSize::default());
        assert!(sh("exec </dev/null >/dev/null 2>&1; sleep 1").run_with(&run).expect("runs").ok());
        assert!(cpu_of_this_thread() - before < Duration::from_millis(500));
    });
}
