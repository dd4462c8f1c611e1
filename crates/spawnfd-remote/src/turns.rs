// SPDX-License-Identifier: MIT OR Apache-2.0
//! A state that one thread at a time serves, also for the threads that come meanwhile.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A state that one thread at a time serves. A thread that comes meanwhile leaves its work to that thread, so it neither
/// waits nor, in a callback of the same work, deadlocks.
#[derive(Debug, Default)]
pub(crate) struct Turns<T> {
    state: Mutex<T>,
    /// There may be more work since the serving thread looked.
    has_more: AtomicBool,
}

impl<T> Turns<T> {
    pub(crate) fn new(state: T) -> Turns<T> {
        Turns { state: Mutex::new(state), has_more: AtomicBool::new(false) }
    }

    /// Changes the state; waits for a thread that serves it. A [`serve`](Turns::serve) in `change` does nothing.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `work` until nothing is left to do, unless another thread does that.
    pub(crate) fn serve(&self, mut work: impl FnMut(&mut T)) {
        self.has_more.store(true, Ordering::SeqCst);
        // Either this thread gets the lock, or the serving thread sees the flag after it has released the lock.
        fence(Ordering::SeqCst);
        while self.has_more.load(Ordering::SeqCst) {
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.has_more.store(false, Ordering::SeqCst);
            work(&mut state);
            drop(state);
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    #[test]
    fn work_that_arrives_during_a_turn_is_not_lost() {
        let (turns, waiting, done) = (Turns::new(()), AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |(): &mut ()| _ = done.fetch_add(waiting.swap(0, Ordering::SeqCst), Ordering::SeqCst);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50_000 {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        turns.serve(work);
                    }
                });
            }
        });
        assert_eq!((waiting.into_inner(), done.into_inner()), (0, 200_000));
    }

    #[test]
    fn work_within_work_is_done_afterwards() {
        let (turns, inner) = (Turns::new(0), AtomicBool::new(true));
        turns.serve(|count| {
            *count += 1;
            if inner.swap(false, Ordering::SeqCst) {
                turns.serve(|_| panic!("the first turn is not over"));
            }
        });
        assert_eq!(turns.change(|count| *count), 2);
    }

    #[test]
    fn a_panic_does_not_end_later_work() {
        let turns = Turns::new(0);
        let panics = || turns.serve(|_| panic!("a test"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        turns.serve(|count| *count += 1);
        assert_eq!(turns.change(|count| *count), 1);
    }
}
