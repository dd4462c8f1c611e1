// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library's files in memory. RLIMIT_FSIZE applies to them too: a write beyond that limit fails
//! with EFBIG and also sends SIGXFSZ, which must not kill the host.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use spawnfd_sys::{Call, Errno, call};

use crate::error::errno;
use crate::host::features;

/// Creates an empty file that can be sealed.
///
/// # Errors
/// The errors of memfd_create(2). EACCES: `executable` is true, and the sysctl vm.memfd_noexec is 2.
pub fn create(name: &str, executable: bool) -> Result<OwnedFd, Errno> {
    features::killed_calls().refuse(Call::MemfdCreate)?;
    let wanted = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let execution = if executable { MemfdFlags::EXEC } else { MemfdFlags::NOEXEC_SEAL };
    let outcome = match memfd_create(name, wanted | execution) {
        // Before Linux 6.3 the flags EXEC and NOEXEC_SEAL do not exist, and every memfd can be executed.
        Err(rustix::io::Errno::INVAL) => memfd_create(name, wanted),
        outcome => outcome,
    };
    outcome.map_err(errno)
}

/// Creates an immutable, executable file with these bytes.
///
/// # Errors
/// The errors of [`create`] and [`write_all`].
pub(crate) fn with_contents(name: &str, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let memfd = create(name, true)?;
    write_all(&memfd, bytes)?;
    seal(&memfd, false)?;
    Ok(memfd)
}

/// Creates a writable file of fixed length, to share with another process.
///
/// # Errors
/// The name of the system call that failed, and its errno.
pub(crate) fn shared(name: &str, length: usize) -> Result<OwnedFd, (&'static str, Errno)> {
    let memfd = create(name, false).map_err(|errno| ("memfd_create()", errno))?;
    set_length(&memfd, length as u64).map_err(|errno| ("ftruncate()", errno))?;
    seal(&memfd, true).map_err(|errno| ("fcntl(F_ADD_SEALS)", errno))?;
    Ok(memfd)
}

/// Writes all bytes to a file of the library.
///
/// # Errors
/// The errors of write(2).
pub(crate) fn write_all(file: &OwnedFd, bytes: &[u8]) -> Result<(), Errno> {
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = &rest[call::write_without_signal(file.as_raw_fd(), rest)?..];
    }
    Ok(())
}

/// Sets the file's length.
///
/// # Errors
/// The errors of ftruncate(2).
pub(crate) fn set_length(file: &OwnedFd, length: u64) -> Result<(), Errno> {
    call::without_signal(|| ftruncate(file, length).map_err(errno))
}

/// Seals the file's length and its seals, and its contents unless `writable`.
///
/// # Errors
/// The errors of fcntl(2).
pub fn seal(file: impl AsFd, writable: bool) -> Result<(), Errno> {
    let contents = if writable { SealFlags::empty() } else { SealFlags::WRITE };
    fcntl_add_seals(file, contents | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL).map_err(errno)
}

/// Whether the file is a memfd that is sealed against writes.
pub(crate) fn is_immutable(file: impl AsFd) -> bool {
    fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::WRITE))
}
