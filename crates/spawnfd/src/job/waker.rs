// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one side calls so that the other looks again.

use std::fmt;
use std::sync::Arc;

/// A callback without arguments, called from the other side's thread with nothing locked. It must not block.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// Wraps a function.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    /// Calls it.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}
