// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel features that this library uses, and what it does without them. For `spawnfd doctor`, and for callers
//! that want to know before they rely on a feature.

use std::path::PathBuf;

use crate::host::features;
use crate::tree;

/// The consequence if the kernel lacks a feature, or a filter refuses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Without {
    /// No program can be started: the library requires the feature.
    Nothing,
    /// Only requests that need the feature fail, with the kernel's errno.
    Refused,
    /// The library automatically uses a fallback.
    Instead {
        /// The fallback.
        way: &'static str,
        /// The cost of the fallback, or what is lost.
        cost: &'static str,
    },
    /// Nothing: the library does not use the feature.
    Unused,
}

/// One feature of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Feature {
    /// The system call, or the call and its flag.
    pub name: &'static str,
    /// The first Linux version that has the feature.
    pub since: &'static str,
    /// The library's use of the feature.
    pub purpose: &'static str,
    /// The consequence without the feature.
    pub without: Without,
}

/// The features that the library uses in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Support {
    /// A patched kernel starts programs in one system call, if it supports the request; otherwise clone and exec.
    pub kernel: bool,
    /// clone3 creates children; otherwise clone.
    pub clone3: bool,
    /// Children leave the caller's descriptor table by close_range; otherwise they list their descriptors and mark
    /// them close-on-exec.
    pub close_range: bool,
    /// Children copy their descriptors from the caller by pidfd_getfd; otherwise they receive them through a
    /// socket, or get a copy of the caller's table. Only a child can find out that the kernel refuses pidfd_getfd.
    /// Until a child with descriptors has tried, this value is a guess.
    pub fetch: bool,
    /// All features, with the fallback of each.
    pub features: &'static [Feature],
}

/// The features that the library uses in the calling thread. The values come from a probe, or from a later spawn
/// that a filter refused.
pub fn support() -> Support {
    let here = features::of_calling_thread();
    Support {
        kernel: here.has_kernel(),
        clone3: here.has_clone3(),
        close_range: here.has_close_range(),
        fetch: here.has_close_range() && here.can_fetch(),
        features: &FEATURES,
    }
}

/// The directory of this process's own cgroup (v2), if it has one.
#[doc(hidden)]
pub fn own_cgroup() -> Option<PathBuf> {
    tree::own_directory()
}

const fn feature(name: &'static str, since: &'static str, purpose: &'static str, without: Without) -> Feature {
    Feature { name, since, purpose, without }
}

const fn instead(way: &'static str, cost: &'static str) -> Without {
    Without::Instead { way, cost }
}

/// In the order in which a spawn uses them.
static FEATURES: [Feature; 23] = [
    feature(
        "pidfd_spawn_run",
        "kernel/patches",
        "the whole start in one call",
        instead("clone and exec", "some microseconds"),
    ),
    feature(
        "clone3",
        "5.3",
        "clone of the child",
        instead(
            "clone; the child resets signal handlers itself",
            "62 more system calls in the first spawn and whenever the last one is some milliseconds old",
        ),
    ),
    feature("clone CLONE_PIDFD", "5.2", "the child's pidfd", Without::Nothing),
    feature(
        "clone3 CLONE_INTO_CGROUP",
        "5.7",
        "clone into a cgroup",
        instead("the child writes itself to cgroup.procs", "a slower move; it runs outside until then"),
    ),
    feature(
        "close_range",
        "5.9",
        "leaving the caller's descriptors",
        instead("descriptors listed in /proc/self/fd", "grows with the descriptors the caller has open"),
    ),
    feature(
        "close_range CLOSE_RANGE_UNSHARE",
        "5.9",
        "a descriptor table of the child's own, without a copy",
        instead("the caller's table is copied", "grows with the descriptors the caller has open"),
    ),
    feature(
        "close_range CLOSE_RANGE_CLOEXEC",
        "5.11",
        "marking what the program is not to have",
        instead("descriptors listed in /proc/self/fd", "a few more system calls a spawn"),
    ),
    feature(
        "pidfd_open",
        "5.3",
        "process trees: signals to their processes, and the guard",
        instead("tier 'group', and nothing but the program is signalled", "nothing"),
    ),
    feature(
        "pidfd_open PIDFD_THREAD",
        "6.9",
        "handing descriptors to the child",
        instead("a socket pair (SCM_RIGHTS)", "two more system calls a spawn that has descriptors to hand over"),
    ),
    feature(
        "pidfd_getfd",
        "5.6",
        "handing descriptors to the child",
        instead("a socket pair (SCM_RIGHTS)", "two more system calls a spawn that has descriptors to hand over"),
    ),
    feature("pidfd_send_signal", "5.1", "signals that cannot hit another process", Without::Refused),
    feature("waitid P_PIDFD", "5.4", "waiting", Without::Nothing),
    feature("openat2", "5.6", "open actions", instead("openat; an action with resolve flags fails", "nothing")),
    feature(
        "faccessat2",
        "5.8",
        "checking that a file is executable",
        instead("faccessat", "nothing, unless real and effective ids differ: then exec decides"),
    ),
    feature("execveat", "3.19", "executing strictly by descriptor, and snapshots", Without::Refused),
    feature(
        "memfd_create MFD_EXEC",
        "6.3",
        "snapshots that can be executed",
        instead("a memfd without the flag", "nothing; where vm.memfd_noexec forbids it there are no copies"),
    ),
    feature("madvise MADV_WIPEONFORK", "4.14", "noticing a fork of the caller", Without::Nothing),
    feature("Landlock", "5.13", "confinement by a ruleset", Without::Refused),
    feature("seccomp filter", "3.17", "confinement by a filter", Without::Refused),
    feature("user namespaces", "3.8", "namespaces without privilege", Without::Refused),
    feature(
        "reflink (FICLONE)",
        "4.5",
        "snapshots that share the file's extents",
        instead("a copy in a sealed memfd", "memory and time in proportion to the file"),
    ),
    feature(
        "ioctl PIDFD_GET_INFO",
        "6.15",
        "the status of a child that somebody else has reaped",
        instead("it is reported as lost: by a result, or ECHILD of a wait", "nothing"),
    ),
    feature("io_uring", "5.1", "", Without::Unused),
];
