// SPDX-License-Identifier: MIT OR Apache-2.0
//! posix_spawn of the C interface, compared with posix_spawn of the C library: the same calls give children with the
//! same state, or the same errno. Random lists of actions of the builder have the effect that the model predicts.

#[path = "../authority/confinements.rs"]
#[allow(dead_code)]
mod confinements;

#[path = "../common/c.rs"]
mod c;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/model.rs"]
mod model;

mod attributes;
mod builder;
mod documents;
mod implementation;
mod installed;
mod lists;
mod own;
mod preload;
mod random;
mod run;
mod same;
