// SPDX-License-Identifier: MIT OR Apache-2.0
//! A callback that wakes another thread or task.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A callback without arguments. A thread of the library calls it without holding a lock, so it must not block. The
/// library catches the callback's panics, because its thread also serves other callers.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// Wraps a function.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        let wake = ForeignValue::new(wake);
        Waker(Arc::new(move || {
            if let Some(wake) = wake.get() {
                wake();
            }
        }))
    }

    /// Calls the wrapped function.
    pub fn wake(&self) {
        catch_panic(|| (self.0)());
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// Calls the application's code and catches its panics. Rust's panic hook has already reported them. Returns `None`
/// if the code panicked.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    let payload = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => return Some(value),
        Err(payload) => payload,
    };
    // The drop of the panic's payload is application code too. If it panics, leak the new payload.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
    None
}

/// A value of the application. Its drop may panic; the library catches that panic.
pub(super) struct ForeignValue<T>(Option<T>);

impl<T> ForeignValue<T> {
    pub(super) fn new(value: T) -> ForeignValue<T> {
        ForeignValue(Some(value))
    }

    /// The value; `None` only while `ForeignValue` is being dropped.
    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T> Drop for ForeignValue<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        catch_panic(|| drop(value));
    }
}
