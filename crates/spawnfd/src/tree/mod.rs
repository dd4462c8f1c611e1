// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control of a running program's process tree: signal it, kill it, list the processes that outlive the program, and
//! end it with its owner.
//!
//! A [`Tier`] says how far this control reaches. The page on [process trees] describes each tier.
//!
//! [process trees]: https://github.com/spawnfd/spawnfd/blob/main/docs/trees.md

mod abandoned;
mod bounds;
mod cgroup;
mod guard;
mod image;
mod pidns;
mod subreaper;
mod tier;

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use spawnfd_guard::descendants::Descendants;
use spawnfd_guard::members::{self, Members};
use spawnfd_guard::process::{Process, ProcessIdentity, Stat, is_proc_foreign, ticks_now};
use spawnfd_guard::table::SlotState;
use spawnfd_guard::{cgroup as group, sys};
use spawnfd_sys::{Errno, fork_generation, wait_pidfd};

use crate::child::Child;
use crate::command::{Command, Placement};
use crate::error::{Error, Result, from_io};
use crate::host::one_start::{self, Remembered};
pub(crate) use bounds::{Bounds, CgroupCounters};
pub(crate) use cgroup::own_directory;

use cgroup::{Cgroup, NewCgroup};
use guard::Registration;
pub(crate) use guard::{end_guard_if_idle, forget_ended_guards, is_guard_exiting, maintain_guard};
pub(crate) use image::{drop_template, file_for_sandbox};
use pidns::PidNamespace;
use subreaper::SubreaperTree;
pub use tier::{Tier, TreeControl};

/// A process of a tree that has outlived the tree's first program.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::tree::{Tree, TreeControl};
/// use std::os::fd::AsFd;
///
/// let mut tree = Tree::prepare(TreeControl::Group)?;
/// let mut child = Command::new("sh").args(["-c", "sleep 60 & exit"]).setsid().tree(&tree).spawn()?;
/// tree.program_started(child.id(), child.as_fd());
/// child.wait()?;
/// for survivor in tree.survivors() {
///     println!("process {} ({}) still runs", survivor.pid, survivor.name);
/// }
/// assert!(tree.kill(std::time::Duration::from_secs(5)));
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Survivor {
    /// The process id.
    pub pid: u32,
    /// The process's name (comm), as `ps` shows it. By default it is the program's name, truncated
    /// to 15 bytes.
    pub name: String,
}

/// The longest time for which the drop of a tree waits for the killed processes to end.
const DROP_TIMEOUT: Duration = Duration::from_secs(1);

/// The number of names to try for a new cgroup.
const PATH_ATTEMPTS: usize = 8;

/// How long to retry the removal of an empty cgroup before the guard takes it over.
const REMOVAL_MS: u64 = 20;

/// How long to wait for the last processes of a removed cgroup to end, and for a helper that is the only process left.
const EXIT_MS: u64 = 100;

/// The process tree of one program.
///
/// Prepare the tree before the program starts. Right after the start, call
/// [`program_started`](Tree::program_started). Dropping the tree kills its remaining processes;
/// [`detach`](Tree::detach) prevents that. A copy of the tree in a forked process does nothing.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::tree::{Tree, TreeControl};
/// use std::os::fd::AsFd;
///
/// let mut tree = Tree::prepare(TreeControl::Auto)?;
/// let mut command = Command::new("sh");
/// command.args(["-c", "sleep 1000 & exit"]).setsid().tree(&tree);
/// let mut child = command.spawn()?;
/// tree.program_started(child.id(), child.as_fd());
/// child.wait()?;
/// assert_eq!(tree.survivors().len(), 1, "sleep");
/// assert!(tree.kill(std::time::Duration::from_secs(5)));
/// assert_eq!(tree.survivors(), []);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[must_use = "dropping the tree kills its processes"]
#[derive(Debug)]
pub struct Tree {
    tier: Tier,
    control: Mechanism,
    registration: Option<Registration>,
    /// The fork generation of the process that prepared the tree: a number that differs in each forked process.
    generation: u64,
}

/// The means of control over the tree's processes.
#[derive(Debug)]
enum Mechanism {
    /// No program has started yet, or the tree has been released.
    Empty,
    /// A cgroup. After the start, the second field has the program, and the members that the tree saw before it
    /// killed them.
    Cgroup(Cgroup, Option<Members>),
    /// A pid namespace.
    Namespace(Box<PidNamespace>),
    /// A subreaper.
    Subreaper(Box<SubreaperTree>),
    /// A program and its known descendants.
    Members(Members),
}

impl Tree {
    /// Prepares control of the tree of a program that is about to start.
    ///
    /// The first tree starts a guard, a small helper process that ends the trees if this process is killed. The guard
    /// is a child of this process, and exits after there has been no tree for a while: see [process trees].
    ///
    /// [process trees]: https://github.com/spawnfd/spawnfd/blob/main/docs/trees.md
    ///
    /// # Errors
    /// [`TreeControl::Group`] and [`TreeControl::Auto`] never fail. The others fail with EOPNOTSUPP if the crate was built without
    /// the feature `tree`.
    ///
    /// [`TreeControl::Cgroup`]: ENOENT: cgroup v2 is not mounted; EACCES, EROFS: this process may not create a cgroup below
    /// its own; EOPNOTSUPP: its own cgroup is threaded; and the errors of [`TreeControl::Guard`].
    ///
    /// [`TreeControl::Guard`]: the errors that keep the guard from starting; ENOSPC: the guard has no free entry for another
    /// tree.
    ///
    /// [`TreeControl::Subreaper`]: EOPNOTSUPP: there is no /proc of this process's pid namespace; and the errors of
    /// [`TreeControl::Guard`].
    ///
    /// [`TreeControl::Pidns`]: EPERM, ENOSPC, EUSERS: the kernel refuses a pid namespace, with and without a user namespace;
    /// and the errors that keep a helper process from starting.
    pub fn prepare(want: TreeControl) -> Result<Tree> {
        match want {
            TreeControl::Group => Ok(Tree::of_group()),
            TreeControl::Cgroup => Tree::in_cgroup(cgroup::prepare()?),
            TreeControl::Pidns => PidNamespace::create()
                .map(|namespace| Tree::of(Tier::Pidns, Mechanism::Namespace(Box::new(namespace)), None)),
            TreeControl::Subreaper => Tree::below_subreaper(),
            TreeControl::Guard => Tree::guarded(),
            TreeControl::Auto => Ok(Tree::most_complete(true)),
        }
    }

    /// Creates a tree of the first available tier. If `may_use_subreaper` is false, skips the tier subreaper.
    pub(crate) fn most_complete(may_use_subreaper: bool) -> Tree {
        let in_cgroup = cgroup::prepare().and_then(Tree::in_cgroup);
        let subreaper = |error| if may_use_subreaper { Tree::below_subreaper() } else { Err(error) };
        in_cgroup.or_else(subreaper).unwrap_or_else(|_| Tree::without_cgroup())
    }

    fn below_subreaper() -> Result<Tree> {
        let (tree, registration) = SubreaperTree::prepare()?;
        Ok(Tree::of(Tier::Subreaper, Mechanism::Subreaper(Box::new(tree)), Some(registration)))
    }

    /// Creates a tree with a guard. If no guard can be started, creates a tree without a guard.
    pub(crate) fn without_cgroup() -> Tree {
        Tree::guarded().unwrap_or_else(|_| Tree::of_group())
    }

    /// Creates a tree that needs no helper and no preparation.
    pub(crate) fn of_group() -> Tree {
        Tree::of(Tier::Group, Mechanism::Empty, None)
    }

    fn of(tier: Tier, control: Mechanism, registration: Option<Registration>) -> Tree {
        Tree { tier, control, registration, generation: fork_generation().unwrap_or(1) }
    }

    fn guarded() -> Result<Tree> {
        guard::register(b"", SlotState::Used)
            .map(|registration| Tree::of(Tier::Guard, Mechanism::Empty, Some(registration)))
    }

    /// Creates a tree in a cgroup that enforces some or all of these limits. The returned counters
    /// say which limits. If `allow_none` is true, succeeds even if the cgroup enforces none.
    ///
    /// # Errors
    /// The errors of [`TreeControl::Cgroup`]. EOPNOTSUPP: the cgroup would enforce no limit.
    pub(crate) fn bounded(limits: &Bounds, allow_none: bool) -> Result<(Tree, CgroupCounters)> {
        let tree = Tree::in_cgroup(cgroup::prepare_with_limits(limits, allow_none)?)?;
        match &tree.control {
            Mechanism::Cgroup(group, _) => group.set_limits(limits).map(|counters| (tree, counters)),
            _ => Err(failed(Errno::ENOENT, "cgroup")),
        }
    }

    fn in_cgroup(mut new: NewCgroup) -> Result<Tree> {
        for _ in 0..PATH_ATTEMPTS {
            // The guard gets the path before the cgroup exists, so that it removes the cgroup if this process is
            // killed at any time.
            let registration = guard::register(new.path(), SlotState::Used)?;
            match new.create() {
                Ok(group) => return Ok(Tree::of(Tier::Cgroup, Mechanism::Cgroup(group, None), Some(registration))),
                Err(error) => {
                    registration.release();
                    if error.errno() != Errno::EEXIST {
                        return Err(error);
                    }
                    new = new.with_another_name()?;
                }
            }
        }
        Err(failed(Errno::EEXIST, "cgroup"))
    }

    /// The tier of this tree. If the helper of a tree with [`Tier::Subreaper`] is killed, the tier becomes
    /// [`Tier::Guard`].
    pub fn tier(&self) -> Tier {
        match &self.control {
            Mechanism::Subreaper(tree) if tree.subreaper.is_lost() => Tier::Guard,
            _ => self.tier,
        }
    }

    /// The directory of the cgroup in which the program must start, if the tree has a cgroup.
    /// [`Command::tree`](crate::Command::tree) uses it.
    pub fn cgroup(&self) -> Option<BorrowedFd<'_>> {
        match &self.control {
            Mechanism::Cgroup(dir, _) => Some(dir.as_fd()),
            _ => None,
        }
    }

    /// The place of the program in this tree.
    ///
    /// # Errors
    /// EMFILE, ENFILE.
    pub(crate) fn placement(&self) -> Result<Placement> {
        let copy =
            |fd: BorrowedFd<'_>| fd.try_clone_to_owned().map_err(|e| failed(from_io(&e), "fcntl(F_DUPFD_CLOEXEC)"));
        let mut placement = Placement::default();
        match &self.control {
            Mechanism::Cgroup(dir, _) => placement.cgroup = Some(copy(dir.as_fd())?),
            Mechanism::Namespace(namespace) => {
                let (init, user) = namespace.join_target();
                placement.namespace = Some((copy(init)?, user));
            }
            Mechanism::Subreaper(tree) => placement.subreaper = Some(tree.subreaper.clone()),
            Mechanism::Empty | Mechanism::Members(_) => {}
        }
        // A subreaper registers itself instead of the program.
        if self.is_owner() && placement.subreaper.is_none() {
            placement.registration = self.registration.as_ref().map(Registration::registration);
        }
        Ok(placement)
    }

    /// Tells the tree about its program. Call this right after the start. The program is a child of this process.
    ///
    /// The tree includes the program's session if the program leads one (as after
    /// [`Command::setsid`](crate::Command::setsid)). Otherwise it includes the program's process group if the program
    /// leads one, else only the program's descendants. It never includes the session or process group of this
    /// process.
    pub fn program_started(&mut self, pid: u32, pidfd: BorrowedFd<'_>) {
        self.started(pid as i32, sys::Fd::duplicate(pidfd.as_raw_fd()).ok());
    }

    /// Like `program_started`. The tree shares the child's pidfd.
    pub(crate) fn child_started(&mut self, child: &Child) {
        self.started(child.id() as i32, child.share_pidfd());
    }

    fn started(&mut self, pid: i32, pidfd: Option<sys::Fd>) {
        match &mut self.control {
            Mechanism::Cgroup(_, program) => {
                *program = pidfd.map(|pidfd| members_of(pid, own_session(), Some(pidfd)));
            }
            Mechanism::Namespace(namespace) => {
                pidfd.into_iter().for_each(|pidfd| namespace.members.set_program(pid, pidfd));
            }
            Mechanism::Subreaper(tree) => {
                let identity = pidfd.as_ref().and_then(|pidfd| ProcessIdentity::of(pidfd, pid));
                let helper = tree.program_started(pid, pidfd);
                if tree.has_no_subreaper() {
                    // The program was not started with `Command::tree`.
                    return self.continue_without_subreaper();
                }
                let Some(Registration { table, slot, .. }) = &self.registration else { return };
                if let Some((helper, identity)) = helper {
                    table.set_root(*slot, helper, own_session(), identity, ticks_now());
                }
                if let Some(identity) = identity {
                    table.set_program(*slot, pid, identity);
                }
            }
            _ => _ = self.follow_program(pid, pidfd),
        }
    }

    /// Tells the tree that the program has ended. Call this *before* you reap the program. Until it is reaped, the
    /// program has its pid, so every process in a session with that number belongs to the tree. The call is cheap.
    ///
    /// Without this call, the tree knows only that the program had its pid at `program_started`, or at the last
    /// search for survivors. Of the processes that started after that time, the tree then finds only those in the
    /// program's own process group (Linux 6.9), and descendants of processes that it finds.
    pub fn program_ended(&mut self) {
        if self.is_owner()
            && let Mechanism::Members(members) | Mechanism::Cgroup(_, Some(members)) = &mut self.control
        {
            let seen = members.update_root_seen();
            self.registration.iter().for_each(|guard| guard.table.root_may_be_reaped(guard.slot, seen));
        }
    }

    /// Tells the tree that the caller will call `program_ended` before it reaps the program. If this process dies first,
    /// the program's session still belongs to the tree, whoever has reaped the program.
    pub fn program_is_kept(&self) {
        let is_kept = self.is_owner() && matches!(self.control, Mechanism::Members(_));
        self.registration.iter().filter(|_| is_kept).for_each(|guard| guard.table.root_is_kept(guard.slot));
    }

    /// Sends a signal once to every process of the tree, and continues stopped processes so that they receive it.
    pub fn signal(&mut self, signal: i32) {
        self.signal_all(signal);
    }

    /// Like `signal`, and returns whether the program got the signal. The program does not get the signal if no
    /// descriptor is free for a pidfd, or if /proc does not show the program.
    ///
    /// The signal may end a process whose children have left the session. So the tree first searches for its processes,
    /// remembers them, and reports them to the guard.
    pub(crate) fn signal_all(&mut self, signal: i32) -> bool {
        if !self.is_owner() {
            return true;
        }
        self.continue_without_subreaper();
        match &mut self.control {
            Mechanism::Cgroup(dir, program) => {
                let program = program.as_ref().map(|program| program.root().pid);
                group::signal(dir.number(), signal).into_iter().any(|pid| Some(pid) == program)
            }
            Mechanism::Namespace(namespace) => namespace.members.signal(signal),
            Mechanism::Subreaper(tree) => tree.remaining().is_some_and(|descendants| descendants.signal(signal)),
            Mechanism::Members(members) => {
                let alive = find_members(members, self.registration.as_ref());
                let sent = members.signal(&alive, signal);
                // A process may have forked after the search, and the signal may have ended it. Its child is still in
                // the session, but may be about to leave.
                find_members(members, self.registration.as_ref());
                sent
            }
            Mechanism::Empty => false,
        }
    }

    /// Searches for the processes of the tree, remembers them, and reports them to the guard. Call this before a signal
    /// to the program alone.
    pub(crate) fn remember_members(&mut self) {
        if let (true, Mechanism::Members(members)) = (self.is_owner(), &mut self.control) {
            find_members(members, self.registration.as_ref());
        }
    }

    /// Adds a process that has left the tree, or is about to leave it, in the tiers that have to search for members. Another
    /// process in the session of this process stays out, because it may be another child of this process.
    pub(crate) fn add_found(&mut self, found: &Stat) {
        if let (true, Mechanism::Members(members)) = (self.is_owner(), &mut self.control)
            && members.may_contain(found, own_session())
        {
            members.add(found.process);
        }
    }

    /// Kills the tree as far as its tier reaches, and waits at most `timeout` for it to end.
    /// Returns whether the tree has ended.
    ///
    /// A zombie program counts as ended. If the library has to search /proc for members and finds several, it stops
    /// all of them before it kills any. Stopping takes a few milliseconds. On a busy machine it takes at most 250 ms
    /// after the last search that found a new process, and at most 2 s. `timeout` does not include this time.
    #[must_use = "false: processes of the tree still run"]
    pub fn kill(&mut self, timeout: Duration) -> bool {
        let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        if !self.is_owner() {
            return true;
        }
        self.continue_without_subreaper();
        match &mut self.control {
            Mechanism::Cgroup(dir, program) => {
                // The cgroup does not list ended processes, so record the members before the kill.
                if let Some(program) = program {
                    let members = group::members(dir.number()).into_iter().filter_map(Stat::read);
                    members.for_each(|member| program.add(member.process));
                }
                group::kill_until_empty(dir.number(), milliseconds) && {
                    await_zombies(program.as_mut());
                    true
                }
            }
            Mechanism::Namespace(namespace) => namespace.members.kill_namespace(milliseconds),
            Mechanism::Subreaper(tree) => {
                let has_ended = tree.remaining().is_none_or(|descendants| descendants.kill_each(milliseconds));
                // A process of the tree may have killed the subreaper meanwhile.
                if has_ended && tree.subreaper.is_lost() { self.kill(timeout) } else { has_ended }
            }
            // `may_have_others` is much cheaper than the search in `kill_trees`, and usually shows that nothing is
            // left to kill.
            Mechanism::Members(members) => {
                let registration = self.registration.as_ref();
                !members.may_have_others()
                    || members::kill_trees(std::slice::from_mut(members), milliseconds, |members, list| {
                        report_members(members, list, registration);
                    })
            }
            Mechanism::Empty => true,
        }
    }

    /// Lists the running processes of the tree, except the program. The tree remembers the listed processes.
    ///
    /// The call is cheap once the program has been reaped, if no process survives. A call while the program runs
    /// finds processes that a later call might not.
    pub fn survivors(&mut self) -> Vec<Survivor> {
        self.try_survivors().unwrap_or_default().into_iter().map(Survivor::of).collect()
    }

    /// Like `survivors`, but returns `None` if the tree cannot search: no descriptor is free, or there is no /proc of
    /// this pid namespace.
    pub(crate) fn try_survivors(&mut self) -> Option<Vec<Stat>> {
        if !self.is_owner() {
            return Some(Vec::new());
        }
        self.continue_without_subreaper();
        match &mut self.control {
            Mechanism::Cgroup(dir, program) => {
                if !group::read_populated(dir.number())? {
                    return Some(Vec::new());
                }
                if is_proc_foreign() {
                    return None;
                }
                // Once the program has ended, another process may have its pid.
                let program = program.as_ref().filter(|program| !program.root_has_ended());
                let program = program.map_or(0, |program| program.root().pid);
                let others = group::members(dir.number()).into_iter().filter(|&pid| pid != program);
                Some(others.filter_map(Stat::read).filter(Stat::is_alive).collect())
            }
            Mechanism::Namespace(namespace) => namespace.members.others(),
            Mechanism::Subreaper(tree) => {
                let others = tree.remaining().map_or_else(|| Some(Vec::new()), Descendants::others);
                if tree.subreaper.is_lost() { self.try_survivors() } else { others }
            }
            Mechanism::Members(members) => {
                if !members.may_have_others() {
                    return Some(Vec::new());
                }
                let alive = find_members(members, self.registration.as_ref());
                let others = alive.into_iter().filter(|stat| stat.process != members.root());
                (!members.is_proc_unreadable()).then(|| others.collect())
            }
            Mechanism::Empty => Some(Vec::new()),
        }
    }

    /// Lists the running processes of the tree, the program included. The tree remembers the processes.
    pub(crate) fn processes(&mut self) -> Vec<Stat> {
        self.continue_without_subreaper();
        match &mut self.control {
            Mechanism::Members(members) => find_members(members, self.registration.as_ref()),
            Mechanism::Namespace(namespace) => namespace.members.all(),
            Mechanism::Subreaper(tree) => tree.remaining().map_or_else(Vec::new, Descendants::all),
            Mechanism::Cgroup(dir, _) => {
                group::members(dir.number()).into_iter().filter_map(Stat::read).filter(Stat::is_alive).collect()
            }
            Mechanism::Empty => Vec::new(),
        }
    }

    /// Releases the tree: its processes run on, even after this process has ended.
    ///
    /// Processes in the tree's cgroup move to the cgroup of this process.
    pub fn detach(mut self) {
        if !self.is_owner() {
            return;
        }
        match &self.control {
            Mechanism::Cgroup(dir, _) => dir.release_members(),
            Mechanism::Namespace(namespace) => namespace.release(),
            Mechanism::Subreaper(tree) => tree.subreaper.release(),
            _ => {}
        }
        self.reap_orphans();
        self.release_control();
    }

    /// If the tree has lost its subreaper, controls the tree as in the tier guard from now on.
    fn continue_without_subreaper(&mut self) {
        let Mechanism::Subreaper(tree) = &mut self.control else { return };
        if !(tree.subreaper.is_lost() || tree.has_no_subreaper() && tree.program.is_some()) {
            return;
        }
        let Some((pid, pidfd)) = tree.program.take() else {
            // The caller has not called `program_started`, or no descriptor was free.
            (self.tier, self.control) = (Tier::Guard, Mechanism::Empty);
            return;
        };
        self.tier = Tier::Guard;
        if self.follow_program(pid, Some(pidfd)) {
            self.registration.iter().for_each(|guard| guard.table.subreaper_lost(guard.slot));
        }
    }

    /// Controls the tree by its program from now on. Returns whether the guard can do so, too.
    fn follow_program(&mut self, pid: i32, pidfd: Option<sys::Fd>) -> bool {
        let identity = self.registration.as_ref().and(pidfd.as_ref()).and_then(|pidfd| ProcessIdentity::of(pidfd, pid));
        let start_session = own_session();
        let members = members_of(pid, start_session, pidfd);
        let seen = members.root_seen();
        let known = self.registration.as_ref().zip(identity);
        known.inspect(|(guard, identity)| guard.table.set_root(guard.slot, pid, start_session, *identity, seen));
        self.control = Mechanism::Members(members);
        known.is_some()
    }

    /// Whether this process has prepared the tree. A forked copy of the host must not use the tree: the copy shares
    /// the guard's table of trees with its parent, and the tree's processes are not children of the copy.
    fn is_owner(&self) -> bool {
        fork_generation().unwrap_or(1) == self.generation
    }

    /// Reaps members that became children of this process because it is pid 1 or a child subreaper.
    fn reap_orphans(&mut self) {
        let members = match &mut self.control {
            Mechanism::Members(members) => members,
            // The kernel does not reuse the number of the program's session until ended members are reaped.
            Mechanism::Cgroup(_, Some(members)) => {
                if !members.may_have_others() {
                    return;
                }
                members.find();
                members
            }
            _ => return,
        };
        for ended in members.reapable_orphans() {
            let _ = wait_pidfd(ended.number(), false);
        }
    }

    /// Releases the means of control, and does not affect processes that still run.
    fn release_control(&mut self) {
        let control = std::mem::replace(&mut self.control, Mechanism::Empty);
        let Some(registration) = self.registration.take() else { return };
        match control {
            Mechanism::Cgroup(dir, _) if dir.remove(REMOVAL_MS).is_err() => registration.leave_cgroup_to_guard(),
            _ => registration.release(),
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if !self.is_owner() {
            return;
        }
        self.continue_without_subreaper();
        let may_have_processes = match &mut self.control {
            // The removal fails if the cgroup still has processes.
            Mechanism::Cgroup(dir, program) => {
                let is_removed = dir.remove(0).is_ok();
                await_zombies(program.as_mut().filter(|_| is_removed));
                !is_removed
            }
            Mechanism::Namespace(namespace) => !namespace.members.has_ended(),
            Mechanism::Subreaper(tree) => tree.remaining().is_some(),
            Mechanism::Members(members) => members.may_have_others(),
            Mechanism::Empty => false,
        };
        if may_have_processes {
            // A process that does not end within `DROP_TIMEOUT` continues to run.
            let _ = self.kill(DROP_TIMEOUT);
        }
        self.reap_orphans();
        match &mut self.control {
            Mechanism::Namespace(namespace) => namespace.wait_for_init(),
            Mechanism::Subreaper(tree) => tree.wait_for_end(),
            _ => {}
        }
        self.release_control();
    }
}

/// The session of this process, in which its programs start. The library never counts this session as a part of a
/// program's tree, even after this process has left the session.
fn own_session() -> i32 {
    thread_local! {
        static DURING_START: Remembered<i32> = const { RefCell::new(None) };
    }
    one_start::known(&DURING_START).unwrap_or_else(|| {
        let session = sys::getsid(0).unwrap_or(0);
        one_start::remember(&DURING_START, session);
        session
    })
}

/// Waits until exiting members of a cgroup are zombies, which can be reaped. A process leaves its cgroup a moment
/// before it becomes a zombie (kernel/exit.c, do_exit). The function does not wait for a process that has left the
/// cgroup alive.
fn await_zombies(program: Option<&mut Members>) {
    let Some(members) = program else { return };
    let deadline = sys::now().saturating_add(EXIT_MS);
    while members.may_have_others() && members.find().0.iter().any(Stat::is_ending) && sys::now() < deadline {
        sys::sleep(1);
    }
}

/// Finds the running processes of a tree.
fn find_members(members: &mut Members, registration: Option<&Registration>) -> Vec<Stat> {
    let (alive, list) = members.find();
    report_members(members, &list, registration);
    alive
}

/// Reports to the guard the members that the guard may not find by itself. `list` has the processes that the last
/// search has read.
fn report_members(members: &mut Members, list: &[Stat], registration: Option<&Registration>) {
    if let Some(Registration { table, slot, .. }) = registration {
        table.set_root_seen(*slot, members.update_root_seen());
        members.members_to_report(list).for_each(|member| table.add_member(*slot, member));
    }
}

impl Survivor {
    pub(crate) fn of(stat: Stat) -> Survivor {
        Survivor { pid: stat.process.pid as u32, name: String::from_utf8_lossy(stat.name()).into_owned() }
    }
}

fn members_of(pid: i32, start_session: i32, pidfd: Option<sys::Fd>) -> Members {
    Members::new(Process { pid, start: 0 }, start_session, pidfd)
}

fn failed(errno: Errno, call: impl Into<String>) -> Error {
    Error::new(crate::error::Stage::Tree, errno, call)
}

impl Command<'_> {
    /// Starts the program as the first process of a tree. Before other actions, the program enters the tree's cgroup
    /// or pid namespace, if the tree has one, and registers with the tree's guard.
    ///
    /// So the program ends with this process, even if this process is killed before it calls
    /// [`Tree::program_started`]. The exception is a program that the command makes the first process of a new pid
    /// namespace.
    pub fn tree(&mut self, tree: &Tree) -> &mut Self {
        match tree.placement() {
            Ok(placement) => self.placement = Some(placement),
            Err(error) => _ = self.refused.get_or_insert(error),
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    #[cfg(not(feature = "tree"))]
    fn only_the_tier_group_is_available_without_the_helper() {
        for want in [TreeControl::Cgroup, TreeControl::Pidns, TreeControl::Guard] {
            let error = Tree::prepare(want).expect_err("no helper");
            assert_eq!(error.errno(), Errno::EOPNOTSUPP, "{want:?}: {error}");
            assert!(error.message().contains("feature `tree`"), "{error}");
        }
        assert_eq!(Tree::prepare(TreeControl::Auto).expect("the tier group").tier(), Tier::Group);
    }

    #[test]
    fn an_existing_cgroup_with_the_chosen_name_is_left_alone() {
        spawnfd_tests::isolated!(|| {
            let Ok(first) = Tree::prepare(TreeControl::Cgroup) else {
                return spawnfd_tests::skip("cannot create a cgroup");
            };
            drop(first);
            let new = cgroup::prepare().expect("a path");
            let taken = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(new.path()));
            std::fs::create_dir(&taken).expect("own directory");
            assert_eq!(new.create().expect_err("the directory exists").errno(), Errno::EEXIST);
            let tree = Tree::in_cgroup(new).expect("another path");
            assert!(tree.cgroup().is_some());
            drop(tree);
            std::fs::remove_dir(taken).expect("it still exists and is empty");
        });
    }
}
