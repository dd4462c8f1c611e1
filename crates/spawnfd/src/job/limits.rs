// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of a run: chooses the mechanism that enforces each limit, and detects that the run
//! has reached one. The page on [limits] describes them.
//!
//! [limits]: https://github.com/spawnfd/spawnfd/blob/main/docs/limits.md

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use spawnfd_child::Op;
use spawnfd_guard::process::{Stat, is_proc_foreign};
use spawnfd_sys::{abi, call};

use crate::child::Usage;
use crate::command::{Command, Start};
use crate::error::{Errno, Error, Result, Stage};
use crate::option::{Kind, Value};
use crate::tree::{Bounds, CgroupCounters, Tree, TreeControl};

const SIGKILL: i32 = 9;
const SIGXCPU: i32 = 24;
const EXIT_OF_SHELL_AFTER_SIGXCPU: i32 = 128 + SIGXCPU;
/// The CPU time that the kernel reports for a run can be lower than the enforced limit by this
/// much.
const SKEW: Duration = Duration::from_secs(1);

/// The first and the longest pause between two checks of the tree. Each pause is twice as long as the previous one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// The longest pause if the library watches memory, because a program can allocate a gigabyte in a second.
const LONGEST_MEMORY_PAUSE: Duration = Duration::from_millis(100);

/// The shortest pause before a check of CPU time.
const LEAST_PAUSE: Duration = Duration::from_millis(2);

options! {
    /// Limits of a run. In a cgroup they apply to the whole process tree. Otherwise they apply as
    /// rlimits do. The page on [limits] has the details.
    ///
    /// [limits]: https://github.com/spawnfd/spawnfd/blob/main/docs/limits.md
    ///
    /// If a limit cannot be enforced as `enforce` requires, the call fails before it starts a program.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::job::Stop;
    /// use spawnfd::limits::{Limits, Resource};
    /// use spawnfd::{Command, Run};
    /// let run = Run::new().limits(Limits::new().cpu_time(std::time::Duration::from_secs(1)));
    /// let output = Command::new("sh").args(["-c", "while :; do :; done"]).run_with(&run)?;
    /// assert_eq!((output.stop, output.limit.unwrap().resource), (Stop::Limit, Resource::CpuTime));
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[must_use = "limits have no effect until a run uses them"]
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct Limits "limits.";

    /// The maximum memory in bytes. In a cgroup the limit covers the whole tree, including page cache, without swap. If
    /// the tree exceeds the limit, the kernel kills the whole tree. Otherwise it limits the address space of each
    /// process (RLIMIT_AS): allocations beyond it fail in the program, the run goes on, and the result's `stop` does not
    /// show it. Node, Java, Go and sanitizers reserve far more address space than they use: for them, let the library
    /// [`enforce`](Limits::enforce) the limit by `watch`.
    memory: Option<u64> = None, (bytes: impl Into<Option<u64>>) => bytes.into();
        Kind::Bytes, Limits, [Run, Start, Session];
    /// The maximum number of processes and threads at once. The library kills the tree when it has more, or tries to
    /// have more. In a cgroup the limit counts the tree. Otherwise the library counts the tree in /proc, and
    /// RLIMIT_NPROC stops a tree that grows faster than the library counts. RLIMIT_NPROC counts all processes of the
    /// user, and has no effect on root.
    pids: Option<u64> = None, (number: impl Into<Option<u64>>) => number.into();
        Kind::Count, Limits, [Run, Start, Session];
    /// The maximum CPU time, user and system. The library ends a tree that exceeds it as after a timeout. In a cgroup the
    /// limit applies to all processes of the tree together. Otherwise it applies to each process separately, in whole
    /// seconds (RLIMIT_CPU).
    cpu_time: Option<Duration> = None, (time: impl Into<Option<Duration>>) => time.into();
        Kind::Duration, Limits, [Run, Start, Session];
    /// The number of processors that the tree may use at once, such as 1.5. It needs a cgroup. The kernel slows the run
    /// down and does not end it.
    cpus: Option<f64> = None, (number: impl Into<Option<f64>>) => number.into();
        Kind::Number, Limits, [Run, Start, Session];
    /// Which mechanisms may enforce the limits.
    enforce: Enforce = Enforce::Auto; Kind::Word(Enforce::WORDS), Limits, [Run, Start, Session];
}

words! {
    /// Which mechanisms may enforce limits.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::limits::{Enforce, Enforcer, Limits};
    /// use spawnfd::{Command, Run};
    /// // Only a cgroup can limit processors. Without one, the program runs without this limit.
    /// let run = Run::new().limits(Limits::new().cpus(1.5).enforce(Enforce::BestEffort));
    /// let output = Command::new("true").run_with(&run)?;
    /// assert!(output.ok() && matches!(output.limits[0].by, Enforcer::Cgroup | Enforcer::Unenforced));
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    #[non_exhaustive]
    pub enum Enforce {
        /// A cgroup enforces the limit, or else an rlimit. If neither is available, the start fails.
        @ #[default]
        Auto = "auto",
        /// A cgroup enforces the limit. If none is available, the start fails.
        Cgroup = "cgroup",
        /// A cgroup enforces the limit, or else checks by the library at intervals (resident memory of the tree, and
        /// processes), or else an rlimit (CPU time). If none is available, the start fails.
        ///
        /// So a limit of memory applies to the resident memory of the tree, not to the address space of each process, of
        /// which Java, Node and Go reserve much more than they use.
        Watch = "watch",
        /// A cgroup enforces the limit, or else an rlimit, or else checks by the library at intervals, which a fork bomb
        /// can outrun. If none is available, no mechanism enforces the limit, and the result says so.
        BestEffort = "best-effort",
    }
}

named! {
    /// The resource that a limit is for.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::limits::{Limits, Resource};
    /// use spawnfd::{Command, Run};
    /// let limits = Limits::new().memory(1 << 30).cpu_time(std::time::Duration::from_secs(60));
    /// let output = Command::new("true").run_with(&Run::new().limits(limits))?;
    /// let limited: Vec<Resource> = output.limits.iter().map(|limit| limit.resource).collect();
    /// assert_eq!(limited, [Resource::Memory, Resource::CpuTime]);
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
    #[non_exhaustive]
    pub enum Resource {
        /// Memory: [`Limits::memory`].
        Memory = "memory",
        /// Processes and threads: [`Limits::pids`].
        Pids = "pids",
        /// CPU time: [`Limits::cpu_time`].
        CpuTime = "cpu_time",
        /// Processors: [`Limits::cpus`].
        Cpus = "cpus",
    }
}

named! {
    /// The mechanism that enforces a limit.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::limits::{Enforcer, Limits};
    /// use spawnfd::{Command, Run};
    /// let output = Command::new("true").run_with(&Run::new().limits(Limits::new().memory(1 << 30)))?;
    /// match output.limits[0].by {
    ///     Enforcer::Cgroup => println!("1 GiB for the whole process tree"),
    ///     by => println!("1 GiB for each process ({by})"),
    /// }
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
    #[non_exhaustive]
    pub enum Enforcer {
        /// A cgroup, which limits the whole tree. Processes cannot escape by leaving the session.
        Cgroup = "cgroup",
        /// An rlimit, which limits each process separately, or all processes of the user.
        Rlimit = "rlimit",
        /// The library, which checks the tree at intervals.
        Watch = "watch",
        /// No mechanism enforces the limit.
        Unenforced = "unenforced",
    }
}

/// One limit of a run, and the mechanism that enforced it.
///
/// # Examples
/// ```
/// use spawnfd::limits::Limits;
/// use spawnfd::{Command, Run};
/// let limits = Limits::new().cpu_time(std::time::Duration::from_secs(60));
/// let output = Command::new("true").run_with(&Run::new().limits(limits))?;
/// println!("{}", output.limits[0]); // cpu_time (cgroup)
/// assert_eq!(output.limit, None, "the program has not reached it");
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Limit {
    /// The limited resource.
    pub resource: Resource,
    /// The mechanism that enforced the limit.
    pub by: Enforcer,
}

impl fmt::Display for Limit {
    /// Prints, for example, `memory (cgroup)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.resource, self.by)
    }
}

impl Limits {
    /// Creates a value without limits.
    pub fn new() -> Limits {
        Limits::default()
    }

    fn is_none(&self) -> bool {
        self.memory.is_none() && self.pids.is_none() && self.cpu_time.is_none() && self.cpus.is_none()
    }

    /// The first field that has a value out of range, and the range.
    fn wrong(&self) -> Option<(&'static str, &'static str)> {
        match *self {
            Limits { memory: Some(0), .. } => Some(("memory", "must be > 0")),
            Limits { pids: Some(0), .. } => Some(("pids", "must be > 0")),
            Limits { cpu_time: Some(Duration::ZERO), .. } => Some(("cpu_time", "must be > 0")),
            // The kernel's smallest quota is 1 ms, a hundredth of the period of 100 ms.
            Limits { cpus: Some(cpus), .. } if !(0.01..=1e6).contains(&cpus) => {
                Some(("cpus", "must be a number from 0.01 to 1000000"))
            }
            _ => None,
        }
    }

    fn validate(&self) -> Result<()> {
        let Some((name, range)) = self.wrong() else { return Ok(()) };
        let value = self.field(name);
        let message = format!("limits.{name} {range}, got {value}");
        Err(Error::invalid(format!("limits({name} = {value})")).saying(message))
    }

    /// Sets the field of this name, if the value is in its range. Returns false if there is no such field.
    pub(crate) fn set_valid(&mut self, name: &str, value: &Value) -> std::result::Result<bool, String> {
        let mut changed = *self;
        let known = changed.set_field(name, value)?;
        match changed.wrong() {
            Some((wrong, range)) if wrong == name => Err(range.to_owned()),
            _ => {
                *self = changed;
                Ok(known)
            }
        }
    }

    fn bounds(&self) -> Bounds {
        Bounds { memory: self.memory, pids: self.pids, cpus: self.cpus }
    }
}

/// Prepares the run's tree, if it has one. If `may_have_guard` is false, prepares one only if the caller has asked for
/// its tier.
fn tree_of(command: &Command<'_>, wanted: Option<TreeControl>, may_have_guard: bool) -> Result<Tree> {
    match wanted {
        None | Some(TreeControl::Auto) if !may_have_guard => Ok(Tree::of_group()),
        None => Ok(Tree::without_cgroup()),
        Some(TreeControl::Auto) if command.names_cgroup() => Ok(Tree::without_cgroup()),
        Some(TreeControl::Auto) => Ok(Tree::most_complete(command.may_have_subreaper())),
        Some(want) => Tree::prepare(want),
    }
}

/// Prepares the run's tree and applies its limits to the start. `wanted` is the tier that the caller has asked for. If
/// `may_have_guard` is false, uses no guard unless the caller has asked for its tier.
///
/// # Errors
/// EINVAL: a limit is too low for any program. EOPNOTSUPP: no allowed mechanism can enforce a limit
/// here. Also the errors of [`Tree::prepare`].
pub(super) fn prepare(
    start: &mut Start<'_>,
    limits: &Limits,
    wanted: Option<TreeControl>,
    grace: Duration,
    may_have_guard: bool,
) -> Result<(Tree, Option<LimitMonitor>)> {
    let command = start.command;
    if limits.is_none() {
        return Ok((tree_of(command, wanted, may_have_guard)?, None));
    }
    limits.validate()?;
    // Every cgroup counts CPU time, so a CPU time limit needs no controller. If the caller asked
    // for a cgroup, create it even if it enforces no limit.
    let wants_cgroup = limits.cpu_time.is_some() || matches!(wanted, Some(TreeControl::Cgroup | TreeControl::Auto));
    let bounded = match wanted {
        Some(TreeControl::Guard | TreeControl::Pidns | TreeControl::Subreaper) => None,
        // A guard removes the cgroup if this process is killed.
        None | Some(TreeControl::Group | TreeControl::Auto) if !may_have_guard => None,
        // The program must start in the cgroup that the command names, so the library creates none.
        // With `Enforce::Cgroup`, which needs a cgroup of the library, the start fails later.
        None | Some(TreeControl::Group | TreeControl::Auto)
            if command.names_cgroup() && limits.enforce != Enforce::Cgroup =>
        {
            None
        }
        _ => Tree::bounded(&limits.bounds(), wants_cgroup).ok(),
    };
    let (tree, ledger) = match bounded {
        Some((tree, ledger)) => (tree, Some(ledger)),
        None => (tree_of(command, wanted, may_have_guard)?, None),
    };
    let in_cgroup = ledger.as_ref().map(|ledger| ledger.enforced).unwrap_or_default();
    let mut enforced = Vec::new();
    let mut enforce = |resource: Resource, in_cgroup: bool, otherwise: Enforcer| {
        let by = if in_cgroup { Enforcer::Cgroup } else { otherwise };
        let is_allowed = match limits.enforce {
            Enforce::Auto => matches!(by, Enforcer::Cgroup | Enforcer::Rlimit),
            Enforce::Cgroup => by == Enforcer::Cgroup,
            Enforce::Watch => by != Enforcer::Unenforced,
            Enforce::BestEffort => true,
        };
        if !is_allowed {
            let lacking = match limits.enforce {
                Enforce::Cgroup => "no cgroup can",
                Enforce::Watch => "neither a cgroup nor the library can",
                _ => "neither a cgroup nor an rlimit can",
            };
            let message = format!("cannot limit {resource}: {lacking} enforce it here");
            let call = format!("limits({resource})");
            return Err(Error::new(Stage::Limit, Errno::EOPNOTSUPP, call).saying(message));
        }
        enforced.push(Limit { resource, by });
        Ok(by)
    };
    let prefers_watch = limits.enforce == Enforce::Watch;
    // The library watches the tree in /proc.
    let watch = if is_proc_foreign() { Enforcer::Unenforced } else { Enforcer::Watch };
    let mut max_load = MaxLoad::default();
    if let Some(bytes) = limits.memory {
        let otherwise = if prefers_watch { watch } else { Enforcer::Rlimit };
        match enforce(Resource::Memory, in_cgroup.memory, otherwise)? {
            Enforcer::Rlimit => _ = lower_rlimit(start, abi::RLIMIT_AS, bytes, bytes),
            Enforcer::Watch => max_load.memory = Some(bytes),
            _ => {}
        }
    }
    if let Some(pids) = limits.pids {
        let user = nproc_user(command).filter(|_| !in_cgroup.pids && !prefers_watch);
        let otherwise = if user.is_some() { Enforcer::Rlimit } else { watch };
        let by = enforce(Resource::Pids, in_cgroup.pids, otherwise)?;
        if let (Enforcer::Rlimit, Some(user)) = (by, user) {
            // Set the rlimit higher than the limit. The library detects a reached limit only if the
            // tree can have more tasks than the limit. Also, the number of the user's other
            // processes changes meanwhile.
            let all = tasks_of(user).saturating_add(pids).saturating_add(pids / 4 + 16);
            lower_rlimit(start, abi::RLIMIT_NPROC, all, all);
        }
        max_load.tasks = Some(pids).filter(|_| by != Enforcer::Cgroup);
    }
    let mut budget = None;
    if let Some(time) = limits.cpu_time {
        // Every cgroup counts CPU time, with or without a controller.
        budget = Some(match enforce(Resource::CpuTime, ledger.is_some(), Enforcer::Rlimit)? {
            Enforcer::Rlimit => {
                let soft = whole_seconds(time);
                let (soft, hard) =
                    lower_rlimit(start, abi::RLIMIT_CPU, soft, soft.saturating_add(whole_seconds(grace)));
                CpuBudget::OfEach { soft: Duration::from_secs(soft), hard: Duration::from_secs(hard) }
            }
            _ => CpuBudget::OfAll(time),
        });
    }
    if limits.cpus.is_some() {
        enforce(Resource::Cpus, in_cgroup.cpus, Enforcer::Unenforced)?;
    }
    Ok((tree, Some(LimitMonitor::new(enforced, ledger, max_load, budget, limits.cpus))))
}

/// Adds an rlimit unless the command's limits are lower already. Returns the resulting soft and hard limits.
fn lower_rlimit(start: &mut Start<'_>, resource: u32, soft: u64, hard: u64) -> (u64, u64) {
    let inherited = || call::limit(resource).map_or((u64::MAX, u64::MAX), |limit| (limit.rlim_cur, limit.rlim_max));
    let (highest_soft, highest_hard) = start.command.rlimit(resource).unwrap_or_else(inherited);
    let hard = hard.min(highest_hard);
    let soft = soft.min(highest_soft).min(hard);
    start.actions.push(Op::Limit { resource, limit: [soft, hard] });
    (soft, hard)
}

/// The CPU time that a run may use.
#[derive(Clone, Copy, Debug)]
enum CpuBudget {
    /// All processes of the tree together may use this time.
    OfAll(Duration),
    /// Each process may use this time. It gets SIGXCPU after `soft`, and SIGKILL after `hard`.
    OfEach { soft: Duration, hard: Duration },
}

/// Returns the earliest time at which the tree can have used the remaining CPU time `left`.
fn earliest_exhaustion(now: Instant, left: Duration, cpus: f64) -> Option<Instant> {
    let wait = Duration::try_from_secs_f64(left.as_secs_f64() / cpus).ok()?;
    now.checked_add(wait.max(LEAST_PAUSE))
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Returns the user whose processes RLIMIT_NPROC counts for the program; `None` if the rlimit has
/// no effect.
fn nproc_user(command: &Command<'_>) -> Option<u32> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let own = field(&status, "Uid:")?.parse().ok()?;
    let user = command.real_user().unwrap_or(own);
    // The kernel exempts processes with CAP_SYS_ADMIN or CAP_SYS_RESOURCE. After exec, a program of
    // a user other than root has only ambient capabilities.
    let ambient = u64::from_str_radix(field(&status, "CapAmb:")?, 16).ok()?;
    (user != 0 && ambient & (1 << 21 | 1 << 24) == 0).then_some(user)
}

/// Counts the processes and threads of a user in /proc.
fn tasks_of(user: u32) -> u64 {
    let Ok(entries) = std::fs::read_dir("/proc") else { return 0 };
    let tasks = |status: String| {
        let of: u32 = field(&status, "Uid:")?.parse().ok()?;
        if of == user { field(&status, "Threads:")?.parse::<u64>().ok() } else { None }
    };
    let is_process =
        |entry: &std::fs::DirEntry| entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit);
    let processes = entries.flatten().filter(is_process);
    processes.filter_map(|entry| tasks(std::fs::read_to_string(entry.path().join("status")).ok()?)).sum()
}

/// Returns the first word after this name in the text of /proc/PID/status.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()
}

/// The load of a tree at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// The number of processes and threads.
    tasks: u64,
    /// The sum of the resident memory of the processes, in bytes. A page that several processes share counts for each
    /// of them.
    memory: u64,
}

impl Load {
    /// Adds up the load of these processes.
    pub(super) fn of(processes: &[Stat]) -> Load {
        let pages: u64 = processes.iter().map(|stat| stat.resident_pages).sum();
        let memory = pages.saturating_mul(rustix::param::page_size() as u64);
        Load { tasks: processes.iter().map(|stat| stat.threads).sum(), memory }
    }
}

/// The highest allowed load of a tree, as far as the library enforces the limit.
#[derive(Clone, Copy, Debug, Default)]
struct MaxLoad {
    tasks: Option<u64>,
    memory: Option<u64>,
}

impl MaxLoad {
    /// Returns the resource of which a tree uses too much.
    fn exceeded_by(self, load: Load) -> Option<Resource> {
        let is_exceeded = |max: Option<u64>, used| max.is_some_and(|max| used > max);
        is_exceeded(self.tasks, load.tasks)
            .then_some(Resource::Pids)
            .or_else(|| is_exceeded(self.memory, load.memory).then_some(Resource::Memory))
    }

    fn is_none(self) -> bool {
        self.tasks.is_none() && self.memory.is_none()
    }
}

/// The limits of a run that the library checks while it runs and at its end.
#[derive(Debug)]
pub(crate) struct LimitMonitor {
    pub(super) enforced: Vec<Limit>,
    /// The limit that a check of this monitor has found reached.
    reached: Arc<OnceLock<Limit>>,
    /// For a command in a shell, the limit that the run of the shell has reached.
    reached_by_shell: Option<Arc<OnceLock<Limit>>>,
    ledger: Option<CgroupCounters>,
    max_load: MaxLoad,
    budget: Option<CpuBudget>,
    /// The maximum CPU time that the tree can use in one second, in seconds.
    cpus: f64,
    /// The time of the next check of the load, or of the cgroup's refused tasks. `pause` is the time from that check
    /// to the following one.
    load_due: Option<Instant>,
    pause: Duration,
    /// The time of the next check of CPU time.
    cpu_due: Option<Instant>,
}

impl LimitMonitor {
    fn new(
        enforced: Vec<Limit>,
        ledger: Option<CgroupCounters>,
        max_load: MaxLoad,
        budget: Option<CpuBudget>,
        cpus: Option<f64>,
    ) -> LimitMonitor {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let now = Instant::now();
        let counts = !max_load.is_none() || ledger.as_ref().is_some_and(|ledger| ledger.enforced.pids);
        let cpus = cpus.map_or(processors, |cpus| cpus.min(processors));
        let cpu_due = match budget {
            Some(CpuBudget::OfAll(budget)) => earliest_exhaustion(now, budget, cpus),
            _ => None,
        };
        let load_due = counts.then_some(now + PAUSES.0);
        let (reached, reached_by_shell) = (Arc::default(), None);
        LimitMonitor {
            enforced,
            reached,
            reached_by_shell,
            ledger,
            max_load,
            budget,
            cpus,
            load_due,
            pause: PAUSES.0,
            cpu_due,
        }
    }

    /// The monitor of a command in the shell whose run this monitor belongs to, or of another command in that shell.
    /// The run of the shell enforces the limits. The monitor of a command finds out whether one has ended the command.
    pub(crate) fn for_command(&self) -> LimitMonitor {
        LimitMonitor {
            enforced: self.enforced.clone(),
            reached: Arc::default(),
            reached_by_shell: self.reached_by_shell.clone().or_else(|| Some(self.reached.clone())),
            ledger: None,
            max_load: MaxLoad::default(),
            // Each process has a budget of its own.
            budget: self.budget.filter(|budget| matches!(budget, CpuBudget::OfEach { .. })),
            cpus: self.cpus,
            load_due: None,
            pause: PAUSES.0,
            cpu_due: None,
        }
    }

    /// For a command in a shell: whether the run of the shell has reached a limit.
    pub(crate) fn shell_has_reached(&self) -> bool {
        self.reached_by_shell.as_ref().is_some_and(|reached| reached.get().is_some())
    }

    /// Returns the time of the next check of any kind.
    pub(super) fn due(&self) -> Option<Instant> {
        self.load_due.into_iter().chain(self.cpu_due).min()
    }

    /// Makes the checks that are due. Returns the limit that the tree has reached.
    pub(super) fn check(&mut self, now: Instant, load: impl FnOnce() -> Load) -> Option<Limit> {
        self.find_reached(now, load).inspect(|limit| _ = self.reached.set(*limit))
    }

    fn find_reached(&mut self, now: Instant, load: impl FnOnce() -> Load) -> Option<Limit> {
        if self.load_due.is_some_and(|due| due <= now) {
            let longest = if self.max_load.memory.is_some() { LONGEST_MEMORY_PAUSE } else { PAUSES.1 };
            self.pause = (self.pause * 2).min(longest);
            self.load_due = now.checked_add(self.pause);
            if let Some(ledger) = &self.ledger
                && ledger.enforced.pids
                && ledger.was_refused_tasks()
            {
                return self.limit(Resource::Pids);
            }
            if !self.max_load.is_none()
                && let Some(resource) = self.max_load.exceeded_by(load())
            {
                return self.limit(resource);
            }
        }
        if self.cpu_due.is_some_and(|due| due <= now)
            && let (Some(CpuBudget::OfAll(budget)), Some(ledger)) = (self.budget, &self.ledger)
        {
            let Some(used) = ledger.cpu_time() else {
                // This happens, for example, if no descriptor is free to read the file.
                self.cpu_due = now.checked_add(PAUSES.1);
                return None;
            };
            let left = budget.saturating_sub(used);
            if left.is_zero() {
                return self.limit(Resource::CpuTime);
            }
            self.cpu_due = earliest_exhaustion(now, left, self.cpus);
        }
        None
    }

    /// Returns the limit that ended the program, if one did.
    pub(super) fn at_end(&self, status: Option<ExitStatus>, usage: Option<Usage>) -> Option<Limit> {
        self.find_at_end(status, usage).inspect(|limit| _ = self.reached.set(*limit))
    }

    fn find_at_end(&self, status: Option<ExitStatus>, usage: Option<Usage>) -> Option<Limit> {
        if let Some(limit) = self.reached_by_shell.as_ref().and_then(|reached| reached.get()) {
            return Some(*limit);
        }
        if let Some(ledger) = &self.ledger {
            if ledger.enforced.memory && ledger.was_out_of_memory() {
                return self.limit(Resource::Memory);
            }
            if ledger.enforced.pids && ledger.was_refused_tasks() {
                return self.limit(Resource::Pids);
            }
        }
        let Some(CpuBudget::OfEach { soft, hard }) = self.budget else { return None };
        // The kernel enforces RLIMIT_CPU by counting whole ticks, but reports the precise usage. On
        // a busy host, other programs can have run during most of a counted tick.
        let used_most =
            |of: Duration| usage.is_some_and(|usage| usage.cpu >= (of / 10 * 8).min(of.saturating_sub(SKEW)));
        // Nothing else is known to send SIGXCPU, so half of the limit is enough.
        let used_half = |of: Duration| usage.is_none_or(|usage| usage.cpu >= of / 2);
        let reached = match (status?.code(), status?.signal()) {
            // A shell exits with 128 + SIGXCPU if its child got the signal.
            (_, Some(SIGXCPU)) | (Some(EXIT_OF_SHELL_AFTER_SIGXCPU), _) => used_half(soft),
            (_, Some(SIGKILL)) => used_most(hard),
            _ => false,
        };
        self.limit(Resource::CpuTime).filter(|_| reached)
    }

    fn limit(&self, resource: Resource) -> Option<Limit> {
        self.enforced.iter().find(|limit| limit.resource == resource).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn monitor(resource: Resource, by: Enforcer, max_load: MaxLoad, budget: Option<CpuBudget>) -> LimitMonitor {
        LimitMonitor::new(vec![Limit { resource, by }], None, max_load, budget, None)
    }

    #[test]
    fn limits_print_resource_and_enforcer() {
        assert_eq!(Limit { resource: Resource::Memory, by: Enforcer::Cgroup }.to_string(), "memory (cgroup)");
        assert_eq!(Limit { resource: Resource::CpuTime, by: Enforcer::Rlimit }.to_string(), "cpu_time (rlimit)");
    }

    #[test]
    fn a_cpu_time_rlimit_is_recognised_by_the_signal() {
        let budget = CpuBudget::OfEach { soft: Duration::from_secs(2), hard: Duration::from_secs(4) };
        let monitor = monitor(Resource::CpuTime, Enforcer::Rlimit, MaxLoad::default(), Some(budget));
        let used = |seconds| Some(Usage { cpu: Duration::from_secs(seconds), max_rss: 0 });
        let at_end = |status, usage| monitor.at_end(Some(ExitStatus::from_raw(status)), usage).is_some();
        assert!(at_end(SIGXCPU, used(2)) && at_end(SIGXCPU, None) && at_end((128 + SIGXCPU) << 8, used(3)));
        assert!(at_end(SIGKILL, used(4)), "the hard limit");
        assert!(!at_end(SIGXCPU, used(0)), "a signal before the limit is used");
        assert!(!at_end(SIGKILL, used(2)) && !at_end(SIGKILL, None) && !at_end(0, used(9)));
        assert_eq!(monitor.due(), None, "nothing to poll");
    }

    #[test]
    fn tasks_are_counted_at_growing_intervals() {
        let max_load = MaxLoad { tasks: Some(10), memory: None };
        let mut monitor = monitor(Resource::Pids, Enforcer::Watch, max_load, None);
        let load = |tasks| Load { tasks, memory: u64::MAX };
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let due = monitor.due().expect("counted");
            assert_eq!(monitor.check(due - Duration::from_nanos(1), || unreachable!("not yet")), None);
            assert_eq!(monitor.check(due, || load(10)), None);
            pauses.push((monitor.due().expect("counted") - due).as_millis());
        }
        assert_eq!(pauses, [40, 80, 160, 320, 500, 500, 500]);
        let due = monitor.due().expect("counted");
        assert_eq!(monitor.check(due, || load(11)).map(|limit| limit.resource), Some(Resource::Pids));
    }

    #[test]
    fn watched_memory_is_checked_at_shorter_intervals() {
        let max_load = MaxLoad { tasks: Some(10), memory: Some(1000) };
        let mut monitor = monitor(Resource::Memory, Enforcer::Watch, max_load, None);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let due = monitor.due().expect("counted");
            assert_eq!(monitor.check(due, || Load { tasks: 10, memory: 1000 }), None);
            pauses.push((monitor.due().expect("counted") - due).as_millis());
        }
        assert_eq!(pauses, [40, 80, 100, 100]);
        let due = monitor.due().expect("counted");
        let reached = monitor.check(due, || Load { tasks: 10, memory: 1001 });
        assert_eq!(reached, Some(Limit { resource: Resource::Memory, by: Enforcer::Watch }));
    }

    #[test]
    fn unreadable_cpu_time_is_polled_again_later() {
        let dir = spawnfd_tests::scratch();
        let open = std::fs::File::open(dir.path()).expect("own directory");
        let ledger = CgroupCounters::open(open.as_fd(), &Limits::new().bounds()).expect("own directory");
        let enforced = vec![Limit { resource: Resource::CpuTime, by: Enforcer::Cgroup }];
        let budget = CpuBudget::OfAll(Duration::from_secs(1));
        let mut monitor = LimitMonitor::new(enforced, Some(ledger), MaxLoad::default(), Some(budget), None);
        let due = monitor.due().expect("counted");
        let unused = || unreachable!("nothing watches the load");
        assert_eq!(monitor.check(due, unused), None);
        assert!(monitor.due().expect("counted") > due);
        std::fs::write(dir.path().join("cpu.stat"), "usage_usec 2000000\n").expect("own directory");
        assert_eq!(
            monitor.check(monitor.due().expect("counted"), unused).map(|limit| limit.resource),
            Some(Resource::CpuTime)
        );
    }

    #[test]
    fn limits_of_zero_are_refused() {
        let wrong = [
            Limits::new().memory(0),
            Limits::new().pids(0),
            Limits::new().cpu_time(Duration::ZERO),
            Limits::new().cpus(0.0),
            Limits::new().cpus(-1.0),
            Limits::new().cpus(f64::NAN),
            Limits::new().cpus(f64::INFINITY),
        ];
        assert!(wrong.iter().all(|limits| limits.validate().is_err_and(|error| error.errno() == Errno::EINVAL)));
        assert!(Limits::new().memory(1).pids(1).cpus(0.5).validate().is_ok());
    }

    #[test]
    fn status_lines_are_parsed() {
        let status = "Name:\tx\nUid:\t1000\t0\t0\t0\nThreads:\t3\nCapAmb:\t0000000001000000\n";
        assert_eq!(
            (field(status, "Uid:"), field(status, "Threads:"), field(status, "Gid:")),
            (Some("1000"), Some("3"), None)
        );
        assert!(tasks_of(rustix::process::getuid().as_raw()) >= 2, "libtest has two threads");
        assert_eq!(whole_seconds(Duration::from_millis(1001)), 2);
    }
}
