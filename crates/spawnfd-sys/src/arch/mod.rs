// SPDX-License-Identifier: MIT OR Apache-2.0
//! Architecture-specific code: the system call instruction, and clone with a new stack. A port to another
//! architecture adds its functions to each file.

mod clone;
mod syscall;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("spawnfd has no functions in spawnfd-sys/src/arch for this architecture yet");

pub use clone::Entry;
pub(crate) use clone::{clone_args, clone_call};
pub(crate) use syscall::syscall;
