// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a caller can ask of a child before it becomes the program, each validated on its own.

use std::os::fd::RawFd;

use spawnfd_child::{CapabilitySets, Op};
use spawnfd_sys::Errno;

use super::descriptor::Descriptor;

/// How many actions one spawn may have.
pub const MAX_ACTIONS: usize = 256;

/// One action, in the form the caller gave it.
pub(crate) type Action<'fd> = Op<Descriptor<'fd>>;

/// Refuses what cannot be meant. The errno, as the kernel would give it, had it seen the argument.
pub(crate) fn validate(action: &Action<'_>) -> Result<(), Errno> {
    let number = |fd: &RawFd| if *fd < 0 { Err(Errno::EBADF) } else { Ok(()) };
    let valid = |condition: bool| if condition { Ok(()) } else { Err(Errno::EINVAL) };
    match action {
        Op::Place { to, .. } | Op::Open { to, .. } => number(to),
        Op::Dup2 { from, to } => number(from).and_then(|()| number(to)),
        Op::Close { fd } | Op::Tcsetpgrp { fd } | Op::ControllingTerminal { fd } => number(fd),
        Op::CloseRange { first, last } => valid(first <= last),
        Op::Umask { mask } => valid(*mask <= 0o777),
        Op::Setpgid { group } => valid(*group >= 0),
        Op::Limit { resource, limit } => valid(*resource < 16 && limit.rlim_cur <= limit.rlim_max),
        Op::Nice { nice } => valid((-20..=19).contains(nice)),
        // SCHED_OTHER 0, FIFO 1, RR 2, BATCH 3, IDLE 5.
        Op::Scheduler { policy: 1 | 2, priority } => valid((1..=99).contains(priority)),
        Op::Scheduler { policy, priority } => valid(matches!(policy, 0 | 3 | 5) && *priority == 0),
        Op::Affinity { mask } => valid(mask.iter().any(|&word| word != 0)),
        Op::Groups { groups } => valid(groups.len() <= 1 << 16),
        Op::Capabilities { sets } => {
            valid(sets.effective & !sets.permitted == 0 && sets.ambient & !(sets.permitted & sets.inheritable) == 0)
        }
        Op::OomScoreAdj { value, .. } => valid((-1000..=1000).contains(value)),
        _ => Ok(()),
    }
}

/// Whether the action must not run in a child that shares the caller's memory: it changes what the kernel keeps
/// with the memory (commit_creds clears the dumpable flag); or has the child be in a cgroup that others are in, where the kernel may kill it
/// for want of memory, and with it whoever shares its memory (mm/oom_kill.c, __oom_kill_process).
pub(crate) fn needs_own_memory(action: &Action<'_>) -> bool {
    matches!(
        action,
        Op::UserIds { .. }
            | Op::GroupIds { .. }
            | Op::Groups { .. }
            | Op::Capabilities { .. }
            | Op::JoinNamespace { .. }
            | Op::Cgroup { .. }
    )
}

/// The action as strace would print it.
pub(crate) fn print<S>(op: &Op<S>, number: impl Fn(&S) -> RawFd) -> String {
    match op {
        Op::Place { source, to } => format!("dup2({}, {})", number(source), to),
        Op::Dup2 { from, to } => format!("dup2({}, {})", from, to),
        Op::Close { fd } => format!("close({})", fd),
        Op::CloseRange { first, last } => format!("close_range({first}, {last})"),
        Op::Open { dir, path, how, to } => {
            let below = dir.as_ref().map(|dir| format!("{}, ", number(dir))).unwrap_or_default();
            let resolve = if how.resolve == 0 { String::new() } else { format!(", {:#x}", how.resolve) };
            format!("open({below}{path:?}, {:#o}, {:#o}{resolve}) as {}", how.flags, how.mode, to)
        }
        Op::OpenNull { .. } => r#"open("/dev/null")"#.into(),
        Op::Chdir { path } => format!("chdir({path:?})"),
        Op::Fchdir { dir } => format!("fchdir({})", number(dir)),
        Op::Chroot { path } => format!("chroot({path:?})"),
        Op::Umask { mask } => format!("umask({mask:#o})"),
        Op::Setsid => "setsid()".into(),
        Op::Setpgid { group } => format!("setpgid(0, {group})"),
        Op::Tcsetpgrp { fd } => format!("tcsetpgrp({})", fd),
        Op::ControllingTerminal { fd } => format!("ioctl({}, TIOCSCTTY)", fd),
        Op::Limit { resource, limit } => {
            format!("setrlimit({resource}, {{{}, {}}})", limit.rlim_cur, limit.rlim_max)
        }
        Op::Nice { nice } => format!("setpriority({nice})"),
        Op::Scheduler { policy, priority } => format!("sched_setscheduler({policy}, {priority})"),
        Op::Affinity { mask } => {
            let width = u64::BITS as usize;
            let is_set = |cpu: &usize| mask[cpu / width] >> (cpu % width) & 1 == 1;
            format!("sched_setaffinity({:?})", (0..mask.len() * width).filter(is_set).collect::<Vec<_>>())
        }
        Op::UserIds { real, effective, saved } => {
            format!("setresuid({}, {}, {})", *real as i32, *effective as i32, *saved as i32)
        }
        Op::GroupIds { real, effective, saved } => {
            format!("setresgid({}, {}, {})", *real as i32, *effective as i32, *saved as i32)
        }
        Op::Groups { groups } => format!("setgroups({groups:?})"),
        Op::Capabilities { sets } => {
            let CapabilitySets { effective, permitted, inheritable, bounding, ambient } = sets;
            format!(
                "capset({effective:#x}, {permitted:#x}, {inheritable:#x}), bounding {bounding:#x}, ambient {ambient:#x}"
            )
        }
        Op::KeepCapabilities => "prctl(PR_SET_KEEPCAPS)".into(),
        Op::DenySetgroups => r#"write("/proc/self/setgroups", "deny")"#.to_owned(),
        Op::UserMap { map } => format!(r#"write("/proc/self/uid_map", {map:?})"#),
        Op::GroupMap { map } => format!(r#"write("/proc/self/gid_map", {map:?})"#),
        Op::NoNewPrivs => "prctl(PR_SET_NO_NEW_PRIVS)".into(),
        Op::Cgroup { dir } => format!("cgroup({})", number(dir)),
        Op::Announce { .. } => "getppid()".into(),
        Op::JoinNamespace { namespace, kinds } => format!("setns({}, {kinds:#x})", number(namespace)),
        Op::OomScoreAdj { value, .. } => format!("oom_score_adj({value})"),
        Op::Landlock { ruleset } => format!("landlock_restrict_self({})", number(ruleset)),
    }
}
