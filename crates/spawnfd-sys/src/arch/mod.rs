// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that depends on the processor: the system call instruction, and cloning a child onto
//! a stack of its own. A port adds one function to each file.

mod clone;
mod syscall;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("spawnfd has no functions in spawnfd-sys/src/arch for this architecture yet");

pub use clone::Entry;
pub(crate) use clone::clone_call;
pub(crate) use syscall::syscall;
