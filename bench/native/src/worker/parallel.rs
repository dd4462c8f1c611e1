// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many threads spawning at once.

use std::sync::Barrier;

use super::measure::lifecycle;
use crate::Result;
use crate::clock::now_ns;
use crate::methods::Method;

/// Spawns per second of `threads` threads that each spawn and wait `calls` times.
///
/// From the first thread's first call to the last thread's last; one call of each thread before that is not counted.
pub fn rate(method: &mut dyn Method, threads: usize, calls: usize) -> Result<f64> {
    let barrier = Barrier::new(threads);
    let mut own = (0..threads).map(|_| method.another()).collect::<std::io::Result<Vec<_>>>()?;
    let spans = std::thread::scope(|scope| {
        let running: Vec<_> = own
            .iter_mut()
            .map(|method| {
                scope.spawn(|| -> Result<(u64, u64)> {
                    let warm = lifecycle(method.as_mut());
                    barrier.wait();
                    warm?;
                    let start = now_ns();
                    for _ in 0..calls {
                        lifecycle(method.as_mut())?;
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
