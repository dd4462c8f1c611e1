// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each seccomp profile allows and refuses the same calls as its original. A refusal is an errno or
//! SIGSYS.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use libc::*;
use spawnfd_tests::confine::{Answer, Profile};
use spawnfd_tests::{copy, isolated};

const ANSWERS: [Answer; 2] = [Answer::Errno, Answer::Kill];

/// A value that is invalid as a descriptor, as flags and as a number.
const BAD: usize = usize::MAX;

/// The number of a system call that no kernel has.
const NEWER: c_long = 500;

/// The number of a system call, and its arguments. With them the call fails, or changes only the
/// calling process.
type Call = (c_long, [usize; 5]);

/// Calls that every profile lets through to the kernel.
const ORDINARY: [Call; 14] = [
    (SYS_getpid, [0; 5]),
    (SYS_capget, [0; 5]),
    (SYS_capset, [0; 5]),
    (SYS_clone, [CLONE_SIGHAND as usize, 0, 0, 0, 0]), // EINVAL: needs CLONE_VM.
    (SYS_close_range, [1, 0, 0, 0, 0]),
    (SYS_execveat, [BAD, 0, 0, 0, BAD]),
    (SYS_landlock_create_ruleset, [0, 0, 1, 0, 0]),
    (SYS_openat2, [BAD, 0, 0, 0, 0]),
    (SYS_personality, [0; 5]),
    (SYS_pidfd_open, [0, BAD, 0, 0, 0]),
    (SYS_pidfd_send_signal, [BAD, 0, 0, BAD, 0]),
    (SYS_prlimit64, [0, BAD, 0, 0, 0]),
    (SYS_socket, [AF_UNIX as usize, SOCK_STREAM as usize, 0, 0, 0]),
    (SYS_statx, [BAD, 0, 0, 0, 0]),
];

const NEW_USER: [usize; 5] = [(CLONE_NEWUSER | CLONE_SIGHAND) as usize, 0, 0, 0, 0];
const NEW_PID: [usize; 5] = [(CLONE_NEWPID | CLONE_SIGHAND) as usize, 0, 0, 0, 0];
const NO_RANDOMISATION: [usize; 5] = [ADDR_NO_RANDOMIZE as usize, 0, 0, 0, 0];
const QUERY: [usize; 5] = [0xffff_ffff, 0, 0, 0, 0];
const AUDIT: [usize; 5] = [AF_NETLINK as usize, SOCK_RAW as usize, NETLINK_AUDIT as usize, 0, 0];

const fn family(number: c_int) -> [usize; 5] {
    [number as usize, SOCK_STREAM as usize, 0, 0, 0]
}

/// Forks a child that confines itself, makes the call, and exits with the call's errno, or 0.
/// Returns the child's wait status.
fn status_of(confinement: Option<(Profile, Answer)>, (number, arguments): Call) -> ExitStatus {
    let child = copy::fork(|| {
        // SAFETY: prctl takes integers. A process that is not dumpable dumps no core on SIGSYS.
        assert_eq!(unsafe { prctl(PR_SET_DUMPABLE, 0) }, 0);
        if let Some((profile, answer)) = confinement {
            profile.install(answer).expect("installed");
        }
        let [a, b, c, d, e] = arguments;
        // SAFETY: no argument is a valid pointer. Each call fails, or changes only this child.
        let result = unsafe { syscall(number, a, b, c, d, e) };
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(255);
        // SAFETY: _exit ends the child without running destructors.
        unsafe { _exit(if result == -1 { errno } else { 0 }) };
    });
    wait_for(child)
}

fn wait_for(child: i32) -> ExitStatus {
    let mut status = 0;
    // SAFETY: waitpid stores an int, and the child belongs to this test.
    while unsafe { waitpid(child, &raw mut status, 0) } != child {}
    ExitStatus::from_raw(status)
}

/// Checks that the kernel answers allowed calls as without a profile, and that the filter answers
/// the other calls.
fn check(profile: Profile, allowed: &[Call], refused: &[(Call, c_int)], unknown: &[Call]) {
    for &call in ORDINARY.iter().chain(allowed) {
        let expected = status_of(None, call);
        assert_eq!(expected.signal(), None, "{call:?} without a profile");
        for answer in ANSWERS {
            assert_eq!(status_of(Some((profile, answer)), call), expected, "{call:?}, {answer:?}");
        }
    }
    for &(call, errno) in refused {
        assert_eq!(status_of(Some((profile, Answer::Errno)), call).code(), Some(errno), "{call:?}");
        assert_eq!(status_of(Some((profile, Answer::Kill)), call).signal(), Some(SIGSYS), "{call:?}");
    }
    for &call in unknown {
        for answer in ANSWERS {
            assert_eq!(status_of(Some((profile, answer)), call).code(), Some(ENOSYS), "{call:?}, {answer:?}");
        }
    }
}

#[test]
fn docker_profile_answers_as_docker_does() {
    isolated!(|| {
        let allowed = [
            (SYS_memfd_create, [0, BAD, 0, 0, 0]),
            (SYS_personality, QUERY),
            (SYS_prctl, [BAD, 0, 0, 0, 0]),
            (SYS_process_vm_readv, [0; 5]),
            (SYS_sched_setattr, [0; 5]),
            (SYS_seccomp, [BAD, 0, 0, 0, 0]),
            (SYS_socket, family(39)), // AF_NFC
            (SYS_socket, AUDIT),
        ];
        let refused = [
            ((SYS_clone, NEW_USER), EPERM),
            ((SYS_clone, NEW_PID), EPERM),
            ((SYS_io_uring_setup, [0; 5]), EPERM),
            ((SYS_kcmp, [0, 0, BAD, 0, 0]), EPERM),
            ((SYS_keyctl, [BAD, 0, 0, 0, 0]), EPERM),
            ((SYS_mount, [0; 5]), EPERM),
            ((SYS_personality, NO_RANDOMISATION), EPERM),
            ((SYS_pidfd_getfd, [BAD, 0, 0, 0, 0]), EPERM),
            ((SYS_setns, [BAD, 0, 0, 0, 0]), EPERM),
            ((SYS_socket, family(AF_ALG)), EPERM),
            ((SYS_socket, family(AF_VSOCK)), EPERM),
            ((SYS_unshare, [0; 5]), EPERM),
        ];
        check(Profile::Docker, &allowed, &refused, &[(SYS_clone3, [0; 5]), (NEWER, [0; 5])]);
    });
}

#[test]
fn podman_profile_answers_as_podman_does() {
    isolated!(|| {
        let allowed = [
            (SYS_clone3, [0; 5]),
            (SYS_clone, NEW_USER),
            (SYS_keyctl, [BAD, 0, 0, 0, 0]),
            (SYS_personality, QUERY),
            (SYS_pidfd_getfd, [BAD, 0, 0, 0, 0]),
            (SYS_process_vm_readv, [0; 5]),
            (SYS_setns, [BAD, 0, 0, 0, 0]),
            (SYS_socket, family(AF_ALG)),
            (SYS_socket, [AF_NETLINK as usize, SOCK_RAW as usize, 0, 0, 0]),
            (SYS_unshare, [0; 5]),
        ];
        let refused = [
            ((SYS_bpf, [BAD, 0, 0, 0, 0]), EPERM),
            ((SYS_io_uring_setup, [0; 5]), ENOSYS),
            ((SYS_kcmp, [0, 0, BAD, 0, 0]), EPERM),
            ((SYS_personality, NO_RANDOMISATION), ENOSYS),
            ((SYS_socket, family(AF_VSOCK)), EPERM),
            ((SYS_socket, AUDIT), EINVAL),
            ((SYS_userfaultfd, [BAD, 0, 0, 0, 0]), EPERM),
            ((NEWER, [0; 5]), ENOSYS),
        ];
        check(Profile::Podman, &allowed, &refused, &[]);
    });
}

#[test]
fn system_service_profile_answers_as_systemd_does() {
    isolated!(|| {
        let allowed = [
            (SYS_clone3, [0; 5]),
            (SYS_clone, NEW_USER),
            (SYS_io_uring_setup, [0; 5]),
            (SYS_kcmp, [0, 0, BAD, 0, 0]),
            (SYS_keyctl, [BAD, 0, 0, 0, 0]),
            (SYS_personality, NO_RANDOMISATION),
            (SYS_process_vm_readv, [0; 5]),
            (SYS_setns, [BAD, 0, 0, 0, 0]),
            (SYS_socket, family(AF_VSOCK)),
            (SYS_unshare, [0; 5]),
        ];
        let refused = [
            ((SYS_bpf, [BAD, 0, 0, 0, 0]), EPERM),
            ((SYS_mount, [0; 5]), EPERM),
            ((SYS_pidfd_getfd, [BAD, 0, 0, 0, 0]), EPERM),
            ((SYS_pivot_root, [0; 5]), EPERM),
            ((SYS_ptrace, [BAD, 0, 0, 0, 0]), EPERM),
        ];
        // 467 is open_tree_attr, which is newer than the profile.
        check(Profile::SystemService, &allowed, &refused, &[(467, [BAD, 0, 0, 0, 0]), (NEWER, [0; 5])]);
    });
}

#[test]
fn flatpak_profile_answers_as_flatpak_does() {
    isolated!(|| {
        let allowed = [
            (SYS_bpf, [BAD, 0, 0, 0, 0]),
            (SYS_clone, NEW_PID),
            (SYS_ioctl, [BAD, TCGETS as usize, 0, 0, 0]),
            (SYS_io_uring_setup, [0; 5]),
            (SYS_kcmp, [0, 0, BAD, 0, 0]),
            (SYS_pidfd_getfd, [BAD, 0, 0, 0, 0]),
            (SYS_process_vm_readv, [0; 5]),
            (SYS_socket, family(AF_INET6)),
            (SYS_socket, AUDIT),
            (NEWER, [0; 5]),
        ];
        let refused = [
            ((SYS_clone, NEW_USER), EPERM),
            ((SYS_fsopen, [0; 5]), ENOSYS),
            ((SYS_ioctl, [BAD, TIOCSTI as usize, 0, 0, 0]), EPERM),
            ((SYS_ioctl, [BAD, TIOCSTI as usize | 1 << 32, 0, 0, 0]), EPERM),
            ((SYS_ioctl, [BAD, 0x541c, 0, 0, 0]), EPERM), // TIOCLINUX
            ((SYS_keyctl, [BAD, 0, 0, 0, 0]), EPERM),
            ((SYS_mount, [0; 5]), EPERM),
            ((SYS_personality, [8, 0, 0, 0, 0]), EPERM),
            ((SYS_ptrace, [BAD, 0, 0, 0, 0]), EPERM),
            ((SYS_setns, [BAD, 0, 0, 0, 0]), EPERM),
            ((SYS_socket, family(AF_APPLETALK)), EAFNOSUPPORT),
            ((SYS_socket, family(AF_BLUETOOTH)), EAFNOSUPPORT),
            ((SYS_socket, family(AF_VSOCK)), EAFNOSUPPORT),
            ((SYS_unshare, [0; 5]), EPERM),
        ];
        check(Profile::Flatpak, &allowed, &refused, &[(SYS_clone3, [0; 5])]);
    });
}

#[test]
fn programs_run_under_each_profile() {
    isolated!(|| {
        for profile in Profile::ALL {
            for answer in ANSWERS {
                let child = copy::fork(|| {
                    let mut command = Command::new("sh");
                    command.args(["-c", "ls / >/dev/null"]);
                    profile.install(answer).expect("installed");
                    panic!("{}", command.exec());
                });
                assert_eq!(wait_for(child).code(), Some(0), "{profile:?}, {answer:?}");
            }
        }
    });
}

#[test]
fn install_sets_no_new_privs() {
    isolated!(|| {
        for profile in Profile::ALL {
            let child = copy::fork(|| {
                profile.install(Answer::Kill).expect("installed");
                // SAFETY: prctl takes integers and changes nothing.
                assert_eq!(unsafe { prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) }, 1);
            });
            copy::wait_for(child);
        }
    });
}

#[cfg(target_arch = "x86_64")]
#[test]
fn x32_calls_kill() {
    isolated!(|| {
        for profile in Profile::ALL {
            for answer in ANSWERS {
                let status = status_of(Some((profile, answer)), (0x4000_0000 | SYS_getpid, [0; 5]));
                assert_eq!(status.signal(), Some(SIGSYS), "{profile:?}, {answer:?}");
            }
        }
    });
}
