// SPDX-License-Identifier: MIT OR Apache-2.0
//! The caller state: everything that a program inherits from the thread that starts it, as a value. The library reads
//! it when it parks a process, and again at each start from that process.
//!
//! A start applies the differences to the parked process. If a difference cannot be applied, the program starts cold.
//! The start compares the authority (the thread's credentials) first.
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
//! A start does not change these parts of a parked process: lowering a nice value or widening a mask can need rights
//! that a fork does not need. If the kernel refuses a query for both threads, the two
//! states count as equal, because the same seccomp filter refuses both queries.

use std::ffi::CStr;

use spawnfd_child::{Data, Op};
use spawnfd_guard::sys;
use spawnfd_sys::{Errno, abi, call, prctl};

use crate::cold_reason::ColdReason;
use crate::host::authority::Authority;
use crate::host::features;
use crate::host::own_proc::{self, ProcFile};

/// The number of resource limits (RLIMIT_*). The resources are numbered from 0 to LIMITS - 1.
const LIMITS: usize = abi::RLIM_NLIMITS as usize;

type QueryResult<T> = Result<T, Errno>;

/// The state that a child of the calling thread would inherit, except descriptors, working directory and signal mask.
#[derive(Debug)]
pub(super) struct CallerState {
    pub(super) authority: Authority,
    scheduling: QueryResult<[u64; 7]>,
    processors: QueryResult<[u64; 128]>,
    cookie: QueryResult<u64>,
    io_priority: QueryResult<usize>,
    memory_policy: QueryResult<(i32, [u64; 16])>,
    switches: [QueryResult<usize>; 6],
    time_stamp_counter: QueryResult<i32>,
    persona: QueryResult<usize>,
    cgroup: Option<Vec<u8>>,
    /// The ids of process group and session. An id is 0 if the group or session is outside this pid
    /// namespace. `rustix::process::Pid` cannot represent 0.
    group_and_session: [Option<i32>; 2],
    /// The soft and the hard limit of each resource, indexed by RLIMIT_* number.
    limits: [(u64, u64); LIMITS],
    /// The root directory.
    root: FileId,
    oom_score_adj: Option<i32>,
    core_filter: Option<Vec<u8>>,
}

impl CallerState {
    /// Reads the state of the calling thread, whose authority the caller has just read. Returns `None` if /proc cannot be
    /// read, or if a seccomp filter refuses statx.
    pub(super) fn with(authority: rustix::io::Result<Authority>) -> Option<CallerState> {
        const SWITCHES: [u32; 6] = [
            prctl::PR_GET_TIMERSLACK,
            prctl::PR_MCE_KILL_GET,
            prctl::PR_GET_THP_DISABLE,
            prctl::PR_GET_IO_FLUSHER,
            prctl::PR_GET_MDWE,
            prctl::PR_GET_MEMORY_MERGE,
        ];
        let (authority, killed) = (authority.ok()?, features::killed_calls());
        let oom_score_adj = own_proc::read(ProcFile::OomScoreAdj).ok();
        Some(CallerState {
            authority,
            scheduling: call::scheduling(killed),
            processors: call::affinity(),
            cookie: call::core_cookie(),
            io_priority: call::io_priority(killed),
            memory_policy: call::memory_policy(killed),
            switches: SWITCHES.map(|option| call::prctl(option, 0, 0)),
            time_stamp_counter: call::time_stamp_counter(),
            persona: call::persona(killed),
            cgroup: own_proc::read(ProcFile::Cgroup).ok(),
            group_and_session: [sys::getpgid(0).ok(), sys::getsid(0).ok()],
            limits: std::array::from_fn(|resource| {
                call::limit(resource as u32).map_or((u64::MAX, u64::MAX), |limit| (limit.rlim_cur, limit.rlim_max))
            }),
            root: FileId::of(c"/")?,
            oom_score_adj: oom_score_adj.and_then(|text| str::from_utf8(&text).ok()?.trim().parse().ok()),
            core_filter: own_proc::read(ProcFile::CoreFilter).ok(),
        })
    }

    /// Whether the thread has the scheduling policy SCHED_NORMAL.
    pub(super) fn is_ordinary(&self) -> bool {
        // The first word of struct sched_attr contains the size, and then the policy.
        self.scheduling.is_ok_and(|words| (words[0] >> 32) as u32 == abi::SCHED_NORMAL)
    }

    /// The steps that change a process with the state `self` to the calling thread's state `now`. `executes` is true
    /// if the process then executes the program.
    ///
    /// # Errors
    /// A difference that no step can apply.
    pub(super) fn steps_to(&self, now: &CallerState, executes: bool) -> Result<Vec<Op<'static>>, ColdReason> {
        if let Some(reason) = self.authority.first_difference(&now.authority) {
            return Err(reason);
        }
        let equal = [
            (ColdReason::Scheduling, self.scheduling == now.scheduling && self.cookie == now.cookie),
            (ColdReason::Affinity, self.processors == now.processors),
            (ColdReason::IoPriority, self.io_priority == now.io_priority),
            (ColdReason::MemoryPolicy, self.memory_policy == now.memory_policy),
            (ColdReason::Switches, self.switches == now.switches && self.time_stamp_counter == now.time_stamp_counter),
            (ColdReason::Personality, self.persona == now.persona),
            (ColdReason::Cgroup, self.cgroup == now.cgroup),
            (ColdReason::Session, self.group_and_session == now.group_and_session),
            (ColdReason::Root, self.root == now.root),
            (ColdReason::CoreDumpFilter, self.core_filter == now.core_filter),
        ];
        if let Some((reason, _)) = equal.iter().find(|(_, equal)| !equal) {
            return Err(*reason);
        }
        let mask = u32::from_str_radix(&now.authority.umask, 8).unwrap_or(0o22);
        let mut steps = vec![Op::Umask { mask }];
        for (resource, (was, is)) in (0u32..).zip(self.limits.into_iter().zip(now.limits)) {
            if was == is {
                continue;
            }
            // The kernel laid out the stack and heap of the parked process by these limits, at
            // exec.
            if !executes && matches!(resource, abi::RLIMIT_STACK | abi::RLIMIT_AS | abi::RLIMIT_DATA) {
                return Err(ColdReason::MemoryLimits);
            }
            let (rlim_cur, rlim_max) = is;
            if rlim_max > was.1 {
                return Err(ColdReason::RaisedLimits);
            }
            steps.push(Op::Limit { resource, limit: [rlim_cur, rlim_max] });
        }
        match (self.oom_score_adj, now.oom_score_adj) {
            (was, is) if was == is => {}
            (Some(was), Some(is)) if is > was => steps.push(Op::OomScoreAdj { value: is, text: Data::Borrowed(&[]) }),
            _ => return Err(ColdReason::OomScoreAdj),
        }
        Ok(steps)
    }
}

/// A directory or file, identified by device, inode and mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileId(u32, u32, u64, u64);

impl FileId {
    /// The file that `path` names for the calling thread. An empty path names the working directory, and needs no
    /// search permission. `None` if statx fails.
    pub(super) fn of(path: &CStr) -> Option<FileId> {
        call::statx(features::killed_calls(), abi::AT_FDCWD, path).ok().map(|found| FileId::from(&found))
    }
}

impl From<&abi::statx> for FileId {
    fn from(found: &abi::statx) -> FileId {
        FileId(found.stx_dev_major, found.stx_dev_minor, found.stx_ino, found.stx_mnt_id)
    }
}
