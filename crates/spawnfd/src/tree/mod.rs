// SPDX-License-Identifier: MIT OR Apache-2.0
//! Control of a running program's process tree: to signal it, to end it, to say what of it is left, and to end it with its owner.
//!
//! How far that reaches is a [`Tier`]. What to expect of each, in words: docs/trees.md.

mod bounds;
mod cgroup;
mod guard;
mod image;
mod pidns;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use spawnfd_child::Announcement;
use spawnfd_guard::members::{self, Members};
use spawnfd_guard::process::{Mark, Process, Stat, is_foreign};
use spawnfd_guard::{cgroup as group, sys};
use spawnfd_sys::{Errno, fork_generation, wait_pidfd};

use crate::command::Command;
use crate::error::{Error, Result, Stage, from_io};
pub(crate) use bounds::{Bounds, Ledger};
pub(crate) use cgroup::own_directory;
use cgroup::{Group, Place};
use guard::Watch;
pub(crate) use guard::{end_guard_if_idle, is_guard_leaving};
use pidns::Pidns;

/// How far control of a tree reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// A cgroup of its own: everything that does not write itself into another. Ends with the owner.
    Cgroup,
    /// A pid namespace of its own: everything, whatever it does. Ends with the owner.
    Pidns,
    /// Session, process group and known descendants. A process that has left the session and lost its parent before it was
    /// seen may survive. Ends with the owner.
    Guard,
    /// As [`Guard`](Tier::Guard), but nothing ends the tree when the owner is killed.
    #[default]
    Group,
}

impl Tier {
    /// Whether leaving the session is no way out of it. Where it is one (guard, group) a process that has called setsid may survive, and is not
    /// named then.
    pub fn is_complete(self) -> bool {
        matches!(self, Tier::Cgroup | Tier::Pidns)
    }
}

names!(Tier { Cgroup = "cgroup", Pidns = "pidns", Guard = "guard", Group = "group", });

/// Which tier is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[non_exhaustive]
pub enum Want {
    /// [`Tier::Group`]: no helper, nothing made beforehand.
    #[default]
    Group,
    /// The first that can be had, of all but [`Tier::Pidns`].
    Auto,
    /// [`Tier::Cgroup`] or an error.
    Cgroup,
    /// [`Tier::Pidns`] or an error. The program finds itself to be process 2 without a parent (`getppid` is 0). Where this process may not
    /// make a pid namespace it gets a user namespace, too: of this process's own effective ids, and without any capability.
    Pidns,
    /// [`Tier::Guard`] or an error.
    Guard,
}

/// A process of a tree that has outlived the program the tree began with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survivor {
    /// Its process id.
    pub pid: u32,
    /// What ps calls it: its program's name, cut after 15 bytes, unless it has given itself another.
    pub name: String,
}

/// How long dropping a tree waits for what it has killed to be gone.
const DROP_PATIENCE: Duration = Duration::from_secs(1);

/// How many names are tried for a cgroup that nobody else has.
const PLACES: usize = 8;

/// How long an emptied cgroup may refuse to be removed before that is left to the guard.
const REMOVAL_MS: u64 = 20;

/// How long its last processes may take to end then.
const LEAVING_MS: u64 = 100;

/// The process tree of one program.
///
/// Prepared before the program is born, and told of its birth. Dropping it ends what is left of it, unless
/// [`detach`](Tree::detach) has let it go. A fork's copy of it does nothing.
///
/// # Examples
/// ```
/// use spawnfd::Command;
/// use spawnfd::tree::{Tree, Want};
/// use std::os::fd::AsFd;
///
/// let mut tree = Tree::prepare(Want::Auto)?;
/// let mut command = Command::new("sh");
/// command.args(["-c", "sleep 1000 & exit"]).setsid().tree(&tree);
/// let mut child = command.spawn()?;
/// tree.born(child.id(), child.as_fd());
/// child.wait()?;
/// assert_eq!(tree.survivors().len(), 1, "sleep");
/// assert!(tree.kill(std::time::Duration::from_secs(5)));
/// assert_eq!(tree.survivors(), []);
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Debug)]
pub struct Tree {
    tier: Tier,
    control: Control,
    watch: Option<Watch>,
    /// The process that prepared it.
    generation: u64,
}

/// What control stands on.
#[derive(Debug)]
enum Control {
    /// No program is born yet, or the tree has been let go of.
    Nobody,
    /// A cgroup; and, once it is born, the program, with those it was seen with before they were killed.
    Group(Group, Option<Members>),
    /// A pid namespace.
    Namespace(Box<Pidns>),
    /// A program and what is known of its descendants.
    Members(Members),
}

impl Tree {
    /// Makes ready to control the tree of a program about to be started.
    ///
    /// The first tree starts a guard, a small process that ends the trees if this one is killed, and that ends by itself when there has
    /// been no tree for a while. It is a child of this process: see docs/trees.md.
    ///
    /// # Errors
    /// [`Want::Group`], [`Want::Auto`]: never. [`Want::Cgroup`]: ENOENT: no cgroup v2 is mounted; EACCES, EROFS: this process may not make one below its
    /// own; EOPNOTSUPP: its own is a threaded one. [`Want::Guard`], and both: what kept the guard from starting; ENOSPC: it has
    /// as many trees as it can have. [`Want::Pidns`]: EPERM, ENOSPC, EUSERS: no pid namespace may be made, with a user namespace or
    /// without; and as for the guard.
    pub fn prepare(want: Want) -> Result<Tree> {
        match want {
            Want::Group => Ok(Tree::of_group()),
            Want::Cgroup => Tree::in_group(cgroup::place()?),
            Want::Pidns => {
                Pidns::make().map(|namespace| Tree::of(Tier::Pidns, Control::Namespace(Box::new(namespace)), None))
            }
            Want::Guard => Tree::guarded(),
            Want::Auto => Ok(cgroup::place().and_then(Tree::in_group).unwrap_or_else(|_| Tree::outside())),
        }
    }

    /// The most that can be had without a cgroup.
    pub(crate) fn outside() -> Tree {
        Tree::guarded().unwrap_or_else(|_| Tree::of_group())
    }

    /// One without a helper, and with nothing made beforehand.
    pub(crate) fn of_group() -> Tree {
        Tree::of(Tier::Group, Control::Nobody, None)
    }

    /// One made only now, of a program that was born into the session `home`, as [`home`](Tree::home) had it; if it has been reaped, it had its
    /// number for sure at the moment `seen`, as `spawnfd_guard::process::present` has it.
    pub(crate) fn of_born(pid: u32, pidfd: BorrowedFd<'_>, home: i32, seen: u64) -> Tree {
        let mut members = members_of(pid as i32, home, sys::Fd::duplicate(pidfd.as_raw_fd()).ok());
        members.root_was_seen(seen);
        Tree::of(Tier::Group, Control::Members(members), None)
    }

    /// The session that a program of this process is born into: not the tree's, also when this process has left it since.
    pub(crate) fn home() -> i32 {
        sys::getsid(0).unwrap_or(0)
    }

    fn of(tier: Tier, control: Control, watch: Option<Watch>) -> Tree {
        Tree { tier, control, watch, generation: fork_generation().unwrap_or(1) }
    }

    fn guarded() -> Result<Tree> {
        guard::watch(b"").map(|watch| Tree::of(Tier::Guard, Control::Nobody, Some(watch)))
    }

    /// One in a cgroup that has these limits, or those of them that its ledger says are held. `anyway`: or none.
    ///
    /// # Errors
    /// As for [`Want::Cgroup`]; EOPNOTSUPP: none would be held.
    pub(crate) fn bounded(limits: &Bounds, anyway: bool) -> Result<(Tree, Ledger)> {
        let tree = Tree::in_group(cgroup::place_for(limits, anyway)?)?;
        match &tree.control {
            Control::Group(group, _) => group.bind(limits).map(|ledger| (tree, ledger)),
            _ => Err(failed(Errno::ENOENT, "cgroup")),
        }
    }

    fn in_group(mut place: Place) -> Result<Tree> {
        for _ in 0..PLACES {
            // The guard knows of it before it is there, so that it is not left behind in any case.
            let watch = guard::watch(place.path())?;
            match place.make() {
                Ok(group) => return Ok(Tree::of(Tier::Cgroup, Control::Group(group, None), Some(watch))),
                Err(error) => {
                    watch.release();
                    if error.errno() != Errno::EEXIST {
                        return Err(error);
                    }
                    place = place.another()?;
                }
            }
        }
        Err(failed(Errno::EEXIST, "cgroup"))
    }

    /// How far control reaches.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// The directory of the cgroup that the program has to be born in, as [`Command::tree`](crate::Command::tree) has it.
    pub fn cgroup(&self) -> Option<BorrowedFd<'_>> {
        match &self.control {
            Control::Group(dir, _) => Some(dir.as_fd()),
            _ => None,
        }
    }

    /// What the program has to be born in: the pidfd of a pid namespace's first process, and whether a user namespace goes with it.
    pub(crate) fn namespace(&self) -> Option<(BorrowedFd<'_>, bool)> {
        match &self.control {
            Control::Namespace(namespace) => Some(namespace.door()),
            _ => None,
        }
    }

    /// How the program makes itself known to the guard.
    pub(crate) fn announcement(&self) -> Option<Announcement> {
        self.watch.as_ref().filter(|_| self.is_ours()).map(Watch::announcement)
    }

    /// Tells the tree of its program, right after its birth: a child of this process, by its id and its pidfd.
    ///
    /// The tree has the program's session if the program leads one (as after [`Command::setsid`](crate::Command::setsid)); else its process
    /// group if it leads that; else its descendants only. The session and group of this process are never the tree's.
    pub fn born(&mut self, pid: u32, pidfd: BorrowedFd<'_>) {
        let (pid, copy) = (pid as i32, sys::Fd::duplicate(pidfd.as_raw_fd()).ok());
        if let Control::Group(_, program) = &mut self.control {
            *program = copy.map(|copy| members_of(pid, Tree::home(), Some(copy)));
            return;
        }
        if let Control::Namespace(namespace) = &mut self.control {
            copy.into_iter().for_each(|copy| namespace.inside.born(pid, copy));
            return;
        }
        let mark = copy.as_ref().filter(|_| self.watch.is_some()).and_then(|pidfd| Mark::of(pidfd, pid));
        let home = Tree::home();
        let mut members = members_of(pid, home, copy);
        let seen = members.note_root();
        if let (Some(watch), Some(mark)) = (&self.watch, mark) {
            watch.born(pid, home, mark, seen);
        }
        self.control = Control::Members(members);
    }

    /// Tells the tree that its program has ended, *before* it is reaped: then its number is still its own, and all that is in a
    /// session of that number is known to be the tree's. Cheap.
    ///
    /// Without it the last such moment is when the tree was told of the birth, or last asked: of what was born later only that is
    /// found which is in the program's own process group (Linux 6.9), or descends from what is found.
    pub fn ended(&mut self) {
        if !self.is_ours() {
            return;
        }
        match (&mut self.control, &self.watch) {
            (Control::Members(members), Some(watch)) => watch.seen(members.note_root()),
            (Control::Members(members) | Control::Group(_, Some(members)), _) => {
                members.note_root();
            }
            _ => {}
        }
    }

    /// Sends a signal to every process of the tree, once, and continues stopped processes so that they see the signal.
    pub fn signal(&mut self, signal: i32) {
        self.signal_all(signal);
    }

    /// The same. Whether the program got the signal: it does not if no descriptor is free for its pidfd, or /proc does not show it.
    pub(crate) fn signal_all(&mut self, signal: i32) -> bool {
        if !self.is_ours() {
            return true;
        }
        match &mut self.control {
            Control::Group(dir, program) => {
                let program = program.as_ref().map(|program| program.root().pid);
                group::signal(dir.number(), signal).into_iter().any(|pid| Some(pid) == program)
            }
            Control::Namespace(namespace) => namespace.inside.signal(signal),
            Control::Members(members) => members.signal(signal),
            Control::Nobody => false,
        }
    }

    /// Tells of its program's pidfd, of which it has no copy if no number was free for that; and `seen` as [`of_born`](Tree::of_born) has it.
    pub(crate) fn know(&mut self, pidfd: BorrowedFd<'_>, seen: u64) {
        if let Control::Members(members) = &mut self.control {
            members.take_pidfd(|| sys::Fd::duplicate(pidfd.as_raw_fd()).ok(), seen);
        }
    }

    /// Kills the tree as far as its tier reaches, and waits at most so long until it is gone. `true` if it is.
    ///
    /// The program itself counts as gone when it has ended, reaped or not. Where nothing but looking finds them, all of a tree of several are stopped
    /// before any is killed: a few milliseconds, whatever `patience` is, and at most a quarter of a second on a busy machine.
    #[must_use = "false: something is left"]
    pub fn kill(&mut self, patience: Duration) -> bool {
        let milliseconds = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        if !self.is_ours() {
            return true;
        }
        match &mut self.control {
            Control::Group(dir, program) => {
                // It does not name them once they have ended.
                if let Some(program) = program {
                    let members = group::members(dir.number()).into_iter().filter_map(Stat::read);
                    members.for_each(|member| program.learn(member.process));
                }
                group::end(dir.number(), milliseconds) && {
                    await_end(program.as_mut());
                    true
                }
            }
            Control::Namespace(namespace) => namespace.inside.end(milliseconds),
            // Asked first, as it is much cheaper, and mostly so.
            Control::Members(members) => {
                !members.may_have_others() || members::end(std::slice::from_mut(members), milliseconds)
            }
            Control::Nobody => true,
        }
    }

    /// What runs of the tree, but for the program itself; remembered from then on.
    ///
    /// Cheap once the program has been reaped, if there is nobody. Asked while it runs it makes known who could not be found later.
    pub fn survivors(&mut self) -> Vec<Survivor> {
        self.look().unwrap_or_default().into_iter().map(Survivor::from).collect()
    }

    /// The same; `None` where it cannot be looked: no number is free for it, or there is no /proc of this pid namespace.
    pub(crate) fn look(&mut self) -> Option<Vec<Stat>> {
        if !self.is_ours() {
            return Some(Vec::new());
        }
        match &mut self.control {
            Control::Group(dir, program) => {
                if !group::population(dir.number())? {
                    return Some(Vec::new());
                }
                if is_foreign() {
                    return None;
                }
                // Once it has ended its number may be another's.
                let program = program.as_ref().filter(|program| !program.root_has_ended());
                let program = program.map_or(0, |program| program.root().pid);
                let others = group::members(dir.number()).into_iter().filter(|&pid| pid != program);
                Some(others.filter_map(Stat::read).filter(Stat::is_alive).collect())
            }
            Control::Namespace(namespace) => namespace.inside.others(),
            Control::Members(members) if members.may_have_others() => {
                let alive = find(members, self.watch.as_ref());
                let others = alive.into_iter().filter(|stat| stat.process != members.root());
                (!members.is_blind()).then(|| others.collect())
            }
            _ => Some(Vec::new()),
        }
    }

    /// How many processes and threads of the tree run; who is found is remembered.
    pub(crate) fn tasks(&mut self) -> u64 {
        match &mut self.control {
            Control::Members(members) => find(members, self.watch.as_ref()).iter().map(Stat::threads).sum(),
            Control::Namespace(namespace) => namespace.inside.all().iter().map(Stat::threads).sum(),
            Control::Group(..) | Control::Nobody => 0,
        }
    }

    /// Lets what runs of the tree run on, also beyond this process's end.
    ///
    /// Out of a cgroup it is moved into this process's own.
    pub fn detach(mut self) {
        if !self.is_ours() {
            return;
        }
        match &self.control {
            Control::Group(dir, _) => dir.empty(),
            Control::Namespace(namespace) => namespace.let_go(),
            _ => {}
        }
        self.reap_inherited();
        self.let_go();
    }

    /// Whether this is the process that prepared it, not a fork's copy. The guard's table is shared with copies, and the tree's processes are
    /// no concern of theirs.
    fn is_ours(&self) -> bool {
        fork_generation().unwrap_or(1) == self.generation
    }

    /// Reaps whom this process has inherited as pid 1, or as a sub-reaper.
    fn reap_inherited(&mut self) {
        let members = match &mut self.control {
            Control::Members(members) => members,
            // Its session is in use as long as they are not reaped.
            Control::Group(_, Some(members)) if members.may_have_others() => {
                members.find();
                members
            }
            _ => return,
        };
        for ended in members.inherited() {
            let _ = wait_pidfd(ended.number(), false);
        }
    }

    /// Gives up what the tree stands on. What runs of it then, runs on.
    fn let_go(&mut self) {
        let control = std::mem::replace(&mut self.control, Control::Nobody);
        let Some(watch) = self.watch.take() else { return };
        match control {
            Control::Group(dir, _) if dir.remove(REMOVAL_MS).is_err() => watch.leave_to_clean(),
            _ => watch.release(),
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        let may_live = match &mut self.control {
            // Who is in it keeps it from being removed.
            Control::Group(dir, program) => {
                let is_removed = dir.remove(0).is_ok();
                await_end(program.as_mut().filter(|_| is_removed));
                !is_removed
            }
            Control::Namespace(namespace) => !namespace.inside.has_ended(),
            Control::Members(members) => members.may_have_others(),
            Control::Nobody => false,
        };
        if may_live {
            // Who does not end is left, as by a kill that nobody asks about.
            let _ = self.kill(DROP_PATIENCE);
        }
        self.reap_inherited();
        if let Control::Namespace(namespace) = &self.control {
            namespace.expect_end();
        }
        self.let_go();
    }
}

/// Waits for those who have left a cgroup by ending: that is a moment before they are zombies (kernel/exit.c, do_exit), and only zombies are
/// reaped. Who has left it alive is not waited for.
fn await_end(program: Option<&mut Members>) {
    let Some(members) = program else { return };
    let deadline = sys::now().saturating_add(LEAVING_MS);
    while members.may_have_others() && members.find().0.iter().any(Stat::is_ending) && sys::now() < deadline {
        sys::sleep(1);
    }
}

/// Finds who runs of a tree, and lets the guard know whom it could not find by itself.
fn find(members: &mut Members, watch: Option<&Watch>) -> Vec<Stat> {
    let (alive, list) = members.find();
    if let Some(watch) = watch {
        watch.seen(members.note_root());
        members.strays(&list).for_each(|stray| watch.learn(stray));
    }
    alive
}

impl From<Stat> for Survivor {
    fn from(stat: Stat) -> Survivor {
        Survivor { pid: stat.process.pid as u32, name: String::from_utf8_lossy(stat.name()).into_owned() }
    }
}

fn members_of(pid: i32, home: i32, pidfd: Option<sys::Fd>) -> Members {
    Members::new(Process { pid, start: 0 }, home, pidfd)
}

fn failed(errno: Errno, call: impl Into<String>) -> Error {
    Error::new(crate::error::Stage::Tree, errno, call)
}

impl Command<'_> {
    /// Has the program begin a tree: it is born in the tree's cgroup or pid namespace, if that has one, before other actions, and known to the tree's guard before
    /// it does anything of its own. So it ends with this process even if that is killed before it could tell the tree of the birth, but for
    /// one that is the first process of a pid namespace.
    pub fn tree(&mut self, tree: &Tree) -> &mut Self {
        if let Err(error) = self.begin_tree(tree) {
            self.refused.get_or_insert(error);
        }
        self
    }

    /// The same, to be undone by [`end_tree`](Command::end_tree).
    pub(crate) fn begin_tree(&mut self, tree: &Tree) -> Result<()> {
        let failed = |e| Error::new(Stage::Tree, from_io(&e), "fcntl(F_DUPFD_CLOEXEC)");
        self.birth_cgroup = tree.cgroup().map(|dir| dir.try_clone_to_owned()).transpose().map_err(failed)?;
        let namespace = tree.namespace().map(|(init, user)| Ok((init.try_clone_to_owned()?, user)));
        self.namespace = namespace.transpose().map_err(failed)?;
        self.announcement = tree.announcement();
        Ok(())
    }

    pub(crate) fn end_tree(&mut self) {
        (self.birth_cgroup, self.announcement, self.namespace) = (None, None, None);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_cgroup_that_is_somebody_else_s_is_left_alone() {
        spawnfd_tests::isolated!(|| {
            let Ok(first) = Tree::prepare(Want::Cgroup) else { return spawnfd_tests::skip("no cgroup can be made") };
            drop(first);
            let place = cgroup::place().expect("a place");
            let taken = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(place.path()));
            std::fs::create_dir(&taken).expect("own directory");
            assert_eq!(place.make().expect_err("it is there").errno(), Errno::EEXIST);
            let tree = Tree::in_group(place).expect("another");
            assert!(tree.cgroup().is_some());
            drop(tree);
            std::fs::remove_dir(taken).expect("still there, and nobody in it");
        });
    }
}
