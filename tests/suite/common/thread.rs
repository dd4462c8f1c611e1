// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the suites on launcher threads share.

use std::collections::BTreeMap;

use spawnfd::{Command, LauncherThread};

use super::code;

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

#[track_caller]
pub fn starts(launcher: &LauncherThread) {
    assert_eq!(code(Command::new("/bin/true").launcher(launcher).spawn()), Ok(0));
}

/// One start goes without the thread, for this reason.
#[track_caller]
pub fn falls_back(launcher: &LauncherThread, reason: &str) {
    let before = launcher.stats();
    starts(launcher);
    let after = launcher.stats();
    assert_eq!(after.spawned, before.spawned);
    let more = |name: &str, count: u64| count - before.fell_back.get(name).copied().unwrap_or(0);
    let reasons: BTreeMap<&str, u64> =
        after.fell_back.iter().map(|(name, count)| (*name, more(name, *count))).filter(|(_, more)| *more > 0).collect();
    assert_eq!(reasons, BTreeMap::from([(reason, 1)]));
}

#[track_caller]
pub fn is_used(launcher: &LauncherThread) {
    let before = launcher.stats();
    starts(launcher);
    let mut expected = before;
    expected.spawned += 1;
    assert_eq!(launcher.stats(), expected);
}
