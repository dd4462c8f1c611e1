// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of trees, in memory that owner and guard share, with one slot for each tree.
//!
//! The owner writes the table, and the guard reads it when the owner has died. So no message can be lost, and the guard
//! sleeps while trees start and end. Only the owner and its forks can access the table.
//!
//! The first word counts the trees. To exit, the guard changes the word from 0 to `CLOSED`. To register a tree, the
//! owner increments the word unless it is `CLOSED`. Both operations are atomic, so each side sees the other's change.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::descendants::Descendants;
use crate::members::{MAX_REPORTED, Members};
use crate::process::{Process, ProcessIdentity, Stat, ticks_now};
use crate::sys;

/// The number of trees that a table can have.
pub const SLOTS: usize = 4096;

/// The count of a closed table, which has no guard.
const CLOSED: u64 = u64::MAX;

/// The maximum length of a path of a cgroup's directory, in bytes.
pub const MAX_PATH: usize = 8 * (SLOT - PATH);

// Indexes of words in the table's head. The indexes in a slot follow.
const COUNT: usize = 0;
const REGISTRATIONS: usize = 1;
const REMOVALS: usize = 2;
const GUARDS: usize = 3;
const COMPLETE: usize = 4;
const HEAD: usize = 8;
const STATE: usize = 0;
const ROOT: usize = 1;
const IDENTITY: usize = 2;
const START_SESSION: usize = 3;
const TAKEN_AT: usize = 4;
const ROOT_SEEN_AT: usize = 5;
const MEMBERS_ADDED: usize = 6;
const PROGRAM: usize = 7;
const PROGRAM_IDENTITY: usize = 8;
const SUBREAPER: usize = 9;
const FIRST_MEMBER: usize = 10;
const PATH: usize = FIRST_MEMBER + MAX_REPORTED;
const SLOT: usize = 128;

/// A bit that a ticket has and a pid lacks. A slot's process word contains the tree's ticket until the tree has a
/// process, and then the pid. No two trees of a table have the same ticket.
const NO_PROCESS: u64 = 1 << 31;
const TICKET_SHIFT: u32 = 32;

/// The size of a table in words. Only the used pages of its file take memory.
const WORDS: usize = HEAD + SLOTS * SLOT;

/// The size of a table in bytes.
pub const SIZE: usize = WORDS * 8;

/// The use of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum SlotState {
    /// The slot is not in use.
    Free = 0,
    /// The slot belongs to a tree, which the guard kills when the owner dies.
    Used = 1,
    /// The slot belongs to a cgroup that the guard removes once the cgroup is empty.
    AwaitsRemoval = 2,
    /// The slot belongs to a tree whose first process is the tree's subreaper. The guard kills the processes below it
    /// when the owner dies.
    Subreaper = 3,
}

/// The table, mapped by the owner or by the guard.
#[derive(Debug)]
pub struct TreeTable {
    memory: sys::SharedMemory,
}

impl TreeTable {
    /// Maps a table: a file of [`SIZE`] bytes, initially zeros.
    ///
    /// # Errors
    /// The errors of mmap(2).
    pub fn map(file: i32) -> sys::Result<TreeTable> {
        Ok(TreeTable { memory: sys::SharedMemory::map(file, WORDS)? })
    }

    fn head(&self, word: usize) -> &AtomicU64 {
        &self.memory.words()[word]
    }

    fn slot(&self, slot: usize) -> &[AtomicU64] {
        &self.memory.words()[HEAD + slot * SLOT..][..SLOT]
    }

    /// Increments the count of trees. `false` if the table is closed.
    pub fn register_tree(&self) -> bool {
        self.head(REGISTRATIONS).fetch_add(1, Ordering::Relaxed);
        let more = |count| if count == CLOSED { None } else { Some(count + 1) };
        self.head(COUNT).fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Decrements the count of trees, and returns the new count.
    pub fn unregister_tree(&self) -> u64 {
        self.head(COUNT).fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// The number of trees that the owner has registered so far, including those that have ended.
    pub fn registrations(&self) -> u64 {
        self.head(REGISTRATIONS).load(Ordering::Relaxed)
    }

    /// The number of trees.
    pub fn count(&self) -> u64 {
        Some(self.head(COUNT).load(Ordering::Acquire)).filter(|&count| count != CLOSED).unwrap_or(0)
    }

    /// Counts a guard that starts. Returns its number.
    pub fn next_guard(&self) -> u64 {
        self.head(GUARDS).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Records that both processes of a guard run.
    pub fn guard_is_complete(&self, number: u64) {
        self.head(COMPLETE).fetch_max(number, Ordering::AcqRel);
    }

    /// Whether a guard that started after the guard `number` has had both its processes.
    pub fn has_later_guard(&self, number: u64) -> bool {
        self.head(COMPLETE).load(Ordering::Acquire) > number
    }

    /// Whether the guard has a cgroup to remove.
    pub fn has_cgroups_to_remove(&self) -> bool {
        self.head(REMOVALS).load(Ordering::Acquire) > 0
    }

    /// Closes the table if it has no tree. From then on, [`register_tree`](TreeTable::register_tree) fails.
    pub fn close(&self) -> bool {
        self.head(COUNT).compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether the guard or the owner has closed the table.
    pub fn is_closed(&self) -> bool {
        self.head(COUNT).load(Ordering::Acquire) == CLOSED
    }

    /// The use of a slot.
    pub fn state(&self, slot: usize) -> SlotState {
        match self.slot(slot)[STATE].load(Ordering::Acquire) {
            1 => SlotState::Used,
            2 => SlotState::AwaitsRemoval,
            3 => SlotState::Subreaper,
            _ => SlotState::Free,
        }
    }

    /// Takes a free slot for a tree that has no process yet. Returns a ticket, which the slot contains in place of
    /// the pid until the process starts.
    ///
    /// `state` is [`Used`](SlotState::Used) or [`Subreaper`](SlotState::Subreaper). `start_session` is the session in
    /// which the process will start. `cgroup` is the path of the tree's cgroup, or empty. Only one caller at a time may
    /// take a slot.
    pub fn take_slot(&self, slot: usize, state: SlotState, start_session: i32, cgroup: &[u8]) -> u64 {
        let words = self.slot(slot);
        for word in &words[ROOT..FIRST_MEMBER] {
            word.store(0, Ordering::Relaxed);
        }
        let ticket = self.registrations() << TICKET_SHIFT | NO_PROCESS;
        words[ROOT].store(ticket, Ordering::Relaxed);
        words[START_SESSION].store(start_session as u64, Ordering::Relaxed);
        words[TAKEN_AT].store(ticks_now(), Ordering::Relaxed);
        for (index, word) in words[PATH..].iter().enumerate() {
            let mut bytes = [0; 8];
            let rest = cgroup.get(index * 8..).unwrap_or_default();
            bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            if rest.len() < 8 {
                break;
            }
        }
        words[STATE].store(state as u64, Ordering::Release);
        ticket
    }

    /// Records the program of a tree with a subreaper, in case a process kills the subreaper. Call this after
    /// [`set_root`](TreeTable::set_root) for the subreaper.
    pub fn set_program(&self, slot: usize, program: i32, identity: ProcessIdentity) {
        let words = self.slot(slot);
        words[SUBREAPER].store(words[IDENTITY].load(Ordering::Relaxed), Ordering::Relaxed);
        words[PROGRAM].store(program as u64, Ordering::Relaxed);
        words[PROGRAM_IDENTITY].store(identity.pack(), Ordering::Release);
    }

    /// A number that identifies the subreaper of a slot's tree, also after the tree has lost it. 0: there is none.
    pub fn subreaper(&self, slot: usize) -> u64 {
        self.slot(slot)[SUBREAPER].load(Ordering::Relaxed)
    }

    /// Returns the program of a tree that has lost its subreaper, and the processes that belong to the program.
    pub fn program(&self, slot: usize) -> Option<Members> {
        let words = self.slot(slot);
        let identity = ProcessIdentity::unpack(words[PROGRAM_IDENTITY].load(Ordering::Acquire))?;
        let pid = words[PROGRAM].load(Ordering::Relaxed) as i32;
        let start_session = words[START_SESSION].load(Ordering::Relaxed) as i32;
        let mut tree = Members::new(Process { pid, start: 0 }, start_session, identity.open(pid));
        tree.set_root_seen(words[ROOT_SEEN_AT].load(Ordering::Relaxed));
        Some(tree)
    }

    /// Records that the tree has lost its subreaper. Call this after [`set_root`](TreeTable::set_root) for the program.
    pub fn subreaper_lost(&self, slot: usize) {
        self.slot(slot)[STATE].store(SlotState::Used as u64, Ordering::Release);
    }

    /// The word that contains the pid of a tree's first process.
    ///
    /// Before its other actions, the first process replaces the ticket in this word by its pid. If
    /// the first process cannot, the owner does so in `set_root`.
    pub fn root(&self, slot: usize) -> &AtomicU64 {
        &self.slot(slot)[ROOT]
    }

    /// Records a tree's first process, the session in which it started, and a time at which it certainly had its pid.
    pub fn set_root(&self, slot: usize, root: i32, start_session: i32, identity: ProcessIdentity, root_seen: u64) {
        let words = self.slot(slot);
        words[START_SESSION].store(start_session as u64, Ordering::Relaxed);
        words[ROOT_SEEN_AT].store(root_seen, Ordering::Relaxed);
        words[ROOT].store(root as u64, Ordering::Relaxed);
        words[IDENTITY].store(identity.pack(), Ordering::Release);
    }

    /// Records a time at which a tree's first process certainly had its pid.
    pub fn set_root_seen(&self, slot: usize, seen_at: u64) {
        self.slot(slot)[ROOT_SEEN_AT].fetch_max(seen_at, Ordering::Relaxed);
    }

    /// Records that a tree's first process keeps its pid until the owner dies, or until the owner calls
    /// [`root_may_be_reaped`](TreeTable::root_may_be_reaped).
    pub fn root_is_kept(&self, slot: usize) {
        self.set_root_seen(slot, u64::MAX);
    }

    /// Records that a tree's first process certainly had its pid at `seen_at`, and may be reaped from then on.
    pub fn root_may_be_reaped(&self, slot: usize, seen_at: u64) {
        self.slot(slot)[ROOT_SEEN_AT].store(seen_at, Ordering::Release);
    }

    /// Lists a member that the guard may not find by itself.
    pub fn add_member(&self, slot: usize, process: Process) {
        let words = self.slot(slot);
        let added = words[MEMBERS_ADDED].load(Ordering::Relaxed);
        let listed = &words[FIRST_MEMBER..][..MAX_REPORTED.min(added as usize)];
        if listed.iter().all(|word| word.load(Ordering::Relaxed) != process.pack()) {
            words[FIRST_MEMBER + added as usize % MAX_REPORTED].store(process.pack(), Ordering::Relaxed);
            words[MEMBERS_ADDED].store(added + 1, Ordering::Release);
        }
    }

    /// Leaves a slot's cgroup to the guard, which removes the cgroup once it is empty.
    pub fn leave_cgroup_to_guard(&self, slot: usize) {
        self.slot(slot)[STATE].store(SlotState::AwaitsRemoval as u64, Ordering::Release);
        self.head(REMOVALS).fetch_add(1, Ordering::AcqRel);
    }

    /// Frees the slot of a cgroup that the guard has removed.
    pub fn cgroup_removed(&self, slot: usize) {
        self.head(REMOVALS).fetch_sub(1, Ordering::AcqRel);
        self.free_slot(slot);
        self.unregister_tree();
    }

    /// Frees a slot.
    pub fn free_slot(&self, slot: usize) {
        self.slot(slot)[STATE].store(SlotState::Free as u64, Ordering::Release);
    }

    /// Returns the tree of a slot, which the guard uses after the owner's death. `None` if the tree
    /// has no process. `parent` is the parent that the kernel has given to the owner's children.
    pub fn tree(&self, slot: usize, parent: i32) -> Option<Members> {
        let words = self.slot(slot);
        let root = i32::try_from(words[ROOT].load(Ordering::Acquire)).ok().filter(|&root| root > 0)?;
        let taken_at = words[TAKEN_AT].load(Ordering::Relaxed);
        let pidfd = self.open_root(words, root, parent);
        let mut tree =
            Members::new(Process { pid: root, start: 0 }, words[START_SESSION].load(Ordering::Relaxed) as i32, pidfd);
        tree.set_root_seen(taken_at.max(words[ROOT_SEEN_AT].load(Ordering::Relaxed)));
        let added = MAX_REPORTED.min(words[MEMBERS_ADDED].load(Ordering::Acquire) as usize);
        for word in &words[FIRST_MEMBER..][..added] {
            tree.add(Process::unpack(word.load(Ordering::Relaxed)));
        }
        Some(tree)
    }

    /// Returns the tree of a slot with a subreaper. `None` if the subreaper has ended, or has not started. `parent` is
    /// the parent that the kernel has given to the owner's children, or 0 while the owner lives.
    pub fn descendants(&self, slot: usize, parent: i32) -> Option<Descendants> {
        let words = self.slot(slot);
        let root = i32::try_from(words[ROOT].load(Ordering::Acquire)).ok().filter(|&root| root > 0)?;
        Some(Descendants::new(root, self.open_root(words, root, parent)?))
    }

    /// Opens a tree's first process, if it still has its pid.
    fn open_root(&self, words: &[AtomicU64], root: i32, parent: i32) -> Option<sys::Fd> {
        match ProcessIdentity::unpack(words[IDENTITY].load(Ordering::Acquire)) {
            Some(identity) => identity.open(root),
            None => find_orphaned_root(root, words[TAKEN_AT].load(Ordering::Relaxed), parent),
        }
    }

    /// The directory of a slot's cgroup.
    pub fn cgroup(&self, slot: usize) -> Option<CString> {
        let words = self.slot(slot)[PATH..].iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        CString::new(words.take_while(|&byte| byte != 0).collect::<Vec<u8>>()).ok().filter(|path| !path.is_empty())
    }
}

/// Opens a tree's first process, if the owner died before it recorded that process's identity.
///
/// The process with this pid is the tree's first process if it started after the owner took the slot, and if it has
/// the parent that the kernel has given to the owner's children.
fn find_orphaned_root(pid: i32, taken_at: u64, parent: i32) -> Option<sys::Fd> {
    let pidfd = sys::pidfd_open(pid).ok()?;
    let stat = Stat::read(pid)?;
    let is_root = stat.process.start >= taken_at && stat.parent == parent;
    // If the pidfd's process is not reaped yet, it has the pid, so `stat` describes it.
    (is_root && sys::has_pid(&pidfd)).then_some(pidfd)
}
