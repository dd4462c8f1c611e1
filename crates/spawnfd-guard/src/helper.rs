// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `spawnfd-guard`: compiled by `build.rs` from this crate's modules, without libc and std.
//!
//! Its owner starts it with all signals blocked, in a session of its own, in `/`, and with three descriptors: 0 a pidfd of the
//! owner, 1 the table, 2 a pipe that takes one byte once it watches. Only the first stays open.
#![no_std]
#![no_main]
#![allow(dead_code)]

extern crate alloc;

mod cgroup;
mod heap;
mod members;
mod process;
mod sys;
mod table;
mod watch;

use core::arch::global_asm;

const OWNER: i32 = 0;
const TABLE: i32 = 1;
const READY: i32 = 2;

// The kernel starts here, with a stack that is aligned as a function's caller has it, not as a function.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "and rsp, -16", "call {main}", "ud2", main = sym main);

extern "C" fn main() -> ! {
    sys::set_name(c"spawnfd-guard");
    sys::be_private();
    // 0: the owner is in another pid namespace, where its trees have other numbers.
    if sys::getppid() == 0 {
        sys::exit(2);
    }
    let Ok(table) = table::Table::map(TABLE) else { sys::exit(1) };
    sys::close(TABLE);
    let _ = sys::write(READY, b".");
    sys::close(READY);
    watch::watch(&table, OWNER);
    sys::exit(0)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(101)
}
