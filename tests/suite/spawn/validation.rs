// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invalid commands: the errno, the order in which errors are reported, and that no child is
//! created.

use crate::common;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Launcher, Refused, assert_leaves_nothing, capability_sets};
use spawnfd::command::{CapabilitySets, FilterInstruction, MAX_ACTIONS, OpenHow};
use spawnfd::error::{Errno, ErrorKind, Stage};
use spawnfd::signal::SignalSet;
use spawnfd::template::TemplateCache;
use spawnfd::{Command, Env, Error, Stdio, Template, snapshot};
use spawnfd_tests::isolated;
use spawnfd_tests::leaks::{self, Snapshot};

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Asserts that `spawn` and `validate` return the same error, and returns it.
fn refused(command: &mut Command<'_>) -> Error {
    let by_spawn = command.refused("refused");
    let by_validate = command.validate().expect_err("refused");
    assert_eq!(by_spawn, by_validate);
    by_spawn
}

type Change = Box<dyn Fn(&mut Command<'static>)>;

fn change(change: impl for<'a> Fn(&'a mut Command<'static>) -> &'a mut Command<'static> + 'static) -> Change {
    Box::new(move |command| {
        change(command);
    })
}

/// Returns invalid actions. No child may receive one of them.
fn bad_actions() -> Vec<(&'static str, Errno, Change)> {
    let null = || File::open("/dev/null").expect("it exists");
    let numbers = [-1, -100, -3, i32::MIN];
    let mut all: Vec<(&'static str, Errno, Change)> = Vec::new();
    for number in numbers {
        all.push(("descriptor", Errno::EBADF, change(move |c| c.descriptor(null(), number))));
        all.push(("dup2 from", Errno::EBADF, change(move |c| c.dup2(number, 1))));
        all.push(("dup2 to", Errno::EBADF, change(move |c| c.dup2(1, number))));
        all.push(("close", Errno::EBADF, change(move |c| c.close(number))));
        all.push(("open", Errno::EBADF, change(move |c| c.open("/", OpenHow::READ, number))));
        all.push(("open_at", Errno::EBADF, change(move |c| c.open_at(null(), "x", OpenHow::READ, number))));
        all.push(("foreground", Errno::EBADF, change(move |c| c.foreground(number))));
        all.push(("terminal", Errno::EBADF, change(move |c| c.controlling_terminal(number))));
        all.push(("group", Errno::EINVAL, change(move |c| c.process_group(number))));
    }
    for mask in [0o1000, 0o7777, u32::MAX] {
        all.push(("umask", Errno::EINVAL, change(move |c| c.umask(mask))));
    }
    for (first, last) in [(4, 3), (u32::MAX, 0), (1, 0)] {
        all.push(("close_range", Errno::EINVAL, change(move |c| c.close_range(first, last))));
    }
    for (resource, soft, hard) in
        [(7, Some(2), Some(1)), (7, None, Some(1)), (16, None, None), (u32::MAX, Some(1), Some(1))]
    {
        all.push(("limit", Errno::EINVAL, change(move |c| c.limit(resource, soft, hard))));
    }
    for nice in [20, -21, i32::MAX, i32::MIN] {
        all.push(("nice", Errno::EINVAL, change(move |c| c.nice(nice))));
    }
    for (policy, priority) in
        [(0, 1), (3, -1), (5, 1), (1, 0), (1, 100), (2, -1), (4, 0), (6, 0), (7, 0), (u32::MAX, 0)]
    {
        all.push(("scheduler", Errno::EINVAL, change(move |c| c.scheduler(policy, priority))));
    }
    for cpus in [vec![], vec![usize::MAX], vec![0, 1 << 16]] {
        all.push(("affinity", Errno::EINVAL, change(move |c| c.affinity(cpus.clone()))));
    }
    for value in [1001, -1001, i32::MAX, i32::MIN] {
        all.push(("oom_score_adj", Errno::EINVAL, change(move |c| c.oom_score_adj(value))));
    }
    // setresuid would take this value as "no change".
    all.push(("uid", Errno::EINVAL, change(|c| c.uid(u32::MAX))));
    all.push(("gid", Errno::EINVAL, change(|c| c.gid(u32::MAX))));
    all.push(("groups", Errno::EINVAL, change(|c| c.groups(vec![1; (1 << 16) + 1]))));
    all.push(("effective", Errno::EINVAL, change(|c| c.capabilities(capability_sets([1, 0, 0, 0, 0])))));
    all.push(("ambient", Errno::EINVAL, change(|c| c.capabilities(capability_sets([0, 0, 0, 0, 1])))));
    let nul = OsStr::from_bytes(b"a\0b");
    all.push(("open NUL", Errno::EINVAL, change(move |c| c.open(nul, OpenHow::READ, 5))));
    all.push(("open_at NUL", Errno::EINVAL, change(move |c| c.open_at(null(), nul, OpenHow::READ, 5))));
    all.push(("chdir NUL", Errno::EINVAL, change(move |c| c.chdir(nul))));
    all.push(("chroot NUL", Errno::EINVAL, change(move |c| c.chroot(nul))));
    // No earlier action opens these descriptor numbers.
    all.push(("dup2 of nothing", Errno::EBADF, change(|c| c.dup2(7, 8))));
    all.push(("dup2 of itself", Errno::EBADF, change(|c| c.dup2(7, 7))));
    all
}

#[test]
fn bad_actions_are_refused_by_index() {
    isolated!(|| {
        assert_leaves_nothing(Launcher::Clone3, || {
            for (name, errno, add) in bad_actions() {
                for before in [0, 1, 255] {
                    let mut command = Command::new("/bin/true");
                    for _ in 0..before {
                        command.umask(0);
                    }
                    add(&mut command);
                    let error = refused(&mut command);
                    assert_eq!((error.stage(), error.errno()), (Stage::Action(before), errno), "{name}: {error}");
                    assert_eq!((error.action(), error.kind()), (Some(before), ErrorKind::Invalid), "{name}: {error}");
                    let detail = format!("action {before}: {} = -1 {}", error.call(), errno.name());
                    assert_eq!(error.detail(), detail);
                    let message = error.message();
                    let says_why = ["invalid action ", "the child has no descriptor "];
                    assert!(says_why.iter().any(|start| message.starts_with(start)), "{error}");
                }
            }
        });
    });
}

/// Returns invalid attributes and arguments. They are errors for any list of actions.
fn bad_attributes() -> Vec<(&'static str, Change)> {
    let nul = OsStr::from_bytes(b"a\0b");
    let allow = FilterInstruction { code: 0x06, jt: 0, jf: 0, k: 0x7fff_0000 };
    let mut all: Vec<(&'static str, Change)> = vec![
        ("current_dir", change(move |c| c.current_dir(nul))),
        ("no filter", change(|c| c.seccomp([]))),
        ("a long filter", change(move |c| c.seccomp(vec![allow; 4097]))),
        ("arg", change(move |c| c.arg(nul))),
        ("arg0", change(move |c| c.arg0(nul))),
        ("env value", change(move |c| c.env("A", nul))),
        ("env name", change(move |c| c.env(nul, "x"))),
        ("env empty name", change(|c| c.env("", "x"))),
        ("env =", change(|c| c.env("A=B", "x"))),
        ("environment", change(|c| c.environment(&Env::empty().set("=", "x")))),
    ];
    for signal in [0, -1, 65, i32::MAX, i32::MIN] {
        all.push(("death signal", change(move |c| c.parent_death_signal(signal))));
    }
    all
}

#[test]
fn bad_attributes_are_refused() {
    isolated!(|| {
        assert_leaves_nothing(Launcher::Clone3, || {
            for (name, add) in bad_attributes() {
                let mut command = Command::new("/bin/true");
                add(&mut command);
                let error = refused(&mut command);
                let found = (error.stage(), error.errno(), error.kind(), error.action());
                assert_eq!(found, (Stage::Validate, Errno::EINVAL, ErrorKind::Invalid, None), "{name}: {error}");
            }
            for number in [0_u8, 1] {
                let mut command = Command::new("/bin/true");
                if number == 0 {
                    command.stdin(Stdio::SameAsStdout)
                } else {
                    command.stdout(Stdio::SameAsStdout)
                };
                let error = refused(&mut command);
                assert_eq!((error.stage(), error.errno()), (Stage::Stdio(number), Errno::EINVAL));
            }
        });
        for number in [0, -1, 65, i32::MIN, i32::MAX] {
            assert_eq!(SignalSet::of(number), None);
        }
        assert_eq!(spawnfd::command::Namespaces::from_flags(libc::CLONE_NEWUSER as u32), None);
        assert_eq!(spawnfd::command::Namespaces::from_flags(libc::CLONE_VM as u32), None);
    });
}

#[test]
fn names_and_paths_are_checked() {
    isolated!(|| {
        assert_leaves_nothing(Launcher::Clone3, || {
            let nul = OsStr::from_bytes(b"/bin/true\0x");
            for path in [OsStr::new(""), OsStr::new("true"), OsStr::new("./true"), OsStr::new("../bin/true"), nul] {
                let error = Template::open(path).expect_err("refused");
                assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL), "{path:?}: {error}");
            }
            for name in [OsStr::new(""), OsStr::new("bin/true"), OsStr::new("./true"), OsStr::from_bytes(b"a\0b")] {
                let error = Template::search(name, "/bin:/usr/bin").expect_err("refused");
                assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL), "{name:?}: {error}");
                let error = TemplateCache::new(0).get(name, None).expect_err("refused");
                assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL), "{name:?}: {error}");
            }
            let error = Template::search("true", OsStr::from_bytes(b"/bin\0")).expect_err("refused");
            assert_eq!(error.errno(), Errno::EINVAL);
            for path in ["", ":", "::", ".", "no/such:./directory"] {
                let error = Template::search("true", path).expect_err("no directory to search");
                assert_eq!((error.stage(), error.errno()), (Stage::Template, Errno::ENOENT), "{path:?}");
            }
        });
    });
}

#[test]
fn errors_are_reported_in_order_of_precedence() {
    isolated!(|| {
        // The errors are added from the lowest precedence to the highest. Each is reported although
        // the previous ones remain.
        let mut command = Command::new("/bin/true");
        let expect = |command: &mut Command<'static>, stage: Stage, errno: Errno| {
            let error = refused(command);
            assert_eq!((error.stage(), error.errno()), (stage, errno), "{error}");
        };
        command.env("A=", "");
        expect(&mut command, Stage::Validate, Errno::EINVAL);
        command.arg(OsStr::from_bytes(b"\0"));
        assert!(refused(&mut command).call().contains("argv[1]"));
        command.stdin(Stdio::SameAsStdout);
        expect(&mut command, Stage::Stdio(0), Errno::EINVAL);
        command.umask(0).nice(99).umask(0o1000);
        expect(&mut command, Stage::Action(1), Errno::EINVAL);
        command.parent_death_signal(99).current_dir(OsStr::from_bytes(b"\0"));
        assert!(refused(&mut command).call().contains("parent_death_signal(99)"), "the first invalid attribute");
        for _ in 0..MAX_ACTIONS {
            command.umask(0);
        }
        expect(&mut command, Stage::Validate, Errno::E2BIG);
        assert_eq!(refused(&mut command).kind(), ErrorKind::TooMany);
        // The program has the highest precedence: without it the command cannot be validated.
        let mut command = Command::new("/nowhere/true");
        command.arg(OsStr::from_bytes(b"\0")).nice(99);
        expect(&mut command, Stage::Template, Errno::ENOENT);
    });
}

#[test]
fn invalid_commands_never_create_a_child() {
    isolated!(|| {
        // SAFETY: the handler only counts its calls.
        unsafe { libc::signal(libc::SIGCHLD, count as *const () as libc::sighandler_t) };
        common::warm_up(Launcher::Clone3);
        let warm = SIGNALS.load(Ordering::Relaxed);
        assert_ne!(warm, 0, "a child that ran a program sends SIGCHLD");
        // The filter refuses every call that creates a child, with an errno that no other call
        // returns.
        let answers = std::thread::spawn(|| {
            let calls = ["clone", "clone3", "fork", "pidfd_spawn_run"];
            spawnfd_tests::confine::deny(&calls.map(|call| (call, libc::EXDEV))).expect("confined");
            let errno = |error: Error| assert_ne!(error.errno(), Errno::EXDEV, "{error}");
            // For a thread with filters, the library keeps the thread's status file open.
            Command::new("/bin/true").refused("no clone");
            let before = Snapshot::take();
            let attributes = bad_attributes().into_iter().map(|(_, add)| add);
            for add in bad_actions().into_iter().map(|(_, _, add)| add).chain(attributes) {
                let mut command = Command::new("/bin/true");
                add(&mut command);
                errno(command.refused("refused"));
            }
            leaks::assert_unchanged(&before);
            Command::new("/bin/true").refused("no clone").errno()
        });
        assert_eq!(answers.join().expect("no panic"), Errno::EXDEV);
        assert_eq!(SIGNALS.load(Ordering::Relaxed), warm);
    });
}

#[test]
fn validate_accepts_valid_commands_and_starts_nothing() {
    isolated!(|| {
        assert_leaves_nothing(Launcher::Clone3, || {
            let mut command = Command::new("/bin/true");
            command.stdin(Stdio::Piped).stdout(Stdio::Piped).stderr(Stdio::Piped).close(i32::MAX).umask(0o777);
            command.limit(15, Some(u64::MAX), None).nice(-20).nice(19).oom_score_adj(-1000).oom_score_adj(1000);
            command.scheduler(1, 99).scheduler(2, 1).close_range(0, u32::MAX).parent_death_signal(64);
            command.validate().expect("all actions are valid");
            assert_eq!(common::children(), Vec::<i32>::new());
        });
    });
}

#[test]
fn huge_descriptor_numbers_are_refused_with_the_index_of_their_action() {
    isolated!(|| {
        assert_leaves_nothing(Launcher::Clone3, || {
            for number in [1 << 20, 1 << 24, i32::MAX - 1, i32::MAX] {
                let null = File::open("/dev/null").expect("it exists");
                let cases: [Change; 2] = [
                    change(move |c| c.umask(0).open("/dev/null", OpenHow::READ, number)),
                    change(move |c| c.umask(0).dup2(1, number)),
                ];
                for add in cases {
                    let mut command = Command::new("/bin/true");
                    add(&mut command);
                    let error = command.refused("beyond every limit");
                    assert_eq!((error.stage(), error.errno()), (Stage::Action(1), Errno::EBADF), "{number}: {error}");
                }
                let mut command = Command::new("/bin/true");
                let error = command.descriptor(&null, number).refused("beyond every limit");
                assert_eq!((error.stage(), error.errno()), (Stage::Action(0), Errno::EBADF), "{number}: {error}");
            }
        });
    });
}

#[test]
fn an_inherited_variable_without_a_name_is_passed_on() {
    isolated!(|| {
        // SAFETY: no other thread reads the environment at this time, and the string is static.
        assert_eq!(unsafe { libc::putenv(c"=x=1".as_ptr().cast_mut()) }, 0);
        let env = || Command::new("/usr/bin/env");
        for output in [env().run(), env().env("Y", "2").run(), env().environment(&Env::inherit()).run()] {
            let output = output.expect("execve accepts it");
            assert!(output.stdout_text().lines().any(|line| line == "=x=1"), "{}", output.stdout_text());
        }
        let error = env().env("=x", "2").run().expect_err("the name is empty");
        assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::EINVAL), "{error}");
    });
}

#[test]
fn debug_output_of_a_command_hides_values() {
    isolated!(|| {
        let mut command = Command::new("rg");
        command.args(["-n", "x y"]);
        assert_eq!(format!("{command:?}"), r#"Command(["rg", "-n", "x y"])"#);
        command.env("TOKEN", "secret").env_remove("TMPDIR");
        assert_eq!(format!("{command:?}"), r#"Command(["rg", "-n", "x y"], environment changed: {"TMPDIR", "TOKEN"})"#);
    });
}

#[test]
fn getters_return_what_the_caller_set() {
    isolated!(|| {
        let mut command = Command::new("rg");
        assert!(command.get_env().is_none() && command.get_current_dir().is_none());
        command.args(["-n", "x"]).envs([("A", "1"), ("B", "2")]).current_dir("/tmp");
        assert_eq!(command.get_program(), "rg");
        assert!(command.get_args().eq(["-n", "x"]));
        assert_eq!(command.get_current_dir(), Some("/tmp".as_ref()));
        let env = command.get_env().expect("set");
        assert_eq!([env.get("A"), env.get("B")], [Some("1".as_ref()), Some("2".as_ref())]);
    });
}

#[test]
fn invalid_arguments_have_the_kind_invalid() {
    isolated!(|| {
        let error = refused(Command::new("true").stdout(Stdio::SameAsStdout));
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Invalid, Stage::Stdio(1)), "{error}");
        let directory = spawnfd_tests::scratch();
        let (script, relative) = (directory.path().join("script"), directory.path().join("relative"));
        common::executable(&script, b"#!/bin/sh\n");
        common::executable(&relative, b"#!sh\n");
        let error = Template::from_descriptor(File::open(&script).expect("own file")).expect_err("a script");
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Invalid, Stage::Template), "{error}");
        let error = Template::open(&relative).expect_err("a relative interpreter");
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Invalid, Stage::Template), "{error}");
        for path in ["/dev/null", "/proc/self/status"] {
            let error = snapshot::open(path).expect_err("no regular file with a size");
            assert_eq!((error.kind(), error.stage()), (ErrorKind::Invalid, Stage::Snapshot), "{error}");
        }
    });
}

#[test]
fn closed_descriptors_are_invalid() {
    isolated!(|| {
        // SAFETY: the test only checks whether the number is open.
        let closed = unsafe { BorrowedFd::borrow_raw(999) };
        let mut stream = Command::new("true");
        stream.stdin(closed);
        let mut action = Command::new("true");
        action.umask(0).descriptor(closed, 3);
        for (command, stage) in [(stream, Stage::Stdio(0)), (action, Stage::Action(1))] {
            let error = command.check_descriptors().expect_err("no file is open at this number");
            let found = (error.kind(), error.stage(), error.errno());
            assert_eq!(found, (ErrorKind::Invalid, stage, Errno::EBADF), "{error}");
            assert_eq!(error.message(), "descriptor 999 is not open");
        }
    });
}

#[test]
fn target_at_or_above_the_hard_descriptor_limit_is_invalid() {
    isolated!(|| {
        let null = || File::open("/dev/null").expect("it exists");
        let error = refused(Command::new("true").descriptor(null(), i32::MAX));
        assert_eq!((error.kind(), error.errno(), error.action()), (ErrorKind::Invalid, Errno::EBADF, Some(0)));
        assert!(error.message().starts_with("target descriptor must be below "), "{error}");
        assert!(error.message().ends_with("got 2147483647"), "{error}");
    });
}

#[test]
fn groups_after_a_change_from_root_are_invalid() {
    isolated!(root: || {
        let none = CapabilitySets::new();
        let max = u32::MAX;
        let cases: Vec<(usize, Change)> = vec![
            (1, change(|c| c.uid(1000).gid(1000))),
            (1, change(|c| c.uid(1000).groups([1000]))),
            (1, change(|c| c.uid(1000).groups([]))),
            (2, change(|c| c.gid(1000).uid(1000).gid(1001))),
            (2, change(|c| c.gid(1000).uid(1000).group_ids(1000, 1001, 1000))),
            (2, change(move |c| c.uid(1000).capabilities(none).gid(1000))),
            (1, change(move |c| c.user_ids(max, 1000, 0).gid(1000))),
        ];
        for (index, add) in cases {
            let mut command = Command::new("/bin/true");
            add(&mut command);
            let error = refused(&mut command);
            assert_eq!((error.action(), error.errno()), (Some(index), Errno::EINVAL), "{error}");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().starts_with("the child may not change its groups after setresuid("), "{error}");
            assert!(error.message().ends_with(": put gid and groups before uid"), "{error}");
        }
    });
}

#[test]
fn changes_of_ids_that_the_kernel_permits_are_valid() {
    isolated!(root: || {
        let setgid = 1 << 6;
        let sets = capability_sets([setgid, setgid, 0, u64::MAX, 0]);
        let max = u32::MAX;
        let valid: Vec<Change> = vec![
            change(|c| c.groups([5]).gid(1000).uid(1000)),
            change(|c| c.uid(0).gid(1000)),
            change(move |c| c.user_ids(1000, max, max).gid(1000).groups([])),
            change(move |c| c.user_ids(max, 1000, 0).user_ids(max, 0, max).gid(1000)),
            change(move |c| c.gid(1000).uid(1000).gid(1000).group_ids(max, 1000, max)),
            change(move |c| c.group_ids(1000, 5, 6).uid(1000).group_ids(6, 1000, 5)),
            change(move |c| c.uid(1000).capabilities(sets).groups([5]).gid(1000)),
        ];
        for (index, add) in valid.iter().enumerate() {
            let mut command = Command::new("/bin/true");
            add(&mut command);
            let output = command.run().unwrap_or_else(|error| panic!("case {index}: {error}"));
            assert!(output.ok(), "case {index}");
        }
        // With this bit, a change of user ids keeps the capabilities: capabilities(7).
        const SECBIT_NO_SETUID_FIXUP: usize = 1 << 2;
        // SAFETY: prctl takes integers, and changes only this thread.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) }, 0);
        assert!(Command::new("/bin/true").uid(1000).gid(1000).groups([5]).run().expect("it keeps CAP_SETGID").ok());
    });
}

#[test]
fn signal_zero_is_valid_for_children_and_jobs() {
    isolated!(|| {
        let mut child = Command::new("sleep").arg("100").spawn().expect("a child");
        let job = Command::new("sleep").arg("100").start(&spawnfd::Run::default()).expect("a job");
        child.signal(0).expect("valid");
        job.signal(0, false).expect("valid");
        for signal in [-1, 65, i32::MAX] {
            let errors = [child.signal(signal), job.signal(signal, false)].map(|sent| sent.expect_err("invalid"));
            assert_eq!(errors[0], errors[1]);
            assert_eq!(errors[0].kind(), ErrorKind::Invalid);
        }
        child.kill().expect("own child");
        child.wait().expect("own child");
        job.signal(9, false).expect("valid");
        job.wait().expect("it was killed");
    });
}
