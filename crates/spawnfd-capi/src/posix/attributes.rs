// SPDX-License-Identifier: MIT OR Apache-2.0
//! `posix_spawnattr_t` and its functions.

use core::ffi::{c_int, c_short};

use libc::{EINVAL, SCHED_FIFO, SCHED_OTHER, SCHED_RR, pid_t, sched_param, sigset_t};

/// The child's effective ids become its real ids (`POSIX_SPAWN_RESETIDS`).
pub const RESETIDS: c_short = 0x01;
/// The child joins or creates a process group (`POSIX_SPAWN_SETPGROUP`).
pub const SETPGROUP: c_short = 0x02;
/// The child sets signals to their default disposition (`POSIX_SPAWN_SETSIGDEF`).
pub const SETSIGDEF: c_short = 0x04;
/// The child sets its signal mask (`POSIX_SPAWN_SETSIGMASK`).
pub const SETSIGMASK: c_short = 0x08;
/// The child sets its scheduling parameters (`POSIX_SPAWN_SETSCHEDPARAM`).
pub const SETSCHEDPARAM: c_short = 0x10;
/// The child sets its scheduling policy and parameters (`POSIX_SPAWN_SETSCHEDULER`).
pub const SETSCHEDULER: c_short = 0x20;
/// No effect (`POSIX_SPAWN_USEVFORK`).
pub const USEVFORK: c_short = 0x40;
/// The child creates a session (`POSIX_SPAWN_SETSID`).
pub const SETSID: c_short = 0x80;
/// The kernel creates the child in a cgroup (`POSIX_SPAWN_SETCGROUP`, glibc 2.39).
pub const SETCGROUP: c_short = 0x100;

const ALL_FLAGS: c_short =
    RESETIDS | SETPGROUP | SETSIGDEF | SETSIGMASK | SETSCHEDPARAM | SETSCHEDULER | USEVFORK | SETSID | SETCGROUP;

/// `posix_spawnattr_t`, with glibc's layout.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, missing_debug_implementations)]
pub struct Attributes {
    pub flags: c_short,
    pub group: pid_t,
    pub default_signals: sigset_t,
    pub signal_mask: sigset_t,
    pub scheduling: sched_param,
    pub policy: c_int,
    pub cgroup: c_int,
    padding: [c_int; 15],
}

const _: () = assert!(size_of::<Attributes>() == size_of::<libc::posix_spawnattr_t>());

/// posix_spawnattr_init(3).
///
/// # Safety
/// `attributes` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnattr_init(attributes: *mut Attributes) -> c_int {
    // SAFETY: the caller guarantees the pointer. All-zero is a valid value.
    unsafe { attributes.write_bytes(0, 1) };
    0
}

/// posix_spawnattr_destroy(3). Has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn posix_spawnattr_destroy(_attributes: *mut Attributes) -> c_int {
    0
}

/// Defines a function that copies a field to `value`.
macro_rules! getter {
    ($name:ident, $field:ident: $type:ty) => {
        #[doc = concat!(stringify!($name), "(3).")]
        ///
        /// # Safety
        /// Both pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(attributes: *const Attributes, value: *mut $type) -> c_int {
            // SAFETY: the caller guarantees the pointers.
            unsafe { value.write((*attributes).$field) };
            0
        }
    };
}

/// Defines a function that sets a field to a number, or returns EINVAL for a value that `is_valid` refuses.
macro_rules! setter {
    ($name:ident, $field:ident: $type:ty, $is_valid:expr) => {
        #[doc = concat!(stringify!($name), "(3).")]
        ///
        /// # Safety
        /// The pointer is valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(attributes: *mut Attributes, value: $type) -> c_int {
            let is_valid: fn($type) -> bool = $is_valid;
            if !is_valid(value) {
                return EINVAL;
            }
            // SAFETY: the caller guarantees the pointer.
            unsafe { (*attributes).$field = value };
            0
        }
    };
}

/// Defines a function that copies `value` to a field.
macro_rules! pointer_setter {
    ($name:ident, $field:ident: $type:ty) => {
        #[doc = concat!(stringify!($name), "(3).")]
        ///
        /// # Safety
        /// Both pointers are valid.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(attributes: *mut Attributes, value: *const $type) -> c_int {
            // SAFETY: the caller guarantees the pointers.
            unsafe { (*attributes).$field = value.read() };
            0
        }
    };
}

getter!(posix_spawnattr_getflags, flags: c_short);
setter!(posix_spawnattr_setflags, flags: c_short, |flags| flags & !ALL_FLAGS == 0);
getter!(posix_spawnattr_getpgroup, group: pid_t);
setter!(posix_spawnattr_setpgroup, group: pid_t, |_| true);
getter!(posix_spawnattr_getsigdefault, default_signals: sigset_t);
pointer_setter!(posix_spawnattr_setsigdefault, default_signals: sigset_t);
getter!(posix_spawnattr_getsigmask, signal_mask: sigset_t);
pointer_setter!(posix_spawnattr_setsigmask, signal_mask: sigset_t);
getter!(posix_spawnattr_getschedparam, scheduling: sched_param);
pointer_setter!(posix_spawnattr_setschedparam, scheduling: sched_param);
getter!(posix_spawnattr_getschedpolicy, policy: c_int);
// glibc accepts the policies of POSIX only.
setter!(posix_spawnattr_setschedpolicy, policy: c_int, |policy| matches!(policy, SCHED_OTHER | SCHED_FIFO | SCHED_RR));
getter!(posix_spawnattr_getcgroup_np, cgroup: c_int);
setter!(posix_spawnattr_setcgroup_np, cgroup: c_int, |_| true);
