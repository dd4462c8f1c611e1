// SPDX-License-Identifier: MIT OR Apache-2.0
//! posix_spawn of the C interface, compared with posix_spawn of the C library: the same calls give children with the
//! same state, or the same errno.

#[path = "../authority/confinements.rs"]
#[allow(dead_code)]
mod confinements;

#[path = "../common/c.rs"]
mod c;
#[path = "../common/mod.rs"]
mod common;

mod attributes;
mod builder;
mod documents;
mod implementation;
mod installed;
mod lists;
mod own;
mod preload;
mod same;
