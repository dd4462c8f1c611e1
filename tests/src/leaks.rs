// SPDX-License-Identifier: MIT OR Apache-2.0
//! Snapshots of what a process can leak: descriptors, children, threads, temporary files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::scratch::PREFIX;
use crate::state::{Answer, Child, children, open_fds, threads};

/// An open descriptor, without its offset, which changes with use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFd {
    /// st_dev.
    pub device: u64,
    /// st_ino.
    pub inode: u64,
    /// F_GETFL by name.
    pub flags: String,
    /// FD_CLOEXEC.
    pub cloexec: bool,
    /// The target of the link in /proc/self/fd.
    pub target: String,
}

/// Descriptors, children, threads and temporary files at one moment.
///
/// A snapshot is exact only if no other thread runs while it is taken: see [`crate::isolated!`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Descriptors of the calling thread's table.
    pub fds: BTreeMap<i32, OpenFd>,
    /// Children of every thread, zombies included.
    pub children: Vec<Child>,
    /// Whether waitid(2) with __WALL finds a zombie.
    pub has_zombie: bool,
    /// Thread ids.
    pub threads: Vec<i32>,
    /// Names in the temporary directory, without those of `scratch`. Empty unless the process is isolated.
    pub temporary: BTreeSet<String>,
}

impl Snapshot {
    /// Takes a snapshot of the calling thread's process.
    pub fn take() -> Self {
        let describe = |fd: crate::Fd| OpenFd {
            device: fd.device,
            inode: fd.inode,
            flags: fd.flags,
            cloexec: fd.cloexec,
            target: fd.target.known().cloned().unwrap_or_default(),
        };
        Self {
            fds: open_fds().into_iter().map(|(number, fd)| (number, describe(fd))).collect(),
            children: known(children()),
            has_zombie: has_zombie(),
            threads: known(threads()),
            temporary: if crate::isolated::is_isolated() { temporary_files() } else { BTreeSet::new() },
        }
    }

    /// One line for each difference; empty if nothing changed.
    pub fn diff(before: &Self, after: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let numbers: BTreeSet<&i32> = before.fds.keys().chain(after.fds.keys()).collect();
        for number in numbers {
            match (before.fds.get(number), after.fds.get(number)) {
                (Some(fd), None) => lines.push(format!("fd {number} closed: {fd:?}")),
                (None, Some(fd)) => lines.push(format!("fd {number} leaked: {fd:?}")),
                (Some(a), Some(b)) if a != b => lines.push(format!("fd {number} changed: {a:?} -> {b:?}")),
                _ => {}
            }
        }
        let mut set = |what: &str, lost: Vec<String>, gained: Vec<String>| {
            lines.extend(lost.iter().map(|item| format!("{what} gone: {item}")));
            lines.extend(gained.iter().map(|item| format!("{what} left: {item}")));
        };
        set("child", beyond(&before.children, &after.children), beyond(&after.children, &before.children));
        set("thread", beyond(&before.threads, &after.threads), beyond(&after.threads, &before.threads));
        set("temporary file", beyond(&before.temporary, &after.temporary), beyond(&after.temporary, &before.temporary));
        if before.has_zombie != after.has_zombie {
            lines.push(format!("waitid finds an ended child: {} -> {}", before.has_zombie, after.has_zombie));
        }
        lines
    }
}

/// Asserts that two snapshots are equal.
///
/// # Panics
/// If the snapshots differ, with every difference.
#[track_caller]
pub fn assert_same(before: &Snapshot, after: &Snapshot) {
    let lines = Snapshot::diff(before, after);
    assert!(lines.is_empty(), "left behind or lost:\n  {}", lines.join("\n  "));
}

/// Waits until a new snapshot equals `before`. The wait is needed because a joined thread stays listed in /proc for a
/// moment.
///
/// # Panics
/// If a difference remains after 20 s.
#[track_caller]
pub fn assert_unchanged(before: &Snapshot) {
    let start = Instant::now();
    let mut after = Snapshot::take();
    while after != *before && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(2));
        after = Snapshot::take();
    }
    assert_same(before, &after);
}

/// Elements of `a` that are not in `b`.
fn beyond<'a, T: PartialEq + std::fmt::Debug + 'a>(
    a: impl IntoIterator<Item = &'a T>,
    b: impl IntoIterator<Item = &'a T> + Clone,
) -> Vec<String> {
    a.into_iter().filter(|item| !b.clone().into_iter().any(|o| o == *item)).map(|item| format!("{item:?}")).collect()
}

fn known<T>(answer: Answer<Vec<T>>) -> Vec<T> {
    match answer {
        Answer::Known(items) => items,
        Answer::Refused(refusal) => {
            panic!("leak snapshots need /proc/self/task: {}", refusal.errno)
        }
    }
}

fn has_zombie() -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: waitid stores one `siginfo_t`. With WNOWAIT it does not reap the child.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) };
    // SAFETY: the struct is zeroed. If waitid found a child, it has stored the child's pid in si_pid.
    result == 0 && unsafe { info.assume_init().si_pid() } != 0
}

fn temporary_files() -> BTreeSet<String> {
    let entries = std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with(PREFIX)).collect()
}
