// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports the kernel features with which this library starts programs in the calling thread.
//! `spawnfd doctor` uses it, and so can callers that want to know whether a feature is available.

use crate::host::features;

/// The features that the library uses in this process.
///
/// # Examples
/// ```
/// let support = spawnfd::support::support();
/// if !support.pidfd_getfd {
///     println!("children get their descriptors through a socket, or with a copy of the table");
/// }
/// ```
#[must_use = "the features are the only effect of the call"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Support {
    /// True if a patched kernel starts programs in one system call, where it supports the request.
    /// Otherwise clone and exec start them.
    pub kernel: bool,
    /// True if clone3 creates children. Otherwise clone creates them.
    pub clone3: bool,
    /// True if children leave the caller's descriptor table by close_range. Otherwise they list
    /// their descriptors and mark them close-on-exec.
    pub close_range: bool,
    /// True if children copy their descriptors from the caller by pidfd_getfd. Otherwise they
    /// receive them through a socket, or get a copy of the caller's table. Only a child can find
    /// out that the kernel refuses pidfd_getfd. Until a child with descriptors has tried, this
    /// value is a guess.
    pub pidfd_getfd: bool,
}

/// The features that the library uses in the calling thread. The values come from a probe, or from a later spawn for
/// which a seccomp filter refused a call.
///
/// # Examples
/// ```
/// println!("{:?}", spawnfd::support::support());
/// ```
pub fn support() -> Support {
    let here = features::of_calling_thread();
    Support {
        kernel: here.has_builder(),
        clone3: here.has_clone3(),
        close_range: here.has_close_range(),
        pidfd_getfd: here.has_close_range() && here.can_use_pidfd_getfd(),
    }
}
