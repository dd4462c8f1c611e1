// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread's authority as a value that the library can compare. A thread or helper process of the library starts a
//! child for the calling thread only if the child provably has the authority that a fork of the calling thread would
//! have: no more and no less.
//!
//! Authority belongs to threads, and /proc shows nearly all of it. /proc does not show two parts:
//!
//! - The seccomp filters of a thread: /proc shows only their number. A thread's filters form a chain, which new
//!   threads inherit and which only grows. So if one thread has the same number at two times, it has the same
//!   filters. Two threads with the same number have the same filters if their process once had a single thread with
//!   that number of filters: all threads inherited the filters from that single thread. Otherwise equality is not
//!   proven.
//! - Landlock. The kernel lets a task inspect another task only if the other is at least as confined. It does not
//!   check this between threads of one process. So the comparison needs another process, which a thread has created
//!   with the same credentials ([`marker`]).
//!
//! [`Reach`] is the part of the authority that the library's threads and helpers need to act for a caller. `full.rs`
//! has the whole authority, which the library compares before it starts a program from a parked process.

#[cfg(feature = "warm")]
mod full;
mod marker;
mod reach;

use std::sync::OnceLock;

use marker::Marker;

use super::features;

pub(crate) use super::thread_status::remember_if_single_threaded;
#[cfg(feature = "warm")]
pub(crate) use full::{AddedConfinement, Authority, Reported};
pub(crate) use reach::Reach;

/// Whether a thread can put all other threads of its process into a Landlock domain: LANDLOCK_RESTRICT_SELF_TSYNC,
/// Linux 7.0.
fn threads_share_domains() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| features::kernel_version().is_none_or(|(major, _)| major >= 7))
}
