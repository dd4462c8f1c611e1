// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `spawnfd-confine` executes another program, which is then confined as requested. In
//! all other respects the program runs as if it had been started directly.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use spawnfd_tests::{Answer, State, copy_of_program, isolated, program, require_root, scratch, skip};

fn confined(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("spawnfd-confine"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("spawnfd-confine starts")
}

fn oracle(arguments: &[&str]) -> State {
    let output = run(confined(arguments).arg("--").arg(program("spawnfd-oracle")));
    assert!(output.status.success(), "{output:?}");
    State::from_json(&output.stdout)
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let executable = |file: &PathBuf| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(executable)
}

#[test]
fn the_program_under_docker_has_dockers_capabilities() {
    isolated!(|| {
        let state = oracle(&["--docker"]);
        assert_eq!(state.seccomp, Answer::Known("filter".to_owned()));
        if !require_root() {
            return;
        }
        let outside = oracle(&[]);
        let has = |state: &State, set: &str, name: &str| {
            state.capabilities[set].known().is_some_and(|names| names.contains(&name.to_owned()))
        };
        for set in ["permitted", "effective", "bounding"] {
            let names = state.capabilities[set].known().expect("readable");
            assert!(names.len() <= 14, "{set}: {names:?}");
            assert!(names.iter().all(|name| has(&outside, set, name)), "{set}: {names:?}");
            assert!(!has(&state, set, "sys_admin") && !has(&state, set, "sys_ptrace"), "{set}: {names:?}");
            assert_eq!(has(&state, set, "audit_write"), has(&outside, set, "audit_write"));
        }
        for set in ["inheritable", "ambient"] {
            assert_eq!(state.capabilities[set], Answer::Known(vec![]), "{set}");
        }
        // Docker's runtime does not set no_new_privs, and installs its profile as one filter.
        if has(&outside, "effective", "sys_admin") {
            assert_eq!(state.no_new_privs, outside.no_new_privs);
        }
        let count =
            |state: &State| state.seccomp_filters.known().cloned().flatten().and_then(|n| n.parse::<u32>().ok());
        assert_eq!(count(&state), count(&outside).map(|filters| filters + 1));
    });
}

#[test]
fn nothing_else_differs_under_docker() {
    isolated!(|| {
        let ignored = [
            "pid",
            "mappings",
            "fds.1",
            "fds.2",
            "seccomp",
            "seccomp_filters",
            "capabilities",
            "no_new_privs",
            // Docker's profile refuses the oracle's queries of these two fields.
            "mempolicy",
            "session_keyring",
            // Before Linux 5.16, a seccomp filter also turned on CPU mitigations.
            "speculation",
        ];
        State::assert_same(&oracle(&[]), &oracle(&["--docker"]), &ignored);
    });
}

#[test]
fn ordinary_programs_run_under_docker() {
    isolated!(|| {
        let cases: [(&str, &[&str], &str); 5] = [
            ("ls", &["-d", "/"], "/\n"),
            ("bash", &["-c", "echo $(( $(echo 20 | cat) + 1 )); (exit 3); echo $?"], "21\n3\n"),
            ("git", &["-c", "alias.x=!echo through a shell", "x"], "through a shell\n"),
            (
                "python3",
                &["-c", "import subprocess as s; print(s.run(['echo','x'],capture_output=True).stdout)"],
                "b'x\\n'\n",
            ),
            (
                "node",
                &["-e", "console.log(require('child_process').execFileSync('echo',['x']).toString().trim())"],
                "x\n",
            ),
        ];
        for (name, arguments, expected) in cases {
            if in_path(name).is_none() {
                skip(&format!("no {name} in PATH"));
                continue;
            }
            let output = run(confined(&["--docker", "--", name]).args(arguments));
            assert!(output.status.success(), "{name}: {output:?}");
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{name}");
        }
    });
}

#[test]
fn the_program_gets_the_refusals() {
    isolated!(|| {
        // The oracle (a program that prints its own state) queries personality, memory policy and
        // priority. If a query is refused, the oracle prints the errno.
        let state = oracle(&["--deny", "personality=EPERM", "--deny", "getpriority=38"]);
        let refused = |text: &str| serde_json::json!({ "errno": text });
        assert_eq!(serde_json::to_value(&state.personality).expect("JSON"), refused("EPERM"));
        assert_eq!(serde_json::to_value(&state.nice).expect("JSON"), refused("ENOSYS"));
    });
}

#[test]
fn the_program_runs_under_the_profile() {
    isolated!(|| {
        for profile in ["docker", "podman", "system-service", "flatpak"] {
            for answer in ["", "=kill"] {
                let profile = format!("{profile}{answer}");
                // All four profiles refuse acct(NULL).
                let script = format!("import ctypes; print(ctypes.CDLL(None).syscall({}, 0))", libc::SYS_acct);
                let output = run(confined(&["--profile", &profile, "--"]).args(["/usr/bin/python3", "-c", &script]));
                if answer.is_empty() {
                    assert_eq!(String::from_utf8_lossy(&output.stdout), "-1\n", "{profile}: {output:?}");
                } else {
                    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{profile}: {output:?}");
                }
            }
        }
    });
}

#[test]
fn another_user_runs_the_program() {
    isolated!(root: || {
        let directory = scratch();
        let copy = copy_of_program("spawnfd-oracle", directory.path());
        let here = State::of_self();
        let (outside, already) = (here.capabilities["effective"].known(), here.no_new_privs == Answer::Known(true));
        for (option, gid) in [("65534", 65_534), ("65534:65533", 65_533)] {
            for docker in [&["--docker"][..], &[]] {
                let output = run(confined(docker).args(["--user", option, "--nofile", "99", "--"]).arg(&copy));
                assert!(output.status.success(), "{output:?}");
                let state = State::from_json(&output.stdout);
                let uids = state.uids.known().expect("readable");
                let gids = state.gids.known().expect("readable");
                assert_eq!([uids.real, uids.effective, uids.saved, uids.fs], [65_534; 4]);
                assert_eq!([gids.real, gids.effective, gids.saved, gids.fs], [gid; 4]);
                assert_eq!(state.groups, Answer::Known(vec![]));
                for set in ["inheritable", "permitted", "effective", "ambient"] {
                    assert_eq!(state.capabilities[set], Answer::Known(vec![]), "{set}");
                }
                let may_filter = outside.is_some_and(|names| names.contains(&"sys_admin".to_owned()));
                let needs_it = !docker.is_empty() && !may_filter;
                assert_eq!(state.no_new_privs, Answer::Known(needs_it || already));
                assert_eq!(state.dumpable, Answer::Known(1), "exec makes it dumpable again");
                assert_eq!(state.rlimits["nofile"].known().map(|limit| (limit.soft, limit.hard)), Some((99, 99)));
            }
        }
    });
}

#[test]
fn an_unprivileged_user_can_confine() {
    isolated!(root: || {
        let directory = scratch();
        let copies = ["spawnfd-confine", "spawnfd-oracle"].map(|name| copy_of_program(name, directory.path()));
        let mut command = confined(&["--user", "65534", "--"]);
        let output = run(command.arg(&copies[0]).args(["--docker", "--deny", "pipe2=ENOSYS", "--"]).arg(&copies[1]));
        assert!(output.status.success(), "{output:?}");
        let state = State::from_json(&output.stdout);
        assert_eq!(state.no_new_privs, Answer::Known(true), "the kernel asks for it");
        assert_eq!(state.seccomp, Answer::Known("filter".to_owned()));
    });
}

#[test]
fn no_new_privs_is_set() {
    isolated!(|| {
        assert_eq!(oracle(&["--no-new-privs"]).no_new_privs, Answer::Known(true));
    });
}

#[test]
fn the_program_inherits_nothing_from_spawnfd_confine() {
    isolated!(|| {
        let direct = run(Command::new(program("spawnfd-oracle")).stdin(Stdio::null()));
        let direct = State::from_json(&direct.stdout);
        State::assert_same(&direct, &oracle(&[]), &["pid", "mappings", "fds.1", "fds.2"]);
    });
}

#[test]
fn failures_are_told_apart() {
    isolated!(|| {
        let cases: [(&[&str], i32, &str); 11] = [
            (&["--deny", "nonsense=EPERM", "true"], 125, "no system call \"nonsense\""),
            (&["--deny", "clone3=EWHAT", "true"], 125, "no errno \"EWHAT\""),
            (&["--deny", "clone3", "true"], 125, "expected NAME=ERRNO"),
            (&["--deny"], 125, "--deny needs a value"),
            (&["--profile", "dockers", "true"], 125, "no profile \"dockers\""),
            (&["--profile", "docker=EPERM", "true"], 125, "expected NAME or NAME=kill"),
            (&["--user", "nobody", "true"], 125, "expected UID"),
            (&["--what", "true"], 125, "unknown option \"--what\""),
            (&["--docker"], 125, "no program"),
            (&["--", "/nonexistent/program"], 127, "No such file"),
            (&["--", "/dev"], 126, "ermission denied"),
        ];
        for (arguments, status, message) in cases {
            let output = run(&mut confined(arguments));
            assert_eq!(output.status.code(), Some(status), "{arguments:?}: {output:?}");
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.starts_with("spawnfd-confine: ") && text.contains(message), "{arguments:?}: {text}");
        }
        assert_eq!(run(&mut confined(&["--", "sh", "-c", "exit 7"])).status.code(), Some(7));
    });
}
