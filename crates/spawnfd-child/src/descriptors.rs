// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracks the sources in the child's descriptor table, and closes all descriptors that the program
//! does not get.

use core::ffi::CStr;

use spawnfd_sys::call;
use spawnfd_sys::{CallSet, Errno, RawFd, abi};

use crate::MAX_SOURCES;

/// The close-on-exec flag of close_range, Linux 5.11.
pub(crate) const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// The caller's descriptors that the plan uses (sources). `fds` has the number of each source in the child.
pub(crate) struct Sources {
    pub(crate) fds: [RawFd; MAX_SOURCES],
    /// An upper bound: no descriptor above this number is open, and no step opens a higher number.
    pub(crate) highest: RawFd,
    /// The sources have this number or higher numbers. The steps name only lower numbers.
    pub(crate) above: RawFd,
    pub(crate) killed_calls: CallSet,
}

impl Sources {
    pub(crate) fn get(&self, source: usize) -> RawFd {
        self.fds.get(source).copied().unwrap_or(-1)
    }

    /// The highest number that may be open, as a bound for close_range: the kernel visits each number of a range.
    pub(crate) fn last(&self) -> u32 {
        if self.highest == RawFd::MAX { u32::MAX } else { self.highest as u32 }
    }
}

/// Opens a file, by openat2 or, on Linux before 5.6 and under a filter, by openat.
pub(crate) fn open(killed_calls: CallSet, dir: RawFd, path: &CStr, how: &abi::open_how) -> Result<RawFd, Errno> {
    match call::openat2(killed_calls, dir, path, how) {
        Err(Errno::ENOSYS | Errno::EPERM) if how.resolve == 0 => {
            call::openat(dir, path, how.flags as u32, how.mode as u32)
        }
        opened => opened,
    }
}

/// Moves a descriptor to the number `to`.
pub(crate) fn move_to(fd: RawFd, to: RawFd) -> Result<(), Errno> {
    if fd != to {
        call::dup3(fd, to, 0)?;
        call::close(fd)?;
    }
    Ok(())
}

/// Closes a range of descriptors. The child closes the descriptors below the sources now. Exec
/// closes the sources and higher numbers.
pub(crate) fn close_range(sources: &Sources, first: u32, last: u32) -> Result<(), Errno> {
    let (killed_calls, above) = (sources.killed_calls, sources.above as u32);
    if first < above {
        let last = last.min(above - 1);
        if call::close_range(killed_calls, first, last, 0).is_err() {
            // The loop is short: `above` is small, because at most 256 actions name numbers and
            // validation bounds them.
            for fd in first..=last {
                let _ = call::close(fd as RawFd);
            }
        }
    }
    if last >= above { close_at_exec(killed_calls, first.max(above), last) } else { Ok(()) }
}

/// Closes all descriptors up to `last` except 0, 1, 2 and `keep` (ascending). Closes them now if
/// `now` is true, or else at exec by close-on-exec.
///
/// Closing now is better, because exec wakes the parent first and closes descriptors afterwards.
/// The parent may then close a file that it has written, and execute that file. If this child still
/// has the file open for writing, that exec fails with ETXTBSY.
#[inline]
pub(crate) fn keep_only(killed_calls: CallSet, keep: &[RawFd], last: u32, now: bool) -> Result<(), Errno> {
    let close = |first, last| match now && call::close_range(killed_calls, first, last, 0).is_ok() {
        true => Ok(()),
        false => close_at_exec(killed_calls, first, last),
    };
    let mut first = 3u32;
    for &fd in keep {
        let fd = fd as u32;
        if first < fd {
            close(first, fd - 1)?;
        }
        first = fd + 1;
    }
    if first <= last { close(first, last) } else { Ok(()) }
}

/// Sets close-on-exec on a range, by close_range (Linux 5.11) or else one descriptor at a time.
#[inline]
pub(crate) fn close_at_exec(killed_calls: CallSet, first: u32, last: u32) -> Result<(), Errno> {
    match call::close_range(killed_calls, first, last, CLOSE_RANGE_CLOEXEC) {
        Ok(_) => Ok(()),
        Err(_) => mark_listed(first, last),
    }
}

/// Closes all descriptors from `first` on now, by close_range (Linux 5.9) or else one descriptor at a time.
///
/// # Errors
/// The errno of open("/proc/self/fd"), if there is no close_range.
pub(crate) fn close_from(first: u32) -> Result<(), Errno> {
    close_now(CallSet::NONE, first, u32::MAX)
}

/// Closes a range of descriptors now, in the same way as [`close_from`].
///
/// # Errors
/// The errno of open("/proc/self/fd"), if there is no close_range.
pub(crate) fn close_now(killed_calls: CallSet, first: u32, last: u32) -> Result<(), Errno> {
    match call::close_range(killed_calls, first, last, 0) {
        Ok(_) => Ok(()),
        Err(_) => for_each_listed(first, last, |fd| _ = call::close(fd)),
    }
}

/// Sets close-on-exec without close_range, on each number that /proc/self/fd lists.
#[cold]
fn mark_listed(first: u32, last: u32) -> Result<(), Errno> {
    let mark = |fd: RawFd| _ = call::set_descriptor_flags(fd, abi::FD_CLOEXEC);
    // Without /proc, visit each number up to 65536. RLIMIT_NOFILE is no bound: the caller may have lowered it.
    for_each_listed(first, last, mark).or_else(|_| {
        (first..=last.min(1 << 16)).for_each(|fd| mark(fd as RawFd));
        Ok(())
    })
}

/// Visits each number of a range that /proc/self/fd lists.
#[cold]
fn for_each_listed(first: u32, last: u32, mut visit: impl FnMut(RawFd)) -> Result<(), Errno> {
    let flags = abi::O_RDONLY | abi::O_DIRECTORY | abi::O_CLOEXEC;
    let list = call::openat(abi::AT_FDCWD, c"/proc/self/fd", flags, 0)?;
    let mut buffer = [0u8; 2048];
    loop {
        let length = call::getdents(list, &mut buffer)?;
        if length == 0 {
            break;
        }
        let mut rest = buffer.get(..length).unwrap_or(&[]);
        // The fields of struct linux_dirent64: inode and offset of 8 bytes each, length of 2, type
        // of 1, name.
        while let Some(&[low, high]) = rest.get(16..18) {
            let size = u16::from_le_bytes([low, high]) as usize;
            if let Some(fd) = rest.get(19..size).and_then(number)
                && (first..=last).contains(&fd)
                && fd as RawFd != list
            {
                visit(fd as RawFd);
            }
            rest = rest.get(size..).unwrap_or(&[]);
        }
    }
    call::close(list).map(drop)
}

/// Parses a decimal name up to its NUL.
fn number(name: &[u8]) -> Option<u32> {
    let mut value = None;
    for &byte in name {
        match byte {
            b'0'..=b'9' => value = Some(value.unwrap_or(0u32).wrapping_mul(10).wrapping_add(u32::from(byte - b'0'))),
            0 => break,
            _ => return None,
        }
    }
    value
}
