// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pipe that breaks after each byte, and peers that die. No program survives, and no result says that a program has
//! exited unless the server has said so.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use spawnfd::error::Errno;
use spawnfd::job::{Event, EventOptions, Events, Stop};
use spawnfd::{Command, Job, Run, rlimit};
use spawnfd_remote::Remote;
use spawnfd_remote::frame::{Decoder, Kind, MARK};
use spawnfd_remote::message::{OrderMessage, What, pack};
use spawnfd_remote::near::RemoteOptions;
use spawnfd_tests::{isolated, scratch};

use crate::raw::{Client, assert_none_has, frame, message, near_hello, output, playing_part};
use crate::{connect, server, sh};

const LIMIT: Duration = Duration::from_secs(600);

/// Returns all bytes that a server sends for a call, and the length up to the end of the frame that has the result.
fn recorded(what: What, script: &str) -> (Vec<u8>, usize) {
    let mut client = Client::greeting();
    client.call(1, &message(what, script, &Run::new()));
    assert!(output(&client.expect(Kind::Result).payload).ok());
    if what == What::Start {
        client.expect(Kind::End);
    }
    let bytes = client.received.clone();
    assert!(client.close().contains("Ok(Closed)"));
    let (mut decoder, mut length, mut until_result) = (Decoder::default(), MARK.len(), 0);
    decoder.feed(&bytes[MARK.len()..]);
    while let Some(frame) = decoder.next_frame().expect("frames") {
        length += 9 + frame.payload.len();
        if frame.kind == Some(Kind::Result) {
            until_result = length;
        }
    }
    assert_eq!(length, bytes.len());
    (bytes, until_result)
}

#[test]
fn a_run_whose_answer_is_cut_anywhere_is_lost() {
    isolated!(limit: LIMIT, || {
        let (bytes, until_result) = recorded(What::Run, "echo out; echo err >&2");
        let directory = scratch();
        let path = directory.path().join("bytes");
        fs::write(&path, &bytes).expect("a file");
        for length in 0..=bytes.len() {
            let remote = Remote::begin(&playing_part(&path, length, false), &RemoteOptions::default());
            let remote = remote.expect("a transport");
            match remote.run(&Command::new("true"), &Run::new()) {
                Ok(output) if length >= until_result => {
                    assert_eq!((output.stop, &output.stdout[..]), (Stop::Exited, &b"out\n"[..]));
                }
                Ok(output) => assert_eq!((output.stop, output.status), (Stop::Lost, None), "{length}"),
                Err(error) => assert_eq!(error.errno(), Errno::ENOTCONN, "{length}: {error}"),
            }
        }
    });
}

#[test]
fn a_job_whose_answer_is_cut_anywhere_is_lost() {
    isolated!(limit: LIMIT, || {
        let (bytes, until_result) = recorded(What::Start, "echo out; sleep 0.05; echo err >&2");
        let directory = scratch();
        let path = directory.path().join("bytes");
        fs::write(&path, &bytes).expect("a file");
        for length in 0..=bytes.len() {
            let remote = Remote::begin(&playing_part(&path, length, false), &RemoteOptions::default());
            let remote = remote.expect("a transport");
            match remote.start_events(&Command::new("true"), &Run::new(), EventOptions::new()) {
                Ok((job, mut events)) => {
                    let output = job.wait().expect("a result");
                    let expected = if length >= until_result { Stop::Exited } else { Stop::Lost };
                    assert_eq!(output.stop, expected, "{length} of {until_result}");
                    while events.next_timeout(Duration::from_secs(20)).expect("an event") != Event::End {}
                }
                Err(error) => {
                    assert!(length < until_result, "{length}: {error}");
                    assert_eq!(error.errno(), Errno::ENOTCONN, "{length}: {error}");
                }
            }
        }
    });
}

#[test]
fn a_server_whose_input_is_cut_anywhere_ends_its_programs() {
    isolated!(limit: LIMIT, || {
        let word = format!("3{}", std::process::id());
        let run = Run::new().writable(100);
        let job = message(What::Start, &format!("sleep {word} & cat; sleep {word}"), &run);
        let frames = [
            near_hello(),
            frame(Kind::Call, 1, &pack(&message(What::Run, &format!("sleep {word} & wait"), &Run::new()))),
            frame(Kind::Call, 2, &pack(&job)),
            frame(Kind::Input, 2, b"text"),
            frame(Kind::Credit, 2, &pack(&5_u32)),
            frame(Kind::Order, 2, &pack(&OrderMessage::Signal(0, true))),
            frame(Kind::Input, 2, b""),
        ];
        let bytes = frames.concat();
        for length in 0..=bytes.len() {
            let mut client = Client::start();
            client.write(&bytes[..length]);
            let said = client.close();
            assert!(said.contains("Ok(Closed)"), "{length}: {said}");
            assert_none_has(&format!("sleep\0{word}"));
        }
    });
}

#[test]
fn half_a_closed_pipe_ends_the_server() {
    isolated!(|| {
        let word = format!("4{}", std::process::id());
        let mut client = Client::greeting();
        client.call(1, &message(What::Start, &format!("sleep {word} & wait"), &Run::new()));
        client.expect(Kind::Started);
        client.close_input();
        while let Some(frame) = client.next() {
            if frame.kind == Some(Kind::Result) {
                assert_ne!(output(&frame.payload).stop, Stop::Exited);
            }
        }
        assert!(client.wait().contains("Ok(Closed)"));
        assert_none_has(&format!("sleep\0{word}"));
    });
}

/// The number of trees that run while a side is killed.
const TREES: usize = 50;

/// Starts programs whose processes have left their session and lost their parent.
fn start_trees(remote: &Remote, word: &str) -> Vec<(Job, Events)> {
    let start = |_| {
        let command = sh(&format!("(setsid sleep {word} &); echo; sleep {word}"));
        let (job, mut events) = remote.start_events(&command, &Run::new(), EventOptions::new()).expect("started");
        assert!(matches!(events.next_timeout(Duration::from_secs(60)), Some(Event::Chunk { .. })));
        (job, events)
    };
    (0..TREES).map(start).collect()
}

#[test]
fn a_killed_server_leaves_no_tree_and_no_result_that_says_exited() {
    isolated!(limit: LIMIT, || {
        // The process that serves, and its parent.
        for (number, kills_parent) in [(5, false), (7, true)] {
            let word = format!("{number}{}", std::process::id());
            let remote = connect();
            let jobs = start_trees(&remote, &word);
            let server = remote.hello().expect("an answer").pid;
            let pid = if kills_parent { remote.transport().id() } else { server };
            let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
            assert!(killed.expect("kill").success());
            for (job, _) in &jobs {
                let output = job.wait().expect("a result");
                assert_eq!((output.stop, output.status, output.status_lost), (Stop::Lost, None, true));
            }
            assert_none_has(&format!("sleep\0{word}"));
        }
    });
}

#[test]
fn the_end_of_a_connection_leaves_no_tree() {
    isolated!(limit: LIMIT, || {
        let word = format!("8{}", std::process::id());
        let remote = connect();
        let jobs = start_trees(&remote, &word);
        remote.close();
        assert!(jobs.iter().all(|(job, _)| job.wait().expect("a result").stop == Stop::Lost));
        assert_none_has(&format!("sleep\0{word}"));
    });
}

#[test]
#[ignore = "the client that another test kills"]
fn client_on_purpose() {
    let word = std::env::var("SPAWNFD_TEST_WORD").expect("a word");
    let remote = connect();
    let jobs = start_trees(&remote, &word);
    println!("started {}", jobs.len());
    std::thread::sleep(Duration::from_secs(1000));
}

#[test]
fn a_killed_client_leaves_no_tree() {
    isolated!(limit: LIMIT, || {
        let word = format!("6{}", std::process::id());
        let mut client = std::process::Command::new(std::env::current_exe().expect("the path of this test"));
        client.args(["--exact", "cuts::client_on_purpose", "--ignored", "--nocapture", "--test-threads=1"]);
        client.env("SPAWNFD_TEST_WORD", &word).stdout(Stdio::piped()).process_group(0);
        let mut client = client.spawn().expect("a client");
        let lines = BufReader::new(client.stdout.take().expect("a pipe")).lines();
        let started = lines.map(|line| line.expect("text")).find(|line| line.contains("started"));
        assert!(started.is_some_and(|line| line.ends_with("started 50")));
        client.kill().expect("a kill");
        client.wait().expect("a child");
        assert_none_has(&format!("sleep\0{word}"));
        // The server, too, has ended.
        assert_none_has(&format!("{}\0--exact\0serve", server().get_program().to_string_lossy()));
    });
}

#[test]
fn a_thousand_jobs_share_a_pipe() {
    isolated!(limit: LIMIT, || {
        // A job takes up to five descriptors of the server.
        let remote = Remote::connect(server().limit(rlimit::NOFILE, Some(8192), Some(8192))).expect("a server");
        let run = Run::new().writable(100);
        let jobs: Vec<_> = (0..1000)
            .map(|number| {
                let mut command = sh("echo $0; read x; echo $x; exit 3");
                command.arg(number.to_string());
                remote.start_events(&command, &run, EventOptions::new()).expect("started")
            })
            .collect();
        assert!(remote.run(&Command::new("true"), &Run::new()).expect("a result").ok());
        assert!(jobs.iter().all(|(job, _)| job.try_wait().expect("no error").is_none()), "all run at once");
        for (number, (job, _)) in jobs.iter().enumerate() {
            job.write(format!("{number}\n").as_bytes()).expect("accepted");
        }
        for (number, (job, mut events)) in jobs.into_iter().enumerate() {
            assert_eq!(job.wait().expect("a result").code(), Some(3));
            let mut text = Vec::new();
            loop {
                match events.next_timeout(Duration::from_secs(60)).expect("an event") {
                    Event::Chunk { bytes, .. } => text.extend(bytes),
                    Event::End => break,
                    event => panic!("{event:?}"),
                }
            }
            assert_eq!(String::from_utf8(text).expect("text"), format!("{number}\n{number}\n"));
        }
    });
}

#[test]
fn a_flood_does_not_stop_an_interactive_job() {
    isolated!(limit: LIMIT, || {
        let remote = connect();
        let (flood, mut output) =
            remote.start_events(&sh("yes"), &Run::new(), EventOptions::new()).expect("started");
        let reader = std::thread::spawn(move || {
            let mut count = 0_u64;
            while let Some(event) = output.next_timeout(Duration::from_secs(60)) {
                match event {
                    Event::Chunk { bytes, .. } => count += bytes.len() as u64,
                    Event::End => break,
                    event => panic!("{event:?}"),
                }
            }
            count
        });
        let run = Run::new().writable(1000);
        let (echo, mut lines) =
            remote.start_events(&Command::new("cat"), &run, EventOptions::new().lines(100)).expect("started");
        for number in 0..200 {
            let line = format!("{number}");
            echo.write(format!("{line}\n").as_bytes()).expect("accepted");
            match lines.next_timeout(Duration::from_secs(60)) {
                Some(Event::Line { bytes, .. }) => assert_eq!(bytes, line.as_bytes()),
                event => panic!("{event:?}"),
            }
        }
        echo.close_stdin();
        assert!(echo.wait().expect("a result").ok());
        flood.stop(Duration::ZERO);
        assert_eq!(flood.wait().expect("a result").stop, Stop::Cancelled);
        assert!(reader.join().expect("no panic") > 1 << 20, "the flood makes progress, too");
    });
}

#[test]
fn a_reader_of_the_transport_that_stalls_loses_nothing() {
    isolated!(limit: LIMIT, || {
        let mut client = Client::greeting();
        let run = Run::new().keep_all();
        for number in 1..=20 {
            client.call(number, &message(What::Run, "head -c 1000000 /dev/zero", &run));
        }
        // Nothing reads the results, which fill the pipe and wait in the server.
        std::thread::sleep(Duration::from_secs(2));
        let (mut kept, mut results) = ([0; 20], 0);
        while results < 20 {
            let frame = client.next().expect("a frame");
            match frame.kind {
                Some(Kind::Kept) => kept[frame.call as usize - 1] += frame.payload.len() - 1,
                Some(Kind::Result) => {
                    assert_eq!(kept[frame.call as usize - 1], 1_000_000);
                    results += 1;
                }
                kind => panic!("{kind:?}"),
            }
        }
        assert!(client.close().contains("Ok(Closed)"));
    });
}

#[test]
fn a_program_that_writes_to_the_pipe_of_its_server_ends_the_connection() {
    isolated!(|| {
        let word = format!("7{}", std::process::id());
        let remote = connect();
        let server = remote.hello().expect("an answer").pid;
        let start = |script: &str| remote.start_events(&sh(script), &Run::new(), EventOptions::new()).expect("started");
        let (other, _other) = start(&format!("setsid sleep {word} & wait"));
        // Among the server's pipes are both of the connection.
        let script = format!(
            "for file in /proc/{server}/fd/*; do [ -p $file ] && (echo garbage, no frame >$file) & done; \
             sleep {word}"
        );
        let (hostile, _hostile) = start(&script);
        for job in [&other, &hostile] {
            let output = job.wait().expect("a result");
            assert_eq!((output.stop, output.status), (Stop::Lost, None));
        }
        assert!(remote.run(&Command::new("true"), &Run::new()).is_err());
        assert_none_has(&format!("sleep\0{word}"));
    });
}
