// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one side calls so that the other looks again.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A callback without arguments, called from the other side's thread with nothing locked. It must not block. A panic of its own goes no
/// further: that thread has others to serve.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// Wraps a function.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        let wake = Foreign::new(wake);
        Waker(Arc::new(move || {
            if let Some(wake) = wake.get() {
                wake();
            }
        }))
    }

    /// Calls it.
    pub fn wake(&self) {
        contained(|| (self.0)());
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// Calls somebody's code, whose panics are its own; the hook has told of them. `None`: there was one.
pub(crate) fn contained<T>(call: impl FnOnce() -> T) -> Option<T> {
    let payload = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(value) => return Some(value),
        Err(payload) => payload,
    };
    // That is somebody's, too. What dropping it panics with is left where it is.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
    None
}

/// Somebody's value, of which a panic while it is dropped is its own as well.
pub(super) struct Foreign<T>(Option<T>);

impl<T> Foreign<T> {
    pub(super) fn new(value: T) -> Foreign<T> {
        Foreign(Some(value))
    }

    /// It is there until it is dropped.
    pub(super) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T> Drop for Foreign<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        contained(|| drop(value));
    }
}
