// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the suites on zygotes share.

use std::time::Duration;

use spawnfd::{Command, Mode, Started, Warm, WarmOptions};

use super::{code, in_good_time};

/// A system call on this thread alone; `false` where it may not be made here.
#[track_caller]
pub fn raw(number: libc::c_long, arguments: [usize; 3]) -> bool {
    // SAFETY: the callers pass integers and pointers to what outlives the call.
    let answer = unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2]) };
    let error = std::io::Error::last_os_error();
    let refused = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EINVAL));
    assert!(answer != -1 || refused, "{error}");
    answer != -1
}

pub fn prctl(option: i32, argument: usize) -> bool {
    // SAFETY: integers; this thread's own.
    unsafe { libc::prctl(option, argument, 0, 0, 0) == 0 }
}

/// A zygote that the calling thread has parked, if it can: else [`WarmStats::cannot`](spawnfd::WarmStats::cannot) says why not.
pub fn zygote() -> Warm {
    let warm = Warm::new(WarmOptions { mode: Mode::Fork, ..WarmOptions::default() }).expect("a Warm");
    warm.add_any(1, None).expect("a keeper");
    warm.fill(Duration::from_secs(60));
    warm
}

/// Starts a program with this `Warm`; tells how it was started.
#[track_caller]
fn start(warm: &Warm) -> Started {
    in_good_time(warm, || {
        let child = Command::new("/bin/true").warm(warm).spawn().unwrap_or_else(|error| panic!("{error}"));
        let started = child.started();
        assert_eq!(code(Ok(child)), Ok(0));
        started
    })
}

/// The next start is cold, for this reason.
#[track_caller]
pub fn goes_cold(warm: &Warm, reason: &'static str) {
    assert_eq!(start(warm), Started::Cold(reason), "{:?}", warm.stats());
}

/// The next start is the zygote's.
#[track_caller]
pub fn is_used(warm: &Warm) {
    assert_eq!(start(warm), Started::Zygote, "{:?}", warm.stats());
}
