// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seccomp filters, and kernels without newer system calls.

use libc::{ENOSYS, SIGURG};
use spawnfd_tests::confine;

use super::*;

/// The calls of the implementation that have a fallback.
const REPLACEABLE: [&str; 9] =
    ["clone3", "close_range", "openat2", "execveat", "statx", "faccessat2", "setfsuid", "setfsgid", "pidfd_open"];

/// Runs `body` in a thread in which these calls fail with this errno, or kill the process.
fn filtered(calls: &[&str], errno: Option<i32>, body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            match errno {
                Some(errno) => confine::deny(&calls.iter().map(|call| (*call, errno)).collect::<Vec<_>>()),
                None => confine::kill(calls),
            }
            .expect("confined");
            body();
        });
    });
}

/// Spawns with every kind of action, in threads with this filter.
fn check_spawns(calls: &[&str], errno: Option<i32>) {
    // Only the threads' own calls are filtered, so create the file here.
    let scratch = Scratch::new();
    let script = scratch.file("script", "#!/bin/sh\necho script\n");
    filtered(calls, errno, || spawns_work(&script));
}

fn spawns_work(script: &Path) {
    extern "C" fn handler(_: i32) {}

    let script = of_path(script).unwrap();
    let template = shell();
    let (null, root) = (dev_null(), File::open("/").unwrap());
    // SAFETY: the handler does nothing. No other test uses this signal.
    unsafe { libc::signal(SIGURG, handler as extern "C" fn(i32) as usize) };
    let request = || {
        Request::script("pwd; for fd in 440 441 442; do [ -e /proc/$$/fd/$fd ] && echo $fd; done; :")
            .dup2(null.as_raw_fd(), 440, 0)
            .open(AT_FDCWD, "/dev/null", 441, O_RDONLY)
            .open(AT_FDCWD, "/dev/null", 442, O_CLOEXEC)
            .fchdir(root.as_raw_fd())
            .signals(SPAWN_TEMPLATE_ACTION_SIGMASK, &[SIGURG])
            .signals(SPAWN_TEMPLATE_ACTION_SIGDEFAULT, &[SIGURG])
    };
    assert_eq!(request().output(&template), "/\n");
    assert_eq!(request().inherit().output(&template), "/\n440\n441\n");
    assert_eq!(request().inherit().close_range(440, 440, 0).output(&template), "/\n441\n");
    assert_eq!(request().inherit().close_range(441, 445, 4).output(&template), "/\n440\n");
    assert_eq!(Request::new(&["script"]).output(&script), "script\n");
    assert_eq!(Request::script("exit 5").close_range(3, -1, 0).status(&template), Ok(5));
    assert_eq!(Request::script("").close(99_999).status(&template), Ok(1));
    let by_descriptor = create(&descriptor_args(&File::open("/bin/sh").unwrap())).unwrap();
    assert_eq!(Request::script("exit 6").status(&by_descriptor), Ok(6));
}

#[test]
fn spawns_work_without_newer_calls() {
    for call in REPLACEABLE {
        check_spawns(&[call], Some(ENOSYS));
    }
    check_spawns(&REPLACEABLE, Some(ENOSYS));
}

#[test]
fn spawns_work_if_a_filter_refuses_newer_calls() {
    check_spawns(&REPLACEABLE, Some(EPERM));
}

#[test]
fn a_filter_that_kills_does_not_kill_the_caller() {
    check_spawns(&REPLACEABLE, None);
}

#[test]
fn a_filter_that_kills_for_memfd_create_is_reported() {
    filtered(&["memfd_create"], None, || {
        assert_eq!(of_path("/bin/sh").unwrap_err(), EPERM);
    });
}
