// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that a shell starts, and to which --foreground gives the terminal.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::channel;

use crate::common::{LIMIT, command, run, terminal, wait_status};
use spawnfd_tests::{isolated, skip};

/// Runs a bash script on a terminal. After each line that the script prints, types the given text. In the script,
/// `$job` runs a program with --foreground, and `$limited` with a timeout.
fn typed(script: &str, lines: &[(&str, &str)]) {
    let (master, terminal) = terminal();
    let mut shell = command();
    shell.args(["run", "--setsid", "--controlling-terminal", "0", "--foreground", "0", "--", "bash", "-c", script]);
    shell.env("job", concat!(env!("CARGO_BIN_EXE_spawnfd"), " run --process-group 0 --foreground 0 --"));
    shell.env("limited", concat!(env!("CARGO_BIN_EXE_spawnfd"), " run --timeout 60 --"));
    // bash takes its terminal from standard error.
    let errors = terminal.try_clone().unwrap();
    let mut child = shell.stdin(terminal).stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    let printed = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, receiver) = channel();
    std::thread::spawn(move || printed.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    for (line, text) in lines {
        assert_eq!(receiver.recv_timeout(LIMIT).as_deref(), Ok(*line));
        rustix::io::write(&master, text.as_bytes()).unwrap();
    }
    assert_eq!(wait_status(&mut child).code(), Some(0));
}

#[test]
fn a_stopped_program_is_a_stopped_job_of_the_shell() {
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
fn a_background_job_does_not_get_the_terminal() {
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
fn a_running_job_gets_the_terminal_when_it_comes_to_the_foreground() {
    isolated!(|| {
        // The shell sends no SIGCONT to a running job. The script uses only builtins, because a
        // shell that waits in vfork() would not stop.
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
fn a_shell_without_job_control_gets_the_terminal_back() {
    isolated!(|| {
        typed("$job echo ready; read x; echo shell got $x", &[("ready", "one\n"), ("shell got one", "")]);
    });
}

#[test]
fn the_shell_gets_the_terminal_back_after_a_failed_start() {
    isolated!(|| {
        let script = "${job% --} --chdir /nonexistent -- true 2>/dev/null; echo failed $?; read x; echo shell got $x";
        typed(script, &[("failed 125", "one\n"), ("shell got one", "")]);
    });
}

#[test]
fn a_program_with_a_timeout_reads_the_terminal() {
    isolated!(|| {
        let script = "set -m; $limited sh -c 'echo ready; read x; echo got $x'; echo ended $?";
        typed(script, &[("ready", "one\n"), ("got one", ""), ("ended 0", "")]);
    });
}

#[test]
fn a_program_in_a_tree_of_any_tier_reads_the_terminal() {
    isolated!(|| {
        for option in ["--tree=guard", "--tree=subreaper", "--tree=pidns", "--namespaces=pid --timeout=60"] {
            if run(option.split(' ').chain(["true"])).code != Some(0) {
                skip(&format!("{option} does not work here"));
                continue;
            }
            let script = format!(
                "set -m; ${{limited% --timeout*}} {option} -- sh -c 'echo ready; read x; echo got $x'; echo ended $?"
            );
            typed(&script, &[("ready", "one\n"), ("got one", ""), ("ended 0", "")]);
            let script = script.replace("read x", "while :; do sleep 0.05; done");
            typed(&script, &[("ready", "\x03"), ("ended 130", "")]);
        }
    });
}

#[test]
fn ctrl_c_reaches_a_program_with_a_timeout() {
    isolated!(|| {
        let script = "set -m; $limited sh -c 'trap \"echo caught; exit 3\" INT; echo ready; while :; do sleep 0.05; done'; echo ended $?";
        typed(script, &[("ready", "\x03"), ("caught", ""), ("ended 3", "")]);
        let script = "set -m; $limited sh -c 'echo ready; while :; do sleep 0.05; done'; echo ended $?";
        typed(script, &[("ready", "\x03"), ("ended 130", "")]);
    });
}

#[test]
fn a_stopped_program_with_a_timeout_is_a_stopped_job_of_the_shell() {
    isolated!(|| {
        let script = "set -m; $limited sh -c 'echo ready; read x; echo got $x'; echo stopped $?
        fg >/dev/null; echo ended $?; read y; echo shell got $y";
        typed(
            script,
            &[
                ("ready", "\x1a"),
                ("stopped 148", "one\n"),
                ("got one", ""),
                ("ended 0", "two\n"),
                ("shell got two", ""),
            ],
        );
    });
}

#[test]
fn a_timeout_in_the_foreground_group_ends_the_whole_tree() {
    isolated!(|| {
        // The killed process may be a zombie until init has reaped it.
        let script = "set -m; ${limited/60/1} sh -c '(sh -c \"echo \\$\\$; exec sleep 1000\" & ); sleep 1000' >pid
        echo ended $?; cat /proc/$(cat pid)/status 2>/dev/null | grep -q '^State:.[^ZX]'; echo left $?";
        let dir = tempfile::tempdir().unwrap();
        let script = format!("cd {}; {script}", dir.path().display());
        typed(&script, &[("ended 124", ""), ("left 1", "")]);
    });
}
