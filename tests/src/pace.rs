// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs programs under a time limit, and adapts the limit to the speed of the machine.

use std::path::Path;
use std::time::Duration;

use crate::scratch::scratch;

/// The longest time limit.
const MOST: Duration = Duration::from_secs(60);

/// Runs a program under a time limit that is long enough for the program, and returns the outcome.
///
/// `run` gets the time limit and a path. The program that `run` starts creates a file at this path once it has done
/// its part. If the file is missing, the machine was too slow, and `run` is called again with twice the time.
///
/// # Panics
/// If the program does not create the file within 60 s.
#[track_caller]
pub fn enough_time<T>(at_first: Duration, run: impl Fn(Duration, &Path) -> T) -> T {
    let mut time = at_first;
    loop {
        let directory = scratch();
        let mark = directory.path().join("mark");
        let outcome = run(time, &mark);
        if mark.exists() {
            return outcome;
        }
        assert!(time < MOST, "no mark after {time:?}");
        time = MOST.min(time * 2);
    }
}
