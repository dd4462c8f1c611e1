// SPDX-License-Identifier: MIT OR Apache-2.0
//! The half of warm starts that runs inside parked programs: three images, and the protocol by which their owner talks to them.
//!
//! The images are C, compiled by `build.rs` from the folders beside `src`:
//!
//! - `common`: parks a program before its main(), receives a request, and carries it out. [`protocol`] is generated from its `protocol.h`.
//! - `python`, `node`: where CPython and Node.js can park, and how they become another program.
//! - `node-threads`: ends the threads of Node.js before it parks, and starts them again afterwards.
//! - `zygote`: a program without libc that parks with files of `common`, and executes other programs.
#![no_std]

pub mod protocol;

/// The shared object that LD_PRELOAD loads into a program to park it.
pub static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spawnfd-parked.so"));

/// The same for programs with threads: it also replaces some of libc's functions, which other programs need not bear.
pub static OBJECT_WITH_THREADS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spawnfd-parked-threads.so"));

/// The program that parks to execute others: a static executable.
pub static ZYGOTE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spawnfd-zygote"));
