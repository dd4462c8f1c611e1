// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures threads that spawn at the same time.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Barrier;

use super::measure::spawn_and_wait;
use crate::Result;
use crate::clock::now_ns;
use crate::methods::{Method, Output};

/// Returns the spawns per second of `threads` threads, each of which spawns and waits `calls` times. All children
/// share one stdout, /dev/null opened in advance.
///
/// The time runs from the first call of the first thread to the last call of the last thread. Each thread makes one
/// call before that, which is not counted.
pub fn rate(method: &mut dyn Method, threads: usize, calls: usize) -> Result<f64> {
    let null = File::options().write(true).open("/dev/null")?;
    let barrier = Barrier::new(threads);
    let mut own = (0..threads).map(|_| method.for_thread()).collect::<std::io::Result<Vec<_>>>()?;
    let spans = std::thread::scope(|scope| {
        let running: Vec<_> = own
            .iter_mut()
            .map(|method| {
                scope.spawn(|| -> Result<(u64, u64)> {
                    let warm = spawn_and_wait(method.as_mut(), Output::Borrowed(null.as_fd()));
                    barrier.wait();
                    warm?;
                    let start = now_ns();
                    for _ in 0..calls {
                        spawn_and_wait(method.as_mut(), Output::Borrowed(null.as_fd()))?;
                    }
                    Ok((start, now_ns()))
                })
            })
            .collect();
        running.into_iter().map(|t| t.join().expect("no spawning thread panics")).collect::<Result<Vec<_>>>()
    })?;
    let start = spans.iter().map(|s| s.0).min().unwrap_or(0);
    let end = spans.iter().map(|s| s.1).max().unwrap_or(0);
    Ok((threads * calls) as f64 * 1e9 / (end - start) as f64)
}
