// SPDX-License-Identifier: MIT OR Apache-2.0
//! The helpers of the tests detect leaks, hangs, failures in another process, and skipped tests.

use std::fs::File;
use std::panic::catch_unwind;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{Confined, State, deadline, has_syscall, isolated, require_syscall, scratch, skip};

/// Runs one test of `on_purpose` in its own process. Returns the exit status, and standard output
/// with standard error.
fn run_again(test: &str, variables: &[(&str, &str)]) -> (std::process::ExitStatus, String) {
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", &format!("helpers::on_purpose::{test}"), "--include-ignored", "--nocapture"])
        .env_remove("SPAWNFD_AS_IS")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("the test binary starts");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status, text)
}

#[test]
fn leaks_are_found() {
    isolated!(|| {
        let before = Snapshot::take();
        leaks::assert_same(&before, &Snapshot::take());

        let file = File::open("/dev/null").expect("it exists");
        let temporary = std::env::temp_dir().join("left");
        File::create(&temporary).expect("own directory");
        let mut child = Command::new("true").spawn().expect("starts");
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: waitid stores one siginfo_t. WNOWAIT leaves the child to the `wait` below.
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
        thread.join().expect("no panic").ok();
        std::fs::remove_file(temporary).expect("own file");
        leaks::assert_unchanged(&before);
    });
}

#[test]
fn a_changed_descriptor_is_found() {
    isolated!(|| {
        let file = File::open("/dev/null").expect("it exists");
        let before = Snapshot::take();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: fcntl takes a descriptor of this test, and clears FD_CLOEXEC.
        unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
        let lines = Snapshot::diff(&before, &Snapshot::take());
        assert!(lines.len() == 1 && lines[0].starts_with("fd 3 changed: "), "{lines:?}");
    });
}

#[test]
fn an_isolated_test_has_a_clean_process() {
    isolated!(|| {
        let state = State::of_self();
        assert_eq!(state.threads.known(), Some(&2), "libtest's main thread and this one");
        assert_eq!(state.fds.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(state.pgid, state.pid);
        assert_eq!(Snapshot::take().temporary.len(), 0);
    });
}

/// Tests that fail, hang or skip on purpose. The tests after this module run them, one at a time.
mod on_purpose {
    use super::*;

    /// Returns the argument of `sleep`, by which the caller of the test finds the process.
    fn seconds() -> String {
        std::env::var("SECONDS").unwrap_or_else(|_| "100000".to_owned())
    }

    #[test]
    #[ignore = "fails on purpose"]
    fn fails() {
        isolated!(|| {
            println!("said before");
            panic!("the reason");
        });
    }

    #[test]
    #[ignore = "hangs on purpose"]
    fn hangs() {
        isolated!(limit: Duration::from_secs(1), || {
            // The process runs in its own session and keeps the test's output open.
            Command::new("setsid").args(["sleep", &seconds()]).spawn().and_then(|mut child| child.wait()).ok();
        });
    }

    #[test]
    #[ignore = "leaves a process behind on purpose"]
    fn leaves_a_process() {
        isolated!(|| {
            Command::new("setsid").args(["--fork", "sleep", &seconds()]).status().expect("starts");
        });
    }

    #[test]
    #[ignore = "run with signals ignored"]
    fn shows_its_signals() {
        isolated!(|| {
            let state = State::of_self();
            let ignored = state.dispositions.iter().filter(|(_, how)| how.known().is_some_and(|how| how == "ignore"));
            // The Rust runtime of this process ignores SIGPIPE.
            assert_eq!(ignored.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["SIGPIPE"]);
            assert_eq!(state.signal_mask.known(), Some(&Vec::new()));
        });
    }

    #[test]
    #[ignore = "misses its deadline on purpose"]
    fn exceeds_its_deadline() {
        deadline(Duration::from_millis(200), || std::thread::sleep(Duration::from_secs(100)));
    }

    #[test]
    #[ignore = "skips itself"]
    fn is_skipped() {
        skip("plainly");
    }

    #[test]
    #[ignore = "skips itself"]
    fn is_skipped_in_isolation() {
        isolated!(under: Confined::User, || skip("for a\nreason"));
    }
}

/// Returns whether a process with these arguments exists.
fn runs(arguments: &str) -> bool {
    let is_it = |entry: std::fs::DirEntry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").trim_end() == arguments
    };
    std::fs::read_dir("/proc").expect("/proc").flatten().any(is_it)
}

#[test]
fn isolated_failures_are_shown() {
    let (status, text) = run_again("fails", &[]);
    assert!(!status.success());
    assert!(text.contains("helpers::on_purpose::fails failed"), "{text}");
    assert!(text.contains("said before") && text.contains("the reason"), "{text}");
}

#[test]
fn a_time_limit_covers_all_descendants() {
    let start = Instant::now();
    let seconds = (1_000_000 + std::process::id()).to_string();
    let (status, text) = run_again("hangs", &[("SECONDS", &seconds), ("SPAWNFD_SLOWNESS", "1")]);
    assert!(!status.success());
    assert!(text.contains("helpers::on_purpose::hangs: still running after 1s, killed: pid "), "{text}");
    assert!(start.elapsed() < Duration::from_secs(60));
    assert!(!runs(&format!("sleep {seconds}")));
}

#[test]
fn a_process_left_behind_is_killed_and_named() {
    let seconds = (2_000_000 + std::process::id()).to_string();
    let (status, text) = run_again("leaves_a_process", &[("SECONDS", &seconds)]);
    assert!(!status.success());
    assert!(
        text.contains("left behind after exit status: 0: pid ") && text.contains(&format!("(sleep {seconds}, ")),
        "{text}"
    );
    assert!(!runs(&format!("sleep {seconds}")));
}

#[test]
fn ignored_and_blocked_signals_are_not_inherited() {
    let test = std::env::current_exe().expect("this test");
    // nohup, and shells without job control, start their commands with such ignored signals.
    let output = Command::new("env")
        .args(["--ignore-signal=HUP,INT,QUIT", "--block-signal=TERM,USR1"])
        .arg(test)
        .args(["--exact", "helpers::on_purpose::shows_its_signals", "--include-ignored"])
        .output()
        .expect("starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_deadline_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let (status, text) = run_again("exceeds_its_deadline", &[]);
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{text}");
    assert!(
        text.contains("helpers::on_purpose::exceeds_its_deadline: still running after 200ms, its deadline; aborting"),
        "{text}"
    );
}

#[test]
fn a_deadline_that_is_met_leaves_nothing() {
    isolated!(|| {
        let before = Snapshot::take();
        assert_eq!(deadline(Duration::from_secs(60), || 7), 7);
        assert!(catch_unwind(|| deadline(Duration::from_secs(60), || panic!("passed on"))).is_err());
        leaks::assert_unchanged(&before);
    });
}

#[test]
fn skips_are_gathered() {
    let directory = scratch();
    let file = directory.path().join("skips");
    let label = if spawnfd_tests::is_root() { "[user] " } else { "" };
    let mut expected = String::new();
    for (test, line) in
        [("is_skipped", "is_skipped plainly"), ("is_skipped_in_isolation", "is_skipped_in_isolation for a reason")]
    {
        let (status, text) = run_again(test, &[("SPAWNFD_SKIPS", file.to_str().expect("text"))]);
        assert!(status.success(), "{text}");
        let label = if test.ends_with("isolation") { label } else { "" };
        let line = format!("SKIP {label}helpers::on_purpose::{line}\n");
        assert!(text.contains(&line), "{text}");
        expected.push_str(&line);
    }
    assert_eq!(std::fs::read_to_string(&file).expect("gathered"), expected);
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
    assert!(!probed.join().expect("no panic"));
    assert!(catch_unwind(|| has_syscall("reboot")).is_err());
}
