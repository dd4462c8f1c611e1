// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registers a child with the guard, a helper process that kills the trees of a dead owner. So the guard knows the
//! child even if a signal kills the parent right after clone.

use alloc::sync::Arc;
use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use spawnfd_sys::{Errno, call};

/// A word in shared memory in which the child replaces a ticket by its pid.
///
/// The guard reads the word after the parent's death. After the write, the child checks its parent. If the parent is
/// alive, the guard will see the pid. If the parent has died, the child exits.
#[derive(Clone)]
pub struct GuardRegistration {
    word: NonNull<AtomicU64>,
    /// Owns the memory of the word.
    _keeper: Arc<dyn Any + Send + Sync>,
    ticket: u64,
    parent: i32,
}

// SAFETY: the word is only used as an atomic, and the keeper is Send and Sync.
unsafe impl Send for GuardRegistration {}
// SAFETY: threads share the word only as an atomic, and the keeper is Sync.
unsafe impl Sync for GuardRegistration {}

impl fmt::Debug for GuardRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardRegistration")
            .field("ticket", &self.ticket)
            .field("parent", &self.parent)
            .finish_non_exhaustive()
    }
}

impl GuardRegistration {
    /// Prepares a registration in `word`, a part of `keeper`, for a child of the process `parent`.
    ///
    /// The child writes only while the word contains `ticket`.
    pub fn new<T: Any + Send + Sync>(
        keeper: Arc<T>,
        word: impl for<'a> FnOnce(&'a T) -> &'a AtomicU64,
        ticket: u64,
        parent: i32,
    ) -> GuardRegistration {
        GuardRegistration { word: NonNull::from(word(&keeper)), _keeper: keeper, ticket, parent }
    }

    /// Prepares the word for another child, after the failure of an earlier one.
    pub fn renew(&self) {
        // SAFETY: `self` owns a reference to the keeper, which keeps the word allocated.
        unsafe { self.word.as_ref() }.store(self.ticket, Ordering::Release);
    }

    /// Writes the pid of a running process that has not written it itself.
    ///
    /// Returns false if the word no longer contains the ticket. Then the parent has already written
    /// the pid or released the slot.
    pub fn make_for(&self, pid: i32) -> bool {
        // SAFETY: `self` owns a reference to the keeper, which keeps the word allocated.
        let word = unsafe { self.word.as_ref() };
        word.compare_exchange(self.ticket, pid as u64, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Writes the calling process's pid.
    ///
    /// # Errors
    /// ESRCH: the parent has died.
    pub(crate) fn make(&self) -> Result<(), Errno> {
        // A parent pid of 0 means that this process is in a new pid namespace. The guard knows this
        // process by another pid, and the parent's pid is not visible here.
        if call::getppid()? == 0 {
            return Ok(());
        }
        let written = self.make_for(call::getpid()?);
        if written && call::getppid()? != self.parent { Err(Errno::ESRCH) } else { Ok(()) }
    }
}
