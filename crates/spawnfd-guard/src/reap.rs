// SPDX-License-Identifier: MIT OR Apache-2.0
//! The helper of one tree in tier `subreaper`. It is the parent of the tree's program, and the kernel makes every orphan
//! of the tree its child. It reaps them, and kills the tree when the owner has died.

use crate::descendants::{EndOfProgram, kill_own_descendants};
use crate::sys;

/// The time after which the helper stops trying to kill the tree of a dead owner.
const KILL_TIMEOUT_MS: u64 = 10_000;

/// Reaps children until none is left. `owner` is a pidfd of the owner. `socket` leads to the owner: the helper reads the
/// program's pid from it, and writes the [`EndOfProgram`] to it. A further message releases the tree, which then outlives
/// its owner. Returns the helper's exit status: 0 if no process is left.
///
/// The helper does not reap before it has the pid. So the pid belongs to the program until the owner has opened a pidfd.
pub fn reap_all(socket: i32, owner: i32) -> i32 {
    let mut owner = owner;
    let Ok(children) = sys::pending_signal(sys::SIGCHLD) else { return 1 };
    let mut message = [0; 4];
    let program = match sys::wait_for_any([socket, owner], None) {
        [true, _] if sys::read(socket, &mut message) == Ok(message.len()) => i32::from_ne_bytes(message),
        _ => 0,
    };
    // A program that ends before exec sends no SIGCHLD.
    let mut program_end = sys::pidfd_open(program).ok();
    let mut end = None;
    loop {
        let has_children = loop {
            match sys::wait_for_child(false) {
                Ok(Some((pid, status, [cpu_micros, max_rss_kib]))) if pid == program => {
                    end = Some(EndOfProgram { status, cpu_micros, max_rss_kib, has_left_others: true });
                }
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(sys::Errno::ECHILD) => break false,
                // A seccomp filter refuses the call.
                Err(_) => return 1,
            }
        };
        // All children that have ended are reaped. So the report can say whether another process is left.
        if let Some(end) = end.take() {
            program_end = None;
            let _ = sys::write(socket, &EndOfProgram { has_left_others: has_children, ..end }.pack());
        }
        if !has_children {
            return 0;
        }
        let program_end = program_end.as_ref().map_or(-1, sys::Fd::number);
        if let [true, ..] = sys::wait_for_any([owner, children.number(), program_end], None) {
            if sys::receive_now(socket, &mut message) != Ok(1) {
                kill_own_descendants(KILL_TIMEOUT_MS);
                return 0;
            }
            owner = -1;
        }
        let _ = sys::read(children.number(), &mut [0; 1024]);
    }
}
