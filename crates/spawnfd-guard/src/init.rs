// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first process of a tree's pid namespace. It sleeps. When it exits, the kernel kills all other processes of the
//! namespace.

use crate::sys;

/// The interval at which the first process of a released namespace checks for other processes.
const CHECK_INTERVAL_MS: u64 = 500;

/// Waits until the process behind the pidfd `owner` has died. Once the eventfd `release` is readable, waits instead
/// until the caller is alone in its namespace.
pub fn watch(owner: i32, release: i32) {
    // A process outside the namespace may stop this one.
    sys::continue_at_parent_death();
    loop {
        match sys::wait_for_any([owner, release], None) {
            [_, true] => break,
            [true, _] => return,
            _ => {}
        }
    }
    sys::close(owner);
    while !sys::is_alone() {
        sys::sleep(CHECK_INTERVAL_MS);
    }
}
