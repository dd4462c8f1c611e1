// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system call instruction. spawnfd-guard uses this file by a symbolic link, because its helper is compiled
//! without other crates.
//!
//! x86_64: psABI section A.2.1, "Calling Conventions", of the Linux kernel.

use core::arch::asm;

/// Makes a system call. Returns the raw result: a negative errno, or a value.
///
/// # Safety
/// The arguments must be valid for system call `number`: each pointer must be valid for what the call reads and
/// writes.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn syscall(number: u32, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel preserves all registers except rax, rcx and r11. Without `nomem` the compiler assumes that
    // the call changes memory. The caller guarantees the arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    result
}
