// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the processes that have a pipe or a terminal open, for a run whose streams outlive its program.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::pty::ptsname;
use spawnfd_guard::process::{Stat, is_proc_foreign};
use spawnfd_sys::call;

/// Returns the other processes that have the opposite end of one of the descriptors `ours` open, as
/// far as /proc shows them.
pub(super) fn holders(ours: &[BorrowedFd<'_>]) -> Vec<u32> {
    // If /proc belongs to another pid namespace, its pids mean other processes here.
    if is_proc_foreign() {
        return Vec::new();
    }
    let others = other_sides(ours);
    let own = std::process::id();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found: Vec<u32> = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != own)
        .filter(|&pid| has_open(pid, &others))
        .collect();
    found.sort_unstable();
    found
}

/// Returns those of the [`holders`] of `ours` that have inherited their descriptor from the run's program.
///
/// Leaves out the forks of this process that have not called exec, such as a child that another thread is starting: they
/// have copies of this process's descriptors.
pub(super) fn programs(holders: &[u32], ours: &[BorrowedFd<'_>]) -> Vec<Stat> {
    let Some(own) = Stat::read(std::process::id() as i32) else { return Vec::new() };
    let others = other_sides(ours);
    let stats = holders.iter().filter_map(|&pid| read(pid)).filter(|stat| !stat.may_be_copy_of(&own));
    // A copy may have executed a program since the caller searched for holders, and has the descriptors no longer.
    stats.filter(|stat| has_open(stat.process.pid as u32, &others)).collect()
}

/// Reads a process. If it is in the first part of exec, which hides its stack, waits a moment: up to 20 ms, because a busy
/// machine may run other processes meanwhile.
fn read(pid: u32) -> Option<Stat> {
    for _ in 0..100 {
        let stat = Stat::read(pid as i32).filter(|stat| stat.has_called_exec() || !stat.hides_stack());
        if stat.is_some() {
            return stat;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Stat::read(pid as i32)
}

/// Whether a process has one of these files open.
fn has_open(pid: u32, files: &BTreeSet<OsString>) -> bool {
    let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    fds.filter_map(|fd| Some(fd.ok()?.path())).any(|fd| {
        let target = std::fs::read_link(&fd).unwrap_or_default();
        // Both ends of a pipe have the same name. Another devpts mount has terminals with the same names, so compare
        // device and inode as well.
        files.contains(target.as_os_str())
            && if target.is_absolute() { file(&fd) == file(&target) } else { is_open_for_writing(&fd) }
    })
}

fn other_sides(ours: &[BorrowedFd<'_>]) -> BTreeSet<OsString> {
    ours.iter().filter_map(|ours| other_side(*ours)).collect()
}

/// The name under which /proc/PID/fd shows the opposite end of this pipe or terminal.
fn other_side(ours: BorrowedFd<'_>) -> Option<OsString> {
    if let Ok(terminal) = ptsname(ours, Vec::new()) {
        return Some(OsString::from_vec(terminal.into_bytes()));
    }
    let (_, inode) = call::identify(ours.as_fd().as_raw_fd()).ok()?;
    Some(format!("pipe:[{inode}]").into())
}

/// Whether the process can write to its file, according to the mode of the link in /proc/PID/fd.
fn is_open_for_writing(link: &Path) -> bool {
    // std would call statx, and a seccomp filter may kill the caller for statx.
    rustix::fs::lstat(link).is_ok_and(|link| link.st_mode & 0o200 != 0)
}

fn file(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}
