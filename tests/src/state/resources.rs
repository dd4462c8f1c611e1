// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits, scheduling, memory policy, timers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use syscalls::{Errno, Sysno, syscall};

use super::answer::Answer;
use crate::raw;

/// A resource limit; `u64::MAX` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The enforced limit.
    pub soft: u64,
    /// The ceiling of the soft limit.
    pub hard: u64,
}

/// The result of sched_getattr(2) for the calling thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduler {
    /// SCHED_OTHER, SCHED_BATCH, ….
    pub policy: String,
    /// SCHED_FLAG_ bits, in hexadecimal.
    pub flags: String,
    /// Static priority, for the real-time policies.
    pub priority: u32,
    /// Runtime, deadline and period. From Linux 6.12 on, the runtime of an ordinary (not real-time) policy is its
    /// slice.
    pub runtime_deadline_period_ns: [u64; 3],
    /// Minimum and maximum of the utilisation clamp.
    pub util_min_max: [u32; 2],
}

/// An interval timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    /// Whether the timer is running. The remaining time is not recorded, because it changes constantly.
    pub armed: bool,
    /// The value that the kernel reloads the timer with.
    pub interval_us: i64,
}

const LIMITS: [&str; 16] = [
    "cpu",
    "fsize",
    "data",
    "stack",
    "core",
    "rss",
    "nproc",
    "nofile",
    "memlock",
    "as",
    "locks",
    "sigpending",
    "msgqueue",
    "nice",
    "rtprio",
    "rttime",
];

pub(super) fn rlimits() -> BTreeMap<String, Answer<Limit>> {
    LIMITS.iter().enumerate().map(|(number, name)| ((*name).to_owned(), rlimit(number).into())).collect()
}

fn rlimit(resource: usize) -> Result<Limit, Errno> {
    let mut pair = [0_u64; 2];
    // SAFETY: the call sets no limit. It stores the present one as two 64-bit words.
    unsafe { syscall!(Sysno::prlimit64, 0, resource, 0, pair.as_mut_ptr()) }?;
    Ok(Limit { soft: pair[0], hard: pair[1] })
}

/// The nice value. The system call getpriority returns 20 minus the nice value, so that no result is negative.
pub(super) fn nice() -> Answer<i32> {
    raw::getpriority(libc::PRIO_PROCESS as usize, 0).map(|value| 20 - value as i32).into()
}

/// Class and level of the I/O priority, as in "best-effort 4".
pub(super) fn ioprio() -> Answer<String> {
    const WHO_PROCESS: usize = 1;
    let words = |value: usize| {
        let class = match value >> 13 {
            0 => "none".to_owned(),
            1 => "realtime".to_owned(),
            2 => "best-effort".to_owned(),
            3 => "idle".to_owned(),
            other => other.to_string(),
        };
        format!("{class} {}", value & 0x1fff)
    };
    raw::ioprio_get(WHO_PROCESS, 0).map(words).into()
}

#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    util_min: u32,
    util_max: u32,
}

pub(super) fn scheduler() -> Answer<Scheduler> {
    let mut attr = SchedAttr::default();
    // SAFETY: the kernel stores at most as many bytes as the given size, the size of this struct.
    let result = unsafe { syscall!(Sysno::sched_getattr, 0, &raw mut attr, size_of::<SchedAttr>(), 0) };
    let policies = ["OTHER", "FIFO", "RR", "BATCH", "ISO", "IDLE", "DEADLINE", "EXT"];
    let policy = policies.get(attr.policy as usize).map_or_else(|| attr.policy.to_string(), |p| format!("SCHED_{p}"));
    result
        .map(|_| Scheduler {
            policy,
            flags: format!("{:#x}", attr.flags),
            priority: attr.priority,
            runtime_deadline_period_ns: [attr.runtime, attr.deadline, attr.period],
            util_min_max: [attr.util_min, attr.util_max],
        })
        .into()
}

/// CPUs the calling thread may run on.
pub(super) fn affinity() -> Answer<Vec<usize>> {
    let mut words = [0_u64; 128];
    // SAFETY: the kernel stores at most the size of the array.
    let result = unsafe { syscall!(Sysno::sched_getaffinity, 0, size_of_val(&words), words.as_mut_ptr()) };
    result.map(|_| members(&words)).into()
}

/// Mode and nodes of the calling thread's memory policy.
pub(super) fn mempolicy() -> Answer<String> {
    let mut mode: libc::c_int = 0;
    let mut nodes = [0_u64; 16];
    // SAFETY: get_mempolicy stores an int and a mask of at most 1,024 bits. With address 0 and no flags, it returns
    // the thread's policy.
    let result = unsafe { syscall!(Sysno::get_mempolicy, &raw mut mode, nodes.as_mut_ptr(), 1024, 0, 0) };
    result
        .map(|_| {
            let names =
                ["default", "preferred", "bind", "interleave", "local", "preferred-many", "weighted-interleave"];
            let name = usize::try_from(mode & 0xff).ok().and_then(|mode| names.get(mode).copied()).unwrap_or("unknown");
            format!("{name} mode {mode:#x} nodes {:?}", members(&nodes))
        })
        .into()
}

fn members(words: &[u64]) -> Vec<usize> {
    (0..words.len() * 64).filter(|bit| words[bit / 64] >> (bit % 64) & 1 == 1).collect()
}

pub(super) fn itimers() -> BTreeMap<String, Answer<Timer>> {
    let names = [("real", libc::ITIMER_REAL), ("virtual", libc::ITIMER_VIRTUAL), ("prof", libc::ITIMER_PROF)];
    // The type of ITIMER_ constants differs between libcs.
    #[allow(clippy::unnecessary_cast)]
    names.into_iter().map(|(name, which)| (name.to_owned(), itimer(which as usize).into())).collect()
}

fn itimer(which: usize) -> Result<Timer, Errno> {
    let mut words = [0_i64; 4];
    // SAFETY: getitimer stores two `struct timeval` of two 64-bit words each.
    unsafe { syscall!(Sysno::getitimer, which, words.as_mut_ptr()) }?;
    let [interval_s, interval_us, left_s, left_us] = words;
    Ok(Timer { armed: left_s != 0 || left_us != 0, interval_us: interval_s * 1_000_000 + interval_us })
}
