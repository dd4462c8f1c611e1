// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process without standard streams: what is opened in it meanwhile must not come to stand in their place.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, fstat, open};

use crate::arguments::borrow;

/// Something harmless at those of the numbers 0, 1 and 2 that were not open, as long as it lives: else what the core opens and
/// keeps would take them, and be overwritten when the application connects its streams again.
pub struct Plugs {
    /// The plugs, with their device and inode.
    plugs: Vec<(OwnedFd, (u64, u64))>,
    turn: Option<Turn>,
}

/// One thread at a time has plugs: another would take them for open streams. Nobody waits for it: in a fork's copy it may belong
/// to a thread that is not there.
struct Turn(u64);

/// Odd while somebody has the turn; each one leaves another number behind.
static TURN: AtomicU64 = AtomicU64::new(0);

impl Turn {
    fn take(turn: u64) -> Option<Turn> {
        TURN.compare_exchange(turn, turn + 1, Ordering::SeqCst, Ordering::SeqCst).ok().map(Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURN.store(self.0 + 2, Ordering::SeqCst);
    }
}

pub fn is_open(fd: i32) -> bool {
    rustix::io::fcntl_getfd(borrow(fd)).is_ok()
}

impl Plugs {
    /// Fills the gaps, mostly none. `None` if another thread is at it, or nothing can be opened.
    pub fn fill() -> Option<Plugs> {
        let turn = TURN.load(Ordering::SeqCst);
        if turn % 2 == 1 {
            return None;
        }
        if (0..3).all(is_open) {
            // Unless it was somebody's plugs that were open.
            let same = TURN.load(Ordering::SeqCst) == turn;
            return same.then(|| Plugs { plugs: Vec::new(), turn: None });
        }
        let turn = Turn::take(turn)?;
        let mut plugs = Vec::new();
        loop {
            let plug = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
            if plug.as_raw_fd() > 2 {
                return Some(Plugs { plugs, turn: Some(turn) });
            }
            let identity = identity(&plug)?;
            plugs.push((plug, identity));
        }
    }
}

impl Drop for Plugs {
    fn drop(&mut self) {
        for (plug, known) in self.plugs.drain(..) {
            // The application may have connected a stream meanwhile: then there is no plug any more.
            if identity(&plug) != Some(known) {
                std::mem::forget(plug);
            }
        }
        drop(self.turn.take());
    }
}

fn identity(file: impl AsFd) -> Option<(u64, u64)> {
    fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}
