// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locked state that a forked process does not share with its parent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use spawnfd_sys::fork_generation;

/// A lock that a fork of the host cannot leave locked forever.
///
/// A host can fork while another of its threads has one of the library's locks. In the forked process no thread
/// would ever release it. So the forked process starts with a new value. It leaves the old value untouched, unless
/// that is [for reuse](PerProcess::for_reuse).
#[derive(Debug)]
pub struct PerProcess<T> {
    /// The process that owns this value: a generation of [`fork_generation`], or 0 before the first use.
    generation: AtomicU64,
    value: Mutex<T>,
    in_copy: fn() -> T,
    /// The function that a forked process applies to the old value if it was not locked at the fork.
    leave: fn(&mut T),
    /// The value of a process forked from the owner.
    copy: OnceLock<Box<PerProcess<T>>>,
}

impl<T> PerProcess<T> {
    /// State that belongs to the first process that locks it. A forked process starts with the default.
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

    /// Like `new`, for resources that are kept open for reuse. A forked process drops them, because it would only
    /// keep them open.
    pub const fn for_reuse(value: T) -> PerProcess<T>
    where
        T: Default,
    {
        let mut state = PerProcess::new(value);
        state.leave = |left| *left = T::default();
        state
    }

    /// State that belongs to the calling process. A forked process starts with the result of `in_copy`.
    pub fn here(value: T, in_copy: fn() -> T) -> PerProcess<T> {
        let generation = current_generation().into();
        PerProcess { generation, value: Mutex::new(value), in_copy, leave: |_| (), copy: OnceLock::new() }
    }

    /// Whether the calling process owns this state, and is not a forked copy.
    pub fn is_here(&self) -> bool {
        self.generation.load(Ordering::Relaxed) == current_generation()
    }

    /// Locks this process's value.
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
    // Without the page that marks forks, a forked process cannot be recognized.
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
