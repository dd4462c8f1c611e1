// SPDX-License-Identifier: MIT OR Apache-2.0
//! The builder in C under limits and filters that make its calls fail.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use spawnfd_capi::builder as capi;
use spawnfd_tests::leaks::{self, Snapshot};
use spawnfd_tests::{confine, isolated};

fn result(returned: i32) -> Result<i32, i32> {
    if returned < 0 { Err(io::Error::last_os_error().raw_os_error().expect("an errno")) } else { Ok(returned) }
}

/// Opens a builder of a shell with this script.
fn shell(script: &CStr) -> OwnedFd {
    let fd = result(capi::spawnfd_builder_open(0)).expect("opened");
    // SAFETY: the descriptor is new.
    let builder = unsafe { OwnedFd::from_raw_fd(fd) };
    let argv = [c"sh".as_ptr(), c"-c".as_ptr(), script.as_ptr(), ptr::null()];
    assert_eq!(set(&builder, capi::PIDFD_CONFIG_SET_STRING, capi::PIDFD_CONFIG_KEY_PATH, c"/bin/sh".as_ptr()), Ok(0));
    assert_eq!(set(&builder, capi::PIDFD_CONFIG_SET_STRINGS, capi::PIDFD_CONFIG_KEY_ARGV, argv.as_ptr()), Ok(0));
    builder
}

fn set<T>(builder: &OwnedFd, command: u32, key: u32, value: *const T) -> Result<i32, i32> {
    // SAFETY: the callers pass a value of the command's type.
    result(unsafe { capi::spawnfd_builder_config(builder.as_raw_fd(), command, key, value.cast(), 0) })
}

/// Sets a search path of 4000 bytes.
fn lengthen(builder: &OwnedFd) -> Result<i32, i32> {
    let long = [&[b'/'; 4000][..], b"\0"].concat();
    set(builder, capi::PIDFD_CONFIG_SET_STRING, capi::PIDFD_CONFIG_KEY_SEARCH_PATH, long.as_ptr())
}

/// Runs a builder. Returns the pidfd or an errno, and the changed arguments.
fn run(builder: &OwnedFd, flags: u32) -> (Result<i32, i32>, capi::SpawnArgs) {
    let mut args = capi::SpawnArgs { flags, ..Default::default() };
    // SAFETY: the arguments have their size.
    let returned = unsafe { capi::spawnfd_builder_run(builder.as_raw_fd(), &raw mut args, size_of_val(&args)) };
    (result(returned), args)
}

/// Runs a builder, and returns the exit code of its program.
fn code(builder: &OwnedFd) -> Result<i32, i32> {
    let (pidfd, args) = run(builder, 0);
    // SAFETY: the run has returned a new descriptor.
    drop(unsafe { OwnedFd::from_raw_fd(pidfd?) });
    Ok(libc::WEXITSTATUS(crate::implementation::wait(args.pid)))
}

#[test]
fn a_configuration_beyond_the_file_size_limit_changes_nothing() {
    isolated!(|| {
        let builder = shell(c"exit 5");
        // The old configuration is longer than the second limit. The last one lets this test print its result.
        for (limit, longer) in [(2000, Err(libc::EFBIG)), (8, Err(libc::EFBIG)), (libc::RLIM_INFINITY, Ok(0))] {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the call reads `limit`.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
            let outcome = (lengthen(&builder), code(&builder));
            assert_eq!(outcome, (longer, Ok(5)), "{limit:?}");
        }
    });
}

#[test]
fn a_sealed_builder_is_not_configured() {
    isolated!(|| {
        for seals in [libc::F_SEAL_WRITE, libc::F_SEAL_GROW, libc::F_SEAL_SHRINK, libc::F_SEAL_FUTURE_WRITE] {
            let builder = shell(c"exit 5");
            // SAFETY: the call accesses no memory.
            assert_eq!(unsafe { libc::fcntl(builder.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
            assert_eq!(lengthen(&builder), Err(libc::EACCES), "{seals}");
            assert_eq!(code(&builder), Ok(5), "{seals}");
        }
    });
}

/// The run replaces the builder by the pidfd after the program has started.
#[test]
fn a_failed_replacement_leaves_no_child() {
    isolated!(|| {
        let builder = shell(c"exec sleep 100");
        // Opens the descriptors that the library keeps.
        assert_eq!(code(&shell(c"exit 5")), Ok(5));
        let before = Snapshot::take();
        confine::deny(&[("dup3", libc::ENFILE)]).expect("confined");
        let (pidfd, args) = run(&builder, capi::SPAWN_BECOME_PIDFD);
        assert_eq!((pidfd, args.failed, args.pid), (Err(libc::ENFILE), capi::SPAWN_FAILED_SETUP, 0));
        // SAFETY: waitpid stores nothing.
        assert_eq!(result(unsafe { libc::waitpid(-1, ptr::null_mut(), libc::__WALL) }), Err(libc::ECHILD));
        leaks::assert_unchanged(&before);
    });
}
