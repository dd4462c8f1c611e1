// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the `#!` line by the kernel's own rules (fs/binfmt_script.c, Linux 6.12).

use std::ffi::CString;

use spawnfd_sys::Errno;

/// The number of bytes of a file that the kernel reads (BINPRM_BUF_SIZE, 256 since Linux 5.1).
pub(crate) const HEAD: usize = 256;

/// The number of interpreters that may themselves be scripts before exec fails with ELOOP
/// (fs/exec.c, exec_binprm).
pub(crate) const NESTING: usize = 5;

/// Returns the interpreter that the `#!` line in the first bytes of a file names. Returns `None` if
/// the file is not a script.
///
/// # Errors
/// ENOEXEC: the line names no interpreter, or the name is cut off at [`HEAD`] bytes.
pub(crate) fn parse(head: &[u8]) -> Result<Option<CString>, Errno> {
    let Some(rest) = head.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let rest = &rest[..rest.len().min(HEAD - 2)];
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let end = rest.iter().position(|&byte| byte == b'\n');
    let whole = end.is_some() || head.len() < HEAD;
    let line = &rest[..end.unwrap_or(rest.len())];
    // The kernel's buffer is zero-filled, so a NUL ends the name.
    let Some(start) = line.iter().position(|byte| !blank(byte)) else {
        return Err(Errno::ENOEXEC);
    };
    let line = &line[start..];
    let stop = line.iter().position(|byte| blank(byte) || *byte == 0);
    if stop.is_none() && !whole {
        return Err(Errno::ENOEXEC);
    }
    let name = &line[..stop.unwrap_or(line.len())];
    if name.is_empty() {
        return Err(Errno::ENOEXEC);
    }
    CString::new(name).map(Some).map_err(|_| Errno::ENOEXEC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_script_lines_as_the_kernel_does() {
        assert_eq!(parse(b"\x7fELF"), Ok(None));
        assert_eq!(parse(b"#!/bin/sh\n"), Ok(Some(c"/bin/sh".to_owned())));
        assert_eq!(parse(b"#! \t/bin/sh  -e x \t\nrest"), Ok(Some(c"/bin/sh".to_owned())));
        assert_eq!(parse(b"#!/bin/sh"), Ok(Some(c"/bin/sh".to_owned())));
        assert_eq!(parse(b"#!/bin/sh\0x\n"), Ok(Some(c"/bin/sh".to_owned())));
        assert_eq!(parse(b"#!/bin/sh\r\n"), Ok(Some(c"/bin/sh\r".to_owned())));
        for bad in [&b"#!"[..], b"#!\n/bin/sh", b"#!  \t \n"] {
            assert_eq!(parse(bad), Err(Errno::ENOEXEC));
        }
    }

    #[test]
    fn refuses_a_truncated_interpreter_path() {
        let mut head = b"#!/".to_vec();
        head.resize(HEAD, b'x');
        assert_eq!(parse(&head), Err(Errno::ENOEXEC));
        head[HEAD - 10] = b' ';
        assert!(parse(&head).unwrap().is_some(), "a truncated argument is accepted");
    }
}
