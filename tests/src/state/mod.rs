// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state oracle: everything that a process can learn about itself.

mod answer;
mod authority;
mod diff;
mod fds;
mod proc;
mod program;
mod resources;
mod signals;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;

use serde::{Deserialize, Serialize};

pub use answer::{Answer, Refusal};
pub use authority::Uids;
pub use fds::Fd;
pub use program::{Child, Place};
pub use resources::{Limit, Scheduler, Timer};
pub use signals::Action;

pub(crate) use fds::open_fds;
pub(crate) use program::{children, threads};

use answer::{strings, text};
use proc::{Stat, Status};

use crate::raw::{self, Query, StoredQuery};

/// Everything that a process can learn about itself, seen from the calling thread.
///
/// Fields that man pages describe as per-thread (ids, capabilities, seccomp, masks, scheduling, fd table, name) are
/// those of the calling thread. The JSON form keeps the order of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// main's argv.
    pub argv: Vec<String>,
    /// libc's `environ`.
    pub environ: Vec<String>,
    /// Whether main's envp is the array that `environ` points to. `None` if the state was not taken in main.
    pub envp_is_environ: Option<bool>,
    /// The results of setlocale(3) and nl_langinfo(3), by name.
    pub locale: BTreeMap<String, String>,
    /// glibc's program_invocation_name.
    pub invocation_name: String,
    /// /proc/self/cmdline.
    pub cmdline: Answer<Vec<String>>,
    /// /proc/self/environ.
    pub proc_environ: Answer<Vec<String>>,
    /// /proc/self/exe.
    pub exe: Answer<String>,
    /// The thread's name.
    pub comm: Answer<String>,
    /// AT_EXECFN of the auxiliary vector: the path that exec was called with.
    pub at_execfn: Option<String>,
    /// AT_SECURE of the auxiliary vector: whether exec raised privileges.
    pub at_secure: bool,
    /// Whether the auxiliary vector has AT_RANDOM.
    pub at_random: bool,
    /// Current directory.
    pub cwd: Place,
    /// Root directory.
    pub root: Place,
    /// File mode creation mask, octal.
    pub umask: String,
    /// Open descriptors.
    pub fds: BTreeMap<i32, Fd>,
    /// Process id.
    pub pid: Answer<usize>,
    /// Process id of the parent.
    pub ppid: Answer<usize>,
    /// Process group.
    pub pgid: Answer<usize>,
    /// Session.
    pub sid: Answer<usize>,
    /// Device number of the controlling terminal, 0 for none.
    pub tty: Answer<Option<i64>>,
    /// Foreground process group of the controlling terminal, -1 for none.
    pub tpgid: Answer<Option<i64>>,
    /// The signal that the parent gets when this process ends.
    pub exit_signal: Answer<Option<i64>>,
    /// Blocked signals.
    pub signal_mask: Answer<Vec<String>>,
    /// Pending signals, of the thread and of the process.
    pub pending: Answer<Vec<String>>,
    /// Pending signals of the thread only.
    pub pending_to_thread: Answer<Vec<String>>,
    /// default, ignore or handler, by signal.
    pub dispositions: BTreeMap<String, Answer<String>>,
    /// Handler, flags and mask, for signals with a non-default action.
    pub sigactions: BTreeMap<String, Action>,
    /// Size of the alternate signal stack.
    pub altstack_bytes: Option<u64>,
    /// User ids.
    pub uids: Answer<Uids>,
    /// Group ids.
    pub gids: Answer<Uids>,
    /// Supplementary groups.
    pub groups: Answer<Vec<u32>>,
    /// Capability sets: inheritable, permitted, effective, bounding, ambient.
    pub capabilities: BTreeMap<String, Answer<Vec<String>>>,
    /// Securebits, hexadecimal.
    pub securebits: Answer<String>,
    /// no_new_privs.
    pub no_new_privs: Answer<bool>,
    /// disabled, strict or filter.
    pub seccomp: Answer<String>,
    /// Number of seccomp filters (Linux 5.9).
    pub seccomp_filters: Answer<Option<String>>,
    /// Label of the security module.
    pub lsm_label: Answer<String>,
    /// Audit login id.
    pub loginuid: Answer<String>,
    /// Namespaces by name.
    pub namespaces: Answer<BTreeMap<String, Answer<String>>>,
    /// User-namespace map of user ids.
    pub uid_map: Answer<Vec<String>>,
    /// User-namespace map of group ids.
    pub gid_map: Answer<Vec<String>>,
    /// Control groups.
    pub cgroup: Answer<Vec<String>>,
    /// Session keyring.
    pub session_keyring: Answer<u64>,
    /// Resource limits.
    pub rlimits: BTreeMap<String, Answer<Limit>>,
    /// Nice value.
    pub nice: Answer<i32>,
    /// I/O priority.
    pub ioprio: Answer<String>,
    /// Scheduling policy and its parameters.
    pub scheduler: Answer<Scheduler>,
    /// Timer slack.
    pub timerslack_ns: Answer<usize>,
    /// CPUs allowed.
    pub affinity: Answer<Vec<usize>>,
    /// Memory nodes allowed, by the cpuset.
    pub mems_allowed: Answer<Option<String>>,
    /// Memory policy.
    pub mempolicy: Answer<String>,
    /// Whether transparent huge pages are off.
    pub thp_disabled: Answer<usize>,
    /// Memory-deny-write-execute bits.
    pub mdwe: Answer<usize>,
    /// Whether KSM may merge all memory.
    pub memory_merge: Answer<usize>,
    /// Memory-failure policy.
    pub mce_kill: Answer<usize>,
    /// Whether the time-stamp counter may be read.
    pub tsc: Answer<i32>,
    /// CPU mitigations: store bypass, indirect branch, L1D flush.
    pub speculation: Vec<Answer<u64>>,
    /// Adjustment of the out-of-memory score.
    pub oom_score_adj: Answer<String>,
    /// The mask of memory types in a core dump.
    pub coredump_filter: Answer<String>,
    /// /proc/self/timers.
    pub posix_timers: Answer<Vec<String>>,
    /// Interval timers: real, virtual and prof. alarm(2) sets the timer `real`.
    pub itimers: BTreeMap<String, Answer<Timer>>,
    /// Execution domain and flags, hexadecimal.
    pub personality: Answer<String>,
    /// PR_GET_DUMPABLE.
    pub dumpable: Answer<usize>,
    /// The signal that the parent's death sends to this process, 0 for none.
    pub parent_death_signal: Answer<i32>,
    /// Whether orphaned descendants are reparented to this process.
    pub child_subreaper: Answer<i32>,
    /// Whether a robust futex list is set.
    pub robust_list: Answer<bool>,
    /// Whether a clear_child_tid address is set.
    pub clear_child_tid: Answer<bool>,
    /// Whether libc's cached thread id is the kernel's.
    pub libc_tid_is_right: bool,
    /// Number of threads.
    pub threads: Answer<usize>,
    /// Number of mappings.
    pub mappings: Answer<usize>,
    /// Children that have not been reaped.
    pub children: Answer<Vec<Child>>,
}

impl State {
    /// Fields that differ between any two runs of one program.
    pub const VARYING: &[&str] = &["pid", "mappings"];

    /// Fields that differ between a child of glibc's posix_spawn and a child of fork: the dispositions of SIG32 and
    /// SIG33, which glibc reserves. A child of posix_spawn ignores both signals, and its children inherit that. A
    /// child of fork has its parent's dispositions. Once the parent has had a second thread, SIG33 is an exception:
    /// glibc has set a handler for it in the parent, which exec resets to the default.
    pub const POSIX_SPAWN_LEAVES: &[&str] =
        &["dispositions.SIG32", "dispositions.SIG33", "sigactions.SIG32", "sigactions.SIG33"];

    /// Returns the calling thread's view of its process.
    ///
    /// No other thread may change the environment during this call.
    pub fn of_self() -> Self {
        let argv = std::env::args_os().map(|arg| text(&arg.into_vec())).collect();
        Self::with(argv, None)
    }

    /// Returns the state of this process. `main` passes the argv and envp that it received. A warm
    /// start (from a parked process) replaces both.
    ///
    /// # Safety
    /// `argv` and `envp` are null, or null-terminated arrays of C strings.
    pub unsafe fn of_main(argv: *const *const libc::c_char, envp: *const *const libc::c_char) -> Self {
        // SAFETY: the caller promises that both are null or null-terminated arrays of C strings.
        let (argv, envp) = unsafe { (program::c_strings(argv), program::c_strings(envp)) };
        Self::with(argv, Some(envp))
    }

    fn with(argv: Vec<String>, envp: Option<Vec<String>>) -> Self {
        let fds = open_fds();
        let status = Status::read();
        let stat = Stat::read();
        let environ = program::environment();
        Self {
            argv,
            envp_is_environ: envp.map(|envp| envp == environ),
            locale: program::locale(),
            environ,
            invocation_name: program::invocation_name(),
            cmdline: proc::of_thread("cmdline").map(|bytes| strings(&bytes)),
            proc_environ: proc::of_thread("environ").map(|bytes| strings(&bytes)),
            exe: proc::link("exe"),
            comm: raw::thread_name().map(|name| text(&name)).into(),
            at_execfn: program::at_execfn(),
            at_secure: program::auxv(libc::AT_SECURE) != 0,
            at_random: program::auxv(libc::AT_RANDOM) != 0,
            cwd: program::cwd(),
            root: program::root(),
            umask: program::umask(&status),
            fds,
            pid: raw::getpid().into(),
            ppid: raw::getppid().into(),
            pgid: raw::getpgid(0).into(),
            sid: raw::getsid(0).into(),
            tty: stat.get(7),
            tpgid: stat.get(8),
            exit_signal: stat.get(38),
            signal_mask: signals::mask(),
            pending: signals::pending(),
            pending_to_thread: signals::pending_to_thread(&status),
            dispositions: signals::dispositions(),
            sigactions: signals::actions(),
            altstack_bytes: signals::altstack_bytes(),
            uids: authority::uids(),
            gids: authority::gids(),
            groups: raw::groups().into(),
            capabilities: authority::capabilities(),
            securebits: raw::prctl_get(Query::Securebits, 0).map(|bits| format!("{bits:#x}")).into(),
            no_new_privs: raw::prctl_get(Query::NoNewPrivs, 0).map(|set| set != 0).into(),
            seccomp: authority::seccomp_mode(&status),
            seccomp_filters: status.get("Seccomp_filters"),
            lsm_label: proc::line(proc::of_thread("attr/current")),
            loginuid: proc::line(proc::of_thread("loginuid")),
            namespaces: authority::namespaces(),
            uid_map: proc::lines(proc::of_thread("uid_map")),
            gid_map: proc::lines(proc::of_thread("gid_map")),
            cgroup: proc::lines(proc::of_thread("cgroup")),
            session_keyring: authority::session_keyring(),
            rlimits: resources::rlimits(),
            nice: resources::nice(),
            ioprio: resources::ioprio(),
            scheduler: resources::scheduler(),
            timerslack_ns: raw::prctl_get(Query::TimerSlack, 0).into(),
            affinity: resources::affinity(),
            mems_allowed: status.get("Mems_allowed_list"),
            mempolicy: resources::mempolicy(),
            thp_disabled: raw::prctl_get(Query::ThpDisable, 0).into(),
            mdwe: raw::prctl_get(Query::Mdwe, 0).into(),
            memory_merge: raw::prctl_get(Query::MemoryMerge, 0).into(),
            mce_kill: raw::prctl_get(Query::MceKill, 0).into(),
            tsc: raw::prctl_stored(StoredQuery::Tsc).into(),
            speculation: authority::speculation(),
            oom_score_adj: proc::line(proc::of_thread("oom_score_adj")),
            coredump_filter: proc::line(proc::of_process("coredump_filter")),
            posix_timers: proc::lines(proc::of_process("timers")),
            itimers: resources::itimers(),
            personality: raw::personality(0xffff_ffff).map(|persona| format!("{persona:#x}")).into(),
            dumpable: raw::prctl_get(Query::Dumpable, 0).into(),
            parent_death_signal: raw::prctl_stored(StoredQuery::ParentDeathSignal).into(),
            child_subreaper: raw::prctl_stored(StoredQuery::ChildSubreaper).into(),
            robust_list: program::robust_list(),
            clear_child_tid: program::clear_child_tid(),
            libc_tid_is_right: program::libc_knows_its_tid(),
            threads: threads().map(|ids| ids.len()),
            mappings: proc::of_thread("maps").map(|maps| maps.iter().filter(|byte| **byte == b'\n').count()),
            children: children(),
        }
    }

    /// Returns the per-thread attributes that a child inherits.
    pub fn authority(&self) -> Vec<(&'static str, serde_json::Value)> {
        const FIELDS: [&str; 12] = [
            "uids",
            "gids",
            "groups",
            "capabilities",
            "securebits",
            "no_new_privs",
            "seccomp",
            "seccomp_filters",
            "lsm_label",
            "namespaces",
            "session_keyring",
            "personality",
        ];
        let state = serde_json::to_value(self).expect("a state");
        FIELDS.map(|name| (name, state[name].clone())).into()
    }

    /// Parses the output of `spawnfd-oracle`.
    ///
    /// # Panics
    /// If the text is not a complete state.
    pub fn from_json(json: &[u8]) -> Self {
        let shown = || String::from_utf8_lossy(json).into_owned();
        serde_json::from_slice(json).unwrap_or_else(|error| panic!("not a state: {error}\n{}", shown()))
    }

    /// The names of all fields, in order.
    pub fn field_names(&self) -> Vec<String> {
        self.select(None).map(|fields| fields.into_iter().map(|(name, _)| name).collect()).unwrap_or_default()
    }

    /// One JSON object of these fields, or of all fields, followed by a newline.
    ///
    /// # Errors
    /// If `fields` names a field that does not exist; the error is that name.
    pub fn to_json(&self, fields: Option<&[String]>) -> Result<String, String> {
        let selected = self.select(fields)?;
        let body: Vec<String> = selected
            .iter()
            .map(|(name, value)| format!("  {}: {value}", serde_json::Value::from(name.as_str())))
            .collect();
        Ok(format!("{{\n{}\n}}\n", body.join(",\n")))
    }

    /// The fields with their values, in the order of the struct. serde_json's own map does not keep this order.
    fn select(&self, wanted: Option<&[String]>) -> Result<Vec<(String, serde_json::Value)>, String> {
        let whole = serde_json::to_string(self).expect("a state is serialisable");
        let InOrder(mut all) = serde_json::from_str(&whole).expect("an object");
        if let Some(wanted) = wanted {
            if let Some(unknown) = wanted.iter().find(|name| !all.iter().any(|(known, _)| known == *name)) {
                return Err(unknown.clone());
            }
            all.retain(|(name, _)| wanted.contains(name));
        }
        Ok(all)
    }
}

/// The pairs of a JSON object, in the order of its text.
struct InOrder(Vec<(String, serde_json::Value)>);

impl<'de> Deserialize<'de> for InOrder {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> serde::de::Visitor<'de> for Pairs {
            type Value = InOrder;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<InOrder, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(InOrder(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}
