// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tree that is a cgroup (v2), by its open directory. A process leaves it only if it is moved to another group.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use crate::members::{SIGCONT, wakes};
use crate::process::{Stat, each_entry};
use crate::sys::{self, Errno, Fd};

/// Kills all processes in a group and in the groups below it.
///
/// Writes `cgroup.kill` (Linux 5.14), which no process escapes by forking. On older kernels the function freezes the
/// group, kills each member, and thaws the group.
pub fn kill(dir: i32) {
    if write(dir, c"cgroup.kill", b"1").is_err() {
        kill_frozen(dir);
    }
}

fn kill_frozen(dir: i32) {
    let _ = write(dir, c"cgroup.freeze", b"1");
    signal(dir, 9);
    let _ = write(dir, c"cgroup.freeze", b"0");
}

/// Sends a signal once to each member, and returns the pids of those that got it.
///
/// A stopped member also gets SIGCONT, because it would not handle the signal otherwise.
pub fn signal(dir: i32, signal: i32) -> Vec<i32> {
    let mut reached = Vec::new();
    // A pid may pass to another process before pidfd_open. If the pid is still a member afterwards, the pidfd is the
    // member's.
    let opened: Vec<(i32, Fd)> =
        members(dir).into_iter().filter_map(|pid| Some((pid, sys::pidfd_open(pid).ok()?))).collect();
    let still = members(dir);
    for (pid, pidfd) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
        if sys::signal(pidfd, signal).is_err() {
            continue;
        }
        reached.push(*pid);
        if wakes(signal) && Stat::read(*pid).is_some_and(|stat| stat.is_stopped()) {
            let _ = sys::signal(pidfd, SIGCONT);
        }
    }
    reached
}

/// The pids of the processes in a group and in the groups below it.
///
/// Leaves out processes that have no pid in the caller's pid namespace.
pub fn members(dir: i32) -> Vec<i32> {
    let mut found = members_of_one(dir);
    each_below(dir, |_, _, group| found.extend(members_of_one(group.number())));
    found
}

fn members_of_one(dir: i32) -> Vec<i32> {
    let text = contents(dir, c"cgroup.procs").unwrap_or_default();
    let lines = text.split(|&byte| byte == b'\n').filter_map(|line| core::str::from_utf8(line).ok()?.parse().ok());
    lines.filter(|&pid: &i32| pid > 0).collect()
}

/// Whether the group or a group below it has a process. `false` if that cannot be read.
pub fn is_populated(dir: i32) -> bool {
    population(dir) == Some(true)
}

/// Whether the group or a group below it has a process. `None` if the group exists but cannot be read.
pub fn population(dir: i32) -> Option<bool> {
    match contents(dir, c"cgroup.events") {
        Ok(events) => Some(events.windows(11).any(|window| window == b"populated 1")),
        Err(Errno::ENOENT | Errno::ENODEV) => Some(false),
        Err(_) => None,
    }
}

/// Kills repeatedly until the group is empty, at most for `milliseconds`. Returns whether the group is empty.
pub fn end(dir: i32, milliseconds: u64) -> bool {
    let deadline = sys::now().saturating_add(milliseconds);
    while is_populated(dir) {
        kill(dir);
        if !is_populated(dir) {
            break;
        }
        if sys::now() >= deadline {
            return false;
        }
        sys::sleep(1);
    }
    true
}

/// Removes an empty group, with the empty groups below it.
///
/// # Errors
/// EBUSY: the group has a process. EACCES, EPERM: the caller may no longer remove the group.
pub fn remove(path: &CStr) -> sys::Result<()> {
    match sys::remove_directory(sys::CWD, path) {
        Err(Errno::EBUSY | Errno::ENOTEMPTY) => {
            let dir = sys::open(sys::CWD, path, sys::DIRECTORY)?;
            each_below(dir.number(), |above, name, _| {
                let _ = sys::remove_directory(above, name);
            });
            sys::remove_directory(sys::CWD, path)
        }
        Err(Errno::ENOENT) => Ok(()),
        answer => answer,
    }
}

/// Visits the groups below one, each after the groups below itself.
///
/// Passes to `each` the parent directory, the group's name there, and the group's own directory. Uses three
/// descriptors at any depth.
fn each_below(dir: i32, mut each: impl FnMut(i32, &CStr, &Fd)) {
    let mut left = below(dir);
    let mut path: Vec<(CString, Vec<CString>)> = Vec::new();
    // `None`: the current group is `dir` itself.
    let mut here: Option<Fd> = None;
    loop {
        let number = here.as_ref().map_or(dir, Fd::number);
        if let Some(name) = path.last_mut().map_or(&mut left, |(_, left)| left).pop() {
            if let Ok(group) = sys::open(number, &name, sys::DIRECTORY) {
                path.push((name, below(group.number())));
                here = Some(group);
            }
        } else if let (Some((name, _)), Some(group)) = (path.pop(), here.take()) {
            if !path.is_empty() {
                // A group never moves, and `..` works even in a removed group.
                let Ok(above) = sys::open(group.number(), c"..", sys::DIRECTORY) else { return };
                here = Some(above);
            }
            each(here.as_ref().map_or(dir, Fd::number), &name, &group);
        } else {
            return;
        }
    }
}

/// The names of the groups directly below.
fn below(dir: i32) -> Vec<CString> {
    let mut names: Vec<CString> = Vec::new();
    // Open the directory again, because reading moves the offset of a descriptor.
    let Ok(listing) = sys::open(dir, c".", sys::DIRECTORY) else { return names };
    each_entry(&listing, |name, is_directory| {
        if is_directory && name != c"." && name != c".." {
            names.push(CString::from(name));
        }
    });
    names
}

fn write(dir: i32, name: &CStr, bytes: &[u8]) -> sys::Result<()> {
    let file = sys::open(dir, name, sys::WRITE)?;
    sys::write(file.number(), bytes).map(drop)
}

fn contents(dir: i32, name: &CStr) -> sys::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut buffer = [0; 1024];
    let file = sys::open(dir, name, sys::READ)?;
    while let Ok(length @ 1..) = sys::read(&file, &mut buffer) {
        text.extend_from_slice(buffer.get(..length).unwrap_or_default());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::ffi::CString;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// As on Linux before 5.14: does not use `cgroup.kill`.
    #[test]
    fn kills_by_freezing() {
        let Some(path) = new_group() else {
            std::eprintln!("SKIP kills_by_freezing: no cgroup v2 can be made");
            return;
        };
        let c_path = CString::new(path.as_str()).expect("no NUL");
        let procs = std::format!("{path}/cgroup.procs");
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' TERM; sleep 1000 & sleep 1000 & wait"]);
        // SAFETY: writes a file, whose name is made before.
        unsafe { shell.pre_exec(move || std::fs::write(&procs, "0")) };
        let mut child = shell.spawn().expect("starts");
        let dir = sys::open(sys::CWD, &c_path, sys::DIRECTORY).expect("own directory");
        assert!(is_populated(dir.number()));
        assert_eq!(remove(&c_path), Err(Errno::EBUSY));
        while members(dir.number()).len() < 3 {
            sys::sleep(1);
        }
        kill_frozen(dir.number());
        child.wait().expect("own child");
        while is_populated(dir.number()) {
            sys::sleep(1);
        }
        let mut deep = path.clone();
        for _ in 0..100 {
            deep += "/below";
            std::fs::create_dir(&deep).expect("own directory");
            std::fs::create_dir(std::format!("{deep}/beside")).expect("own directory");
        }
        let mut sleep = Command::new("sleep").arg("1000").spawn().expect("starts");
        let pid = sleep.id() as i32;
        std::fs::write(std::format!("{deep}/cgroup.procs"), std::format!("{pid}")).expect("own group");
        assert_eq!(members(dir.number()), [pid]);
        assert!(end(dir.number(), 10_000));
        sleep.wait().expect("own child");
        let (mut groups, mut numbers) = (0, std::collections::BTreeSet::new());
        each_below(dir.number(), |_, _, group| {
            groups += 1;
            numbers.insert(group.number());
        });
        assert_eq!(groups, 200);
        assert!(numbers.len() < 50, "a descriptor for each level: {numbers:?}");
        assert_eq!(remove(&c_path), Ok(()));
    }

    fn new_group() -> Option<std::string::String> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?.split(' ').nth(1)?;
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let path = std::format!("{mount}/{own}/spawnfd-test-{}", std::process::id());
        std::fs::create_dir(&path).ok().map(|()| path)
    }
}
