// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads beside the host's.

use std::thread::{Builder, JoinHandle};

use spawnfd_sys::{Errno, call};

use crate::template::from_io;

/// Starts a thread, all signals blocked: they are the host's.
pub(crate) fn start_thread<T: Send + 'static>(
    name: &str,
    stack: usize,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Errno> {
    let mask = call::set_signal_mask(call::SIGNALS_OF_THE_HOST)?;
    let thread = Builder::new().name(name.into()).stack_size(stack).spawn(body);
    let _ = call::set_signal_mask(mask);
    thread.map_err(|error| from_io(&error))
}
