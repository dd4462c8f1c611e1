// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hosts with one thread. Their children use the strategy `TrimTable`: a child starts with copies
//! of the host's low-numbered descriptors.

use crate::common;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::common::{at_number, code, executable, exits_with, rounds};
use spawnfd::Template;
use spawnfd::error::{Errno, Stage};
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{confine, isolated, program, scratch};

fn null() -> File {
    File::options().read(true).write(true).open("/dev/null").expect("it exists")
}

/// Spawns once, and then replaces the descriptors that the library uses to pass descriptors. A
/// strategy that needs such a descriptor opens a new one, so the test can tell the strategies
/// apart.
fn replace_passing_descriptors(template: &Template) {
    let null = null();
    assert_eq!(code(template.command().stdin(&null).spawn()), Ok(0));
    for number in passing_descriptors() {
        // SAFETY: dup2 takes integers. The library must leave a number to an application that
        // reuses it.
        assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), number) }, number);
    }
}

fn passing_descriptors() -> Vec<i32> {
    let is_one = |target: &str| target.contains("pidfd") || target.starts_with("socket:");
    Snapshot::take().fds.iter().filter(|(_, fd)| is_one(&fd.target)).map(|(number, _)| *number).collect()
}

/// On one processor, exec wakes the parent, which goes on before the kernel has closed the child's
/// descriptors.
#[test]
fn a_program_written_before_a_spawn_runs_after_it() {
    isolated!(|| {
        let directory = scratch();
        common::in_single_threaded_fork(|| {
            common::pin_to_one_cpu();
            let template = Template::open("/bin/true").expect("a template");
            let null = at_number(&null(), 50);
            replace_passing_descriptors(&template);
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
            assert_eq!(passing_descriptors(), [0; 0], "the strategy is TrimTable");
        });
    });
}

#[test]
fn the_program_gets_its_sources_and_nothing_else() {
    isolated!(|| {
        common::in_single_threaded_fork(|| {
            let template = Template::open(program("spawnfd-fds")).expect("a template");
            let null = null();
            replace_passing_descriptors(&Template::open("/bin/true").expect("a template"));
            // These descriptors have no close-on-exec. They lie below, between and above the
            // sources, and at a number that the child uses.
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
            assert_eq!(passing_descriptors(), [0; 0]);
            drop(foreign);

            let before = Snapshot::take();
            numbers(template.command().stdin(&one));
            let closed = one.as_raw_fd();
            drop(one);
            // SAFETY: no owner has this number. The command only names it, and `ManuallyDrop` does
            // not close it.
            let gone = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(closed) });
            let refused = template.command().stdin(&*gone).spawn().expect_err("the source is closed");
            assert_eq!((refused.stage(), refused.errno()), (Stage::Stdio(0), Errno::EBADF));
            let mut after = before;
            after.fds.remove(&closed);
            leaks::assert_unchanged(&after);
        });
    });
}

fn inheritable(file: &File, number: i32) -> OwnedFd {
    let copy = at_number(file, number);
    // SAFETY: fcntl takes a descriptor of this function, and a flag.
    assert_eq!(unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    copy
}

#[test]
fn with_a_second_thread_trim_table_is_not_used() {
    isolated!(|| {
        common::in_single_threaded_fork(|| {
            let template = Template::open("/bin/true").expect("a template");
            let null = null();
            let spawn = || assert_eq!(code(template.command().stdin(&null).spawn()), Ok(0));
            replace_passing_descriptors(&template);
            spawn();
            assert_eq!(passing_descriptors(), [0; 0]);
            std::thread::scope(|scope| {
                let (done, wait) = std::sync::mpsc::channel::<()>();
                scope.spawn(move || wait.recv());
                spawn();
                assert_ne!(passing_descriptors(), [0; 0]);
                drop(done);
            });
        });
    });
}

/// A passing descriptor is a pidfd or socket by which the library passes descriptors. The host
/// opens it at a low number, before it has thousands of descriptors or several threads.
#[test]
fn the_first_start_opens_a_low_passing_descriptor() {
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
                    assert!(
                        passing_descriptors().into_iter().any(|number| number < 20),
                        "docker: {docker}, run: {run}"
                    );
                });
            }
        }
    });
}

#[test]
fn a_reused_thread_directory_number_is_left_alone() {
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
            let first = number().expect("kept since the first spawn");
            let own = File::create_new(directory.path().join("own")).expect("own directory");
            // SAFETY: dup2 takes integers. The library must leave a number to an application that
            // reuses it.
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
