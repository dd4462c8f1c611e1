// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a shell from command to command, and its start.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use spawnfd::error::{Errno, Stage};
use spawnfd::sandbox::Sandbox;
use spawnfd::session::{CommandText, Session, SessionOptions};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Run};
use spawnfd_tests::{is_root, require_root, scratch, skip};

use crate::common::rounds;
use crate::{LONG, Shell, change, each_shell, run, shell_end, stdout};

each_shell! {
    the_shells_state_persists
    the_directory_does_not_depend_on_a_variable
    the_next_command_finds_the_last_status
    a_command_has_its_own_cpu_time
    a_new_shell_gets_directory_variables_and_umask
    a_new_shell_does_not_need_the_first_directory
    a_new_shell_has_no_removed_variable
    a_new_shell_that_cannot_enter_its_directory_runs_nothing
    a_session_works_in_each_tier
    the_shell_must_have_started
    a_shell_of_another_user_is_refused
    wrong_arguments_are_errors
}

/// apex#625: the tool ran each command in `( … )`, so `cd` and `export` had no effect on the next command.
fn the_shells_state_persists(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let output = run(&session, "cd /usr/bin; X=1; export Y='a  b'; f() { echo \"f $1\"; }; alias al='echo alias'");
    assert_eq!((output.ok(), output.cwd.as_deref()), (true, Some(Path::new("/usr/bin"))));
    assert_eq!(stdout(&session, "echo $X $PWD; pwd; sh -c 'echo \"$Y\"'; f 2"), "1 /usr/bin\n/usr/bin\na  b\nf 2\n");
    assert_eq!(stdout(&session, "al word"), "alias word\n");
    change(&session, "set -- one two; umask 027; set -f; trap 'echo trapped' USR1; readonly R=3");
    assert_eq!(stdout(&session, "echo $1 $# $R *; umask; kill -USR1 $$"), "one 2 3 *\n0027\ntrapped\n");
    // dash prints "Terminated" on standard error.
    assert_eq!(run(&session, "sleep 60 & sleep 0.1; kill $!; wait $! || echo $?").stdout, b"143\n");
    if shell.is_bash() {
        change(&session, "shopt -s extglob; declare -A map=([k]=v); set -o pipefail");
        assert_eq!(stdout(&session, "echo ${map[k]}; shopt -q extglob && echo on"), "v\non\n");
    }
}

fn the_directory_does_not_depend_on_a_variable(shell: Shell) {
    let dir = scratch();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    std::fs::create_dir(&real).expect("a directory");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    let real = real.canonicalize().expect("a directory");
    let session = shell.open(SessionOptions::new().restart(true));
    let cwd = |text: &str| run(&session, text).cwd.expect("the shell runs");
    assert_eq!(cwd(&format!("cd {}", link.display())), link);
    for text in ["PWD=/usr", "PWD=/nonexistent", "PWD=.", "PWD=", "unset PWD"] {
        assert_eq!(cwd(text), real, "{text}");
    }
    assert!(run(&session, "exit").shell_exited);
    assert_eq!(cwd(":"), real);
    let moved = real.with_file_name("moved");
    for (from, to) in [(&real, &moved), (&moved, &real)] {
        assert_eq!(cwd(&format!("mv {} {}", from.display(), to.display())), *to);
    }
    assert_eq!(cwd(&format!("rmdir {}", real.display())), real);
}

fn the_next_command_finds_the_last_status(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    for (text, code) in [("true", 0), ("false", 1), ("sh -c 'exit 42'", 42), ("sh -c 'kill -9 $$'", 137)] {
        assert_eq!(run(&session, text).code(), Some(code), "{text}");
        assert_eq!(stdout(&session, "echo $?"), format!("{code}\n"), "{text}");
        assert_eq!(stdout(&session, "echo $?"), "0\n");
    }
    assert_eq!(run(&session, "nonexistent-program").code(), Some(127));
    assert_eq!(run(&session, "return 3").code(), Some(3));
}

/// The shell's `times` counts the shell and the children that it has waited for.
fn a_command_has_its_own_cpu_time(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
    let least = Duration::from_millis(50);
    for text in [busy, &format!("sh -c '{busy}'"), &format!("({busy}) & wait"), &format!("{busy} | cat")] {
        let begun = Instant::now();
        let output = run(&session, text);
        assert!(output.usage.cpu >= least, "{text}: {:?}", output.usage);
        // A pipeline uses both CPUs.
        assert!(output.usage.cpu <= begun.elapsed() * 2, "{text}: {:?}", output.usage);
        let idle = run(&session, "sleep 0.1").usage.cpu;
        assert!(idle < Duration::from_millis(40).max(output.usage.cpu / 3), "after {text}: {idle:?}");
    }
}

fn a_new_shell_does_not_need_the_first_directory(shell: Shell) {
    let dir = scratch();
    let first = dir.path().join("first");
    std::fs::create_dir(&first).expect("own directory");
    let mut command = Command::new(shell.name());
    command.current_dir(&first);
    let session = Session::open(command, SessionOptions::new().restart(true)).expect("a session");
    change(&session, "cd /usr");
    std::fs::remove_dir(&first).expect("an empty directory");
    change(&session, "exit 1");
    assert_eq!(stdout(&session, "pwd"), "/usr\n");
}

fn a_new_shell_gets_directory_variables_and_umask(shell: Shell) {
    let dir = scratch();
    let odd = dir.path().join(OsStr::from_bytes(b"it's\n a dir \xff"));
    std::fs::create_dir(&odd).expect("a directory");
    let mut command = Command::new(shell.name());
    command.env("ODD", &odd).env("HOME", dir.path());
    let session = Session::open(command, SessionOptions::new().restart(true)).expect("a session");
    change(&session, "cd \"$ODD\"; export X=\"a'\nb\"; Y=unexported; umask 027");
    let first = session.id().expect("a shell");
    for round in 0..3 {
        let output = run(&session, "export Z=later; cd /; exit 7");
        assert_eq!((shell_end(&output), output.cwd), ((true, Some(7), None), None), "{round}");
        // The state is that of the last completed command, not that of the command that has ended the shell.
        assert_eq!(stdout(&session, "echo \"$X$Y$Z\"; umask"), "a'\nb\n0027\n");
        assert_eq!(run(&session, ":").cwd.as_ref(), Some(&odd));
        assert_ne!(session.id().expect("a shell"), first);
    }
    change(&session, "set -C; export X=2");
    assert_eq!(shell_end(&run(&session, "kill -9 $$")), (true, None, Some(9)));
    assert_eq!(stdout(&session, "echo $X"), "2\n");
    // The directory no longer exists: no command runs elsewhere, unless it says so.
    std::fs::remove_dir(&odd).expect("an empty directory");
    change(&session, "exit");
    for _ in 0..2 {
        let error = session.run("echo $X", &Run::new()).expect_err("no directory");
        assert!(
            error.errno() == Errno::ENOENT && error.to_string().contains("cannot return to its directory"),
            "{error}"
        );
    }
    let output = session.run(CommandText::new("echo $X; pwd").cwd("/usr"), &Run::new()).expect("a result");
    assert_eq!(output.stdout_text(), "2\n/usr\n");
    assert_eq!(stdout(&session, "pwd"), "/usr\n");
}

fn a_new_shell_has_no_removed_variable(shell: Shell) {
    let dir = scratch();
    let (startup, seen) = (dir.path().join(".bashrc"), dir.path().join("seen"));
    std::fs::write(&startup, "echo ${SECRET-unset} ${HIDDEN-unset} $KEPT >>~/seen\n").expect("own directory");
    let mut command = Command::new(shell.name());
    command.env("SECRET", "1").env("HIDDEN", "2").env("KEPT", "3").env("HOME", dir.path()).env("ENV", &startup);
    if shell.is_bash() {
        command.arg("-i");
    }
    let session = Session::open(command, SessionOptions::new().restart(true)).expect("a session");
    change(&session, "export KEPT='it'\\''s \"$ 4\"'");
    change(&session, if shell.is_bash() { "unset SECRET; export -n HIDDEN" } else { "unset SECRET HIDDEN" });
    for end in ["exit 1", "kill -9 $$"] {
        assert!(run(&session, end).shell_exited);
        let shown =
            stdout(&session, "echo ${SECRET-unset} ${HIDDEN-unset} $KEPT; env | grep -c 'SECRET\\|HIDDEN' || :");
        assert_eq!(shown, "unset unset it's \"$ 4\"\n0\n", "{end}");
        assert_eq!(stdout(&session, "grep -c 'SECRET\\|HIDDEN' /proc/$$/environ || :"), "0\n", "{end}");
    }
    // The startup file, too, finds the saved variables.
    let seen = std::fs::read_to_string(seen).expect("the startup file has run");
    assert_eq!(seen, format!("1 2 3\n{}", "unset unset it's \"$ 4\"\n".repeat(2)));
}

fn a_new_shell_that_cannot_enter_its_directory_runs_nothing(shell: Shell) {
    let dir = scratch();
    let (first, last) = (dir.path().join("first"), dir.path().join("last"));
    for expected in [Errno::ENOTDIR, Errno::EACCES] {
        if expected == Errno::EACCES && is_root() {
            skip("the directory without permission: root may enter each directory");
            continue;
        }
        [&first, &last].into_iter().for_each(|dir| std::fs::create_dir(dir).expect("own directory"));
        let mut command = Command::new(shell.name());
        command.current_dir(&first).env("LAST", &last);
        let session = Session::open(command, SessionOptions::new().restart(true)).expect("a session");
        change(&session, "cd \"$LAST\"");
        if expected == Errno::EACCES {
            std::fs::set_permissions(&last, Permissions::from_mode(0o0)).expect("own directory");
        } else {
            std::fs::remove_dir(&last).expect("an empty directory");
            std::fs::write(&last, "").expect("own directory");
        }
        assert!(run(&session, "exit 1").shell_exited);
        let error = session.run("touch \"$OLDPWD/ran\" ran", &Run::new()).expect_err("no directory");
        assert_eq!(error.errno(), expected, "{error}");
        assert!(error.to_string().contains("cannot return to its directory"), "{error}");
        let output = session.run(CommandText::new("pwd; ls").cwd(&first), &Run::new()).expect("a result");
        assert_eq!(output.stdout_text(), format!("{}\n", first.display()));
        session.close().expect("a result");
        std::fs::remove_dir(&first).expect("an empty directory");
        std::fs::remove_file(&last).or_else(|_| std::fs::remove_dir(&last)).expect("own directory");
    }
}

fn a_session_works_in_each_tier(shell: Shell) {
    for control in [
        TreeControl::Group,
        TreeControl::Guard,
        TreeControl::Subreaper,
        TreeControl::Cgroup,
        TreeControl::Pidns,
        TreeControl::Auto,
    ] {
        let options = SessionOptions::new().tree(control);
        let session = match Session::open(Command::new(shell.name()), options) {
            Ok(session) => session,
            // No cgroup, or no namespace. Without privileges, the pid namespace needs a user namespace, and a shell in
            // it cannot open the pipes of this process.
            Err(error) if matches!(control, TreeControl::Cgroup | TreeControl::Pidns) => {
                let is_in_user_namespace = control == TreeControl::Pidns && !is_root();
                let what = if is_in_user_namespace { "/proc/PID/fd of this process" } else { "" };
                assert!(error.stage() == Stage::Tree || is_in_user_namespace, "{error}");
                assert!(error.to_string().contains(what), "{error}");
                continue;
            }
            Err(error) => panic!("{control:?}: {error}"),
        };
        let ends = Run::new().timeout(Duration::from_millis(50)).grace(LONG);
        let output = session.run("X=1; sleep 600", &ends).expect("a result");
        assert_eq!((output.code(), output.shell_exited), (Some(130), false), "{control:?}: {output:?}");
        assert_eq!(stdout(&session, "echo $X"), "1\n");
        change(&session, "sleep 600 &");
        assert!(!session.processes().is_empty());
        session.close().expect("a result");
    }
}

fn the_shell_must_have_started(shell: Shell) {
    let error = Session::open(Command::new("nonexistent-shell"), SessionOptions::new()).expect_err("no such program");
    assert_eq!(error.errno(), Errno::ENOENT);
    let error = Session::open(Command::new("false"), SessionOptions::new()).expect_err("it exits");
    assert_eq!(error.errno(), Errno::ESRCH);
    let mut wrong = Command::new(shell.name());
    wrong.arg("--no-such-option");
    let error = Session::open(wrong, SessionOptions::new()).expect_err("a wrong option").to_string();
    assert!(error.contains("exited while it started") && error.contains("ption"), "{error}");
    let mut sleep = Command::new("sh");
    sleep.args(["-c", "exec sleep 60"]);
    let options = SessionOptions::new().startup_timeout(Duration::from_millis(100));
    let error = Session::open(sleep, options).expect_err("not a shell").to_string();
    assert!(error.contains("did not start within 100ms"), "{error}");
}

fn a_shell_of_another_user_is_refused(shell: Shell) {
    if !require_root() {
        return;
    }
    let mut command = Command::new(shell.name());
    command.gid(65534).uid(65534);
    let error = Session::open(command, SessionOptions::new()).expect_err("it cannot open the pipes").to_string();
    assert!(error.contains("/proc/PID/fd"), "{error}");
}

fn wrong_arguments_are_errors(shell: Shell) {
    let session = shell.open(SessionOptions::new());
    let refused = |text: &str, run: Run| session.start(text, &run).expect_err("refused");
    assert!(refused("a\0b", Run::new()).to_string().contains("NUL"));
    assert_eq!(refused(":", Run::new().input("x").writable(10)).errno(), Errno::EINVAL);
    assert_eq!(refused(":", Run::new().terminal(spawnfd::job::TerminalSize::default())).errno(), Errno::EINVAL);
    let mut piped = Command::new(shell.name());
    piped.stdout(spawnfd::Stdio::Null);
    assert_eq!(Session::open(piped, SessionOptions::new()).expect_err("streams").errno(), Errno::EINVAL);
    let mut confined = Command::new(shell.name());
    confined.sandbox(&Sandbox::new(["env"]).expect("env"));
    assert_eq!(Session::open(confined, SessionOptions::new()).expect_err("a sandbox").errno(), Errno::EINVAL);
    let options = SessionOptions::new().sandbox(&Sandbox::new(["env", "INSIDE=1"]).expect("env"));
    assert_eq!(stdout(&shell.open(options), "echo $INSIDE"), "1\n");
    // The interrupt may come before the shell has read the command, or before the program's exec.
    for _ in 0..rounds(200) {
        let job = session.start("sleep 60; echo no", &Run::new()).expect("a job");
        assert_eq!(refused(":", Run::new()).errno(), Errno::EBUSY);
        session.interrupt();
        let output = job.wait().expect("a result");
        assert_eq!((output.code(), &output.stdout[..]), (Some(130), &b""[..]));
    }
    assert_eq!(shell_end(&run(&session, "exit 3")), (true, Some(3), None));
    let error = refused(":", Run::new());
    assert_eq!((error.errno(), error.to_string().contains("exit status: 3")), (Errno::ESRCH, true), "{error}");
}
