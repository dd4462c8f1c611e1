// SPDX-License-Identifier: MIT OR Apache-2.0
//! A pool of stacks for children. Taking and returning a stack needs no lock, so both work in a signal handler and in a
//! child of vfork.

use core::sync::atomic::{AtomicUsize, Ordering};

use spawnfd_sys::{Errno, Stack};

/// The addresses of unused stacks. 0 is an empty entry.
static UNUSED: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// Takes an unused stack, or maps a new one.
///
/// # Errors
/// ENOMEM: no memory or too many mappings.
pub fn take() -> Result<Stack, Errno> {
    for entry in &UNUSED {
        if entry.load(Ordering::Relaxed) != 0 {
            let address = entry.swap(0, Ordering::Acquire);
            if address != 0 {
                // SAFETY: `put` stored the address, and the swap removed it.
                return Ok(unsafe { Stack::from_address(address) });
            }
        }
    }
    Stack::new()
}

/// Keeps a stack for the next call, or unmaps it.
pub fn put(stack: Stack) {
    let address = stack.into_address();
    for entry in &UNUSED {
        if entry.compare_exchange(0, address, Ordering::Release, Ordering::Relaxed).is_ok() {
            return;
        }
    }
    // SAFETY: the address comes from `into_address`, and no entry has it.
    drop(unsafe { Stack::from_address(address) });
}
