// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions on descriptors, and the descriptors that the child then has.

use crate::common;
use std::fs::{File, create_dir, write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::common::{
    Launcher, Refused, assert_leaves_nothing, at_number, every_launcher, output, set_soft_limit, state,
};
use spawnfd::command::{MAX_ACTIONS, OpenHow};
use spawnfd::error::{Errno, Stage};
use spawnfd::{Command, Stdio};
use spawnfd_tests::{State, isolated, scratch};

/// Returns the descriptor numbers that the state of a child lists.
fn numbers(state: &State) -> Vec<i32> {
    state.fds.keys().copied().collect()
}

/// Returns the inode of the file that a child has at a descriptor number.
fn inode(state: &State, fd: i32) -> u64 {
    let fd = state.fds.get(&fd).unwrap_or_else(|| panic!("no {fd} among {:?}", numbers(state)));
    assert!(!fd.cloexec);
    fd.inode
}

fn inode_of(file: &impl AsFd) -> u64 {
    let file = file.as_fd().try_clone_to_owned().expect("a copy");
    File::from(file).metadata().expect("open").ino()
}

/// Creates `count` files. Each has its own inode.
fn files(directory: &tempfile::TempDir, count: usize) -> Vec<File> {
    let make = |number: usize| {
        let path = directory.path().join(number.to_string());
        write(&path, number.to_string()).expect("own directory");
        File::open(path).expect("own file")
    };
    (0..count).map(make).collect()
}

fn child_has_only_standard_descriptors(launcher: Launcher) {
    let null = File::open("/dev/null").expect("it exists");
    let free = |number: &i32| !State::of_self().fds.contains_key(number);
    let low = (3..12).chain([63, 64, 65, 255, 256, 257, 700]).filter(free);
    let foreign: Vec<OwnedFd> = low.map(|n| at_number(&null, n)).collect();
    assert_eq!(numbers(&state(&mut launcher.oracle())), [0, 1, 2]);
    // The library now has descriptors at low numbers. The test repeats the check without foreign
    // descriptors, and then with foreign descriptors below and above the library's.
    drop(foreign);
    assert_eq!(numbers(&state(&mut launcher.oracle())), [0, 1, 2]);
    // While this thread takes free numbers, the keeper thread (which parks processes) must not open
    // descriptors.
    launcher.drop_parked();
    let _foreign: Vec<OwnedFd> =
        (3..40).chain([255, 256, 257, 700]).filter(free).map(|n| at_number(&null, n)).collect();
    for _ in 0..3 {
        assert_eq!(numbers(&state(&mut launcher.oracle())), [0, 1, 2]);
    }
    assert_eq!(numbers(&state(launcher.oracle().open("/dev/null", OpenHow::READ, 300))), [0, 1, 2, 300]);
}

every_launcher! {
    only_standard_descriptors_by_default [tables under Docker]: child_has_only_standard_descriptors;

    sources_arrive [tables under No]: |launcher| {
        let directory = scratch();
        let files = files(&directory, 8);
        assert_leaves_nothing(launcher, || {
            let mut command = launcher.oracle();
            // Each file goes to the number of another file, so the child must not overwrite a
            // source before it has copied it.
            for (number, file) in files.iter().enumerate() {
                let next = &files[(number + 1) % files.len()];
                command.descriptor(file, next.as_raw_fd());
            }
            let child = state(&mut command);
            for (number, file) in files.iter().enumerate() {
                let next = &files[(number + 1) % files.len()];
                assert_eq!(inode(&child, next.as_raw_fd()), inode_of(file));
            }
            assert_eq!(numbers(&child).len(), 3 + files.len());
        });
    };

    a_source_can_keep_its_number [tables under User]: |launcher| {
        let directory = scratch();
        let files = files(&directory, 3);
        let mut command = launcher.oracle();
        for file in &files {
            command.descriptor(file, file.as_raw_fd());
        }
        // The child gets one file at two numbers.
        command.descriptor(&files[0], 50).descriptor(&files[0], 51);
        let child = state(&mut command);
        for file in &files {
            assert_eq!(inode(&child, file.as_raw_fd()), inode_of(file));
        }
        assert_eq!((inode(&child, 50), inode(&child, 51)), (inode_of(&files[0]), inode_of(&files[0])));
        assert_eq!(numbers(&child).len(), 8);
    };

    dup2_chains_follow_the_order [steps under No]: |launcher| {
        let directory = scratch();
        let files = files(&directory, 3);
        let [a, b, c] = [0, 1, 2].map(|place| inode_of(&files[place]));
        let mut command = launcher.oracle();
        command.descriptor(&files[0], 10).descriptor(&files[1], 11);
        // The child swaps two numbers through a third number, which it then closes. The last action
        // on a number wins.
        command.dup2(10, 12).dup2(11, 10).dup2(12, 11).close(12).descriptor(&files[2], 13).dup2(13, 13);
        command.descriptor(&files[0], 14).descriptor(&files[2], 14);
        let child = state(&mut command);
        assert_eq!([10, 11, 13, 14].map(|number| inode(&child, number)), [b, a, c, c]);
        assert_eq!(numbers(&child), [0, 1, 2, 10, 11, 13, 14]);
    };

    standard_streams_can_be_moved [steps under Docker]: |launcher| {
        // The child swaps standard output and standard error through number 9.
        let mut command = launcher.oracle();
        command.stderr(Stdio::Null).dup2(1, 9).dup2(2, 1).dup2(9, 2).arg("--to").arg("2").stdout(Stdio::Piped);
        let mut child = command.spawn().expect("starts");
        let json = std::io::read_to_string(child.stdout.take().expect("piped")).expect("own pipe");
        assert!(child.wait().expect("own child").success());
        let child = State::from_json(json.as_bytes());
        assert_eq!((child.fds[&1].kind.as_str(), child.fds[&2].kind.as_str()), ("char", "fifo"));
    };

    standard_error_can_follow_output [exec under User]: |launcher| {
        let child = state(launcher.oracle().stderr(Stdio::SameAsStdout));
        assert_eq!(child.fds[&1].inode, child.fds[&2].inode);
    };

    standard_streams_can_be_closed [exec under Docker]: |launcher| {
        let child = state(launcher.oracle().close(0).close(2));
        assert_eq!(numbers(&child), [1]);
    };

    opens_are_relative_to_the_childs_directory [steps under User]: |launcher| {
        let directory = scratch();
        create_dir(directory.path().join("sub")).expect("own directory");
        for (path, text) in [("name", "outer"), ("sub/name", "inner")] {
            write(directory.path().join(path), text).expect("own directory");
        }
        let sub = File::open(directory.path().join("sub")).expect("own directory");
        let mut command = launcher.command("/bin/cat");
        command.args(["/dev/fd/5", "/dev/fd/6", "/dev/fd/7", "/dev/fd/8"]).current_dir(directory.path());
        command.open("name", OpenHow::READ, 5).chdir("sub").open("name", OpenHow::READ, 6).fchdir(&sub);
        command.open("../name", OpenHow::READ, 7).chdir("/").open_at(&sub, "name", OpenHow::READ, 8);
        assert_eq!(output(&mut command), "outerinnerouterinner");
        let child = state(launcher.oracle().current_dir("/").chdir(directory.path()).fchdir(&sub));
        assert_eq!(child.cwd.inode.known(), Some(&inode_of(&sub)));
    };

    paths_are_relative_to_the_callers_directory [exec under No]: |launcher| {
        let here = inode_of(&File::open(".").expect("the working directory"));
        assert_eq!(state(&mut launcher.oracle()).cwd.inode.known(), Some(&here));
        assert_eq!(state(launcher.oracle().chdir(".")).cwd.inode.known(), Some(&here));
        let directory = scratch();
        write(directory.path().join("name"), "found").expect("own directory");
        let up = "../".repeat(std::env::current_dir().expect("it exists").components().count());
        let mut command = launcher.command("/bin/cat");
        command.arg("/dev/fd/5").open(format!("{up}.{}/name", directory.path().display()), OpenHow::READ, 5).chdir("/");
        assert_eq!(output(&mut command), "found");
    };

    opens_use_the_given_flags_and_mode [steps under No]: |launcher| {
        let directory = scratch();
        let path = directory.path().join("new");
        let mut command = launcher.oracle();
        let first = command.action_count();
        command.umask(0o027).open(&path, OpenHow::CREATE, 5).open(&path, OpenHow::APPEND, 6);
        let exclusive = (libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NONBLOCK | libc::O_CLOEXEC) as u64;
        command.open(directory.path().join("other"), OpenHow::new(exclusive).mode(0o751), 7);
        let child = state(&mut command);
        assert_eq!([5, 6, 7].map(|fd| child.fds[&fd].flags.as_str()), ["O_WRONLY", "O_WRONLY|O_APPEND",
            "O_RDWR|O_NONBLOCK"]);
        assert!([5, 6, 7].iter().all(|fd| !child.fds[fd].cloexec), "open ignores O_CLOEXEC");
        let mode = |name: &str| directory.path().join(name).metadata().expect("made").mode() & 0o7777;
        assert_eq!((mode("new"), mode("other")), (0o640, 0o750));
        launcher.prepare(&mut command);
        let error = command.refused("the file exists");
        assert_eq!((error.stage(), error.errno()), (Stage::Action(first + 3), Errno::EEXIST));
    };

    an_open_gets_the_given_number [tables under Docker]: |launcher| {
        let null = File::open("/dev/null").expect("it exists");
        let mut command = launcher.oracle();
        command.descriptor(&null, 4).close(4).open("/dev/zero", OpenHow::READ, 4).open("/dev/full", OpenHow::READ, 4);
        command.open("/dev/zero", OpenHow::READ, 3).open("/dev/zero", OpenHow::READ, 600);
        let child = state(&mut command);
        let target = |fd: i32| child.fds[&fd].target.known().map(String::as_str).unwrap_or_default();
        assert_eq!([3, 4, 600].map(target), ["/dev/zero", "/dev/full", "/dev/zero"]);
        assert_eq!(numbers(&child), [0, 1, 2, 3, 4, 600]);
    };

    close_range_closes_earlier_descriptors_only [tables under User]: |launcher| {
        let null = File::open("/dev/null").expect("it exists");
        let mut command = launcher.oracle();
        for number in 5..15 {
            command.descriptor(&null, number);
        }
        command.close_range(7, 9).close_range(12, u32::MAX).descriptor(&null, 8).descriptor(&null, 100);
        let child = state(&mut command);
        assert_eq!(numbers(&child), [0, 1, 2, 5, 6, 8, 10, 11, 100]);
        // A `close_range` action over all numbers does not close a source of a later action.
        let mut command = launcher.oracle();
        command.stdin(Stdio::Null).close_range(3, u32::MAX).descriptor(&null, 6);
        assert_eq!(numbers(&state(&mut command)), [0, 1, 2, 6]);
    };

    numbers_below_the_limit_can_be_used [tables under No]: |launcher| {
        let limit = State::of_self().rlimits["nofile"].known().expect("a limit").soft;
        let null = File::open("/dev/null").expect("it exists");
        let last = i32::try_from(limit).expect("a number") - 1;
        let mut command = launcher.oracle();
        command.descriptor(&null, last).dup2(last, 5);
        assert_eq!(numbers(&state(&mut command)), [0, 1, 2, 5, last]);
        for beyond in [last + 1, last + 1000, i32::MAX] {
            let mut command = launcher.oracle();
            command.descriptor(&null, 5).descriptor(&null, beyond);
            let error = command.refused("beyond the limit");
            let index = Stage::Action(command.action_count() - 1);
            assert_eq!((error.stage(), error.errno()), (index, Errno::EBADF), "{beyond}: {error}");
            // An action that closes a number that cannot be open is no error.
            assert_eq!(numbers(&state(launcher.oracle().close(beyond))), [0, 1, 2], "{beyond}");
        }
        // After the failed spawns, the library still starts programs.
        assert_eq!(numbers(&state(&mut launcher.oracle())), [0, 1, 2]);
    };

    a_descriptor_above_a_lowered_limit_can_be_passed [tables under Docker]: |launcher| {
        let null = at_number(&File::open("/dev/null").expect("it exists"), 900);
        let before = set_soft_limit(libc::RLIMIT_NOFILE, 800);
        for inherits in [false, true] {
            let mut command = launcher.oracle();
            let child = state(command.inherit_descriptors(inherits).descriptor(&null, 900).descriptor(&null, 7));
            let found: Vec<_> = numbers(&child).into_iter().filter(|number| [7, 900].contains(number)).collect();
            assert_eq!((found, child.rlimits["nofile"].known().expect("a limit").soft), (vec![7, 900], 800));
        }
        let error = launcher.oracle().descriptor(&null, 901).refused("not open before the limit was lowered");
        assert_eq!(error.errno(), Errno::EBADF, "{error}");
        set_soft_limit(libc::RLIMIT_NOFILE, before);
    };

    dup2_accepts_only_descriptors_of_the_child [steps under No]: |launcher| {
        // The child cannot copy a descriptor that only the caller has. This includes the library's
        // own socket.
        let null = File::open("/dev/null").expect("it exists");
        let _foreign = [20, 400].map(|number| at_number(&null, number));
        common::warm_up(launcher);
        for number in (3..25).chain([400]) {
            for to in [30, number] {
                let mut command = launcher.oracle();
                command.dup2(number, to);
                let index = command.action_count() - 1;
                let error = command.refused("not a descriptor of the child");
                assert_eq!((error.action(), error.errno()), (Some(index), Errno::EBADF), "{number} {to}: {error}");
            }
        }
    };

    many_sources_arrive [tables under Docker]: |launcher| {
        let directory = scratch();
        let files = files(&directory, 250);
        let mut command = launcher.oracle();
        for (place, file) in files.iter().enumerate() {
            command.descriptor(file, 3 + place as i32);
        }
        let child = state(&mut command);
        assert_eq!(numbers(&child), (0..253).collect::<Vec<_>>());
        for (place, file) in files.iter().enumerate() {
            assert_eq!(inode(&child, 3 + place as i32), inode_of(file));
        }
    };

    max_actions_can_be_used [steps under Docker]: |launcher| {
        let directory = scratch();
        let files = files(&directory, MAX_ACTIONS);
        let mut command = launcher.oracle();
        let room = MAX_ACTIONS - command.action_count();
        for (place, file) in files.iter().take(room).enumerate() {
            command.descriptor(file, 600 - place as i32);
        }
        assert_eq!(command.action_count(), MAX_ACTIONS);
        let child = state(&mut command);
        for (place, file) in files.iter().take(room).enumerate() {
            assert_eq!(inode(&child, 600 - place as i32), inode_of(file));
        }
        assert_eq!(numbers(&child).len(), 3 + room);
        let error = command.close(9).refused("one too many");
        assert_eq!((error.stage(), error.errno()), (Stage::Validate, Errno::E2BIG));
    };

    streams_closed_in_the_caller_stay_closed_in_the_child [tables under No]: |launcher| {
        let directory = scratch();
        let seen = directory.path().join("seen");
        for closed in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2]] {
            // After this call the keeper thread (which parks processes) opens no descriptor at
            // these numbers.
            launcher.drop_parked();
            with_streams_closed(closed, || closed_streams(launcher, closed, &seen));
        }
    };

    actions_cannot_use_a_stream_closed_in_the_caller [exec under Docker]: |launcher| assert_closed_stream_is_refused(launcher);
}

/// Calls `body` while the standard streams in `closed` are closed.
fn with_streams_closed(closed: &[i32], body: impl FnOnce() + std::panic::UnwindSafe) {
    let mut kept = Vec::new();
    // SAFETY: the calls take descriptor numbers. No other thread uses these numbers, and dup2
    // restores them below.
    unsafe {
        for &number in closed {
            kept.push((number, libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 500)));
            libc::close(number);
        }
    }
    let outcome = std::panic::catch_unwind(body);
    // SAFETY: the calls take descriptor numbers. The library has taken none of 0, 1 and 2.
    unsafe {
        for &(number, copy) in &kept {
            libc::dup2(copy, number);
            libc::close(copy);
        }
    }
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

/// If the caller has closed a standard stream, the child may use that number for a descriptor of
/// the library. No action may use that descriptor.
fn assert_closed_stream_is_refused(launcher: Launcher) {
    let null = File::open("/dev/null").expect("it exists");
    type Use = for<'a, 'fd> fn(&'a mut Command<'fd>, i32) -> &'a mut Command<'fd>;
    let uses: [Use; 4] = [
        |command, number| command.dup2(number, 7),
        |command, number| command.dup2(number, number),
        |command, number| command.foreground(number),
        |command, number| command.controlling_terminal(number),
    ];
    let command = || {
        let mut command = launcher.command("/bin/true");
        command.stdin(Stdio::Inherit).stdout(Stdio::Inherit).stderr(Stdio::Inherit);
        command
    };
    for number in 0..3 {
        launcher.drop_parked();
        with_streams_closed(&[number], || {
            for used in uses {
                let mut command = command();
                used(command.descriptor(&null, 9), number);
                let index = command.action_count() - 1;
                let error = command.refused("the caller has closed it");
                assert_eq!((error.action(), error.errno()), (Some(index), Errno::EBADF), "{error}");
            }
            // The caller's end of a pipe may get the number of the closed stream. It must not count
            // as that stream.
            let mut command = command();
            if number != 0 {
                command.stdin(Stdio::Piped)
            } else {
                command.stdout(Stdio::Piped)
            };
            let error = command.dup2(number, 7).refused("the caller has closed it");
            assert_eq!(error.errno(), Errno::EBADF, "{error}");
            // An action can copy a stream that the command sets.
            let mut command = launcher.command("/bin/true");
            command.stdin(Stdio::Null).stdout(Stdio::Null).stderr(Stdio::Null).dup2(number, 7);
            assert!(command.spawn().expect("starts").wait().expect("own child").success());
        });
    }
    launcher.drop_parked();
    with_streams_closed(&[1], || {
        let error = command().stderr(Stdio::SameAsStdout).descriptor(&null, 9).refused("the caller has closed it");
        assert_eq!((error.stage(), error.errno()), (Stage::Stdio(2), Errno::EBADF), "{error}");
    });
}

#[test]
fn actions_cannot_use_a_stream_closed_in_a_single_threaded_caller() {
    isolated!(|| {
        common::in_single_threaded_fork(|| {
            common::warm_up(Launcher::Clone3);
            assert_closed_stream_is_refused(Launcher::Clone3);
        });
    });
}

/// Spawns while the caller has closed some of the descriptors 0, 1 and 2. The child gets the other
/// ones, and the file that its action opens.
fn closed_streams(launcher: Launcher, closed: &[i32], seen: &std::path::Path) {
    let expected: Vec<i32> = (0..3).filter(|number| !closed.contains(number)).collect();
    let inodes = State::of_self().fds;
    for _ in 0..2 {
        let mut command: Command<'_> = launcher.command(spawnfd_tests::program("spawnfd-oracle"));
        command.stdin(Stdio::Inherit).stdout(Stdio::Inherit).stderr(Stdio::Inherit);
        command.args(["--to", "5"]).open(seen, OpenHow::CREATE, 5);
        let status = command.spawn().expect("starts").wait().expect("own child");
        assert!(status.success(), "{status}");
        let child = State::from_json(&std::fs::read(seen).expect("written"));
        let have: Vec<i32> = numbers(&child).into_iter().filter(|number| *number < 3).collect();
        assert_eq!(have, expected, "closed in the caller: {closed:?}");
        for number in &expected {
            assert_eq!(child.fds[number].inode, inodes[number].inode, "{number}");
        }
        drop(command);
        launcher.drop_parked();
        // The library must keep no socket at these numbers: a child would inherit it as a standard
        // stream.
        let own = State::of_self().fds;
        assert!(closed.iter().all(|number| own.get(number).is_none_or(|fd| fd.kind != "socket")), "closed: {closed:?}");
        // This command sets all three streams.
        let mut command = launcher.oracle();
        let mut child = command.stdout(Stdio::Piped).stderr(Stdio::Null).spawn().expect("starts");
        let json = std::io::read_to_string(child.stdout.take().expect("piped")).expect("own pipe");
        assert!(child.wait().expect("own child").success());
        assert_eq!(numbers(&State::from_json(json.as_bytes())), [0, 1, 2], "closed in the caller: {closed:?}");
    }
}

#[test]
fn a_closed_source_is_an_error_of_its_action() {
    isolated!(|| {
        for launcher in [Launcher::Clone3, Launcher::SeparateMm] {
            let null = File::open("/dev/null").expect("it exists");
            assert_leaves_nothing(launcher, || {
                // SAFETY: the number 777 is not open, as the test requires. No other thread opens
                // descriptors meanwhile.
                let closed = unsafe { BorrowedFd::borrow_raw(777) };
                let mut command = launcher.oracle();
                command.descriptor(&null, 5).descriptor(closed, 6);
                let error = command.refused("the source is closed");
                let index = command.action_count() - 1;
                assert_eq!((error.action(), error.errno()), (Some(index), Errno::EBADF), "{error}");
                assert_eq!(error.call(), "dup2(777, 6)");
                let error = launcher.oracle().stdin(closed).refused("the source is closed");
                assert_eq!((error.stage(), error.errno()), (Stage::Stdio(0), Errno::EBADF), "{error}");
            });
        }
    });
}

#[test]
fn a_command_can_be_spawned_again() {
    isolated!(|| {
        let null = File::open("/dev/null").expect("it exists");
        let mut command = Launcher::Clone3.oracle();
        command.descriptor(&null, 5).stdin(Stdio::Piped);
        let first = state(&mut command);
        let again: Vec<State> = (0..20).map(|_| state(&mut command)).collect();
        let pipes = ["pid", "mappings", "fds.0.inode", "fds.0.target", "fds.1.inode", "fds.1.target"];
        again.iter().for_each(|again| State::assert_same(&first, again, &pipes));
    });
}
