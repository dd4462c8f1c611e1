// SPDX-License-Identifier: MIT OR Apache-2.0
//! Under the seccomp profiles that containers and services have, answering with an errno or killing, everything works or falls back.

use std::fs::File;
use std::path::Path;

use spawnfd::{Command, Run};
use spawnfd_tests::confine::{Answer, Profile};
use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::isolated;

use crate::common::code;
use crate::common::tree::adopt_orphans;
use crate::fuzz::STARTS;
use crate::services::is_served;

/// Starts in each way, with a descriptor to bring along, and a run with input and output.
fn starts_and_runs(who: &str) {
    let null = File::open("/dev/null").expect("there");
    for start in STARTS {
        // The second start knows what the first has learned.
        for _ in 0..2 {
            let Some(mut command) = start.command(Path::new("/bin/true")) else { continue };
            assert_eq!(code(command.descriptor(&null, 7).spawn()), Ok(0), "{who}: {start:?}");
        }
    }
    let output = Command::new("/bin/cat").run_with(&Run::new().input("text"));
    assert_eq!(output.unwrap_or_else(|error| panic!("{who}: {error}")).stdout, b"text", "{who}");
}

fn under(profile: Profile, answer: Answer) {
    adopt_orphans();
    let who = format!("{profile:?}, {answer:?}");
    // The whole process; one thread of it, before and after another that is free.
    wait_for(fork(|| {
        profile.install(answer).expect("installed");
        starts_and_runs(&who);
        is_served(&who);
        std::thread::scope(|scope| scope.spawn(|| starts_and_runs(&who)).join().expect("its assertions hold"));
        crate::fuzz::forget();
    }));
    for first in [true, false] {
        wait_for(fork(|| {
            if !first {
                starts_and_runs("the other thread, before");
                is_served("the other thread, before");
            }
            std::thread::scope(|scope| {
                let body = || {
                    profile.install(answer).expect("installed");
                    starts_and_runs(&who);
                    is_served(&who);
                };
                scope.spawn(body).join().expect("its assertions hold");
            });
            starts_and_runs("the other thread, after");
            is_served("the other thread, after");
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
