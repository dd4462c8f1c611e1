// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data that a plan borrows or shares.

use alloc::sync::Arc;
use core::fmt;
use core::ops::Deref;

/// Data of a plan, borrowed or shared. A caller that may not allocate lets the plan borrow
/// everything.
pub enum Data<'a, T: ?Sized> {
    /// The plan borrows the caller's data.
    Borrowed(&'a T),
    /// The plan shares the data with the command, and with other plans of that command.
    Shared(Arc<T>),
}

impl<T: ?Sized> Clone for Data<'_, T> {
    fn clone(&self) -> Self {
        match self {
            Data::Borrowed(data) => Data::Borrowed(data),
            Data::Shared(data) => Data::Shared(data.clone()),
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Data<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized> Deref for Data<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self {
            Data::Borrowed(data) => data,
            Data::Shared(data) => data,
        }
    }
}
