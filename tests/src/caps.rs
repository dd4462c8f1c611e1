// SPDX-License-Identifier: MIT OR Apache-2.0
//! Capabilities of the calling thread: names, bit sets, capget(2) and capset(2).

use syscalls::{Errno, Sysno, syscall};

use crate::raw::{Query, ambient_has, prctl_get};

/// Names of the capabilities, in the order of their numbers (linux/capability.h, up to Linux 6.18).
const NAMES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

/// The names of the capabilities in a bit set, in the order of their numbers.
pub(crate) fn names(set: u64) -> Vec<String> {
    (0..64)
        .filter(|bit| set >> bit & 1 == 1)
        .map(|bit| NAMES.get(bit).map_or_else(|| format!("cap_{bit}"), |name| (*name).to_owned()))
        .collect()
}

/// The bit set of the capabilities with these names.
pub(crate) fn set_of(wanted: &[&str]) -> u64 {
    wanted.iter().fold(0, |set, name| {
        let bit = NAMES.iter().position(|known| known == name).expect("a known capability");
        set | 1 << bit
    })
}

/// The permitted, effective and inheritable capability sets of a thread, as bit sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caps {
    pub permitted: u64,
    pub effective: u64,
    pub inheritable: u64,
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// _LINUX_CAPABILITY_VERSION_3, in which each set has two 32-bit words.
const VERSION_3: u32 = 0x2008_0522;

impl Caps {
    /// The calling thread's sets.
    pub fn get() -> Result<Self, Errno> {
        let mut header = Header { version: VERSION_3, pid: 0 };
        let mut words = [[0_u32; 3]; 2];
        // SAFETY: with version 3, capget stores two structs of three 32-bit words.
        unsafe { syscall!(Sysno::capget, &raw mut header, words.as_mut_ptr()) }?;
        let set = |which: usize| u64::from(words[0][which]) | u64::from(words[1][which]) << 32;
        Ok(Self { effective: set(0), permitted: set(1), inheritable: set(2) })
    }

    /// Replaces the calling thread's sets with these.
    pub fn set(self) -> Result<(), Errno> {
        let mut header = Header { version: VERSION_3, pid: 0 };
        let half = |shift: u32| [self.effective, self.permitted, self.inheritable].map(|set| (set >> shift) as u32);
        let words = [half(0), half(32)];
        // SAFETY: with version 3, capset reads two structs of three 32-bit words.
        unsafe { syscall!(Sysno::capset, &raw mut header, words.as_ptr()) }.map(drop)
    }
}

/// The calling thread's bounding set.
pub(crate) fn bounding() -> Result<u64, Errno> {
    each(|capability| prctl_get(Query::BoundingHas, capability).map(|has| has == 1))
}

/// The calling thread's ambient set.
pub(crate) fn ambient() -> Result<u64, Errno> {
    each(ambient_has)
}

/// Calls `has` for every capability that the kernel knows. For the first unknown number `has` fails with EINVAL.
fn each(has: impl Fn(usize) -> Result<bool, Errno>) -> Result<u64, Errno> {
    let mut set = 0;
    for capability in 0..64 {
        match has(capability) {
            Ok(true) => set |= 1 << capability,
            Ok(false) => {}
            Err(Errno::EINVAL) if capability > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(set)
}
