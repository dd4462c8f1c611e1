// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clocks that start with a program, on a machine of any speed.

use std::path::Path;
use std::time::Duration;

use crate::scratch::scratch;

/// The longest time a program is given.
const MOST: Duration = Duration::from_secs(60);

/// Gives a program time for its part, and answers what came of it. `run` is told the time, and the path of a mark: a file that the program
/// leaves once it has done its part. Where there is none the machine was too slow, and it runs again with twice the time.
///
/// # Panics
/// If a minute is not enough.
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
