// SPDX-License-Identifier: MIT OR Apache-2.0
//! The oracle: a program that prints everything that its process can learn about itself, as one JSON object.
//!
//! It has no std runtime. Before `main`, that runtime ignores SIGPIPE, opens /dev/null on closed standard
//! descriptors, and installs a signal stack and handlers. The oracle would print this state, not the inherited one.

#![no_main]

use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use libc::{c_char, c_int};
use spawnfd_tests::State;

const USAGE: &str = "usage: spawnfd-oracle [--fields NAME,NAME...] [--to FD] [ARGUMENT...]
prints the state of its own process as JSON; further arguments only show up in argv
";

#[derive(Debug, Default)]
struct Options {
    fields: Option<Vec<String>>,
    to: c_int,
    help: bool,
}

/// # Safety
/// Only libc calls this function: once, with the kernel's argument and environment vectors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn main(_argc: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    // SAFETY: main's arguments are those that `of_main` requires.
    let state = unsafe { State::of_main(argv, envp) };
    match options(&state.argv).and_then(|options| answer(&state, &options)) {
        Ok(()) => 0,
        Err(message) => {
            print(2, &format!("spawnfd-oracle: {message}\n")).ok();
            2
        }
    }
}

fn answer(state: &State, options: &Options) -> Result<(), String> {
    if options.help {
        return print(options.to, USAGE);
    }
    let unknown = |name| format!("no field {name:?}; there are: {}", state.field_names().join(", "));
    print(options.to, &state.to_json(options.fields.as_deref()).map_err(unknown)?)
}

/// Parses the options. Ignores unknown words: tests pass arbitrary arguments and check that the oracle prints them.
fn options(argv: &[String]) -> Result<Options, String> {
    let mut options = Options { to: 1, ..Options::default() };
    let mut words = argv.iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--fields" => {
                let names = words.next().ok_or("--fields needs a list of names")?;
                options.fields = Some(names.split(',').map(str::to_owned).collect());
            }
            "--to" => {
                let fd = words.next().and_then(|fd| fd.parse().ok()).filter(|fd| *fd >= 0);
                options.to = fd.ok_or("--to needs the number of a descriptor")?;
            }
            "--help" => options.help = true,
            _ => break,
        }
    }
    Ok(options)
}

/// Writes to an inherited descriptor, and leaves the descriptor open.
fn print(fd: c_int, text: &str) -> Result<(), String> {
    // SAFETY: `fd` is not negative. `file` only writes to it, and ManuallyDrop never closes it. If `fd` is not open,
    // the write fails with EBADF.
    let mut file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    file.write_all(text.as_bytes()).map_err(|error| format!("cannot write to descriptor {fd}: {error}"))
}
