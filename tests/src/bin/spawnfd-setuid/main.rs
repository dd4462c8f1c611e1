// SPDX-License-Identifier: MIT OR Apache-2.0
//! An unprivileged caller may not kill this program: it is installed set-uid root, and sets all its
//! user ids to root.
//!
//! It prints its pid, reads its standard input to the end, prints "bye" and exits with code 5. If it cannot become
//! root, it exits with code 77 at once.

use std::io::{Read, Write, stdin, stdout};
use std::process::exit;

fn main() {
    // SAFETY: setresuid takes integers only.
    if unsafe { libc::setresuid(0, 0, 0) } != 0 {
        exit(77);
    }
    // The caller may have closed the other end of the pipe, so a failed write is ignored.
    let say = |line: &str| stdout().write_all(line.as_bytes()).and_then(|()| stdout().flush()).ok();
    say(&format!("{}\n", std::process::id()));
    stdin().read_to_end(&mut Vec::new()).ok();
    say("bye\n");
    exit(5);
}
