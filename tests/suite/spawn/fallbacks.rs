// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls that are absent or refused, either from the first spawn on, or only after the
//! library has learned that they work.

use crate::common;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use crate::common::{Refused, code, executable, exits_with, state};
use spawnfd::command::OpenHow;
use spawnfd::error::Errno;
use spawnfd::limits::{Enforce, Limits};
use spawnfd::tree::TreeControl;
use spawnfd::{Command, Env, Run, Stdio, Template, snapshot};
use spawnfd_tests::leaks::Snapshot;
use spawnfd_tests::{State, confine, isolated, program, require_root, scratch};

/// Spawns in many ways. Each spawn must work as if no call were refused.
fn assert_spawns_work() {
    let null = File::open("/dev/null").expect("it exists");
    let oracle = Template::open(program("spawnfd-oracle")).expect("a template");
    for _ in 0..2 {
        let mut command = oracle.command();
        let child = state(command.stdin(&null).stderr(Stdio::Null).descriptor(&null, 10).close_range(20, 30));
        assert_eq!(child.fds.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 10]);
        assert_eq!(child.signal_mask.known(), Some(&vec![]));
        let mut command = oracle.command();
        let child = state(command.open("/dev/zero", OpenHow::READ, 7).group_ids(u32::MAX, u32::MAX, u32::MAX));
        assert_eq!(child.fds.keys().copied().filter(|number| *number > 2).collect::<Vec<_>>(), [7]);
        let error = oracle.command().chdir("/nowhere").refused("no such place");
        assert_eq!((error.action(), error.errno()), (Some(0), Errno::ENOENT));
        let error = oracle.command().current_dir("/nowhere").refused("no such place");
        assert_eq!(error.errno(), Errno::ENOENT);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = Template::search("true", &path).expect("found");
    assert_eq!(code(found.command().spawn()), Ok(0));
    let run = Run::new().input(vec![b'x'; 200_000]).marker(None);
    let output = Command::new("/bin/cat").environment(&Env::empty()).run_with(&run).expect("runs");
    assert_eq!((output.stdout.len() as u64 + output.omitted_bytes, output.ok()), (200_000, true));
    if !can_start_threads() {
        return;
    }
    let mut cat = Command::new("/bin/cat").stdin(Stdio::Piped).spawn().expect("starts");
    let stdin = cat.stdin.take();
    drop(cat);
    // A helper of the run above may still be ending.
    common::eventually("only cat is left", || common::children().len() == 1);
    drop(stdin);
    while !common::children().is_empty() {
        std::thread::yield_now();
    }
}

/// glibc cannot create threads if clone3 fails with an errno other than ENOSYS.
fn can_start_threads() -> bool {
    std::thread::Builder::new().spawn(|| ()).is_ok_and(|thread| thread.join().is_ok())
}

/// Refuses calls in a process with many foreign descriptors, and then spawns. If `afterwards`, the
/// process also spawns before the refusal.
fn assert_spawns_work_without(calls: &[(&str, i32)], afterwards: bool) {
    let null = File::open("/dev/null").expect("it exists");
    let _foreign = [30, 31, 200, 1000].map(|number| common::at_number(&null, number));
    if afterwards {
        assert_spawns_work();
    }
    confine::deny(calls).expect("confined");
    assert_spawns_work();
    // The library keeps nothing yet for this other thread.
    if can_start_threads() {
        std::thread::spawn(assert_spawns_work).join().expect("the thread's assertions hold");
    }
    assert_eq!(common::children(), Vec::<i32>::new());
}

macro_rules! fallbacks {
    ($($name:ident: [$(($call:literal, $errno:ident)),*];)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn before_first_use() {
                isolated!(|| {
                    assert_spawns_work_without(&[$(($call, libc::$errno)),*], false);
                });
            }

            #[test]
            fn after_use() {
                isolated!(|| assert_spawns_work_without(&[$(($call, libc::$errno)),*], true));
            }
        }
    )*};
}

fallbacks! {
    clone3_absent: [("clone3", ENOSYS)];
    clone3_refused: [("clone3", EPERM)];
    close_range_absent: [("close_range", ENOSYS)];
    close_range_refused: [("close_range", EPERM)];
    pidfd_getfd_absent: [("pidfd_getfd", ENOSYS)];
    pidfd_getfd_refused: [("pidfd_getfd", EPERM)];
    pidfd_open_absent: [("pidfd_open", ENOSYS)];
    pidfd_open_refused: [("pidfd_open", EPERM)];
    openat2_absent: [("openat2", ENOSYS)];
    openat2_refused: [("openat2", EPERM)];
    faccessat2_absent: [("faccessat2", ENOSYS)];
    faccessat2_refused: [("faccessat2", EPERM)];
    statx_absent: [("statx", ENOSYS)];
    socketpair_refused: [("socketpair", EPERM)];
    no_descriptor_passing: [("socketpair", EPERM), ("pidfd_getfd", EPERM)];
    sendmsg_refused: [("sendmsg", EPERM), ("pidfd_getfd", EPERM)];
    recvmsg_refused: [("recvmsg", EPERM), ("pidfd_getfd", EPERM)];
    prlimit64_refused: [("prlimit64", EPERM)];
    uname_refused: [("uname", EPERM)];
    clone3_and_close_range: [("clone3", ENOSYS), ("close_range", ENOSYS)];
    all_new_calls: [("clone3", ENOSYS), ("close_range", EPERM), ("openat2", ENOSYS), ("faccessat2", ENOSYS),
        ("pidfd_getfd", EPERM), ("pidfd_open", ENOSYS), ("unshare", EPERM), ("kcmp", EPERM), ("execveat", ENOSYS)];
}

/// EPERM is the answer of a seccomp profile that does not know statx. std relies on the errno of
/// statx, so the test uses no function of std that calls it.
#[test]
fn statx_refused() {
    isolated!(|| {
        let found = Template::search("true", "/usr/bin:/bin").expect("found");
        confine::deny(&[("statx", libc::EPERM)]).expect("confined");
        for template in [found, Template::search("true", "/usr/bin:/bin").expect("found")] {
            assert_eq!(code(template.command().spawn()), Ok(0));
            template.revalidate().expect("the same file");
        }
        let error = Template::search("spawnfd-nothing", "/usr/bin:/bin").expect_err("not there");
        assert_eq!(error.errno(), Errno::ENOENT, "{error}");
        assert_eq!(Command::new("cat").run_with(&Run::new().input("x")).expect("runs").stdout, b"x");
    });
}

/// Without prlimit64, a run with limits fails, and a run without limits works.
#[test]
fn rlimits_need_prlimit64() {
    isolated!(|| {
        confine::deny(&[("prlimit64", libc::EPERM)]).expect("confined");
        let job = Command::new("true").start(&Run::new()).expect("starts");
        assert!(job.wait().expect("a job result").ok());
        let limits = Limits::new().cpu_time(Duration::from_secs(60)).enforce(Enforce::BestEffort);
        let outcome = Command::new("true").run_with(&Run::new().tree(TreeControl::Guard).limits(limits));
        assert_eq!(outcome.map(|output| output.ok()).map_err(|error| error.errno()), Err(Errno::EPERM));
        let _ = snapshot::open("/bin/true").expect("a snapshot does not query the file size limit");
    });
}

/// The first child has no sources (descriptors to pass), so it calls no recvmsg. Its success must
/// not make the library rely on recvmsg.
#[test]
fn recvmsg_refused_after_a_child_without_sources() {
    isolated!(|| {
        confine::deny(&[("recvmsg", libc::ENOSYS)]).expect("confined");
        for _ in 0..2 {
            let mut command = Command::new("/bin/true");
            command.stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null).wait_for_exec(false);
            common::wait_success(command.spawn().expect("starts"));
            let job = Command::new("/bin/echo").arg("x").start(&Run::new()).expect("starts");
            assert_eq!(job.wait().expect("another strategy works").stdout, b"x\n");
        }
    });
}

#[test]
fn spawns_work_under_dockers_profile_before_first_use() {
    isolated!(|| {
        confine::docker().expect("confined");
        assert_spawns_work();
    });
}

#[test]
fn spawns_work_under_dockers_profile_after_use() {
    isolated!(|| {
        assert_spawns_work();
        // Docker's profile also drops capabilities, so the library must record its templates again.
        std::thread::spawn(|| {
            confine::docker().expect("confined");
            assert_spawns_work();
        })
        .join()
        .expect("the thread's assertions hold");
        assert_spawns_work();
    });
}

#[test]
fn resolve_flags_need_openat2() {
    isolated!(|| {
        const RESOLVE_NO_SYMLINKS: u64 = 4;
        let how = OpenHow::READ.resolve(RESOLVE_NO_SYMLINKS);
        let spawn = |path: &str| code(Command::new("/bin/true").open(path, how, 5).spawn());
        assert_eq!(spawn("/dev/null"), Ok(0));
        assert_eq!(spawn("/proc/self/exe").expect_err("a symbolic link").errno(), Errno::ELOOP);
        confine::deny(&[("openat2", libc::ENOSYS)]).expect("confined");
        let error = spawn("/dev/null").expect_err("no fallback");
        assert_eq!((error.action(), error.errno()), (Some(0), Errno::ENOSYS));
    });
}

#[test]
fn a_template_by_descriptor_needs_execveat() {
    isolated!(|| {
        let template = Template::open("/bin/true").expect("a template").by_descriptor().expect("no script");
        assert_eq!(code(template.command().spawn()), Ok(0));
        let before = Snapshot::take();
        let denied = template.clone();
        std::thread::spawn(move || {
            confine::deny(&[("execveat", libc::ENOSYS)]).expect("confined");
            let error = denied.command().refused("execveat is refused");
            assert_eq!((error.stage(), error.errno()), (spawnfd::error::Stage::Exec, Errno::ENOSYS), "{error}");
        })
        .join()
        .expect("the thread's assertions hold");
        common::assert_unchanged_except_sockets(&before);
    });
}

#[test]
fn snapshots_need_memfd_create_or_shared_extents() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("program");
        executable(&path, exits_with(5));
        let taken = snapshot::take(File::open(&path).expect("own file")).expect("a snapshot");
        let template = Template::from_descriptor(&taken).expect("a template");
        assert_eq!(code(template.command().spawn()), Ok(5));
        std::thread::spawn(move || {
            confine::deny(&[("memfd_create", libc::EPERM), ("ioctl", libc::ENOTTY)]).expect("confined");
            let error = snapshot::take(File::open(&path).expect("own file")).map(drop).expect_err("no memfd");
            assert_eq!((error.stage(), error.errno()), (spawnfd::error::Stage::Snapshot, Errno::EPERM), "{error}");
        })
        .join()
        .expect("the thread's assertions hold");
    });
}

#[test]
fn snapshots_need_executable_memfds_or_shared_extents() {
    isolated!(|| {
        let directory = scratch();
        let path = directory.path().join("program");
        executable(&path, exits_with(5));
        common::deny_executable_memory();
        confine::deny(&[("ioctl", libc::ENOTTY)]).expect("confined");
        let error = snapshot::take(File::open(&path).expect("own file")).map(drop).expect_err("not executable");
        let found = (error.stage(), error.errno(), error.call());
        assert_eq!(found, (spawnfd::error::Stage::Snapshot, Errno::EACCES, "memfd_create()"), "{error}");
    });
}

#[test]
fn spawns_work_with_a_time_namespace_for_children() {
    isolated!(|| {
        // SAFETY: unshare takes an integer. Before Linux 6.3, this thread's later children cannot
        // share its memory.
        if unsafe { libc::unshare(0x80) } != 0 {
            return spawnfd_tests::skip("needs CAP_SYS_ADMIN");
        }
        for _ in 0..2 {
            assert_eq!(code(Command::new("/bin/true").spawn()), Ok(0));
            let command = || Command::new("/bin/true");
            common::wait_success(command().wait_for_exec(false).spawn().expect("starts"));
        }
        assert_eq!(Command::new("/bin/true").chdir("/nowhere").refused("no such directory").action(), Some(0));
    });
}

#[test]
fn a_cgroup_is_joined_without_clone3() {
    isolated!(|| {
        let own = common::Cgroup::new();
        let Ok(dir) = File::open(own.as_ref().map_or(Path::new("/sys/fs/cgroup"), |group| &group.0)) else {
            return spawnfd_tests::skip("no cgroup v2");
        };
        let oracle = Template::open(program("spawnfd-oracle")).expect("a template");
        // Returns the cgroup that the program sees, or the error if no cgroup can be joined here.
        let answer = || {
            let mut command = oracle.command();
            let mut child = command.stdin(Stdio::Null).stdout(Stdio::Piped).cgroup(&dir).spawn()?;
            let json = std::io::read_to_string(child.stdout.take().expect("piped")).expect("own pipe");
            common::wait_success(child);
            Ok(State::from_json(json.as_bytes()).cgroup.known().expect("the kernel answers").clone())
        };
        let stage = |answer: &spawnfd::Result<Vec<String>>| answer.as_ref().err().map(spawnfd::Error::stage);
        let before = answer();
        if let Some(group) = &own {
            let name = group.0.file_name().expect("a name").to_string_lossy();
            assert!(before.as_ref().is_ok_and(|lines| lines.iter().any(|line| line.ends_with(&*name))), "{before:?}");
        }
        confine::deny(&[("clone3", libc::ENOSYS)]).expect("confined");
        for _ in 0..2 {
            let now = answer();
            assert_eq!((now.as_ref().ok(), stage(&now)), (before.as_ref().ok(), stage(&before)));
            assert_ne!(now.as_ref().err().map(spawnfd::Error::errno), Some(Errno::ENOSYS), "{now:?}");
        }
    });
}

/// Starts a program that waits for its input. Asserts that the program has no copy of the pipe's
/// write end: the reader must get end of file.
fn assert_nothing_foreign_inherited(template: &Template) -> spawnfd::Result<()> {
    let (mut reader, writer) = common::pipe();
    let foreign = [30, 31, 200, 1000].map(|number| common::at_number(&writer, number));
    let mut command = template.command();
    let outcome = command.stdin(Stdio::Piped).stdout(Stdio::Null).spawn();
    drop((foreign, writer));
    let mut child = outcome?;
    assert_eq!(reader.read(&mut [0]).expect("own pipe"), 0);
    drop(child.stdin.take());
    common::wait_success(child);
    Ok(())
}

/// Without close_range, the child sets close-on-exec on each number that /proc/self/fd lists.
/// Without /proc, it tries all numbers.
#[test]
fn no_foreign_descriptor_is_inherited_without_proc() {
    isolated!(|| {
        let template = Template::open("/bin/cat").expect("a template");
        if !require_root() || !common::mount_noexec(Path::new("/proc")) {
            return;
        }
        assert!(!Path::new("/proc/self").exists());
        assert_nothing_foreign_inherited(&template).expect("starts");
        confine::deny(&[("close_range", libc::ENOSYS)]).expect("confined");
        for _ in 0..2 {
            assert_nothing_foreign_inherited(&template).expect("starts");
        }
    });
}

/// The list in /proc exists but cannot be read. The spawn may work or fail; in neither case may the
/// child inherit a foreign descriptor.
#[test]
fn no_foreign_descriptor_is_inherited_without_getdents64() {
    isolated!(|| {
        let template = Template::open("/bin/cat").expect("a template");
        confine::deny(&[("close_range", libc::ENOSYS), ("getdents64", libc::ENOSYS)]).expect("confined");
        for _ in 0..2 {
            if let Err(error) = assert_nothing_foreign_inherited(&template) {
                assert_eq!(
                    (error.stage(), error.errno()),
                    (spawnfd::error::Stage::Descriptors, Errno::ENOSYS),
                    "{error}"
                );
            }
        }
    });
}
