// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks actions, and copies them with the data to which they point.

use core::mem::offset_of;
use core::ops::RangeInclusive;
use std::ffi::CStr;

use serde::{Deserialize, Serialize};
use spawnfd::internal::killed_calls;
use spawnfd_sys::spawn_abi::*;
use spawnfd_sys::{Errno, abi, call};

use crate::copy;

/// The namespaces in which a child can start, or which it can join.
pub(super) const NAMESPACES: u32 = abi::CLONE_NEWNS
    | abi::CLONE_NEWCGROUP
    | abi::CLONE_NEWUTS
    | abi::CLONE_NEWIPC
    | abi::CLONE_NEWUSER
    | abi::CLONE_NEWPID
    | abi::CLONE_NEWNET
    | abi::CLONE_NEWTIME;
/// The close-on-exec flag of close_range, Linux 5.11.
pub(super) const CLOSE_RANGE_CLOEXEC: u32 = 1 << 2;
/// The set of all capabilities, as of Linux 5.9.
pub(super) const ALL_CAPABILITIES: u64 = (1 << 41) - 1;
/// SIGKILL and SIGSTOP, as a set.
const UNBLOCKABLE: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);

/// The sizes of the two versions of `struct sched_attr`.
const SCHED_ATTR_SIZES: [usize; 2] = [48, 56];
/// The largest affinity mask, in bytes: 8192 CPUs.
const MAX_AFFINITY: usize = 1024;

/// The members of an action, and a copy of the data at its `arg`.
///
/// The data is: a signal set, 8 bytes. For OPEN, `struct open_how` and then the path. For a path or a map, the string
/// without its NUL. Otherwise the struct or array. An action whose `arg` is a number has no data.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Action {
    /// `SPAWN_ACTION_*`.
    pub(super) kind: u32,
    pub(super) flags: u32,
    pub(super) fd: i32,
    pub(super) newfd: i32,
    pub(super) arg: u64,
    pub(super) data: Vec<u8>,
}

impl Action {
    /// Checks and copies an action.
    ///
    /// # Errors
    /// EINVAL: an invalid type or member. EFAULT: a NULL address. ENAMETOOLONG. E2BIG.
    ///
    /// # Safety
    /// If the type has data, `arg` is NULL or the address of that data.
    unsafe fn copy(raw: SpawnAction) -> Result<Action, Errno> {
        check(&raw)?;
        // SAFETY: the caller guarantees the data.
        let data = unsafe { copy_data(&raw) }?;
        let SpawnAction { r#type: kind, flags, fd, newfd, arg, .. } = raw;
        Ok(Action { kind, flags, fd, newfd, arg, data })
    }

    /// The number of the descriptor that the action uses, if it uses one.
    pub(super) fn descriptor(&self) -> Option<i32> {
        let uses_descriptor = matches!(
            self.kind,
            SPAWN_ACTION_CLOSE
                | SPAWN_ACTION_DUP2
                | SPAWN_ACTION_FCHDIR
                | SPAWN_ACTION_OPEN
                | SPAWN_ACTION_CTTY
                | SPAWN_ACTION_TCSETPGRP
                | SPAWN_ACTION_SETNS
                | SPAWN_ACTION_LANDLOCK
        );
        uses_descriptor.then_some(self.fd)
    }
}

/// Bytes as 64-bit numbers. Missing bytes are 0.
pub(super) fn words<const N: usize>(data: &[u8]) -> [u64; N] {
    let word = |index: usize| {
        let mut bytes = [0; 8];
        let data = data.get(index * 8..).unwrap_or_default();
        bytes.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
        u64::from_ne_bytes(bytes)
    };
    std::array::from_fn(word)
}

/// Bytes as 32-bit numbers.
pub(super) fn halves(data: &[u8]) -> Vec<u32> {
    data.as_chunks().0.iter().copied().map(u32::from_ne_bytes).collect()
}

/// Checks the description of a list of actions: its address, the number of actions, and the size of an action.
///
/// # Errors
/// EINVAL: a wrong size, or an address or a size without actions. E2BIG: too many actions, or a size of more than a
/// page.
pub(super) fn check_list(address: u64, count: u32, size: u32) -> Result<(), Errno> {
    if count == 0 {
        return if address == 0 && size == 0 { Ok(()) } else { Err(Errno::EINVAL) };
    }
    if size < SPAWN_ACTION_SIZE_VER0 || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    if size as usize > copy::page_size() || count > SPAWN_MAX_ACTIONS { Err(Errno::E2BIG) } else { Ok(()) }
}

/// Checks and copies actions, after [`check_list`].
///
/// # Errors
/// The index of the invalid action, and its errno. EFAULT for the first action: the address is NULL. E2BIG: a byte
/// after the known members is not 0.
///
/// # Safety
/// The address is NULL or that of `count` actions of this size, for which the requirements of [`Action::copy`] hold.
pub(super) unsafe fn copy_all(address: u64, count: u32, size: u32) -> Result<Vec<Action>, (usize, Errno)> {
    let size = size as usize;
    let copy = |index: usize| {
        let at = if address == 0 { 0 } else { address + (index * size) as u64 };
        // SAFETY: the caller guarantees the actions and their data.
        unsafe { copy::extensible(at, size).and_then(|raw| Action::copy(raw)) }.map_err(|errno| (index, errno))
    };
    (0..count as usize).map(copy).collect()
}

/// Checks the members of an action, but not the data at its `arg`.
///
/// # Errors
/// EINVAL.
fn check(raw: &SpawnAction) -> Result<(), Errno> {
    const UNUSED: RangeInclusive<i32> = 0..=0;
    const NUMBER: RangeInclusive<i32> = 0..=i32::MAX;
    const ANY: RangeInclusive<i32> = i32::MIN..=i32::MAX;
    const FILTER_FLAGS: u32 = (libc::SECCOMP_FILTER_FLAG_LOG | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) as u32;
    let SpawnAction { r#type, flags, fd, newfd, arg, reserved } = *raw;
    // The values that the members may have in an action of this type.
    let (numbers, second_numbers, has_arg, known_flags) = match r#type {
        SPAWN_ACTION_CLOSE
        | SPAWN_ACTION_FCHDIR
        | SPAWN_ACTION_SETPGID
        | SPAWN_ACTION_TCSETPGRP
        | SPAWN_ACTION_LANDLOCK => (NUMBER, UNUSED, false, 0),
        SPAWN_ACTION_UMASK => (0..=0o777, UNUSED, false, 0),
        SPAWN_ACTION_PDEATHSIG => (0..=64, UNUSED, false, 0),
        SPAWN_ACTION_NICE => (ANY, UNUSED, false, 0),
        SPAWN_ACTION_OOM_SCORE_ADJ => (-1000..=1000, UNUSED, false, 0),
        SPAWN_ACTION_DUP2 => (NUMBER, NUMBER, false, abi::O_CLOEXEC),
        SPAWN_ACTION_CLOSE_RANGE => (NUMBER, -1..=i32::MAX, false, CLOSE_RANGE_CLOEXEC),
        SPAWN_ACTION_OPEN => (ANY, NUMBER, true, 0),
        SPAWN_ACTION_SETRESGID | SPAWN_ACTION_SETRESUID => (ANY, ANY, true, 0),
        SPAWN_ACTION_SIGMASK
        | SPAWN_ACTION_SIGDEFAULT
        | SPAWN_ACTION_SIGIGNORE
        | SPAWN_ACTION_CHDIR
        | SPAWN_ACTION_CHROOT
        | SPAWN_ACTION_SCHED_ATTR
        | SPAWN_ACTION_CAPABILITIES
        | SPAWN_ACTION_UID_MAP
        | SPAWN_ACTION_GID_MAP => (UNUSED, UNUSED, true, 0),
        SPAWN_ACTION_RLIMIT => (0..=abi::RLIM_NLIMITS as i32 - 1, UNUSED, true, 0),
        SPAWN_ACTION_SETGROUPS | SPAWN_ACTION_AFFINITY => (ANY, UNUSED, true, 0),
        SPAWN_ACTION_CTTY => (NUMBER, UNUSED, false, 1),
        SPAWN_ACTION_SETNS => (NUMBER, UNUSED, false, NAMESPACES),
        SPAWN_ACTION_SCHEDULER => (-1..=i32::MAX, ANY, false, 0),
        SPAWN_ACTION_SECCOMP => (NUMBER, UNUSED, true, FILTER_FLAGS),
        SPAWN_ACTION_SETSID | SPAWN_ACTION_NO_NEW_PRIVS | SPAWN_ACTION_KEEP_CAPS | SPAWN_ACTION_DENY_SETGROUPS => {
            (UNUSED, UNUSED, false, 0)
        }
        _ => return Err(Errno::EINVAL),
    };
    let are_in_range = numbers.contains(&fd)
        && second_numbers.contains(&newfd)
        && (has_arg || arg == 0)
        && flags & !known_flags == 0
        && reserved == 0;
    let is_valid = match r#type {
        SPAWN_ACTION_DUP2 => fd != newfd || flags == 0,
        SPAWN_ACTION_OPEN => fd >= 0 || fd == libc::AT_FDCWD,
        SPAWN_ACTION_CLOSE_RANGE => fd as u32 <= newfd as u32,
        // -1 has 32 or 64 bits.
        SPAWN_ACTION_SETRESGID | SPAWN_ACTION_SETRESUID => arg >> 32 == 0 || arg == u64::MAX,
        _ => true,
    };
    if are_in_range && is_valid { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Copies the data at the `arg` of an action.
///
/// # Safety
/// If the type has data, `arg` is NULL or the address of that data.
unsafe fn copy_data(raw: &SpawnAction) -> Result<Vec<u8>, Errno> {
    let SpawnAction { fd, arg, .. } = *raw;
    let bytes = |length: usize| {
        // SAFETY: the caller guarantees the data.
        unsafe { copy::bytes(arg, length) }
    };
    match raw.r#type {
        SPAWN_ACTION_SIGMASK | SPAWN_ACTION_SIGDEFAULT | SPAWN_ACTION_SIGIGNORE => {
            // SAFETY: the caller guarantees the struct.
            let set: SpawnSigset = unsafe { copy::value(arg) }?;
            if set.sigsetsize != 8 {
                return Err(Errno::EINVAL);
            }
            // SAFETY: the caller guarantees the set.
            let signals: u64 = unsafe { copy::value(set.sigset) }?;
            Ok((signals & !UNBLOCKABLE).to_ne_bytes().to_vec())
        }
        SPAWN_ACTION_OPEN => {
            // SAFETY: the caller guarantees the struct, whose last member has the size that an earlier member states.
            let (path, how): (u64, OpenHow) = unsafe {
                let [path, size] = copy::value::<[u64; 2]>(arg)?;
                (path, copy::extensible(arg + offset_of!(SpawnOpen, how) as u64, size as usize)?)
            };
            check_how(&how)?;
            // SAFETY: the caller guarantees the path.
            let path = unsafe { copy::string(path, copy::MAX_PATH, Errno::ENAMETOOLONG) }?;
            let mut data: Vec<u8> = [how.flags, how.mode, how.resolve].into_iter().flat_map(u64::to_ne_bytes).collect();
            data.extend(path.as_bytes());
            Ok(data)
        }
        SPAWN_ACTION_CHDIR | SPAWN_ACTION_CHROOT | SPAWN_ACTION_UID_MAP | SPAWN_ACTION_GID_MAP => {
            // SAFETY: the caller guarantees the string.
            unsafe { copy::string(arg, copy::MAX_PATH, Errno::ENAMETOOLONG) }.map(std::ffi::CString::into_bytes)
        }
        SPAWN_ACTION_RLIMIT => bytes(16),
        SPAWN_ACTION_SETGROUPS => match fd {
            0 if arg == 0 => Ok(Vec::new()),
            1..=65536 => bytes(fd as usize * 4),
            _ => Err(Errno::EINVAL),
        },
        // SAFETY: the caller guarantees the struct.
        SPAWN_ACTION_SCHED_ATTR => unsafe { copy_scheduling(arg) },
        SPAWN_ACTION_AFFINITY if fd <= 0 => Err(Errno::EINVAL),
        SPAWN_ACTION_AFFINITY => bytes((fd as usize).min(MAX_AFFINITY)),
        SPAWN_ACTION_CAPABILITIES => {
            let data = bytes(size_of::<SpawnCapabilities>())?;
            let [.., ambient] = words::<5>(&data);
            if ambient & !ALL_CAPABILITIES == 0 { Ok(data) } else { Err(Errno::EINVAL) }
        }
        SPAWN_ACTION_SECCOMP if !(1..=4096).contains(&fd) || arg == 0 => Err(Errno::EINVAL),
        SPAWN_ACTION_SECCOMP => bytes(fd as usize * 8),
        _ => Ok(Vec::new()),
    }
}

/// Makes the kernel check the arguments of openat2(2). The kernel checks them before it looks at the path, which does
/// not exist.
fn check_how(how: &OpenHow) -> Result<(), Errno> {
    const NO_PATH: &CStr = c"";
    let how = abi::open_how { flags: how.flags, mode: how.mode, resolve: how.resolve };
    match call::openat2(killed_calls(), abi::AT_FDCWD, NO_PATH, &how) {
        Err(errno @ (Errno::EINVAL | Errno::EAGAIN | Errno::E2BIG)) => Err(errno),
        // ENOENT: the arguments are valid. Other errors: openat2 is not available.
        _ => Ok(()),
    }
}

/// Copies a `struct sched_attr` of any version.
///
/// # Safety
/// The address is NULL or that of such a struct.
unsafe fn copy_scheduling(address: u64) -> Result<Vec<u8>, Errno> {
    const KEEP_ALL: u64 = 0x18;
    const UTIL_CLAMP: u64 = 0x60;
    let [oldest, newest] = SCHED_ATTR_SIZES;
    // SAFETY: the struct begins with its size.
    let size = match unsafe { copy::value::<u32>(address) }? as usize {
        0 => oldest,
        size if (oldest..=copy::page_size()).contains(&size) => size,
        _ => return Err(Errno::E2BIG),
    };
    // SAFETY: the struct has this size.
    let mut data = unsafe { copy::bytes(address, size) }?;
    if data.iter().skip(newest).any(|&byte| byte != 0) {
        return Err(Errno::E2BIG);
    }
    data.resize(newest, 0);
    let ([_, flags], policy) = (words(&data), halves(&data)[1] as i32);
    let has_no_clamps = flags & UTIL_CLAMP != 0 && size < newest;
    if policy < 0 || flags & KEEP_ALL != 0 || has_no_clamps { Err(Errno::EINVAL) } else { Ok(data) }
}
