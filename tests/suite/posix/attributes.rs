// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes and actions that need privileges, a terminal or a cgroup of the test.

use std::ffi::{CStr, c_int};
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

use spawnfd_tests::copy::{fork, wait_for};
use spawnfd_tests::{State, confine, has_clone3, isolated, program, require_root, scratch, skip};

use crate::common::Cgroup;
use crate::implementation::{Action, Request, answer, at_number, libc, oracle, ours, wait};
use crate::same::IGNORED;

/// Spawns the oracle by both implementations, asserts that the states are equal, and returns the state of ours.
#[track_caller]
fn same(request: &Request, ignored: &[&str]) -> State {
    let [theirs, ours] = [libc(), ours()].map(|by| request.state(by).expect("starts"));
    let differences = State::diff(&theirs, &ours, &[IGNORED, ignored].concat());
    assert!(differences.is_empty(), "{}", differences.join("\n  "));
    ours
}

/// Such a child has memory of its own, which clone3 or clone creates.
#[test]
fn resetids_sets_effective_ids_to_the_real_ones() {
    isolated!(|| {
        const OTHER: libc::uid_t = 54_321;
        const KEEP: libc::uid_t = libc::uid_t::MAX;
        if !require_root() {
            return;
        }
        answer();
        let request = oracle(&program("spawnfd-oracle")).flags(libc::POSIX_SPAWN_RESETIDS);
        for has_clone3 in [true, false] {
            wait_for(fork(|| {
                if !has_clone3 {
                    confine::deny(&[("clone3", libc::ENOSYS)]).expect("confined");
                }
                // SAFETY: the calls take integers. The group changes first, because the user id is a privilege.
                unsafe {
                    assert_eq!(libc::syscall(libc::SYS_setresgid, KEEP, OTHER, KEEP), 0);
                    assert_eq!(libc::syscall(libc::SYS_setresuid, KEEP, OTHER, KEEP), 0);
                }
                let state = same(&request, &[]);
                for ids in [&state.uids, &state.gids] {
                    let ids = ids.known().expect("readable");
                    assert_eq!((ids.real, ids.effective, ids.saved), (0, 0, 0));
                }
                // SAFETY: the functions have no requirements.
                assert_eq!(unsafe { (libc::geteuid(), libc::getegid()) }, (OTHER, OTHER), "the caller keeps its ids");
            }));
        }
    });
}

/// Makes a pseudoterminal the controlling terminal of the calling process, a new session.
fn control_terminal() -> File {
    let open = |path: &str| OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path);
    let controller = open("/dev/ptmx").expect("a pseudoterminal");
    let mut name = [0; 64];
    // SAFETY: the calls take the descriptor of a pseudoterminal, and a buffer of this size.
    unsafe {
        assert_eq!(libc::unlockpt(controller.as_raw_fd()), 0);
        assert_eq!(libc::ptsname_r(controller.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
    }
    // SAFETY: ptsname_r stores a C string.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    let terminal = open(name.to_str().expect("text")).expect("the other end");
    // SAFETY: the calls take integers.
    unsafe {
        assert!(libc::setsid() > 0);
        assert_eq!(libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0), 0);
    }
    // The kernel sends SIGHUP to this process if this end closes.
    std::mem::forget(controller);
    terminal
}

#[test]
fn tcsetpgrp_makes_the_child_the_foreground_group() {
    isolated!(|| {
        answer();
        wait_for(fork(|| {
            let _terminal = at_number(&control_terminal(), 42);
            let foreground = |flags| {
                let request = oracle(&program("spawnfd-oracle")).flags(flags).action(Action::Tcsetpgrp(42));
                let state = same(&request, &["tpgid"]);
                let known = (state.tty.known(), state.tpgid.known(), state.pgid.known());
                let (Some(Some(tty)), Some(Some(foreground)), Some(group)) = known else { panic!("{known:?}") };
                assert_ne!(*tty, 0);
                assert_eq!(*foreground, *group as i64);
                *group == *state.pid.known().expect("readable")
            };
            assert!(foreground(libc::POSIX_SPAWN_SETPGROUP));
            // Without a new group, the caller's group returns to the foreground. The caller is in the background here.
            assert!(!foreground(0));
        }));
    });
}

#[test]
fn a_child_starts_in_its_cgroup() {
    isolated!(|| {
        let Some(group) = Cgroup::new() else { return skip("no cgroup can be made") };
        if !has_clone3() {
            return skip("clone3 is refused");
        }
        let directory = File::open(&group.0).expect("own cgroup");
        let flags = c_int::from(spawnfd_capi::posix::SETCGROUP);
        let in_group =
            Request { cgroup: Some(directory.as_raw_fd()), ..oracle(&program("spawnfd-oracle")).flags(flags) };
        let state = in_group.state(ours()).expect("starts");
        let name = group.0.file_name().expect("a name").to_str().expect("text");
        let lines = state.cgroup.known().expect("readable");
        assert!(lines.iter().any(|line| line.starts_with("0::") && line.ends_with(name)), "{lines:?}");
        let missing = Request { file: c"/missing".to_owned(), ..in_group };
        assert_eq!(missing.spawn(ours()), Err(libc::ENOENT));
    });
}

/// Without PATH, posix_spawnp searches /bin and /usr/bin, but not the working directory.
#[test]
fn the_default_path_has_no_working_directory() {
    isolated!(|| {
        let directory = scratch();
        let tool = directory.path().join("spawnfd-tool");
        fs::write(&tool, "#!/bin/sh\nexit 7\n").expect("own directory");
        fs::set_permissions(&tool, Permissions::from_mode(0o755)).expect("own file");
        std::env::set_current_dir(directory.path()).expect("own directory");
        let spawn = |file: &str, by| {
            let request = Request { search: true, ..Request::new(file) };
            request.spawn(by).map(|pid| libc::WEXITSTATUS(wait(pid)))
        };
        for (value, expected) in [(None, Err(libc::ENOENT)), (Some(""), Ok(7)), (Some("/missing:"), Ok(7))] {
            // SAFETY: this isolated process has no other threads that use the environment.
            unsafe {
                match value {
                    None => std::env::remove_var("PATH"),
                    Some(value) => std::env::set_var("PATH", value),
                }
            }
            let found = [libc(), ours()].map(|by| spawn("spawnfd-tool", by));
            assert_eq!(found, [expected; 2], "{value:?}");
            let standard = [libc(), ours()].map(|by| spawn("true", by));
            let expected = if value.is_none() { Ok(0) } else { Err(libc::ENOENT) };
            assert_eq!(standard, [expected; 2], "{value:?}");
        }
    });
}
