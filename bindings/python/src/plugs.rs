// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps descriptors that the core opens from taking the numbers of closed standard streams.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, fstat, open};

use crate::arguments::borrow;

/// Occupies those of the numbers 0, 1 and 2 that were closed with placeholder descriptors, until it is dropped.
///
/// Otherwise a descriptor that the core keeps could get one of these numbers. The application would overwrite it when
/// it reopens its streams.
pub struct Plugs {
    /// The placeholders, with their device and inode.
    plugs: Vec<(OwnedFd, (u64, u64))>,
    turn: Option<Turn>,
}

/// The right to open placeholders, which one thread has at a time: another thread would take them for open streams.
///
/// No thread waits for it: in a forked copy it may belong to a thread that does not exist there.
struct Turn(u64);

/// A sequence count: odd while a thread has the right, and larger after each use.
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
    /// Opens placeholders for the closed numbers, mostly none. `None` if another thread has placeholders, or an open
    /// fails.
    pub fn fill() -> Option<Plugs> {
        let turn = TURN.load(Ordering::SeqCst);
        if turn % 2 == 1 {
            return None;
        }
        if (0..3).all(is_open) {
            // If the count has changed, the open numbers may have been another thread's placeholders.
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
            // If the application has opened a stream at this number meanwhile, leave that open.
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
