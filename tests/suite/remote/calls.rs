// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs and jobs have the results that they have on this side.

use std::sync::Arc;
use std::time::Duration;

use spawnfd::error::{Errno, ErrorKind, Stage};
use spawnfd::internal::Action;
use spawnfd::internal::Value;
use spawnfd::job::{Event, EventOptions, Stop, Stream, WhenFull};
use spawnfd::limits::Limiter;
use spawnfd::{Command, Env, Output, Run, Stdio};
use spawnfd_tests::isolated;

use crate::{connect, sh};

/// The parts of an output that are equal on both sides.
fn parts(output: &Output) -> impl PartialEq + std::fmt::Debug {
    let Output { status, stop, stdout, stderr, omitted_bytes, seen_bytes, drain, tree, .. } = output.clone();
    (status, stop, stdout, stderr, omitted_bytes, seen_bytes, drain, tree)
}

#[test]
fn a_run_has_the_result_that_it_has_here() {
    isolated!(|| {
        let remote = connect();
        let small = Run::new().keep(10, 5);
        let cases: Vec<(Command<'static>, Run)> = vec![
            (sh("echo out; echo err >&2; exit 3"), Run::new()),
            (sh("kill -9 $$"), Run::new()),
            (sh("seq 13"), small.clone()),
            (sh("sleep 100"), Run::new().timeout(Duration::from_millis(100)).grace(Duration::ZERO)),
            (sh("cat; echo $#"), Run::new().input(&b"word\n"[..])),
            (sh("wc -c"), Run::new().input(vec![b'x'; 3_000_000])),
            (sh("head -c 5000000 /dev/zero; echo end"), Run::new().keep_all()),
            (sh("exit 0"), Run::new().combined(true)),
        ];
        for (command, run) in cases {
            let here = command.run_with(&run).expect("a result here");
            let there = remote.run(&command, &run).expect("a result there");
            assert_eq!(parts(&there), parts(&here), "{command:?}");
        }
        let output = remote.run(&sh("yes"), &Run::new().output_limit(100_000).keep(1000, 0)).expect("a result");
        assert_eq!((output.stop, output.stdout.len() >= 1000), (Stop::OutputLimit, true));
    });
}

#[test]
fn a_failed_start_is_the_error_that_it_is_here() {
    isolated!(|| {
        let remote = connect();
        let mut nowhere = Command::new("true");
        nowhere.current_dir("/nonexistent");
        for command in [Command::new("no-such-program-here"), nowhere] {
            let here = command.run_with(&Run::new()).expect_err("no program");
            let there = remote.run(&command, &Run::new()).expect_err("no program");
            assert_eq!((there.to_string(), there.kind()), (here.to_string(), here.kind()));
            let started = remote.start_events(&command, &Run::new(), EventOptions::new());
            let error = started.and_then(|(job, _)| job.wait()).expect_err("no program");
            assert_eq!((error.stage(), error.errno()), (here.stage(), here.errno()));
        }
    });
}

#[test]
fn the_program_has_directory_environment_and_actions() {
    isolated!(|| {
        let remote = connect();
        let mut command = sh("pwd; umask; echo $A $B ${HOME-none}; echo $0");
        command.current_dir("/usr").arg0("name");
        command.environment(&Env::inherit().set("A", "1").set("B", "2").unset("A").deny(["HOM*"]));
        Action::find("umask").expect("a row").add(&mut command, &[Value::Int(0o27)]).expect("a mask");
        let output = remote.run(&command, &Run::new()).expect("a result");
        assert_eq!(output.stdout_text(), "/usr\n0027\n2 none\nname\n");
        let output = remote.run(sh("echo $A; env | wc -l").environment(&Env::empty().set("A", "x y")), &Run::new());
        // The shell adds PWD.
        assert_eq!(output.expect("a result").stdout_text(), "x y\n2\n");
        let output = remote.run(sh("echo err >&2").stderr(Stdio::SameAsStdout), &Run::new()).expect("a result");
        assert_eq!(output.stdout_text(), "err\n");
    });
}

#[test]
fn an_argument_of_this_process_is_refused_by_name() {
    isolated!(|| {
        let remote = connect();
        let template = spawnfd::Template::open("/bin/true").expect("a program");
        let mut inheriting = Command::new("true");
        inheriting.stdout(Stdio::Inherit);
        let mut masked = Command::new("true");
        masked.umask(0o77);
        for (command, name) in [(template.command(), "template"), (inheriting, "stdout"), (masked, "actions")] {
            let error = remote.run(&command, &Run::new()).expect_err("refused");
            assert_eq!((error.kind(), error.errno()), (ErrorKind::Invalid, Errno::EINVAL));
            assert!(error.message().starts_with(&format!("{name}: ")), "{error}");
        }
        let null = std::fs::File::open("/dev/null").expect("it exists");
        let mut command = Command::new("true");
        let values = [Value::Descriptor(std::os::fd::AsFd::as_fd(&null)), Value::Int(7)];
        Action::find("descriptor").expect("a row").add(&mut command, &values).expect("an action");
        let error = remote.run(&command, &Run::new()).expect_err("refused");
        assert!(error.message().starts_with("descriptor.source: "), "{error}");
        let error = remote.run(&Command::new("true"), &Run::new().marker(Some("a\nb"))).expect_err("refused");
        assert_eq!(error.stage(), Stage::Validate);
        assert!(remote.run(&Command::new("true"), &Run::new()).expect("a result").ok());
    });
}

#[test]
fn a_job_has_events_input_signals_and_a_result() {
    isolated!(|| {
        let remote = connect();
        let run = Run::new().writable(4096).window(4096);
        let command = sh("trap 'echo usr1; seen=1' USR1; echo begun; read line; echo got $line; \
             until [ \"$seen\" ]; do sleep 0.01; done; read line; echo got $line");
        let (job, mut events) = remote.start_events(&command, &run, EventOptions::new().lines(1000)).expect("started");
        let mut line = || match events.next_timeout(Duration::from_secs(20)) {
            Some(Event::Line { stream: Stream::Stdout, bytes, .. }) => String::from_utf8(bytes).expect("text"),
            event => panic!("{event:?}"),
        };
        assert_eq!(line(), "begun");
        assert_eq!(job.write(b"one\n").expect("accepted"), 4);
        assert_eq!(line(), "got one");
        job.signal(spawnfd::signal::USR1, false).expect("a signal");
        assert_eq!(line(), "usr1");
        assert_eq!(job.write(b"two\n").expect("accepted"), 4);
        assert_eq!(line(), "got two");
        let output = job.wait().expect("a result");
        assert_eq!((output.code(), output.stop), (Some(0), Stop::Exited));
        assert!(job.id() > 0);
        assert_eq!(job.read(0).text(), output.stdout_text());
        assert_eq!(events.next_timeout(Duration::from_secs(20)), Some(Event::End));
    });
}

#[test]
fn input_that_a_program_does_not_read_is_refused() {
    isolated!(|| {
        let remote = connect();
        for (script, size, is_refused) in
            [("exit 0", 100_000, true), ("exit 0", 2_000_000, true), ("exec head -c 100000", 100_000, false)]
        {
            for _ in 0..50 {
                let run = Run::new().input(vec![b'x'; size]);
                let output = remote.run(&sh(script), &run).expect("a result");
                assert_eq!((output.input_refused, output.ok()), (is_refused, true), "{script} {size}");
                let (job, _events) = remote.start_events(&sh(script), &run, EventOptions::new()).expect("started");
                assert_eq!(job.wait().expect("a result").input_refused, is_refused, "{script} {size}");
            }
        }
    });
}

#[test]
fn a_stopped_job_and_a_dropped_job_end_their_trees() {
    isolated!(|| {
        let remote = connect();
        let start = || {
            let command = sh("sleep 1000 & echo $!; wait");
            let (job, mut events) =
                remote.start_events(&command, &Run::new(), EventOptions::new().lines(100)).expect("started");
            let Some(Event::Line { bytes, .. }) = events.next_timeout(Duration::from_secs(20)) else {
                panic!("no pid")
            };
            (job, events, String::from_utf8(bytes).expect("text"))
        };
        let gone = |pid: &str| {
            let begun = std::time::Instant::now();
            while std::path::Path::new("/proc").join(pid).exists() {
                assert!(begun.elapsed() < Duration::from_secs(20), "{pid} still runs");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let (job, _events, pid) = start();
        job.stop(Duration::from_secs(5));
        assert_eq!(job.wait().expect("a result").stop, Stop::Cancelled);
        gone(&pid);
        let (job, _events, pid) = start();
        drop(job);
        gone(&pid);
    });
}

#[test]
fn a_reader_that_stops_blocks_its_program_alone() {
    isolated!(limit: Duration::from_secs(120), || {
        let remote = connect();
        let options = EventOptions::new().max_bytes(100_000).when_full(WhenFull::Wait);
        let (job, mut events) = remote.start_events(&sh("head -c 5000000 /dev/zero"), &Run::new(), options).expect("started");
        for _ in 0..50 {
            assert!(remote.run(&Command::new("true"), &Run::new()).expect("a result").ok());
        }
        assert!(job.try_wait().expect("no error").is_none(), "the program has written all output");
        let mut count = 0;
        while let Some(event) = events.next_timeout(Duration::from_secs(20)) {
            match event {
                Event::Chunk { bytes, position, .. } => {
                    assert_eq!(position, count);
                    count += bytes.len() as u64;
                }
                Event::End => break,
                event => panic!("{event:?}"),
            }
        }
        assert_eq!((count, job.wait().expect("a result").seen_bytes), (5_000_000, 5_000_000));
    });
}

#[test]
fn a_limiter_of_this_side_bounds_the_runs() {
    isolated!(|| {
        let (remote, limiter) = (Arc::new(connect()), Limiter::new(2));
        let run = Run::new().limiter(&limiter);
        let script = "mkdir $0/$$ && ls $0 | wc -l; sleep 0.02; rmdir $0/$$";
        let directory = spawnfd_tests::scratch();
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (remote, run, path) = (remote.clone(), run.clone(), directory.path().to_owned());
                std::thread::spawn(move || {
                    remote.run(sh(script).arg(path), &run).expect("a result").stdout_text().into_owned()
                })
            })
            .collect();
        for thread in threads {
            let count: usize = thread.join().expect("no panic").trim().parse().expect("a number");
            assert!(count <= 2, "{count}");
        }
    });
}
