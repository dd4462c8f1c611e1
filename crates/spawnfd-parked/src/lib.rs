// SPDX-License-Identifier: MIT OR Apache-2.0
//! The code of warm starts that runs inside parked programs: three images, and the protocol between
//! them and their owner.
//!
//! The images are C, compiled by `build.rs` from the folders beside `src`:
//!
//! - `entry`: takes control of a program before its main(), and passes it to `python` or `node`.
//! - `common`: parks a process, receives a request, and performs it. [`protocol`] is generated from
//!   its `protocol.h`.
//! - `python`, `node`: park CPython and Node.js after their initialisation, and make them run another program.
//! - `node-threads`: ends the threads of Node.js before it parks, and recreates them afterwards.
//! - `zygote`: a program without libc that parks by files of `common`, and executes other programs.
#![no_std]

pub mod protocol;

/// Whether there are images for the target of this build. Without them no program can park.
pub const HAS_IMAGES: bool = !OBJECT.is_empty();

/// Whether Node.js can park after its initialisation.
pub const HAS_NODE: bool = !OBJECT_WITH_THREADS.is_empty();

/// The shared object that LD_PRELOAD loads into a program to park it.
pub static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spawnfd-parked.so"));

/// The shared object that LD_PRELOAD loads into Node.js. It also replaces some functions of libc,
/// to end and recreate threads.
pub static OBJECT_WITH_THREADS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spawnfd-parked-threads.so"));

/// The zygote: a static executable that parks and then executes another program.
pub static ZYGOTE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/spawnfd-zygote"));
