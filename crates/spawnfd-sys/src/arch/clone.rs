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

/// Makes a clone system call whose child starts on another stack and calls `entry(data)`. Returns the raw result, in
/// the parent only.
///
/// # Safety
/// The requirements of `syscall`. The arguments must give the child a stack whose top is 16-byte
/// aligned, and with CLONE_VM a stack of its own. Calling `entry(data)` there must be sound.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) unsafe fn clone_call(number: u32, args: [usize; 5], entry: Entry, data: *const ()) -> isize {
    let result: isize;
    // SAFETY: x20 and x21 keep their values in the child, where the block never ends: `entry` does not return. In the
    // parent the block is an ordinary system call. The child zeroes its frame pointer and link register, so that a
    // debugger finds the end of the stack.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, x20",
            "br x21",
            "2:",
            in("x8") number as usize,
            inlateout("x0") args[0] as isize => result,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x20") data,
            in("x21") entry,
        );
    }
    result
}

/// The arguments of clone(2) in this architecture's order.
#[cfg(target_arch = "x86_64")]
pub(crate) fn clone_args(flags: usize, stack: usize, parent_tid: usize, child_tid: usize) -> [usize; 5] {
    [flags, stack, parent_tid, child_tid, 0]
}

/// The arguments of clone(2) in this architecture's order.
#[cfg(target_arch = "aarch64")]
pub(crate) fn clone_args(flags: usize, stack: usize, parent_tid: usize, child_tid: usize) -> [usize; 5] {
    [flags, stack, parent_tid, 0, child_tid]
}
