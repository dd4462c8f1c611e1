// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many threads spawning at once.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Barrier;

use super::measure::whole_life;
use crate::Result;
use crate::clock::now_ns;
use crate::methods::{Method, Output};

/// Spawns per second of `threads` threads that each spawn and wait `calls` times, all with one /dev/null, opened before, as stdout.
///
/// From the first thread's first call to the last thread's last; one call of each thread before that is not counted.
pub fn rate(method: &mut dyn Method, threads: usize, calls: usize) -> Result<f64> {
    let null = File::options().write(true).open("/dev/null")?;
    let barrier = Barrier::new(threads);
    let mut own = (0..threads).map(|_| method.another()).collect::<std::io::Result<Vec<_>>>()?;
    let spans = std::thread::scope(|scope| {
        let running: Vec<_> = own
            .iter_mut()
            .map(|method| {
                scope.spawn(|| -> Result<(u64, u64)> {
                    let warm = whole_life(method.as_mut(), Output::Into(null.as_fd()));
                    barrier.wait();
                    warm?;
                    let start = now_ns();
                    for _ in 0..calls {
                        whole_life(method.as_mut(), Output::Into(null.as_fd()))?;
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
