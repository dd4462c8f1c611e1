// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads attributes of the calling thread, such as keyrings, scheduling and NUMA policy. No function changes them.

use super::*;

/// Whether this process has a thread with this id. The kernel may report a joined thread for a moment longer.
#[doc(alias = "tgkill")]
pub fn has_thread(thread: i32) -> bool {
    getpid().and_then(|own| enter!(__NR_tgkill, own, thread, 0u32)).is_ok()
}

/// A descriptor's flags: FD_CLOEXEC or none.
pub fn descriptor_flags(fd: RawFd) -> Result<u32, Errno> {
    enter!(__NR_fcntl, fd, abi::F_GETFD).map(|flags| flags as u32)
}

/// The serial number of the session keyring.
///
/// If the thread has no session keyring, the kernel joins it to its user's default keyring, which the thread would also
/// use without this call.
#[doc(alias = "keyctl")]
pub fn session_keyring(killed_calls: CallSet) -> Result<usize, Errno> {
    killed_calls.refuse(Call::Keyctl)?;
    // The arguments are KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, and 0 to create no
    // keyring.
    enter!(__NR_keyctl, 0u32, -3i32, 0u32)
}

/// The keyring to which the kernel links requested keys. Reads it by KEYCTL_SET_REQKEY_KEYRING with
/// the argument that changes nothing.
#[doc(alias = "keyctl")]
pub fn request_key_destination(killed_calls: CallSet) -> Result<usize, Errno> {
    killed_calls.refuse(Call::Keyctl)?;
    enter!(__NR_keyctl, 14u32, -1i32)
}

/// The thread's policy, flags, nice value, priority, deadline parameters and utilisation clamps, in
/// the layout of `struct sched_attr`.
#[doc(alias = "sched_getattr")]
pub fn scheduling(killed_calls: CallSet) -> Result<[u64; 7], Errno> {
    killed_calls.refuse(Call::SchedGetattr)?;
    let mut attributes = [0u64; 7];
    enter!(__NR_sched_getattr, 0u32, attributes.as_mut_ptr(), size_of_val(&attributes), 0u32)?;
    Ok(attributes)
}

/// The processors on which the calling thread may run, one bit each.
#[doc(alias = "sched_getaffinity")]
pub fn affinity() -> Result<[u64; 128], Errno> {
    let mut mask = [0u64; 128];
    enter!(__NR_sched_getaffinity, 0u32, size_of_val(&mask), mask.as_mut_ptr())?;
    Ok(mask)
}

/// The I/O priority of the thread.
#[doc(alias = "ioprio_get")]
pub fn io_priority(killed_calls: CallSet) -> Result<usize, Errno> {
    killed_calls.refuse(Call::IoprioGet)?;
    // The first argument is IOPRIO_WHO_PROCESS.
    enter!(__NR_ioprio_get, 1u32, 0u32)
}

/// The NUMA policy of the thread, and its nodes, one bit each.
#[doc(alias = "get_mempolicy")]
pub fn memory_policy(killed_calls: CallSet) -> Result<(i32, [u64; 16]), Errno> {
    killed_calls.refuse(Call::GetMempolicy)?;
    let (mut mode, mut nodes) = (0i32, [0u64; 16]);
    enter!(__NR_get_mempolicy, &raw mut mode, nodes.as_mut_ptr(), size_of_val(&nodes) * 8, 0usize, 0usize)?;
    Ok((mode, nodes))
}

/// The execution domain of the thread, and its flags (personality(2)).
#[doc(alias = "personality")]
pub fn persona(killed_calls: CallSet) -> Result<usize, Errno> {
    killed_calls.refuse(Call::Personality)?;
    enter!(__NR_personality, u32::MAX)
}

/// Whether the thread may read the time stamp counter (PR_GET_TSC).
#[doc(alias = "PR_GET_TSC")]
pub fn time_stamp_counter() -> Result<i32, Errno> {
    let mut mode = 0i32;
    enter!(__NR_prctl, 25u32, &raw mut mode, 0usize, 0usize, 0usize)?;
    Ok(mode)
}

/// The core scheduling cookie of the thread (Linux 5.14).
#[doc(alias = "PR_SCHED_CORE_GET")]
pub fn core_cookie() -> Result<u64, Errno> {
    let mut cookie = 0u64;
    enter!(__NR_prctl, 62u32, 0usize, 0usize, 0usize, &raw mut cookie)?;
    Ok(cookie)
}
