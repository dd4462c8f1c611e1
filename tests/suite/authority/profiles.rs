// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts and runs under the seccomp profiles of containers and services. A profile refuses a
//! system call with an errno, or kills the process. In both cases the library works or falls back
//! to other calls.

use std::fs::File;
use std::path::Path;

use spawnfd::{Command, Run};
use spawnfd_tests::confine::{Answer, Profile};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::isolated;

use crate::c::Interface;
use crate::common::code;
use crate::common::tree::become_subreaper;
use crate::fuzz::STARTS;
use crate::services::assert_served;

/// Starts a program in each way, with a descriptor to pass. Then runs a program with input and
/// output.
fn starts_and_runs(who: &str) {
    let null = File::open("/dev/null").expect("it exists");
    for start in STARTS {
        // The second start uses what the library has learned from the first.
        for _ in 0..2 {
            let Some(mut command) = start.command(Path::new("/bin/true")) else { continue };
            assert_eq!(code(command.descriptor(&null, 7).spawn()), Ok(0), "{who}: {start:?}");
        }
    }
    for interface in Interface::ALL {
        for _ in 0..2 {
            let pid = interface.start(c"/bin/true", &[c"true".to_owned()]);
            let pid = pid.unwrap_or_else(|errno| panic!("{who}: {interface:?}: errno {errno}"));
            wait_for(pid);
        }
    }
    let output = Command::new("/bin/cat").run_with(&Run::new().input("text"));
    assert_eq!(output.unwrap_or_else(|error| panic!("{who}: {error}")).stdout, b"text", "{who}");
}

fn under(profile: Profile, answer: Answer) {
    become_subreaper();
    let who = format!("{profile:?}, {answer:?}");
    // First a forked process confines all its threads. Then a process confines one of two threads:
    // the one that uses the library first, or the one that uses it second.
    wait_for(fork(|| {
        profile.install(answer).expect("installed");
        starts_and_runs(&who);
        assert_served(&who);
        std::thread::scope(|scope| scope.spawn(|| starts_and_runs(&who)).join().expect("the thread's assertions hold"));
        crate::fuzz::forget();
    }));
    for first in [true, false] {
        wait_for(fork(|| {
            if !first {
                starts_and_runs("the other thread, before");
                assert_served("the other thread, before");
            }
            std::thread::scope(|scope| {
                let body = || {
                    profile.install(answer).expect("installed");
                    starts_and_runs(&who);
                    assert_served(&who);
                };
                scope.spawn(body).join().expect("the thread's assertions hold");
            });
            starts_and_runs("the other thread, after");
            assert_served("the other thread, after");
            crate::fuzz::forget();
        }));
    }
}

macro_rules! tests {
    ($($name:ident $profile:ident $answer:ident;)*) => {$(
        #[test]
        fn $name() {
            isolated!(|| under(Profile::$profile, Answer::$answer));
        }
    )*};
}

tests! {
    docker_refuses Docker Errno;
    docker_kills Docker Kill;
    podman_refuses Podman Errno;
    podman_kills Podman Kill;
    system_service_refuses SystemService Errno;
    system_service_kills SystemService Kill;
    flatpak_refuses Flatpak Errno;
    flatpak_kills Flatpak Kill;
}
