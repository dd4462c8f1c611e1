// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this kernel, and the filter over it, lets us do: asked once, remembered.

use std::sync::atomic::{AtomicU8, Ordering};

use spawnfd_sys::{RawFd, call};

/// A yes-or-no that is found out at most a few times and then known. A filter laid over the process since may take away what was there.
#[derive(Debug)]
pub(crate) struct Feature {
    known: AtomicU8,
    ask: fn() -> bool,
}

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// The builder of kernels with our patches (`kernel/patches`), which are for one version: its numbers may be other calls' in any later one.
pub(crate) static KERNEL: Feature = Feature::new(|| {
    let is_patched_version = call::release().is_ok_and(|release| release.starts_with(b"6.12."));
    is_patched_version && spawnfd_sys::Builder::open().is_ok()
});

/// clone3 (Linux 5.3; ENOSYS under Docker's default profile).
pub(crate) static CLONE3: Feature = Feature::new(spawnfd_sys::has_clone3);

/// close_range (Linux 5.9), without which a child cannot leave the caller's table at a price that does not grow.
pub(crate) static CLOSE_RANGE: Feature = Feature::new(|| call::close_range(u32::MAX, u32::MAX, 0).is_ok());

/// pidfd_getfd by a child on its caller (Linux 6.9 for pidfds of threads; refused under Docker's default profile, and where Yama
/// or the like keeps a process from tracing its parent). Only a child can tell, so it counts as there until one fails.
pub(crate) static FETCH: Feature = Feature::new(|| true);

/// Of nothing, and of descriptors.
static PASSING: [Feature; 2] = [Feature::new(|| false), Feature::new(|| false)];

/// That a child comes to these descriptors by way of a socket: not known before one has tried. Only then may one try that nobody waits
/// for: it could not be started again. One with nothing to receive shows no more than that it can leave the table.
pub(crate) fn passing(sources: &[RawFd]) -> &'static Feature {
    &PASSING[usize::from(!sources.is_empty())]
}

impl Feature {
    const fn new(ask: fn() -> bool) -> Feature {
        Feature { known: AtomicU8::new(UNKNOWN), ask }
    }

    /// Whether it is there: asked, the first time.
    pub(crate) fn works(&self) -> bool {
        self.known().unwrap_or_else(|| {
            let answer = (self.ask)();
            self.learn(answer);
            answer
        })
    }

    /// Whether it is there, if that is known.
    pub(crate) fn known(&self) -> Option<bool> {
        match self.known.load(Ordering::Relaxed) {
            UNKNOWN => None,
            known => Some(known == YES),
        }
    }

    /// It has been tried.
    pub(crate) fn learn(&self, works: bool) {
        self.known.store(if works { YES } else { NO }, Ordering::Relaxed);
    }
}
