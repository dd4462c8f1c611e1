// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structures and constants of the spawn template RFC.
//!
//! The `u64` fields hold addresses where the RFC says so.
//!
//! # References
//! include/uapi/linux/spawn_template.h of the RFC, patch 4.

use spawnfd_sys::abi;

/// The template descriptor is close-on-exec.
pub const SPAWN_TEMPLATE_CREATE_CLOEXEC: u64 = 1 << 0;
/// The program inherits the descriptors above 2.
pub const SPAWN_TEMPLATE_SPAWN_INHERIT_FDS: u64 = 1 << 0;

/// Closes `fd`.
pub const SPAWN_TEMPLATE_ACTION_CLOSE: u32 = 0;
/// Makes `newfd` a copy of `fd`. `flags` may be O_CLOEXEC.
pub const SPAWN_TEMPLATE_ACTION_DUP2: u32 = 1;
/// Changes the working directory to `fd`.
pub const SPAWN_TEMPLATE_ACTION_FCHDIR: u32 = 2;
/// Opens a file below `fd` as `newfd`. `arg` is the address of a `struct spawn_template_open`.
pub const SPAWN_TEMPLATE_ACTION_OPEN: u32 = 3;
/// Closes the descriptors from `fd` to `newfd` (-1: the highest one). `flags` are those of close_range(2).
pub const SPAWN_TEMPLATE_ACTION_CLOSE_RANGE: u32 = 4;
/// Sets the signal mask. `arg` is the address of a `struct spawn_template_sigset`.
pub const SPAWN_TEMPLATE_ACTION_SIGMASK: u32 = 5;
/// Sets signals to their default disposition. `arg` is the address of a `struct spawn_template_sigset`.
pub const SPAWN_TEMPLATE_ACTION_SIGDEFAULT: u32 = 6;

/// The size of the first version of `struct spawn_template_create_args`.
pub const SPAWN_TEMPLATE_CREATE_ARGS_SIZE_VER0: usize = 72;
/// The size of the first version of `struct spawn_template_spawn_args`.
pub const SPAWN_TEMPLATE_SPAWN_ARGS_SIZE_VER0: usize = 80;

/// The maximum number of actions of a spawn.
pub const MAX_ACTIONS: u64 = 256;
/// The maximum size of a structure.
pub(super) const MAX_SIZE: usize = 4096;

/// The arguments of `spawn_template_create`.
#[allow(non_camel_case_types, missing_docs)]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct spawn_template_create_args {
    pub flags: u64,
    pub execfd: i32,
    pub exec_flags: u32,
    pub filename: u64,
    pub actions: u64,
    pub actions_len: u64,
    pub reserved: [u64; 4],
}

/// The arguments of `spawn_template_spawn`.
#[allow(non_camel_case_types, missing_docs)]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct spawn_template_spawn_args {
    pub flags: u64,
    pub pidfd: u64,
    pub argv: u64,
    pub envp: u64,
    pub actions: u64,
    pub actions_len: u64,
    pub reserved: [u64; 4],
}

/// An action of a spawn.
#[allow(non_camel_case_types, missing_docs)]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct spawn_template_action {
    /// SPAWN_TEMPLATE_ACTION_*.
    pub r#type: u32,
    pub flags: u32,
    pub fd: i32,
    pub newfd: i32,
    pub arg: u64,
}

/// The argument of SPAWN_TEMPLATE_ACTION_OPEN.
#[allow(non_camel_case_types, missing_docs, missing_debug_implementations)]
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spawn_template_open {
    pub path: u64,
    pub how: abi::open_how,
}

/// The argument of SPAWN_TEMPLATE_ACTION_SIGMASK and SPAWN_TEMPLATE_ACTION_SIGDEFAULT.
#[allow(non_camel_case_types, missing_docs)]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct spawn_template_sigset {
    pub sigset: u64,
    /// The size of the kernel's signal set: 8.
    pub sigsetsize: u64,
}

const _: () = assert!(size_of::<spawn_template_create_args>() == SPAWN_TEMPLATE_CREATE_ARGS_SIZE_VER0);
const _: () = assert!(size_of::<spawn_template_spawn_args>() == SPAWN_TEMPLATE_SPAWN_ARGS_SIZE_VER0);
