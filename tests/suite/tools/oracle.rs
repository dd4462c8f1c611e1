// SPDX-License-Identifier: MIT OR Apache-2.0
//! The oracle is a program that prints the state of its process. It shows everything that it
//! inherited, and nothing that it causes itself.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use spawnfd_tests::{Answer, State, copy_of_program, isolated, program, scratch};

/// Fields that differ between any two runs, because each run has its own pipes.
const PIPES: &[&str] = &["pid", "mappings", "fds.1.inode", "fds.1.target", "fds.2.inode", "fds.2.target"];

/// A number that no other descriptor of this process has, not even a descriptor that std opens
/// between fork and exec.
const HIGH: i32 = 900;

fn oracle() -> Command {
    let mut command = Command::new(program("spawnfd-oracle"));
    command.stdin(Stdio::null());
    command
}

/// Returns a command for the oracle whose child calls `change` between fork and exec.
fn changed(change: impl Fn() + Send + Sync + 'static) -> Command {
    let mut command = oracle();
    // SAFETY: the closures in this file make plain system calls, which are allowed after fork.
    unsafe {
        command.pre_exec(move || {
            change();
            Ok(())
        })
    };
    command
}

fn output(command: &mut Command) -> Output {
    let output = command.output().expect("the oracle starts");
    assert!(output.status.success(), "{output:?}");
    output
}

fn state(command: &mut Command) -> State {
    State::from_json(&output(command).stdout)
}

/// Returns the descriptor numbers in a state, except those that the test runner has left open.
fn numbers(state: &State) -> Vec<i32> {
    let own = State::of_self().fds;
    let left_open = |fd: &i32| *fd > 2 && own.get(fd).is_some_and(|own| !own.cloexec);
    state.fds.keys().copied().filter(|fd| !left_open(fd)).collect()
}

/// Returns the lines in which the state of `b` differs from an unchanged run.
fn differences(b: &mut Command) -> Vec<String> {
    State::diff(&state(&mut changed(|| {})), &state(b), PIPES)
}

#[test]
fn two_runs_are_the_same() {
    isolated!(|| {
        State::assert_same(&state(&mut oracle()), &state(&mut oracle()), PIPES);
    });
}

#[test]
fn fork_and_posix_spawn_are_the_same() {
    isolated!(|| {
        // The pre_exec closure makes std fork.
        let ignoring = [PIPES, State::POSIX_SPAWN_LEAVES].concat();
        State::assert_same(&state(&mut oracle()), &state(&mut changed(|| {})), &ignoring);
    });
}

#[test]
fn a_plain_child_has_only_standard_descriptors() {
    isolated!(|| {
        let state = state(&mut oracle());
        assert_eq!(numbers(&state), [0, 1, 2]);
        assert_eq!(state.fds[&0].target, Answer::Known("/dev/null".to_owned()));
        assert_eq!((state.fds[&0].kind.as_str(), state.fds[&1].kind.as_str()), ("char", "fifo"));
        assert_eq!(state.fds[&1].flags, "O_WRONLY");
        assert_eq!(state.threads, Answer::Known(1));
        assert_eq!(state.children, Answer::Known(vec![]));
        assert_eq!(state.envp_is_environ, Some(true));
        assert_eq!(state.ppid, Answer::Known(std::process::id() as usize));
        assert!(state.libc_tid_is_right && state.at_random && !state.at_secure);
        assert_eq!(state.robust_list, Answer::Known(true));
        assert_eq!(state.altstack_bytes, None, "std's runtime did not run");
    });
}

#[test]
fn arguments_and_environment_arrive_unchanged() {
    isolated!(|| {
        let mut command = oracle();
        command.arg0("another name").args(["a b", "", "ü"]).env_clear().env("A", "1=2").env("LC_ALL", "C");
        let state = state(&mut command);
        assert_eq!(state.argv, ["another name", "a b", "", "ü"]);
        assert_eq!(state.cmdline, Answer::Known(state.argv.clone()));
        assert_eq!(state.environ, ["A=1=2", "LC_ALL=C"]);
        assert_eq!(state.proc_environ, Answer::Known(state.environ.clone()));
        assert_eq!(state.locale.get("LC_ALL").map(String::as_str), Some("C"));
        assert_eq!(state.locale.get("CODESET").map(String::as_str), Some("ANSI_X3.4-1968"));
        assert_eq!(state.invocation_name, "another name");
        assert_eq!(state.comm, Answer::Known("spawnfd-oracle".to_owned()));
        assert_eq!(state.at_execfn.as_deref(), program("spawnfd-oracle").to_str());
    });
}

#[test]
fn bytes_that_are_not_utf_8_are_marked() {
    isolated!(|| {
        use std::os::unix::ffi::OsStrExt;
        let state = state(oracle().arg(std::ffi::OsStr::from_bytes(b"x\xff")));
        assert_eq!(state.argv[1], "bytes:x\\xff");
    });
}

#[test]
fn umask_nice_and_limits_are_seen() {
    isolated!(|| {
        let lines = differences(&mut changed(|| {
            let limit = libc::rlimit { rlim_cur: 111, rlim_max: 222 };
            // SAFETY: the system calls get valid arguments, and change only the forked child.
            unsafe {
                libc::umask(0o077);
                libc::nice(5);
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            }
        }));
        let is = |start: &str, end: &str| lines.iter().any(|l| l.starts_with(start) && l.ends_with(end));
        assert!(is("umask: ", "-> \"0077\"") && is("nice: ", ""), "{lines:#?}");
        assert!(is("rlimits.nofile.soft: ", "-> 111"), "{lines:#?}");
        assert!(is("rlimits.nofile.hard: ", "-> 222"), "{lines:#?}");
        assert_eq!(lines.len(), 4, "{lines:#?}");
    });
}

#[test]
fn mask_dispositions_and_pending_signals_are_seen() {
    isolated!(|| {
        let state = state(&mut changed(|| {
            // SAFETY: the calls read initialised sets, and the raised signal is blocked.
            unsafe {
                let mut set = std::mem::zeroed();
                libc::sigemptyset(&raw mut set);
                libc::sigaddset(&raw mut set, libc::SIGUSR1);
                libc::sigaddset(&raw mut set, libc::SIGRTMAX());
                libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
                libc::kill(libc::getpid(), libc::SIGUSR1);
                // A shell without job control starts its background commands with some signals ignored.
                for signal in 1..32 {
                    libc::signal(signal, libc::SIG_DFL);
                }
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                libc::signal(libc::SIGHUP, libc::SIG_IGN);
            }
        }));
        assert_eq!(state.signal_mask, Answer::Known(vec!["SIGUSR1".to_owned(), "SIG64".to_owned()]));
        assert_eq!(state.pending, Answer::Known(vec!["SIGUSR1".to_owned()]));
        assert_eq!(state.pending_to_thread, Answer::Known(vec![]));
        // An ancestor that was started by posix_spawn may leave SIG32 and SIG33 ignored: see
        // State::POSIX_SPAWN_LEAVES.
        let ignored: Vec<&str> = state
            .dispositions
            .iter()
            .filter(|(_, word)| word.known().is_some_and(|word| word == "ignore"))
            .map(|(signal, _)| signal.as_str())
            .filter(|signal| !["SIG32", "SIG33"].contains(signal))
            .collect();
        assert_eq!(ignored, ["SIGHUP", "SIGPIPE"]);
        assert_eq!(state.dispositions.len(), 64);
    });
}

#[test]
fn sigpipe_stays_default() {
    isolated!(|| {
        // std sets SIGPIPE to default in its children. The oracle does not run std's startup code,
        // which would ignore the signal.
        assert_eq!(state(&mut oracle()).dispositions["SIGPIPE"], Answer::Known("default".to_owned()));
    });
}

#[test]
fn closed_standard_descriptors_stay_closed() {
    isolated!(|| {
        let state = state(&mut changed(|| {
            // SAFETY: close takes an integer. The descriptors belong to the forked child, just
            // before exec.
            unsafe {
                libc::close(0);
                libc::close(2);
            }
        }));
        assert_eq!(numbers(&state), [1]);
    });
}

#[test]
fn inherited_files_are_seen_with_flags_and_offset() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("file");
        let mut file = File::options().read(true).append(true).create(true).open(&path).expect("own file");
        file.write_all(b"twelve bytes").and_then(|()| file.seek(SeekFrom::Start(7)).map(drop)).expect("own file");
        let fd = file.as_raw_fd();
        let state = state(&mut changed(move || {
            // SAFETY: dup2 takes integers, and `file` lives until the child has run.
            unsafe { libc::dup2(fd, HIGH) };
        }));
        let seen = &state.fds[&HIGH];
        assert_eq!(numbers(&state), [0, 1, 2, HIGH]);
        assert_eq!(seen.target.known().map(String::as_str), path.to_str());
        assert_eq!((seen.kind.as_str(), seen.flags.as_str(), seen.cloexec), ("regular", "O_RDWR|O_APPEND", false));
        assert_eq!((seen.offset, seen.inode), (Some(7), file.metadata().expect("own file").ino()));
    });
}

#[test]
fn place_session_and_timers_are_seen() {
    isolated!(|| {
        let directory = scratch();
        let mut command = changed(|| {
            let tick = libc::timeval { tv_sec: 1000, tv_usec: 0 };
            let timer = libc::itimerval { it_interval: tick, it_value: tick };
            // SAFETY: the system calls get valid arguments, and change only the forked child.
            unsafe {
                libc::setsid();
                libc::syscall(libc::SYS_setitimer, libc::ITIMER_REAL, &raw const timer, 0);
                libc::prctl(libc::PR_SET_TIMERSLACK, 77_777, 0, 0, 0);
                libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            }
        });
        let state = state(command.current_dir(directory.path()));
        assert_eq!(state.cwd.path.known().map(String::as_str), directory.path().to_str());
        assert_eq!((&state.sid, &state.pgid), (&state.pid, &state.pid));
        let timer = state.itimers["real"].known().expect("readable");
        assert_eq!((timer.armed, timer.interval_us), (true, 1_000_000_000));
        assert_eq!(state.timerslack_ns, Answer::Known(77_777));
        assert_eq!(state.thp_disabled, Answer::Known(1));
        assert_eq!(state.no_new_privs, Answer::Known(true));
    });
}

#[test]
fn scheduling_is_seen() {
    isolated!(|| {
        let lines = differences(&mut changed(|| {
            let parameters = libc::sched_param { sched_priority: 0 };
            // SAFETY: the system calls get valid arguments, and the CPU set is initialised.
            unsafe {
                libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters);
                let mut cpus: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of_val(&cpus), &raw mut cpus);
                let first = (0..1024).find(|cpu| libc::CPU_ISSET(*cpu, &cpus)).unwrap_or(0);
                libc::CPU_ZERO(&mut cpus);
                libc::CPU_SET(first, &mut cpus);
                libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus);
                libc::syscall(libc::SYS_ioprio_set, 1, 0, (3 << 13) as libc::c_int);
            }
        }));
        let starts = |start: &str| lines.iter().any(|line| line.starts_with(start));
        assert!(starts("scheduler.policy: \"SCHED_OTHER\" -> \"SCHED_BATCH\""), "{lines:#?}");
        assert!(starts("ioprio: "), "{lines:#?}");
        if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
            assert!(starts("affinity: lost "), "{lines:#?}");
        }
    });
}

#[test]
fn ids_and_capabilities_are_seen() {
    isolated!(root: || {
        let directory = scratch();
        let copy = copy_of_program("spawnfd-oracle", directory.path());
        let mut command = Command::new(copy);
        command.uid(65_534).gid(65_533);
        let state = state(&mut command);
        let uids = state.uids.known().expect("readable");
        let gids = state.gids.known().expect("readable");
        assert_eq!((uids.real, uids.effective, uids.saved, uids.fs), (65_534, 65_534, 65_534, 65_534));
        assert_eq!((gids.real, gids.fs), (65_533, 65_533));
        assert_eq!(state.groups, Answer::Known(vec![]));
        assert_eq!(state.capabilities["effective"], Answer::Known(vec![]));
        assert!(state.capabilities["bounding"].known().is_some_and(|names| names.contains(&"chown".to_owned())));
    });
}

#[test]
fn fields_can_be_selected_and_sent_to_a_descriptor() {
    isolated!(|| {
        let output = output(oracle().args(["--fields", "umask,pid"]));
        let text = String::from_utf8(output.stdout).expect("JSON is text");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value.as_object().map(serde_json::Map::len), Some(2));
        assert!(text.find("umask") < text.find("pid"), "the order of the struct: {text}");

        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let fd = writer.as_raw_fd();
        let mut command = changed(move || {
            // SAFETY: dup2 takes integers, and `writer` lives until the child has run.
            unsafe { libc::dup2(fd, HIGH) };
        });
        let status = command.args(["--to", &HIGH.to_string(), "--fields", "umask"]).stdout(Stdio::null()).status();
        assert!(status.expect("starts").success());
        drop((writer, command));
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("a pipe");
        assert!(text.starts_with("{\n  \"umask\": "), "{text}");

        let wrong = oracle().args(["--fields", "nonsense"]).output().expect("starts");
        assert_eq!(wrong.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&wrong.stderr).contains("no field \"nonsense\"; there are: argv, environ"));
    });
}

#[test]
fn the_parent_is_compared_with_itself() {
    isolated!(|| {
        output(&mut oracle());
        let before = State::of_self();
        output(&mut oracle());
        let after = State::of_self();
        State::assert_same(&before, &after, &["mappings"]);
        let file = File::open("/dev/null").expect("it exists");
        let changed = State::diff(&before, &State::of_self(), &["mappings"]);
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert!(changed[0].starts_with("fds.3: absent -> {"), "{changed:?}");
        assert_eq!(State::diff(&before, &State::of_self(), &["mappings", "fds.3"]), Vec::<String>::new());
        drop(file);
    });
}
