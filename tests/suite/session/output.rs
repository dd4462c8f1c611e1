// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of commands.

use std::time::{Duration, Instant};

use spawnfd::Run;
use spawnfd::job::Drain;
use spawnfd::session::SessionOptions;

use crate::common::eventually;
use crate::common::job::read_until;
use crate::{LONG, Shell, change, each_shell, run, stdout};

each_shell! {
    streams_are_separate_or_merged
    binary_output_is_captured_exactly
    much_output_without_a_newline_is_bounded
    output_of_a_background_job_belongs_to_its_command
    a_background_job_that_holds_the_streams_delays_no_result
    standard_input_is_empty_unless_given
    commands_inherit_no_descriptor_of_the_session
    output_cannot_imitate_the_control_channel
    here_documents_and_long_texts_run
}

fn streams_are_separate_or_merged(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let output = run(&session, "echo out; echo err >&2; exec 3>&1");
    assert_eq!(
        (&output.stdout[..], &output.stderr[..], output.drain),
        (&b"out\n"[..], &b"err\n"[..], Drain::Cut(vec![session.id().unwrap()]))
    );
    change(&session, "exec 3>&-");
    assert_eq!(run(&session, ":").drain, Drain::Eof);
    let session = shell.open(SessionOptions::new().merge(true));
    let output = run(&session, "echo out; echo err >&2; echo out");
    assert_eq!((&output.stdout[..], output.stderr.is_empty()), (&b"out\nerr\nout\n"[..], true));
}

fn binary_output_is_captured_exactly(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    assert_eq!(run(&session, "printf '\\000\\377\\001'; head -c 3 /dev/zero >&2").stdout, b"\0\xff\x01");
    assert_eq!(run(&session, "printf '0 /tmp\\0' >&2").stderr, b"0 /tmp\0");
}

fn much_output_without_a_newline_is_bounded(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let output =
        session.run("head -c 100000000 /dev/zero; echo end", &Run::new().keep(10, 10).timeout(LONG)).expect("a result");
    assert_eq!((output.seen_bytes, output.ok()), (100_000_004, true));
    assert!(output.stdout.ends_with(b"\0\0\0\0\0\0end\n") && output.stdout.len() < 100);
    assert_eq!(stdout(&session, "echo next"), "next\n");
}

/// apex#625: the output of a background job was a part of the next command's output.
fn output_of_a_background_job_belongs_to_its_command(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let text = "(while [ ! -e /dev/shm/$$.go ]; do sleep 0.01; done; rm /dev/shm/$$.go; echo late) & echo first";
    let job = session.start(text, &Run::new().window(1000).drain(Duration::from_millis(1))).expect("a job");
    let output = job.wait().expect("a result");
    assert_eq!((&output.stdout[..], output.ok()), (&b"first\n"[..], true));
    assert!(matches!(output.drain, Drain::Cut(_)), "{:?}", output.drain);
    assert_eq!(
        session.processes().first().map(|process| &process.name[..]),
        Some(if shell.is_bash() { "bash" } else { "dash" })
    );
    assert_eq!(stdout(&session, "touch /dev/shm/$$.go; wait; echo second"), "second\n");
    eventually("the job's own handle has its output", || job.read(0).text().ends_with("late\n"));
    eventually("the background job has ended", || session.processes().is_empty());
}

/// pi#9460, prime-agent#1156: a background child kept the pipe open, and the tool waited 82 and 119 minutes.
fn a_background_job_that_holds_the_streams_delays_no_result(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let begun = Instant::now();
    for text in ["sleep 600 & echo done", "(sleep 600 &); echo done", "setsid -f sleep 600; echo done"] {
        let output = session.run(text, &Run::new()).expect("a result");
        assert_eq!((&output.stdout[..], output.ok()), (&b"done\n"[..], true), "{text}");
        assert!(matches!(output.drain, Drain::Cut(_)), "{text}: {:?}", output.drain);
        assert_eq!(stdout(&session, "echo next"), "next\n");
    }
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

/// apex#625: a command that read standard input read the tool's control stream.
fn standard_input_is_empty_unless_given(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    assert_eq!(stdout(&session, "cat; ! read line"), "");
    let output = session.run("read line; echo \"got $line\"; cat", &Run::new().input("one\ntwo\n")).expect("a result");
    assert_eq!(output.stdout, b"got one\ntwo\n");
    assert!(session.run("true", &Run::new().input(vec![b'x'; 1 << 20])).expect("a result").input_refused);
    let job =
        session.start("echo ask; read a; echo \"<$a>\"; cat", &Run::new().writable(100).window(1000)).expect("a job");
    read_until(&job, 0, "ask\n");
    job.write(b"yes\nrest").expect("an open pipe");
    job.close_stdin();
    assert_eq!(job.wait().expect("a result").stdout, b"ask\n<yes>\nrest");
    assert_eq!(stdout(&session, "cat"), "");
}

fn commands_inherit_no_descriptor_of_the_session(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let listed = stdout(&session, "ls /proc/self/fd");
    // ls has its own descriptor 3.
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    assert_eq!(stdout(&session, "readlink /proc/self/fd/0"), "/dev/null\n");
}

fn output_cannot_imitate_the_control_channel(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let output = run(&session, "printf '0 0m0s 0m0s\\n0m0s 0m0s\\n/forged\\0'; printf '0 /forged\\0' >&2; false");
    assert_eq!(output.code(), Some(1));
    assert_ne!(output.cwd.as_deref(), Some("/forged".as_ref()));
}

fn here_documents_and_long_texts_run(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    assert_eq!(stdout(&session, "cat <<'END'\nit's \"$HOME\" `x` \\\nEND\n"), "it's \"$HOME\" `x` \\\n");
    assert_eq!(stdout(&session, ""), "");
    assert_eq!(stdout(&session, "  # a comment"), "");
    assert_eq!(stdout(&session, "\n\necho a\n\n"), "a\n");
    let long = "x".repeat(1 << 20);
    assert_eq!(stdout(&session, &format!("wc -c <<E\n{long}\nE\n")), "1048577\n");
    assert_eq!(stdout(&session, "echo é€😀"), "é€😀\n");
}
