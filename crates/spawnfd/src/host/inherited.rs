// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state that a child inherits from the thread that starts it, except authority, descriptors and signal mask.
//!
//! | state | how it is read |
//! |---|---|
//! | policy, priority, nice value, deadline, clamps | sched_getattr |
//! | processors | sched_getaffinity |
//! | core scheduling cookie | PR_SCHED_CORE_GET |
//! | I/O priority | ioprio_get |
//! | NUMA policy | get_mempolicy |
//! | timer slack, machine check policy, time stamp counter, I/O flusher | prctl |
//! | MDWE, no transparent huge pages, memory merging: belong to the memory, kept by exec | prctl |
//! | execution domain | personality |
//! | cgroup, which belongs to the thread in threaded mode and in version 1 | /proc/thread-self/cgroup |
//!
//! The library does not change a parked process so that its state equals the caller's: lowering a nice value or
//! widening a mask can need rights that a fork does not need. If the kernel refuses a query for both threads, the two
//! states count as equal, because the same seccomp filter refuses both queries.

use std::ffi::CStr;

use spawnfd_sys::{Errno, abi, call, prctl};

use crate::cold_reason::ColdReason;
use crate::host::features;
use crate::host::own_proc::{self, ProcFile};

type QueryResult<T> = Result<T, Errno>;

/// The inherited state of one thread.
#[derive(Debug)]
pub(crate) struct InheritedState {
    scheduling: QueryResult<[u64; 7]>,
    processors: QueryResult<[u64; 128]>,
    cookie: QueryResult<u64>,
    io_priority: QueryResult<usize>,
    memory_policy: QueryResult<(i32, [u64; 16])>,
    switches: [QueryResult<usize>; 6],
    time_stamp_counter: QueryResult<i32>,
    persona: QueryResult<usize>,
    cgroup: Option<Vec<u8>>,
}

impl InheritedState {
    /// The calling thread's state.
    pub(crate) fn of_calling_thread() -> InheritedState {
        const SWITCHES: [u32; 6] = [
            prctl::PR_GET_TIMERSLACK,
            prctl::PR_MCE_KILL_GET,
            prctl::PR_GET_THP_DISABLE,
            prctl::PR_GET_IO_FLUSHER,
            prctl::PR_GET_MDWE,
            prctl::PR_GET_MEMORY_MERGE,
        ];
        let killed = features::killed();
        InheritedState {
            scheduling: call::scheduling(killed),
            processors: call::affinity(),
            cookie: call::core_cookie(),
            io_priority: call::io_priority(killed),
            memory_policy: call::memory_policy(killed),
            switches: SWITCHES.map(|option| call::prctl(option, 0, 0)),
            time_stamp_counter: call::time_stamp_counter(),
            persona: call::persona(killed),
            cgroup: own_proc::read(ProcFile::Cgroup).ok(),
        }
    }

    /// The scheduling policy, such as SCHED_OTHER.
    pub(crate) fn policy(&self) -> Option<u32> {
        // The first word of struct sched_attr contains the size, and then the policy.
        self.scheduling.ok().map(|words| (words[0] >> 32) as u32)
    }

    /// The first difference from `other`, as a reason for a cold start.
    pub(crate) fn first_difference(&self, other: &InheritedState) -> Option<ColdReason> {
        let equal = [
            (ColdReason::Scheduling, self.scheduling == other.scheduling && self.cookie == other.cookie),
            (ColdReason::Affinity, self.processors == other.processors),
            (ColdReason::IoPriority, self.io_priority == other.io_priority),
            (ColdReason::MemoryPolicy, self.memory_policy == other.memory_policy),
            (
                ColdReason::Switches,
                self.switches == other.switches && self.time_stamp_counter == other.time_stamp_counter,
            ),
            (ColdReason::Personality, self.persona == other.persona),
            (ColdReason::Cgroup, self.cgroup == other.cgroup),
        ];
        equal.iter().find(|(_, equal)| !equal).map(|(what, _)| *what)
    }
}

/// A directory or file, identified by device, inode and mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId(u32, u32, u64, u64);

impl FileId {
    /// The file that `path` names for the calling thread. An empty path names the working directory, and needs no
    /// search permission. `None` if statx fails.
    pub(crate) fn of(path: &CStr) -> Option<FileId> {
        call::statx(features::killed(), abi::AT_FDCWD, path).ok().map(|found| FileId::from(&found))
    }
}

impl From<&abi::statx> for FileId {
    fn from(found: &abi::statx) -> FileId {
        FileId(found.stx_dev_major, found.stx_dev_minor, found.stx_ino, found.stx_mnt_id)
    }
}
