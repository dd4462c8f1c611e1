// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launcher thread: what it holds, how it fails, and what is left of it. (What its children are like is in the other suites,
//! which run through it too.)

use crate::common;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::common::thread::{falls_back, is_used, starts};
use crate::common::{Refused, code, output};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use spawnfd::{Command, Errno, LauncherThread, Stage, Stdio};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{confine, isolated, require_syscall};

/// What the launcher's thread has open, by number.
fn table() -> BTreeMap<i32, String> {
    let tasks = fs::read_dir("/proc/self/task").expect("own directory").flatten().map(|task| task.path());
    let named = |path: &std::path::PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == "spawnfd-launch")
    };
    let task = tasks.into_iter().find(named).expect("a launcher thread");
    let list = fs::read_dir(task.join("fd")).expect("own process").flatten();
    let target = |path: &Path| fs::read_link(path).expect("open").display().to_string();
    list.map(|entry| (entry.file_name().to_string_lossy().parse().expect("a number"), target(&entry.path()))).collect()
}

/// The same without the pidfd of the last child, which the thread keeps until the next start.
fn without_child(mut table: BTreeMap<i32, String>) -> BTreeMap<i32, String> {
    let is_pidfd = |(number, target): (&i32, &String)| (*number > 4 && target.contains("pidfd")).then_some(*number);
    if let Some(number) = table.iter().find_map(is_pidfd) {
        table.remove(&number);
    }
    table
}

#[test]
fn nothing_of_the_host_s_is_in_its_table() {
    isolated!(|| {
        let file = File::open("/dev/null").expect("there");
        let _many: Vec<OwnedFd> = (0..300).map(|_| file.as_fd().try_clone_to_owned().expect("a copy")).collect();
        let launcher = LauncherThread::new().expect("a launcher thread");
        let is_its_own = || {
            let table = without_child(table());
            assert_eq!(table.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4], "{table:?}");
            assert!(table.range(0..3).all(|(_, target)| target == "anon_inode:[eventfd]"), "{table:?}");
            assert!(table[&3].starts_with("socket:") && table[&4].contains("pidfd"), "{table:?}");
        };
        is_its_own();
        for round in 0..20 {
            let mut command = Command::new("/bin/cat");
            let text = output(command.launcher(&launcher).stdin(&file).descriptor(&file, 77).stderr(Stdio::Null));
            assert_eq!(text, "");
            assert_eq!(launcher.stats().spawned, round + 1);
            is_its_own();
        }
        let error = Command::new("/bin/true").launcher(&launcher).chdir("/nowhere").refused("no such directory");
        assert_eq!((error.stage(), error.errno()), (Stage::Action(0), Errno::ENOENT));
        is_its_own();
    });
}

#[test]
fn nothing_is_left_of_it() {
    isolated!(|| {
        let threads = Snapshot::take().threads;
        let launcher = LauncherThread::new().expect("a launcher thread");
        starts(&launcher);
        // The process-wide cache keeps a template.
        common::wait_success(Command::new("/bin/cat").launcher(&launcher).stdin(Stdio::Null).spawn().expect("starts"));
        drop(launcher);
        common::eventually("a joined thread stays listed for a moment", || Snapshot::take().threads == threads);
        let before = Snapshot::take();
        for _ in 0..20 {
            let launcher = LauncherThread::new().expect("a launcher thread");
            starts(&launcher);
            let mut command = Command::new("/bin/cat");
            let mut child =
                command.launcher(&launcher).stdin(Stdio::Piped).stdout(Stdio::Null).spawn().expect("starts");
            // The command holds it, too.
            drop(launcher);
            common::wait_success(command.stdin(Stdio::Null).spawn().expect("starts"));
            drop(command);
            // Its children stay.
            assert_eq!(child.try_wait().expect("own child"), None);
            assert!(child.wait().expect("own child").success());
        }
        leaks::assert_unchanged(&before);
    });
}

#[test]
fn one_that_cannot_begin_leaves_no_child() {
    isolated!(|| {
        confine::deny(&[("gettid", libc::EPERM)]).expect("confined");
        let error = LauncherThread::new().expect_err("it does not know its number");
        assert_eq!(error.errno(), Errno::EPERM, "{error}");
        assert_eq!(common::children(), Vec::<i32>::new());
    });
}

#[test]
fn a_killed_owner_takes_it_along() {
    isolated!(|| {
        // SAFETY: integers; orphans come to this process.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
        let (mut ready, tell) = common::pipe();
        // SAFETY: the copy uses the library, as a host that forks may, and is killed.
        let owner = unsafe { libc::fork() };
        if owner == 0 {
            let launcher = LauncherThread::new();
            let ok = launcher
                .as_ref()
                .is_ok_and(|launcher| code(Command::new("/bin/true").launcher(launcher).spawn()) == Ok(0));
            let marker = common::children();
            let told = std::io::Write::write_all(&mut &tell, format!("{ok} {marker:?}\n").as_bytes());
            // SAFETY: waits for the end.
            unsafe { if told.is_ok() { libc::pause() } else { 0 } };
        }
        drop(tell);
        let mut text = [0; 64];
        let length = std::io::Read::read(&mut ready, &mut text).expect("own pipe");
        let text = String::from_utf8_lossy(&text[..length]).into_owned();
        let marker: i32 =
            text.strip_prefix("true [").and_then(|rest| rest.strip_suffix("]\n")).expect(&text).parse().expect(&text);
        assert!(Path::new(&format!("/proc/{marker}")).exists());
        // SAFETY: own child.
        unsafe { libc::kill(owner, libc::SIGKILL) };
        let mut ended = Vec::new();
        for _ in 0..2 {
            // SAFETY: stores nothing. An orphan is an ordinary child, whatever its exit signal was.
            ended.push(unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) });
        }
        ended.sort_unstable();
        assert_eq!(ended, [owner.min(marker), owner.max(marker)]);
        assert!(!Path::new(&format!("/proc/{marker}")).exists());
        assert_eq!(common::children(), Vec::<i32>::new());
    });
}

#[test]
fn a_copy_of_the_host_does_without() {
    isolated!(|| {
        let launcher = LauncherThread::new().expect("a launcher thread");
        is_used(&launcher);
        for dropped in [false, true] {
            let mut copied = Some(launcher.clone());
            // SAFETY: the copy uses the library, as a host that forks may, and leaves by _exit.
            let copy = unsafe { libc::fork() };
            if copy == 0 {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let launcher = copied.take().expect("a clone");
                    falls_back(&launcher, "fork");
                    let own = LauncherThread::new().expect("one of its own");
                    is_used(&own);
                    if dropped {
                        drop(launcher);
                    }
                    is_used(&own);
                }));
                // SAFETY: ends the copy without running what belongs to the original.
                unsafe { libc::_exit(i32::from(outcome.is_err())) };
            }
            let mut status = 0;
            // SAFETY: stores an int; own child.
            assert_eq!(unsafe { libc::waitpid(copy, &raw mut status, 0) }, copy);
            assert_eq!(status, 0, "the copy");
            is_used(&launcher);
        }
    });
}

#[test]
fn its_number_is_taken_away() {
    isolated!(|| {
        let (before, file) = (Snapshot::take(), File::open("/etc/passwd").expect("there"));
        let launcher = LauncherThread::new().expect("a launcher thread");
        let number = *Snapshot::take()
            .fds
            .keys()
            .find(|number| !before.fds.contains_key(number) && is_socket(**number))
            .expect("a socket");
        let theirs = common::at_number(&file, number);
        falls_back(&launcher, "socket");
        drop(launcher);
        assert_eq!(fs::read_link(format!("/proc/self/fd/{number}")).expect("still open"), Path::new("/etc/passwd"));
        drop(theirs);
    });
}

fn is_socket(number: i32) -> bool {
    fs::read_link(format!("/proc/self/fd/{number}"))
        .is_ok_and(|target| target.display().to_string().starts_with("socket:"))
}

#[test]
fn the_marker_is_waited_for_by_somebody() {
    isolated!(|| {
        let launcher = LauncherThread::new().expect("a launcher thread");
        let marker = common::children();
        // SAFETY: stores nothing. Nobody sees it who does not ask for all.
        assert_eq!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) }, -1);
        is_used(&launcher);
        // SAFETY: stores nothing.
        let found = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
        assert_eq!([found], marker[..]);
        falls_back(&launcher, "marker");
    });
}

#[test]
fn without_close_range() {
    isolated!(|| {
        if !require_syscall("unshare") {
            return;
        }
        confine::deny(&[("close_range", libc::EPERM)]).expect("confined");
        let _low: Vec<File> = (0..40).map(|_| File::open("/dev/null").expect("there")).collect();
        let launcher = LauncherThread::new().expect("a launcher thread");
        for _ in 0..3 {
            is_used(&launcher);
            assert_eq!(without_child(table()).keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        }
    });
}

#[test]
fn where_there_is_no_table_of_its_own() {
    isolated!(|| {
        confine::deny(&[("close_range", libc::ENOSYS), ("unshare", libc::EPERM)]).expect("confined");
        // What the library keeps for a thread appears at first use.
        LauncherThread::new().expect_err("no table");
        let before = Snapshot::take();
        let error = LauncherThread::new().expect_err("no table");
        assert_eq!((error.stage(), error.errno()), (Stage::Clone, Errno::EPERM));
        assert_eq!(error.call(), "launcher thread: unshare(CLONE_FILES)");
        leaks::assert_unchanged(&before);
    });
}

#[test]
fn no_number_is_left_for_the_pidfd() {
    isolated!(|| {
        let launcher = LauncherThread::new().expect("a launcher thread");
        let mut command = Command::new("/bin/true");
        command.launcher(&launcher);
        common::wait_success(command.spawn().expect("starts"));
        let before = common::children();
        let file = File::open("/dev/null").expect("there");
        let mut all: Vec<File> = std::iter::from_fn(|| file.try_clone().ok()).collect();
        let error = command.refused("no number");
        assert_eq!((error.stage(), error.errno()), (Stage::Clone, Errno::EMFILE), "{error}");
        all.truncate(all.len() - 1);
        let _ = command.spawn().map(common::wait_success);
        all.truncate(all.len() - 20);
        common::wait_success(command.spawn().expect("starts"));
        assert_eq!(common::children(), before);
    });
}

#[test]
fn a_child_whose_pidfd_the_caller_lacks_is_killed_by_pidfd() {
    isolated!(limit: Duration::from_secs(30), || {
        // The thread has its end of the socket at 3. The caller receives nothing, and nobody can send a signal to a pid.
        let _low: Vec<File> = (0..4).map(|_| File::open("/dev/null").expect("there")).collect();
        let is_callers = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 3).expect("a condition");
        let rules = [(libc::SYS_recvmsg, vec![SeccompRule::new(vec![is_callers]).expect("a rule")])];
        let refused = SeccompAction::Errno(libc::EMFILE as u32);
        let architecture = std::env::consts::ARCH.try_into().expect("a known one");
        let filter = SeccompFilter::new(rules.into(), SeccompAction::Allow, refused, architecture).expect("a filter");
        let filter: BpfProgram = filter.try_into().expect("compiles");
        seccompiler::apply_filter(&filter).expect("confined");
        confine::deny(&[("kill", libc::EPERM)]).expect("confined");
        let launcher = LauncherThread::new().expect("a launcher thread");
        let before = common::children();
        let error = Command::new("/bin/sleep").arg("1000").launcher(&launcher).refused("no pidfd");
        assert_eq!((error.stage(), error.errno()), (Stage::Clone, Errno::EMFILE), "{error}");
        assert_eq!(launcher.stats().fell_back, BTreeMap::new());
        assert_eq!(common::children(), before);
        assert_eq!(table().keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    });
}

#[test]
fn callers_take_turns() {
    isolated!(|| {
        common::alone(|| {
            let launcher = &LauncherThread::new().expect("a launcher thread");
            std::thread::scope(|scope| {
                for thread in 0..8 {
                    scope.spawn(move || {
                        for round in 0..common::rounds(200) {
                            let text = format!("{thread} {round}");
                            let mut command = Command::new("/bin/echo");
                            assert_eq!(output(command.arg(&text).launcher(launcher).stdin(Stdio::Null)), text + "\n");
                        }
                    });
                }
            });
            let stats = launcher.stats();
            assert_eq!((stats.spawned, stats.fell_back.len()), (8 * common::rounds(200) as u64, 0), "{stats:?}");
        })
    });
}
