// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts the instructions of a start. The machine is emulated, and its clock advances by 1 ns for each instruction
//! (QEMU's option -icount).

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use crate::Result;
use crate::methods::{self, Output, Target};
use crate::programs;
use crate::worker::measure;

const METHODS: [&str; 4] = ["vfork", "same_calls", "ours", "posix_spawn"];
/// The first rounds load pages and fill caches.
const WARM_UP: usize = 10;
const ROUNDS: usize = 101;

/// Prints the instructions to the first instruction of the child, and those of a start and its wait, for each method
/// and round. `directory` has the installed programs.
///
/// # Errors
///
/// A start fails.
pub fn run(directory: &Path) -> Result<()> {
    let target = Target::Path(programs::first_instruction(directory));
    // The method same_calls does not open a file for the child.
    let null = File::options().write(true).open("/dev/null")?;
    let mut opened = Vec::new();
    for name in METHODS {
        opened.push((name, methods::open(name, &target)?));
    }
    for round in 0..WARM_UP + ROUNDS {
        // Each round begins with another method.
        opened.rotate_left(1);
        for (name, method) in &mut opened {
            let first = measure::first_instruction(method.as_mut())?;
            let whole = measure::spawn_and_wait(method.as_mut(), Output::Borrowed(null.as_fd()))?;
            if round >= WARM_UP {
                println!("sample {name} {first} {whole}");
            }
        }
    }
    Ok(())
}
