// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the interpreter of a script, as the kernel and env(1) do.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::first_in_path;

/// The most bytes of the first line that the kernel reads (BINPRM_BUF_SIZE).
pub const MAX_LINE: usize = 256;

/// Returns the first line of a script, without `#!`. Returns `None` if the file is not a script.
pub fn first_line(head: &[u8]) -> Option<&[u8]> {
    head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()
}

/// Returns the interpreter that the first line names, or the program that env(1) starts.
pub fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).map(OsStr::from_bytes);
    let path = Path::new(words.next()?);
    let name = if path.file_name() == Some(OsStr::new("env")) {
        // The options and variables of env come first.
        words.find(|word| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'='))
    } else {
        None
    };
    match name {
        Some(name) if !name.as_bytes().contains(&b'/') => first_in_path(name),
        Some(path) => Some(Path::new(path).to_owned()),
        None => Some(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_found() {
        let found = |head: &str| first_line(head.as_bytes()).and_then(interpreter);
        assert_eq!(found("#!/bin/sh -e\n..."), Some(PathBuf::from("/bin/sh")));
        assert_eq!(found("#! /bin/sh"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(found("#!/usr/bin/env -S X=1 /bin/sh -e\n"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(found("#!/usr/bin/env no-such-program\n"), None);
        assert_eq!(found("echo\n"), None);
    }
}
