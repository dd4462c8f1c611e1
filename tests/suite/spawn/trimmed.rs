// SPDX-License-Identifier: MIT OR Apache-2.0
//! A host with one thread: its children begin with copies of its low descriptors, and nobody ever notices.

use crate::common;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::common::{at_number, code, executable, exits_with, rounds};
use spawnfd::{Errno, Stage, Template};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{confine, isolated, program, scratch};

fn null() -> File {
    File::options().read(true).write(true).open("/dev/null").expect("there")
}

/// Spawns, and then puts other files over what the library fetches and passes descriptors by: who needs that opens it again.
fn take_the_doors_away(template: &Template) {
    let null = null();
    assert_eq!(code(template.command().stdin(&null).spawn()), Ok(0));
    for number in doors() {
        // SAFETY: what the library keeps there it must give up, as from any host.
        assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), number) }, number);
    }
}

fn doors() -> Vec<i32> {
    let is_door = |target: &str| target.contains("pidfd") || target.starts_with("socket:");
    Snapshot::take().fds.iter().filter(|(_, fd)| is_door(&fd.target)).map(|(number, _)| *number).collect()
}

/// On one processor the parent goes on right when exec has let it, before the kernel has closed anything for the child.
#[test]
fn a_program_written_before_a_spawn_runs_after_it() {
    isolated!(|| {
        let directory = scratch();
        common::in_single_threaded_fork(|| {
            common::pin_to_one_cpu();
            let template = Template::open("/bin/true").expect("a template");
            let null = at_number(&null(), 50);
            take_the_doors_away(&template);
            for round in 0..rounds(1_000) {
                let path = directory.path().join(format!("program{}", round % 8));
                let _ = std::fs::remove_file(&path);
                executable(&path, exits_with(7));
                let writer = at_number(&File::options().append(true).open(&path).expect("own file"), 20);
                let child = template.command().stdout(&null).spawn();
                drop(writer);
                let written = Template::open(&path).and_then(|template| code(template.command().stdout(&null).spawn()));
                assert_eq!(written, Ok(7), "round {round}");
                assert_eq!(code(child), Ok(0));
            }
            assert_eq!(doors(), [0; 0], "the way that is tested");
        });
    });
}

#[test]
fn the_program_gets_what_it_is_given_and_nothing_else() {
    isolated!(|| {
        common::in_single_threaded_fork(|| {
            let template = Template::open(program("spawnfd-fds")).expect("a template");
            let null = null();
            take_the_doors_away(&Template::open("/bin/true").expect("a template"));
            // Some that are not close-on-exec, below, between and above the sources; a number of the child's own among them.
            let foreign: Vec<OwnedFd> =
                [13, 17, 30, 40, 60, 63, 64, 200].map(|number| inheritable(&null, number)).into();
            let (one, two) = (at_number(&null, 20), at_number(&null, 35));
            let numbers = |command: &mut spawnfd::Command<'_>| -> Vec<i32> {
                let text = common::output(command);
                text.lines().filter_map(|line| line.split(' ').next()?.parse().ok()).collect()
            };
            let given = numbers(template.command().stdin(&one).stderr(&two));
            assert_eq!(given, [0, 1, 2]);
            let given = numbers(template.command().stdin(&two).descriptor(&one, 17).descriptor(&two, 61));
            assert_eq!(given, [0, 1, 2, 17, 61]);
            assert_eq!(doors(), [0; 0]);
            drop(foreign);

            let before = Snapshot::take();
            numbers(template.command().stdin(&one));
            let closed = one.as_raw_fd();
            drop(one);
            // SAFETY: a number that nothing owns, never closed by this: the command only names it.
            let gone = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(closed) });
            let refused = template.command().stdin(&*gone).spawn().expect_err("not open");
            assert_eq!((refused.stage(), refused.errno()), (Stage::Stdio(0), Errno::EBADF));
            let mut after = before;
            after.fds.remove(&closed);
            leaks::assert_unchanged(&after);
        });
    });
}

fn inheritable(file: &File, number: i32) -> OwnedFd {
    let copy = at_number(file, number);
    // SAFETY: an own descriptor and a flag.
    assert_eq!(unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    copy
}

#[test]
fn with_another_thread_nothing_is_copied() {
    isolated!(|| {
        common::in_single_threaded_fork(|| {
            let template = Template::open("/bin/true").expect("a template");
            let null = null();
            let spawn = || assert_eq!(code(template.command().stdin(&null).spawn()), Ok(0));
            take_the_doors_away(&template);
            spawn();
            assert_eq!(doors(), [0; 0]);
            std::thread::scope(|scope| {
                let (done, wait) = std::sync::mpsc::channel::<()>();
                scope.spawn(move || wait.recv());
                spawn();
                assert_ne!(doors(), [0; 0]);
                drop(done);
            });
        });
    });
}

/// So that a host which comes to have ten thousand descriptors, or threads, has its door at a low number.
#[test]
fn the_first_start_leaves_a_door_however_it_waits() {
    isolated!(|| {
        for docker in [false, true] {
            for run in [false, true] {
                common::in_single_threaded_fork(|| {
                    if docker {
                        confine::docker().expect("confined");
                    }
                    let template = Template::open("/bin/true").expect("a template");
                    if run {
                        assert_eq!(template.command().run().expect("a run").code(), Some(0));
                    } else {
                        assert_eq!(code(template.command().stdin(null()).spawn()), Ok(0));
                    }
                    assert!(doors().into_iter().any(|number| number < 20), "docker: {docker}, run: {run}");
                });
            }
        }
    });
}

#[test]
fn a_file_put_over_the_thread_directory_stays_there() {
    isolated!(|| {
        let directory = scratch();
        common::in_single_threaded_fork(|| {
            let template = Template::open("/bin/true").expect("a template");
            let null = null();
            let spawn = || assert_eq!(code(template.command().stdin(&null).spawn()), Ok(0));
            let number = || {
                let fds = Snapshot::take().fds;
                fds.iter().find(|(_, fd)| fd.target.ends_with("/task")).map(|(number, _)| *number)
            };
            spawn();
            let first = number().expect("kept from the first spawn on");
            let own = File::create_new(directory.path().join("own")).expect("own directory");
            // SAFETY: as above.
            assert_eq!(unsafe { libc::dup2(own.as_raw_fd(), first) }, first);
            for _ in 0..3 {
                spawn();
                let fds = Snapshot::take().fds;
                assert!(fds.get(&first).is_some_and(|fd| fd.target.ends_with("/own")));
            }
            let now = number().expect("opened again");
            assert_ne!(now, first);
        });
    });
}
