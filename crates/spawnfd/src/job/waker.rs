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
        Waker(Arc::new(wake))
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

/// Calls somebody's code, whose panics are its own; the hook has told of them.
pub(super) fn contained(call: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(call));
}
