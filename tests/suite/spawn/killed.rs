// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seccomp filters that kill the process for a system call.
//!
//! If a filter kills the child for a system call of the launcher, the launcher treats the call as
//! refused. If a filter kills the child for an action's call, the start fails with an error.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::job::block_on;
use crate::common::{self, Refused, at_number, code, every_launcher, output};
use spawnfd::command::{FilterInstruction, Namespaces, OpenHow};
use spawnfd::error::{Errno, Stage};
use spawnfd::tree::TreeControl;
use spawnfd::warm::{Mode, WarmOptions};
use spawnfd::{Child, Command, Run, Stdio, Template, Warm, support};
use spawnfd_tests::confine::{self, Answer, Profile};
use spawnfd_tests::{copy, has_clone3, isolated, program, scratch, skip};

/// The path of a test program. The test looks it up before it installs a filter.
static FDS: LazyLock<PathBuf> = LazyLock::new(|| program("spawnfd-fds"));

/// Returns the descriptor numbers of a child of this command, except the number by which the child
/// lists them.
fn numbers(command: &mut Command<'_>) -> Vec<i32> {
    let listed = output(command);
    listed
        .lines()
        .map(|line| line.split(' ').next().and_then(|number| number.parse().ok()).expect("a number"))
        .collect()
}

/// Asserts that starts and runs of all kinds succeed. None of these programs makes a call that
/// `killed!` names.
fn all_starts_succeed() {
    let null = File::open("/dev/null").expect("it exists");
    let fds = Template::open(&*FDS).expect("a template");
    for wait in [true, false, true, false] {
        let mut command = fds.command();
        command.stdin(&null).stderr(Stdio::Null).descriptor(&null, 10).close_range(20, 30).wait_for_exec(wait);
        assert_eq!(numbers(&mut command), [0, 1, 2, 10], "wait: {wait}");
        let mut command = fds.command();
        command.stdin(&null).stderr(Stdio::Null).open("/dev/zero", OpenHow::READ, 7).wait_for_exec(wait);
        assert_eq!(numbers(&mut command), [0, 1, 2, 7], "wait: {wait}");
        let mut command = fds.command();
        command.stdin(&null).stdout(Stdio::Null).stderr(Stdio::Null).chdir("/nowhere").wait_for_exec(wait);
        let error = command.refused("no such directory");
        assert_eq!((error.stage(), error.errno()), (Stage::Action(0), Errno::ENOENT), "{error}");
    }
    let found = Template::search("true", "/usr/bin:/bin").expect("found");
    assert_eq!(code(found.command().spawn()), Ok(0));
    for want in [TreeControl::Group, TreeControl::Auto] {
        let run = Run::new().input("input").tree(want);
        let cat = Command::new("/bin/cat");
        assert_eq!(cat.run_with(&run).expect("runs").stdout, b"input");
        let mut echo = Command::new("/bin/echo");
        echo.arg("word");
        assert_eq!(echo.start(&Run::new().tree(want)).expect("starts").wait().expect("runs").stdout, b"word\n");
        assert_eq!(block_on(echo.run_async(&run)).expect("runs").stdout, b"word\n");
        let (sender, receiver) = channel();
        let _handle =
            echo.run_then(&run, move |output| sender.send(output).expect("the receiver is alive")).expect("starts");
        assert_eq!(receiver.recv().expect("a message").expect("runs").stdout, b"word\n");
    }
}

/// Returns true if a child that a filter kills does not also end its parent. If not, skips the
/// test.
///
/// Before Linux 5.16 a core dump ends all processes that share the memory, and a kill by a filter
/// dumps core.
fn ends_alone() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("/proc");
    let mut parts = release.split(|character: char| !character.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let is_recent = (parts.next(), parts.next()) >= (Some(5), Some(16));
    if !is_recent {
        skip("before Linux 5.16 a child's SIGSYS also ends its parent");
    }
    is_recent
}

fn in_a_thread(body: impl FnOnce() + Send + 'static) {
    std::thread::spawn(body).join().expect("the thread's assertions hold");
}

macro_rules! killed {
    ($($name:ident),* $(,)?) => {$(
        mod $name {
            use super::*;

            #[test]
            fn before_first_use() {
                isolated!(|| {
                    let null = File::open("/dev/null").expect("it exists");
                    LazyLock::force(&FDS);
                    let _foreign = [30, 31, 200, 1000].map(|number| at_number(&null, number));
                    confine::kill(&[stringify!($name)]).expect("confined");
                    all_starts_succeed();
                    in_a_thread(all_starts_succeed);
                });
            }

            #[test]
            fn in_one_of_several_threads_after_use() {
                isolated!(|| {
                    all_starts_succeed();
                    in_a_thread(|| {
                        confine::kill(&[stringify!($name)]).expect("confined");
                        all_starts_succeed();
                        in_a_thread(all_starts_succeed);
                    });
                    all_starts_succeed();
                    confine::kill(&[stringify!($name)]).expect("confined");
                    all_starts_succeed();
                });
            }
        }
    )*};
}

killed! {
    pidfd_getfd, close_range, pidfd_open, pidfd_send_signal, openat2, statx, faccessat2, execveat, sendmsg, recvmsg,
    socketpair, memfd_create,
    unshare, kcmp, keyctl, get_mempolicy, sched_getattr, ioprio_get, personality, setfsuid,
}

/// If a filter kills the process for clone3, glibc cannot start threads.
#[test]
fn clone3_in_a_process_with_one_thread() {
    isolated!(|| {
        confine::kill(&["clone3"]).expect("confined");
        for wait in [true, false, true] {
            let mut command = Command::new("/bin/echo");
            let text = output(command.arg("word").stdin(Stdio::Null).stderr(Stdio::Null).wait_for_exec(wait));
            assert_eq!(text, "word\n");
        }
        assert_eq!(Command::new("/bin/echo").run().expect("runs").stdout, b"\n");
    });
}

/// System calls that the profile of @system-service, Docker, Podman or Flatpak refuses.
const REFUSED_BY_PROFILES: &[&str] =
    &["pidfd_getfd", "kcmp", "keyctl", "get_mempolicy", "unshare", "setns", "ptrace", "mount", "bpf", "add_key"];

#[test]
fn all_calls_that_profiles_refuse_may_kill() {
    isolated!(|| {
        if !ends_alone() {
            return;
        }
        all_starts_succeed();
        in_a_thread(|| {
            confine::kill(REFUSED_BY_PROFILES).expect("confined");
            all_starts_succeed();
            let mut command = Command::new("/bin/true");
            let own = File::open("/proc/self/ns/net").expect("own file");
            let error = command.join_namespace(own, 0).refused("the call kills");
            assert_eq!((error.stage(), error.errno()), (Stage::Action(0), Errno::ECANCELED), "{error}");
        });
    });
}

/// Starts programs in all ways under a profile that kills. The host's own threads survive.
fn starts_succeed_under(profile: Profile) {
    LazyLock::force(&FDS);
    all_starts_succeed();
    in_a_thread(move || {
        profile.install(Answer::Kill).expect("confined");
        all_starts_succeed();
        in_a_thread(all_starts_succeed);
        for mode in [Mode::Reserve, Mode::Fork] {
            let warm = Warm::new(WarmOptions::new().mode(mode)).expect("a Warm");
            let echo = Template::open("/bin/echo").expect("a template");
            warm.add_once(&echo).expect("a keeper");
            warm.fill(Duration::from_secs(10));
            assert_eq!(echo.command().warm(&warm).run().expect("runs").stdout, b"\n");
        }
        let mut apart = Command::new("/bin/echo");
        apart.namespaces(Namespaces::NET).stdout(Stdio::Null);
        if let Err(error) = apart.spawn().and_then(|mut child| child.wait()) {
            assert_eq!(error.errno(), Errno::EPERM, "{error}");
        }
    });
    all_starts_succeed();
}

macro_rules! profiles {
    ($($name:ident $profile:ident;)*) => {
        mod under_the_profile_of {
            use super::*;
            $(
                #[test]
                fn $name() {
                    isolated!(|| starts_succeed_under(Profile::$profile));
                }
            )*
        }
    };
}

profiles! {
    docker Docker;
    podman Podman;
    systemd SystemService;
    flatpak Flatpak;
}

every_launcher! {
    starts_succeed_under_a_filter_that_kills [tables under No]: |launcher| {
        confine::kill(REFUSED_BY_PROFILES).expect("confined");
        launcher.drop_parked();
        for _ in 0..3 {
            let mut command = launcher.command("/bin/echo");
            assert_eq!(output(command.arg("word").stdin(Stdio::Null).stderr(Stdio::Null)), "word\n");
        }
    };
}

/// The library notices a second filter when it reads the thread's whole authority.
#[test]
fn a_second_filter_is_probed_before_authority_is_compared() {
    isolated!(|| {
        in_a_thread(|| {
            confine::kill(&["pidfd_getfd"]).expect("confined");
            all_starts_succeed();
            confine::kill(&["keyctl", "kcmp", "get_mempolicy"]).expect("confined");
            let warm = crate::common::zygote::zygote();
            let mut command = Command::new("/bin/echo");
            command.stdin(Stdio::Null).stderr(Stdio::Null).warm(&warm);
            assert_eq!(output(&mut command), "\n");
            all_starts_succeed();
        });
    });
}

/// The library's probe uses other arguments than the child, so the probe passes and the filter
/// kills the child.
#[test]
fn sigsys_in_the_table_stage_selects_the_next_strategy() {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    isolated!(|| {
        if !ends_alone() {
            return;
        }
        all_starts_succeed();
        in_a_thread(|| {
            confine::kill_with("close_range", 2, CLOSE_RANGE_UNSHARE).expect("confined");
            all_starts_succeed();
            assert!(!support::support().close_range);
        });
        assert!(support::support().close_range, "the filter was the thread's alone");
        // In a blocking run of a host with one thread, the child leaves the table while the caller
        // goes on.
        confine::kill_with("close_range", 2, CLOSE_RANGE_UNSHARE).expect("confined");
        assert_eq!(Command::new("/bin/echo").arg("word").run().expect("runs").stdout, b"word\n");
        all_starts_succeed();
    });
}

/// Another thread adds the filter after the library has probed the call.
#[test]
fn sigsys_in_the_table_stage_of_an_asynchronous_child_fails_its_wait() {
    isolated!(|| {
        if !ends_alone() {
            return;
        }
        let start = || -> spawnfd::Result<Child> {
            let mut command = Command::new("/bin/echo");
            command.stdin(Stdio::Null).stdout(Stdio::Piped).stderr(Stdio::Null).wait_for_exec(false).spawn()
        };
        common::with_unnoticed_filter(
            || {
                for _ in 0..2 {
                    common::wait_success(start().expect("starts"));
                }
            },
            ("recvmsg", None),
            || {
                let error = start().expect("there is a child").wait().expect_err("the child has no descriptors");
                assert_eq!((error.stage(), error.errno()), (Stage::Descriptors, Errno::ECANCELED), "{error}");
                assert!(error.to_string().contains("killed by SIGSYS (a seccomp filter)"), "{error}");
                common::wait_success(start().expect("another strategy"));
                let echo = Command::new("/bin/echo").start(&Run::new()).expect("starts").wait().expect("runs");
                assert_eq!(echo.stdout, b"\n");
            },
        );
    });
}

/// The filter kills the child in the second action. A repetition would show, because the first
/// action then fails.
#[test]
fn sigsys_in_an_action_is_an_error_of_that_action_and_is_not_retried() {
    isolated!(|| {
        if !ends_alone() {
            return;
        }
        let directory = scratch();
        let place = directory.path().to_owned();
        in_a_thread(move || {
            confine::kill(&["umask"]).expect("confined");
            for warmed in [false, true] {
                for (number, start) in STARTS.iter().enumerate() {
                    let file = place.join(format!("{number}-{warmed}"));
                    let error = start(&mut with_side_effect(&file)).expect_err("the second action kills");
                    assert_eq!(
                        (error.stage(), error.errno()),
                        (Stage::Action(1), Errno::ECANCELED),
                        "{number}: {error}"
                    );
                    assert!(error.to_string().contains("umask(0o22), killed by SIGSYS (a seccomp filter)"), "{error}");
                    assert!(file.exists(), "the first action has run");
                    let error = start(&mut with_side_effect(&file)).expect_err("the file exists");
                    assert_eq!((error.stage(), error.errno()), (Stage::Action(0), Errno::EEXIST), "{number}: {error}");
                }
                // These actions open no file, so the child runs in the caller's memory.
                for start in STARTS {
                    let mut command = Command::new("/bin/true");
                    command.stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null).process_group(0).umask(0o22);
                    let error = start(&mut command).expect_err("the second action kills");
                    assert_eq!((error.stage(), error.errno()), (Stage::Action(1), Errno::ECANCELED), "{error}");
                }
            }
        });
    });
}

fn with_side_effect(file: &Path) -> Command<'static> {
    let flags = (libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY) as u64;
    let mut command = Command::new("/bin/true");
    command.stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null);
    command.open(file, OpenHow::new(flags).mode(0o600), 5).umask(0o22);
    command
}

type Start = fn(&mut Command<'_>) -> spawnfd::Result<()>;

const STARTS: &[Start] = &[
    |command| command.wait_for_exec(true).spawn()?.wait().map(drop),
    |command| command.wait_for_exec(false).spawn()?.wait().map(drop),
    |command| command.run().map(drop),
    |command| command.start(&Run::new())?.wait().map(drop),
    |command| {
        let (sender, receiver) = channel();
        let _handle =
            command.run_then(&Run::new(), move |output| sender.send(output).expect("the receiver is alive"))?;
        receiver.recv().expect("a message").map(drop)
    },
];

#[test]
fn sigsys_sent_by_the_caller_ends_the_child() {
    isolated!(|| {
        if !ends_alone() {
            return;
        }
        // After this first spawn, the library has probed this thread's filters.
        Command::new("/bin/true").spawn().expect("starts").wait().expect("a result");
        if !has_clone3() {
            return skip("without clone3 a child blocks signals until exec");
        }
        let directory = scratch();
        let gate = common::fifo(directory.path(), "gate");
        let mut command = Command::new("/bin/true");
        command.stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null).open(&gate, OpenHow::READ, 9);
        let mut child = command.wait_for_exec(false).spawn().expect("starts");
        child.signal(libc::SIGSYS).expect("own child");
        assert_eq!(child.wait().expect("a status").signal(), Some(libc::SIGSYS));
    });
}

/// Returns one instruction of a filter.
fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> FilterInstruction {
    FilterInstruction { code: code as u16, jt, jf, k }
}

/// Returns a filter that kills the process for one system call.
fn killing(call: libc::c_long) -> Vec<FilterInstruction> {
    vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

#[test]
fn sigsys_under_the_commands_own_filter_ends_the_program() {
    isolated!(|| {
        if !ends_alone() {
            return;
        }
        for wait in [true, false] {
            for call in [libc::SYS_execve, libc::SYS_exit_group] {
                let mut command = Command::new("/bin/true");
                command.stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null).wait_for_exec(wait);
                let mut child = command.no_new_privs().seccomp(killing(call)).spawn().expect("starts");
                assert_eq!(child.wait().expect("the program has ended").signal(), Some(libc::SIGSYS));
            }
        }
    });
}

#[test]
fn sigsys_while_the_filter_is_added_is_an_error_of_stage_filter() {
    isolated!(|| {
        if !ends_alone() {
            return;
        }
        in_a_thread(|| {
            confine::kill(&["seccomp"]).expect("confined");
            for start in STARTS {
                let mut command = Command::new("/bin/true");
                command.stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null);
                command.no_new_privs().seccomp(killing(libc::SYS_mkdirat));
                let error = start(&mut command).expect_err("killed");
                assert_eq!((error.stage(), error.errno()), (Stage::Filter, Errno::ECANCELED), "{error}");
            }
        });
    });
}

/// A service with LimitCORE=0 has such a limit. The library's probe child then has its own memory.
#[test]
fn starts_succeed_with_a_hard_core_limit_of_zero() {
    isolated!(|| {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: setrlimit reads one rlimit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) }, 0);
        LazyLock::force(&FDS);
        confine::kill(REFUSED_BY_PROFILES).expect("confined");
        all_starts_succeed();
    });
}

#[test]
fn a_probe_child_leaves_no_core() {
    isolated!(|| {
        let directory = scratch();
        std::env::set_current_dir(directory.path()).expect("own directory");
        let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: setrlimit reads one rlimit. Without the privilege to raise the limit, the call
        // changes nothing.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &all) };
        confine::kill(REFUSED_BY_PROFILES).expect("confined");
        assert_eq!(Command::new("/bin/echo").run().expect("runs").stdout, b"\n");
        assert_eq!(std::fs::read_dir(".").expect("own directory").count(), 0);
    });
}

#[test]
fn starts_succeed_in_a_forked_process() {
    isolated!(|| {
        LazyLock::force(&FDS);
        confine::kill(REFUSED_BY_PROFILES).expect("confined");
        all_starts_succeed();
        copy::wait_for(copy::fork(all_starts_succeed));
    });
}
