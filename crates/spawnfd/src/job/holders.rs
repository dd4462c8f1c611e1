// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the processes that have a pipe or a terminal open, for a run whose streams outlive its program.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::pty::ptsname;
use spawnfd_guard::process::is_proc_foreign;
use spawnfd_sys::call;

/// Returns the other processes that have the opposite end of one of the descriptors `ours` open, as
/// far as /proc shows them.
pub(super) fn holders(ours: &[BorrowedFd<'_>]) -> Vec<u32> {
    // If /proc belongs to another pid namespace, its pids mean other processes here.
    if is_proc_foreign() {
        return Vec::new();
    }
    let others: BTreeSet<OsString> = ours.iter().filter_map(|ours| other_side(*ours)).collect();
    let own = std::process::id();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found: Vec<u32> = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != own)
        .filter(|pid| {
            let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
            fds.filter_map(|fd| Some(fd.ok()?.path())).any(|fd| {
                let target = std::fs::read_link(&fd).unwrap_or_default();
                // Another devpts mount has terminals with the same names, so compare device and inode as well.
                others.contains(target.as_os_str()) && (!target.is_absolute() || file(&fd) == file(&target))
            })
        })
        .collect();
    found.sort_unstable();
    found
}

/// The name under which /proc/PID/fd shows the opposite end of this pipe or terminal.
fn other_side(ours: BorrowedFd<'_>) -> Option<OsString> {
    if let Ok(terminal) = ptsname(ours, Vec::new()) {
        return Some(OsString::from_vec(terminal.into_bytes()));
    }
    let (_, inode) = call::identify(ours.as_fd().as_raw_fd()).ok()?;
    Some(format!("pipe:[{inode}]").into())
}

fn file(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}
