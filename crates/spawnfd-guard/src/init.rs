// SPDX-License-Identifier: MIT OR Apache-2.0
//! The first process of a tree's pid namespace: it sleeps, and when it exits the kernel kills the namespace.

use crate::sys;

/// The interval at which the first process of a released namespace checks for other processes.
const LOOK_MS: u64 = 500;

/// Returns when the process behind `owner` has died. Once `let_go` is readable, returns when the caller is alone in
/// its namespace.
pub fn watch(owner: i32, let_go: i32) {
    loop {
        match sys::wait_for_either([owner, let_go]) {
            [_, true] => break,
            [true, _] => return,
            _ => {}
        }
    }
    sys::close(owner);
    while !sys::is_alone() {
        sys::sleep(LOOK_MS);
    }
}
