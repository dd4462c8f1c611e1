// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records in memfds: the state behind the descriptor of a template or a builder.
//!
//! A descriptor of a record behaves like any other: dup(2), close(2), fork(2) and SCM_RIGHTS copy it. A copy in another
//! process does not carry the authority to use the record. The record contains a code over its contents and its file,
//! keyed by a secret of the process that wrote it. The secret does not survive fork or exec. So a process accepts only
//! records that it has written itself, and no other process can forge one. The contents begin with the credentials of
//! the thread that wrote them, and only threads with the same credentials can use them.
//!
//! A process with a copy can write an earlier record back, whose code is valid. For a template there is no earlier
//! record: the file is sealed after its only write. The owner of a builder remembers the [`Version`] of its last write.

use core::hash::Hash;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, SealFlags, Stat};
use rustix::io::FdFlags;
use siphasher::sip128::{Hasher128, SipHasher24};
use spawnfd::internal::{create_memfd, killed_calls, seal_memfd};
use spawnfd_sys::{Errno, abi, call, prctl};

use crate::errno;

/// The length of the code at the beginning of a record.
pub(crate) const CODE: usize = 16;
/// The longest record: a path, and the arguments and actions of a builder.
const LONGEST: u64 = 8 << 20;

/// The contents that a record has after one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The device and the inode of the memfd.
    pub file: (u64, u64),
    /// The code over the contents.
    pub code: [u8; CODE],
}

/// The purpose of a record. The name of the memfd shows it in /proc/PID/fd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A spawn template.
    Template,
    /// A builder.
    Builder,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Template => "spawn_template",
            Kind::Builder => "spawn_builder",
        }
    }
}

/// The version of a record. The code is over the kind, the file and the contents.
fn version(stat: &Stat, kind: Kind, body: &[u8]) -> Result<Version, Errno> {
    let file = (stat.st_dev, stat.st_ino);
    Ok(Version { file, code: code((kind as u8, file, body))? })
}

/// A code over a value, keyed by the secret of this process.
///
/// # Errors
/// The process has no secret.
pub fn code(value: impl Hash) -> Result<[u8; CODE], Errno> {
    let [low, high] = spawnfd_sys::process_secret()?;
    let mut hasher = SipHasher24::new_with_keys(low, high);
    value.hash(&mut hasher);
    Ok(hasher.finish128().as_bytes())
}

/// A code over the credentials of the calling thread: its process, ids, capabilities, securebits and groups. The text
/// distinguishes it from the codes of records.
///
/// The process is part of the credentials because a child of vfork(2) shares this memory and its secret.
fn credentials() -> Result<[u8; CODE], Errno> {
    let mut groups = vec![0; 64];
    let count = call::groups(&mut groups).or_else(|_| {
        groups.resize(1 << 16, 0);
        call::groups(&mut groups)
    });
    groups.truncate(count.unwrap_or(0));
    let ids = (call::ids(), call::file_ids(killed_calls()), groups);
    let securebits = call::prctl(prctl::PR_GET_SECUREBITS, 0, 0);
    code(("credentials", call::getpid(), ids, call::capabilities(), securebits))
}

/// Creates a record that no process can change.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM, ENOSYS (no memfd_create).
pub fn create_sealed(kind: Kind, body: &[u8], close_on_exec: bool) -> Result<OwnedFd, Errno> {
    let file = create(kind)?;
    write(file.as_fd(), kind, body)?;
    seal_memfd(&file, false)?;
    if !close_on_exec {
        rustix::io::fcntl_setfd(&file, FdFlags::empty()).map_err(errno::of)?;
    }
    Ok(file)
}

/// Creates a record without contents, close-on-exec. [`write`] fills it.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM, ENOSYS (no memfd_create). EPERM: a filter refuses memfd_create(2), or kills for it.
pub fn create(kind: Kind) -> Result<OwnedFd, Errno> {
    create_memfd(kind.name(), false)
}

/// Replaces the contents of a record, and returns their version.
///
/// # Errors
/// E2BIG: more than 8 MiB. EFBIG: RLIMIT_FSIZE is too low; the process gets no SIGXFSZ. EACCES: a process has sealed the
/// record. All three leave the record unchanged. ENOSPC, ENOMEM: no memory.
pub fn write(file: BorrowedFd<'_>, kind: Kind, body: &[u8]) -> Result<Version, Errno> {
    let body = [&credentials()?[..], body].concat();
    let version = version(&rustix::fs::fstat(file).map_err(errno::of)?, kind, &body)?;
    let content = [&version.code[..], &body].concat();
    if content.len() as u64 > LONGEST {
        return Err(Errno::E2BIG);
    }
    // The truncation below destroys the old contents, so find the certain failures before it.
    if call::limit(abi::RLIMIT_FSIZE).is_ok_and(|limit| content.len() as u64 > limit.rlim_cur) {
        return Err(Errno::EFBIG);
    }
    let sealed = SealFlags::WRITE | SealFlags::FUTURE_WRITE | SealFlags::GROW | SealFlags::SHRINK;
    if rustix::fs::fcntl_get_seals(file).map_err(errno::of)?.intersects(sealed) {
        return Err(Errno::EACCES);
    }
    let write = || {
        rustix::fs::ftruncate(file, 0)?;
        let mut written = 0;
        while written < content.len() {
            written += rustix::io::pwrite(file, &content[written..], written as u64)?;
        }
        Ok(())
    };
    call::without_signal(|| write().map_err(errno::of))?;
    Ok(version)
}

/// Reads the contents of a record, and their version. Their code shows that this process has written them, but not
/// that they are the last ones.
///
/// # Errors
/// EBADF: `fd` is not open. EINVAL: not a record of this kind. EACCES: another process wrote the record, for example the
/// parent before fork, or a thread with other credentials wrote it.
pub fn read(fd: BorrowedFd<'_>, kind: Kind) -> Result<(Version, Vec<u8>), Errno> {
    let stat = rustix::fs::fstat(fd).map_err(errno::of)?;
    let size = stat.st_size as u64;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !(CODE as u64..=LONGEST).contains(&size) {
        return Err(refusal(fd, kind));
    }
    let mut content = vec![0; size as usize];
    let mut filled = 0;
    while filled < content.len() {
        match rustix::io::pread(fd, &mut content[filled..], filled as u64) {
            Ok(length) if length > 0 => filled += length,
            _ => return Err(refusal(fd, kind)),
        }
    }
    let (found, body) = content.split_at(CODE);
    let version = version(&stat, kind, body)?;
    // The comparison takes the same time for each wrong code.
    let differences = version.code.iter().zip(found).fold(0, |all, (one, other)| all | (one ^ other));
    if differences != 0 {
        return Err(refusal(fd, kind));
    }
    let body = body.strip_prefix(&credentials()?).ok_or(Errno::EACCES)?;
    Ok((version, body.to_vec()))
}

/// The reason why a descriptor is no record of this process: EACCES for a memfd with the name of this kind, or EINVAL.
fn refusal(fd: BorrowedFd<'_>, kind: Kind) -> Errno {
    // Only a memfd, or a file of hugetlbfs or tmpfs, has seals.
    if rustix::fs::fcntl_get_seals(fd).is_err() {
        return Errno::EINVAL;
    }
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    let name = [b"/memfd:", kind.name().as_bytes(), b" (deleted)"].concat();
    // Without /proc, the name is unknown.
    match rustix::fs::readlinkat(rustix::fs::CWD, path, Vec::new()) {
        Ok(link) if link.to_bytes() != name => Errno::EINVAL,
        _ => Errno::EACCES,
    }
}
