// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a child makes itself known to somebody who outlives its parent, should that be killed right after the birth.

use alloc::sync::Arc;
use core::any::Any;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use spawnfd_sys::{Errno, call};

/// A word in shared memory that takes the child's number in place of a ticket.
///
/// Who reads it does so after the parent's death. A child that finds its parent alive once it has written is known to him; one
/// that does not ends.
#[derive(Clone)]
pub struct Announcement {
    word: NonNull<AtomicU64>,
    /// Keeps the word where it is.
    _keeper: Arc<dyn Any + Send + Sync>,
    ticket: u64,
    parent: i32,
}

// SAFETY: the word is only used as an atomic, and the keeper is Send and Sync.
unsafe impl Send for Announcement {}
// SAFETY: as above.
unsafe impl Sync for Announcement {}

impl fmt::Debug for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcement")
            .field("ticket", &self.ticket)
            .field("parent", &self.parent)
            .finish_non_exhaustive()
    }
}

impl Announcement {
    /// To be made in `word` of what `keeper` keeps, as long as that holds `ticket`, by a child of the process `parent`.
    pub fn new<T: Any + Send + Sync>(
        keeper: Arc<T>,
        word: impl for<'a> FnOnce(&'a T) -> &'a AtomicU64,
        ticket: u64,
        parent: i32,
    ) -> Announcement {
        Announcement { word: NonNull::from(word(&keeper)), _keeper: keeper, ticket, parent }
    }

    /// Writes the number of a process that is alive already, on its behalf.
    pub fn make_for(&self, pid: i32) {
        // SAFETY: borrowed from what the keeper keeps, for as long as it does.
        let word = unsafe { self.word.as_ref() };
        let _ = word.compare_exchange(self.ticket, pid as u64, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Writes the calling process's number.
    ///
    /// # Errors
    /// ESRCH: the parent has died.
    pub(crate) fn make(&self) -> Result<(), Errno> {
        // 0: born into another pid namespace, where it has another number, and cannot ask for its parent.
        if call::getppid()? == 0 {
            return Ok(());
        }
        // SAFETY: borrowed from what the keeper keeps, for as long as it does.
        let word = unsafe { self.word.as_ref() };
        let own = call::getpid()? as u64;
        // Otherwise the parent has told of it already, or let go of it.
        let written = word.compare_exchange(self.ticket, own, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if written && call::getppid()? != self.parent { Err(Errno::ESRCH) } else { Ok(()) }
    }
}
