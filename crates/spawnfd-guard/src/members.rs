// SPDX-License-Identifier: MIT OR Apache-2.0
//! The processes of a tree: who belongs to it, and how all of them are ended.

use alloc::vec::Vec;

use crate::process::{Process, Stat, all, lists_children, present, sessions};
use crate::sys;

const SIGKILL: i32 = 9;
pub(crate) const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// A tree, as a set that is remembered: its root, and whoever has been seen to descend from it.
///
/// A process belongs to it that is known already; whose parent does; or that is in a session, or in the root's process group,
/// which one that belongs to it holds. Sessions can only be entered by birth, so all of a session belongs to the tree unless
/// the root itself was born into it; and once the root is gone, whoever is in a session of its number and older than that, for the number
/// was its own until then. A process that left the session and lost its parent before it was seen is not found.
///
/// All are signalled one by one, each through a pidfd whose start time is compared: nothing is ever sent to a number.
#[derive(Debug)]
pub struct Members {
    /// Its start time is 0 until it is needed; before it is reaped the pidfd tells it.
    root: Process,
    /// The session the root was born into, hence not the tree's.
    home: i32,
    /// The last moment at which the root had its number for sure.
    seen: u64,
    /// Everyone else of the tree, as of the last look, zombies included: they hold numbers.
    known: Vec<Process>,
    /// The root's, to ask whether it has been reaped and whether its group still has members.
    pidfd: Option<sys::Fd>,
    /// The last look has shown nothing: no number was free for it, or there is no /proc.
    blind: bool,
}

impl Members {
    /// A tree of one process, `root`, of which `pidfd` is the pidfd, and whose start time may be left 0 then. `home`: the session that it was
    /// born into.
    pub fn new(root: Process, home: i32, pidfd: Option<sys::Fd>) -> Members {
        let mut tree = Members { root, home, seen: 0, known: Vec::new(), pidfd, blind: false };
        tree.note_root();
        tree
    }

    /// Whether the root has its number: it runs, or nobody has reaped it yet.
    fn root_has_number(&self) -> bool {
        self.pidfd.as_ref().is_some_and(sys::has_number)
    }

    /// Whether the root has ended, reaped or not. `false` if it has no pidfd.
    pub fn root_has_ended(&self) -> bool {
        self.pidfd.as_ref().is_some_and(|pidfd| sys::wait_for_end(pidfd.number(), 0))
    }

    /// Notes that the root has its number now, if it does. Returns the last such moment.
    pub fn note_root(&mut self) -> u64 {
        if self.root_has_number() {
            self.seen = present();
        }
        self.seen
    }

    /// Takes over what another has noted of the root.
    pub fn root_was_seen(&mut self, at: u64) {
        self.seen = self.seen.max(at);
    }

    /// The root.
    pub fn root(&self) -> Process {
        self.root
    }

    /// Adds a process that is known to belong.
    pub fn learn(&mut self, process: Process) {
        if process.pid != self.root.pid && !self.known.contains(&process) {
            self.known.push(process);
        }
    }

    /// Those known that another could not find by the root and by when it was seen: they are in another session, or younger.
    pub fn strays<'a>(&'a self, list: &'a [Stat]) -> impl Iterator<Item = Process> + 'a {
        let stats = self.known.iter().filter_map(|&known| find(list, known));
        stats.filter(|stat| stat.session != self.root.pid || stat.process.start > self.seen).map(|stat| stat.process)
    }

    /// Whether anybody but the root may be left, asked without a look at all processes. `true` when in doubt, and as long as the root
    /// is not reaped.
    pub fn may_have_others(&self) -> bool {
        let is_there = |known: &Process| {
            Stat::read(known.pid).map_or_else(|| sys::getsid(known.pid).is_ok(), |now| now.process == *known)
        };
        self.pidfd.as_ref().is_none_or(|pidfd| sys::is_in_use(pidfd.number(), self.root.pid))
            || self.known.iter().any(is_there)
    }

    /// Finds the members, and remembers them. Returns those that run, and the list they were found in.
    pub fn find(&mut self) -> (Vec<Stat>, Vec<Stat>) {
        let list = candidates(core::slice::from_ref(self));
        self.blind = list.is_none();
        let list = list.unwrap_or_default();
        (self.look(&list), list)
    }

    /// Whether the last search could not look, and has found nobody for that.
    pub fn is_blind(&self) -> bool {
        self.blind
    }

    /// Finds the members among `list` (all processes that can be, by number), and remembers them. Returns those that run.
    fn look(&mut self, list: &[Stat]) -> Vec<Stat> {
        // Having its number still, it had it when the list was made.
        if self.root_has_number()
            && let Ok(place) = list.binary_search_by_key(&self.root.pid, |stat| stat.process.pid)
            && let Some(stat) = list.get(place)
        {
            self.root = stat.process;
        }
        let seen = self.note_root();
        // The number was free when the root got it: nobody else has made a session of it until then.
        let is_of_session =
            |stat: &Stat| stat.session == self.root.pid && (self.root.start..=seen).contains(&stat.process.start);
        let begins =
            |stat: &Stat| stat.process == self.root || self.known.contains(&stat.process) || is_of_session(stat);
        let mut belongs: Vec<bool> = list.iter().map(begins).collect();
        let held = self.pidfd.as_ref().is_some_and(|pidfd| sys::group_has_members(pidfd) == Ok(true));
        let mut sessions: Vec<i32> = Vec::new();
        let mut group = held;
        if held {
            sessions.push(self.root.pid);
        }
        loop {
            for (stat, _) in list.iter().zip(&belongs).filter(|(_, belongs)| **belongs) {
                if stat.session != self.home && stat.session > 0 && !sessions.contains(&stat.session) {
                    sessions.push(stat.session);
                }
                group |= stat.group == self.root.pid;
            }
            let mut found = false;
            for (place, stat) in list.iter().enumerate() {
                if belongs.get(place) != Some(&false) || stat.process.start < self.root.start {
                    continue;
                }
                let parent = list.binary_search_by_key(&stat.parent, |parent| parent.process.pid).ok();
                let by_birth = parent.is_some_and(|parent| {
                    belongs.get(parent) == Some(&true)
                        && list.get(parent).is_some_and(|parent| parent.process.start <= stat.process.start)
                });
                if by_birth || sessions.contains(&stat.session) || group && stat.group == self.root.pid {
                    if let Some(belongs) = belongs.get_mut(place) {
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

    /// Pidfds of those that had ended by the last look, or have since, and are the caller's own children by now: the kernel gives orphans to
    /// pid 1, or to a sub-reaper, and nobody there knows of them.
    ///
    /// Not of one in the session that the root was born into, which may be another child of whoever made the root.
    pub fn inherited(&self) -> impl Iterator<Item = sys::Fd> + '_ {
        let own = sys::getpid();
        let is_inherited =
            move |stat: &Stat| !stat.is_alive() && stat.parent == own && stat.session != self.home && stat.session > 0;
        let here = self.known.iter().filter(move |known| Stat::read(known.pid).is_some_and(|stat| is_inherited(&stat)));
        here.filter_map(|known| known.open())
    }

    /// Sends a signal to each member once. One that is stopped is made to go on, or it would never see it. Whether the root got it.
    pub fn signal(&mut self, signal: i32) -> bool {
        let mut root = false;
        for member in self.find().0 {
            let sent = self.send(member.process, signal);
            if sent && wakes(signal) && member.is_stopped() {
                self.send(member.process, SIGCONT);
            }
            root |= sent && member.process == self.root;
        }
        self.signal_unseen(signal) || root
    }

    /// Sends a signal to one process: to the root by the pidfd that is there, as another may be refused.
    fn send(&self, process: Process, signal: i32) -> bool {
        match &self.pidfd {
            Some(pidfd) if process == self.root => sys::signal(pidfd, signal).is_ok(),
            _ => process.signal(signal),
        }
    }

    /// Takes a pidfd of the root, which had its number for sure at the moment `seen`, if it has none: no number was free for it.
    pub fn take_pidfd(&mut self, pidfd: impl FnOnce() -> Option<sys::Fd>, seen: u64) {
        if self.pidfd.is_none() {
            self.pidfd = pidfd();
            self.root_was_seen(seen);
            self.note_root();
        }
    }

    /// Sends a signal to the root's process group where there is no /proc to show who belongs to the tree. Whether anybody was there.
    fn signal_unseen(&self, signal: i32) -> bool {
        let Some(pidfd) = self.pidfd.as_ref().filter(|_| Stat::read(sys::getpid()).is_none()) else { return false };
        sys::getpgid(0) != Ok(self.root.pid) && sys::signal_group(pidfd, signal).is_ok()
    }
}

/// Whether a process is to go on for a signal: all but SIGCONT to SIGTTOU, which stop or make go on by themselves.
pub(crate) fn wakes(signal: i32) -> bool {
    !(SIGCONT..=22).contains(&signal)
}

/// Of all processes those that can belong to one of these trees, by number.
///
/// Everybody's session is asked for, and the rest only of who is known, in a session or group with such a one, or descends from one. What
/// the kernel tells of all processes would cost eight times as much. `None` where /proc cannot be read.
fn candidates(trees: &[Members]) -> Option<Vec<Stat>> {
    if !lists_children() {
        return all();
    }
    let everybody = sessions()?;
    let of_session = |wanted: i32| everybody.iter().filter(move |who| who.1 == wanted).map(|who| who.0);
    let (mut found, mut pending, mut seen): (Vec<Stat>, Vec<i32>, Vec<i32>) = Default::default();
    for Members { root, home, known, .. } in trees {
        pending.push(root.pid);
        pending.extend(known.iter().map(|known| known.pid));
        pending.extend(of_session(root.pid));
        // The root's group is in its own session, or in the one it was born into.
        pending.extend(of_session(*home).filter(|&pid| sys::getpgid(pid) == Ok(root.pid)));
        seen.extend([root.pid, *home]);
    }
    while let Some(pid) = pending.pop() {
        let Err(place) = found.binary_search_by_key(&pid, |stat| stat.process.pid) else { continue };
        let Some(stat) = Stat::read(pid) else { continue };
        found.insert(place, stat);
        if stat.session > 0 && !seen.contains(&stat.session) {
            seen.push(stat.session);
            pending.extend(of_session(stat.session));
        }
        stat.each_child(|child| pending.push(child));
    }
    Some(found)
}

fn find(list: &[Stat], process: Process) -> Option<&Stat> {
    let place = list.binary_search_by_key(&process.pid, |stat| stat.process.pid).ok()?;
    list.get(place).filter(|stat| stat.process == process)
}

/// Ends trees, and waits so many milliseconds for it. `true` if nobody is left (zombies are nobody), as far as /proc shows.
///
/// A member that is killed can leave a child behind that was born between the look and the kill, with nobody to be known by. So
/// all are stopped first: a stopped process has no children, and holds its session, its group and its children's descent.
pub fn end(trees: &mut [Members], milliseconds: u64) -> bool {
    /// Whoever has not stopped by then, or has more children than are found by then, is not waited for.
    const STOPPING_MS: u64 = 250;
    let begun = sys::now();
    let deadline = begun.saturating_add(milliseconds);
    let mut stopping = Stopping::default();
    loop {
        let list = candidates(trees).unwrap_or_default();
        let alive: Vec<Stat> = trees.iter_mut().flat_map(|tree| tree.look(&list)).collect();
        let now = sys::now();
        if alive.is_empty() {
            let somebody = trees.iter().filter(|tree| tree.signal_unseen(SIGKILL)).count() > 0;
            if !somebody || now >= deadline {
                return !somebody;
            }
        }
        // One alone has nobody to leave a child to but its session.
        if alive.len() == 1 || stopping.is_over(&alive) || now >= begun + STOPPING_MS {
            for member in &alive {
                member.process.signal(SIGKILL);
            }
            if now >= deadline {
                return false;
            }
        }
        sys::sleep(1);
    }
}

/// Who has been told to stop, by number; and whether the kernel has passed it on.
#[derive(Default)]
struct Stopping(Vec<(Process, bool)>);

impl Stopping {
    /// Whether all of these were known, and those that will stop have. A fork that was under way when its process was told comes to its
    /// end before that, however busy the machine is.
    fn is_over(&mut self, alive: &[Stat]) -> bool {
        let mut over = true;
        for member in alive {
            match self.0.binary_search_by_key(&member.process, |told| told.0) {
                Ok(place) => over &= member.holds_still() || !self.0.get(place).is_some_and(|told| told.1),
                Err(place) => {
                    self.0.insert(place, (member.process, member.process.signal(SIGSTOP)));
                    over = false;
                }
            }
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// pid, start, parent, group, session.
    fn stat(pid: i32, start: u64, parent: i32, group: i32, session: i32) -> Stat {
        let line = alloc::format!("{pid} (x) S {parent} {group} {session} 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 {start} 0");
        Stat::parse(line.as_bytes()).expect("a line")
    }

    fn pids(stats: &[Stat]) -> Vec<i32> {
        stats.iter().map(|stat| stat.process.pid).collect()
    }

    const ROOT: Process = Process { pid: 100, start: 50 };

    #[test]
    fn looks_at_few_and_finds_the_same() {
        extern crate std;
        use std::os::unix::process::CommandExt;
        // One in a group of its own, one in a session of its own, one below it, and a child of either.
        let script = "set -m; sleep 1000 & setsid sh -c 'sleep 1000 & wait' & sh -c 'sleep 1000 & wait' & wait";
        let mut sh = std::process::Command::new("sh");
        let mut sh = sh.args(["-c", script]).process_group(0).spawn().expect("starts");
        let root = Process { pid: sh.id() as i32, start: 0 };
        let tree = || Members::new(root, sys::getsid(0).expect("this process's"), sys::pidfd_open(root.pid).ok());
        let (mut few, mut every) = (Vec::new(), Vec::new());
        let begun = sys::now();
        while (every.len() < 6 || few != every) && sys::now() < begun + 60_000 {
            let mut tree = [tree()];
            let list = candidates(&tree).expect("/proc");
            few = pids(&tree[0].look(&list));
            assert!(list.is_sorted_by_key(|stat| stat.process));
            every = pids(&tree[0].look(&all().expect("/proc")));
        }
        let mut tree = [tree()];
        let ended = end(&mut tree, 60_000);
        sh.wait().expect("own child");
        assert_eq!((every.len(), ended), (6, true));
        assert_eq!(few, every);
    }

    #[test]
    fn finds_session_group_and_descent() {
        let list = [
            stat(1, 1, 0, 1, 1),
            stat(90, 40, 1, 90, 90),
            // The root, in a session of its own.
            stat(100, 50, 90, 100, 100),
            stat(101, 51, 100, 100, 100),
            // Orphaned, in the session.
            stat(102, 51, 1, 102, 100),
            // In another session, by descent.
            stat(103, 52, 101, 103, 103),
            // Its orphan.
            stat(104, 53, 1, 103, 103),
            // A stranger.
            stat(105, 53, 90, 90, 90),
        ];
        let mut tree = Members::new(ROOT, 0, None);
        assert_eq!(pids(&tree.look(&list)), [100, 101, 102, 103, 104]);
        tree.root_was_seen(51);
        assert_eq!(tree.strays(&list).map(|stray| stray.pid).collect::<Vec<_>>(), [103, 104]);
        tree.seen = 50;
        assert_eq!(tree.strays(&list).map(|stray| stray.pid).collect::<Vec<_>>(), [101, 102, 103, 104]);
        // What was seen is known when all that led to it is gone.
        assert_eq!(pids(&tree.look(&[list[0], list[1], list[6], list[7]])), [104]);
    }

    #[test]
    fn the_session_it_was_born_into_is_not_the_tree_s() {
        let list = [
            stat(90, 40, 1, 90, 90),
            stat(100, 50, 90, 100, 90),
            stat(101, 51, 1, 100, 90),
            stat(102, 51, 1, 102, 90),
            stat(103, 51, 90, 90, 90),
        ];
        assert_eq!(pids(&Members::new(ROOT, 90, None).look(&list)), [100, 101]);
        // Nor its group, unless it leads that.
        let list = [stat(90, 40, 1, 90, 90), stat(100, 50, 90, 90, 90), stat(101, 51, 100, 90, 90), list[4]];
        assert_eq!(pids(&Members::new(ROOT, 90, None).look(&list)), [100, 101]);
    }

    #[test]
    fn a_number_that_came_back_is_a_stranger() {
        let mut tree = Members::new(ROOT, 0, None);
        tree.learn(Process { pid: 103, start: 52 });
        let list = [
            // Another process of the root's number leads a session of that number.
            stat(100, 60, 1, 100, 100),
            stat(101, 61, 100, 100, 100),
            // Another one of the known number, with a child.
            stat(103, 62, 1, 103, 103),
            stat(104, 63, 103, 103, 103),
        ];
        assert_eq!(pids(&tree.look(&list)), []);
    }

    #[test]
    fn whoever_was_in_the_session_while_the_root_had_its_number_belongs() {
        let (elder, younger) = (stat(101, 51, 1, 101, 100), stat(102, 61, 1, 102, 100));
        let mut tree = Members::new(ROOT, 0, None);
        assert_eq!(pids(&tree.look(&[elder, younger])), []);
        tree.root_was_seen(60);
        // The younger one by the other's session, not by the number.
        assert_eq!(pids(&tree.look(&[younger])), []);
        assert_eq!(pids(&tree.look(&[elder, younger])), [101, 102]);
        let mut tree = Members::new(Process { start: 0, ..ROOT }, 90, None);
        tree.root_was_seen(60);
        assert_eq!(
            pids(&tree.look(&[elder, younger])),
            [101, 102],
            "the session it has made, whatever it was born into"
        );
    }

    #[test]
    fn a_child_is_not_older_than_its_parent() {
        let list = [stat(99, 49, 100, 7, 7), stat(100, 50, 90, 100, 100), stat(101, 49, 100, 9, 9)];
        assert_eq!(pids(&Members::new(ROOT, 0, None).look(&list)), [100]);
    }

    #[test]
    fn sessions_of_other_namespaces_are_nobody_s() {
        let list = [stat(50, 51, 1, 0, 0), stat(100, 50, 1, 0, 0)];
        assert_eq!(pids(&Members::new(ROOT, 0, None).look(&list)), [100]);
    }
}
