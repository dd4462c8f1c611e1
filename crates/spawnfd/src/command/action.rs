// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a caller can ask of a child before it becomes the program, each validated on its own.

use std::ffi::CString;

use spawnfd_child::CapabilitySets;
use spawnfd_sys::Errno;
use spawnfd_sys::abi::{open_how, rlimit64};

use super::descriptor::{ChildFd, Descriptor};

/// How many actions one spawn may have.
pub const MAX_ACTIONS: usize = 256;

/// One action, in the form the caller gave it. Strings with a NUL are kept as the error they are.
#[derive(Debug)]
#[allow(missing_docs)]
pub(crate) enum Action<'fd> {
    Place {
        source: Descriptor<'fd>,
        to: ChildFd,
    },
    Dup2 {
        from: ChildFd,
        to: ChildFd,
    },
    Close {
        fd: ChildFd,
    },
    CloseRange {
        first: u32,
        last: u32,
    },
    Open {
        dir: Option<Descriptor<'fd>>,
        path: CString,
        how: open_how,
        to: ChildFd,
    },
    Chdir {
        path: CString,
    },
    Fchdir {
        dir: Descriptor<'fd>,
    },
    Chroot {
        path: CString,
    },
    Umask {
        mask: u32,
    },
    Setsid,
    Setpgid {
        group: i32,
    },
    Tcsetpgrp {
        fd: ChildFd,
    },
    ControllingTerminal {
        fd: ChildFd,
    },
    Limit {
        resource: u32,
        limit: rlimit64,
    },
    Nice {
        nice: i32,
    },
    Scheduler {
        policy: u32,
        priority: i32,
    },
    Affinity {
        mask: Vec<u64>,
    },
    UserIds {
        real: u32,
        effective: u32,
        saved: u32,
    },
    GroupIds {
        real: u32,
        effective: u32,
        saved: u32,
    },
    Groups {
        groups: Vec<u32>,
    },
    Capabilities {
        sets: CapabilitySets,
    },
    NoNewPrivs,
    Cgroup {
        dir: Descriptor<'fd>,
    },
    JoinNamespace {
        namespace: Descriptor<'fd>,
        kinds: u32,
    },
    OomScoreAdj {
        text: Vec<u8>,
        value: i32,
    },
    Landlock {
        ruleset: Descriptor<'fd>,
    },
    /// A string argument with a NUL byte.
    Unusable {
        call: String,
    },
}

impl Action<'_> {
    /// Refuses what cannot be meant. The errno, as the kernel would give it, had it seen the argument.
    pub(crate) fn validate(&self) -> Result<(), Errno> {
        let number = |fd: &ChildFd| if fd.0 < 0 { Err(Errno::EBADF) } else { Ok(()) };
        let valid = |condition: bool| if condition { Ok(()) } else { Err(Errno::EINVAL) };
        match self {
            Action::Place { to, .. } | Action::Open { to, .. } => number(to),
            Action::Dup2 { from, to } => number(from).and_then(|()| number(to)),
            Action::Close { fd } | Action::Tcsetpgrp { fd } | Action::ControllingTerminal { fd } => number(fd),
            Action::CloseRange { first, last } => valid(first <= last),
            Action::Umask { mask } => valid(*mask <= 0o777),
            Action::Setpgid { group } => valid(*group >= 0),
            Action::Limit { resource, limit } => valid(*resource < 16 && limit.rlim_cur <= limit.rlim_max),
            Action::Nice { nice } => valid((-20..=19).contains(nice)),
            // SCHED_OTHER 0, FIFO 1, RR 2, BATCH 3, IDLE 5.
            Action::Scheduler { policy: 1 | 2, priority } => valid((1..=99).contains(priority)),
            Action::Scheduler { policy, priority } => valid(matches!(policy, 0 | 3 | 5) && *priority == 0),
            Action::Affinity { mask } => valid(mask.iter().any(|&word| word != 0)),
            Action::Groups { groups } => valid(groups.len() <= 1 << 16),
            Action::Capabilities { sets } => {
                valid(sets.effective & !sets.permitted == 0 && sets.ambient & !(sets.permitted & sets.inheritable) == 0)
            }
            Action::OomScoreAdj { value, .. } => valid((-1000..=1000).contains(value)),
            Action::Unusable { .. } => Err(Errno::EINVAL),
            _ => Ok(()),
        }
    }

    /// Whether the action must not run in a child that shares the caller's memory: it changes what the kernel keeps
    /// with the memory (commit_creds clears the dumpable flag).
    pub(crate) fn needs_own_memory(&self) -> bool {
        use Action::*;
        matches!(self, UserIds { .. } | GroupIds { .. } | Groups { .. } | Capabilities { .. } | JoinNamespace { .. })
    }

    /// The action as strace would print it.
    pub(crate) fn print(&self) -> String {
        match self {
            Action::Place { source, to } => format!("dup2({}, {})", source.number(), to.0),
            Action::Dup2 { from, to } => format!("dup2({}, {})", from.0, to.0),
            Action::Close { fd } => format!("close({})", fd.0),
            Action::CloseRange { first, last } => format!("close_range({first}, {last})"),
            Action::Open { path, how, to, .. } => {
                format!("open({path:?}, {:#o}, {:#o}) as {}", how.flags, how.mode, to.0)
            }
            Action::Chdir { path } => format!("chdir({path:?})"),
            Action::Fchdir { dir } => format!("fchdir({})", dir.number()),
            Action::Chroot { path } => format!("chroot({path:?})"),
            Action::Umask { mask } => format!("umask({mask:#o})"),
            Action::Setsid => "setsid()".into(),
            Action::Setpgid { group } => format!("setpgid(0, {group})"),
            Action::Tcsetpgrp { fd } => format!("tcsetpgrp({})", fd.0),
            Action::ControllingTerminal { fd } => format!("ioctl({}, TIOCSCTTY)", fd.0),
            Action::Limit { resource, limit } => {
                format!("setrlimit({resource}, {{{}, {}}})", limit.rlim_cur, limit.rlim_max)
            }
            Action::Nice { nice } => format!("setpriority({nice})"),
            Action::Scheduler { policy, priority } => format!("sched_setscheduler({policy}, {priority})"),
            Action::Affinity { mask } => format!("sched_setaffinity({mask:x?})"),
            Action::UserIds { real, effective, saved } => {
                format!("setresuid({}, {}, {})", *real as i32, *effective as i32, *saved as i32)
            }
            Action::GroupIds { real, effective, saved } => {
                format!("setresgid({}, {}, {})", *real as i32, *effective as i32, *saved as i32)
            }
            Action::Groups { groups } => format!("setgroups({groups:?})"),
            Action::Capabilities { sets } => {
                format!("capset({:#x}, {:#x}, {:#x})", sets.effective, sets.permitted, sets.inheritable)
            }
            Action::NoNewPrivs => "prctl(PR_SET_NO_NEW_PRIVS)".into(),
            Action::Cgroup { dir } => format!("cgroup({})", dir.number()),
            Action::JoinNamespace { namespace, kinds } => format!("setns({}, {kinds:#x})", namespace.number()),
            Action::OomScoreAdj { value, .. } => format!("oom_score_adj({value})"),
            Action::Landlock { ruleset } => format!("landlock_restrict_self({})", ruleset.number()),
            Action::Unusable { call } => call.clone(),
        }
    }
}
