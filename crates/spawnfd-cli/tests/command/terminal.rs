// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are given the terminal, below a shell.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::channel;

use crate::common::{LIMIT, command, terminal, wait_status};
use spawnfd_tests::isolated;

/// Runs a script on a terminal, where something is typed after each line that it prints. `$job` runs a program that has the terminal.
fn typed(script: &str, lines: &[(&str, &str)]) {
    let (master, terminal) = terminal();
    let mut shell = command();
    shell.args(["run", "--setsid", "--controlling-terminal", "0", "--foreground", "0", "--", "bash", "-c", script]);
    shell.env("job", concat!(env!("CARGO_BIN_EXE_spawnfd"), " run --process-group 0 --foreground 0 --"));
    // On standard error bash looks for its terminal.
    let errors = terminal.try_clone().unwrap();
    let mut child = shell.stdin(terminal).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, receiver) = channel();
    std::thread::spawn(move || said.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    for (line, text) in lines {
        assert_eq!(receiver.recv_timeout(LIMIT).as_deref(), Ok(*line));
        rustix::io::write(&master, text.as_bytes()).unwrap();
    }
    assert_eq!(wait_status(&mut child).code(), Some(0));
}

#[test]
fn a_program_that_stops_is_a_job_that_has_stopped() {
    isolated!(|| {
        let script = "set -m; $job sh -c 'echo ready; read x; echo got $x'; echo stopped $?
        fg >/dev/null; echo ended $?; read y; echo shell got $y";
        let stop = "\x1a";
        typed(
            script,
            &[("ready", stop), ("stopped 148", "one\n"), ("got one", ""), ("ended 0", "two\n"), ("shell got two", "")],
        );
    });
}

#[test]
fn a_job_in_the_background_has_not_the_terminal() {
    isolated!(|| {
        let script = "set -m; $job sh -c 'echo ready; read x; echo got $x'; echo stopped $?
        bg >/dev/null; until [ \"$(jobs -s)\" ]; do sleep 0.01; done; read y; echo shell got $y; fg >/dev/null; echo ended $?";
        typed(
            script,
            &[
                ("ready", "\x1a"),
                ("stopped 148", "one\n"),
                ("shell got one", "two\n"),
                ("got two", ""),
                ("ended 0", ""),
            ],
        );
    });
}

#[test]
fn a_job_that_comes_to_the_foreground_while_it_runs_has_the_terminal() {
    isolated!(|| {
        // The shell sends it no SIGCONT then. The program starts none: one in vfork() would not stop.
        let script = "set -m; $job sh -c 'trap \"echo continued\" CONT; echo ready
            until read _ _ _ _ group _ _ foreground _ </proc/$PPID/stat; [ $group = $foreground ]; do :; done
            until read x; do :; done; echo got $x'; echo stopped $?
        bg >/dev/null; read y; fg >/dev/null; echo ended $?";
        typed(
            script,
            &[
                ("ready", "\x1a"),
                ("stopped 148", ""),
                ("continued", "one\n"),
                ("continued", "two\n"),
                ("got two", ""),
                ("ended 0", ""),
            ],
        );
    });
}

#[test]
fn a_shell_without_jobs_has_the_terminal_again() {
    isolated!(|| {
        typed("$job echo ready; read x; echo shell got $x", &[("ready", "one\n"), ("shell got one", "")]);
    });
}

#[test]
fn the_terminal_of_a_program_that_was_not_started_is_the_shell_s_again() {
    isolated!(|| {
        let script = "${job% --} --chdir /nonexistent -- true 2>/dev/null; echo failed $?; read x; echo shell got $x";
        typed(script, &[("failed 125", "one\n"), ("shell got one", "")]);
    });
}
