// SPDX-License-Identifier: MIT OR Apache-2.0
//! A callback of the application, or one that wakes a task.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Context;

/// A callback without arguments. A thread of the library calls it without holding a lock, so it must not block. The
/// library catches the callback's panics, because its thread also serves other callers.
#[derive(Clone)]
pub(crate) struct Callback(Arc<dyn Fn() + Send + Sync>);

impl Callback {
    /// Wraps a function.
    pub(crate) fn new(function: impl Fn() + Send + Sync + 'static) -> Callback {
        let function = ForeignValue::new(function);
        Callback(Arc::new(move || {
            if let Some(function) = function.get() {
                function();
            }
        }))
    }

    /// Wakes the task of this context.
    pub(crate) fn waking(context: &Context<'_>) -> Callback {
        let task = context.waker().clone();
        Callback::new(move || task.wake_by_ref())
    }

    /// Calls the wrapped function.
    pub(crate) fn call(&self) {
        catch_panic(|| (self.0)());
    }
}

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Callback")
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
