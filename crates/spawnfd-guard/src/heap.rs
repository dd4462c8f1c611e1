// SPDX-License-Identifier: MIT OR Apache-2.0
//! The helper's allocator, and the memory functions to which compilers insert calls (memcpy and others).

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;

use crate::sys;

/// The lists of free blocks, one for each size. Sizes are powers of two from 16 bytes on. The allocator reuses freed
/// blocks and never unmaps them.
struct Heap {
    free: UnsafeCell<[*mut u8; CLASSES]>,
}

const SMALLEST: usize = 16;
const CLASSES: usize = 32;
const CHUNK: usize = 64 << 10;

// SAFETY: the helper has one thread.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap { free: UnsafeCell::new([null_mut(); CLASSES]) };

/// The index of the free list for a block, and the block's size.
fn class(layout: Layout) -> (usize, usize) {
    let size = layout.size().max(layout.align()).max(SMALLEST).next_power_of_two();
    ((size / SMALLEST).trailing_zeros() as usize, size)
}

// SAFETY: blocks come from fresh mappings or from `dealloc`, so they have no other user. They have at least the
// requested size, and are aligned to their own size up to a page, because mappings and chunks begin at a page. The
// helper never requests more alignment.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (class, size) = class(layout);
        // SAFETY: the helper has one thread, and no reference outlives this function.
        let free = unsafe { &mut *self.free.get() };
        let Some(first) = free.get_mut(class) else { return null_mut() };
        if !first.is_null() {
            let block = *first;
            // SAFETY: a free block begins with a pointer to the next one of its class.
            *first = unsafe { block.cast::<*mut u8>().read() };
            return block;
        }
        let chunk = sys::map_pages(size.max(CHUNK));
        if chunk.is_null() || size >= CHUNK {
            return chunk;
        }
        // The caller gets the first block. The loop adds the other blocks to the free list.
        for at in (size..CHUNK).step_by(size) {
            let block = chunk.wrapping_add(at);
            // SAFETY: the block is within the chunk just mapped, and 16-byte aligned.
            unsafe { block.cast::<*mut u8>().write(*first) };
            *first = block;
        }
        chunk
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let (class, _) = class(layout);
        // SAFETY: the helper has one thread, and no reference outlives this function.
        let free = unsafe { &mut *self.free.get() };
        if let Some(first) = free.get_mut(class) {
            // SAFETY: the caller owns the block, which has at least 16 bytes and is aligned.
            unsafe { block.cast::<*mut u8>().write(*first) };
            *first = block;
        }
    }
}

/// The function memcpy(3) of libc.
///
/// # Safety
/// The requirements of memcpy(3) in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    for at in 0..length {
        // SAFETY: the caller keeps this function's contract. The accesses are volatile, because the compiler would
        // otherwise turn the loop into a call of memcpy.
        unsafe { to.wrapping_add(at).write_volatile(from.wrapping_add(at).read_volatile()) };
    }
    to
}

/// The function memmove(3) of libc.
///
/// # Safety
/// The requirements of memmove(3) in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, length: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= length {
        // SAFETY: copying upward never reads a byte that it has written, because `to` is not within
        // the source.
        return unsafe { memcpy(to, from, length) };
    }
    for at in (0..length).rev() {
        // SAFETY: the caller keeps this function's contract. Copying downward never reads a byte that it has written.
        unsafe { to.wrapping_add(at).write_volatile(from.wrapping_add(at).read_volatile()) };
    }
    to
}

/// The function memset(3) of libc.
///
/// # Safety
/// The requirements of memset(3) in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, byte: i32, length: usize) -> *mut u8 {
    for at in 0..length {
        // SAFETY: the caller guarantees the arguments, by this function's contract.
        unsafe { to.wrapping_add(at).write_volatile(byte as u8) };
    }
    to
}

/// The function memcmp(3) of libc.
///
/// # Safety
/// The requirements of memcmp(3) in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
    for at in 0..length {
        // SAFETY: the caller keeps this function's contract. The reads are volatile, because the compiler would
        // otherwise turn the loop into a call of memcmp.
        let (a, b) = unsafe { (one.wrapping_add(at).read_volatile(), other.wrapping_add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// The function bcmp(3) of libc. Unlike memcmp(3), its result only tells whether the bytes differ.
///
/// # Safety
/// The requirements of bcmp(3) in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
    // SAFETY: the caller guarantees the arguments, by this function's contract.
    unsafe { memcmp(one, other, length) }
}

/// The function strlen(3) of libc.
///
/// # Safety
/// The requirements of strlen(3) in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strlen(string: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the loop ends at the string's NUL byte. The reads are volatile, because the compiler would otherwise turn
    // the loop into a call of strlen.
    while unsafe { string.wrapping_add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}
