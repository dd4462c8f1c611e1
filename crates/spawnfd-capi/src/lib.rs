// SPDX-License-Identifier: MIT OR Apache-2.0
//! The C interface: `libspawnfd.a`, `libspawnfd.so` and `libspawnfd-spawn.so`. `include/spawnfd.h` declares it.
//!
//! [`posix`] has posix_spawn(3) and the functions of its attributes and file actions. Without the feature `std` this
//! crate has nothing else. The result is `libspawnfd-spawn.so`, which every program of a process tree loads with
//! LD_PRELOAD. So this library is small and needs only libc.
#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "std")]
pub mod builder;
#[cfg(feature = "std")]
mod copy;
#[cfg(feature = "std")]
mod errno;
#[cfg(feature = "std")]
mod record;

pub mod posix;
#[cfg(feature = "std")]
pub mod run;
#[cfg(all(not(feature = "std"), not(test)))]
mod runtime;
#[cfg(feature = "std")]
pub mod template;
