// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program from a warm start (by a parked process) has the same authority as from a cold start. Exec can change
//! capabilities, so a parked process may have other capabilities than the thread that parked it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use crate::common::{code, state};
use spawnfd::warm::{Mode, Park, WarmOptions};
use spawnfd::{Command, Stdio, Template, Warm};
use spawnfd_tests::confine::Confinement;
use spawnfd_tests::{isolated, program, scratch};

/// Every kind of warm start: the mode, and whether the parked processes can execute any program (`add_any`).
const KINDS: [(Mode, bool); 4] =
    [(Mode::Reserve, false), (Mode::Fork, false), (Mode::Reserve, true), (Mode::Fork, true)];

/// Drops all capabilities of the calling thread but one. The thread stays root, so an exec adds capabilities.
fn keep_only_kill() {
    Confinement::default().capabilities(&["kill"]).apply().expect("confined");
}

/// Makes the calling thread run as an ordinary user with one capability. An exec drops the capability.
fn become_user_with_nice() {
    Confinement::default().user(54_321, 54_321).capabilities(&["sys_nice"]).apply().expect("confined");
}

/// A `Warm` whose processes the calling thread has parked: for any program if `any`, else one for each program.
fn warm(mode: Mode, any: bool, programs: &[&Path]) -> Warm {
    let warm = Warm::new(WarmOptions::new().mode(mode)).expect("a Warm");
    if any {
        warm.add_any(1, None).expect("a keeper");
    } else {
        for path in programs {
            let template = Template::open(path).expect("a template");
            warm.add_template(&template, Park::new().depth(1)).expect("a keeper");
        }
    }
    warm.fill(Duration::from_secs(60));
    warm
}

/// Runs `compare` in a thread confined by `confine`: with processes that were parked before the confinement, and with
/// processes that the confined thread has parked.
fn in_confined_thread(programs: &[&Path], confine: fn(), compare: impl Fn(&Warm) + Sync) {
    for (mode, any) in KINDS {
        let earlier = warm(mode, any, programs);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                confine();
                let later = warm(mode, any, programs);
                for warm in [&earlier, &later] {
                    // `compare` runs twice, because a new process may be parked after the first start.
                    for _ in 0..2 {
                        compare(warm);
                        warm.fill(Duration::from_secs(60));
                    }
                }
            });
            thread.join().expect("the thread's assertions hold");
        });
    }
}

#[test]
fn exec_does_not_restore_dropped_capabilities() {
    isolated!(root: || {
        let directory = scratch();
        let secret = directory.path().join("secret");
        fs::write(&secret, "secret").expect("own directory");
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("own file");
        std::os::unix::fs::chown(&secret, Some(54_321), Some(54_321)).expect("privileged");
        let oracle = program("spawnfd-oracle");
        let programs = [Path::new("/bin/cat"), &oracle];
        in_confined_thread(&programs, keep_only_kill, |warm| {
            // Without no_new_privs, a cold child of root regains all capabilities of the bounding set at exec. With
            // no_new_privs it does not.
            for restricted in [true, false] {
                let command = |path: &Path| {
                    let mut command = Template::open(path).expect("a template").command();
                    command.stdin(Stdio::Null).stderr(Stdio::Null);
                    if restricted {
                        command.no_new_privs();
                    }
                    command
                };
                let cold = state(&mut command(&oracle));
                let warmed = state(command(&oracle).warm(warm));
                assert_eq!(warmed.authority(), cold.authority(), "{:?}", warm.stats());
                let read = code(command(Path::new("/bin/cat")).arg(&secret).stdout(Stdio::Null).warm(warm).spawn());
                assert_eq!(read, Ok(i32::from(restricted)), "{:?}", warm.stats());
            }
        });
    });
}

#[test]
fn actions_have_the_callers_capabilities() {
    isolated!(root: || {
        let nice = |warm: Option<&Warm>| {
            let mut command = Template::open("/bin/true").expect("a template").command();
            command.nice(-5);
            if let Some(warm) = warm {
                command.warm(warm);
            }
            code(command.spawn())
        };
        if nice(None) != Ok(0) {
            return spawnfd_tests::skip("needs CAP_SYS_NICE");
        }
        let same = |warm: &Warm| assert_eq!(nice(Some(warm)), nice(None), "{:?}", warm.stats());
        let programs = [Path::new("/bin/true")];
        // This thread has fewer capabilities than an exec by root gives.
        in_confined_thread(&programs, keep_only_kill, same);
        // This thread has more capabilities than an exec by an ordinary user keeps.
        in_confined_thread(&programs, become_user_with_nice, |warm| {
            assert_eq!(nice(None), Ok(0));
            same(warm);
        });
    });
}

#[test]
fn a_process_with_changed_capabilities_is_not_parked() {
    isolated!(root: || {
        std::thread::spawn(|| {
            keep_only_kill();
            for (mode, any) in KINDS {
                let warm = warm(mode, any, &[Path::new("/bin/true")]);
                let mut command = Command::new("/bin/true");
                assert_eq!(code(command.warm(&warm).spawn()), Ok(0));
                let stats = warm.stats();
                assert_eq!(stats.cannot.values().collect::<Vec<_>>(), ["exec changes capabilities"], "{stats:?}");
                assert_eq!(stats.parked, 0, "{stats:?}");
            }
        })
        .join()
        .expect("the thread's assertions hold");
    });
}
