// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kills and removes the cgroups of dead owners. Usually the guard does this. If the owner and its guard were killed
//! together, another process of the same user does this when it creates a cgroup in the same directory.
//!
//! The name of a cgroup identifies its owner: pid and start time, and the namespaces to which both belong.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fmt::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fchmod, fstat, openat};
use spawnfd_guard::process::{Stat, is_proc_foreign};
use spawnfd_guard::{cgroup as group, sys};

use crate::host::descriptors::above_standard;
use crate::host::per_process::PerProcess;

/// The prefix of the names of all cgroups that the library creates.
const PREFIX: &str = "spawnfd-";

/// The mode bit that marks a cgroup with released processes, which no sweep kills. The bit has no meaning for a cgroup.
const RELEASED: Mode = Mode::SVTX;

/// The maximum number of directory entries to read.
const MAX_ENTRIES: usize = 10_000;

/// How long to wait for the killed processes of one cgroup.
const KILL_MS: u64 = 100;

/// The owner's part of the names of this process's cgroups.
static OWN_NAME: PerProcess<Option<String>> = PerProcess::new(None);

/// The directories that this process has swept.
static SWEPT: PerProcess<BTreeSet<PathBuf>> = PerProcess::new(BTreeSet::new());

/// Returns the first part of the name of this process's cgroups: prefix, pid, start time, namespaces. The start time is
/// 0 if it is unknown.
pub(super) fn own_prefix() -> String {
    let describe = || {
        let own = sys::getpid();
        let start = Stat::read(own).filter(|_| !is_proc_foreign()).map_or(0, |stat| stat.process.start);
        format!("{PREFIX}{own}-{start}-{}", namespaces())
    };
    OWN_NAME.lock().get_or_insert_with(describe).clone()
}

/// The inodes of this process's pid and time namespaces. Pids and start times have a meaning only there.
fn namespaces() -> String {
    let mut text = String::new();
    for name in ["pid", "time"] {
        let target = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default();
        let digits: String = target.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
        let _ = write!(text, "{}{digits}", if text.is_empty() { "" } else { "." });
    }
    text
}

/// Marks a cgroup whose processes are released, so that no sweep kills them.
pub(super) fn mark_released(dir: &impl std::os::fd::AsFd) {
    let _ = fchmod(dir, Mode::from(0o755) | RELEASED);
}

/// Kills and removes the cgroups of dead owners in a directory. Only the first call for a directory does this.
pub(super) fn sweep_once(base: &Path) {
    if is_proc_foreign() || !SWEPT.lock().insert(base.to_owned()) {
        return;
    }
    let own_namespaces = namespaces();
    let Ok(entries) = base.read_dir() else { return };
    for entry in entries.take(MAX_ENTRIES).flatten() {
        let name = entry.file_name();
        if name.to_str().and_then(|name| owner(name, &own_namespaces)).is_some_and(is_dead) {
            remove(&entry.path());
        }
    }
}

/// Returns the owner's pid and start time from the name of a cgroup. `None` if the library did not choose the name, if
/// the name has no start time, or if pid and time belong to other namespaces.
fn owner(name: &str, own_namespaces: &str) -> Option<(i32, u64)> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let (pid, start) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    (parts.next()? == own_namespaces && start > 0).then_some((pid, start))
}

fn is_dead((pid, start): (i32, u64)) -> bool {
    Stat::read(pid).map_or_else(|| sys::getsid(pid) == Err(sys::Errno::ESRCH), |stat| stat.process.start != start)
}

fn remove(path: &Path) {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = openat(CWD, path, flags, Mode::empty()).map(above_standard) else { return };
    let is_own = |found: &rustix::fs::Stat| found.st_uid == rustix::process::geteuid().as_raw();
    let Ok(found) = fstat(&dir) else { return };
    if !is_own(&found) {
        return;
    }
    if found.st_mode & RELEASED.as_raw_mode() == 0 {
        group::kill_until_empty(dir.as_raw_fd(), KILL_MS);
    }
    if let Ok(path) = CString::new(path.as_os_str().as_bytes()) {
        let _ = group::remove(&path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_identifies_its_owner() {
        let (own, namespaces) = (own_prefix() + "-7-0123456789abcdef", namespaces());
        let (pid, start) = owner(&own, &namespaces).expect("this process's name");
        assert_eq!(pid, std::process::id() as i32);
        assert!(!is_dead((pid, start)) && is_dead((pid, start + 1)));
        assert!(namespaces.len() > 3, "{namespaces}");
        for other in
            ["spawnfd-1-2", "spawnfd-x-2-3", "spawnfd-", "other-1-2-3", &format!("spawnfd-{pid}-0-{namespaces}-1")]
        {
            assert_eq!(owner(other, &namespaces), None, "{other}");
        }
        assert_eq!(owner(&own, "1.2"), None, "other namespaces");
    }
}
