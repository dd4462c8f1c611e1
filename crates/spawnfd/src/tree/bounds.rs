// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits that a cgroup enforces on a tree. Finds a directory with the needed controllers, sets the
//! limits, and reads what the kernel reports.

use std::ffi::CString;
use std::io::Write as _;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{read, write};
use spawnfd_sys::{Errno, call};

use crate::error::errno;
use crate::host::descriptors::above_standard;
use crate::host::features;

/// The period of the CPU quota, in µs.
const PERIOD: f64 = 100_000.0;

/// The limits of a tree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    /// The maximum memory in bytes.
    pub(crate) memory: Option<u64>,
    /// The maximum number of processes and threads.
    pub(crate) pids: Option<u64>,
    /// The number of processors that the tree may use at once.
    pub(crate) cpus: Option<f64>,
}

/// The limits that a cgroup enforces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct EnforcedBounds {
    pub(crate) memory: bool,
    pub(crate) pids: bool,
    pub(crate) cpus: bool,
}

impl Bounds {
    /// The controllers that these limits need.
    pub(super) fn controllers(&self) -> Vec<&'static str> {
        let needed = [self.memory.map(|_| "memory"), self.pids.map(|_| "pids"), self.cpus.map(|_| "cpu")];
        needed.into_iter().flatten().collect()
    }
}

/// The directory below which a new cgroup has most of the controllers: `own`, this process's cgroup, or its parent.
///
/// A cgroup with processes cannot enable controllers for its children, unless it is the root. (Enabling some would
/// make it threaded, and a threaded cgroup has no domain children.) If a part of the hierarchy is delegated, the
/// delegate therefore runs in a cgroup beside the cgroups that it creates.
///
/// The limits of `own` do not apply to a cgroup beside it, so `own` must have none.
pub(super) fn base_directory(own: &Path, controllers: &[&str]) -> PathBuf {
    let enabled_here = enable(own, controllers);
    if enabled_here < controllers.len()
        && let Some(above) = own.parent()
        && enabled(above, controllers) > enabled_here
        && may_write(&above.join("cgroup.procs")).is_ok()
        && has_no_limits(own)
    {
        return above.to_owned();
    }
    own.to_owned()
}

/// Checks that the calling thread may write to a file, or may create directories in a directory.
pub(super) fn may_write(path: &Path) -> std::result::Result<(), Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    call::may_write(features::killed_calls(), &path).map(drop)
}

/// The number of these controllers that a directory enables for its children.
pub(super) fn enabled(dir: &Path, controllers: &[&str]) -> usize {
    let all = std::fs::read_to_string(dir.join("cgroup.subtree_control")).unwrap_or_default();
    controllers.iter().filter(|name| all.split_whitespace().any(|other| other == **name)).count()
}

/// Like `enabled`, but if the directory is the root cgroup, first tries to enable all of these controllers. The root
/// is the only cgroup without a cgroup.type file.
fn enable(dir: &Path, controllers: &[&str]) -> usize {
    let file = dir.join("cgroup.subtree_control");
    if enabled(dir, controllers) < controllers.len() && !dir.join("cgroup.type").exists() {
        // Enable each controller on its own, because any of them may be absent.
        for name in controllers {
            let opened = std::fs::OpenOptions::new().write(true).open(&file);
            let _ = opened.and_then(|mut file| file.write_all(format!("+{name}").as_bytes()));
        }
    }
    enabled(dir, controllers)
}

/// Whether a cgroup has no limits of its own.
fn has_no_limits(dir: &Path) -> bool {
    let text_of = |name: &Path| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    let max_files = ["memory.max", "memory.high", "memory.swap.max", "memory.zswap.max", "pids.max", "cpu.max"];
    // Each page size has a file hugetlb.SIZE.max with a limit on huge pages.
    let of_pages = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        name.as_bytes().starts_with(b"hugetlb.") && name.as_bytes().ends_with(b".max")
    };
    let pages = std::fs::read_dir(dir).into_iter().flatten().flatten().filter(of_pages);
    let empty_files = ["cpuset.cpus", "cpuset.mems", "io.max"];
    let is_highest = |name: &Path| text_of(name).split_whitespace().next().is_none_or(|word| word == "max");
    max_files.iter().all(|name| is_highest(name.as_ref()))
        && pages.map(|entry| entry.file_name()).all(|name| is_highest(name.as_ref()))
        && empty_files.iter().all(|name| text_of(name.as_ref()).trim().is_empty())
}

/// The counters of a cgroup with limits.
#[derive(Debug)]
pub(crate) struct CgroupCounters {
    dir: OwnedFd,
    pub(crate) enforced: EnforcedBounds,
}

impl CgroupCounters {
    /// Sets the limits of an empty cgroup. Skips limits whose controller is not enabled.
    pub(crate) fn open(dir: BorrowedFd<'_>, limits: &Bounds) -> Result<CgroupCounters, Errno> {
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 3).map(above_standard).map_err(errno)?;
        let set = |name: &str, value: String| {
            let file = openat(&dir, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
            file.is_ok_and(|file| write(&file, value.as_bytes()).is_ok())
        };
        let memory = limits.memory.is_some_and(|bytes| {
            // Forbid swap. The file is absent if the kernel has no swap, so ignore a failure.
            set("memory.swap.max", "0".into());
            // Kill the whole tree, not only its largest process.
            set("memory.oom.group", "1".into()) && set("memory.max", bytes.to_string())
        });
        let pids = limits.pids.is_some_and(|number| set("pids.max", number.to_string()));
        let quota = |cpus: f64| format!("{} {PERIOD}", (cpus * PERIOD).round());
        let cpus = limits.cpus.is_some_and(|cpus| set("cpu.max", quota(cpus)));
        Ok(CgroupCounters { dir, enforced: EnforcedBounds { memory, pids, cpus } })
    }

    /// The CPU time of all current and former members.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        self.value("cpu.stat", "usage_usec").map(Duration::from_micros)
    }

    /// Whether the kernel has killed members because of this cgroup's own memory limit. The limit of another cgroup or
    /// of the machine does not count.
    pub(crate) fn was_out_of_memory(&self) -> bool {
        let is_nonzero = |file, name| self.value(file, name).is_some_and(|number| number > 0);
        // In the local file, `oom` counts only this cgroup's own limit. The killed process may be in a cgroup below.
        // So read `oom_kill` from memory.events, which also covers the cgroups below.
        is_nonzero("memory.events.local", "oom") && is_nonzero("memory.events", "oom_kill")
    }

    /// Whether the kernel has refused to create a process or thread because of this cgroup's own limit.
    pub(crate) fn was_refused_tasks(&self) -> bool {
        // Before Linux 6.11, pids.events counts only refusals by the cgroup's own limit. There is no
        // pids.events.local.
        let own = self.value("pids.events.local", "max").or_else(|| self.value("pids.events", "max"));
        own.is_some_and(|number| number > 0)
    }

    /// The number that follows `name` in a file. Each line of the file has a name and a number.
    fn value(&self, file: &str, name: &str) -> Option<u64> {
        let file = openat(&self.dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        // The files have at most two dozen short lines.
        let mut buffer = [0; 4096];
        let length = read(&file, &mut buffer).ok()?;
        let text = std::str::from_utf8(&buffer[..length]).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir, read_to_string, write};
    use std::os::fd::AsFd as _;

    fn open(dir: &Path) -> OwnedFd {
        openat(rustix::fs::CWD, dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).expect("own directory")
    }

    #[test]
    fn sets_the_limits_that_have_a_controller() {
        let dir = spawnfd_tests::scratch();
        let file = |name: &str| dir.path().join(name);
        for name in ["memory.max", "memory.oom.group", "cpu.max"] {
            write(file(name), "").expect("own directory");
        }
        let limits = Bounds { memory: Some(1 << 20), pids: Some(7), cpus: Some(1.5) };
        let counters = CgroupCounters::open(open(dir.path()).as_fd(), &limits).expect("own directory");
        assert_eq!(counters.enforced, EnforcedBounds { memory: true, pids: false, cpus: true });
        let text_of = |name: &str| read_to_string(file(name)).expect("written");
        assert_eq!((text_of("memory.max"), text_of("memory.oom.group")), ("1048576".into(), "1".into()));
        assert_eq!(text_of("cpu.max"), "150000 100000");
        assert!(!file("pids.max").exists());
        assert_eq!(limits.controllers(), ["memory", "pids", "cpu"]);
    }

    #[test]
    fn reads_the_kernel_s_counters() {
        let dir = spawnfd_tests::scratch();
        let text_of = |name: &str, text: &str| write(dir.path().join(name), text).expect("own directory");
        let counters = CgroupCounters::open(open(dir.path()).as_fd(), &Bounds::default()).expect("own directory");
        assert_eq!(
            (counters.cpu_time(), counters.was_out_of_memory(), counters.was_refused_tasks()),
            (None, false, false)
        );
        text_of("cpu.stat", "usage_usec 1500\nuser_usec 1000\nsystem_usec 500\n");
        text_of("memory.events.local", "low 0\nhigh 0\nmax 9\noom 0\noom_kill 3\noom_group_kill 0\n");
        text_of("memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 0\n");
        text_of("pids.events", "max 0\n");
        assert_eq!(counters.cpu_time(), Some(Duration::from_micros(1500)));
        assert!(!counters.was_out_of_memory(), "killed because of another cgroup's limit, above or below");
        assert!(!counters.was_refused_tasks());
        text_of("memory.events.local", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\noom_group_kill 0\n");
        text_of("pids.events", "max 12\n");
        assert!(
            counters.was_out_of_memory() && counters.was_refused_tasks(),
            "the killed process was in a cgroup below"
        );
        text_of("pids.events.local", "max 0\n");
        assert!(!counters.was_refused_tasks(), "a descendant's limit");
    }

    #[test]
    fn the_base_directory_is_the_one_with_most_controllers() {
        let dir = spawnfd_tests::scratch();
        let own = dir.path().join("own");
        create_dir(&own).expect("own directory");
        let above = |name: &str, text: &str| write(dir.path().join(name), text).expect("own directory");
        let here = |name: &str, text: &str| write(own.join(name), text).expect("own directory");
        here("cgroup.type", "domain\n");
        here("cgroup.subtree_control", "");
        assert_eq!(base_directory(&own, &["memory"]), own, "no directory has the controller");
        let asked = || read_to_string(own.join("cgroup.subtree_control")).expect("own directory");
        assert_eq!(asked(), "", "unchanged");
        std::fs::remove_file(own.join("cgroup.type")).expect("own directory");
        assert_eq!(
            (base_directory(&own, &["memory"]), asked()),
            (own.clone(), "+memory".into()),
            "enabled in the root"
        );
        here("cgroup.subtree_control", "");
        here("cgroup.type", "domain\n");
        above("cgroup.procs", "");
        above("cgroup.subtree_control", "cpu memory pids\n");
        here("memory.max", "max\n");
        here("cpu.max", "max 100000\n");
        assert_eq!(base_directory(&own, &["memory", "pids"]), dir.path());
        assert_eq!(base_directory(&own, &[]), own, "every cgroup counts CPU time");
        here("pids.max", "100\n");
        assert_eq!(base_directory(&own, &["memory", "pids"]), own, "a cgroup beside it would escape its limit");
        here("pids.max", "max\n");
        here("cpuset.cpus", "0-1\n");
        assert_eq!(base_directory(&own, &["memory", "pids"]), own);
        here("cpuset.cpus", "\n");
        here("hugetlb.2MB.max", "0\n");
        assert_eq!(base_directory(&own, &["memory", "pids"]), own);
        here("hugetlb.2MB.max", "max\n");
        assert_eq!(base_directory(&own, &["memory", "pids"]), dir.path());
        here("cgroup.subtree_control", "memory pids\n");
        assert_eq!(base_directory(&own, &["memory", "pids"]), own);
    }
}
