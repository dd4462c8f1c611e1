// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of a tree: finds its members, signals them and kills them.

use alloc::vec::Vec;

use crate::process::{Process, Stat, all_processes, descend, has_children_file, sessions, ticks_now};
use crate::sys::{self, SIGCONT, SIGKILL, SIGSTOP};

/// The number of members that an owner reports to its guard. A further member replaces the one that was reported first.
pub const MAX_REPORTED: usize = 64;

/// A tree: its root, and the descendants that searches have found so far.
///
/// A process is a member if one of these holds:
/// - An earlier search found it.
/// - Its parent is a member.
/// - Its session has a member, and is not the session in which the root started. A process gets into an existing
///   session only by a fork inside that session, so all of the session belongs to the tree.
/// - It is in the root's process group, and the group has a member.
/// - Its session id is the root's pid, and it started while the root had that pid. This also holds after the root has
///   been reaped.
///
/// A search does not find a process that left the session and lost its parent before any search saw it.
///
/// The tree signals members one by one, each through a pidfd whose start time it has compared, and never by pid.
#[derive(Debug)]
pub struct Members {
    /// The first process of the tree. Its start time is 0 until a search reads the start time from
    /// /proc. A search can do so until the root is reaped.
    root: Process,
    /// The session in which the root started. It does not belong to the tree.
    start_session: i32,
    /// The last time at which the root certainly had its pid.
    root_seen: u64,
    /// The other members that the last search knew, including zombies, which keep their pids.
    known: Vec<Process>,
    /// True if the root had been reaped before the current search began.
    root_reaped: bool,
    /// The root's pidfd. It shows whether the root has been reaped, and whether the root's process group still has
    /// members.
    pidfd: Option<sys::Fd>,
    /// True if the last search could not read /proc, because no descriptor was free or there is no
    /// /proc.
    proc_unreadable: bool,
    /// The tree has no process any more, so none can join it.
    has_ended: bool,
}

impl Members {
    /// Creates a tree of one process, `root`. If `pidfd` is given, the root's start time may be 0.
    /// `start_session` is the session in which the root started.
    pub fn new(root: Process, start_session: i32, pidfd: Option<sys::Fd>) -> Members {
        let (known, root_reaped, proc_unreadable, has_ended) = (Vec::new(), false, false, false);
        let mut tree =
            Members { root, start_session, root_seen: 0, known, root_reaped, pidfd, proc_unreadable, has_ended };
        tree.update_root_seen();
        tree
    }

    /// Whether the root still has its pid: it runs, or is not reaped yet.
    fn root_has_pid(&self) -> bool {
        self.pidfd.as_ref().is_some_and(sys::has_pid)
    }

    /// Whether the root has ended, and may have been reaped. `false` if the tree has no pidfd of the root.
    pub fn root_has_ended(&self) -> bool {
        self.pidfd.as_ref().is_some_and(|pidfd| sys::wait_for_end(pidfd.number(), 0))
    }

    /// Records the current time if the root has its pid now. Returns the last recorded time.
    pub fn update_root_seen(&mut self) -> u64 {
        if self.root_has_pid() {
            self.root_seen = ticks_now();
        }
        self.root_seen
    }

    /// The last recorded time at which the root had its pid.
    pub fn root_seen(&self) -> u64 {
        self.root_seen
    }

    /// Records a time at which other code saw that the root had its pid.
    pub fn set_root_seen(&mut self, at: u64) {
        self.root_seen = self.root_seen.max(at);
    }

    /// The first process of the tree.
    pub fn root(&self) -> Process {
        self.root
    }

    /// Adds a known member.
    pub fn add(&mut self, process: Process) {
        if process.pid != self.root.pid && !self.known.contains(&process) {
            self.has_ended = false;
            self.known.push(process);
        }
    }

    /// Whether a process that no search has found can be a member. It must have started after the root. And it must be
    /// in the root's process group, or in a session other than `own` and the session in which the root started.
    pub fn may_contain(&self, stat: &Stat, own: i32) -> bool {
        let is_elsewhere = stat.session > 0 && stat.session != self.start_session && stat.session != own;
        stat.process.start >= self.root.start && (stat.group == self.root.pid || is_elsewhere)
    }

    /// Returns the known members that the owner must report to the guard.
    ///
    /// These are all known members, because each may leave the root's session later. If they are more than
    /// [`MAX_REPORTED`], these are the members that the guard cannot find by itself: those in another session than the
    /// root's, and those that started after `root_seen`.
    pub fn members_to_report<'a>(&'a self, list: &'a [Stat]) -> impl Iterator<Item = Process> + 'a {
        let all = self.known.len() <= MAX_REPORTED;
        let stats = self.known.iter().filter_map(|&known| find(list, known));
        stats
            .filter(move |stat| all || stat.session != self.root.pid || stat.process.start > self.root_seen)
            .map(|stat| stat.process)
    }

    /// Whether members other than the root may still exist. Does not search /proc.
    ///
    /// Returns true in case of doubt, and until the root is reaped.
    pub fn may_have_others(&mut self) -> bool {
        // Nothing has the root's pid as its pid, group or session, so no process of the tree is left that could fork.
        self.has_ended = self.has_ended || !self.may_still_have_others();
        !self.has_ended
    }

    fn may_still_have_others(&self) -> bool {
        let is_there = |known: &Process| {
            Stat::read(known.pid).map_or_else(|| sys::getsid(known.pid).is_ok(), |now| now.process == *known)
        };
        self.pidfd.as_ref().is_none_or(|pidfd| sys::is_number_in_use(pidfd.number(), self.root.pid))
            || self.known.iter().any(is_there)
    }

    /// Finds and remembers the members. Returns the running members, and all processes that the search has read.
    pub fn find(&mut self) -> (Vec<Stat>, Vec<Stat>) {
        let list = candidates(core::slice::from_mut(self));
        self.proc_unreadable = list.is_none();
        // A search that could not read /proc must not forget the known members.
        list.map_or_else(Default::default, |list| (self.find_in(&list), list))
    }

    /// Whether the last search could not read /proc, and so found no members.
    pub fn is_proc_unreadable(&self) -> bool {
        self.proc_unreadable
    }

    /// Finds the members in `list` (all candidates, sorted by pid) and remembers them. Returns the running members.
    fn find_in(&mut self, list: &[Stat]) -> Vec<Stat> {
        // The root still has its pid now, so it also had the pid when the caller read the list.
        if self.root_has_pid()
            && let Ok(index) = list.binary_search_by_key(&self.root.pid, |stat| stat.process.pid)
            && let Some(stat) = list.get(index)
        {
            self.root = stat.process;
        }
        let seen = self.update_root_seen();
        // If another process has the root's pid, the root's session no longer exists.
        let is_pid_reused =
            self.root_reaped && list.binary_search_by_key(&self.root.pid, |stat| stat.process.pid).is_ok();
        // The kernel does not assign a pid that is in use as a session id. So no session had this id when the root
        // got its pid.
        let is_of_session = |stat: &Stat| {
            !is_pid_reused && stat.session == self.root.pid && (self.root.start..=seen).contains(&stat.process.start)
        };
        let is_known =
            |stat: &Stat| stat.process == self.root || self.known.contains(&stat.process) || is_of_session(stat);
        let mut belongs: Vec<bool> = list.iter().map(is_known).collect();
        let group_has_members = self.pidfd.as_ref().is_some_and(|pidfd| sys::group_has_members(pidfd) == Ok(true));
        let mut sessions: Vec<i32> = Vec::new();
        let mut group = group_has_members;
        if group_has_members {
            sessions.push(self.root.pid);
        }
        loop {
            for (stat, _) in list.iter().zip(&belongs).filter(|(_, belongs)| **belongs) {
                if stat.session != self.start_session && stat.session > 0 && !sessions.contains(&stat.session) {
                    sessions.push(stat.session);
                }
                group |= stat.group == self.root.pid;
            }
            let mut found = false;
            for (index, stat) in list.iter().enumerate() {
                if belongs.get(index) != Some(&false) || stat.process.start < self.root.start {
                    continue;
                }
                let parent = list.binary_search_by_key(&stat.parent, |parent| parent.process.pid).ok();
                let by_parent = parent.is_some_and(|parent| {
                    belongs.get(parent) == Some(&true)
                        && list.get(parent).is_some_and(|parent| parent.process.start <= stat.process.start)
                });
                if by_parent || sessions.contains(&stat.session) || group && stat.group == self.root.pid {
                    if let Some(belongs) = belongs.get_mut(index) {
                        *belongs = true;
                    }
                    found = true;
                }
            }
            if !found {
                break;
            }
        }
        let members = || list.iter().zip(&belongs).filter(|(_, belongs)| **belongs).map(|(stat, _)| *stat);
        self.known = members().map(|stat| stat.process).filter(|process| *process != self.root).collect();
        members().filter(Stat::is_alive).collect()
    }

    /// Returns pidfds of the ended members that the kernel has made children of the calling
    /// process, so that the caller can reap them.
    ///
    /// The kernel makes orphans children of pid 1 or of a subreaper. If the host is such a process, no other code of
    /// the host reaps the orphans. The result leaves out members in the session in which the root started, because
    /// such a process may be another child of the root's creator.
    pub fn reapable_orphans(&self) -> impl Iterator<Item = sys::Fd> + '_ {
        let own = if self.known.is_empty() { 0 } else { sys::getpid() };
        let is_orphan = move |stat: &Stat| {
            !stat.is_alive() && stat.parent == own && stat.session != self.start_session && stat.session > 0
        };
        let orphans = move |known: &&Process| Stat::read(known.pid).is_some_and(|stat| is_orphan(&stat));
        self.known.iter().filter(orphans).filter_map(|known| known.open())
    }

    /// Sends a signal once to each of the members that [`find`](Members::find) has returned. Returns whether the root
    /// got the signal.
    ///
    /// A stopped member also gets SIGCONT, because it would not handle the signal otherwise.
    pub fn signal(&self, members: &[Stat], signal: i32) -> bool {
        let mut root = false;
        for member in members {
            let sent = self.send(member.process, signal);
            if sent && needs_continue(signal) && member.is_stopped() {
                self.send(member.process, SIGCONT);
            }
            root |= sent && member.process == self.root;
        }
        self.signal_group_without_proc(signal) || root
    }

    /// Sends a signal to one process. Uses the existing pidfd for the root, because opening another pidfd may fail.
    fn send(&self, process: Process, signal: i32) -> bool {
        match &self.pidfd {
            Some(pidfd) if process == self.root => sys::signal(pidfd, signal).is_ok(),
            _ => process.signal(signal),
        }
    }

    /// If there is no /proc, sends a signal to the root's process group instead of the members.
    /// Returns whether the group had members.
    fn signal_group_without_proc(&self, signal: i32) -> bool {
        let Some(pidfd) = self.pidfd.as_ref().filter(|_| Stat::read(sys::getpid()).is_none()) else { return false };
        sys::getpgid(0) != Ok(self.root.pid) && sys::signal_group(pidfd, signal).is_ok()
    }
}

/// Whether a stopped process needs a SIGCONT before it can handle this signal.
///
/// True except for SIGCONT to SIGTTOU (18 to 22), which stop or continue a process themselves.
pub(crate) fn needs_continue(signal: i32) -> bool {
    !(SIGCONT..=22).contains(&signal)
}

/// Returns the processes that can be members of these trees, sorted by pid. `None` if /proc cannot
/// be read.
///
/// Reads the session of every process. Reads /proc/PID/stat only of known members, of processes that share a session
/// or group with a member, and of descendants. Reading this file of all processes would cost eight times as much.
fn candidates(trees: &mut [Members]) -> Option<Vec<Stat>> {
    for tree in &mut *trees {
        tree.root_reaped = tree.pidfd.as_ref().is_some_and(|pidfd| !sys::has_pid(pidfd));
    }
    if !has_children_file() {
        return all_processes();
    }
    let processes = sessions()?;
    let of_session = |wanted: i32| processes.iter().filter(move |(_, session)| *session == wanted).map(|(pid, _)| *pid);
    let (mut pending, mut seen): (Vec<i32>, Vec<i32>) = Default::default();
    for Members { root, start_session, known, .. } in trees {
        pending.push(root.pid);
        pending.extend(known.iter().map(|known| known.pid));
        pending.extend(of_session(root.pid));
        // The root's process group is in the root's own session or in `start_session`.
        pending.extend(of_session(*start_session).filter(|&pid| sys::getpgid(pid) == Ok(root.pid)));
        seen.extend([root.pid, *start_session]);
    }
    Some(descend(pending, |stat, pending| {
        if stat.session > 0 && !seen.contains(&stat.session) {
            seen.push(stat.session);
            pending.extend(of_session(stat.session));
        }
    }))
}

fn find(list: &[Stat], process: Process) -> Option<&Stat> {
    let index = list.binary_search_by_key(&process.pid, |stat| stat.process.pid).ok()?;
    list.get(index).filter(|stat| stat.process == process)
}

/// Kills trees, and waits at most `milliseconds` until they have ended. Returns whether /proc shows no member except
/// zombies.
///
/// A member may fork between the search and the kill. A later search would not find the child, because the child has
/// lost its parent. So the function stops all members first. A stopped process does not fork, and it keeps its session,
/// its group and its children.
///
/// After each search, and before the function kills the members, it calls `found` for each tree with all processes that
/// the search has read.
pub fn kill_trees(trees: &mut [Members], milliseconds: u64, mut found: impl FnMut(&mut Members, &[Stat])) -> bool {
    let deadline = sys::now().saturating_add(milliseconds);
    let mut stopped = StoppedMembers::new();
    loop {
        let list = candidates(trees).unwrap_or_default();
        let mut alive = Vec::new();
        for tree in &mut *trees {
            alive.extend(tree.find_in(&list));
            found(tree, &list);
        }
        let now = sys::now();
        if alive.is_empty() {
            let signalled_group = trees.iter().filter(|tree| tree.signal_group_without_proc(SIGKILL)).count() > 0;
            if !signalled_group || now >= deadline {
                return !signalled_group;
            }
        }
        if stopped.stop_and_kill(&alive) && now >= deadline {
            return false;
        }
        sys::sleep(1);
    }
}

/// The time that a kill waits for members to stop, after the last search that found a new member.
const STOPPING_MS: u64 = 250;

/// The time after which a kill no longer waits for members to stop, although searches still find new members.
const FORKING_MS: u64 = 2000;

/// The members to which a kill has sent SIGSTOP.
pub(crate) struct StoppedMembers {
    /// Sorted. For each member: whether the kernel accepted the signal.
    members: Vec<(Process, bool)>,
    started_at: u64,
    /// The time of the last search that found a new member.
    new_at: u64,
}

impl StoppedMembers {
    pub(crate) fn new() -> StoppedMembers {
        let now = sys::now();
        StoppedMembers { members: Vec::new(), started_at: now, new_at: now }
    }

    /// Stops the members that `alive`, a search's result, shows running. Kills them once none can fork. Returns whether
    /// it has killed them.
    ///
    /// A search finds the children of a single member, so the function need not stop that member.
    pub(crate) fn stop_and_kill(&mut self, alive: &[Stat]) -> bool {
        let can_kill = alive.len() <= 1 || self.stop_all(alive);
        if can_kill {
            alive.iter().for_each(|member| _ = member.process.signal(SIGKILL));
        }
        can_kill
    }

    /// Sends SIGSTOP to the members that `alive`, a search's result, shows running. Returns `true` if the caller can
    /// kill the members: the search found no new member, and none can fork.
    ///
    /// The kernel cancels a fork of a process that has a pending signal. So a fork either ends before the SIGSTOP, and
    /// the next search finds the child, or does not happen.
    ///
    /// The function also returns `true` after [`STOPPING_MS`] without a new member, because a process outside the tree
    /// could continue the members again and again. Each new member extends this time, up to [`FORKING_MS`]: on a busy
    /// machine, a fork bomb has members that no search has found yet. A member that loses its parent and leaves its
    /// session before a search finds it is never found.
    fn stop_all(&mut self, alive: &[Stat]) -> bool {
        let now = sys::now();
        let mut all_stopped = true;
        for member in alive {
            let index = self.members.binary_search_by_key(&member.process, |stopped| stopped.0);
            let is_refused = index.is_ok_and(|index| self.members.get(index).is_some_and(|stopped| !stopped.1));
            if is_refused || index.is_ok() && member.cannot_fork() {
                continue;
            }
            all_stopped = false;
            let accepted = member.process.signal(SIGSTOP);
            if let Err(index) = index {
                self.members.insert(index, (member.process, accepted));
                self.new_at = now;
            }
        }
        all_stopped || now >= self.new_at + STOPPING_MS || now >= self.started_at + FORKING_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the /proc entry of a process with this pid, start time, parent, group and session.
    fn stat(pid: i32, start: u64, parent: i32, group: i32, session: i32) -> Stat {
        let line = alloc::format!("{pid} (x) S {parent} {group} {session} 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 {start} 0");
        Stat::parse(line.as_bytes()).expect("a line")
    }

    fn pids(stats: &[Stat]) -> Vec<i32> {
        stats.iter().map(|stat| stat.process.pid).collect()
    }

    const ROOT: Process = Process { pid: 100, start: 50 };

    #[test]
    fn a_search_of_candidates_finds_the_same_as_a_search_of_all_processes() {
        extern crate std;
        use std::os::unix::process::CommandExt;
        // The script makes six processes: one in its own group, one in its own session, and
        // descendants.
        let script = "set -m; sleep 1000 & setsid sh -c 'sleep 1000 & wait' & sh -c 'sleep 1000 & wait' & wait";
        let mut sh = std::process::Command::new("sh");
        let mut sh = sh.args(["-c", script]).process_group(0).spawn().expect("starts");
        let root = Process { pid: sh.id() as i32, start: 0 };
        let tree = || Members::new(root, sys::getsid(0).expect("this process's"), sys::pidfd_open(root.pid).ok());
        let (mut few, mut every) = (Vec::new(), Vec::new());
        let started_at = sys::now();
        while (every.len() < 6 || few != every) && sys::now() < started_at + 60_000 {
            let mut tree = [tree()];
            let list = candidates(&mut tree).expect("/proc");
            few = pids(&tree[0].find_in(&list));
            assert!(list.is_sorted_by_key(|stat| stat.process));
            every = pids(&tree[0].find_in(&all_processes().expect("/proc")));
        }
        let mut tree = [tree()];
        let ended = kill_trees(&mut tree, 60_000, |_, _| ());
        sh.wait().expect("own child");
        assert_eq!((every.len(), ended), (6, true));
        assert_eq!(few, every);
    }

    #[test]
    fn finds_members_by_session_group_and_descent() {
        let list = [
            stat(1, 1, 0, 1, 1),
            stat(90, 40, 1, 90, 90),
            // The root, in a session of its own.
            stat(100, 50, 90, 100, 100),
            stat(101, 51, 100, 100, 100),
            // An orphan in the root's session.
            stat(102, 51, 1, 102, 100),
            // A child of a member, in another session.
            stat(103, 52, 101, 103, 103),
            // An orphan in the session of process 103.
            stat(104, 53, 1, 103, 103),
            // Not a member: it shares no session, group or member parent with the tree.
            stat(105, 53, 90, 90, 90),
        ];
        let mut tree = Members::new(ROOT, 0, None);
        assert_eq!(pids(&tree.find_in(&list)), [100, 101, 102, 103, 104]);
        let reported = |tree: &Members, list: &[Stat]| -> Vec<i32> {
            tree.members_to_report(list).map(|member| member.pid).collect()
        };
        assert_eq!(reported(&tree, &list), [101, 102, 103, 104]);
        // Of many members, only those that the guard cannot find.
        let mut many = list.to_vec();
        many.extend((200..300).map(|pid| stat(pid, 51, 100, 100, 100)));
        let mut crowd = Members::new(ROOT, 0, None);
        assert_eq!(crowd.find_in(&many).len(), 105);
        crowd.set_root_seen(51);
        assert_eq!(reported(&crowd, &many), [103, 104]);
        // A member stays known after its ancestors and its session's other members are gone.
        assert_eq!(pids(&tree.find_in(&[list[0], list[1], list[6], list[7]])), [104]);
    }

    #[test]
    fn a_session_whose_leader_has_reused_the_pid_is_not_a_member() {
        let list = [stat(1, 1, 0, 1, 1), stat(100, 50, 90, 100, 100), stat(101, 50, 100, 100, 100)];
        let mut tree = Members::new(Process { pid: 100, start: 0 }, 0, None);
        tree.set_root_seen(50);
        assert_eq!(pids(&tree.find_in(&list)), [100, 101]);
        let mut tree = Members::new(Process { pid: 100, start: 0 }, 0, None);
        tree.set_root_seen(50);
        tree.root_reaped = true;
        assert_eq!(pids(&tree.find_in(&list)), []);
        assert_eq!(pids(&tree.find_in(&[list[0], list[2]])), [101], "no process has the pid");
    }

    #[test]
    fn the_session_in_which_the_root_started_does_not_belong_to_the_tree() {
        let list = [
            stat(90, 40, 1, 90, 90),
            stat(100, 50, 90, 100, 90),
            stat(101, 51, 1, 100, 90),
            stat(102, 51, 1, 102, 90),
            stat(103, 51, 90, 90, 90),
        ];
        assert_eq!(pids(&Members::new(ROOT, 90, None).find_in(&list)), [100, 101]);
        // The root's process group does not belong to the tree either, unless the root leads it.
        let list = [stat(90, 40, 1, 90, 90), stat(100, 50, 90, 90, 90), stat(101, 51, 100, 90, 90), list[4]];
        assert_eq!(pids(&Members::new(ROOT, 90, None).find_in(&list)), [100, 101]);
    }

    #[test]
    fn a_process_with_a_reused_pid_is_not_a_member() {
        let mut tree = Members::new(ROOT, 0, None);
        tree.add(Process { pid: 103, start: 52 });
        let list = [
            // Another process that has the root's pid, and leads a session.
            stat(100, 60, 1, 100, 100),
            stat(101, 61, 100, 100, 100),
            // Another process that has a known member's pid, and a child of it.
            stat(103, 62, 1, 103, 103),
            stat(104, 63, 103, 103, 103),
        ];
        assert_eq!(pids(&tree.find_in(&list)), []);
    }

    #[test]
    fn a_process_that_started_in_the_root_s_session_while_the_root_had_its_pid_is_a_member() {
        let (elder, younger) = (stat(101, 51, 1, 101, 100), stat(102, 61, 1, 102, 100));
        let mut tree = Members::new(ROOT, 0, None);
        assert_eq!(pids(&tree.find_in(&[elder, younger])), []);
        tree.set_root_seen(60);
        // `younger` is a member only together with `elder`, because they share a session.
        assert_eq!(pids(&tree.find_in(&[younger])), []);
        assert_eq!(pids(&tree.find_in(&[elder, younger])), [101, 102]);
        let mut tree = Members::new(Process { start: 0, ..ROOT }, 90, None);
        tree.set_root_seen(60);
        assert_eq!(
            pids(&tree.find_in(&[elder, younger])),
            [101, 102],
            "the session that the root created, whatever its start session"
        );
    }

    #[test]
    fn a_process_older_than_its_parent_is_not_a_member() {
        let list = [stat(99, 49, 100, 7, 7), stat(100, 50, 90, 100, 100), stat(101, 49, 100, 9, 9)];
        assert_eq!(pids(&Members::new(ROOT, 0, None).find_in(&list)), [100]);
    }

    #[test]
    fn session_0_of_other_pid_namespaces_does_not_make_a_member() {
        let list = [stat(50, 51, 1, 0, 0), stat(100, 50, 1, 0, 0)];
        assert_eq!(pids(&Members::new(ROOT, 0, None).find_in(&list)), [100]);
    }
}
