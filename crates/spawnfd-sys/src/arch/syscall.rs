// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system call instruction. spawnfd-guard has this file too, by a symbolic link: its helper is compiled without other crates.
//!
//! x86_64: psABI section A.2.1, "Calling Conventions", of the Linux kernel.

use core::arch::asm;

/// Enters the kernel. Returns the raw result: a negative errno, or a value.
///
/// # Safety
/// The arguments must be what system call `number` asks for: pointers valid for what it reads and writes.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn syscall(number: u32, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel preserves all registers but rax, rcx and r11; memory is declared clobbered by
    // the absence of `nomem`; the caller vouches for the arguments.
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
