// SPDX-License-Identifier: MIT OR Apache-2.0
//! Texts that redefine, stop or exhaust what the control channel needs. After each of them, a later command either runs
//! and has its own status, or its result says that the status is lost. Nothing of the channel is in an output.

use std::time::{Duration, Instant};

use spawnfd::job::{Stop, TerminalSize};
use spawnfd::sandbox::Sandbox;
use spawnfd::session::{CommandText, Session, SessionOptions};
use spawnfd::{Command, Output, Run};
use spawnfd_tests::{scratch, skip};

use crate::common::eventually;
use crate::common::tree::kill;
use crate::{LONG, Shell, change, each_shell, run, stdout};

each_shell! {
    no_text_makes_the_session_invent_a_status
    no_text_makes_a_terminal_or_a_sandbox_invent_a_status
    a_stopped_shell_ends_with_its_command
    a_logout_for_idleness_is_not_the_status_of_a_command
    a_flood_of_the_helpers_socket_delays_no_timeout
    a_hook_or_a_trap_that_reads_takes_no_command
    a_trap_that_exits_is_not_the_status_of_the_command
    a_shell_that_dies_at_any_moment_loses_at_most_a_command
    closing_descriptors_loses_no_command
    traces_show_only_the_text
    a_trace_of_the_user_has_no_number_of_a_command
    a_failing_prompt_changes_no_status
    a_function_around_the_command_is_not_its_status
    a_command_that_the_user_forbids_is_lost
    variables_for_people_have_no_effect_on_the_channel
    an_inherited_hook_that_reads_everything_prevents_no_start
    a_flood_of_the_status_pipe_delays_no_timeout
    a_flood_of_the_status_pipe_prevents_no_end_of_the_shell
    text_may_begin_with_a_dash_and_have_any_bytes
    a_break_ends_no_more_than_the_loops_of_the_text
    a_command_has_a_directory_and_variables_of_its_own
    a_command_whose_streams_cannot_be_opened_is_lost
    a_directory_of_one_command_is_relative_to_the_shells
    a_shell_returns_to_a_directory_with_a_long_name
    a_restart_without_saved_variables_runs_nowhere_else
    a_file_size_limit_prevents_no_command
}

/// Whether later commands must still run, or the session may end with a lost status.
#[derive(Clone, Copy, PartialEq)]
enum After {
    Works,
    MayEnd,
}
use After::{MayEnd, Works};

/// The texts for both shells.
const ATTACKS: &[(&str, After)] = &[
    ("printf() { :; }", MayEnd),
    ("command() { :; }", MayEnd),
    ("umask() { :; }; cd() { :; }; read() { :; }", Works),
    ("alias command='echo alias' printf='echo alias' .='echo alias' eval='echo alias' exec='echo alias'", Works),
    ("alias times=: exit=: export=: umask=: read=: continue=: unset=: set=:", Works),
    ("alias '{=echo alias' 2>/dev/null; alias for='echo alias' do='echo alias' done='echo alias' if=:", Works),
    ("set -e", MayEnd),
    ("set -u", Works),
    ("set -f; set -C; set -a", Works),
    ("set -v", Works),
    ("set -x", Works),
    ("set -n", MayEnd),
    ("unset PATH IFS PWD OLDPWD PS1 PS2 PS4 HOME", Works),
    ("IFS=0123456789abcdef", Works),
    ("PS1='$(read x; echo prompt)'; PS2=$PS1; PS4='$(echo trace)'", Works),
    ("trap 'echo TRAP >/dev/null; read x' USR1 CHLD INT", Works),
    ("trap 'exit 0' EXIT", Works),
    ("trap '' PIPE CHLD TERM HUP QUIT", Works),
    ("trap 'return 3' USR1; kill -USR1 $$", Works),
    ("ulimit -n 40", Works),
    ("ulimit -n 8", MayEnd),
    ("ulimit -f 0", Works),
    ("ulimit -t 1; while :; do :; done", MayEnd),
    ("ulimit -v 200000", MayEnd),
    ("exec 3</dev/null 4</dev/null 5>/dev/null 6<&- 7<&- 8<&- 9<&-", Works),
    ("exec 0<&-", Works),
    ("exec >/dev/null 2>&1 </dev/null", Works),
    ("break; continue", Works),
    ("return 7", Works),
    ("(while kill -CONT $$; do sleep 0.1; done) & kill -STOP $$", Works),
    ("kill -HUP $$", MayEnd),
    ("readonly PATH PWD", Works),
    ("export _=x; _=y", Works),
    ("cd /; rmdir /nonexistent 2>/dev/null", Works),
    ("unset _", Works),
    ("true 0; readonly _", MayEnd),
    ("_=5; readonly _", MayEnd),
    ("set -- . /proc 0 -e; shift", Works),
];

/// The texts for bash.
const OF_BASH: &[(&str, After)] = &[
    (".() { :; }; eval() { :; }; exec() { :; }; times() { :; }; export() { :; }; exit() { :; }", Works),
    ("builtin() { :; }", MayEnd),
    ("builtin() { command builtin \"$@\"; true; }", MayEnd),
    ("command() { :; }; printf() { :; }", Works),
    ("command() { builtin command \"$@\"; true; }", Works),
    ("continue() { :; }; return() { :; }; unset() { :; }; set() { :; }; shopt() { :; }; trap() { :; }", Works),
    ("command() { builtin command \"$@\"; }", Works),
    ("enable -n printf", MayEnd),
    ("enable -n builtin", MayEnd),
    ("enable -n times umask export exit unset set trap return", MayEnd),
    ("enable -n .", MayEnd),
    ("enable -n eval", MayEnd),
    ("enable -n read", MayEnd),
    ("enable -n exec", MayEnd),
    ("enable -n command", Works),
    ("enable -n continue", Works),
    ("set -t", MayEnd),
    ("set -r", MayEnd),
    ("set -E -T", Works),
    ("set -o posix", Works),
    ("set +o posix; set -m", Works),
    ("set +B; set -k; set -h", Works),
    ("shopt -u expand_aliases", Works),
    ("shopt -s extdebug", Works),
    ("shopt -s extdebug nullglob failglob dotglob lastpipe 2>/dev/null", Works),
    ("trap 'echo TRAP' DEBUG", Works),
    ("trap 'echo TRAP' RETURN", Works),
    ("trap 'echo TRAP' ERR; set -E", Works),
    ("trap 'read x' DEBUG; set -T", Works),
    ("trap 'return 3' DEBUG; set -T", MayEnd),
    ("trap 'return 3' RETURN; set -T", MayEnd),
    ("trap 'exit 4' DEBUG", MayEnd),
    ("trap 'exit 4' ERR; set -E", MayEnd),
    ("shopt -s extdebug; set -T; trap false DEBUG", MayEnd),
    ("PROMPT_COMMAND='read x'", Works),
    ("PROMPT_COMMAND='exit 3'; PS0='$(exit 3)'", Works),
    ("TMOUT=1", Works),
    ("readonly TMOUT=1", Works),
    ("BASH_XTRACEFD=1", Works),
    ("unset BASHOPTS LINENO BASH_SOURCE _ 2>/dev/null", Works),
    ("GLOBIGNORE='*'; BASH_COMPAT=4.2", Works),
    ("POSIXLY_CORRECT=1", Works),
    ("exec {fd}<&0 {other}<&1", Works),
];

/// The texts for dash.
const OF_DASH: &[(&str, After)] = &[
    ("command() { \"$@\"; :; }", MayEnd),
    ("command() { \"$@\" || return 0; }; printf() { :; }", MayEnd),
    ("set -o nolog; set -o vi", Works),
    ("set +i", MayEnd),
    ("_=0; set +i", MayEnd),
    ("set +i; _=5; export _", MayEnd),
];

/// Pieces of the channel's own text, which no output may show.
const OURS: &[&str] = &["/proc/", "command printf", "command eval", "expand_aliases", "\0", "spawnfd"];

fn assert_nothing_of_ours(output: &Output, text: &str) {
    let shown = output.stdout_text() + output.stderr_text();
    for ours in OURS {
        assert!(!shown.contains(ours), "{text}: {ours:?} in {shown:?}");
    }
}

/// The status of a text that a shell sources.
fn plain_status(shell: Shell, text: &str) -> Option<i32> {
    let dir = scratch();
    let file = dir.path().join("text");
    std::fs::write(&file, text).expect("own directory");
    let mut command = Command::new(shell.name());
    command.args(["-c", ". \"$0\""]).arg(&file);
    command.run().expect("a shell").code()
}

fn no_text_makes_the_session_invent_a_status(shell: Shell) {
    check_later_statuses(shell, &SessionOptions::new(), false);
}

fn no_text_makes_a_terminal_or_a_sandbox_invent_a_status(shell: Shell) {
    check_later_statuses(shell, &SessionOptions::new().terminal(TerminalSize::new(24, 80)), true);
    let sandbox = Sandbox::new(["env", "INSIDE=1"]).expect("a sandbox");
    check_later_statuses(shell, &SessionOptions::new().sandbox(&sandbox), false);
}

fn check_later_statuses(shell: Shell, options: &SessionOptions, has_terminal: bool) {
    let own = if shell.is_bash() { OF_BASH } else { OF_DASH };
    for (text, after) in ATTACKS.iter().chain(own) {
        let session = shell.open(options.clone());
        let first = run(&session, text);
        assert_nothing_of_ours(&first, text);
        if *after == Works {
            assert_eq!(first.code(), plain_status(shell, text), "{text}: {first:?}");
        }
        for number in 3..8 {
            // The session may have ended.
            let command = format!("echo out{number}; /bin/sh -c 'exit {number}'");
            let Ok(output) = session.run(&command, &Run::new().timeout(LONG)) else {
                assert!(*after == MayEnd, "{text}: the shell has ended");
                break;
            };
            assert_nothing_of_ours(&output, text);
            let lines = output.stdout_text();
            // A terminal has the shell's trace, too.
            let is_own = has_terminal || lines.lines().all(|line| line == format!("out{number}") || line == "TRAP");
            assert!(is_own, "{text}: {output:?}");
            if output.stop == Stop::Lost {
                assert!(*after == MayEnd && output.code().is_none(), "{text}: {output:?}");
                continue;
            }
            let is_right = output.code() == Some(number) && lines.contains("out");
            // A trap that returns or exits may choose the status of the text, and then it has run.
            let is_chosen = *after == MayEnd && text.contains("trap") && output.code() != Some(0);
            assert!(is_right || is_chosen, "{text}: {output:?}");
        }
    }
}

fn a_hook_or_a_trap_that_reads_takes_no_command(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    change(&session, "PROMPT_COMMAND='read x'; PS1='$(read x)'; trap 'read x; echo \"trap:$x\" >&2' USR1");
    for number in 0..30 {
        if number % 3 == 0 {
            kill(session.id().expect("the shell runs") as i32, libc::SIGUSR1);
        }
        let output = run(&session, &format!("echo {number}; (exit {number})"));
        assert_eq!((output.code(), output.stdout_text()), (Some(number), format!("{number}\n").into()), "{output:?}");
        if number % 10 == 0 {
            // After an interrupt, the shell shows a prompt.
            let ends = Run::new().timeout(Duration::from_millis(30)).grace(LONG);
            let output = session.run("while :; do :; done", &ends).expect("a result");
            assert_eq!((output.stop, output.code(), output.shell_exited), (Stop::Timeout, Some(130), false));
        }
    }
}

fn a_trap_that_exits_is_not_the_status_of_the_command(shell: Shell) {
    for _ in 0..10 {
        let session = shell.open(SessionOptions::new());
        change(&session, "trap 'exit 0' USR1");
        let output = run(&session, "(kill -USR1 $$) & sh -c 'exit 5'");
        let is_right = output.code() == Some(5) || output.stop == Stop::Lost && output.code().is_none();
        assert!(is_right && !output.ok(), "{output:?}");
        if output.stop == Stop::Lost {
            assert!(output.shell_exited && output.shell_status.is_some_and(|status| status.success()), "{output:?}");
        }
    }
}

fn a_shell_that_dies_at_any_moment_loses_at_most_a_command(shell: Shell) {
    let session = shell.open(SessionOptions::new().restart(true));
    for round in 0..150 {
        let output = run(&session, "echo on");
        assert!(output.ok() || output.stop == Stop::Lost && output.shell_exited, "{output:?}");
        if let Some(shell) = session.id() {
            kill(shell as i32, libc::SIGKILL);
        }
        // The library may notice the end of the shell while it prepares the command.
        std::thread::sleep(Duration::from_micros(round * 7 % 400));
    }
}

fn closing_descriptors_loses_no_command(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let last = if shell.is_bash() { 255 } else { 9 };
    for number in 3..=last {
        let output = run(&session, &format!("exec {number}<&-; (exit {})", number % 7));
        assert_eq!((output.code(), &output.stdout[..]), (Some(number % 7), &b""[..]), "{number}: {output:?}");
        assert_eq!(stdout(&session, "echo next"), "next\n", "{number}");
    }
    // Replacing them is the same.
    for number in 3..=last {
        let output = run(&session, &format!("exec {number}</dev/null; (exit 2)"));
        assert_eq!(output.code(), Some(2), "{number}: {output:?}");
        assert_eq!(stdout(&session, "echo next"), "next\n", "{number}");
    }
}

fn traces_show_only_the_text(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    change(&session, "PS4='+ '; set -x");
    for _ in 0..2 {
        let output = run(&session, "echo one; (exit 3)");
        let trace = output.stderr_text();
        let lines: Vec<&str> = trace.lines().map(|line| line.trim_start_matches('+').trim()).collect();
        assert_eq!((lines, output.code()), (vec!["echo one", "exit 3"], Some(3)), "{output:?}");
        assert_eq!(run(&session, "echo $?").stdout, b"3\n");
    }
    change(&session, "set +x");
    let output = run(&session, "echo $LINENO\nnonexistent-program");
    if shell.is_bash() {
        assert!(output.stdout == b"1\n" && !output.stderr_text().contains("/proc"), "{output:?}");
        assert_eq!(stdout(&session, "echo ${BASH_SOURCE[0]}"), "/proc/self/fd/0\n");
    }
}

/// In bash, the trace may go to a file, and a DEBUG trap can print each command.
fn a_trace_of_the_user_has_no_number_of_a_command(shell: Shell) {
    let dir = scratch();
    let file = dir.path().join("trace");
    let session = shell.open(SessionOptions::new().restart(true));
    if shell.is_bash() {
        change(&session, &format!("exec 5>'{}'; BASH_XTRACEFD=5; set -x", file.display()));
        for number in 3..6 {
            assert_eq!(run(&session, &format!("echo traced; (exit {number})")).code(), Some(number));
        }
        change(&session, "set +x");
        let trace = std::fs::read_to_string(&file).expect("own file");
        assert!(trace.contains("echo traced") && !trace.contains("printf"), "{trace}");
        change(&session, "set -T; trap 'printf \"$BASH_COMMAND\" 0 hB /' DEBUG");
    }
    for number in 3..6 {
        assert_eq!(run(&session, &format!("/bin/sh -c 'exit {number}'")).code(), Some(number));
        let text = CommandText::new(format!("/bin/sh -c 'exit {number}'")).cwd("/");
        assert_eq!(session.run(text, &Run::new()).expect("a result").code(), Some(number));
    }
    let session = shell.open(SessionOptions::new());
    change(&session, "PS4='+ '; set -xv");
    let output = session.run(CommandText::new("true").cwd("/usr"), &Run::new()).expect("a result");
    let lines: Vec<String> =
        output.stderr_text().lines().map(|line| line.trim_start_matches('+').trim().to_owned()).collect();
    assert!(lines.iter().all(|line| line == "true") && !lines.is_empty(), "{output:?}");
}

/// In dash, an expansion that fails in a prompt or in a trace changes `$?`.
fn a_failing_prompt_changes_no_status(shell: Shell) {
    for inherits in [false, true] {
        let mut command = Command::new(shell.name());
        if inherits {
            command.env("PS4", "${x:?bad}").env("PS1", "${x:?bad}").env("PROMPT_COMMAND", "${x:?bad}");
        }
        let session = Session::open(command, SessionOptions::new()).expect("a session");
        change(&session, "PS4='${x:?bad}'; PS1=$PS4; set -x");
        for number in 0..6 {
            let output = run(&session, &format!("sh -c 'exit {number}'"));
            assert_eq!((output.code(), output.stop), (Some(number), Stop::Exited), "{output:?}");
        }
        let ends = Run::new().timeout(Duration::from_millis(30)).grace(LONG);
        let output = session.run("sleep 600", &ends).expect("a result");
        let is_right = output.code() == if shell.is_bash() { Some(130) } else { None };
        assert!(output.stop == Stop::Timeout && is_right && !output.shell_exited, "{output:?}");
        assert_eq!(run(&session, "sh -c 'exit 3'").code(), Some(3));
    }
}

/// A function named as the shell's command that runs the text may end with another status.
fn a_function_around_the_command_is_not_its_status(shell: Shell) {
    let function = if shell.is_bash() { "builtin() { command builtin" } else { "command() {" };
    for end in ["true", "return 0"] {
        let text = format!("{function} \"$@\"; {end}; }}");
        let session = shell.open(SessionOptions::new());
        // The library's commands before the text were the shell's own, and those after it are not.
        let output = run(&session, &format!("{text}; sh -c 'exit 3'"));
        assert!(output.code().is_none_or(|code| code == 3) && !output.ok(), "{output:?}");
        for number in 3..6 {
            let output = run(&session, &format!("sh -c 'exit {number}'"));
            assert_eq!((output.stop, output.code()), (Stop::Lost, None), "{output:?}");
        }
        // The function runs the text that removes it.
        let name = if shell.is_bash() { "builtin" } else { "command" };
        let output = run(&session, &format!("unset -f {name}; sh -c 'exit 3'"));
        assert_eq!((output.stop, output.code()), (Stop::Lost, None), "{output:?}");
        let output = run(&session, "sh -c 'exit 3'");
        assert_eq!(output.code(), Some(3), "{output:?}");
    }
}

/// A DEBUG trap may forbid commands by their text, with `extdebug`. The channel's own command has the text too.
fn a_command_that_the_user_forbids_is_lost(shell: Shell) {
    if !shell.is_bash() {
        return;
    }
    let session = shell.open(SessionOptions::new());
    change(&session, "shopt -s extdebug; set -T; trap '[[ $BASH_COMMAND != *secret* ]]' DEBUG");
    let output = run(&session, "echo secret");
    assert!(output.stop == Stop::Lost && !output.ok() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(stdout(&session, "echo open"), "open\n");
}

fn variables_for_people_have_no_effect_on_the_channel(shell: Shell) {
    let startup = spawnfd_tests::scratch();
    let file = startup.path().join("startup");
    std::fs::write(&file, "echo read; export STARTUP=1\n").expect("own directory");
    let mut command = Command::new(shell.name());
    command.env("TMOUT", "1").env("PROMPT_COMMAND", "nonexistent; sleep 0.3").env("PS0", "$(nonexistent)");
    command.env("PS1", "$(sleep 0.3)").env("PS4", "$(sleep 0.1)").env("POSIXLY_CORRECT", "1");
    if shell.is_bash() {
        command.env("ENV", &file);
    }
    let session = Session::open(command, SessionOptions::new()).expect("a session");
    let begun = Instant::now();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(stdout(&session, "echo \"$TMOUT ${STARTUP-none} $POSIXLY_CORRECT\""), "1 none 1\n");
    change(&session, "set -u");
    for _ in 0..5 {
        assert_eq!(stdout(&session, "echo on"), "on\n");
    }
    // Five prompts would take three seconds.
    assert!(begun.elapsed() < Duration::from_millis(1500) + LONG, "the session answers");
    change(&session, "set -e; :");
    assert_eq!(stdout(&session, "echo alive"), "alive\n");
}

fn an_inherited_hook_that_reads_everything_prevents_no_start(shell: Shell) {
    for hook in ["cat", "while read x; do :; done", "exit 0"] {
        let mut command = Command::new(shell.name());
        command.env("PROMPT_COMMAND", hook).env("PS1", format!("$({hook})")).env("PS0", format!("$({hook})"));
        let session = Session::open(command, SessionOptions::new().restart(true)).expect("a session");
        for _ in 0..3 {
            assert_eq!(stdout(&session, "echo \"$PROMPT_COMMAND $PS1\""), format!("{hook} $({hook})\n"));
            for number in 1..4 {
                assert_eq!(run(&session, &format!("(exit {number})")).code(), Some(number));
            }
            assert!(run(&session, "exit 3").shell_exited);
        }
    }
}

/// Texts that flood the status pipe without end: a program of the same user can open the pipe through /proc.
fn floods() -> [String; 3] {
    let records = r#"sh -c 'while :; do printf "\0B0\0\0C0 0 h =/\0\0E0\0"; done'"#;
    [records, "yes", "cat /dev/zero"].map(|program| {
        format!(
            "for fd in /proc/{}/fd/*; do case $(readlink $fd) in pipe:*) ({program} >$fd 2>/dev/null) & esac; done",
            std::process::id()
        )
    })
}

fn a_flood_of_the_status_pipe_delays_no_timeout(shell: Shell) {
    for flood in floods() {
        let session = shell.open(SessionOptions::new());
        let begun = Instant::now();
        let ends = Run::new().timeout(Duration::from_millis(300)).grace(Duration::from_millis(200));
        let output = session.run(&format!("{flood}; sleep 600"), &ends).expect("a result");
        assert!(output.stop == Stop::Timeout && output.code() != Some(0), "{output:?}");
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    }
}

/// With `restart`, the programs that flood the pipe outlive the shell.
fn a_flood_of_the_status_pipe_prevents_no_end_of_the_shell(shell: Shell) {
    for flood in floods() {
        let session = shell.open(SessionOptions::new().restart(true));
        let output = run(&session, &format!("{flood}; sleep 0.1; exit 3"));
        let code = output.shell_status.and_then(|status| status.code());
        assert_eq!((output.stop, code), (Stop::Lost, Some(3)), "{output:?}");
        assert!(!session.processes().is_empty());
    }
}

/// A shell that stops itself does not end before the command's timeout.
fn a_stopped_shell_ends_with_its_command(shell: Shell) {
    let session = shell.open(SessionOptions::new().restart(true));
    change(&session, "cd /usr");
    let begun = Instant::now();
    let ends = Run::new().timeout(Duration::from_millis(200)).grace(Duration::from_millis(400));
    let output = session.run("kill -STOP $$; echo no", &ends).expect("a result");
    assert!(output.stop == Stop::Timeout && output.code() != Some(0) && !output.ok(), "{output:?}");
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    assert_eq!(stdout(&session, "pwd"), "/usr\n");
}

/// bash ends a shell for idleness after TMOUT seconds. Here a command arrives at that moment.
fn a_logout_for_idleness_is_not_the_status_of_a_command(shell: Shell) {
    std::thread::scope(|scope| {
        for wait in [980, 990, 995, 1000, 1005, 1010] {
            scope.spawn(move || {
                let session = shell.open(SessionOptions::new());
                change(&session, "TMOUT=1");
                std::thread::sleep(Duration::from_millis(wait));
                let output = run(&session, "echo ran; (exit 7)");
                assert_eq!((output.code(), &output.stdout[..]), (Some(7), &b"ran\n"[..]), "{wait}: {output:?}");
            });
        }
    });
}

/// A program of the same user can take the helper's socket with pidfd_getfd(2).
fn a_flood_of_the_helpers_socket_delays_no_timeout(shell: Shell) {
    const FLOOD: &str = "
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None)
helper = os.pidfd_open(int(sys.argv[1]))
for number in range(3, 64):
    copy = libc.syscall(438, helper, number, 0)
    if copy < 0:
        continue
    try:
        taken = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        continue
    if taken.type == socket.SOCK_SEQPACKET:
        os.write(1, b'flood\\n')
        # A vector of messages of 4 bytes.
        contents = ctypes.create_string_buffer(4)
        part = (ctypes.c_void_p * 2)(ctypes.addressof(contents), 4)
        messages = struct.pack('8Q', 0, 0, ctypes.addressof(part), 1, 0, 0, 0, 0) * 1000
        while True:
            libc.sendmmsg(copy, messages, 1000, socket.MSG_DONTWAIT)
os.write(1, b'denied\\n')
";
    let sandbox = Sandbox::new(["env", "INSIDE=1"]).expect("a sandbox");
    let session = shell.open(SessionOptions::new().sandbox(&sandbox));
    let text = format!("for i in 1 2 3; do python3 -c \"{FLOOD}\" $PPID & done");
    let floods = session.start(&text, &Run::new().window(1000).drain(Duration::from_millis(1))).expect("a job");
    eventually("each program has answered", || floods.read(0).text().matches('\n').count() == 3);
    if floods.read(0).text() == "denied\n".repeat(3) {
        return skip("needs pidfd_getfd, which is denied here");
    }
    assert_eq!(floods.read(0).text(), "flood\n".repeat(3));
    let begun = Instant::now();
    let ends = Run::new().timeout(Duration::from_secs(1)).grace(Duration::from_millis(200));
    let output = session.run("exit 3", &ends).expect("a result");
    assert!(output.stop == Stop::Lost && output.shell_exited && output.code().is_none(), "{output:?}");
    assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
    // The floods run in the session, which ends them.
    drop(session);
}

fn text_may_begin_with_a_dash_and_have_any_bytes(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    for text in ["-nonexistent", "--", "-e", "-- echo"] {
        let output = run(&session, text);
        assert_eq!((output.code(), output.shell_exited), (Some(127), false), "{text}: {output:?}");
    }
    use std::os::unix::ffi::OsStrExt;
    let text = CommandText::new(std::ffi::OsStr::from_bytes(b"printf %s '\xff\xfe'"));
    assert_eq!(session.run(text, &Run::new()).expect("a result").stdout, b"\xff\xfe");
}

fn a_break_ends_no_more_than_the_loops_of_the_text(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    for word in ["break", "continue"] {
        let output = run(&session, &format!("{word}; for i in 1 2; do {word} 5; done; echo after"));
        assert_eq!((output.code(), &output.stdout[..]), (Some(0), &b"after\n"[..]), "{word}: {output:?}");
        assert_eq!(stdout(&session, "echo next"), "next\n");
    }
}

fn a_command_has_a_directory_and_variables_of_its_own(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    change(&session, "cd /usr; export X=session");
    let text = || {
        CommandText::new("echo \"$X $Y $PWD\"; cd /; sh -c 'echo $Y'").cwd("/usr/bin").env("X", "it's").env("Y", "2")
    };
    let output = session.run(text(), &Run::new()).expect("a result");
    assert_eq!(output.stdout_text(), "it's 2 /usr/bin\n2\n", "{output:?}");
    assert_eq!(stdout(&session, "echo \"$X ${Y-none} $PWD\"; pwd"), "session none /usr\n/usr\n");
    let output = session.run(text().cwd("/nonexistent"), &Run::new()).expect("a result");
    assert!(!output.ok() && output.stdout.is_empty() && output.stderr_text().contains("/nonexistent"), "{output:?}");
    let ends = Run::new().timeout(Duration::from_millis(50)).grace(LONG);
    let output = session.run(CommandText::new("sleep 600").cwd("/"), &ends).expect("a result");
    assert_eq!(output.code(), Some(130));
    assert_eq!(stdout(&session, "pwd"), "/usr\n");
    for wrong in
        [CommandText::new(":").env("1x", ""), CommandText::new(":").env("A", "\0"), CommandText::new(":").cwd("\0")]
    {
        assert!(session.run(wrong, &Run::new()).is_err());
    }
}

fn a_command_whose_streams_cannot_be_opened_is_lost(shell: Shell) {
    for limit in 4..24 {
        let session = shell.open(SessionOptions::new());
        let _ = session.run(&format!("ulimit -n {limit}"), &Run::new().timeout(LONG)).expect("a result");
        for _ in 0..3 {
            let Ok(output) = session.run("echo ran", &Run::new().timeout(LONG)) else { break };
            assert!(output.code().is_none() || output.stdout == b"ran\n", "{limit}: {output:?}");
        }
    }
}

fn a_directory_of_one_command_is_relative_to_the_shells(shell: Shell) {
    let dir = scratch();
    for name in ["one/sub", "two/sub", "two/-"] {
        std::fs::create_dir_all(dir.path().join(name)).expect("own directory");
    }
    let session = shell.open(SessionOptions::new());
    let root = dir.path().display();
    change(&session, &format!("cd '{root}/one'; cd '{root}/two'; CDPATH='{root}/one'"));
    for name in ["sub", "-"] {
        let output = session.run(CommandText::new("pwd").cwd(name), &Run::new()).expect("a result");
        assert_eq!(output.stdout_text(), format!("{root}/two/{name}\n"), "{output:?}");
    }
    let output = session.run(CommandText::new("pwd").cwd("one"), &Run::new()).expect("a result");
    assert!(!output.ok() && output.stdout.is_empty(), "{output:?}");
    assert_eq!(stdout(&session, "pwd"), format!("{root}/two\n"));
}

/// The part of the report after the first 8192 bytes is a part of the report, too.
fn a_shell_returns_to_a_directory_with_a_long_name(shell: Shell) {
    let dir = scratch();
    let long = (0..8).fold(dir.path().to_owned(), |path, _| path.join("'".repeat(250)));
    std::fs::create_dir_all(&long).expect("own directory");
    let mut command = Command::new(shell.name());
    command.current_dir(&long);
    let session = Session::open(command, SessionOptions::new()).expect("a session");
    for _ in 0..5 {
        let output = session.run(CommandText::new(":").cwd("/"), &Run::new()).expect("a result");
        assert!(output.ok(), "{output:?}");
        assert_eq!(stdout(&session, "pwd"), format!("{}\n", long.display()));
    }
}

fn a_restart_without_saved_variables_runs_nowhere_else(shell: Shell) {
    let session = shell.open(SessionOptions::new().restart(true));
    change(&session, "cd /usr; X=1; export X");
    if shell.is_bash() {
        change(&session, "enable -n export umask");
    }
    let _ = session.run("exit 3", &Run::new()).expect("a result");
    assert_eq!(stdout(&session, "echo \"$X $PWD\"; pwd"), "1 /usr\n/usr\n");
}

/// A write beyond the limit sends SIGXFSZ.
fn a_file_size_limit_prevents_no_command(shell: Shell) {
    let session = shell.open(SessionOptions::new().restart(true));
    let short = |session: &Session, number: i32| run(session, &format!("(exit {})", number % 7)).code();
    change(&session, "ulimit -f 0; export X=1");
    for _ in 0..3 {
        assert_eq!(stdout(&session, "echo $X"), "1\n");
    }
    change(&session, "exit 1");
    assert_eq!(stdout(&session, "echo $X"), "1\n");
    for limit in [2048, 4096, 16384, 65535] {
        let before = crate::common::set_soft_limit(libc::RLIMIT_FSIZE, limit);
        let small = Session::open(Command::new(shell.name()), SessionOptions::new());
        let results: Vec<Option<i32>> = small.iter().flat_map(|session| (0..40).map(|n| short(session, n))).collect();
        crate::common::set_soft_limit(libc::RLIMIT_FSIZE, before);
        assert_eq!(results, (0..40).map(|number| Some(number % 7)).collect::<Vec<_>>(), "{limit}: {small:?}");
    }
    let before = crate::common::set_soft_limit(libc::RLIMIT_FSIZE, 4096);
    let long = session.run(&format!(": {}; echo long", "x".repeat(10_000)), &Run::new());
    crate::common::set_soft_limit(libc::RLIMIT_FSIZE, before);
    let error = long.expect_err("the text is longer than the limit").to_string();
    assert!(error.contains("RLIMIT_FSIZE"), "{error}");
    assert_eq!(stdout(&session, "echo $X"), "1\n");
}
