// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locked state that a forked process does not share with its parent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use spawnfd_sys::fork_generation;

/// A lock that never stays locked in a forked process.
///
/// A host can fork while another of its threads holds one of the library's locks. In the forked process, no thread
/// would ever release the lock. So the forked process starts with a new value and a new lock. It does not access the
/// old value, unless [`for_reuse`](PerProcess::for_reuse) created the value.
#[derive(Debug)]
pub struct PerProcess<T> {
    /// The process that owns this value: a generation of [`fork_generation`], or 0 before the first use.
    generation: AtomicU64,
    value: Mutex<T>,
    in_fork: fn() -> T,
    /// The function that a forked process applies to the old value if it was not locked at the fork.
    on_fork: fn(&mut T),
    /// The state of a process forked from the owner.
    fork_state: OnceLock<Box<PerProcess<T>>>,
}

impl<T> PerProcess<T> {
    /// Creates state that belongs to the first process that locks it. A forked process starts with
    /// the default.
    pub const fn new(value: T) -> PerProcess<T>
    where
        T: Default,
    {
        PerProcess {
            generation: AtomicU64::new(0),
            value: Mutex::new(value),
            in_fork: T::default,
            on_fork: |_| (),
            fork_state: OnceLock::new(),
        }
    }

    /// Like `new`, for resources that the library keeps open for reuse. A forked process drops its copies of these
    /// resources, because it would not use them.
    pub const fn for_reuse(value: T) -> PerProcess<T>
    where
        T: Default,
    {
        let mut state = PerProcess::new(value);
        state.on_fork = |old| *old = T::default();
        state
    }

    /// Creates state that belongs to the calling process. A forked process starts with the result
    /// of `in_fork`.
    pub fn for_this_process(value: T, in_fork: fn() -> T) -> PerProcess<T> {
        let generation = current_generation().into();
        PerProcess { generation, value: Mutex::new(value), in_fork, on_fork: |_| (), fork_state: OnceLock::new() }
    }

    /// Whether the calling process owns this state, and is not a forked copy.
    pub fn belongs_to_this_process(&self) -> bool {
        self.generation.load(Ordering::Relaxed) == current_generation()
    }

    /// Locks this process's value.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.own().lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks this process's value, unless it is locked.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.own().try_lock() {
            Ok(value) => Some(value),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// This process's lock.
    fn own(&self) -> &Mutex<T> {
        let generation = current_generation();
        let mut state = self;
        loop {
            match state.generation.compare_exchange(0, generation, Ordering::Relaxed, Ordering::Relaxed) {
                Err(owner) if owner != generation => {
                    if state.fork_state.get().is_none()
                        && let Ok(mut old) = state.value.try_lock()
                    {
                        (self.on_fork)(&mut old);
                    }
                    let own = || PerProcess {
                        on_fork: self.on_fork,
                        ..PerProcess::for_this_process((self.in_fork)(), self.in_fork)
                    };
                    state = state.fork_state.get_or_init(|| Box::new(own()));
                }
                _ => return &state.value,
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
    // fork_generation needs a page that the kernel clears in a forked process. If that page cannot be mapped, the
    // library cannot recognize a forked process.
    fork_generation().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_process_drops_values_for_reuse_only() {
        let owner = current_generation() + 1000;
        for reuse in [false, true] {
            let state = if reuse { PerProcess::for_reuse(vec![1]) } else { PerProcess::new(vec![1]) };
            state.generation.store(owner, Ordering::Relaxed);
            state.lock().push(2);
            assert_eq!((&*state.lock(), state.value.lock().unwrap().len()), (&vec![2], usize::from(!reuse)));
        }
    }

    #[test]
    fn a_forked_process_does_not_touch_a_locked_value() {
        let state = PerProcess::for_reuse(vec![1]);
        state.generation.store(current_generation() + 1000, Ordering::Relaxed);
        let locked = state.value.lock().unwrap();
        state.lock().push(2);
        assert_eq!((&*locked, &*state.lock()), (&vec![1], &vec![2]));
    }
}
