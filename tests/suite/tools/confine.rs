// SPDX-License-Identifier: MIT OR Apache-2.0
//! The helpers that confine a thread. Docker's profile answers as Docker does, the helpers can
//! refuse a single call, and other threads are unaffected.

use std::thread;

use spawnfd_tests::confine::{self, Confinement, Error};
use spawnfd_tests::{Answer, Errno, State, has_syscall, isolated, require_syscall};

/// Runs `body` in a thread of its own, which `body` may confine.
fn in_thread<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    thread::spawn(body).join().expect("the thread's assertions hold")
}

/// Makes a raw system call. Returns its errno, or 0 if the call succeeds.
fn errno(number: libc::c_long, arguments: [usize; 3]) -> i32 {
    // SAFETY: the callers pass integers, and null for pointers.
    let result = unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) };
    if result == -1 { std::io::Error::last_os_error().raw_os_error().unwrap_or(-1) } else { 0 }
}

#[test]
fn docker_answers_as_docker_does() {
    isolated!(|| {
        if !(require_syscall("close_range") && require_syscall("pidfd_open")) {
            return;
        }
        in_thread(|| {
            confine::docker().expect("confined");
            assert_eq!(errno(libc::SYS_clone3, [0, 0, 0]), libc::ENOSYS);
            assert_eq!(errno(libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0]), libc::EPERM);
            assert_eq!(errno(libc::SYS_io_uring_setup, [0, 0, 0]), libc::EPERM);
            assert_eq!(errno(libc::SYS_kcmp, [0, 0, 0]), libc::EPERM);
            assert_eq!(errno(libc::SYS_setns, [usize::MAX, 0, 0]), libc::EPERM);
            assert_eq!(errno(libc::SYS_mount, [0, 0, 0]), libc::EPERM);
            assert_eq!(errno(libc::SYS_bpf, [0, 0, 0]), libc::EPERM);
            assert_eq!(errno(libc::SYS_pidfd_getfd, [usize::MAX, 0, 0]), libc::EPERM);
            // Calls that Docker allows reach the kernel.
            assert_eq!(errno(libc::SYS_close_range, [1, 0, 0]), libc::EINVAL);
            assert_eq!(errno(libc::SYS_pidfd_open, [std::process::id() as usize, 0xffff, 0]), libc::EINVAL);
            assert_eq!(errno(libc::SYS_socket, [libc::AF_UNIX as usize, libc::SOCK_STREAM as usize, 0]), 0);
            assert_eq!(errno(libc::SYS_socket, [libc::AF_VSOCK as usize, libc::SOCK_STREAM as usize, 0]), libc::EPERM);
            assert_eq!(errno(libc::SYS_personality, [0xffff_ffff, 0, 0]), 0);
            let no_randomisation = libc::ADDR_NO_RANDOMIZE as usize;
            assert_eq!(errno(libc::SYS_personality, [no_randomisation, 0, 0]), libc::EPERM);
            // On x86-64 and aarch64 the flags are clone's first argument. If they contain a
            // namespace flag, the filter refuses the call before the kernel checks anything.
            let new_user = (libc::CLONE_NEWUSER | libc::SIGCHLD) as usize;
            assert_eq!(errno(libc::SYS_clone, [new_user, 0, 0]), libc::EPERM);
            assert!(thread::spawn(|| ()).join().is_ok(), "clone without namespaces works");
            assert!(!has_syscall("clone3") && !has_syscall("unshare") && has_syscall("close_range"));
        });
    });
}

#[test]
fn close_range_unshares_where_unshare_may_not() {
    isolated!(|| {
        if !require_syscall("close_range") {
            return;
        }
        in_thread(|| {
            confine::docker().expect("confined");
            let unshare = libc::CLOSE_RANGE_UNSHARE as usize;
            assert_eq!(errno(libc::SYS_close_range, [1 << 20, 1 << 21, unshare]), 0);
        });
    });
}

#[test]
fn confinement_stays_with_its_thread() {
    isolated!(|| {
        let before = State::of_self();
        let inside = in_thread(|| {
            confine::docker().expect("confined");
            State::of_self()
        });
        let after = State::of_self();
        // Other tests in this process open descriptors and start threads and children at the same
        // time.
        State::assert_same(&before, &after, &["fds", "threads", "children", "mappings"]);
        assert_eq!(inside.seccomp, Answer::Known("filter".to_owned()));
        let lines = State::diff(&before, &inside, &[]);
        assert!(lines.iter().any(|line| line.starts_with("seccomp_filters: ")), "{lines:#?}");
    });
}

#[test]
fn single_calls_are_refused() {
    isolated!(|| {
        in_thread(|| {
            confine::deny(&[("clone3", libc::ENOSYS), ("close_range", libc::EPERM)]).expect("confined");
            assert_eq!(errno(libc::SYS_clone3, [0, 0, 0]), libc::ENOSYS);
            assert_eq!(errno(libc::SYS_close_range, [1, 0, 0]), libc::EPERM);
            // If two refusals concern the same call, the later one takes precedence.
            confine::deny(&[("close_range", libc::ENOSYS)]).expect("confined again");
            assert_eq!(errno(libc::SYS_close_range, [1, 0, 0]), libc::ENOSYS);
            assert_eq!(errno(libc::SYS_getpid, [0, 0, 0]), 0);
        });
    });
}

#[test]
fn a_refusal_comes_before_dockers_answer() {
    isolated!(|| {
        in_thread(|| {
            let confinement = Confinement::default().docker().deny("clone3", Errno::EPERM).expect("a known call");
            confinement.deny("close_range", Errno::ENOSYS).expect("a known call").apply().expect("confined");
            assert_eq!(errno(libc::SYS_clone3, [0, 0, 0]), libc::EPERM);
            assert_eq!(errno(libc::SYS_close_range, [1, 0, 0]), libc::ENOSYS);
            assert_eq!(errno(libc::SYS_unshare, [0, 0, 0]), libc::EPERM);
        });
    });
}

#[test]
fn unknown_names_are_errors() {
    isolated!(|| {
        assert!(
            matches!(confine::deny(&[("nonsense", libc::EPERM)]), Err(Error::UnknownSyscall(name)) if name == "nonsense")
        );
        assert!(matches!(confine::errno("EWHAT"), Err(Error::UnknownErrno(_))));
        assert_eq!(confine::errno("ENOSYS").ok(), Some(Errno::ENOSYS));
        assert_eq!(confine::errno("38").ok(), Some(Errno::ENOSYS));
    });
}
