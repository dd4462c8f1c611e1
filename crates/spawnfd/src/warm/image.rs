// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creates the files that parking needs: the shared object that parks a program, and the zygote.
//! The zygote is a program of the library that parks and then executes any other program. This
//! module also checks which programs can load the object.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, getxattr, openat};

use super::channel::CallError;
use crate::cold_reason::ColdReason;
use crate::host::memfd;
use crate::template::Template;

/// Creates a sealed memory file with `object`, a shared object of `spawnfd-parked`.
///
/// # Errors
/// The errors of memfd_create(2).
pub(super) fn object_file(object: &[u8]) -> Result<OwnedFd, CallError> {
    memfd::with_contents("spawnfd-warm", object).map_err(|errno| ("memfd_create()", errno))
}

/// Creates a sealed memory file with the zygote.
///
/// # Errors
/// The errors of memfd_create(2).
pub(super) fn zygote_file() -> Result<OwnedFd, CallError> {
    memfd::with_contents("spawnfd-zygote", spawnfd_parked::ZYGOTE).map_err(|errno| ("memfd_create()", errno))
}

/// Checks that a program would load the shared object. The keeper must not start a program that would not load it,
/// because that program would run instead of parking.
///
/// # Errors
/// The reason why the program would not load the object.
pub(super) fn can_park(template: &Template) -> Result<(), ColdReason> {
    if template.is_script() {
        return Err(ColdReason::Script);
    }
    let Some(path) = template.path().filter(|_| !template.executed_by_descriptor()) else {
        return Err(ColdReason::Descriptor);
    };
    keeps_preload(template)?;
    let capabilities = getxattr(path, "security.capability", &mut [0u8; 64]);
    if matches!(capabilities, Ok(1..) | Err(rustix::io::Errno::RANGE)) {
        return Err(ColdReason::FileCapabilities);
    }
    match loader(path) {
        None => Err(ColdReason::Unreadable),
        Some(None) => Err(ColdReason::Static),
        Some(Some(name)) if name.starts_with(b"ld-linux") => Ok(()),
        Some(Some(_)) => Err(ColdReason::NotGlibc),
    }
}

/// Checks that LD_PRELOAD has an effect in a program.
///
/// # Errors
/// The reason why LD_PRELOAD has no effect. If a program gains privileges at exec, ld.so removes the variable
/// (ld.so(8), secure-execution mode).
pub(super) fn keeps_preload(template: &Template) -> Result<(), ColdReason> {
    const SET_ID: u16 = 0o6000;
    if template.identity().mode & SET_ID == 0 { Ok(()) } else { Err(ColdReason::Setuid) }
}

/// Reads the name of a 64-bit ELF file's dynamic loader, from PT_INTERP. Returns `Some(None)` if the
/// file names no loader.
fn loader(path: &Path) -> Option<Option<Vec<u8>>> {
    const PT_INTERP: u32 = 3;
    // O_NONBLOCK keeps this call from blocking if a FIFO has replaced the file.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(openat(CWD, path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    // Only ELF files of this machine's class and byte order load the object.
    if !head.starts_with(&[0x7f, b'E', b'L', b'F', 2, 1]) {
        return None;
    }
    let (offset, size, count) = (word(&head[32..])?, half(&head[54..])?, half(&head[56..])?);
    for at in 0..u64::from(count) {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, offset + at * u64::from(size)).ok()?;
        if u32::from_le_bytes(entry[..4].try_into().ok()?) == PT_INTERP {
            let mut name = vec![0; word(&entry[32..])?.min(4096) as usize];
            file.read_exact_at(&mut name, word(&entry[8..])?).ok()?;
            let name = name.strip_suffix(&[0]).unwrap_or(&name);
            return Some(name.rsplit(|&byte| byte == b'/').next().map(<[u8]>::to_vec));
        }
    }
    Some(None)
}

fn word(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?))
}

fn half(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?))
}
