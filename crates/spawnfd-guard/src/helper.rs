// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `spawnfd-guard`. `build.rs` compiles it from this crate's modules, without libc and
//! std.
//!
//! The owner starts the helper with all signals blocked, in a session of its own, in `/`, and with three descriptors:
//! 0 is a pidfd of the owner, 1 is the table, 2 is a pipe. The helper writes one byte to the pipe when it is ready.
//! Only descriptor 0 stays open. The guard is this process and a second one, which the helper forks (`watch.rs`).
//!
//! With the argument `init`, the helper is the first process of a tree's pid namespace (`init.rs`). Then descriptor 1 is
//! an eventfd, and stays open. With the argument `reap`, the helper is the parent of a tree's program (`reap.rs`). Then
//! descriptors 1 and 2 are a socket of the owner, and descriptors 0 and 1 stay open. With the argument `hold`, the helper
//! is the parent of a session's shell in a sandbox (`broker.rs`), and a sandbox command starts it, not the owner.
//! With the argument `foreground`, a session's shell starts the helper, with the session's terminal as descriptor 0. The
//! helper makes the shell's process group the foreground group of the terminal.
#![no_std]
#![no_main]
#![allow(dead_code)]

extern crate alloc;

mod broker;
mod cgroup;
#[path = "helper_clock.rs"]
mod clock;
mod descendants;
mod heap;
mod init;
mod members;
mod process;
mod reap;
mod sys;
mod syscall;
mod table;
mod watch;

use core::arch::global_asm;

use sys::Words;

const OWNER: i32 = 0;
const TABLE: i32 = 1;
const SOCKET: i32 = 1;
const READY: i32 = 2;

// The program's entry point. The kernel aligns the stack as the ABI requires before a call instruction, so this code
// calls `main`.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {main}", "ud2", main = sym main);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, xzr",
    "mov x30, xzr",
    "mov x0, sp",
    "and x1, x0, #-16",
    "mov sp, x1",
    "bl {main}",
    "brk #1",
    main = sym main
);

/// # Safety
/// `arguments` points to argc, as in the initial stack that the kernel sets up.
unsafe extern "C" fn main(arguments: *const usize) -> ! {
    // SAFETY: the caller keeps this function's contract: argc, pointers to argc strings, NULL, and the environment in
    // the same form.
    let (words, environment) = unsafe {
        let words = arguments.cast::<*const u8>().add(1);
        (Words::from_stack(words), Words::from_stack(words.add(*arguments + 1)))
    };
    let role = words.iter().nth(1).and_then(|role| role.to_bytes().first().copied());
    if role == Some(b'h') {
        sys::set_name(c"spawnfd-broker");
        broker::run(&words.skip(2), environment);
    }
    if role == Some(b'f') {
        // A process of a background group gets SIGTTOU for this call, unless it blocks the signal.
        sys::set_signal_mask(u64::MAX);
        let _ = sys::getpgid(sys::getppid()).and_then(|group| sys::set_foreground(0, group));
        sys::exit(0);
    }
    sys::set_dumpable(false);
    match role.unwrap_or(0) {
        b'i' => {
            sys::set_name(c"spawnfd-init");
            // The kernel then reaps the children as they end, so that none becomes a zombie.
            sys::set_ignored(sys::SIGCHLD, true);
            ready();
            init::watch(OWNER, TABLE);
            sys::exit(0)
        }
        b'r' => {
            sys::set_name(c"spawnfd-reaper");
            sys::close(READY);
            sys::exit(reap::reap_all(SOCKET, OWNER))
        }
        _ => {}
    }
    sys::set_name(c"spawnfd-guard");
    // A parent pid of 0 means that the owner is in another pid namespace. In that namespace a pid
    // means another process than here, so this helper cannot find the owner's trees.
    if sys::getppid() == 0 {
        sys::exit(2);
    }
    let Ok(table) = table::TreeTable::map(TABLE) else { sys::exit(1) };
    sys::close(TABLE);
    watch::watch(&table, OWNER, ready);
    sys::exit(0)
}

fn ready() {
    let _ = sys::write(READY, b".");
    sys::close(READY);
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::exit(101)
}
