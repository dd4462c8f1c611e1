// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this kernel, and the filter over it, lets us do: asked once, remembered.

use std::sync::atomic::{AtomicU8, Ordering};

/// A yes-or-no that is found out at most a few times and then known.
struct Known(AtomicU8);

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

impl Known {
    const fn new() -> Known {
        Known(AtomicU8::new(UNKNOWN))
    }

    fn get(&self, ask: impl FnOnce() -> bool) -> bool {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => {
                let answer = ask();
                self.0.store(if answer { YES } else { NO }, Ordering::Relaxed);
                answer
            }
            known => known == YES,
        }
    }
}

static KERNEL: Known = Known::new();
static CLONE3: Known = Known::new();
static CLOSE_RANGE: Known = Known::new();
static FETCH: Known = Known::new();
static PASSING: Known = Known::new();

/// The builder of kernels with our patches (`kernel/patches`), which are for one version: its numbers may be other calls' in any later one.
pub(crate) fn kernel() -> bool {
    let is_patched_version = || rustix::system::uname().release().to_bytes().starts_with(b"6.12.");
    KERNEL.get(|| is_patched_version() && spawnfd_sys::Builder::open().is_ok())
}

/// A filter laid over the process since has taken it away.
pub(crate) fn forget_kernel() {
    KERNEL.0.store(NO, Ordering::Relaxed);
}

/// clone3 (Linux 5.3; ENOSYS under Docker's default profile).
pub(crate) fn clone3() -> bool {
    CLONE3.get(spawnfd_sys::has_clone3)
}

/// A filter laid over the process since has taken clone3 away.
pub(crate) fn forget_clone3() {
    CLONE3.0.store(NO, Ordering::Relaxed);
}

/// close_range (Linux 5.9), without which a child cannot leave the caller's table at a price that does not grow.
pub(crate) fn close_range() -> bool {
    CLOSE_RANGE.get(|| spawnfd_sys::call::close_range(u32::MAX, u32::MAX, 0).is_ok())
}

/// A filter laid over the process since has taken close_range away.
pub(crate) fn forget_close_range() {
    CLOSE_RANGE.0.store(NO, Ordering::Relaxed);
}

/// Whether a child has come to its descriptors by way of a socket; `None` before one has tried. Only then may one try that
/// nobody waits for: it could not be started again.
pub(crate) fn passing() -> Option<bool> {
    match PASSING.0.load(Ordering::Relaxed) {
        UNKNOWN => None,
        known => Some(known == YES),
    }
}

/// One has, or was refused.
pub(crate) fn learn_passing(works: bool) {
    PASSING.0.store(if works { YES } else { NO }, Ordering::Relaxed);
}

/// pidfd_getfd by a child on its caller (Linux 6.9 for pidfds of threads; refused under Docker's default profile, and where Yama
/// or the like keeps a process from tracing its parent). Only a child can tell, so it counts as there until one fails.
pub(crate) fn fetch() -> bool {
    FETCH.get(|| true)
}

/// A child was not allowed to fetch descriptors.
pub(crate) fn forget_fetch() {
    FETCH.0.store(NO, Ordering::Relaxed);
}
