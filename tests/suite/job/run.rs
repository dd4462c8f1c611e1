// SPDX-License-Identifier: MIT OR Apache-2.0
//! Captured runs: the captured output, the end of a run, the processes that it kills.

use crate::common;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::common::job::{both, in_caller, in_engine, sh};
use crate::common::tree::is_alive;
use crate::common::{Launcher, eventually, every_launcher, rounds};
use spawnfd::error::{Errno, ErrorKind, Stage};
use spawnfd::job::{Drain, Fate, SharedBytes, Stop, Stream, TerminalSize};
use spawnfd::limits::{Limiter, Limits};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Error, Output, Run, Stdio, Template};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{confine, enough_time, isolated, scratch};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

/// Runs a command in the caller's thread and in the engine thread, with a timeout, and checks both outputs. The
/// timeout is long enough for the program to create its file first, and shorter than the grace and drain times.
fn both_timed_out(command: impl Fn(&Path) -> Command<'static>, check: impl Fn(Output)) {
    let run = Run::new().grace(LONG).drain(LONG);
    let in_time = |runner: fn(Command<'static>, &Run) -> Output| {
        enough_time(Duration::from_millis(300), |time, mark| runner(command(mark), &run.clone().timeout(time)))
    };
    check(in_time(in_caller));
    check(in_time(in_engine));
}

#[test]
fn two_sources_of_one_stream_are_rejected() {
    isolated!(|| {
        let run = Run::new();
        let with_stdin = |stdin| {
            let mut command = sh("cat");
            command.stdin(stdin);
            command
        };
        let mut with_stderr = sh("cat");
        with_stderr.stderr(Stdio::SameAsStdout);
        let wrong = [
            (sh("cat"), run.clone().input("x").writable(100), "input cannot be combined with writable"),
            (with_stdin(Stdio::Null), run.clone().input("x"), "input cannot be combined with stdin"),
            (with_stdin(Stdio::Piped), run.clone().writable(100), "writable cannot be combined with stdin"),
            (
                with_stdin(Stdio::Null),
                run.clone().terminal(TerminalSize::default()),
                "terminal cannot be combined with stdin",
            ),
            (with_stderr, run.terminal(TerminalSize::default()), "terminal cannot be combined with stderr"),
        ];
        for (command, run, message) in wrong {
            // A run that waits for a place would never end.
            let limiter = Limiter::new(1);
            let _place = limiter.acquire().expect("a place");
            let run = run.limiter(&limiter);
            for error in [
                command.run_with(&run).expect_err("rejected"),
                command.start(&run).map(drop).expect_err("rejected"),
                command.run_then(&run, |_| {}).map(drop).expect_err("rejected"),
            ] {
                assert_eq!((error.kind(), error.message().as_ref()), (ErrorKind::Invalid, message));
            }
        }
    });
}

#[test]
fn check_of_a_job_result_returns_the_error_of_the_crate() {
    fn checked(script: &str) -> spawnfd::Result<()> {
        let job = sh(script).start(&Run::new())?;
        job.wait()?.check()?;
        Ok(())
    }
    isolated!(|| {
        checked("exit 0").expect("code 0");
        let error = checked("echo why >&2; exit 3").expect_err("code 3");
        assert_eq!((error.stage(), error.kind()), (Stage::Exit, ErrorKind::Exit));
        assert_eq!(format!("{error:?}"), "/bin/sh exited with status 3: why");
        assert_eq!(error.detail(), "exit: exited, exit status: 3");
        let exit = error.exit().expect("an ExitError");
        assert_eq!((exit.output.code(), &exit.output.stderr_text()[..]), (Some(3), "why\n"));
        let missing = || Command::new("/nonexistent").run_with(&Run::new())?.check().map(|_| ()).map_err(Error::from);
        let error = missing().expect_err("no program");
        assert_eq!((error.kind(), error.exit()), (ErrorKind::NotFound, None));
    });
}

#[test]
fn a_result_has_output_status_and_stop_reason() {
    isolated!(|| {
        let run = Run::new();
        both(
            || sh("echo out; echo err >&2; exit 3"),
            &run,
            |output| {
                assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
                assert_eq!((output.code(), output.signal(), output.stop), (Some(3), None, Stop::Exited));
                assert_eq!((output.drain.clone(), output.omitted_bytes, output.ok()), (Drain::Eof, 0, false));
                let error = output.check().expect_err("no success");
                assert!(error.to_string().contains("exited with status 3: err"), "{error}");
            },
        );
        both(
            || sh("kill -15 $$"),
            &run,
            |output| {
                assert_eq!((output.code(), output.signal(), output.stop), (None, Some(15), Stop::Exited));
            },
        );
        both(|| sh("cat; readlink /proc/self/fd/0"), &run, |output| assert_eq!(output.stdout_text(), "/dev/null\n"));
        both(
            || sh("ps -o sid= -p $$ | tr -d ' '; echo $$"),
            &run,
            |output| {
                let lines: Vec<_> = output.stdout_text().lines().map(str::to_owned).collect();
                assert!(lines.len() < 2 || lines[0] == lines[1], "a session of its own: {lines:?}");
            },
        );
        let error = Command::new("/nowhere").run().expect_err("no program");
        assert_eq!((error.stage(), error.errno()), (Stage::Template, Errno::ENOENT));
    });
}

#[test]
fn head_and_tail_are_kept() {
    isolated!(|| {
        let run = Run::new().keep(10, 5);
        both(
            || sh("seq 1 200000; printf the-end"),
            &run,
            |output| {
                let all: u64 = (1..=200_000_u64).map(|number| number.to_string().len() as u64 + 1).sum::<u64>() + 7;
                assert_eq!(output.omitted_bytes, all - 15);
                assert_eq!(output.stdout_text(), "1\n2\n3\n4\n5\n[… 1,288,887 bytes omitted …]\ne-end");
                assert_eq!(
                    (output.head(Stream::Stdout), output.tail(Stream::Stdout)),
                    (&b"1\n2\n3\n4\n5\n"[..], &b"e-end"[..])
                );
                let omitted = output.omitted(Stream::Stdout);
                assert_eq!((omitted.bytes, omitted.offset), (all - 15, 10));
            },
        );
        both(
            || sh("printf 12345678901234567"),
            &run,
            |output| {
                assert_eq!(
                    (&output.stdout_text()[..], output.omitted_bytes),
                    ("1234567890\n[… 2 bytes omitted …]\n34567", 2)
                );
            },
        );
        both(|| sh("printf 123"), &run, |output| assert_eq!(output.stdout, b"123"));
        both(
            || sh("seq 1 100000; seq 1 100000 >&2"),
            &Run::new().keep(0, 0),
            |output| {
                let marker = "[… 588,895 bytes omitted …]\n";
                assert_eq!((&output.stdout_text()[..], &output.stderr_text()[..], output.ok()), (marker, marker, true));
                assert_eq!(output.omitted_bytes, 2 * 588_895);
            },
        );
    });
}

#[test]
fn the_marker_can_be_changed_or_left_out() {
    isolated!(|| {
        let run = || Run::new().keep(2, 2);
        both(
            || sh("printf 123456 >&2"),
            &run().marker(Some("<{omitted}>")),
            |output| {
                assert_eq!(output.stderr_text(), "12\n<2 bytes>\n56");
            },
        );
        both(|| sh("printf 123456 >&2"), &run().marker(None), |output| assert_eq!(output.stderr, b"1256"));
        for marker in ["two\nlines", "\r", "\0"] {
            let error = sh("true").run_with(&run().marker(Some(marker))).expect_err("no line");
            assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL));
            assert_eq!(error.message(), "the marker must not contain a line break or a NUL character");
            assert!(sh("true").start(&run().marker(Some(marker))).is_err());
        }
    });
}

/// Writes lines to both streams in turn, each line after the library has read the previous one.
const ALTERNATES: &str = r#"
import array, fcntl, os, termios
def await_reader(fd):
    left = array.array("i", [1])
    while left[0]:
        fcntl.ioctl(fd, termios.FIONREAD, left)
for fd, text in (1, b"a\n"), (2, b"b\n"), (1, b"c\n"), (1, b"d\n"), (2, b"e\n"), (1, b"f\n"):
    os.write(fd, text)
    await_reader(fd)
"#;

#[test]
fn a_combined_run_has_both_streams_in_order_of_arrival() {
    isolated!(|| {
        let command = || {
            let mut command = Command::new("python3");
            command.args(["-c", ALTERNATES]);
            command
        };
        let pieces = |output: Output| {
            let pieces = output.pieces().expect("a combined run").into_iter();
            pieces.map(|piece| format!("{}:{}", piece.stream.index() + 1, piece.text)).collect::<String>()
        };
        let run = Run::new().combined(true);
        both(command, &run, |output| assert_eq!(pieces(output), "1:a\n2:b\n1:c\nd\n2:e\n1:f\n"));
        both(command, &run.clone().keep(2, 2), |output| {
            assert_eq!(
                (&output.stdout_text()[..], &output.stderr[..]),
                ("a\n[… 4 bytes omitted …]\nf\n", &b"b\ne\n"[..])
            );
            assert_eq!(pieces(output), "1:a\n2:b\n1:[… 4 bytes omitted …]\n2:e\n1:f\n");
        });
        let merged = || {
            let mut command = sh("echo 1; echo 2 >&2");
            command.stderr(Stdio::SameAsStdout);
            command
        };
        both(merged, &run, |output| assert_eq!(pieces(output), "1:1\n2\n"));
        let terminal = run.terminal(TerminalSize::new(24, 80));
        both(|| sh("echo 1; echo 2 >&2"), &terminal, |output| assert_eq!(pieces(output), "1:1\r\n2\r\n"));
        both(|| sh("echo 1"), &Run::new(), |output| assert_eq!(output.pieces(), None));
    });
}

#[test]
fn streams_can_be_merged() {
    isolated!(|| {
        let command = || {
            let mut command = sh("echo 1; echo 2 >&2; echo 3; echo 4 >&2");
            command.stderr(Stdio::SameAsStdout);
            command
        };
        both(command, &Run::new(), |output| {
            assert_eq!((output.stdout_text(), output.stderr.len()), ("1\n2\n3\n4\n".into(), 0));
        });
    });
}

#[test]
fn input_larger_than_a_pipe_is_written() {
    isolated!(|| {
        let input: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
        let run = Run::new().input(input.clone()).keep(4_000_000, 0);
        both(|| Command::new("/bin/cat"), &run, |output| assert!(output.stdout == input && output.ok()));
        // A program that does not read its input still ends normally, and the run succeeds.
        both(|| Command::new("/bin/true"), &run, |output| assert!(output.ok()));
        both(
            || sh("head -c 5; exec <&-; sleep 0.05; echo done"),
            &run,
            |output| {
                assert!(output.stdout.ends_with(b"done\n") && output.ok());
            },
        );
        both(|| Command::new("/bin/cat"), &Run::new().input(Vec::new()), |output| assert!(output.stdout.is_empty()));
    });
}

every_launcher! {
    a_timeout_kills_the_group [exec under Docker]: |launcher| {
        if launcher == Launcher::ByDescriptor {
            return;
        }
        let changes: [fn(&mut Command<'static>); 3] = [|_| (), |c| _ = c.setsid(), |c| _ = c.process_group(0)];
        for change in changes {
            let command = |mark: &Path| {
                let mut command = sh("sleep 1000 & echo $!; echo partial >&2; : >\"$0\"; wait");
                command.arg(mark);
                change(&mut command);
                launcher.prepare(&mut command);
                command.stdout(Stdio::Piped).stderr(Stdio::Piped);
                command
            };
            both_timed_out(command, |output| {
                assert_eq!((output.stop, output.signal(), output.drain.clone()), (Stop::Timeout, Some(15), Drain::Eof));
                assert_eq!(output.stderr, b"partial\n");
                let grandchild = output.stdout_text().into_owned();
                eventually("the grandchild is killed, too", || !is_alive(&grandchild));
            });
        }
    };
}

#[test]
fn a_grandchild_that_holds_the_output_is_named() {
    isolated!(|| {
        let run = Run::new().timeout(LONG).drain(Duration::from_millis(30));
        let directory = scratch();
        // Starts `first` in the background; the shell ends once `first` has created the file.
        let leaves = |first: &str| {
            let wait = "until test -e \"$0\"; do sleep 0.01; done; rm \"$0\"; echo $!";
            let mut command = sh(&format!("{first} & {wait}"));
            command.arg(directory.path().join("done"));
            command
        };
        both(
            || leaves("setsid sh -c ': >\"$0\"; exec sleep 1000' \"$0\""),
            &run,
            |output| {
                let pid: u32 = output.stdout_text().trim().parse().expect("a pid");
                assert_eq!((output.stop, output.code()), (Stop::Exited, Some(0)));
                let Drain::Cut(holders) = &output.drain else { panic!("{:?}", output.drain) };
                assert_eq!(holders, &[pid]);
                assert_eq!(
                    output.leftovers.iter().map(|left| (left.pid, left.fate)).collect::<Vec<_>>(),
                    [(pid, Fate::Killed)]
                );
                eventually("the process is gone", || !is_alive(pid));
            },
        );
        // No process holds the streams of a leftover process that has closed them.
        both(
            || leaves("(exec >&- 2>&-; : >\"$0\"; exec sleep 1000)"),
            &run,
            |output| assert_eq!(output.drain, Drain::Eof),
        );
    });
}

#[test]
fn given_streams_are_not_captured() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("out");
        let command = || {
            let mut command = sh("echo out; echo err >&2; cat");
            command.stdout(fs::File::create(directory.path().join("out")).expect("own directory"));
            command.stdin(fs::File::open("/etc/hostname").expect("it exists"));
            command
        };
        both(command, &Run::new(), |output| {
            assert_eq!((&output.stdout[..], &output.stderr[..]), (&b""[..], &b"err\n"[..]));
            let name = fs::read_to_string("/etc/hostname").expect("it exists");
            assert_eq!(fs::read_to_string(&path).expect("written"), format!("out\n{name}"));
        });
    });
}

/// A run replaces the command's streams only for its own child. Afterwards the command has its earlier streams, also
/// if the run failed.
#[test]
fn a_run_does_not_change_the_commands_streams() {
    isolated!(|| {
        let directory = scratch();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::write(&from, "from the file\n").expect("own directory");
        let no_memory = Run::new().limits(Limits::new().memory(0));
        for (run, works) in [(Run::new(), true), (no_memory, false)] {
            let mut command = Command::new("cat");
            command
                .stdin(fs::File::open(&from).expect("it exists"))
                .stdout(fs::File::create(&to).expect("own directory"));
            assert_eq!(command.run_with(&run).is_ok(), works);
            fs::write(&from, "from the file\nand more\n").expect("own directory");
            let output = command.run().expect("runs");
            assert!(output.ok() && output.stdout.is_empty(), "{output:?}");
            assert!(fs::read_to_string(&to).expect("own file").ends_with("and more\n"));
        }
        let input = Run::new().input("input");
        let terminal = input.clone().terminal(TerminalSize::default());
        let fails = input.clone().limits(Limits::new().memory(0));
        for (run, works) in [(input, true), (terminal, true), (fails, false)] {
            let command = Command::new("true");
            assert_eq!(command.run_with(&run).is_ok(), works);
            let mut child = command.spawn().expect("starts");
            assert!(child.stdin.is_none() && child.stdout.is_none() && child.stderr.is_none(), "inherited, as before");
            assert!(child.wait().expect("a status").success());
        }
    });
}

#[test]
fn runs_can_be_cancelled_from_many_threads() {
    isolated!(limit: Duration::from_secs(600), || {
        let template = Template::open("/bin/sleep").expect("a template");
        common::warm_up(Launcher::Clone3);
        let before = Snapshot::take();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let template = &template;
                scope.spawn(move || {
                    for round in 0..rounds(200) {
                        let (sender, receiver) = channel();
                        let mut command = template.command();
                        let quick = (round + thread) % 3 == 0;
                        command.arg(if quick { "0.001" } else { "1000" });
                        let done = move |output: spawnfd::Result<Output>| sender.send(output).expect("the receiver is alive");
                        let run = Run::new().grace(LONG).tree(TreeControl::Group);
                        let handle = command.run_then(&run, done).expect("starts");
                        if round % 5 == 0 {
                            let handle = handle.clone();
                            std::thread::spawn(move || handle.cancel());
                        }
                        handle.cancel();
                        handle.cancel();
                        let output = receiver.recv().expect("a message").expect("runs");
                        match output.stop {
                            // The run was cancelled while its program was ending by itself.
                            Stop::Cancelled if quick && output.code() == Some(0) => {}
                            Stop::Cancelled => assert_eq!(output.signal(), Some(15)),
                            Stop::Exited => assert!(quick && output.ok()),
                            other => panic!("{other:?}"),
                        }
                        // The run has ended: cancelling has no effect, and no other process gets a signal.
                        handle.cancel();
                        assert!(receiver.recv().is_err(), "the callback is called once");
                    }
                });
            }
        });
        // The engine's thread ends after it has been idle for a while, and closes its descriptors.
        eventually("idle", || {
            Snapshot::diff(&before, &Snapshot::take()).iter().all(|line| {
                line.contains("socket:") || line.contains("pidfd") || line.starts_with("fd ") && line.contains("closed")
            })
        });
        eventually("no thread", || Snapshot::take().threads == before.threads);
    });
}

#[test]
fn many_runs_at_once_get_their_own_output() {
    isolated!(limit: Duration::from_secs(600), || {
        let (sender, receiver) = channel();
        let count = rounds(400);
        let mut running = 0;
        for number in 0..count {
            let sender = sender.clone();
            let mut command = sh("cat; echo $0");
            command.arg(number.to_string());
            let run = Run::new().input(vec![b'x'; 70_000]).keep(100_000, 0).timeout(LONG);
            command.run_then(&run, move |output| sender.send((number, output)).expect("the receiver is alive")).expect("starts");
            running += 1;
            if running == 16 {
                let (number, output) = receiver.recv().expect("a message");
                assert!(output.expect("runs").stdout_text().ends_with(&format!("x{number}\n")));
                running -= 1;
            }
        }
        for _ in 0..running {
            let (number, output) = receiver.recv().expect("a message");
            assert!(output.expect("runs").stdout_text().ends_with(&format!("x{number}\n")));
        }
    });
}

#[test]
fn a_callback_can_start_the_next_run() {
    isolated!(|| {
        let (sender, receiver) = channel();
        fn next(left: usize, sender: std::sync::mpsc::Sender<()>) {
            let done = move |output: spawnfd::Result<Output>| {
                assert!(output.expect("runs").ok());
                if left == 0 { sender.send(()).expect("the receiver is alive") } else { next(left - 1, sender) }
            };
            Command::new("/bin/true").run_then(&Run::new(), done).expect("starts");
        }
        next(50, sender);
        receiver.recv().expect("a message");
    });
}

#[test]
fn the_engine_ends_after_a_failed_start() {
    isolated!(|| {
        let before = Snapshot::take();
        // The library starts the run's guard (a helper process) before the program. This takes so long that the
        // engine thread sleeps when the start of the program fails.
        let run = Run::new().tree(TreeControl::Guard);
        for _ in 0..3 {
            let error = Command::new("/nowhere").run_then(&run, |_| ()).expect_err("no program");
            assert_eq!(error.errno(), Errno::ENOENT);
            eventually("the engine's thread ends", || Snapshot::take().threads == before.threads);
        }
    });
}

#[test]
fn reused_engine_descriptors_are_left_alone() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("theirs");
        let file = fs::File::create(&path).expect("own directory");
        let (sender, receiver) = channel();
        let start = |script: &str| {
            let sender = sender.clone();
            let done = move |output: spawnfd::Result<Output>| sender.send(output).expect("the receiver is alive");
            sh(script).run_then(&Run::new().tree(TreeControl::Group), done).expect("starts")
        };
        let next = || receiver.recv_timeout(LONG).expect("a message");
        let before = Snapshot::take();
        let _under_way = start("exec sleep 1000");
        let program = common::next_child();
        let is_engine_s = |number: &i32| {
            let target = fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
            ["eventpoll", "eventfd"].iter().any(|kind| target.to_string_lossy().contains(kind))
        };
        let numbers: Vec<i32> = Snapshot::take().fds.into_keys().filter(is_engine_s).collect();
        assert_eq!(numbers.len(), 2);
        let theirs: Vec<_> = numbers.iter().map(|&number| common::at_number(&file, number)).collect();
        // The next run gets a new engine thread, although the old one still sleeps.
        let _next = start("echo out");
        let mut outcomes = [next(), next()];
        outcomes.sort_by_key(Result::is_err);
        let [ended, lost] = outcomes.map(|outcome| outcome.map(|output| output.stdout_text().into_owned()));
        assert_eq!(ended.expect("runs"), "out\n");
        assert_eq!(lost.expect_err("the run is lost").errno(), Errno::EBADF);
        eventually("both threads end", || Snapshot::take().threads == before.threads);
        common::assert_left_alone(&path, &numbers, program);
        drop(theirs);
    });
}

#[test]
fn reused_run_descriptors_are_left_alone() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("theirs");
        fs::write(&path, "theirs").expect("own directory");
        let file = fs::File::options().read(true).write(true).open(&path).expect("own file");
        let before = Snapshot::take();
        let (mut asked, mut program, mut theirs) = (0, 0, Vec::new());
        let run = Run::new().timeout(LONG).input(vec![0; 1 << 20]).tree(TreeControl::Group);
        let lost = sh("exec sleep 1000").run_interruptible(&run, || {
            asked += 1;
            if asked == 1 {
                // The library checks a run's descriptors only after the first 10 ms.
                std::thread::sleep(Duration::from_millis(50));
            }
            if asked == 2 {
                program = common::next_child();
                let numbers = Snapshot::take().fds.into_keys().filter(|number| !before.fds.contains_key(number));
                theirs = numbers.map(|number| common::at_number(&file, number)).collect();
            }
            false
        });
        assert_eq!(lost.expect_err("the run is lost").errno(), Errno::EBADF);
        assert!(theirs.len() >= 4, "{theirs:?}");
        assert_eq!(fs::read(&path).expect("it exists"), b"theirs", "the library wrote to the application's file");
        for fd in &theirs {
            assert_eq!(fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("still open"), path);
        }
        // SAFETY: the program is a child of this process, and no other code waits for it.
        unsafe {
            libc::kill(program, libc::SIGKILL);
            libc::waitpid(program, std::ptr::null_mut(), 0);
        }
    });
}

#[test]
fn a_failed_run_kills_its_program() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("pids");
        let line = format!("sleep 1000 & echo $$ $! >{0}.new; mv {0}.new {0}; wait", path.display());
        // The library calls this closure before it watches the program.
        let confine = || {
            eventually("both processes run", || path.exists());
            confine::deny(&[("ppoll", libc::ENOMEM)]).expect("confined");
            false
        };
        let run_here = || sh(&line).run_interruptible(&Run::new(), confine).expect_err("ppoll fails");
        let error = std::thread::scope(|scope| scope.spawn(run_here).join().expect("the thread's assertions hold"));
        assert_eq!((error.stage(), error.errno()), (Stage::Capture, Errno::ENOMEM), "{error}");
        let pids = fs::read_to_string(&path).expect("written");
        eventually("both are killed", || !pids.split_whitespace().any(is_alive));
        eventually("the program is reaped", || common::children().is_empty());
    });
}

#[test]
fn a_run_kills_its_tree_after_a_foreign_reap() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("pid");
        let line = format!("sleep 1000 & echo $! >{}", path.display());
        let mut reaped = false;
        let reap = || {
            if !std::mem::replace(&mut reaped, true) {
                // SAFETY: waitpid stores nothing, and the program is the only child.
                assert!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) } > 0);
                // From Linux 6.15 on, the kernel reports the status of a reaped process by an ioctl, so the test
                // refuses ioctl.
                confine::deny(&[("ioctl", libc::ENOTTY)]).expect("confined");
            }
            false
        };
        let run_here = || sh(&line).run_interruptible(&Run::new(), reap).expect("a result");
        let output = std::thread::scope(|scope| scope.spawn(run_here).join().expect("the thread's assertions hold"));
        assert_eq!((output.status, output.stop), (None, Stop::Lost));
        let left = fs::read_to_string(&path).expect("written");
        eventually("the leftover is killed", || !is_alive(&left));
    });
}

#[test]
fn a_run_whose_input_pipe_fails_kills_its_program() {
    isolated!(|| {
        let run = Run::new().input("never written");
        let sleep = || Command::new("/bin/sleep").arg("1000").run_with(&run).map(drop);
        let in_engine = || Command::new("/bin/sleep").arg("1000").run_then(&run, |_| ()).map(drop);
        let starts: [&(dyn Fn() -> spawnfd::Result<()> + Sync); 2] = [&sleep, &in_engine];
        for start in starts {
            let failed = || {
                confine::deny(&[("fcntl", libc::EPERM)]).expect("confined");
                start().expect_err("the pipe cannot be made non-blocking")
            };
            let error = std::thread::scope(|scope| scope.spawn(failed).join().expect("the thread's assertions hold"));
            assert_eq!((error.stage(), error.errno()), (Stage::Capture, Errno::EPERM), "{error}");
            eventually("the program is killed and reaped", || common::children().is_empty());
        }
    });
}

#[test]
fn a_panicking_callback_does_not_affect_other_runs() {
    isolated!(|| {
        let (sender, receiver) = channel();
        let other = sender.clone();
        let slow = move |output: spawnfd::Result<Output>| {
            other.send(output.expect("runs").ok()).expect("the receiver is alive")
        };
        sh("sleep 0.3").run_then(&Run::new(), slow).expect("starts");
        Command::new("/bin/true").run_then(&Run::new(), |_| panic!("on purpose")).expect("starts");
        assert_eq!(receiver.recv_timeout(LONG), Ok(true), "the other run is unaffected");
        let done = move |output: spawnfd::Result<Output>| {
            sender.send(output.expect("runs").ok()).expect("the receiver is alive")
        };
        Command::new("/bin/true").run_then(&Run::new(), done).expect("starts");
        assert_eq!(receiver.recv_timeout(LONG), Ok(true), "the next run works");
    });
}

/// A value that panics when it is used in the way that `when` names. In the thread that created it, it never panics.
struct Panics {
    when: &'static str,
    made_in: std::thread::ThreadId,
}

impl Panics {
    fn when(when: &'static str) -> Panics {
        Panics { when, made_in: std::thread::current().id() }
    }

    fn now(&self, what: &str) {
        assert!(self.when != what || std::thread::current().id() == self.made_in, "on purpose: {what}");
    }
}

impl AsRef<[u8]> for Panics {
    fn as_ref(&self) -> &[u8] {
        self.now("read");
        b"x"
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.now("dropped");
    }
}

#[test]
fn panics_in_input_wakers_and_payloads_do_not_affect_other_runs() {
    isolated!(|| {
        let other = Command::new("cat").start(&Run::new().writable(10)).expect("starts");
        // Case 1: the value that holds the run's input panics.
        let fed = |when| {
            let run = Run::new().input(SharedBytes::new(Panics::when(when)));
            let job = sh("sleep 0.1; cat").start(&run).expect("starts");
            drop(run);
            job.wait_timeout(LONG).map(|output| output.map(|output| output.stdout.clone()))
        };
        let error = fed("read").expect_err("reading the input panics");
        assert_eq!((error.stage(), error.errno()), (Stage::Capture, Errno::EIO), "{error}");
        assert_eq!(fed("dropped"), Ok(Some(b"x".to_vec())));
        // Case 2: a waker panics when its job is dropped.
        let job = Command::new("cat").start(&Run::new().writable(10)).expect("starts");
        let panics = Panics::when("dropped");
        job.on_writable(move || panics.now("woken"));
        drop(job);
        // Case 3: a callback panics with a payload that panics again when it is dropped.
        let (sender, receiver) = channel::<()>();
        let panics = Panics::when("dropped");
        let done = move |_| {
            drop(sender);
            std::panic::panic_any(panics)
        };
        Command::new("true").run_then(&Run::new(), done).expect("starts");
        assert!(receiver.recv_timeout(LONG).is_err_and(|error| error == RecvTimeoutError::Disconnected));
        other.close_stdin();
        assert!(other.wait_timeout(LONG).expect("a job result").expect("in time").ok(), "the other run is unaffected");
        let next = Command::new("true").start(&Run::new()).expect("starts");
        assert!(next.wait_timeout(LONG).expect("a job result").expect("in time").ok(), "the next run works");
    });
}

#[test]
fn a_callback_can_use_512_kib_of_stack() {
    isolated!(|| {
        let (sender, receiver) = channel();
        let done = move |_| {
            let large = [1_u8; 512 << 10];
            sender.send(std::hint::black_box(&large).len()).expect("the receiver is alive");
        };
        Command::new("true").run_then(&Run::new(), done).expect("starts");
        assert_eq!(receiver.recv_timeout(LONG), Ok(512 << 10));
    });
}

#[test]
fn a_program_started_in_a_callback_has_the_hosts_signal_mask() {
    isolated!(|| {
        // SAFETY: sigemptyset fills the set, which belongs to this function, before it is read.
        unsafe {
            let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGUSR1);
            assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()), 0);
        }
        fn look() -> Command<'static> {
            let mut command = Command::new("grep");
            command.args(["^SigBlk", "/proc/self/status"]);
            command
        }
        let told = |output: spawnfd::Result<Output>| output.expect("runs").stdout_text().trim().to_owned();
        let (sender, receiver) = channel();
        let done = move |_| {
            sender.send(told(look().run())).expect("the receiver is alive");
            let then = move |output| sender.send(told(output)).expect("the receiver is alive");
            look().run_then(&Run::new(), then).expect("starts");
        };
        Command::new("true").run_then(&Run::new(), done).expect("starts");
        let own = told(look().run());
        assert!(own.ends_with("200"), "{own}");
        for _ in 0..2 {
            assert_eq!(receiver.recv_timeout(LONG).as_deref(), Ok(own.as_str()));
        }
    });
}

#[test]
fn runs_leave_nothing() {
    isolated!(|| {
        common::wait_success(Command::new("/bin/sh").stdin(Stdio::Null).spawn().expect("starts"));
        common::warm_up(Launcher::Clone3);
        let before = Snapshot::take();
        for _ in 0..rounds(100) {
            let run = Run::new().tree(TreeControl::Group);
            assert!(sh("echo x").run_with(&run).expect("runs").ok());
            assert_eq!(sh("sleep 1000").run_with(&run.timeout(Duration::ZERO)).expect("runs").stop, Stop::Timeout);
        }
        leaks::assert_unchanged(&before);
    });
}
