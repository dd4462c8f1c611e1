// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that several values share.

use std::fmt;
use std::sync::Arc;

use crate::callback::ForeignValue;

/// Bytes that are shared and never copied: for example a vector, an [`Arc`], or an object of a language binding.
///
/// # Examples
/// ```
/// use spawnfd::job::SharedBytes;
/// use spawnfd::{Command, Run};
/// let input = SharedBytes::from("word\n");
/// let run = Run::new().input(input.clone()); // shares the bytes
/// for _ in 0..2 {
///     assert_eq!(Command::new("cat").run_with(&run)?.stdout, input.as_bytes());
/// }
/// # Ok::<(), spawnfd::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedBytes(Arc<dyn AsRef<[u8]> + Send + Sync>);

impl SharedBytes {
    /// Shares the bytes of an object. `as_ref` must always return the same bytes.
    pub fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> SharedBytes {
        SharedBytes(Arc::new(ForeignValue::new(bytes)))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for ForeignValue<T> {
    fn as_ref(&self) -> &[u8] {
        self.get().map_or(&[], T::as_ref)
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.as_bytes().len())
    }
}

macro_rules! impl_from {
    ($($type:ty),*) => { $(impl From<$type> for SharedBytes {
        fn from(bytes: $type) -> SharedBytes {
            SharedBytes::new(bytes)
        }
    })* };
}
impl_from!(Vec<u8>, String, Arc<[u8]>, &'static [u8], &'static str);
