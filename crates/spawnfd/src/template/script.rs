// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `#!` line, by the kernel's own rules (fs/binfmt_script.c, Linux 6.12).

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;

use spawnfd_sys::Errno;

/// How much of a file the kernel looks at (BINPRM_BUF_SIZE, 256 since Linux 5.1).
pub(crate) const HEAD: usize = 256;

/// How many interpreters may themselves be scripts before exec says ELOOP (fs/exec.c, exec_binprm).
pub(crate) const NESTING: usize = 5;

/// What a `#!` line names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Line {
    pub(crate) interpreter: CString,
    pub(crate) argument: Option<CString>,
}

/// Reads the line from the first bytes of a file. `None`: no script.
///
/// # Errors
/// ENOEXEC: no interpreter is named, or its name is cut off at [`HEAD`] bytes.
pub(crate) fn parse(head: &[u8]) -> Result<Option<Line>, Errno> {
    let Some(rest) = head.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let rest = &rest[..rest.len().min(HEAD - 2)];
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let end = rest.iter().position(|&byte| byte == b'\n');
    let whole = end.is_some() || head.len() < HEAD;
    let line = &rest[..end.unwrap_or(rest.len())];
    // The kernel's buffer is zero-filled: a NUL ends what it takes for a name.
    let Some(start) = line.iter().position(|byte| !blank(byte)) else {
        return Err(Errno::ENOEXEC);
    };
    let line = &line[start..];
    let stop = line.iter().position(|byte| blank(byte) || *byte == 0);
    if stop.is_none() && !whole {
        return Err(Errno::ENOEXEC);
    }
    let (name, rest) = line.split_at(stop.unwrap_or(line.len()));
    if name.is_empty() {
        return Err(Errno::ENOEXEC);
    }
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        CString::new(&bytes[..end]).unwrap_or_default()
    };
    let first = rest.iter().position(|byte| !blank(byte));
    let argument = first.map(|first| &rest[first..]).and_then(|rest| {
        let last = rest.iter().rposition(|byte| !blank(byte))?;
        Some(text(&rest[..=last])).filter(|argument| !argument.is_empty())
    });
    Ok(Some(Line { interpreter: text(name), argument }))
}

impl Line {
    pub(crate) fn interpreter(&self) -> &OsStr {
        OsStr::from_bytes(self.interpreter.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interpreter and argument.
    type Parts = (Vec<u8>, Option<Vec<u8>>);

    fn line(head: &[u8]) -> Result<Option<Parts>, Errno> {
        let split = |line: Line| (line.interpreter.into_bytes(), line.argument.map(CString::into_bytes));
        parse(head).map(|line| line.map(split))
    }

    #[test]
    fn reads_what_the_kernel_reads() {
        assert_eq!(line(b"\x7fELF"), Ok(None));
        assert_eq!(line(b"#!/bin/sh\n"), Ok(Some((b"/bin/sh".to_vec(), None))));
        assert_eq!(line(b"#! \t/bin/sh  -e x \t\nrest"), Ok(Some((b"/bin/sh".to_vec(), Some(b"-e x".to_vec())))));
        assert_eq!(line(b"#!/bin/sh"), Ok(Some((b"/bin/sh".to_vec(), None))));
        assert_eq!(line(b"#!/bin/sh\r\n"), Ok(Some((b"/bin/sh\r".to_vec(), None))));
        for bad in [&b"#!"[..], b"#!\n/bin/sh", b"#!  \t \n"] {
            assert_eq!(line(bad), Err(Errno::ENOEXEC));
        }
    }

    #[test]
    fn refuses_a_name_cut_off_at_the_buffer() {
        let mut head = b"#!/".to_vec();
        head.resize(HEAD, b'x');
        assert_eq!(line(&head), Err(Errno::ENOEXEC));
        head[HEAD - 10] = b' ';
        assert!(line(&head).unwrap().unwrap().1.is_some(), "a cut argument is taken as it is");
    }
}
