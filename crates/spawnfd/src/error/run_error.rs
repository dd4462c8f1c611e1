// SPDX-License-Identifier: MIT OR Apache-2.0
//! The error of a run, as far as this module knows it.
//!
//! The module `job` uses this module and defines the error of a run. A trait keeps this module independent of `job`.

use std::any::Any;
use std::fmt;
use std::ptr;
use std::sync::Arc;

/// The error of a run that was not ok.
pub(crate) trait RunError: Any + fmt::Display + Send + Sync {
    /// The sentence for the user.
    fn message(&self) -> String;

    /// Why the run stopped, and how the program ended.
    fn detail(&self) -> String;
}

/// A [`RunError`] that an error shares with its clones.
#[derive(Clone)]
pub(super) struct SharedRunError(Arc<dyn RunError>);

impl SharedRunError {
    pub(super) fn new(run: impl RunError) -> SharedRunError {
        SharedRunError(Arc::new(run))
    }

    pub(super) fn get(&self) -> &dyn RunError {
        &*self.0
    }
}

impl PartialEq for SharedRunError {
    /// Whether both are clones of one error.
    fn eq(&self, other: &SharedRunError) -> bool {
        ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

impl Eq for SharedRunError {}
