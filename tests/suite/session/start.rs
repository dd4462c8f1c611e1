// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts of a session's shell: startup files, parked processes, limits.

use std::path::Path;
use std::time::Duration;

use spawnfd::error::Errno;
use spawnfd::limits::{Limiter, Limits};
use spawnfd::sandbox::Sandbox;
use spawnfd::session::{Session, SessionOptions};
use spawnfd::warm::{Park, WarmOptions};
use spawnfd::{Command, Run, Warm};
use spawnfd_tests::scratch;

use crate::common::set_soft_limit;
use crate::{LONG, Shell, change, each_shell, run, stdout};

each_shell! {
    startup_files_that_print_and_set_traps
    a_debug_trap_changes_no_report
    a_login_shell_reads_the_profile
    a_startup_file_that_does_not_return
    a_parked_shell_becomes_the_sessions_shell
    limits_apply_to_the_session
    a_limiter_counts_the_shell_once
    prompts_and_prompt_commands_are_not_output
}

/// A startup file with what users have there. It prints, reads standard input, and sets traps and options.
const STARTUP: &str = "echo welcome; echo warning >&2; read x; trap 'echo debug >/dev/null' USR1; trap : EXIT
alias ll='echo listed'; greet() { echo \"hello $1\"; }; set -u; umask 027; export FROM_STARTUP=1; cd /usr\n";

/// A shell that reads `STARTUP`: bash as `~/.bashrc`, dash as `$ENV`.
fn with_startup_file(shell: Shell, home: &Path, text: &str) -> Command<'static> {
    let name = if shell.is_bash() { ".bashrc" } else { "startup" };
    std::fs::write(home.join(name), text).expect("own directory");
    let mut command = Command::new(shell.name());
    command.arg("-i").env("HOME", home).env("ENV", home.join(name)).current_dir("/");
    command
}

fn startup_files_that_print_and_set_traps(shell: Shell) {
    let home = scratch();
    let session =
        Session::open(with_startup_file(shell, home.path(), STARTUP), SessionOptions::new()).expect("a session");
    assert_eq!(stdout(&session, "echo $FROM_STARTUP $PWD; umask"), "1 /usr\n0027\n");
    assert_eq!(stdout(&session, "ll; greet you"), "listed\nhello you\n");
    assert_eq!(stdout(&session, "trap"), stdout(&session, "trap"), "the traps stay");
    assert!(stdout(&session, "trap").contains("USR1"));
    // With `set -u`, an unset variable ends the command and not the shell.
    let output = run(&session, "echo $unset_variable; echo no");
    assert!(!output.ok() && !output.shell_exited && output.stdout.is_empty(), "{output:?}");
    assert_eq!(stdout(&session, "greet again"), "hello again\n");
    let ends = Run::new().timeout(Duration::from_millis(50)).grace(LONG);
    assert_eq!(session.run("sleep 600", &ends).expect("a result").code(), Some(130));
    assert_eq!(stdout(&session, "greet again"), "hello again\n");
    assert!(session.close().expect("a result").is_some_and(|output| output.ok()));
}

fn a_debug_trap_changes_no_report(shell: Shell) {
    // dash has no such trap, and set -T makes subshells and functions inherit it.
    if !shell.is_bash() {
        return;
    }
    let text = "trap 'echo debug; echo error >&2' DEBUG; set -T; export FROM_STARTUP=1; cd /usr\n";
    let home = scratch();
    let options = SessionOptions::new().restart(true);
    let session = Session::open(with_startup_file(shell, home.path(), text), options).expect("a session");
    for _ in 0..2 {
        let output = run(&session, "cd /usr/bin; export X=1; (exit 3)");
        assert_eq!((output.code(), output.cwd.as_deref()), (Some(3), Some(Path::new("/usr/bin"))), "{output:?}");
        assert!(run(&session, "exit").shell_exited);
        assert_eq!(run(&session, "(exit 3)").code(), Some(3), "although the trap runs after the command");
        let output = run(&session, "trap - DEBUG; echo \"$X $FROM_STARTUP\"");
        assert!(output.stdout_text().ends_with("1 1\n"), "{output:?}");
        assert_eq!(stdout(&session, "pwd"), "/usr/bin\n");
        change(&session, text.trim());
    }
}

fn a_login_shell_reads_the_profile(shell: Shell) {
    let home = scratch();
    std::fs::write(home.path().join(".profile"), "echo hello; export FROM_PROFILE=1\n").expect("own directory");
    let mut command = Command::new(shell.name());
    command.env("HOME", home.path());
    let session = Session::open(command, SessionOptions::new().login(true)).expect("a session");
    assert_eq!(stdout(&session, "echo $FROM_PROFILE"), "1\n");
}

fn a_startup_file_that_does_not_return(shell: Shell) {
    let home = scratch();
    let options = SessionOptions::new().startup_timeout(Duration::from_millis(200));
    let command = with_startup_file(shell, home.path(), "echo waiting; sleep 600\n");
    let error = Session::open(command, options).expect_err("it waits").to_string();
    assert!(error.contains("did not start within 200ms") && error.contains("waiting"), "{error}");
    let command = with_startup_file(shell, home.path(), "echo refused >&2; exit 3\n");
    let error = Session::open(command, SessionOptions::new()).expect_err("it exits").to_string();
    assert!(error.contains("exited while it started") && error.contains("refused"), "{error}");
}

fn a_parked_shell_becomes_the_sessions_shell(shell: Shell) {
    let warm = Warm::new(WarmOptions::new()).expect("a Warm");
    warm.add(shell.name(), Park::new().depth(1)).expect("a keeper");
    assert!(warm.fill(LONG), "{:?}", warm.stats());
    let mut command = Command::new(shell.name());
    command.warm(&warm);
    let session = Session::open(command, SessionOptions::new()).expect("a session");
    change(&session, "X=1; f() { echo $X; }");
    assert_eq!(stdout(&session, "f"), "1\n");
    let ends = Run::new().timeout(Duration::from_millis(50)).grace(LONG);
    assert_eq!(session.run("sleep 600", &ends).expect("a result").code(), Some(130));
    assert_eq!(stdout(&session, "f"), "1\n");
    let stats = warm.stats();
    assert_eq!(stats.reserve, 1, "{stats:?}");
}

fn limits_apply_to_the_session(shell: Shell) {
    let limits = Limits::new().memory(256 << 20);
    let session = Session::open(Command::new(shell.name()), SessionOptions::new().limits(limits)).expect("a session");
    let allocate = "perl -e '$x = \"x\" x (512 << 20); print length $x'";
    let output = run(&session, allocate);
    // With a cgroup, the kernel kills the session; with an rlimit, it refuses the memory.
    assert!(!output.ok() && output.stdout.is_empty(), "{output:?}");
    if !output.shell_exited {
        assert_eq!(stdout(&session, "echo on"), "on\n");
    }
    assert!(run(&shell.open(SessionOptions::new()), allocate).ok(), "without a limit");
}

fn a_limiter_counts_the_shell_once(shell: Shell) {
    let limiter = Limiter::new(1);
    let options = || SessionOptions::new().restart(true).limiter(&limiter);
    let session = shell.open(options());
    change(&session, "exit");
    // Two commands find no shell, and one of them starts a shell.
    let permit = limiter.acquire().expect("a permit");
    let outcomes = std::thread::scope(|scope| {
        let commands = [(); 2].map(|()| scope.spawn(|| session.run(":", &Run::new()).map_err(|error| error.errno())));
        std::thread::sleep(Duration::from_millis(50));
        drop(permit);
        commands.map(|command| command.join().expect("a result"))
    });
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(_) | Err(Errno::EBUSY))), "{outcomes:?}");
    assert_eq!(limiter.running(), 1);
    drop(session);
    // A shell that cannot be started has no permit.
    let session = shell.open(options().sandbox(&Sandbox::new(["env"]).expect("env")));
    change(&session, "exit");
    let before = set_soft_limit(libc::RLIMIT_NOFILE, 3);
    let failed = session.run(":", &Run::new());
    set_soft_limit(libc::RLIMIT_NOFILE, before);
    assert_eq!(failed.expect_err("no descriptor is free").errno(), Errno::EMFILE);
    assert!(run(&session, ":").ok());
}

fn prompts_and_prompt_commands_are_not_output(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    change(&session, "PS1='prompt> '; PS2='more> '; PROMPT_COMMAND='echo prompting; X=$((X + 1))'");
    assert_eq!(stdout(&session, "echo one"), "one\n");
    assert_eq!(stdout(&session, "echo $PS1"), "prompt>\n");
    // A session shows no prompt, so no hook of a prompt runs.
    assert_eq!(stdout(&session, "echo ${X-0}"), "0\n");
}
