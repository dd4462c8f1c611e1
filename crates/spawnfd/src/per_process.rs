// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locked state of which a fork's copy gets a new one.
//!
//! A host with threads can fork while one of them holds a lock of ours; in the copy nobody would ever let go of it. So nothing is
//! carried over: the copy begins with the default, and what it was forked with stays where it is, untouched.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use spawnfd_sys::fork_generation;

#[derive(Debug, Default)]
pub(crate) struct PerProcess<T> {
    /// Whose this is: a generation of [`fork_generation`], or 0 before the first use.
    generation: AtomicU64,
    value: Mutex<T>,
    /// That of a process forked from it.
    copy: OnceLock<Box<PerProcess<T>>>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new(value: T) -> PerProcess<T> {
        PerProcess { generation: AtomicU64::new(0), value: Mutex::new(value), copy: OnceLock::new() }
    }

    /// Locks this process's.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        // Without a page for the mark a copy cannot be told from its original.
        let generation = fork_generation().unwrap_or(1);
        let mut state = self;
        loop {
            match state.generation.compare_exchange(0, generation, Ordering::Relaxed, Ordering::Relaxed) {
                Err(theirs) if theirs != generation => state = state.copy.get_or_init(Box::default),
                _ => return state.value.lock().unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}
