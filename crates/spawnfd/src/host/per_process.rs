// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locked state of which a fork's copy gets its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use spawnfd_sys::fork_generation;

/// A lock that a fork of the host cannot leave locked for ever.
///
/// A host with threads can fork while one of them holds a lock of ours; in the copy nobody would ever let go of it. So nothing is
/// carried over: the copy begins with a value of its own, and what it was forked with stays where it is, untouched, but for what is
/// [kept for reuse](PerProcess::for_reuse).
#[derive(Debug)]
pub struct PerProcess<T> {
    /// Whose this is: a generation of [`fork_generation`], or 0 before the first use.
    generation: AtomicU64,
    value: Mutex<T>,
    in_copy: fn() -> T,
    /// What a copy does with what it was forked with, where nobody was at it then.
    leave: fn(&mut T),
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
            leave: |_| (),
            copy: OnceLock::new(),
        }
    }

    /// The same, of what is kept open to be used again: a copy drops it, as it would hold on to it for nothing.
    pub const fn for_reuse(value: T) -> PerProcess<T>
    where
        T: Default,
    {
        let mut state = PerProcess::new(value);
        state.leave = |left| *left = T::default();
        state
    }

    /// State of the calling process; a copy begins with what `in_copy` says.
    pub fn here(value: T, in_copy: fn() -> T) -> PerProcess<T> {
        let generation = current_generation().into();
        PerProcess { generation, value: Mutex::new(value), in_copy, leave: |_| (), copy: OnceLock::new() }
    }

    /// Whether the calling process is the one it was made for, and no copy.
    pub fn is_here(&self) -> bool {
        self.generation.load(Ordering::Relaxed) == current_generation()
    }

    /// Locks this process's.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let generation = current_generation();
        let mut state = self;
        loop {
            match state.generation.compare_exchange(0, generation, Ordering::Relaxed, Ordering::Relaxed) {
                Err(theirs) if theirs != generation => {
                    if state.copy.get().is_none()
                        && let Ok(mut left) = state.value.try_lock()
                    {
                        (self.leave)(&mut left);
                    }
                    let own = || PerProcess { leave: self.leave, ..PerProcess::here((self.in_copy)(), self.in_copy) };
                    state = state.copy.get_or_init(|| Box::new(own()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_drops_what_is_for_reuse() {
        let theirs = current_generation() + 1000;
        for reuse in [false, true] {
            let state = if reuse { PerProcess::for_reuse(vec![1]) } else { PerProcess::new(vec![1]) };
            state.generation.store(theirs, Ordering::Relaxed);
            state.lock().push(2);
            assert_eq!((&*state.lock(), state.value.lock().unwrap().len()), (&vec![2], usize::from(!reuse)));
        }
    }

    #[test]
    fn what_somebody_was_at_stays_untouched() {
        let state = PerProcess::for_reuse(vec![1]);
        state.generation.store(current_generation() + 1000, Ordering::Relaxed);
        let held = state.value.lock().unwrap();
        state.lock().push(2);
        assert_eq!((&*held, &*state.lock()), (&vec![1], &vec![2]));
    }
}
