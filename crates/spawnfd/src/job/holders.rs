// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who holds a pipe: for the rare run whose pipes outlive its program.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use spawnfd_sys::call;

/// The processes, other than this one, that have one of `pipes` open, as far as /proc shows.
pub(super) fn holders(pipes: &[BorrowedFd<'_>]) -> Vec<u32> {
    let inodes: BTreeSet<String> = pipes
        .iter()
        .filter_map(|pipe| call::identify(pipe.as_fd().as_raw_fd()).ok())
        .map(|(_, inode)| format!("pipe:[{inode}]"))
        .collect();
    let own = std::process::id();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut found: Vec<u32> = processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&pid| pid != own)
        .filter(|pid| {
            let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
            fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
                .any(|target| target.to_str().is_some_and(|target| inodes.contains(target)))
        })
        .collect();
    found.sort_unstable();
    found
}
