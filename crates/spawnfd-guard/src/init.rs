// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the first process of a tree's pid namespace does: it sleeps, and the namespace ends with it.

use crate::sys;

/// How often one that was let go of looks whether there is anybody left.
const LOOK_MS: u64 = 500;

/// Comes back when the process behind `owner` has died; or, once `let_go` can be read, when the caller is alone in its namespace.
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
