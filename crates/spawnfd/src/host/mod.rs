// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of the host process: threads and their authority, descriptors, available system calls. Depends on
//! [`crate::error`] only.

pub(crate) mod authority;
pub(crate) mod descriptors;
pub(crate) mod features;
pub(crate) mod memfd;
pub(crate) mod one_start;
pub(crate) mod own_proc;
pub(crate) mod per_process;
pub(crate) mod thread;
