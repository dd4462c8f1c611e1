// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seccomp filters, and kernels without newer system calls.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use libc::{AT_FDCWD, EPERM, O_CLOEXEC, O_RDONLY, SIGURG};
use spawnfd_capi::template::*;
use spawnfd_sys::call::{FilterInstruction, prctl, set_seccomp_filter};

use crate::support::*;

const KILL_PROCESS: u32 = 0x8000_0000;
const RETURN_ERRNO: u32 = 0x0005_0000;
const ALLOW: u32 = 0x7fff_0000;

/// The calls of the implementation that have a fallback.
const REPLACEABLE: [libc::c_long; 9] = [
    libc::SYS_clone3,
    libc::SYS_close_range,
    libc::SYS_openat2,
    libc::SYS_execveat,
    libc::SYS_statx,
    libc::SYS_faccessat2,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_pidfd_open,
];

/// Runs `body` in a thread whose filter answers `action` to each of these calls.
fn filtered(calls: &[libc::c_long], action: u32, body: impl FnOnce() + Send) {
    let instruction = |code, jt, jf, k| FilterInstruction { code, jt, jf, k };
    let (load, jump_if_equal, answer) = (0x20, 0x15, 0x06);
    let mut program = vec![instruction(load, 0, 0, 0)];
    for &call in calls {
        program.extend([instruction(jump_if_equal, 0, 1, call as u32), instruction(answer, 0, 0, action)]);
    }
    program.push(instruction(answer, 0, 0, ALLOW));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            prctl(libc::PR_SET_NO_NEW_PRIVS as u32, 1, 0).unwrap();
            set_seccomp_filter(&program).unwrap();
            body();
        });
    });
}

/// Spawns with every kind of action, in threads whose filter answers `action` to each of these calls.
fn check_spawns(calls: &[libc::c_long], action: u32) {
    // Only the threads' own calls are filtered, so create the file here.
    let scratch = Scratch::new();
    let script = scratch.file("script", "#!/bin/sh\necho script\n");
    filtered(calls, action, || spawns_work(&script));
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
        check_spawns(&[call], RETURN_ERRNO | libc::ENOSYS as u32);
    }
    check_spawns(&REPLACEABLE, RETURN_ERRNO | libc::ENOSYS as u32);
}

#[test]
fn spawns_work_if_a_filter_refuses_newer_calls() {
    check_spawns(&REPLACEABLE, RETURN_ERRNO | EPERM as u32);
}

#[test]
fn a_filter_that_kills_does_not_kill_the_caller() {
    check_spawns(&REPLACEABLE, KILL_PROCESS);
}

#[test]
fn a_filter_that_kills_for_memfd_create_is_reported() {
    filtered(&[libc::SYS_memfd_create], KILL_PROCESS, || {
        assert_eq!(of_path("/bin/sh").unwrap_err(), EPERM);
    });
}
