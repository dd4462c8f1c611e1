// SPDX-License-Identifier: MIT OR Apache-2.0
//! The clone system calls whose child returns on another stack.

use core::arch::asm;

/// The function a child begins with. It never returns: it execs or exits.
pub type Entry = unsafe extern "C" fn(*const ()) -> !;

/// Enters a clone system call of which the child returns on another stack and calls `entry(data)`.
/// Returns, in the parent only, the raw result.
///
/// # Safety
/// As for `syscall`; and the arguments must give the child a stack of its own (with CLONE_VM) whose top is
/// 16-byte aligned, and `entry` with `data` must be sound to run there.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn clone_call(number: u32, args: [usize; 5], entry: Entry, data: *const ()) -> isize {
    let result: isize;
    // SAFETY: r12 and r13 keep their values in the child, where the block never ends: entry does not
    // return. In the parent the block is an ordinary system call. rbp is zeroed in the child only, so that
    // a debugger sees where its stack ends.
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
