// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output while the program runs: patterns, silence, and reading in the consumer's thread.

use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use crate::common::job::{sh, start, text};
use crate::common::{self, eventually};
use spawnfd::job::{Event, EventOptions, Events, OutputReader, ReadStatus, Spill, Stop, Stream, TerminalSize};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Run, Stdio};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{isolated, scratch};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn an_explicitly_inherited_stream_is_not_captured() {
    isolated!(|| {
        let output = sh("echo out; echo err >&2").stdout(Stdio::inherit()).output().expect("runs");
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b""[..], &b"err\n"[..]));
        let status = sh("exit 3").status().expect("runs");
        assert_eq!(status.code(), Some(3));
    });
}

#[test]
fn streams_of_std_become_streams_of_a_command() {
    isolated!(|| {
        let mut first = std::process::Command::new("echo");
        let mut first = first.arg("x").stdout(std::process::Stdio::piped()).spawn().expect("starts");
        let output = Command::new("cat").stdin(first.stdout.take().expect("piped")).output().expect("runs");
        assert_eq!(output.stdout, b"x\n");
        assert!(first.wait().expect("a status").success());
    });
}

#[test]
fn each_type_that_owns_a_descriptor_becomes_a_stream() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("input");
        std::fs::write(&path, "x\n").expect("own directory");
        type ToStream = fn(OwnedFd) -> Stdio<'static>;
        let cases: [(&str, ToStream); 13] = [
            ("OwnedFd", Stdio::from),
            ("File", |file| File::from(file).into()),
            ("PipeReader", |file| PipeReader::from(file).into()),
            ("PipeWriter", |file| PipeWriter::from(file).into()),
            ("TcpListener", |file| TcpListener::from(file).into()),
            ("TcpStream", |file| TcpStream::from(file).into()),
            ("UdpSocket", |file| UdpSocket::from(file).into()),
            ("UnixDatagram", |file| UnixDatagram::from(file).into()),
            ("UnixListener", |file| UnixListener::from(file).into()),
            ("UnixStream", |file| UnixStream::from(file).into()),
            ("ChildStderr", |file| ChildStderr::from(file).into()),
            ("ChildStdin", |file| ChildStdin::from(file).into()),
            ("ChildStdout", |file| ChildStdout::from(file).into()),
        ];
        for (name, stream) in cases {
            let file = File::open(&path).expect("own file");
            let output = Command::new("cat").stdin(stream(file.into())).output().expect("runs");
            assert_eq!(output.stdout, b"x\n", "{name}");
        }
        let file = File::open(&path).expect("own file");
        assert_eq!(Command::new("cat").stdin(&file).output().expect("runs").stdout, b"x\n");
        let file = File::open(&path).expect("own file");
        assert_eq!(Command::new("cat").stdin(file.as_fd()).output().expect("runs").stdout, b"x\n");
    });
}

#[test]
fn wait_for_returns_once_the_output_matches() {
    isolated!(|| {
        let job = start("echo one; read line; echo $line; exec sleep 1000", &Run::new().window(100).writable(100));
        let contains = |wanted: &'static str| {
            move |output: &spawnfd::job::Chunk| output.text().contains(wanted).then_some(output.next)
        };
        assert_eq!(job.wait_for(0, LONG, contains("one\n")), Some(4));
        assert_eq!(job.wait_for(4, Duration::from_millis(20), contains("two")), None);
        job.write(b"two\n").expect("the program reads");
        assert_eq!(job.wait_for(4, LONG, contains("two\n")), Some(8));
        job.stop(Duration::ZERO);
        assert_eq!(job.wait_for(8, LONG, contains("three")), None, "the output has ended");
    });
}

#[test]
fn wait_for_ends_with_a_failed_start() {
    isolated!(|| {
        let mut command = sh("exit");
        command.current_dir("/nonexistent");
        // The launcher decides whether the call or the job reports the error.
        let outcome = command.start(&Run::new().window(100)).and_then(|job| {
            assert_eq!(job.wait_for(0, LONG, |_| None::<()>), None);
            job.wait()
        });
        assert_eq!(outcome.expect_err("no such directory").errno(), spawnfd::error::Errno::ENOENT);
    });
}

#[test]
fn idle_timeout_ends_a_silent_program() {
    isolated!(|| {
        let run = Run::new().idle_timeout(Duration::from_millis(200));
        let output = sh("echo begun; exec sleep 1000").run_with(&run).expect("runs");
        assert_eq!((output.stop, output.signal(), text(&output)), (Stop::IdleTimeout, Some(15), "begun\n".to_owned()));
        assert!(output.wall >= Duration::from_millis(200));
        let error = output.check().expect_err("not ok").to_string();
        assert!(error.starts_with("/bin/sh wrote no output for "), "{error}");
        let job = start("exec sleep 1000", &run);
        assert_eq!(job.wait().expect("a result").stop, Stop::IdleTimeout);
    });
}

#[test]
fn output_postpones_the_idle_timeout() {
    isolated!(|| {
        // Each pause is far shorter than the timeout, and all pauses together are longer.
        let run = Run::new().idle_timeout(Duration::from_millis(1000));
        let output = sh("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.2; done").run_with(&run).expect("runs");
        assert!(output.ok() && output.wall >= Duration::from_millis(1600), "{output:?}");
    });
}

/// Reads with the reader until the end of the events. Returns each stream's bytes.
fn read_all(mut reader: OutputReader, events: &mut Events) -> [Vec<u8>; 2] {
    let (mut all, mut open) = ([Vec::new(), Vec::new()], [true, true]);
    let deadline = Instant::now() + LONG;
    loop {
        assert!(Instant::now() < deadline, "the output ends");
        while let Some(event) = events.try_next() {
            match event {
                Event::Chunk { stream, bytes, .. } => all[stream.index()].extend(bytes),
                Event::End => return all,
                other => panic!("{other:?}"),
            }
        }
        for stream in Stream::ALL {
            open[stream.index()] = open[stream.index()] && reader.read(stream, events) != ReadStatus::End;
        }
        if open == [false, false] {
            // The engine adds the last event.
            if let Some(Event::Chunk { stream, bytes, .. }) = events.next_timeout(Duration::from_millis(10)) {
                all[stream.index()].extend(bytes);
            }
        }
    }
}

#[test]
fn a_reader_gets_the_same_output_as_the_engine() {
    isolated!(|| {
        let line = "seq 1 20000; seq 20001 40000 >&2; seq 40001 60000";
        let expected = sh(line).run_with(&Run::new().keep(1 << 20, 0)).expect("runs");
        let once = || {
            let run = Run::new().keep(1 << 20, 0).window(1 << 20).tree(TreeControl::Group);
            let (job, mut events) = sh(line).start_events(&run, EventOptions::default()).expect("starts");
            let reader = job.reader().expect("two pipes");
            let [stdout, stderr] = read_all(reader, &mut events);
            assert_eq!((&stdout, &stderr), (&expected.stdout, &expected.stderr));
            let output = job.wait().expect("a result");
            assert_eq!((&output.stdout, &output.stderr), (&expected.stdout, &expected.stderr));
        };
        once();
        let at_rest = || common::children().is_empty() && Snapshot::take().threads.len() <= 2;
        eventually("the engine's thread ends", at_rest);
        let before = Snapshot::take();
        (0..10).for_each(|_| once());
        eventually("the engine's thread ends", at_rest);
        common::assert_unchanged_except_sockets(&before);
    });
}

#[test]
fn the_engine_reads_again_after_the_reader_is_dropped() {
    isolated!(|| {
        let run = Run::new().window(1 << 20).writable(100);
        let line = "echo one; read line; seq 1 50000";
        let (job, mut events) = sh(line).start_events(&run, EventOptions::default()).expect("starts");
        let mut reader = job.reader().expect("two pipes");
        while job.read(0).bytes != b"one\n" {
            reader.read(Stream::Stdout, &mut events);
        }
        drop(reader);
        job.write(b"\n").expect("the program reads");
        let output = job.wait().expect("a result");
        assert!(output.ok() && output.seen_bytes == 4 + 288_894, "{}", output.seen_bytes);
    });
}

#[test]
fn a_reader_observes_the_output_limit() {
    isolated!(|| {
        let run = Run::new().output_limit(1000).grace(Duration::ZERO);
        let (job, mut events) = sh("exec yes").start_events(&run, EventOptions::default()).expect("starts");
        let mut reader = job.reader().expect("two pipes");
        while job.try_wait().expect("a result").is_none() {
            reader.read(Stream::Stdout, &mut events);
            while !matches!(events.try_next(), None | Some(Event::End)) {}
        }
        assert_eq!(job.wait().expect("a result").stop, Stop::OutputLimit);
    });
}

#[test]
fn terminals_and_runs_with_a_spill_file_have_no_reader() {
    isolated!(|| {
        let dir = scratch();
        let terminal = Run::new().terminal(TerminalSize::default());
        let spill = Run::new().spill(Spill::new(1000).dir(dir.path()));
        for run in [terminal, spill] {
            let (job, _events) = sh("exec sleep 1000").start_events(&run, EventOptions::default()).expect("starts");
            assert!(job.reader().is_none());
        }
    });
}
