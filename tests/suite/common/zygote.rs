// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers for tests of zygotes: parked processes that fork to start any program.

use std::time::Duration;

use spawnfd::child::Started;
use spawnfd::warm::{Mode, WarmOptions};
use spawnfd::{Command, Warm};

use super::{code, retry_while_slow};

/// Makes a raw system call, which affects this thread only. Returns `false` if it fails with EPERM, EACCES, ENOSYS or
/// EINVAL.
#[track_caller]
pub fn raw(number: libc::c_long, arguments: [usize; 3]) -> bool {
    // SAFETY: the callers pass integers, and pointers to objects that outlive the call.
    let answer = unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) };
    let error = std::io::Error::last_os_error();
    let refused = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EINVAL));
    assert!(answer != -1 || refused, "{error}");
    answer != -1
}

pub fn prctl(option: i32, argument: usize) -> bool {
    // SAFETY: prctl takes integers, and the options of the callers change this thread only.
    unsafe { libc::prctl(option, argument, 0, 0, 0) == 0 }
}

/// Creates a `Warm` with a zygote, which the calling thread parks. If this fails,
/// [`WarmStats::cannot`](spawnfd::warm::WarmStats::cannot) has the reason.
pub fn zygote() -> Warm {
    let warm = Warm::new(WarmOptions::new().mode(Mode::Fork)).expect("a Warm");
    warm.add_any(1, None).expect("a keeper");
    warm.fill(Duration::from_secs(60));
    warm
}

/// Starts a program with this `Warm` (owner of parked processes); returns how the program was started.
#[track_caller]
fn start(warm: &Warm) -> Started {
    retry_while_slow(warm, || {
        let child = Command::new("/bin/true").warm(warm).spawn().unwrap_or_else(|error| panic!("{error}"));
        let started = child.started();
        assert_eq!(code(Ok(child)), Ok(0));
        started
    })
}

/// Asserts that the next start uses no parked process, for this reason.
#[track_caller]
pub fn assert_goes_cold(warm: &Warm, reason: &'static str) {
    assert_eq!(start(warm), Started::Cold(reason), "{:?}", warm.stats());
}

/// Asserts that the zygote starts the next program.
#[track_caller]
pub fn assert_zygote_used(warm: &Warm) {
    assert_eq!(start(warm), Started::Zygote, "{:?}", warm.stats());
}
