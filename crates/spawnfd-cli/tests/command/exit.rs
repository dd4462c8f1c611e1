// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exit codes and error messages.

use crate::common;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use crate::common::{await_end, call, command, complaint, finish, run, wait, wait_status};
use spawnfd_tests::isolated;

#[test]
fn the_exit_code_is_the_programs() {
    isolated!(|| {
        assert_eq!(run(["true"]).code, Some(0));
        assert_eq!(run(["sh", "-c", "exit 7"]).code, Some(7));
        assert_eq!(run(["sh", "-c", "kill -TERM $$"]).code, Some(128 + 15));
        assert_eq!(run(["--capture", "sh", "-c", "exit 7"]).code, Some(7));
        assert_eq!(run(["--capture", "sh", "-c", "kill -KILL $$"]).code, Some(128 + 9));
    });
}

#[test]
fn the_last_free_process_is_the_programs() {
    isolated!(|| {
        if !spawnfd_tests::require_root() {
            return;
        }
        // This command is the user's first process, and a supervised run needs a thread.
        for (index, (processes, flags)) in
            [("2", &[][..]), ("3", &["--capture"]), ("3", &["--timeout", "60"])].into_iter().enumerate()
        {
            // Each call has a user of its own, because the guard ends after this command.
            let user = (1_000_000_000 + std::process::id() * 4 + index as u32).to_string();
            let as_user = ["--reuid", &user, "--regid", &user, "--clear-groups"];
            let called =
                |program: &[&str]| finish(Command::new("setpriv").args(as_user).args(program).stdin(Stdio::null()));
            let binary = env!("CARGO_BIN_EXE_spawnfd");
            if called(&["test", "-x", binary]).code != Some(0) {
                return spawnfd_tests::skip("other users may not execute the command");
            }
            let limit = format!("--nproc={processes}");
            let called = called(&[&["prlimit", &limit, binary, "run"], flags, &["echo", "done"]].concat());
            assert_eq!((called.stdout.as_str(), called.stderr.as_str()), ("done\n", ""), "{flags:?}");
        }
    });
}

#[test]
fn a_missing_program_gives_exit_code_127() {
    isolated!(|| {
        // Every user may search these directories. Otherwise the error would be EACCES, as in execvp(3).
        let called = finish(command().env("PATH", "/usr/bin:/bin").args(["run", "no-such-program"]));
        assert_eq!(complaint(&called, 127), "no-such-program: not found in PATH (searched 2 directories)");
        assert!(complaint(&run(["/no/such/program"]), 127).contains("/no/such/program"));
        let strict = ["--env", "PATH=/bin", "--strict", "no-such-program"];
        assert!(complaint(&run(strict), 127).starts_with("no-such-program: "));
        // If PATH is not set, the command searches the C library's default directories.
        for flags in [&[][..], &["--strict"], &["--snapshot"]] {
            let called = finish(command().env_remove("PATH").arg("run").args(flags).arg("true"));
            assert_eq!(called.code, Some(0), "{flags:?}: {}", called.stderr);
        }
        assert!(complaint(&run(["--env", "PATH=/nowhere", "sh"]), 127).starts_with("sh: "));
    });
}

#[test]
fn a_file_that_cannot_be_executed_gives_exit_code_126() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        std::fs::write(&path, "no program").unwrap();
        let text = path.to_str().unwrap();
        assert!(complaint(&run([text]), 126).contains("EACCES"));
        assert!(complaint(&run(["/"]), 126).contains("EACCES"));
    });
}

#[test]
fn a_script_without_an_interpreter_line_runs_by_the_shell() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tool");
        std::fs::write(&path, "echo ran \"$@\"; exit 3\n").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        for flags in [&[][..], &["--timeout", "60"], &["--capture"]] {
            let mut by_name = command();
            by_name.env("PATH", dir.path()).arg("run").args(flags).args(["tool", "a b"]);
            let by_path = finish(command().arg("run").args(flags).arg(&path).arg("a b"));
            for called in [finish(&mut by_name), by_path] {
                assert_eq!((called.code, called.stdout.as_str()), (Some(3), "ran a b\n"), "{flags:?}: {called:?}");
            }
        }
        // Each action runs once: the reader of a FIFO gets the output before the first end of file.
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let reader = std::thread::spawn({
            let fifo = fifo.clone();
            move || std::fs::read_to_string(fifo)
        });
        std::fs::write(&path, "echo ran >&7; exit 3\n").unwrap();
        let called = finish(command().arg("run").arg("--open").arg(format!("w:{}:7", fifo.display())).arg(&path));
        assert_eq!(called.code, Some(3), "{called:?}");
        assert_eq!(reader.join().unwrap().unwrap(), "ran\n");
        let strict = finish(command().args(["run", "--strict"]).arg(&path));
        assert!(complaint(&strict, 126).contains("no #! line"), "{strict:?}");
    });
}

#[test]
fn a_relative_program_starts_at_the_working_directory() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/bin/sh", dir.path().join("my-shell")).unwrap();
        let called = finish(command().current_dir(&dir).args(["run", "./my-shell", "-c", "echo $0"]));
        assert_eq!((called.code, called.stdout.as_str()), (Some(0), "./my-shell\n"), "{}", called.stderr);
    });
}

#[test]
fn arguments_after_the_program_are_not_flags() {
    isolated!(|| {
        assert_eq!(run(["echo", "--time", "--close", "x", "--"]).stdout, "--time --close x --\n");
        assert_eq!(run(["--", "echo", "-h"]).stdout, "-h\n");
    });
}

#[test]
fn usage_errors_name_the_argument_in_one_line() {
    isolated!(|| {
        for (args, wanted) in [
            (&["--close", "x", "true"][..], "--close"),
            (&["--close"], "--close"),
            (&["--no-such-flag", "true"], "--no-such-flag"),
            (&["--open", "/etc/passwd", "true"], "--open must be MODE:PATH:FD"),
            (&["--limit", "files=3", "true"], "unknown resource 'files'"),
            (&["--limit", "nofile=3:2", "true"], "above the hard limit"),
            (&["--umask", "9", "true"], "octal"),
            (&["--capabilities", "root", "true"], "unknown capability 'root'"),
            (&["--open", "r+:/x:5", "true"], "the mode must be r, w, a, rw or wx"),
            (&["--open", "r,beneth:/x:5", "true"], "'beneth' must be octal permissions up to 7777, or one of existing"),
            (&["--open-at", "0:w,9:/x:5", "true"], "'9' must be octal permissions"),
            (&["--open", "w,existing,600:/x:5", "true"], "permissions require a mode that creates a file"),
            (
                &["--capabilities", "bound=chown", "true"],
                "'bound'; the sets are effective, permitted, inheritable, bounding, ambient",
            ),
            (&["--capabilities", "bounding=root", "true"], "unknown capability 'root'"),
            (&["--join-namespace", "pid=5", "true"], "--join-namespace must be pid=PID:KINDS"),
            (&["--join-namespace", "pid=0:net", "true"], "'0' is not a process id"),
            (
                &["--join-namespace", "fd=5:nett", "true"],
                "'nett'; the kinds are mount, uts, ipc, pid, net, cgroup, user, time",
            ),
            (&["--namespaces", "user", "true"], "for a user namespace use user_namespace"),
            (&["--signal-mask", "FOO", "true"], "unknown signal 'FOO'"),
            (&["--scheduler", "fast", "true"], "unknown policy 'fast'"),
            (&["--env", "=x", "true"], "NAME=VALUE"),
            (&["--keep", "1", "true"], "--capture"),
            (&["--env-clear", "--env-only", "X", "true"], "--env-only"),
            (
                &["--capture", "--terminal=80", "true"],
                "--terminal must be COLSxROWS, each up to 65535, as in 80x24, got 80",
            ),
            (&["--capture", "--terminal=80x65536", "true"], "each up to 65535"),
            (&["--capture", "--timeout", "-1", "true"], "--timeout must be >= 0, got -1"),
            (
                &["--capture", "--tree", "forest", "true"],
                "--tree must be one of group, guard, subreaper, cgroup, pidns, auto, got forest",
            ),
            (&["--nice", "99", "true"], "--nice must be a whole number from -20 to 19, got 99"),
            (
                &["--oom-score-adj", "2000", "true"],
                "--oom-score-adj must be a whole number from -1000 to 1000, got 2000",
            ),
            (&["--capture", "--memory", "0", "true"], "--memory must be > 0, got 0"),
            (&["--capture", "--pids", "0", "true"], "--pids must be > 0, got 0"),
            (&["--capture", "--cpu-time", "0", "true"], "--cpu-time must be > 0, got 0"),
            (&["--capture", "--cpu-quota", "-1", "true"], "--cpu-quota must be a number from 0.01 to 1000000, got -1"),
            (&[], "PROGRAM"),
        ] {
            let called = run(args);
            assert!(complaint(&called, 125).contains(wanted), "{args:?}: {}", called.stderr);
        }
        assert_eq!(call(["doctor", "--bad"]).code, Some(125));
    });
}

/// --terminal sets the streams, the session and the foreground group itself, so flags that set them
/// conflict with it.
#[test]
fn flags_that_conflict_with_terminal_are_named() {
    isolated!(|| {
        for other in [
            ["--stdin", "null"],
            ["--stdout", "inherit"],
            ["--stderr", "stdout"],
            ["--process-group", "0"],
            ["--controlling-terminal", "5"],
            ["--foreground", "0"],
        ] {
            let called = run(["--capture", "--terminal"].iter().chain(&other).chain(&["true"]));
            let message = complaint(&called, 125);
            assert!(
                message.contains("--terminal") && message.contains(other[0]) && message.contains("cannot"),
                "{message}"
            );
        }
    });
}

#[test]
fn failures_name_the_flag() {
    isolated!(|| {
        for (args, flag) in [
            (&["--cwd", "/no/dir", "true"][..], "--cwd /no/dir: "),
            (&["--chdir", "/", "--open", "r:/no/file:7", "true"], "--open r:/no/file:7: "),
            (&["--dup2", "9:1", "true"], "--dup2 9:1: "),
            (&["--fd", "99:3", "true"], "--fd 99:3: descriptor 99 is not open"),
            (&["--cgroup", "/no/dir", "true"], "--cgroup /no/dir: "),
            (&["--cgroup", "/", "true"], "--cgroup /: not a cgroup v2 directory"),
            (&["--join-namespace", "/no/file", "true"], "--join-namespace /no/file: "),
            (&["--join-namespace", "fd=99", "true"], "--join-namespace fd=99: descriptor 99 is not open"),
            (&["--landlock-ro", "/no/dir", "true"], "--landlock-ro /no/dir: No such file"),
            (&["--seccomp", "/no/file", "true"], "--seccomp /no/file: No such file"),
            (
                &["--seccomp", "/dev/null", "true"],
                "--seccomp /dev/null: expected 1 to 4096 instructions of 8 bytes each, got 0 bytes",
            ),
            (&["--capture", "--input", "/no/file", "true"], "--input /no/file: No such file"),
            (&["--capture", "--spill", "/no/dir", "true"], "--spill /no/dir: No such file"),
            (&["--capture", "--spill", "/dev/null", "true"], "--spill /dev/null: Not a directory"),
        ] {
            let called = run(args);
            assert!(complaint(&called, 125).starts_with(flag), "{args:?}: {}", called.stderr);
        }
        // The message contains the system call with its arguments.
        let called = run(["--open", "r,beneath:/no/file:7", "true"]);
        let message = complaint(&called, 125);
        assert!(message.starts_with("--open r,beneath:/no/file:7: "), "{message}");
        assert!(message.contains("open(\"/no/file\", 0o0, 0o0, 0x8) as 7"), "{message}");
    });
}

#[test]
fn a_fifo_does_not_block_the_command() {
    isolated!(|| {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let fifo = fifo.to_str().unwrap();
        // Under Docker's profile, setns fails with EPERM.
        for (flag, wanted) in [("--cgroup", ["Not a directory"; 2]), ("--join-namespace", ["EINVAL", "EPERM"])] {
            let called = run([flag, fifo, "true"]);
            let message = complaint(&called, 125);
            assert!(message.starts_with(&format!("{flag} {fifo}: ")), "{message}");
            assert!(wanted.iter().any(|wanted| message.contains(wanted)), "{message}");
        }
    });
}

#[test]
fn json_reports_failures() {
    isolated!(|| {
        let called = run(["--capture", "--json", "--close", "4", "--chdir", "/no/dir", "true"]);
        assert_eq!(called.code, Some(125));
        let value: serde_json::Value = serde_json::from_str(&called.stdout).unwrap();
        let error = &value["error"];
        assert_eq!((error["stage"].as_str(), error["action"].as_u64()), (Some("action"), Some(1)));
        assert_eq!((error["errno"].as_str(), error["argument"].as_str()), (Some("ENOENT"), Some("--chdir /no/dir")));
        assert_eq!(error["exit_code"], 125);
    });
}

#[test]
fn json_reports_usage_errors() {
    isolated!(|| {
        let of = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        for (args, argument, wanted) in [
            (&["--json", "--close", "x", "true"][..], Some("--close x"), "'x' is not a descriptor number"),
            // --json is after the wrong argument here, and before it above.
            (&["--open", "q:/x:5", "--json", "true"], Some("--open q:/x:5"), "the mode must be"),
            (&["--no-such-flag", "--json", "true"], Some("--no-such-flag"), "--no-such-flag"),
            (&["--keep=1", "--json", "true"], Some("--keep"), "--keep requires --capture"),
            (&["--env-clear", "--env-only", "X", "--json", "true"], Some("--env-clear"), "--env-only"),
            (&["--json"], None, "PROGRAM"),
        ] {
            let called = run(args);
            assert_eq!((called.code, called.stdout.as_str()), (Some(125), ""), "{args:?}");
            let error = &of(&called.stderr)["error"];
            assert_eq!((error["argument"].as_str(), error["exit_code"].as_i64()), (argument, Some(125)), "{args:?}");
            assert!(error["message"].as_str().unwrap().contains(wanted) && error["stage"].is_null(), "{error}");
        }
        // A captured run reports errors on standard output, where its result would be.
        let called = run(["--capture", "--terminal=1", "--json", "--", "true"]);
        assert_eq!((called.code, called.stderr.as_str()), (Some(125), ""));
        assert_eq!(of(&called.stdout)["error"]["argument"], "--terminal 1");
        // Here --json is an argument of the program, or the value of another flag, so it is not a
        // flag.
        for args in [
            &["--close", "x", "true", "--json"][..],
            &["--close", "x", "--arg0", "--json", "true"],
            &["--bad", "--", "--json"],
        ] {
            assert!(!complaint(&run(args), 125).contains('{'), "{args:?}");
        }
    });
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    isolated!(|| {
        for args in [&["man"][..], &["completions", "bash"], &["run", "--capture", "--keep", "1M", "seq", "200000"]] {
            let mut child = command().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            drop(child.stdout.take());
            let output = wait(child);
            assert!(output.status.success(), "{args:?}: {output:?}");
            assert!(output.stderr.is_empty(), "{args:?}: {output:?}");
        }
    });
}

#[test]
fn signals_are_forwarded_to_the_program() {
    isolated!(|| {
        use rustix::process::Signal;
        for (name, signal) in [("TERM", Signal::TERM), ("INT", Signal::INT), ("QUIT", Signal::QUIT)] {
            let script = format!("trap 'echo got; exit 3' {name}; echo ready; while :; do sleep 0.05; done");
            let mut child = command().args(["run", "sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
            let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
            let mut line = String::new();
            std::io::BufRead::read_line(&mut out, &mut line).unwrap();
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, signal).unwrap();
            assert_eq!(wait_status(&mut child).code(), Some(3), "{name}");
            line.clear();
            std::io::BufRead::read_line(&mut out, &mut line).unwrap();
            assert_eq!(line, "got\n", "{name}");
        }
    });
}

#[test]
fn a_terminal_signal_reaches_the_program_once() {
    isolated!(|| {
        let (master, terminal) = common::terminal();
        let script = "n=0; trap 'n=$((n+1)); echo got' INT; echo ready
        until read x && [ \"$x\" = end ]; do :; done; echo n=$n";
        let outer = ["run", "--setsid", "--controlling-terminal", "0", "--foreground", "0"];
        let inner = [env!("CARGO_BIN_EXE_spawnfd"), "run", "sh", "-c", script];
        let mut child = command().args(outer).args(inner).stdin(terminal).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        rustix::io::write(&master, b"\x03").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "got");
        rustix::io::write(&master, b"end\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "n=1");
        assert_eq!(wait_status(&mut child).code(), Some(0));
    });
}

#[test]
fn a_signal_to_the_group_reaches_a_program_in_its_own_group_once() {
    isolated!(|| {
        let script = "n=0; trap 'n=$((n+1)); echo got' TERM; echo ready
        until read x && [ \"$x\" = end ]; do :; done; echo n=$n";
        let mut child = command()
            .args(["run", "--process-group", "0", "sh", "-c", script])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let group = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process_group(group, rustix::process::Signal::TERM).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "got");
        child.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "n=1");
        assert_eq!(wait_status(&mut child).code(), Some(0));
    });
}

#[test]
fn a_signal_ends_a_captured_run_and_its_process_tree() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", path.display());
        let mut child = command()
            .args(["run", "--capture", "--grace", "60", "sh", "-c", &script])
            .process_group(0)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = std::time::Instant::now();
        while !path.exists() {
            assert!(start.elapsed().as_secs() < 60);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(wait_status(&mut child).code(), Some(128 + 15));
        let sleeper: i32 = std::fs::read_to_string(&path).unwrap().trim().parse().unwrap();
        await_end(sleeper);
    });
}

#[test]
fn the_program_inherits_standard_input() {
    isolated!(|| {
        let mut child = command().args(["run", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"through").unwrap();
        assert_eq!(wait(child).stdout, b"through");
    });
}

#[test]
fn a_missing_argument_is_named() {
    isolated!(|| {
        for (args, message) in [
            (&["--idle-timeout", "5", "true"][..], "spawnfd: --idle-timeout requires --capture\n"),
            (&["--umask=022", "--output-limit=5", "true"], "spawnfd: --output-limit requires --capture\n"),
            (&["--terminal", "true"], "spawnfd: --terminal requires --capture\n"),
            (&["--capture", "--spill-limit", "5", "true"], "spawnfd: --spill-limit requires --spill <DIR>\n"),
            (&[], "spawnfd: PROGRAM is missing; see --help\n"),
            (
                &["ls -l"],
                "spawnfd: ls -l: not found in PATH (searched 2 directories); pass each argument as a separate word\n",
            ),
            (
                &["--capture", "--terminal", "120x40", "ls"],
                "spawnfd: 120x40: not found in PATH (searched 2 directories); to set the terminal's size, use --terminal=120x40\n",
            ),
            (&["--capture", "120x40"], "spawnfd: 120x40: not found in PATH (searched 2 directories)\n"),
        ] {
            // Every user may search these directories. Otherwise the error would be EACCES.
            let called = finish(command().env("PATH", "/usr/bin:/bin").arg("run").args(args));
            assert_eq!(called.stderr, message);
        }
    });
}

/// Returns the command under test, which starts with these streams closed.
fn without(streams: &'static [i32]) -> Command {
    let mut command = command();
    // SAFETY: between fork and exec, the closure only calls close(2), which is async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            streams.iter().for_each(|stream| _ = libc::close(*stream));
            Ok(())
        })
    };
    command
}

#[test]
fn closed_streams_stay_closed_in_the_program() {
    isolated!(|| {
        let open = "for n in 0 1 2; do [ -e /proc/self/fd/$n ] && echo $n >&9; done";
        for (streams, left) in [(&[0][..], "1\n2\n"), (&[1], "0\n2\n"), (&[0, 1, 2], "")] {
            for flags in [&[][..], &["--timeout", "60"]] {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("seen");
                let file = format!("w:{}:9", path.display());
                std::fs::write(&path, "").unwrap();
                let mut closed = without(streams);
                closed.arg("run").args(flags).args(["--open", &file, "--", "bash", "-c", open]);
                let called = finish(&mut closed);
                assert_eq!(
                    (called.code.is_some_and(|code| code < 2), std::fs::read_to_string(&path).unwrap().as_str()),
                    (true, left),
                    "{flags:?}: {called:?}"
                );
            }
        }
        for flags in [&[][..], &["--timeout", "60"]] {
            let called = finish(without(&[2]).arg("run").args(flags).arg("no-such-program"));
            assert_eq!(called.code, Some(127), "{flags:?}: {called:?}");
        }
        let called = finish(without(&[0]).args(["run", "--fd", "0:5", "--", "true"]));
        assert!(complaint(&called, 125).starts_with("--fd 0:5: "));
        for flags in [&["--capture"][..], &["--capture", "--json"]] {
            let called = finish(without(&[1]).arg("run").args(flags).args(["--", "echo", "hi"]));
            assert!(complaint(&called, 125).starts_with("standard output: "));
        }
    });
}

#[test]
fn a_failed_write_to_one_stream_does_not_affect_the_other() {
    isolated!(|| {
        let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
        let both = ["run", "--capture", "--", "sh", "-c", "echo out; echo err >&2; exit 3"];
        let called = wait(command().args(both).stdout(full()).stderr(Stdio::piped()).spawn().unwrap());
        let errors = String::from_utf8(called.stderr).unwrap();
        assert_eq!(called.status.code(), Some(125));
        assert!(errors.starts_with("err\n") && errors.contains("standard output: "), "{errors}");
        let called = wait(command().args(both).stderr(full()).stdout(Stdio::piped()).spawn().unwrap());
        assert_eq!((called.status.code(), called.stdout.as_slice()), (Some(125), &b"out\n"[..]));
        for args in [&["--help"][..], &["--version"], &["run", "--json", "true"]] {
            let called = wait(command().args(args).stdout(full()).stderr(full()).spawn().unwrap());
            assert_eq!(called.status.code(), Some(125), "{args:?}");
        }
    });
}

#[test]
fn a_full_nonblocking_pipe_is_waited_for() {
    isolated!(|| {
        let (mut ours, theirs) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        let long = ["run", "--capture", "--keep", "300000:0", "--", "head", "-c", "300000", "/dev/zero"];
        let mut child = command().args(long).stdout(theirs).stderr(Stdio::piped()).spawn().unwrap();
        let mut bytes = vec![0; 300_000];
        ours.read_exact(&mut bytes).unwrap();
        assert_eq!(wait_status(&mut child).code(), Some(0));
    });
}

#[test]
fn a_signal_ends_the_command_while_its_output_blocks() {
    isolated!(|| {
        let (mut ours, theirs) = std::io::pipe().unwrap();
        let long = ["run", "--capture", "--keep", "300000:0", "--", "head", "-c", "300000", "/dev/zero"];
        let mut child = command().args(long).stdout(theirs).spawn().unwrap();
        // The command prints its output after the program has ended. It now blocks, because the
        // pipe is full.
        ours.read_exact(&mut [0]).unwrap();
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
        assert_eq!(wait_status(&mut child).signal(), Some(15));
    });
}

/// The command is called by a path that is not UTF-8, and inherits SIGHUP as ignored.
#[test]
fn an_ignored_signal_stays_ignored() {
    isolated!(|| {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join(OsStr::from_bytes(b"caf\xe9"));
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_spawnfd"), &name).unwrap();
        let script = "trap '' HUP; exec \"$0\" run --capture -- sh -c 'kill -HUP $PPID; echo on'";
        let called = finish(std::process::Command::new("sh").args(["-c", script]).arg(&name));
        assert_eq!((called.code, called.stdout.as_str()), (Some(0), "on\n"), "{called:?}");
    });
}
