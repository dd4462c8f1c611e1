// SPDX-License-Identifier: MIT OR Apache-2.0
//! Process trees in a cgroup (v2). Each function gets the cgroup's open directory. A process leaves the cgroup only
//! if it, or another process, moves it to another cgroup.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use crate::members::needs_continue;
use crate::process::{Stat, each_entry};
use crate::sys::{self, Errno, Fd, SIGCONT, SIGKILL};

/// Kills all processes in a cgroup and in its descendant cgroups.
///
/// Writes `cgroup.kill` (Linux 5.14). No process escapes this by forking. On older kernels the
/// function freezes the cgroup, kills each member, and thaws the cgroup.
pub fn kill(dir: i32) {
    if write(dir, c"cgroup.kill", b"1").is_err() {
        kill_frozen(dir);
    }
}

fn kill_frozen(dir: i32) {
    let _ = write(dir, c"cgroup.freeze", b"1");
    signal(dir, SIGKILL);
    let _ = write(dir, c"cgroup.freeze", b"0");
}

/// Sends a signal once to each member, and returns the pids of those that got it.
///
/// A stopped member also gets SIGCONT, because it would not handle the signal otherwise.
pub fn signal(dir: i32, signal: i32) -> Vec<i32> {
    let mut reached = Vec::new();
    // A member may end before pidfd_open, and another process may get its pid. If the cgroup still lists the pid
    // afterwards, the pidfd refers to the member.
    let opened: Vec<(i32, Fd)> =
        members(dir).into_iter().filter_map(|pid| Some((pid, sys::pidfd_open(pid).ok()?))).collect();
    let still = members(dir);
    for (pid, pidfd) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
        if sys::signal(pidfd, signal).is_err() {
            continue;
        }
        reached.push(*pid);
        if needs_continue(signal) && Stat::read(*pid).is_some_and(|stat| stat.is_stopped()) {
            let _ = sys::signal(pidfd, SIGCONT);
        }
    }
    reached
}

/// Returns the pids of the processes in a cgroup and in its descendant cgroups.
///
/// Leaves out processes that have no pid in the caller's pid namespace.
pub fn members(dir: i32) -> Vec<i32> {
    let mut found = direct_members(dir);
    each_descendant(dir, |_, _, group| found.extend(direct_members(group.number())));
    found
}

fn direct_members(dir: i32) -> Vec<i32> {
    let text = contents(dir, c"cgroup.procs").unwrap_or_default();
    let lines = text.split(|&byte| byte == b'\n').filter_map(|line| core::str::from_utf8(line).ok()?.parse().ok());
    lines.filter(|&pid: &i32| pid > 0).collect()
}

/// Whether the cgroup or a descendant has a process. `false` if the function cannot read cgroup.events.
pub fn is_populated(dir: i32) -> bool {
    read_populated(dir) == Some(true)
}

/// Whether the cgroup or a descendant has a process. `None` if the cgroup exists but the function cannot read it.
pub fn read_populated(dir: i32) -> Option<bool> {
    match contents(dir, c"cgroup.events") {
        Ok(events) => Some(events.windows(11).any(|window| window == b"populated 1")),
        Err(Errno::ENOENT | Errno::ENODEV) => Some(false),
        Err(_) => None,
    }
}

/// Kills repeatedly until the cgroup is empty, at most for `milliseconds`. Returns whether the cgroup is empty.
pub fn kill_until_empty(dir: i32, milliseconds: u64) -> bool {
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

/// Removes an empty cgroup and its empty descendants.
///
/// # Errors
/// EBUSY: the cgroup has a process. EACCES, EPERM: the caller may no longer remove the cgroup.
pub fn remove(path: &CStr) -> sys::Result<()> {
    match sys::remove_directory(sys::CWD, path) {
        Err(Errno::EBUSY | Errno::ENOTEMPTY) => {
            let dir = sys::open(sys::CWD, path, sys::DIRECTORY)?;
            each_descendant(dir.number(), |above, name, _| {
                let _ = sys::remove_directory(above, name);
            });
            sys::remove_directory(sys::CWD, path)
        }
        Err(Errno::ENOENT) => Ok(()),
        answer => answer,
    }
}

/// Visits the descendants of a cgroup, each after its own descendants.
///
/// Passes to `each` the parent directory, the cgroup's name there, and the cgroup's own directory. Uses three
/// descriptors at any depth.
fn each_descendant(dir: i32, mut each: impl FnMut(i32, &CStr, &Fd)) {
    let mut top_level = child_names(dir);
    let mut path: Vec<(CString, Vec<CString>)> = Vec::new();
    // The cgroup that the loop visits now; `None` for `dir` itself.
    let mut current: Option<Fd> = None;
    loop {
        let number = current.as_ref().map_or(dir, Fd::number);
        if let Some(name) = path.last_mut().map_or(&mut top_level, |(_, remaining)| remaining).pop() {
            if let Ok(group) = sys::open(number, &name, sys::DIRECTORY) {
                path.push((name, child_names(group.number())));
                current = Some(group);
            }
        } else if let (Some((name, _)), Some(group)) = (path.pop(), current.take()) {
            if !path.is_empty() {
                // A cgroup never moves, and `..` works even in a removed cgroup.
                let Ok(parent) = sys::open(group.number(), c"..", sys::DIRECTORY) else { return };
                current = Some(parent);
            }
            each(current.as_ref().map_or(dir, Fd::number), &name, &group);
        } else {
            return;
        }
    }
}

/// The names of the child cgroups.
fn child_names(dir: i32) -> Vec<CString> {
    let mut names: Vec<CString> = Vec::new();
    // Open the directory again, because reading entries moves the descriptor's offset, and `dir` belongs to the
    // caller.
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
    while let Ok(length @ 1..) = sys::read(file.number(), &mut buffer) {
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

    /// Tests the fallback for Linux before 5.14, which has no `cgroup.kill`.
    #[test]
    fn kills_by_freezing_and_removes_nested_cgroups() {
        let Some(path) = new_group() else {
            std::eprintln!("SKIP kills_by_freezing_and_removes_nested_cgroups: cannot create a cgroup");
            return;
        };
        let c_path = CString::new(path.as_str()).expect("no NUL");
        let procs = std::format!("{path}/cgroup.procs");
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' TERM; sleep 1000 & sleep 1000 & wait"]);
        // SAFETY: the closure only writes a file; the file's name was allocated before the fork.
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
        assert!(kill_until_empty(dir.number(), 10_000));
        sleep.wait().expect("own child");
        let (mut groups, mut numbers) = (0, std::collections::BTreeSet::new());
        each_descendant(dir.number(), |_, _, group| {
            groups += 1;
            numbers.insert(group.number());
        });
        assert_eq!(groups, 200);
        assert!(numbers.len() < 50, "more descriptors than needed: {numbers:?}");
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
