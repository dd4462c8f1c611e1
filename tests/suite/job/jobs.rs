// SPDX-License-Identifier: MIT OR Apache-2.0
//! Job handles: waiting, reading and writing while the program runs, stopping.

use crate::common;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use crate::common::eventually;
use crate::common::job::{read_until, sh, start, text};
use crate::common::tree::is_alive;
use spawnfd::error::Errno;
use spawnfd::job::{Drain, Event, EventOptions, Fate, Leftovers, LineEnd, Spill, SpillEnd, Stop, Stream, WhenFull};
use spawnfd::tree::{Tier, TreeControl};
use spawnfd::{Command, Run};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{isolated, scratch};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_wait_that_times_out_leaves_the_job_running() {
    isolated!(|| {
        let job = start("echo one; read line; echo \"two $line\"; exit 3", &Run::new().writable(100).window(1000));
        let (text, next) = read_until(&job, 0, "one\n");
        assert_eq!((&text[..], next), ("one\n", 4));
        assert!(job.wait_timeout(Duration::from_millis(20)).expect("a job result").is_none());
        assert!(job.try_wait().expect("a job result").is_none());
        assert_eq!(job.write(b"more\n").expect("stdin is open"), 5);
        let output = job.wait().expect("a job result");
        assert_eq!((output.stop, output.code(), &output.stdout_text()[..]), (Stop::Exited, Some(3), "one\ntwo more\n"));
        assert_eq!(job.read(next).text(), "two more\n", "output can be read after the end");
        assert_eq!(job.wait().expect("a second wait").code(), Some(3));
        assert_eq!(job.write(b"x").expect_err("the program has ended").errno(), Errno::EPIPE);
    });
}

#[test]
fn stop_sends_sigterm_then_sigkill() {
    isolated!(|| {
        let run = Run::new().window(100);
        let polite = start("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done", &run);
        read_until(&polite, 0, "ready");
        polite.stop(LONG);
        let output = polite.wait().expect("a job result");
        assert_eq!((output.stop, output.code(), text(&output)), (Stop::Cancelled, Some(7), "ready\nbye\n".to_owned()));

        let deaf = start("trap '' TERM; echo ready; while :; do sleep 0.01; done", &run);
        read_until(&deaf, 0, "ready");
        let begun = Instant::now();
        deaf.stop(Duration::from_millis(200));
        let output = deaf.wait().expect("a job result");
        assert_eq!((output.stop, output.signal()), (Stop::Cancelled, Some(9)));
        assert!(begun.elapsed() >= Duration::from_millis(200), "the program had its grace");

        let stopped = start("echo ready; kill -STOP $$; exit 5", &run);
        read_until(&stopped, 0, "ready");
        stopped.stop(LONG);
        assert_eq!(stopped.wait().expect("a job result").signal(), Some(15), "a stopped program is continued");
    });
}

#[test]
fn a_second_stop_does_not_extend_the_grace() {
    isolated!(|| {
        let job = start("trap '' TERM; echo ready; while :; do sleep 0.01; done", &Run::new().window(100));
        read_until(&job, 0, "ready");
        job.stop(Duration::from_millis(300));
        job.stop(Duration::from_secs(1000));
        assert_eq!(job.wait().expect("a job result").signal(), Some(9));
    });
}

/// Blocks the engine thread (the library's thread that runs jobs) in the callback of another run. Dropping the
/// returned value ends the block.
fn block_the_engine() -> std::sync::mpsc::Sender<()> {
    let (here, arrived) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let hold = move |_| {
        here.send(()).expect("the receiver is alive");
        let _ = released.recv();
    };
    sh("exit").run_then(&Run::new(), hold).expect("starts");
    arrived.recv().expect("a message");
    release
}

#[test]
fn output_before_a_second_stop_is_kept() {
    isolated!(|| {
        let gate = scratch();
        let gate = gate.path().join("gate");
        let line = format!("while ! test -e {}; do sleep 0.01; done; echo written", gate.display());
        for stops in [1, 2, 3] {
            let job = start(&line, &Run::new().grace(Duration::from_secs(100)));
            let engine = block_the_engine();
            (0..stops).for_each(|_| job.stop(Duration::from_secs(100)));
            fs::write(&gate, "").expect("own directory");
            let stat = format!("/proc/{}/stat", job.id());
            eventually("the program ends by itself", || {
                fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z "))
            });
            fs::remove_file(&gate).expect("own file");
            drop(engine);
            let output = job.wait().expect("a job result");
            assert_eq!(
                (output.stop, text(&output), &output.drain),
                (Stop::Exited, "written\n".to_owned(), &Drain::Eof)
            );
        }
    });
}

#[test]
fn a_stop_after_the_end_keeps_the_status() {
    isolated!(|| {
        for _ in 0..50 {
            let job = start("exit 4", &Run::new());
            job.stop(Duration::ZERO);
            let output = job.wait().expect("a job result");
            match output.stop {
                Stop::Exited => assert_eq!(output.code(), Some(4)),
                Stop::Cancelled => assert_eq!(output.signal(), Some(9)),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn dropping_a_job_ends_it_and_detaching_does_not() {
    isolated!(|| {
        let directory = scratch();
        let (there, mark) = (directory.path().join("there"), directory.path().join("mark"));
        let line = |path: &std::path::Path, then: &str| format!("echo > {}; {then}", path.display());
        let job = start(&line(&there, "exec sleep 1000"), &Run::new());
        let pid = job.id();
        eventually("the program runs", || there.exists());
        drop(job);
        eventually("the program is killed and reaped", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
        start(&format!("sleep 0.2; {}", line(&mark, "true")), &Run::new()).detach();
        eventually("the detached program runs to its end", || mark.exists());
        eventually("the detached program is reaped", || common::children().is_empty());
    });
}

#[test]
fn the_output_limit_ends_a_run() {
    isolated!(|| {
        let run = Run::new().output_limit(1_000_000).keep(10, 10).grace(LONG);
        let output = sh("yes").run_with(&run).expect("runs");
        assert_eq!((output.stop, output.signal()), (Stop::OutputLimit, Some(15)));
        assert!(output.seen_bytes > 1_000_000 && output.seen_bytes == output.omitted_bytes + 20);
    });
}

#[test]
fn the_spill_file_has_the_whole_output() {
    isolated!(|| {
        let directory = scratch();
        let run = Run::new().keep(4, 4).marker(None).spill(Spill::new(1 << 20).dir(directory.path()));
        let output = sh("i=0; while [ $i -lt 100 ]; do echo $i; i=$((i+1)); done").run_with(&run).expect("runs");
        let all: String = (0..100).map(|i| format!("{i}\n")).collect();
        assert_eq!(output.stdout_text(), "0\n1\n99\n");
        let spill = output.spill.clone().expect("a spill file");
        assert_eq!((spill.end, spill.bytes), (SpillEnd::Whole, all.len() as u64));
        let path = spill.file.as_ref().expect("it exists").path().to_owned();
        assert_eq!(fs::read_to_string(&path).expect("it exists"), all);
        drop((spill, output));
        assert!(!path.exists(), "the last handle removes the file");
        let little = sh("echo x").run_with(&run).expect("runs");
        assert!(little.spill.is_none_or(|spill| spill.file.is_none()));
    });
}

#[test]
fn lines_arrive_while_the_program_runs() {
    isolated!(|| {
        let options = EventOptions::new().lines(1000);
        let line = "echo out; echo err >&2; read go; printf 'last'";
        let (job, mut events) = sh(line).start_events(&Run::new().writable(10), options).expect("starts");
        let mut next = || events.next_timeout(LONG).expect("a message");
        let mut first = vec![next(), next()];
        first.sort_by_key(|event| matches!(event, Event::Line { stream: Stream::Stderr, .. }));
        for (event, (expected, text)) in first.into_iter().zip([(Stream::Stdout, b"out"), (Stream::Stderr, b"err")]) {
            let Event::Line { stream, bytes, end, .. } = event else { panic!("{event:?}") };
            assert_eq!((stream, &bytes[..], end), (expected, &text[..], LineEnd::Lf));
        }
        assert!(job.try_wait().expect("a job result").is_none(), "the program still runs");
        job.write(b"\n").expect("stdin is open");
        let Event::Line { bytes, end, .. } = next() else { panic!("no line") };
        assert_eq!((&bytes[..], end), (&b"last"[..], LineEnd::Open));
        assert_eq!(next(), Event::End);
        assert!(job.wait().expect("a job result").ok());
    });
}

#[test]
fn a_slow_reader_blocks_the_program_or_loses_output() {
    isolated!(|| {
        let line = "head -c 3000000 /dev/zero; echo done >&2";
        let waiting = EventOptions::new().max_bytes(10_000);
        let (job, mut events) = sh(line).start_events(&Run::new().keep(10, 10), waiting).expect("starts");
        assert!(
            job.wait_timeout(Duration::from_millis(200)).expect("a job result").is_none(),
            "the program waits for its reader"
        );
        let (mut seen, mut lost) = (0, 0);
        while let Some(event) = events.next_timeout(LONG) {
            match event {
                Event::Chunk { bytes, .. } => seen += bytes.len(),
                Event::Lost { bytes, .. } => lost += bytes,
                Event::End => break,
                other => panic!("{other:?}: chunks were asked for"),
            }
        }
        assert_eq!((seen, lost), (3_000_005, 0));
        assert!(job.wait().expect("a job result").ok());

        let dropping = waiting.when_full(WhenFull::DropOldest);
        let (job, mut events) = sh(line).start_events(&Run::new().keep(10, 10), dropping).expect("starts");
        assert!(job.wait().expect("a job result").ok(), "the program does not wait for a reader");
        let (mut seen, mut lost) = (0, 0);
        while let Some(event) = events.try_next() {
            match event {
                Event::Chunk { bytes, .. } => seen += bytes.len() as u64,
                Event::Lost { bytes, .. } => lost += bytes,
                _ => break,
            }
        }
        assert_eq!(seen + lost, 3_000_005);
        assert!(lost > 2_000_000);
    });
}

#[test]
fn output_of_an_ended_program_can_be_read_later() {
    isolated!(|| {
        let options = EventOptions::new().max_bytes(1000);
        let line = "head -c 30000 /dev/zero; sleep 0.1; head -c 30000 /dev/zero";
        let (job, mut events) = sh(line).start_events(&Run::new().keep(10, 10), options).expect("starts");
        let output = job.wait().expect("the job ends without a reader");
        assert_eq!((output.seen_bytes, &output.drain), (60_000, &Drain::Eof));
        let mut seen = 0;
        while let Some(Event::Chunk { bytes, .. }) = events.next_timeout(LONG) {
            seen += bytes.len();
        }
        assert_eq!(seen, 60_000);
    });
}

#[test]
fn a_consumer_can_change_to_dropping_and_to_chunks() {
    isolated!(|| {
        let options = EventOptions::new().max_bytes(10_000).lines(100);
        let line = "echo ready; head -c 3000000 /dev/zero; echo; printf end";
        let (job, mut events) = sh(line).start_events(&Run::new().keep(10, 10), options).expect("starts");
        let Some(Event::Line { bytes, .. }) = events.next_timeout(LONG) else { panic!("no line") };
        assert_eq!(bytes, b"ready");
        assert!(
            job.wait_timeout(Duration::from_millis(200)).expect("a job result").is_none(),
            "the program waits for its reader"
        );
        events.set_when_full(WhenFull::DropOldest);
        assert!(job.wait().expect("a job result").ok());
        events.set_lines(None);
        let mut rest = Vec::new();
        while let Some(event) = events.next_timeout(LONG) {
            match event {
                Event::Chunk { bytes, .. } => rest.extend(bytes),
                Event::End => break,
                _ => {}
            }
        }
        // The job keeps a limited amount of output, so it may have dropped earlier bytes.
        assert!(rest.ends_with(b"end"), "chunks instead of lines");
    });
}

#[test]
fn unread_input_is_reported() {
    isolated!(|| {
        let output = sh("exec true").run_with(&Run::new().input(vec![b'x'; 1 << 20])).expect("runs");
        assert!(output.ok() && output.input_refused);
        let output = sh("cat >/dev/null").run_with(&Run::new().input(vec![b'x'; 1 << 20])).expect("runs");
        assert!(output.ok() && !output.input_refused);
    });
}

#[test]
fn a_waker_is_called_once() {
    isolated!(|| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let job = start("sleep 0.1", &Run::new());
        let told = sender.clone();
        job.when_done(move || told.send(1).expect("the receiver is alive"));
        assert_eq!(receiver.recv_timeout(LONG), Ok(1));
        job.when_done(move || sender.send(2).expect("the receiver is alive"));
        assert_eq!(receiver.recv_timeout(LONG), Ok(2), "called at once");
        drop(job);
        assert!(receiver.try_recv().is_err());
    });
}

#[test]
fn every_waker_is_called() {
    isolated!(|| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let job = Command::new("cat").start(&Run::new().writable(10)).expect("starts");
        for number in 0..3 {
            let told = sender.clone();
            job.when_done(move || told.send(number).expect("the receiver is alive"));
        }
        job.close_stdin();
        let told = [(); 3].map(|()| receiver.recv_timeout(LONG));
        assert_eq!(told, [Ok(0), Ok(1), Ok(2)]);
    });
}

#[test]
fn a_panicking_waker_does_not_affect_other_jobs() {
    isolated!(|| {
        let panics = || || panic!("this test's own");
        let run = Run::new().writable(10);
        let (job, mut events) =
            sh("read x; sleep 0.1; cat").start_events(&run, EventOptions::default()).expect("starts");
        events.on_event(panics());
        job.on_writable(panics());
        let (sender, receiver) = std::sync::mpsc::channel();
        let taken = job.write(&[b'\n'; 1 << 20]).expect("stdin is open");
        assert!((10..1 << 20).contains(&taken), "the pipe and the queue are full: {taken}");
        eventually("there is room", || job.write(b"x").is_ok_and(|taken| taken == 1));
        job.close_stdin();
        assert!(job.wait_timeout(LONG).expect("a job result").is_some_and(|output| output.ok()));
        let other = start("sleep 0.1", &Run::new());
        other.when_done(panics());
        assert!(other.wait_timeout(LONG).expect("a job result").is_some());
        start("exit", &Run::new()).when_done(move || sender.send(()).expect("the receiver is alive"));
        assert_eq!(receiver.recv_timeout(LONG), Ok(()));
    });
}

#[test]
fn jobs_leave_nothing() {
    isolated!(|| {
        let once = || {
            let job = start("cat; echo x", &Run::new().writable(10).window(10));
            job.write(b"y").expect("stdin is open");
            job.close_stdin();
            assert!(job.wait().expect("a job result").ok());
            drop(start("sleep 1000", &Run::new().grace(Duration::ZERO)));
        };
        once();
        eventually("idle", || common::children().is_empty() && Snapshot::take().threads.len() <= 2);
        let before = Snapshot::take();
        (0..common::rounds(200)).for_each(|_| once());
        eventually("idle", || common::children().is_empty() && Snapshot::take().threads.len() <= 2);
        common::assert_unchanged_except_sockets(&before);
    });
}

/// A line of shell that leaves a program behind, and prints its pid.
const LEAVES_A_PROCESS: &str =
    "sleep 1000 >/dev/null 2>&1 & until grep -q sleep /proc/$!/comm; do sleep 0.01; done; echo $!";

#[test]
fn leftovers_are_killed_and_named() {
    isolated!(|| {
        for want in [TreeControl::Group, TreeControl::Guard, TreeControl::Auto] {
            let output = sh(LEAVES_A_PROCESS).run_with(&Run::new().tree(want)).expect("runs");
            let pid = text(&output).trim().to_owned();
            let [left] = &output.leftovers[..] else { panic!("{:?}", output.leftovers) };
            assert_eq!((left.pid.to_string(), &left.name[..], left.fate), (pid.clone(), "sleep", Fate::Killed));
            eventually("it is killed", || !is_alive(&pid));
            // With `set -m` (job control), the shell starts the leftover in a new process group.
            let line = "set -m; sleep 1000 >/dev/null 2>&1 & echo $!; exec true";
            let output = Command::new("/bin/bash").args(["-c", line]).run_with(&Run::new().tree(want)).expect("runs");
            assert_eq!(output.leftovers.len(), 1, "{want:?}: {output:?}");
            eventually("it is killed", || !is_alive(text(&output).trim()));
        }
        let alone = Command::new("true").run().expect("runs");
        assert_eq!((alone.leftovers.len(), alone.tree), (0, Tier::Guard), "the tree ends with this process");
        let started = |run: &Run| Command::new("true").start(run).and_then(|job| job.wait()).expect("runs").tree;
        assert_eq!(started(&Run::new()), Tier::Guard);
        assert_eq!(started(&Run::new().tree(TreeControl::Group)), Tier::Group);
    });
}

#[test]
fn setresuid_works_while_leftovers_are_killed() {
    isolated!(|| {
        for _ in 0..common::rounds(100) {
            let output = start("sleep 1000 & sleep 1000 & sleep 1000 &", &Run::new().drain(Duration::ZERO)).wait();
            assert_eq!(output.expect("a job result").leftovers.len(), 3);
            // libc's setresuid signals every thread to change its ids, and waits for all of them. A thread that
            // blocks this signal would hang the call.
            // SAFETY: setresuid with -1 changes no id.
            assert_eq!(unsafe { libc::setresuid(u32::MAX, u32::MAX, u32::MAX) }, 0);
        }
    });
}

#[test]
fn detached_leftovers_live_on() {
    isolated!(|| {
        for want in [TreeControl::Group, TreeControl::Guard] {
            let run = Run::new().tree(want).leftovers(Leftovers::Detach);
            let output = sh(LEAVES_A_PROCESS).run_with(&run).expect("runs");
            let pid = text(&output).trim().to_owned();
            assert_eq!((output.leftovers.len(), output.leftovers[0].fate), (1, Fate::Detached));
            assert!(is_alive(&pid));
            // SAFETY: kill takes integers, and the process belongs to this test.
            unsafe { libc::kill(pid.parse().expect("a number"), libc::SIGKILL) };
        }
    });
}

#[test]
fn adopted_leftovers_are_read_and_end_with_the_job() {
    isolated!(|| {
        let run = Run::new().leftovers(Leftovers::Adopt).window(1000).drain(Duration::from_millis(20));
        let (theirs, ours) = std::io::pipe().expect("a pipe");
        let mut command = sh("(read x <&3; echo late; sleep 1000) & echo early");
        let job = command.descriptor(std::os::fd::OwnedFd::from(theirs), 3).start(&run).expect("starts");
        let output = job.wait().expect("a job result");
        assert_eq!((text(&output), output.leftovers[0].fate), ("early\n".to_owned(), Fate::Adopted));
        drop(ours);
        read_until(&job, 6, "late");
        let pids: Vec<String> = output.leftovers.iter().map(|left| left.pid.to_string()).collect();
        assert!(pids.iter().any(is_alive));
        job.stop(Duration::ZERO);
        eventually("the adopted processes are killed", || !pids.iter().any(is_alive));
    });
}

#[test]
fn output_of_adopted_leftovers_is_kept_when_the_job_stops() {
    isolated!(|| {
        let directory = scratch();
        let written = directory.path().join("written");
        let run = Run::new().leftovers(Leftovers::Adopt).window(1000).drain(Duration::from_millis(20));
        let (theirs, ours) = std::io::pipe().expect("a pipe");
        let mut command = sh("(read x <&3; echo late; : > $0; sleep 1000) & echo early");
        command.arg(&written).descriptor(std::os::fd::OwnedFd::from(theirs), 3);
        // With max_bytes 1, the first chunk fills the event queue.
        let (job, mut events) = command.start_events(&run, EventOptions::new().max_bytes(1)).expect("starts");
        assert_eq!(text(&job.wait().expect("a job result")), "early\n");
        drop(ours);
        eventually("the adopted process has written", || written.exists());
        job.stop(Duration::ZERO);
        let mut seen = Vec::new();
        while let Some(Event::Chunk { bytes, .. }) = events.next_timeout(LONG) {
            seen.extend(bytes);
        }
        assert_eq!(String::from_utf8_lossy(&seen), "early\nlate\n");
    });
}

#[test]
fn adopted_leftovers_live_on_after_the_pipes_close() {
    isolated!(|| {
        let before = Snapshot::take();
        for want in [TreeControl::Group, TreeControl::Guard] {
            let run = Run::new().tree(want).leftovers(Leftovers::Adopt);
            let line = "cat <&3 >/dev/null 2>&1 & echo $!";
            let adopt = || {
                // cat runs until `ours` is closed or the job kills cat.
                let (theirs, ours) = std::io::pipe().expect("a pipe");
                let mut command = sh(line);
                command.descriptor(std::os::fd::OwnedFd::from(theirs), 3);
                let (job, mut events) = command.start_events(&run, EventOptions::default()).expect("starts");
                let output = job.wait().expect("a job result");
                assert_eq!((output.leftovers.len(), output.leftovers[0].fate), (1, Fate::Adopted));
                assert!(matches!(events.next_timeout(LONG), Some(Event::Chunk { .. })));
                assert_eq!(events.next_timeout(LONG), Some(Event::End), "the pipes are closed");
                (job, text(&output).trim().to_owned(), ours)
            };
            let (job, pid, _ours) = adopt();
            // The engine thread loops at the start and the end of another run. It must not kill the adopted process.
            assert!(start("exit 0", &Run::new()).wait().expect("a job result").ok());
            assert!(is_alive(&pid), "{want:?}");
            drop(job);
            eventually("dropping the job kills the process", || !is_alive(&pid));

            let (job, pid, ours) = adopt();
            drop(ours);
            eventually("the process ends by itself", || !is_alive(&pid));
            eventually("the engine's thread ends, although the job handle exists", || {
                !Snapshot::take().threads.iter().any(|thread| !before.threads.contains(thread))
            });
            drop(job);
        }
    });
}

#[test]
fn a_stop_reaches_processes_in_other_sessions() {
    isolated!(|| {
        let job = start("setsid sleep 1000 & setsid sleep 1001 & echo $!; wait", &Run::new().window(100));
        let (text, _) = read_until(&job, 0, "\n");
        let second = text.trim().to_owned();
        eventually("the process has left the session", || {
            fs::read_to_string(format!("/proc/{second}/comm")).is_ok_and(|comm| comm == "sleep\n")
        });
        job.stop(LONG);
        assert_eq!(job.wait().expect("a job result").signal(), Some(15));
        eventually("the process in the other session ends", || !is_alive(&second));
    });
}

#[test]
fn a_run_in_a_cgroup_finds_every_leftover() {
    isolated!(|| {
        let run = Run::new().tree(TreeControl::Cgroup);
        let output =
            match sh("setsid sleep 1000 >/dev/null 2>&1 & grep -c spawnfd /proc/self/cgroup; echo $!").run_with(&run) {
                Err(error) if error.stage() == spawnfd::error::Stage::Tree => {
                    return spawnfd_tests::skip("no cgroup can be made");
                }
                output => output.expect("runs"),
            };
        let lines: Vec<&str> = std::str::from_utf8(&output.stdout).expect("text").lines().collect();
        assert_eq!((lines[0], output.tree), ("1", Tier::Cgroup), "{output:?}");
        assert_eq!(output.leftovers.len(), 1, "{:?}", output.leftovers);
        eventually("it is killed", || !is_alive(lines[1]));
    });
}

#[test]
fn finished_jobs_hold_no_engine_descriptors() {
    isolated!(|| {
        let held = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
        let mut jobs = Vec::new();
        let mut after = Vec::new();
        for _ in 0..4 {
            let job = sh("exit").start(&Run::new().tree(TreeControl::Group)).expect("starts");
            job.wait().expect("a job result");
            jobs.push(job);
            // Each job gets a new engine thread, because the previous one has ended.
            eventually("idle", || Snapshot::take().threads.len() <= 2);
            after.push(held());
        }
        assert_eq!(after, [after[0]; 4]);
    });
}

/// A shell script that runs until it gets SIGTERM.
const ENDS_ON_SIGTERM: &str = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done";

/// Stops a program of [`ENDS_ON_SIGTERM`] after calling `meanwhile`, whose effect hinders the library. Dropping the
/// result of `meanwhile` undoes the effect.
fn assert_stop_works_while<T>(meanwhile: impl Fn() -> T) {
    for want in [None, Some(TreeControl::Group), Some(TreeControl::Auto)] {
        let run = Run::new().window(100).tree(want);
        let job = start(ENDS_ON_SIGTERM, &run);
        read_until(&job, 0, "ready");
        let changed = meanwhile();
        job.stop(LONG * 2);
        let output = job.wait_timeout(LONG).expect("a job result");
        drop(changed);
        assert_eq!(output.map(|output| output.code()), Some(Some(3)), "{want:?}");
    }
}

#[test]
fn stop_works_without_pidfd_open() {
    isolated!(|| {
        spawnfd_tests::confine::deny(&[("pidfd_open", libc::EPERM)]).expect("confined");
        assert_stop_works_while(|| ());
    });
}

/// While a value of this type exists, the limit of open files is so low that no descriptor is free. Dropping the
/// value restores the limit, which is its field.
struct NoMoreFiles(libc::rlimit);

impl NoMoreFiles {
    fn now() -> NoMoreFiles {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: getrlimit stores one rlimit, and setrlimit reads one.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before), 0);
            let none = libc::rlimit { rlim_cur: 3, ..before };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none), 0);
        }
        NoMoreFiles(before)
    }
}

impl Drop for NoMoreFiles {
    fn drop(&mut self) {
        // SAFETY: setrlimit reads one rlimit.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const self.0) };
    }
}

#[test]
fn stop_works_without_a_free_descriptor() {
    isolated!(|| assert_stop_works_while(NoMoreFiles::now));
}

#[test]
fn leftovers_are_found_after_descriptors_ran_out() {
    isolated!(|| {
        // The sleep process is an orphan, and in another process group than the shell.
        let line = "(set -m; sleep 1000 >/dev/null 2>&1 & echo $!); read x";
        let job = start(line, &Run::new().tree(TreeControl::Group).writable(10).window(100));
        let (left, _) = read_until(&job, 0, "\n");
        let no_more = NoMoreFiles::now();
        job.signal(libc::SIGWINCH, true).expect("a signal");
        // In these 50 ms the engine thread usually searches the tree, which fails. The test also passes if it does
        // not.
        std::thread::sleep(Duration::from_millis(50));
        drop(no_more);
        job.write(b"\n").expect("stdin is open");
        let output = job.wait().expect("a job result");
        assert_eq!(output.leftovers.iter().map(|left| left.pid.to_string()).collect::<Vec<_>>(), [left.trim()]);
        eventually("killed", || !is_alive(left.trim()));
    });
}

#[test]
fn a_failed_search_reports_unknown_leftovers() {
    isolated!(|| {
        // The library can find the first sleep process by its session. It knows the second, in a new session, only
        // from an earlier search.
        for line in
            ["sleep 1000 >/dev/null 2>&1 & echo $!; read x", "setsid sleep 1000 >/dev/null 2>&1 & echo $!; read x"]
        {
            for want in [TreeControl::Group, TreeControl::Guard, TreeControl::Auto] {
                let job = start(line, &Run::new().tree(want).writable(10).window(100));
                let (left, _) = read_until(&job, 0, "\n");
                let name = format!("/proc/{}/comm", left.trim());
                eventually("sleeps", || fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n"));
                // The signal makes the library search the tree.
                job.signal(libc::SIGWINCH, true).expect("a signal");
                let engine = block_the_engine();
                let no_more = NoMoreFiles::now();
                job.write(b"\n").expect("stdin is open");
                drop(engine);
                let output = job.wait_timeout(LONG).expect("a job result").expect("a result");
                drop(no_more);
                assert_eq!((output.leftovers_unknown, output.leftovers.len()), (true, 0), "{line} {want:?}");
                let _ = Command::new("kill").args(["-9", left.trim()]).run();
            }
        }
        let without_leftovers = sh("exit").run().expect("runs");
        assert!(!without_leftovers.leftovers_unknown);
    });
}

#[test]
fn reused_job_descriptors_are_left_alone() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("theirs");
        let file =
            fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("own directory");
        let run = Run::new().tree(TreeControl::Group).writable(10).window(100);
        // The test replaces the descriptors of later jobs, but not those of this job and of the engine.
        let other = start("read x; echo $x", &run);
        // The library detects the loss of a job's descriptors in one of three ways: by a write, by the next poll, or
        // by an event of the old file, which a forked child keeps open.
        for (told, copied) in [(true, false), (false, false), (false, true)] {
            let (theirs, mut ours) = std::io::pipe().expect("a pipe");
            let mut command = sh(match copied {
                true => "read a; echo $a; read x <&3; echo b; exec sleep 1000",
                false => "cat; exec sleep 1000",
            });
            command.descriptor(std::os::fd::OwnedFd::from(theirs), 3);
            let before = Snapshot::take().fds;
            let job = command.start(&run).expect("starts");
            job.write(if copied { b"a\n" } else { b"a" }).expect("stdin is open");
            read_until(&job, 0, if copied { "a\n" } else { "a" });
            // SAFETY: the forked child only calls pause.
            let copy = copied.then(|| unsafe { libc::fork() });
            while copy == Some(0) {
                // SAFETY: pause takes no arguments. The forked child sleeps until the test kills it.
                unsafe { libc::pause() };
            }
            let numbers: Vec<i32> = Snapshot::take().fds.into_keys().filter(|fd| !before.contains_key(fd)).collect();
            assert_eq!(numbers.len(), 4);
            let theirs: Vec<_> = numbers.iter().map(|&number| common::at_number(&file, number)).collect();
            ours.write_all(b"\n").expect("the program has the other end");
            if told {
                let _ = job.write(b"b");
            }
            let lost = job.wait_timeout(LONG).expect_err("the job is lost");
            assert_eq!(lost.errno(), Errno::EBADF);
            assert_eq!(job.wait_for(0, LONG, |_| None::<()>), None, "the output has ended");
            assert_eq!(job.write(b"b").expect_err("the job is lost").errno(), Errno::EPIPE);
            assert_eq!(job.read(0).text(), if copied { "a\n" } else { "a" });
            let program = job.id() as i32;
            drop(job);
            common::assert_left_alone(&path, &numbers, program);
            if let Some(copy) = copy {
                // SAFETY: the calls take integers, and `copy` is a child of this test.
                unsafe {
                    libc::kill(copy, libc::SIGKILL);
                    libc::waitpid(copy, std::ptr::null_mut(), 0);
                }
            }
            drop(theirs);
        }
        other.write(b"x\n").expect("stdin is open");
        assert_eq!(other.wait().expect("a job result").stdout_text(), "x\n");
    });
}
