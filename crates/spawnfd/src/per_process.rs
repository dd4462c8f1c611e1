// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locked state of which a fork's copy gets its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use spawnfd_sys::fork_generation;

/// A lock that a fork of the host cannot leave locked for ever.
///
/// A host with threads can fork while one of them holds a lock of ours; in the copy nobody would ever let go of it. So nothing is
/// carried over: the copy begins with a value of its own, and what it was forked with stays where it is, untouched.
#[derive(Debug)]
pub struct PerProcess<T> {
    /// Whose this is: a generation of [`fork_generation`], or 0 before the first use.
    generation: AtomicU64,
    value: Mutex<T>,
    in_copy: fn() -> T,
    /// That of a process forked from it.
    copy: OnceLock<Box<PerProcess<T>>>,
}

impl<T> PerProcess<T> {
    /// State of whichever process locks it first; a copy begins with the default.
    pub const fn new(value: T) -> PerProcess<T>
    where
        T: Default,
    {
        PerProcess {
            generation: AtomicU64::new(0),
            value: Mutex::new(value),
            in_copy: T::default,
            copy: OnceLock::new(),
        }
    }

    /// State of the calling process; a copy begins with what `in_copy` says.
    pub fn here(value: T, in_copy: fn() -> T) -> PerProcess<T> {
        let generation = current_generation().into();
        PerProcess { generation, value: Mutex::new(value), in_copy, copy: OnceLock::new() }
    }

    /// Locks this process's.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let generation = current_generation();
        let mut state = self;
        loop {
            match state.generation.compare_exchange(0, generation, Ordering::Relaxed, Ordering::Relaxed) {
                Err(theirs) if theirs != generation => {
                    state = state.copy.get_or_init(|| Box::new(PerProcess::here((self.in_copy)(), self.in_copy)));
                }
                _ => return state.value.lock().unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new(T::default())
    }
}

fn current_generation() -> u64 {
    // Without a page for the mark a copy cannot be told from its original.
    fork_generation().unwrap_or(1)
}
