// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sessions with a terminal.

use std::time::Duration;

use spawnfd::Run;
use spawnfd::job::{Stop, TerminalSize};
use spawnfd::sandbox::Sandbox;
use spawnfd::session::{Session, SessionOptions};

use crate::common::eventually;
use crate::common::job::read_until;
use crate::{LONG, Shell, change, each_shell, run, stdout};

each_shell! {
    commands_have_the_terminal
    input_is_typed_into_the_terminal
    a_timeout_ends_the_command_in_the_terminal
    a_typed_interrupt_abandons_the_rest
    settings_and_input_are_reset_between_commands
    the_foreground_group_is_restored_after_it_was_killed
    the_foreground_group_is_restored_after_a_timeout
    stopped_output_continues_with_the_next_command
    a_changed_size_and_exclusive_mode_are_restored
    much_output_of_a_terminal_is_complete
    a_restarted_shell_has_the_terminal
    a_sandboxed_shell_has_the_terminal
}

fn in_terminal() -> SessionOptions {
    SessionOptions::new().terminal(TerminalSize::new(30, 100))
}

fn commands_have_the_terminal(shell: Shell) {
    let session = shell.open(in_terminal());
    assert_eq!(stdout(&session, "stty size </dev/tty; echo err >&2; X=1"), "30 100\r\nerr\r\n");
    assert_eq!(stdout(&session, "echo $X; [ -t 1 ] && [ -t 2 ] && ! [ -t 0 ] && echo terminal"), "1\r\nterminal\r\n");
    assert_eq!(run(&session, "tty </dev/tty; exit_with() { return $1; }; exit_with 7").code(), Some(7));
    // A program has the descriptors 0 to 2 only; ls has opened the fourth.
    assert_eq!(stdout(&session, "ls /proc/self/fd"), "0  1  2  3\r\n");
    session.resize(TerminalSize::new(10, 20)).expect("a terminal");
    assert_eq!(stdout(&session, "stty size </dev/tty"), "10 20\r\n");
    // Background jobs write to the same terminal.
    let output = run(&session, "(read x </dev/tty; echo later >/dev/tty) & :");
    assert_eq!((output.code(), output.shell_exited), (Some(0), false), "{output:?}");
    session.close().expect("a result");
}

fn input_is_typed_into_the_terminal(shell: Shell) {
    let session = shell.open(in_terminal());
    // The terminal does not echo.
    let output = session.run("read line; echo \"<$line>\"; [ -t 0 ]", &Run::new().input("typed\n")).expect("a result");
    assert_eq!((output.stdout_text().as_ref(), output.code()), ("<typed>\r\n", Some(0)));
    let output = session.run("cat", &Run::new().input("a\nb\n")).expect("a result");
    assert_eq!(output.stdout, b"a\r\nb\r\n");
    let job = session.start("read x </dev/tty; echo \"<$x>\"", &Run::new().writable(100)).expect("a job");
    job.write(b"y\n").expect("a terminal");
    assert_eq!(job.wait().expect("a result").stdout, b"<y>\r\n");
    let session = shell.open(in_terminal().echo(true));
    let output = session.run("read line; echo \"<$line>\"", &Run::new().input("typed\n")).expect("a result");
    assert_eq!(output.stdout, b"typed\r\n<typed>\r\n");
}

fn a_timeout_ends_the_command_in_the_terminal(shell: Shell) {
    let session = shell.open(in_terminal());
    change(&session, "X=1");
    let ends = Run::new().timeout(Duration::from_millis(100)).grace(LONG);
    for text in ["sleep 600; echo no", "cat </dev/tty; echo no", "while :; do :; done"] {
        let output = session.run(text, &ends).expect("a result");
        assert_eq!((output.stop, output.code(), output.shell_exited), (Stop::Timeout, Some(130), false), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    assert_eq!(stdout(&session, "echo $X"), "1\r\n");
}

fn a_typed_interrupt_abandons_the_rest(shell: Shell) {
    let session = shell.open(in_terminal());
    let job = session.start("echo on; sleep 600; echo no", &Run::new().writable(100).window(100)).expect("a job");
    read_until(&job, 0, "on\r\n");
    // A process that has not executed its program yet may lose the signal, as in any terminal.
    eventually("sleep runs", || session.processes().iter().any(|process| process.name == "sleep"));
    job.write(b"\x03").expect("a terminal");
    let output = job.wait().expect("a result");
    assert_eq!((output.code(), output.stop, output.shell_exited), (Some(130), Stop::Exited, false), "{output:?}");
    assert!(!output.stdout_text().contains("no"), "{output:?}");
    assert_eq!(stdout(&session, "echo here"), "here\r\n");
}

fn settings_and_input_are_reset_between_commands(shell: Shell) {
    let session = shell.open(in_terminal());
    let before = stdout(&session, "stty -a </dev/tty");
    assert!(before.contains("-echo ") && before.contains("susp = <undef>"), "{before}");
    change(&session, "stty raw echo </dev/tty");
    assert_eq!(stdout(&session, "stty -a </dev/tty"), before);
    // The first command does not read its input. The second one does not get it.
    assert!(session.run(":", &Run::new().input("left over\n")).expect("a result").ok());
    let output = session.run("read line; echo \"<$line>\"", &Run::new().input("next\n")).expect("a result");
    assert_eq!(output.stdout, b"<next>\r\n");
}

/// Checks that the terminal serves the next commands: programs read and write it, and a typed ^C reaches them.
fn assert_usable(session: &Session) {
    assert_eq!(stdout(session, "stty size </dev/tty"), "30 100\r\n");
    let job = session.start("echo on; cat </dev/tty; echo no", &Run::new().writable(100).window(100)).expect("a job");
    read_until(&job, 0, "on\r\n");
    eventually("cat runs", || session.processes().iter().any(|process| process.name == "cat"));
    job.write(b"\x03").expect("a terminal");
    let output = job.wait().expect("a result");
    assert_eq!((output.code(), output.stop, output.stdout_text().contains("no")), (Some(130), Stop::Exited, false));
}

fn the_foreground_group_is_restored_after_it_was_killed(shell: Shell) {
    let sandbox = Sandbox::new(["env"]).expect("a sandbox");
    for options in [in_terminal(), in_terminal().sandbox(&sandbox)] {
        let session = shell.open(options);
        for _ in 0..2 {
            let output = run(&session, "bash --norc -ic 'kill -9 $$'; X=1");
            assert!(!output.shell_exited && !output.status_lost, "{output:?}");
            assert_usable(&session);
        }
        assert_eq!(stdout(&session, "echo $X"), "1\r\n");
        // The same with `set -e`, which must not see the status of a line of the library.
        change(&session, "set -e");
        change(&session, "bash --norc -ic 'kill -9 $$' || :");
        assert_eq!(stdout(&session, "echo here"), "here\r\n");
        // The same with aliases for the words of the shell's language.
        change(&session, "set +e; alias case='echo x' if='echo y' :='echo z' esac='echo v' in='echo w'");
        let output = run(&session, "bash --norc -ic 'kill -9 $$'; X=2");
        assert!(!output.shell_exited && !output.status_lost, "{output:?}");
        assert_usable(&session);
        assert_eq!(stdout(&session, "echo $X"), "2\r\n");
        session.close().expect("a result");
    }
}

fn the_foreground_group_is_restored_after_a_timeout(shell: Shell) {
    let session = shell.open(in_terminal());
    let ends = Run::new().timeout(Duration::from_millis(300)).grace(Duration::ZERO);
    let output = session.run("bash --norc -ic 'sleep 600'", &ends).expect("a result");
    assert_eq!((output.stop, output.shell_exited), (Stop::Timeout, false), "{output:?}");
    assert_usable(&session);
    session.close().expect("a result");
}

fn stopped_output_continues_with_the_next_command(shell: Shell) {
    let session = shell.open(in_terminal());
    let job = session.start("read x </dev/tty", &Run::new().writable(100)).expect("a job");
    // ^S stops the output.
    job.write(b"\x13line\n").expect("a terminal");
    assert!(job.wait().expect("a result").ok());
    assert_eq!(stdout(&session, "echo here"), "here\r\n");
    let stops = "python3 -c 'import termios; termios.tcflow(1, termios.TCOOFF)'";
    assert!(run(&session, stops).ok());
    assert_eq!(stdout(&session, "echo here"), "here\r\n");
    session.close().expect("a result");
}

fn a_changed_size_and_exclusive_mode_are_restored(shell: Shell) {
    let session = shell.open(in_terminal());
    change(&session, "stty rows 5 cols 7 </dev/tty");
    assert_eq!(stdout(&session, "stty size </dev/tty"), "30 100\r\n");
    session.resize(TerminalSize::new(10, 20)).expect("a terminal");
    change(&session, "stty rows 5 cols 7 </dev/tty");
    assert_eq!(stdout(&session, "stty size </dev/tty"), "10 20\r\n");
    // TIOCEXCL and TIOCGEXCL.
    change(&session, "python3 -c 'import fcntl; fcntl.ioctl(1, 0x540c)'");
    let get = "python3 -c 'import fcntl; print(fcntl.ioctl(1, 0x80045440, bytes(4)) == bytes(4))'";
    assert_eq!(stdout(&session, get), "True\r\n");
    session.close().expect("a result");
}

fn much_output_of_a_terminal_is_complete(shell: Shell) {
    let session = shell.open(in_terminal());
    for _ in 0..20 {
        let output = run(&session, "seq 1 5000; echo end");
        let expected: String = (1..=5000).map(|n| format!("{n}\r\n")).chain(["end\r\n".to_owned()]).collect();
        assert!(output.stdout == expected.as_bytes(), "{} bytes", output.stdout.len());
    }
}

fn a_restarted_shell_has_the_terminal(shell: Shell) {
    let session = shell.open(in_terminal().restart(true));
    change(&session, "cd /usr");
    for _ in 0..3 {
        assert!(run(&session, "exit").shell_exited);
        assert_eq!(stdout(&session, "[ -t 1 ] && tty </dev/tty >/dev/null && pwd"), "/usr\r\n");
    }
}

fn a_sandboxed_shell_has_the_terminal(shell: Shell) {
    let sandbox = Sandbox::new(["env"]).expect("a sandbox");
    let session = shell.open(in_terminal().sandbox(&sandbox));
    assert_eq!(stdout(&session, "stty size </dev/tty; [ -t 1 ] && echo terminal"), "30 100\r\nterminal\r\n");
    let output = session.run("cat", &Run::new().input("typed\n")).expect("a result");
    assert_eq!(output.stdout, b"typed\r\n");
}
