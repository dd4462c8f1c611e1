// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of trees, in memory that owner and guard share, with one slot for each tree.
//!
//! The owner writes, and the guard reads when the owner has died. So there is no message that could be lost, and the
//! guard sleeps while trees start and end. Only the owner and its forks can access the table.
//!
//! The first word counts the trees. To exit, the guard changes the word from 0 to `GONE`. To start a tree, the owner
//! increments the word unless it is `GONE`. Both operations are atomic, so each side sees the other's change.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::members::Members;
use crate::process::{Mark, Process, Stat, present};
use crate::sys;

/// The number of trees that a table can have.
pub const SLOTS: usize = 4096;

/// The count of a table whose guard has ended.
const GONE: u64 = u64::MAX;

/// How many members of a tree a slot lists individually. A further member replaces the oldest.
const LEARNED: usize = 16;

/// The longest path of a cgroup's directory.
pub const LONGEST_PATH: usize = 8 * (SLOT - PATH);

// Words of the table's head, then words of a slot.
const COUNT: usize = 0;
const USES: usize = 1;
const CLEANING: usize = 2;
const HEAD: usize = 8;
const STATE: usize = 0;
const ROOT: usize = 1;
const MARK: usize = 2;
const HOME: usize = 3;
const BEGUN: usize = 4;
const SEEN: usize = 5;
const LEARN_AT: usize = 6;
const FIRST_LEARNED: usize = 7;
const PATH: usize = FIRST_LEARNED + LEARNED;
const SLOT: usize = 64;

/// The bit that distinguishes a ticket from a pid. Each tree of a table has a different ticket.
const NO_PROCESS: u64 = 1 << 31;
const TICKET_SHIFT: u32 = 32;

/// The size of a table in words. Only the used pages of its file take memory.
const WORDS: usize = HEAD + SLOTS * SLOT;

/// The size of a table in bytes.
pub const SIZE: usize = WORDS * 8;

/// The use of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum State {
    /// Not in use.
    Free = 0,
    /// The slot of a tree, which the guard kills when the owner dies.
    Used = 1,
    /// The slot of a cgroup that the guard removes once the cgroup is empty.
    Cleaning = 2,
}

/// The table, mapped by the owner or by the guard.
#[derive(Debug)]
pub struct Table {
    memory: sys::SharedMemory,
}

impl Table {
    /// Maps a table: a file of [`SIZE`] bytes, initially zeros.
    ///
    /// # Errors
    /// As mmap(2).
    pub fn map(file: i32) -> sys::Result<Table> {
        Ok(Table { memory: sys::SharedMemory::map(file, WORDS)? })
    }

    fn head(&self, word: usize) -> &AtomicU64 {
        &self.memory.words()[word]
    }

    fn slot(&self, slot: usize) -> &[AtomicU64] {
        &self.memory.words()[HEAD + slot * SLOT..][..SLOT]
    }

    /// Increments the count of trees. `false` if the guard has ended.
    pub fn enter(&self) -> bool {
        self.head(USES).fetch_add(1, Ordering::Relaxed);
        let more = |count| if count == GONE { None } else { Some(count + 1) };
        self.head(COUNT).fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Decrements the count of trees, and returns the new count.
    pub fn leave(&self) -> u64 {
        self.head(COUNT).fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// How many trees the owner has started in this table.
    pub fn uses(&self) -> u64 {
        self.head(USES).load(Ordering::Relaxed)
    }

    /// Whether the guard has a cgroup to remove.
    pub fn has_cleaning(&self) -> bool {
        self.head(CLEANING).load(Ordering::Acquire) > 0
    }

    /// Closes the table if it has no tree. From then on no tree can enter.
    pub fn close(&self) -> bool {
        self.head(COUNT).compare_exchange(0, GONE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether the table is closed, by the guard or by the owner.
    pub fn is_closed(&self) -> bool {
        self.head(COUNT).load(Ordering::Acquire) == GONE
    }

    /// The use of a slot.
    pub fn state(&self, slot: usize) -> State {
        match self.slot(slot)[STATE].load(Ordering::Acquire) {
            1 => State::Used,
            2 => State::Cleaning,
            _ => State::Free,
        }
    }

    /// Takes a free slot for a tree without a process, and returns the ticket that stands for the pid until the tree
    /// has one.
    ///
    /// `home` is the session in which the process will start, `cgroup` the group that the tree will have. Only one
    /// caller at a time may take a slot.
    pub fn take(&self, slot: usize, home: i32, cgroup: &[u8]) -> u64 {
        let words = self.slot(slot);
        for word in &words[ROOT..FIRST_LEARNED] {
            word.store(0, Ordering::Relaxed);
        }
        let ticket = self.uses() << TICKET_SHIFT | NO_PROCESS;
        words[ROOT].store(ticket, Ordering::Relaxed);
        words[HOME].store(home as u64, Ordering::Relaxed);
        words[BEGUN].store(present(), Ordering::Relaxed);
        for (place, word) in words[PATH..].iter().enumerate() {
            let mut bytes = [0; 8];
            let rest = cgroup.get(place * 8..).unwrap_or_default();
            bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
            if rest.len() < 8 {
                break;
            }
        }
        words[STATE].store(State::Used as u64, Ordering::Release);
        ticket
    }

    /// The word for the pid of a tree's first process.
    ///
    /// The process itself replaces the ticket by its pid before its other actions, or the owner does in `born`.
    pub fn root(&self, slot: usize) -> &AtomicU64 {
        &self.slot(slot)[ROOT]
    }

    /// Records a tree's first process, the session in which it started, and a time at which it had its pid for
    /// certain.
    pub fn born(&self, slot: usize, root: i32, home: i32, mark: Mark, seen: u64) {
        let words = self.slot(slot);
        words[HOME].store(home as u64, Ordering::Relaxed);
        self.seen(slot, seen);
        words[ROOT].store(root as u64, Ordering::Relaxed);
        words[MARK].store(mark.pack(), Ordering::Release);
    }

    /// Records a time at which a tree's first process had its pid for certain.
    pub fn seen(&self, slot: usize, at: u64) {
        self.slot(slot)[SEEN].store(at, Ordering::Relaxed);
    }

    /// Lists a member that the guard could not find by itself.
    pub fn learn(&self, slot: usize, process: Process) {
        let words = self.slot(slot);
        let learned = words[LEARN_AT].load(Ordering::Relaxed);
        let listed = &words[FIRST_LEARNED..][..LEARNED.min(learned as usize)];
        if listed.iter().all(|word| word.load(Ordering::Relaxed) != process.pack()) {
            words[FIRST_LEARNED + learned as usize % LEARNED].store(process.pack(), Ordering::Relaxed);
            words[LEARN_AT].store(learned + 1, Ordering::Release);
        }
    }

    /// Leaves a slot's cgroup to the guard, which removes it once it is empty.
    pub fn leave_to_clean(&self, slot: usize) {
        self.slot(slot)[STATE].store(State::Cleaning as u64, Ordering::Release);
        self.head(CLEANING).fetch_add(1, Ordering::AcqRel);
    }

    /// Frees the slot of a cgroup that the guard has removed.
    pub fn cleaned(&self, slot: usize) {
        self.head(CLEANING).fetch_sub(1, Ordering::AcqRel);
        self.free(slot);
        self.leave();
    }

    /// Frees a slot.
    pub fn free(&self, slot: usize) {
        self.slot(slot)[STATE].store(State::Free as u64, Ordering::Release);
    }

    /// A slot's tree, for the guard after the owner's death; `None` if the tree has no process.
    pub fn tree(&self, slot: usize) -> Option<Members> {
        let words = self.slot(slot);
        let mark = Mark::unpack(words[MARK].load(Ordering::Acquire));
        let root = i32::try_from(words[ROOT].load(Ordering::Acquire)).ok().filter(|&root| root > 0)?;
        let begun = words[BEGUN].load(Ordering::Relaxed);
        let pidfd = match mark {
            Some(mark) => mark.open(root),
            None => orphan(root, begun),
        };
        let mut tree = Members::new(Process { pid: root, start: 0 }, words[HOME].load(Ordering::Relaxed) as i32, pidfd);
        tree.root_was_seen(begun.max(words[SEEN].load(Ordering::Relaxed)));
        let learned = LEARNED.min(words[LEARN_AT].load(Ordering::Acquire) as usize);
        for word in &words[FIRST_LEARNED..][..learned] {
            tree.learn(Process::unpack(word.load(Ordering::Relaxed)));
        }
        Some(tree)
    }

    /// The directory of a slot's cgroup.
    pub fn cgroup(&self, slot: usize) -> Option<CString> {
        let words = self.slot(slot)[PATH..].iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        CString::new(words.take_while(|&byte| byte != 0).collect::<Vec<u8>>()).ok().filter(|path| !path.is_empty())
    }
}

/// A pidfd of a tree's first process, for an owner that died before it recorded the process's mark.
///
/// The process with this pid counts as the first process if it is no older than the slot and has the same new parent
/// as the guard, which was also a child of the owner.
fn orphan(pid: i32, begun: u64) -> Option<sys::Fd> {
    let pidfd = sys::pidfd_open(pid).ok()?;
    let stat = Stat::read(pid)?;
    let is_it = stat.process.start >= begun && stat.parent == sys::getppid();
    // The process is not reaped yet, so `stat` is its own.
    (is_it && sys::has_number(&pidfd)).then_some(pidfd)
}
