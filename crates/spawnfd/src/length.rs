// SPDX-License-Identifier: MIT OR Apache-2.0
//! How long a file of the library's own may be.

use rustix::process::{Resource, getrlimit};

/// Whether the calling process may have a file of that length. Where it may not, the kernel does not only refuse: it sends SIGXFSZ, which
/// ends a host that has not provided for it.
///
/// # Errors
/// EFBIG, by RLIMIT_FSIZE. A file in memory counts.
pub(crate) fn is_allowed(length: u64) -> rustix::io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if most < length => Err(rustix::io::Errno::FBIG),
        _ => Ok(()),
    }
}
