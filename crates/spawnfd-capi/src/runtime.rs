// SPDX-License-Identifier: MIT OR Apache-2.0
//! The definitions that a static library without std needs.

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

/// The modules of the other crates name an allocator. The functions of this library call malloc(3) themselves.
struct NoAllocator;

// SAFETY: the allocator has no memory, and returns NULL as the trait requires.
unsafe impl GlobalAlloc for NoAllocator {
    unsafe fn alloc(&self, _layout: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }

    unsafe fn dealloc(&self, _memory: *mut u8, _layout: Layout) {}
}

#[global_allocator]
static NONE: NoAllocator = NoAllocator;

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: abort(3) has no requirements.
    unsafe { libc::abort() }
}
