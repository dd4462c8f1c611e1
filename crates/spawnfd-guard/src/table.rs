// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the owner tells its guard: a table in memory they share, one slot a tree.
//!
//! The owner writes, the guard reads when the owner has died. So no message has to be sent and none can be lost, the guard sleeps
//! while trees come and go, and nobody but the owner, and what forks from it, has a way to the table.
//!
//! The first word counts the trees. The guard ends by setting it to `GONE` when it is 0, the owner begins a tree by adding one
//! unless it is that: either sees what the other did.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::members::Members;
use crate::process::{Mark, Process, Stat, present};
use crate::sys;

/// How many trees a table has room for.
pub const SLOTS: usize = 4096;

/// The count of a table whose guard has ended.
const GONE: u64 = u64::MAX;

/// How many members of a tree are listed by themselves. More push out the first.
const LEARNED: usize = 16;

/// The longest path of a cgroup's directory.
pub const LONGEST_PATH: usize = 8 * (SLOT - PATH);

/// Words of the table's head, then words of a slot.
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

/// Marks a word as a ticket, which no other tree of the table has, and not a process's number.
const NO_PROCESS: u64 = 1 << 31;
const TICKET_SHIFT: u32 = 32;

/// Words in all. Of the file behind it only what is used takes memory.
const WORDS: usize = HEAD + SLOTS * SLOT;

/// Bytes in all.
pub const SIZE: usize = WORDS * 8;

/// What a slot is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum State {
    /// Nobody's.
    Free = 0,
    /// A tree's, to be ended with the owner.
    Used = 1,
    /// A cgroup's that is left to the guard to remove when it is empty.
    Cleaning = 2,
}

/// The table, as mapped by one of the two.
#[derive(Debug)]
pub struct Table {
    memory: sys::SharedMemory,
}

impl Table {
    /// Maps a table: a file of [`SIZE`] bytes, zeros to begin with.
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

    /// Counts one tree more. `false` if the guard has ended.
    pub fn enter(&self) -> bool {
        self.head(USES).fetch_add(1, Ordering::Relaxed);
        let more = |count| if count == GONE { None } else { Some(count + 1) };
        self.head(COUNT).fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Counts one tree less. Returns how many are left.
    pub fn leave(&self) -> u64 {
        self.head(COUNT).fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// How many trees have been begun.
    pub fn uses(&self) -> u64 {
        self.head(USES).load(Ordering::Relaxed)
    }

    /// Whether there is a cgroup to be removed.
    pub fn has_cleaning(&self) -> bool {
        self.head(CLEANING).load(Ordering::Acquire) > 0
    }

    /// Ends the guard's duty if there is no tree. Nobody enters from then on.
    pub fn close(&self) -> bool {
        self.head(COUNT).compare_exchange(0, GONE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether nobody enters any more: the guard has ended by itself, or its owner has no use for it.
    pub fn is_closed(&self) -> bool {
        self.head(COUNT).load(Ordering::Acquire) == GONE
    }

    /// What a slot is.
    pub fn state(&self, slot: usize) -> State {
        match self.slot(slot)[STATE].load(Ordering::Acquire) {
            1 => State::Used,
            2 => State::Cleaning,
            _ => State::Free,
        }
    }

    /// Takes a free slot for a tree that has no process yet, with the session that one will be born into and the cgroup it will have.
    /// The caller is the only one to. Returns what stands in place of the process's number until then.
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

    /// The word that takes the number of the process that a tree begins with: in place of the ticket by itself, before it does anything of
    /// its own, or by the owner with the rest.
    pub fn root(&self, slot: usize) -> &AtomicU64 {
        &self.slot(slot)[ROOT]
    }

    /// Says which process a tree begins with, the session it was born into after all, and when it had its number for sure.
    pub fn born(&self, slot: usize, root: i32, home: i32, mark: Mark, seen: u64) {
        let words = self.slot(slot);
        words[HOME].store(home as u64, Ordering::Relaxed);
        self.seen(slot, seen);
        words[ROOT].store(root as u64, Ordering::Relaxed);
        words[MARK].store(mark.pack(), Ordering::Release);
    }

    /// Says when a tree's first process had its number for sure.
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

    /// Leaves a slot's cgroup to the guard.
    pub fn leave_to_clean(&self, slot: usize) {
        self.slot(slot)[STATE].store(State::Cleaning as u64, Ordering::Release);
        self.head(CLEANING).fetch_add(1, Ordering::AcqRel);
    }

    /// The guard has removed a cgroup that was left to it.
    pub fn cleaned(&self, slot: usize) {
        self.head(CLEANING).fetch_sub(1, Ordering::AcqRel);
        self.free(slot);
        self.leave();
    }

    /// Gives a slot back.
    pub fn free(&self, slot: usize) {
        self.slot(slot)[STATE].store(State::Free as u64, Ordering::Release);
    }

    /// A slot's tree, for the guard when the owner has died; `None` if it has no process.
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

/// A pidfd of the process that has this number, if it can be the one whose owner died before it could note the mark: it is no older than its
/// slot, and has come to the same new parent as the guard, another child of that owner's.
fn orphan(pid: i32, begun: u64) -> Option<sys::Fd> {
    let pidfd = sys::pidfd_open(pid).ok()?;
    let stat = Stat::read(pid)?;
    let is_it = stat.process.start >= begun && stat.parent == sys::getppid();
    // Not reaped yet, so that what was read is its own.
    (is_it && sys::has_number(&pidfd)).then_some(pidfd)
}
