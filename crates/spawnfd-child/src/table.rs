// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives the child a descriptor table of its own that contains the sources.

use spawnfd_sys::call::{self, CLOSE_RANGE_UNSHARE};
use spawnfd_sys::{CallSet, Errno, RawFd, receive_descriptors};

use crate::MAX_SOURCES;
use crate::descriptors::Sources;
use crate::plan::{Plan, Table};

/// Leaves the caller's table if the child shares it, and moves all sources above the numbers that steps use.
#[inline]
pub(crate) fn own_table(table: Table, plan: &Plan<'_>) -> Result<Sources, Errno> {
    let (highest, above, killed_calls) = (plan.highest, plan.above, plan.killed_calls);
    let mut sources = Sources { fds: [-1; MAX_SOURCES], highest, above, killed_calls };
    let Some(fds) = sources.fds.get_mut(..plan.sources.len()) else {
        return Err(Errno::EINVAL);
    };
    let cut = match table {
        Table::Passed { socket, identity, tag } => {
            call::close_range(plan.killed_calls, socket as u32 + 1, u32::MAX, CLOSE_RANGE_UNSHARE)?;
            if !fds.is_empty() {
                check_identity(socket, identity)?;
                if receive_descriptors(socket, fds)? != tag {
                    return Err(Errno::ENOTSOCK);
                }
            }
            socket
        }
        Table::Fetched { pidfd: Some((pidfd, identity)), .. } => {
            call::close_range(plan.killed_calls, pidfd as u32 + 1, u32::MAX, CLOSE_RANGE_UNSHARE)?;
            if !fds.is_empty() {
                check_identity(pidfd, identity)?;
                copy_by_pidfd_getfd(plan, pidfd, fds)?;
            }
            pidfd
        }
        Table::Fetched { pidfd: None, thread } => {
            call::close_range(plan.killed_calls, 3, u32::MAX, CLOSE_RANGE_UNSHARE)?;
            if !fds.is_empty() {
                let pidfd = call::pidfd_open_thread(plan.killed_calls, thread)?;
                copy_by_pidfd_getfd(plan, pidfd, fds)?;
                call::close(pidfd)?;
            }
            2
        }
        Table::Trimmed { above } => {
            call::close_range(plan.killed_calls, above as u32, u32::MAX, CLOSE_RANGE_UNSHARE)?;
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
            *fd = call::dup_above(*fd, plan.above).map_err(emfile_beyond_limit)?;
        }
        if *fd >= plan.below {
            return Err(Errno::EMFILE);
        }
        sources.highest = sources.highest.max(*fd);
    }
    if matches!(table, Table::Copied) && plan.keep.is_some() && plan.may_block_forever() {
        close_all_but(plan.killed_calls, fds);
    }
    Ok(sources)
}

/// Closes all descriptors of a copied table except 0 to 2 and `fds`, so that a blocking step does
/// not keep files open.
///
/// Without close_range these descriptors stay open until exec.
#[cold]
fn close_all_but(killed_calls: CallSet, fds: &[RawFd]) {
    let mut first = 3;
    loop {
        let next = fds.iter().copied().filter(|&fd| fd >= first).min();
        let last = next.map_or(u32::MAX, |fd| (fd as u32).wrapping_sub(1));
        if first as u32 <= last {
            let _ = call::close_range(killed_calls, first as u32, last, 0);
        }
        match next {
            Some(fd) => first = fd.wrapping_add(1),
            None => return,
        }
    }
}

/// Records that the sources have the same numbers in the child as in the caller.
fn copy(sources: &[RawFd], fds: &mut [RawFd]) {
    fds.iter_mut().zip(sources).for_each(|(fd, &source)| *fd = source);
}

/// Checks that a number still refers to the recorded file.
///
/// The child makes this check after it has its own descriptor table. From then on no other thread
/// can replace the file.
fn check_identity(fd: RawFd, identity: (u64, u64)) -> Result<(), Errno> {
    if call::identify(fd) == Ok(identity) { Ok(()) } else { Err(Errno::ENOTSOCK) }
}

/// Copies the caller's descriptors through a pidfd of the calling thread. That thread sleeps.
fn copy_by_pidfd_getfd(plan: &Plan<'_>, pidfd: RawFd, fds: &mut [RawFd]) -> Result<(), Errno> {
    for (fd, &source) in fds.iter_mut().zip(&*plan.sources) {
        *fd = call::pidfd_getfd(plan.killed_calls, pidfd, source)?;
    }
    Ok(())
}

/// Turns F_DUPFD's EINVAL for a number at or above RLIMIT_NOFILE into EMFILE.
fn emfile_beyond_limit(errno: Errno) -> Errno {
    if errno == Errno::EINVAL { Errno::EMFILE } else { errno }
}
