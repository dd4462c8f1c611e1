// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs on the other side of a pipe.

mod calls;
mod cuts;
mod faults;
mod fuzz;
mod hostile;
mod injection;
mod page;
mod raw;
mod sessions;

use spawnfd::Command;
use spawnfd_remote::Remote;
use spawnfd_remote::far::supervise;

/// The command that starts a server: this test binary, whose first lines are no frames.
fn server() -> Command<'static> {
    this_test("serve_on_purpose")
}

/// An ignored test of this program.
fn this_test(name: &str) -> Command<'static> {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

#[test]
#[ignore = "the server of the other tests"]
fn serve_on_purpose() {
    let status = supervise(&mut this_test("serve_here_on_purpose")).expect("a server");
    std::process::exit(status.and_then(|status| status.code()).unwrap_or(1));
}

#[test]
#[ignore = "the process of the server that serves"]
fn serve_here_on_purpose() {
    let ended = spawnfd_remote::serve(&Default::default());
    eprintln!("{ended:?}");
    std::process::exit(0);
}

/// Connects to a server that this process starts.
fn connect() -> Remote {
    Remote::connect(&server()).expect("a server")
}

/// `sh -c SCRIPT`.
fn sh(script: &str) -> Command<'static> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    command
}
