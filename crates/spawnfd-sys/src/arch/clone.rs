// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clone system calls whose child starts on another stack.

use core::arch::asm;

/// The entry point of a child. It never returns: it execs or exits.
pub type Entry = unsafe extern "C" fn(*const ()) -> !;

/// Makes a clone system call whose child starts on another stack and calls `entry(data)`. Returns the raw result, in
/// the parent only.
///
/// # Safety
/// The requirements of `syscall`. The arguments must give the child a stack whose top is 16-byte
/// aligned, and with CLONE_VM a stack of its own. Calling `entry(data)` there must be sound.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn clone_call(number: u32, args: [usize; 5], entry: Entry, data: *const ()) -> isize {
    let result: isize;
    // SAFETY: r12 and r13 keep their values in the child, where the block never ends: `entry` does not return. In the
    // parent the block is an ordinary system call. The child zeroes its rbp, so that a debugger finds the end of the
    // stack.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r12") data,
            in("r13") entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}
