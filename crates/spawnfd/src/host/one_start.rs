// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the calling thread's state once for each start of a program.
//!
//! A start needs the thread's authority in several places. Between them the thread runs no code of the application, so
//! its authority stays the same. Inside a scope of this module, the modules that read the authority remember their answer
//! until the end of the scope.

use std::cell::{Cell, RefCell};
use std::thread::LocalKey;

thread_local! {
    /// The number of the calling thread's scope, and whether a scope is open.
    static SCOPE: Cell<(u64, bool)> = const { Cell::new((0, false)) };
}

/// The scope of one start, until it is dropped. A scope inside another scope belongs to the same start.
#[derive(Debug)]
pub(crate) struct OneStart {
    is_outermost: bool,
}

impl OneStart {
    /// Opens a scope. Until its end, the calling thread runs no code of the application, and does not wait.
    pub(crate) fn begin() -> OneStart {
        let (number, is_open) = SCOPE.get();
        SCOPE.set((number + u64::from(!is_open), true));
        OneStart { is_outermost: !is_open }
    }

    /// Forgets what the calling thread has read, after a wait in a scope.
    pub(crate) fn forget() {
        let (number, is_open) = SCOPE.get();
        SCOPE.set((number + 1, is_open));
    }
}

impl Drop for OneStart {
    fn drop(&mut self) {
        if self.is_outermost {
            SCOPE.set((SCOPE.get().0, false));
        }
    }
}

/// A value of the calling thread, and the number of the scope in which the thread has read it.
pub(crate) type Remembered<T> = RefCell<Option<(u64, T)>>;

/// Remembers a value until the end of the scope. The thread keeps the value until it remembers another one, so a value that
/// owns a process or a descriptor must be a weak reference.
pub(crate) fn remember<T>(remembered: &'static LocalKey<Remembered<T>>, value: T) {
    let (number, is_open) = SCOPE.get();
    if is_open {
        // A thread that is exiting has no thread-local storage.
        let _ = remembered.try_with(|remembered| remembered.replace(Some((number, value))));
    }
}

/// The value that the calling thread has read in this scope.
pub(crate) fn known<T: Clone>(remembered: &'static LocalKey<Remembered<T>>) -> Option<T> {
    let (number, is_open) = SCOPE.get();
    let known = |remembered: &Remembered<T>| {
        remembered.borrow().as_ref().filter(|(of, _)| is_open && *of == number).map(|(_, value)| value.clone())
    };
    remembered.try_with(known).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static REMEMBERED: Remembered<u32> = const { RefCell::new(None) };
    }

    #[test]
    fn a_value_is_read_once_in_a_scope() {
        let reads = Cell::new(0);
        let read = || {
            known(&REMEMBERED).unwrap_or_else(|| {
                reads.set(reads.get() + 1);
                remember(&REMEMBERED, reads.get());
                reads.get()
            })
        };
        assert_eq!([read(), read()], [1, 2], "without a scope");
        {
            let _scope = OneStart::begin();
            assert_eq!(read(), 3);
            drop(OneStart::begin());
            assert_eq!([read(), read()], [3, 3]);
        }
        assert_eq!(read(), 4, "after the scope");
        let _scope = OneStart::begin();
        assert_eq!([read(), read()], [5, 5], "in another scope");
        OneStart::forget();
        assert_eq!([read(), read()], [6, 6], "after a wait");
    }
}
