// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions on the other side.

use std::time::{Duration, Instant};

use spawnfd::job::{Event, EventOptions, Stop};
use spawnfd::session::{CommandText, SessionOptions};
use spawnfd::{Command, Run};
use spawnfd_tests::isolated;

use crate::connect;

#[test]
fn a_session_keeps_its_state() {
    isolated!(|| {
        let remote = connect();
        for shell in ["bash", "dash"] {
            let session = remote.session(&Command::new(shell), &SessionOptions::new()).expect("a session");
            let _ = session.run("cd /usr; X=1; f() { echo f $1; }", &Run::new()).expect("a result");
            let output = session.run("echo $X; f 2", &Run::new()).expect("a result");
            assert_eq!((&output.stdout[..], output.cwd.as_deref()), (&b"1\nf 2\n"[..], Some("/usr".as_ref())));
            let text = CommandText::new("echo $Y in $PWD").cwd("/tmp").env("Y", "1");
            assert_eq!(session.run(text, &Run::new()).expect("a result").stdout, b"1 in /tmp\n");
            let output = session.run("cat", &Run::new().input(&b"input"[..])).expect("a result");
            assert_eq!(output.stdout, b"input");
            let late = Run::new().timeout(Duration::from_millis(100));
            assert_eq!(session.run("sleep 100", &late).expect("a result").stop, Stop::Timeout);
            assert_eq!(session.run("echo $X", &Run::new()).expect("a result").stdout, b"1\n");
            session.close().expect("closed");
        }
    });
}

#[test]
fn a_command_can_be_written_to_and_interrupted() {
    isolated!(|| {
        let remote = connect();
        let session = remote.session(&Command::new("bash"), &SessionOptions::new()).expect("a session");
        let run = Run::new().writable(100);
        let options = EventOptions::new().lines(100);
        let (job, mut events) =
            session.start_events("read x; echo got $x; sleep 1000", &run, options).expect("started");
        job.write(b"word\n").expect("accepted");
        let Some(Event::Line { bytes, .. }) = events.next_timeout(Duration::from_secs(20)) else { panic!("no line") };
        assert_eq!(bytes, b"got word");
        let names = || session.processes().expect("an answer").into_iter().map(|process| process.name);
        let begun = Instant::now();
        // The shell starts the program after it has printed the line.
        while !names().eq(["sleep"]) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", names().collect::<Vec<_>>());
        }
        session.interrupt();
        assert_eq!(job.wait().expect("a result").code(), Some(130));
        assert_eq!(events.next_timeout(Duration::from_secs(20)), Some(Event::End));
        let _ = session.run("sleep 1000 &", &Run::new()).expect("a result");
        assert_eq!(session.processes().expect("an answer").len(), 1);
        drop(session);
    });
}

#[test]
fn an_unknown_shell_and_an_exit_are_reported() {
    isolated!(|| {
        let remote = connect();
        let error = remote.session(&Command::new("no-such-shell"), &SessionOptions::new()).expect_err("no shell");
        assert!(error.message().contains("no-such-shell"), "{error}");
        let session = remote.session(&Command::new("bash"), &SessionOptions::new()).expect("a session");
        assert!(session.run("exit 3", &Run::new()).expect("a result").shell_exited);
        assert!(session.run("echo", &Run::new()).expect_err("no shell").message().contains("has exited"));
    });
}
