// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that are parked under Landlock and a seccomp filter, or behind a sandbox program. A program from such a
//! process has the same state as a cold child (one not from a parked process) under the same confinement.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{cold_except_slow, output, retry_while_slow, state};
use ::landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, path_beneath_rules};
use spawnfd::child::Started;
use spawnfd::command::FilterInstruction;
use spawnfd::error::{Errno, Stage};
use spawnfd::sandbox::Sandbox;
use spawnfd::warm::{Mode, Park, WarmOptions};
use spawnfd::{Command, Stdio, Template, Warm};
use spawnfd_tests::confine::{self, Confinement};
use spawnfd_tests::{State, copy_of_program, isolated, program, require_syscall, scratch, skip};

const ALLOW: FilterInstruction = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };

/// A ruleset that allows reading everywhere and writing nowhere.
fn reading_only() -> Option<Arc<OwnedFd>> {
    if !require_syscall("landlock_create_ruleset") {
        return None;
    }
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(ABI::V1)).expect("known access rights").create();
    let everywhere = path_beneath_rules(["/"], AccessFs::from_read(ABI::V1));
    let ruleset: Option<OwnedFd> = ruleset.and_then(|set| set.add_rules(everywhere)).expect("a ruleset").into();
    let ruleset = ruleset.expect("this kernel has Landlock");
    if !can_compare_files() {
        skip("no call can compare two descriptors of rulesets");
        return None;
    }
    Some(Arc::new(ruleset))
}

/// Whether F_DUPFD_QUERY (Linux 6.10) or kcmp(2) works. Docker's profile refuses kcmp.
fn can_compare_files() -> bool {
    // SAFETY: the calls take integers and change nothing.
    unsafe {
        let own = libc::getpid();
        libc::fcntl(0, 1027, 0) == 1 || libc::syscall(libc::SYS_kcmp, own, own, 0, 0, 0) == 0
    }
}

fn both_modes(test: fn(Mode, Arc<OwnedFd>)) {
    if let Some(ruleset) = reading_only() {
        [Mode::Reserve, Mode::Fork].into_iter().for_each(|mode| test(mode, ruleset.clone()));
    }
}

fn warm(mode: Mode, template: &Template, park: Park) -> Warm {
    let warm = Warm::new(WarmOptions::new().mode(mode)).expect("a Warm");
    warm.add_template(template, park).expect("a keeper");
    assert!(warm.fill(Duration::from_secs(60)), "{:?}", warm.stats());
    warm
}

#[test]
fn a_warm_program_sees_the_state_of_a_cold_one() {
    isolated!(|| {
        both_modes(|mode, ruleset| {
            let template = Template::open(program("spawnfd-oracle")).expect("it exists");
            let park = Park::new().no_new_privs(true).landlock(ruleset.clone()).seccomp(vec![ALLOW, ALLOW]);
            let warm = warm(mode, &template, park);
            let command = || {
                let mut command = template.command();
                command.stdin(Stdio::Null).no_new_privs().umask(0o27).current_dir("/usr").seccomp([ALLOW, ALLOW]);
                command.landlock(ruleset.as_ref());
                command
            };
            let cold = state(&mut command());
            let warmed = retry_while_slow(&warm, || state(command().warm(&warm)));
            State::assert_same(&cold, &warmed, &["pid", "mappings", "fds.1.inode", "fds.1.target"]);
            let stats = warm.stats();
            assert_eq!((stats.reserve + stats.fork, cold_except_slow(&stats).len()), (1, 0), "{stats:?}");
        });
    });
}

#[test]
fn only_a_command_with_the_same_ruleset_starts_warm() {
    isolated!(|| {
        both_modes(|mode, ruleset| {
            let template = Template::open("/bin/sh").expect("it exists");
            let park = Park::new().no_new_privs(true).landlock(ruleset.clone());
            let warm = warm(mode, &template, park);
            let directory = spawnfd_tests::scratch();
            let touch = |command: &mut Command<'_>| {
                let script = "if (: >file) 2>/dev/null; then echo made; else echo refused; fi";
                output(command.args(["-c", script]).current_dir(directory.path()).warm(&warm))
            };
            assert_eq!(touch(&mut template.command()), "made\n");
            assert_eq!(touch(template.command().no_new_privs()), "made\n");
            let confined = || touch(template.command().no_new_privs().landlock(ruleset.as_ref()));
            assert_eq!(retry_while_slow(&warm, confined), "refused\n");
            let stats = warm.stats();
            assert_eq!(stats.cold.get("Landlock ruleset"), Some(&2), "{stats:?}");
            assert_eq!(stats.reserve + stats.fork, 1, "{stats:?}");
        });
    });
}

#[test]
fn a_further_ruleset_is_applied_at_the_start() {
    isolated!(|| {
        both_modes(|mode, ruleset| {
            // The command asks for a Landlock layer, and the process is parked in another layer already.
            let template = Template::open("/bin/sh").expect("it exists");
            let warm = warm(mode, &template, Park::new().no_new_privs(true));
            let mut command = template.command();
            command.no_new_privs().landlock(ruleset.as_ref()).args(["-c", ": >/tmp/none"]).stderr(Stdio::Null);
            command.warm(&warm);
            let mut child = retry_while_slow(&warm, || command.spawn().expect("starts"));
            assert!(matches!(child.started(), Started::Reserve | Started::Fork), "{:?}", child.started());
            assert!(!child.wait().expect("own child").success());
        });
    });
}

/// Fields of the oracle's state that differ between any two runs in this file: each has its own session and pipes.
const EACH_RUN: &[&str] =
    &["pid", "pgid", "sid", "mappings", "fds.1.inode", "fds.1.target", "fds.2.inode", "fds.2.target"];
/// Fields of the oracle's state that also differ between runs behind bwrap. bwrap creates mounts, in a user namespace
/// if it is unprivileged, and stays the program's parent.
const EACH_BWRAP: &[&str] = &["ppid", "namespaces.mnt", "namespaces.user"];

/// The sandbox programs, each with the state fields that differ between two runs behind it.
fn sandboxes() -> Vec<(Sandbox, Vec<&'static str>)> {
    let env = Sandbox::new(["env"]).expect("it exists");
    let mut sandboxes = vec![(env, EACH_RUN.to_vec())];
    match Sandbox::new(["bwrap", "--dev-bind", "/", "/"]) {
        Ok(bwrap) if seen(Command::new("/bin/true").sandbox(&bwrap)).is_some() => {
            sandboxes.push((bwrap, [EACH_RUN, EACH_BWRAP].concat()));
        }
        _ => skip("bwrap does not work here"),
    }
    sandboxes
}

/// The output of a command; `None` if the command fails.
fn seen(command: &mut Command<'_>) -> Option<Vec<u8>> {
    let output = command.stdin(Stdio::Null).run().expect("starts");
    output.status?.success().then_some(output.stdout)
}

/// Changes many inherited attributes of this process and thread.
fn change_inherited_state() {
    std::env::set_current_dir("/usr").expect("it exists");
    // SAFETY: the calls take integers and structs of this function, and change only this process and this thread.
    unsafe {
        libc::umask(0o027);
        libc::signal(libc::SIGINT, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        let limit = libc::rlimit { rlim_cur: 200, rlim_max: 300 };
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        libc::setpriority(libc::PRIO_PROCESS, 0, 5);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

#[test]
fn behind_a_sandbox_program_a_warm_program_sees_the_same() {
    isolated!(|| {
        let oracle = program("spawnfd-oracle");
        let template = Template::open(&oracle).expect("it exists");
        for prepare in [|| (), change_inherited_state] {
            prepare();
            for (sandbox, differs) in sandboxes() {
                let warm = warm(Mode::Reserve, &template, Park::new().sandbox(sandbox.clone()));
                let once = |warm: Option<&Warm>| {
                    let mut command = Command::new(&oracle);
                    command.sandbox(&sandbox).args(["a b", ""]);
                    if let Some(warm) = warm {
                        command.warm(warm);
                    }
                    State::from_json(&seen(&mut command).expect("success"))
                };
                let (cold, warmed) = (once(None), retry_while_slow(&warm, || once(Some(&warm))));
                State::assert_same(&cold, &warmed, &differs);
                let stats = warm.stats();
                assert_eq!((stats.reserve, cold_except_slow(&stats).len()), (1, 0), "{stats:?}");
            }
        }
    });
}

/// The per-thread attributes in the oracle's output. Of the namespaces, it keeps net and uts, which no sandbox of
/// this file creates.
fn authority(json: &[u8]) -> Vec<(&'static str, serde_json::Value)> {
    let mut found = State::from_json(json).authority();
    let (_, namespaces) = found.iter_mut().find(|(name, _)| *name == "namespaces").expect("one of them");
    *namespaces = ["net", "uts"].map(|name| namespaces[name].clone()).as_slice().into();
    found
}

/// A function that changes the calling thread. It returns `false` if the kernel refuses the change.
type Change = fn() -> bool;

const CHANGES: [(&str, Change); 7] = [
    ("no_new_privs", || Confinement::default().no_new_privs().apply().is_ok()),
    ("a filter", || confine::deny(&[("mkdirat", libc::EDOM)]).is_ok()),
    ("docker", || confine::docker().is_ok()),
    ("a domain", || {
        let ruleset = Ruleset::default().handle_access(AccessFs::MakeDir).and_then(Ruleset::create);
        ruleset.and_then(|ruleset| ruleset.restrict_self()).is_ok()
    }),
    ("another user", || Confinement::default().user(54_321, 54_322).apply().is_ok()),
    ("capabilities", || {
        // SAFETY: the call takes integers and changes this thread only.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, 0) == 0 }
    }),
    ("namespaces", || {
        // SAFETY: the call takes an integer and changes this thread only.
        unsafe { libc::unshare(libc::CLONE_NEWUTS | libc::CLONE_NEWNET) == 0 }
    }),
];

#[test]
fn behind_a_sandbox_program_a_confined_thread_starts_cold() {
    isolated!(|| {
        let directory = scratch();
        let oracle = copy_of_program("spawnfd-oracle", directory.path());
        let template = Template::open(&oracle).expect("it exists");
        for (sandbox, _) in sandboxes() {
            let warm = warm(Mode::Reserve, &template, Park::new().sandbox(sandbox.clone()));
            let once = |warm: Option<&Warm>| {
                let mut command = Command::new(&oracle);
                command.sandbox(&sandbox);
                if let Some(warm) = warm {
                    command.warm(warm);
                }
                seen(&mut command).map(|json| authority(&json))
            };
            let free = once(None).expect("success");
            for (name, change) in CHANGES {
                let started = || warm.stats().reserve;
                assert_eq!(retry_while_slow(&warm, || once(Some(&warm))).as_ref(), Some(&free), "{name}");
                assert!(warm.fill(Duration::from_secs(60)), "{:?}", warm.stats());
                let before = started();
                std::thread::scope(|scope| {
                    let body = || match change() {
                        true => assert_eq!(once(Some(&warm)), once(None), "{name} behind {sandbox:?}"),
                        false => skip(&format!("{name}: refused here")),
                    };
                    scope.spawn(body).join().expect("the thread's assertions hold");
                });
                assert_eq!(started(), before, "{name}: {:?}", warm.stats());
            }
        }
    });
}

#[test]
fn options_without_effect_are_refused() {
    isolated!(|| {
        let warm = Warm::new(WarmOptions::default()).expect("a Warm");
        let parks = [
            Park::new().current_dir("/"),
            Park::new().preload(["json"]),
            Park::new().entry("tool.py"),
            Park::new().sandbox(Sandbox::new(["env"]).expect("it exists")).current_dir("/\0"),
        ];
        for park in parks {
            let error = warm.add("true", park).expect_err("the option has no effect");
            assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL), "{error}");
        }
        assert_eq!(warm.stats().cannot.len() + warm.stats().parked, 0);
    });
}
