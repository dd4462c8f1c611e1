// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system call instruction. spawnfd-guard uses this file by a symbolic link, because its helper is compiled
//! without other crates.
//!
//! x86_64: psABI section A.2.1, "Calling Conventions", of the Linux kernel. aarch64: syscall(2).

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

/// Makes a system call. Returns the raw result: a negative errno, or a value.
///
/// # Safety
/// The arguments must be valid for system call `number`: each pointer must be valid for what the call reads and
/// writes.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) unsafe fn syscall(number: u32, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel preserves all registers except x0. Without `nomem` the compiler assumes that the call changes
    // memory. The caller guarantees the arguments.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack, preserves_flags),
        );
    }
    result
}
