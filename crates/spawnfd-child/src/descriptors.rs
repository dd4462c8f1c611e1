// SPDX-License-Identifier: MIT OR Apache-2.0
//! The child's descriptor table: getting one, and leaving in it what the program is to have.

use spawnfd_sys::call::{self, CLOSE_RANGE_UNSHARE};
use spawnfd_sys::{Calls, Errno, RawFd, abi, receive_descriptors};

use crate::MAX_SOURCES;
use crate::plan::{Plan, Table};

/// The close-on-exec flag of close_range, Linux 5.11.
const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// The sources under the numbers they have in the child.
pub(crate) struct Sources {
    fds: [RawFd; MAX_SOURCES],
    /// No number above this one is open, nor will be when all steps are done.
    highest: RawFd,
}

impl Sources {
    pub(crate) fn get(&self, source: usize) -> RawFd {
        self.fds.get(source).copied().unwrap_or(-1)
    }

    /// The last number that may be open: kernels look at each number of a range to close, open or not.
    pub(crate) fn last(&self) -> u32 {
        if self.highest == RawFd::MAX { u32::MAX } else { self.highest as u32 }
    }
}

/// Leaves the caller's table, if the child is in it, and brings all sources above the numbers that steps use.
#[inline]
pub(crate) fn own_table(table: Table, plan: &Plan) -> Result<Sources, Errno> {
    let mut sources = Sources { fds: [-1; MAX_SOURCES], highest: plan.highest };
    let Some(fds) = sources.fds.get_mut(..plan.sources.len()) else {
        return Err(Errno::EINVAL);
    };
    let cut = match table {
        Table::Passed { socket, identity, tag } => {
            call::close_range(plan.killed, socket as u32 + 1, u32::MAX, CLOSE_RANGE_UNSHARE)?;
            if !fds.is_empty() {
                is_still(socket, identity)?;
                if receive_descriptors(socket, fds)? != tag {
                    return Err(Errno::ENOTSOCK);
                }
            }
            socket
        }
        Table::Fetched { door: Some((door, identity)), .. } => {
            call::close_range(plan.killed, door as u32 + 1, u32::MAX, CLOSE_RANGE_UNSHARE)?;
            if !fds.is_empty() {
                is_still(door, identity)?;
                fetch(plan, door, fds)?;
            }
            door
        }
        Table::Fetched { door: None, thread } => {
            call::close_range(plan.killed, 3, u32::MAX, CLOSE_RANGE_UNSHARE)?;
            if !fds.is_empty() {
                let door = call::pidfd_open_thread(plan.killed, thread)?;
                fetch(plan, door, fds)?;
                call::close(door)?;
            }
            2
        }
        Table::Trimmed { above } => {
            call::close_range(plan.killed, above as u32, u32::MAX, CLOSE_RANGE_UNSHARE)?;
            copy(&plan.sources, fds);
            above - 1
        }
        Table::Copied => {
            copy(&plan.sources, fds);
            RawFd::MAX
        }
    };
    sources.highest = cut.max(plan.highest);
    for fd in &mut *fds {
        if !(plan.above..plan.below).contains(fd) {
            *fd = call::dup_above(*fd, plan.above).map_err(no_room)?;
        }
        if *fd >= plan.below {
            return Err(Errno::EMFILE);
        }
        sources.highest = sources.highest.max(*fd);
    }
    if matches!(table, Table::Copied) && plan.keep.is_some() && plan.may_stand_still() {
        close_all_but(plan.killed, fds);
    }
    Ok(sources)
}

/// Closes what else a copied table has, lest it stay open as long as a step takes; what cannot be closed at one go, exec closes.
#[cold]
fn close_all_but(killed: Calls, fds: &[RawFd]) {
    let mut first = 3;
    loop {
        let next = fds.iter().copied().filter(|&fd| fd >= first).min();
        let last = next.map_or(u32::MAX, |fd| (fd as u32).wrapping_sub(1));
        if first as u32 <= last {
            let _ = call::close_range(killed, first as u32, last, 0);
        }
        match next {
            Some(fd) => first = fd.wrapping_add(1),
            None => return,
        }
    }
}

/// The sources have their own numbers.
fn copy(sources: &[RawFd], fds: &mut [RawFd]) {
    fds.iter_mut().zip(sources).for_each(|(fd, &source)| *fd = source);
}

/// Whether a number still refers to what it is known for. Asked when the table is the child's own: from then on nobody else can
/// put another file there.
fn is_still(fd: RawFd, identity: (u64, u64)) -> Result<(), Errno> {
    if call::identify(fd) == Ok(identity) { Ok(()) } else { Err(Errno::ENOTSOCK) }
}

/// Copies the caller's descriptors through a pidfd of the calling thread, which is asleep.
fn fetch(plan: &Plan, door: RawFd, fds: &mut [RawFd]) -> Result<(), Errno> {
    for (fd, &source) in fds.iter_mut().zip(&plan.sources) {
        *fd = call::pidfd_getfd(plan.killed, door, source)?;
    }
    Ok(())
}

/// F_DUPFD calls a number from RLIMIT_NOFILE on invalid; it has run out of numbers.
fn no_room(errno: Errno) -> Errno {
    if errno == Errno::EINVAL { Errno::EMFILE } else { errno }
}

/// Makes what lies in a range vanish: numbers below `above` at once, the sources and what else is higher at exec.
pub(crate) fn close_range(killed: Calls, first: u32, last: u32, above: RawFd) -> Result<(), Errno> {
    let above = above as u32;
    if first < above {
        let last = last.min(above - 1);
        if call::close_range(killed, first, last, 0).is_err() {
            // `above` is small: 256 actions name few numbers, and validation bounds them.
            for fd in first..=last {
                let _ = call::close(fd as RawFd);
            }
        }
    }
    if last >= above { close_at_exec(killed, first.max(above), last) } else { Ok(()) }
}

/// Leaves the program 0, 1, 2 and `keep` (ascending), and nothing else: the others, up to `last`, are closed `now`, or at exec.
///
/// Better now: exec lets the parent go on first and closes afterwards, so that a file the parent closes and executes is found open for
/// writing here (ETXTBSY).
#[inline]
pub(crate) fn keep_only(killed: Calls, keep: &[RawFd], last: u32, now: bool) -> Result<(), Errno> {
    let close = |first, last| match now && call::close_range(killed, first, last, 0).is_ok() {
        true => Ok(()),
        false => close_at_exec(killed, first, last),
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

/// Marks a range close-on-exec; where the kernel can't at one go, by the list of what is open.
#[inline]
fn close_at_exec(killed: Calls, first: u32, last: u32) -> Result<(), Errno> {
    match call::close_range(killed, first, last, CLOSE_RANGE_CLOEXEC) {
        Ok(_) => Ok(()),
        Err(_) => mark_listed(first, last),
    }
}

/// The way without close_range: /proc/self/fd, or where that is missing every number up to the highest possible.
#[cold]
fn mark_listed(first: u32, last: u32) -> Result<(), Errno> {
    let mark = |fd: u32| {
        let _ = call::set_descriptor_flags(fd as RawFd, abi::FD_CLOEXEC);
    };
    let flags = abi::O_RDONLY | abi::O_DIRECTORY | abi::O_CLOEXEC;
    let Ok(list) = call::openat(abi::AT_FDCWD, c"/proc/self/fd", flags, 0) else {
        // Without /proc there is no way to learn more than the limit, which may have been lowered since.
        (first..=last.min(1 << 16)).for_each(mark);
        return Ok(());
    };
    let mut buffer = [0u8; 2048];
    loop {
        let length = call::getdents(list, &mut buffer)?;
        if length == 0 {
            break;
        }
        let mut rest = buffer.get(..length).unwrap_or(&[]);
        // struct linux_dirent64: inode and offset of 8 bytes each, length of 2, type of 1, name.
        while let Some(&[low, high]) = rest.get(16..18) {
            let size = u16::from_le_bytes([low, high]) as usize;
            if let Some(fd) = rest.get(19..size).and_then(number)
                && (first..=last).contains(&fd)
            {
                mark(fd);
            }
            rest = rest.get(size..).unwrap_or(&[]);
        }
    }
    call::close(list).map(drop)
}

/// A decimal name up to its NUL.
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
