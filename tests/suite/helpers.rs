// SPDX-License-Identifier: MIT OR Apache-2.0
//! The helpers notice what they are for: leaks, hangs, failures in another process, skips.

use std::fs::File;
use std::panic::catch_unwind;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{State, deadline, has_syscall, isolated, isolated_within, require_syscall, scratch, skip};

/// Runs one test of this file in a process of its own; answers its status and all its output.
fn run_again(test: &str, variables: &[(&str, &str)]) -> (std::process::ExitStatus, String) {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the test binary starts");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status, text)
}

#[test]
fn leaks_are_found() {
    isolated("leaks_are_found", || {
        let before = Snapshot::take();
        leaks::assert_same(&before, &Snapshot::take());

        let file = File::open("/dev/null").expect("there");
        let temporary = std::env::temp_dir().join("left");
        File::create(&temporary).expect("own directory");
        let mut child = Command::new("true").spawn().expect("starts");
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: stores one `siginfo_t`; WNOWAIT leaves the child to be waited for below.
        unsafe { libc::waitid(libc::P_PID, child.id(), info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) };
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || stopped.recv());

        let lines = Snapshot::diff(&before, &Snapshot::take());
        let found = |start: &str| lines.iter().any(|line| line.starts_with(start));
        assert!(found("fd 3 leaked: "), "{lines:#?}");
        assert!(found("child left: Child { pid: ") && lines.concat().contains("zombie: true"), "{lines:#?}");
        assert!(found("thread left: "), "{lines:#?}");
        assert!(found("temporary file left: \"left\""), "{lines:#?}");
        assert!(found("waitid finds an ended child: false -> true"), "{lines:#?}");
        assert_eq!(lines.len(), 5, "{lines:#?}");

        drop((file, stop));
        child.wait().expect("own child");
        thread.join().expect("ends").ok();
        std::fs::remove_file(temporary).expect("own file");
        leaks::assert_unchanged(&before);
    });
}

#[test]
fn a_changed_descriptor_is_found() {
    isolated("a_changed_descriptor_is_found", || {
        let file = File::open("/dev/null").expect("there");
        let before = Snapshot::take();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: own descriptor; FD_CLOEXEC is cleared.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        let lines = Snapshot::diff(&before, &Snapshot::take());
        assert!(lines.len() == 1 && lines[0].starts_with("fd 3 changed: "), "{lines:?}");
    });
}

#[test]
fn an_isolated_test_is_alone() {
    isolated("an_isolated_test_is_alone", || {
        let state = State::of_self();
        assert_eq!(state.threads.known(), Some(&2), "libtest's main thread and this one");
        assert_eq!(state.fds.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(state.pgid, state.pid);
        assert_eq!(Snapshot::take().temporary.len(), 0);
    });
}

#[test]
#[ignore = "fails on purpose; run by isolated_failures_are_shown"]
fn fails_in_isolation() {
    isolated("fails_in_isolation", || {
        println!("said before");
        panic!("the reason");
    });
}

#[test]
fn isolated_failures_are_shown() {
    let (status, text) = run_again("fails_in_isolation", &[]);
    assert!(!status.success());
    assert!(text.contains("fails_in_isolation failed in its own process"), "{text}");
    assert!(text.contains("said before") && text.contains("the reason"), "{text}");
}

#[test]
#[ignore = "hangs on purpose; run by isolated_tests_have_a_limit"]
fn hangs_in_isolation() {
    isolated_within(Duration::from_millis(300), "hangs_in_isolation", || {
        // A grandchild that keeps the output open must not matter.
        Command::new("sleep").arg("100").spawn().and_then(|mut child| child.wait()).ok();
    });
}

#[test]
fn isolated_tests_have_a_limit() {
    let start = Instant::now();
    let (status, text) = run_again("hangs_in_isolation", &[]);
    assert!(!status.success());
    assert!(text.contains("hangs_in_isolation: still running after 300ms, killed"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_wrong_name_is_an_error() {
    let panic = catch_unwind(|| isolated("no_such_test", || ())).expect_err("must fail");
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.starts_with("no test is named \"no_such_test\""), "{message}");
}

#[test]
#[ignore = "hangs on purpose; run by a_deadline_ends_the_process"]
fn misses_its_deadline() {
    deadline(Duration::from_millis(200), || std::thread::sleep(Duration::from_secs(100)));
}

#[test]
fn a_deadline_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let (status, text) = run_again("misses_its_deadline", &[]);
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{text}");
    assert!(text.contains("misses_its_deadline: still running after 200ms, its deadline; aborting"), "{text}");
}

#[test]
fn a_deadline_that_is_kept_leaves_nothing() {
    isolated("a_deadline_that_is_kept_leaves_nothing", || {
        let before = Snapshot::take();
        assert_eq!(deadline(Duration::from_secs(60), || 7), 7);
        assert!(catch_unwind(|| deadline(Duration::from_secs(60), || panic!("passed on"))).is_err());
        leaks::assert_unchanged(&before);
    });
}

#[test]
#[ignore = "skips itself; run by skips_are_gathered"]
fn is_skipped() {
    skip("plainly");
    isolated("is_skipped", || skip("in\nisolation"));
}

#[test]
fn skips_are_gathered() {
    let directory = scratch();
    let file = directory.path().join("skips");
    let (status, text) = run_again("is_skipped", &[("SPAWNFD_SKIPS", file.to_str().expect("text"))]);
    assert!(status.success(), "{text}");
    let lines = std::fs::read_to_string(&file).expect("gathered");
    // The first again in the isolated process, which runs the test from its beginning.
    let first = "SKIP is_skipped plainly\n";
    assert_eq!(lines, format!("{first}{first}SKIP is_skipped in isolation\n"));
    assert!(text.contains("SKIP is_skipped plainly") && text.contains("SKIP is_skipped in isolation"), "{text}");
}

#[test]
fn system_calls_are_probed() {
    assert!(has_syscall("memfd_create"));
    if !require_syscall("pidfd_open") {
        return;
    }
    let probed = std::thread::spawn(|| {
        spawnfd_tests::confine::deny(&[("pidfd_open", libc::ENOSYS)]).expect("confined");
        has_syscall("pidfd_open")
    });
    assert!(!probed.join().expect("ends"));
    assert!(catch_unwind(|| has_syscall("reboot")).is_err());
}
