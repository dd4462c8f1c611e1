// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that wait for each other, commands beside a running one, and the end of a command's events.

use std::sync::mpsc::channel;
use std::thread;

use spawnfd::error::Errno;
use spawnfd::job::{Event, EventOptions, Events, LineEnd, Until};
use spawnfd::session::{Session, SessionOptions};
use spawnfd::{Command, Run};

use crate::common::eventually;
use crate::common::job::read_until;
use crate::{LONG, Shell, change, each_shell, run, stdout};

each_shell! {
    a_queue_runs_parallel_commands_one_after_the_other
    a_queued_command_follows_a_job
    without_a_queue_a_second_command_is_refused
    events_end_with_the_result_of_the_command
    events_until_closed_have_background_output
    a_flush_delivers_an_incomplete_line
    a_side_command_has_directory_and_variables
    a_side_command_needs_a_saved_state
}

fn a_queue_runs_parallel_commands_one_after_the_other(shell: Shell) {
    let session = shell.open(SessionOptions::new().queue(true));
    change(&session, "n=0");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| change(&session, "m=$n; sleep 0.01; n=$((m + 1))"));
        }
    });
    assert_eq!(stdout(&session, "echo $n"), "8\n");
    session.close().expect("a result");
}

fn a_queued_command_follows_a_job(shell: Shell) {
    let session = shell.open(SessionOptions::new().queue(true));
    let (sender, order) = channel();
    thread::scope(|scope| {
        let job = session.start("read x; X=$x", &Run::new().writable(10)).expect("a job");
        let in_thread = sender.clone();
        let session = &session;
        scope.spawn(move || in_thread.send(stdout(session, "echo $X")).expect("a receiver"));
        eventually("the second command waits", || session.turns().waiting() == 1);
        sender.send("first".to_owned()).expect("a receiver");
        job.write(b"1\n").expect("a reader");
        assert!(job.wait().expect("a result").ok());
    });
    assert_eq!(order.iter().take(2).collect::<Vec<_>>(), ["first", "1\n"]);
    session.close().expect("a result");
}

fn without_a_queue_a_second_command_is_refused(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let job = session.start("read x", &Run::new().writable(10)).expect("a job");
    assert_eq!(session.run(":", &Run::new()).expect_err("busy").errno(), Errno::EBUSY);
    job.close_stdin();
    job.wait().expect("a result");
    session.close().expect("a result");
}

/// The text of the events up to the next end.
fn text_to_end(events: &mut Events) -> String {
    let mut text = Vec::new();
    loop {
        match events.next_timeout(LONG).expect("an event") {
            Event::Chunk { bytes, .. } => text.extend(bytes),
            Event::End => return String::from_utf8(text).expect("text"),
            other => panic!("{other:?}"),
        }
    }
}

/// A command whose background job waits until `go` exists.
fn server(go: &std::path::Path) -> String {
    format!("(while ! [ -e '{}' ]; do sleep 0.01; done; echo later) & echo started", go.display())
}

fn events_end_with_the_result_of_the_command(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let directory = spawnfd_tests::scratch();
    let text = server(&directory.path().join("go"));
    let (job, mut events) = session.start_events(&text, &Run::new(), EventOptions::new()).expect("a job");
    assert_eq!(text_to_end(&mut events), "started\n");
    assert_eq!(events.try_next(), Some(Event::End));
    assert!(job.wait().expect("a result").ok());
    session.close().expect("a result");
}

fn events_until_closed_have_background_output(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let directory = spawnfd_tests::scratch();
    for (name, until) in [("first", None), ("second", Some(Until::Closed))] {
        let go = directory.path().join(name);
        let options = EventOptions::new().until(until);
        let (_job, mut events) = session.start_events(&server(&go), &Run::new(), options).expect("a job");
        if until.is_none() {
            assert_eq!(text_to_end(&mut events), "started\n");
            events.set_until(Until::Closed);
            std::fs::write(&go, "").expect("writable");
            assert_eq!(text_to_end(&mut events), "later\n");
        } else {
            let Some(Event::Chunk { bytes, .. }) = events.next_timeout(LONG) else { panic!("no chunk") };
            assert_eq!(bytes, b"started\n");
            std::fs::write(&go, "").expect("writable");
            assert_eq!(text_to_end(&mut events), "later\n");
        }
    }
    // A job that is no command of a session ends its events with the streams, as before.
    let (_job, mut events) =
        Command::new("sh").args(["-c", "echo text"]).start_events(&Run::new(), EventOptions::new()).expect("starts");
    assert_eq!(text_to_end(&mut events), "text\n");
    assert!(run(&session, ":").ok());
    session.close().expect("a result");
}

fn a_flush_delivers_an_incomplete_line(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let text = "printf 'one\\nName: '; read x; echo \"<$x>\"";
    let (job, mut events) = session
        .start_events(text, &Run::new().writable(10).window(100), EventOptions::new().lines(100))
        .expect("a job");
    let line = |events: &mut Events| match events.next_timeout(LONG) {
        Some(Event::Line { bytes, end, .. }) => (String::from_utf8(bytes).expect("text"), end),
        other => panic!("{other:?}"),
    };
    assert_eq!(line(&mut events), ("one".to_owned(), LineEnd::Lf));
    read_until(&job, 0, "Name: ");
    assert_eq!(events.try_next(), None);
    assert!(events.has_open_line());
    events.flush_lines();
    assert_eq!(line(&mut events), ("Name: ".to_owned(), LineEnd::Split));
    assert!(!events.has_open_line());
    job.write(b"me\n").expect("a reader");
    assert_eq!(line(&mut events), ("<me>".to_owned(), LineEnd::Lf));
    assert_eq!(events.next_timeout(LONG), Some(Event::End));
    session.close().expect("a result");
}

fn a_side_command_has_directory_and_variables(shell: Shell) {
    let session = shell.open(SessionOptions::new().restart(true));
    let line = |session: &Session, line: &str| {
        let command = session.side_command(["sh", "-c", line]).expect("a command");
        let output = command.run_with(&Run::new().timeout(LONG)).expect("a result");
        assert!(output.ok() && output.stderr.is_empty(), "{output:?}");
        output.stdout_text().into_owned()
    };
    // Before the first command, the shell's own directory and environment.
    assert_eq!(line(&session, "echo ${X-unset}"), "unset\n");
    change(&session, "export X='a  \"b\"\n$c' Y=2; Z=3; cd /usr/bin; umask 077");
    let shows = "echo \"$X\" ${Y-unset} ${Z-unset} $PWD; pwd; umask";
    let job = session.start("read x; export Y=3", &Run::new().writable(10)).expect("a job");
    for _ in 0..2 {
        assert_eq!(line(&session, shows), "a  \"b\"\n$c 2 unset /usr/bin\n/usr/bin\n0077\n");
    }
    assert!(session.processes().iter().all(|process| process.name != "sh"));
    job.close_stdin();
    job.wait().expect("a result");
    change(&session, "unset X");
    assert_eq!(line(&session, "echo ${X-unset} $Y"), "unset 3\n");
    // A program is searched in the session's PATH, and a missing one is a failed start.
    change(&session, "PATH=/nonexistent");
    let missing = session.side_command(["sh"]).expect("a command").run_with(&Run::new());
    assert_eq!(missing.expect_err("no sh").errno(), Errno::ENOENT);
    session.close().expect("a result");
}

fn a_side_command_needs_a_saved_state(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let error = session.side_command(["true"]).expect_err("no state");
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.to_string().contains("restart"), "{error}");
    session.close().expect("a result");
}
