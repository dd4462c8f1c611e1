// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that depends on the processor: the system call instruction and the birth of a child on
//! a stack of its own. A port adds one file here with the same two functions.

#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod imp;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("spawnfd has no file in spawnfd-sys/src/arch for this architecture yet");

pub(crate) use imp::{clone_call, syscall};
