// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structs and constants of the kernel series' `<linux/spawn.h>`, under the same names in C.

/// A flag of `pidfd_open(2)` in the kernel series: a pidfd without a process. `spawnfd_builder_open` implies it.
pub const PIDFD_EMPTY: u32 = 1 << 27;

/// Removes the value of a key, or of all keys. `value` is NULL and `aux` is 0.
pub const PIDFD_CONFIG_RESET: u32 = 0;
/// Sets a string. `value` is a `const char *`, and `aux` is 0.
pub const PIDFD_CONFIG_SET_STRING: u32 = 1;
/// Sets a descriptor. `value` is NULL, and `aux` is the descriptor's number.
pub const PIDFD_CONFIG_SET_FD: u32 = 2;
/// Sets a list of strings. `value` is a `const char *const *` that ends with NULL, and `aux` is 0.
pub const PIDFD_CONFIG_SET_STRINGS: u32 = 3;
/// Sets the actions. `value` is a `struct spawn_action_list *`, and `aux` is the size of this struct.
pub const PIDFD_CONFIG_SET_ACTIONS: u32 = 4;
/// Sets flags. `value` is NULL, and `aux` has the flags.
pub const PIDFD_CONFIG_SET_FLAGS: u32 = 5;

/// All keys, for `PIDFD_CONFIG_RESET`.
pub const PIDFD_CONFIG_KEY_ALL: u32 = 0;
/// The program's path, a string. Replaces `NAME` and `EXEC_FD`.
pub const PIDFD_CONFIG_KEY_PATH: u32 = 1;
/// The program's name, a string that a run searches in `SEARCH_PATH`. Replaces `PATH` and `EXEC_FD`.
pub const PIDFD_CONFIG_KEY_NAME: u32 = 2;
/// The directories to search, a string with colons between them.
pub const PIDFD_CONFIG_KEY_SEARCH_PATH: u32 = 3;
/// The program, a descriptor. Replaces `PATH` and `NAME`.
pub const PIDFD_CONFIG_KEY_EXEC_FD: u32 = 4;
/// The directory in which the child starts, a descriptor.
pub const PIDFD_CONFIG_KEY_CWD: u32 = 5;
/// The directory of the cgroup (v2) in which the child starts, a descriptor.
pub const PIDFD_CONFIG_KEY_CGROUP: u32 = 6;
/// The program's arguments, a list of strings.
pub const PIDFD_CONFIG_KEY_ARGV: u32 = 7;
/// The program's environment, a list of strings.
pub const PIDFD_CONFIG_KEY_ENVP: u32 = 8;
/// The actions before those of a run.
pub const PIDFD_CONFIG_KEY_ACTIONS: u32 = 9;
/// The new namespaces in which the child starts: `CLONE_NEW*` flags.
pub const PIDFD_CONFIG_KEY_NAMESPACES: u32 = 10;

/// Closes `fd`, which need not be open.
pub const SPAWN_ACTION_CLOSE: u32 = 0;
/// Makes `newfd` a copy of `fd`. `flags` is 0 or O_CLOEXEC. For equal numbers, clears close-on-exec.
pub const SPAWN_ACTION_DUP2: u32 = 1;
/// Changes the working directory to `fd`.
pub const SPAWN_ACTION_FCHDIR: u32 = 2;
/// Opens a file as `newfd`. `fd` is a directory or AT_FDCWD, and `arg` is a `struct spawn_open *`.
pub const SPAWN_ACTION_OPEN: u32 = 3;
/// Closes the descriptors from `first` to `last` (-1: all higher ones). `flags` is 0 or CLOSE_RANGE_CLOEXEC.
pub const SPAWN_ACTION_CLOSE_RANGE: u32 = 4;
/// Sets the program's signal mask. `arg` is a `struct spawn_sigset *`.
pub const SPAWN_ACTION_SIGMASK: u32 = 5;
/// Sets signals to their default action. `arg` is a `struct spawn_sigset *`.
pub const SPAWN_ACTION_SIGDEFAULT: u32 = 6;
/// Changes the working directory. `arg` is a `const char *`.
pub const SPAWN_ACTION_CHDIR: u32 = 7;
/// Creates a session.
pub const SPAWN_ACTION_SETSID: u32 = 8;
/// Joins the process group `pgid`; 0 creates a group.
pub const SPAWN_ACTION_SETPGID: u32 = 9;
/// Sets the file mode creation mask to `mask`, 0 to 0777.
pub const SPAWN_ACTION_UMASK: u32 = 10;
/// Sets the limit of `resource`. `arg` is a `struct rlimit64 *`.
pub const SPAWN_ACTION_RLIMIT: u32 = 11;
/// Sets the supplementary groups. `count` is their number, and `arg` is a `uint32_t *`.
pub const SPAWN_ACTION_SETGROUPS: u32 = 12;
/// Sets the group ids `real`, `effective` and `saved`; -1 leaves an id unchanged.
pub const SPAWN_ACTION_SETRESGID: u32 = 13;
/// Sets the user ids `real`, `effective` and `saved`; -1 leaves an id unchanged.
pub const SPAWN_ACTION_SETRESUID: u32 = 14;
/// Sets no_new_privs.
pub const SPAWN_ACTION_NO_NEW_PRIVS: u32 = 15;
/// Sets the parent-death signal to `signal`.
pub const SPAWN_ACTION_PDEATHSIG: u32 = 16;
/// Sets scheduling attributes. `arg` is a `struct sched_attr *` with its size.
pub const SPAWN_ACTION_SCHED_ATTR: u32 = 17;
/// Sets the CPU affinity. `size` is the size of the mask in bytes, and `arg` is its address.
pub const SPAWN_ACTION_AFFINITY: u32 = 18;
/// Ignores signals. `arg` is a `struct spawn_sigset *`.
pub const SPAWN_ACTION_SIGIGNORE: u32 = 19;
/// Changes the root directory. `arg` is a `const char *`.
pub const SPAWN_ACTION_CHROOT: u32 = 20;
/// Makes `fd` the controlling terminal. `flags` is the argument of TIOCSCTTY, 0 or 1.
pub const SPAWN_ACTION_CTTY: u32 = 21;
/// Makes the child's process group the foreground group of the terminal `fd`.
pub const SPAWN_ACTION_TCSETPGRP: u32 = 22;
/// Sets the nice value to `nice`.
pub const SPAWN_ACTION_NICE: u32 = 23;
/// Sets the scheduling policy to `policy` (-1: unchanged), and the priority to `priority`.
pub const SPAWN_ACTION_SCHEDULER: u32 = 24;
/// Sets the OOM killer's score adjustment to `score`, -1000 to 1000.
pub const SPAWN_ACTION_OOM_SCORE_ADJ: u32 = 25;
/// Sets all capability sets. `arg` is a `struct spawn_capabilities *`.
pub const SPAWN_ACTION_CAPABILITIES: u32 = 26;
/// Keeps the permitted capabilities across a change of user ids.
pub const SPAWN_ACTION_KEEP_CAPS: u32 = 27;
/// Joins the namespaces of `fd`. `flags` has CLONE_NEW* flags, or 0.
pub const SPAWN_ACTION_SETNS: u32 = 28;
/// Disables setgroups(2) in the child's user namespace.
pub const SPAWN_ACTION_DENY_SETGROUPS: u32 = 29;
/// Writes `arg`, a `const char *`, to /proc/self/uid_map.
pub const SPAWN_ACTION_UID_MAP: u32 = 30;
/// Writes `arg`, a `const char *`, to /proc/self/gid_map.
pub const SPAWN_ACTION_GID_MAP: u32 = 31;
/// Restricts the child by the Landlock ruleset `fd`.
pub const SPAWN_ACTION_LANDLOCK: u32 = 32;
/// Adds a seccomp filter of `count` instructions, a `struct sock_filter *` in `arg`. `flags`: `SECCOMP_FILTER_FLAG_*`.
pub const SPAWN_ACTION_SECCOMP: u32 = 33;

/// The maximum number of actions of a run, those of the configuration included.
pub const SPAWN_MAX_ACTIONS: u32 = 256;

/// The child starts without descriptors, not with 0 to 2.
pub const SPAWN_FDS_NONE: u32 = 1 << 0;
/// The child starts with all descriptors of the caller that are not close-on-exec.
pub const SPAWN_FDS_INHERIT: u32 = 1 << 1;
/// The builder's number becomes the pidfd.
pub const SPAWN_BECOME_PIDFD: u32 = 1 << 2;

/// The child failed to find, open or execute the program.
pub const SPAWN_FAILED_EXEC: i32 = -1;
/// The run failed before there was a child.
pub const SPAWN_FAILED_SETUP: i32 = -2;
/// The child failed to change to the configured directory.
pub const SPAWN_FAILED_CWD: i32 = -3;

/// The size of the first version of `struct spawn_action`.
pub const SPAWN_ACTION_SIZE_VER0: u32 = 32;
/// The size of the first version of `struct spawn_action_list`.
pub const SPAWN_ACTION_LIST_SIZE_VER0: u32 = 24;
/// The size of the first version of `struct spawn_args`.
pub const SPAWN_ARGS_SIZE_VER0: u32 = 64;

/// The parameters and results of one run. Reserved members are 0.
#[doc(alias = "spawn_args")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpawnArgs {
    /// `SPAWN_FDS_*` and `SPAWN_BECOME_PIDFD`.
    pub flags: u32,
    /// The number of `actions`.
    pub nr_actions: u32,
    /// The address of the program's path, which replaces the configured program; or 0.
    pub path: u64,
    /// The address of the arguments, which replace the configured ones; or 0.
    pub argv: u64,
    /// The address of the environment, which replaces the configured one; or 0.
    pub envp: u64,
    /// The address of actions that follow the configured ones; 0 without actions.
    pub actions: u64,
    /// `sizeof(struct spawn_action)`; 0 without actions.
    pub action_size: u32,
    /// Result: the cause of a failure, the index of an action or `SPAWN_FAILED_*`.
    pub failed: i32,
    /// Result: the child's process id.
    pub pid: i32,
    /// Reserved.
    pub reserved0: u32,
    /// Reserved.
    pub reserved1: u64,
}

/// One action of the child. Members that the type does not use are 0. Descriptor numbers are the child's.
///
/// In C, `fd`, `newfd` and `arg` are anonymous unions, whose other members are named after their meaning in a type of
/// action. cbindgen.toml has the struct, because cbindgen cannot generate these unions.
#[doc(alias = "spawn_action")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpawnAction {
    /// `SPAWN_ACTION_*`.
    pub r#type: u32,
    /// Flags of the type.
    pub flags: u32,
    /// A descriptor number, or another number of the type.
    pub fd: i32,
    /// A second number.
    pub newfd: i32,
    /// An address, or a third number.
    pub arg: u64,
    /// Reserved, 0.
    pub reserved: u64,
}

/// A list of actions, for `PIDFD_CONFIG_SET_ACTIONS`.
#[doc(alias = "spawn_action_list")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpawnActionList {
    /// The address of the actions; 0 without actions.
    pub actions: u64,
    /// The number of actions.
    pub nr_actions: u32,
    /// `sizeof(struct spawn_action)`; 0 without actions.
    pub action_size: u32,
    /// Result: the index of a refused action, or `SPAWN_FAILED_SETUP`.
    pub failed: i32,
    /// Reserved, 0.
    pub reserved: u32,
}

/// The kernel's `struct open_how`, see openat2(2).
#[doc(alias = "open_how")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// `O_*` flags.
    pub flags: u64,
    /// The permissions of a new file.
    pub mode: u64,
    /// `RESOLVE_*` flags.
    pub resolve: u64,
}

/// The argument of `SPAWN_ACTION_OPEN`.
#[doc(alias = "spawn_open")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpawnOpen {
    /// The address of the path.
    pub path: u64,
    /// `sizeof(struct open_how)`.
    pub how_size: u64,
    /// The arguments of openat2(2).
    pub how: OpenHow,
}

/// A set of signals.
#[doc(alias = "spawn_sigset")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpawnSigset {
    /// The address of the set: 64 bits, bit n-1 for signal n.
    pub sigset: u64,
    /// The size of the set, 8.
    pub sigsetsize: u64,
}

/// The argument of `SPAWN_ACTION_CAPABILITIES`. Bit n of a set is capability n.
#[doc(alias = "spawn_capabilities")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpawnCapabilities {
    /// The effective set.
    pub effective: u64,
    /// The permitted set.
    pub permitted: u64,
    /// The inheritable set.
    pub inheritable: u64,
    /// The bounding set, from which capabilities can only be dropped.
    pub bounding: u64,
    /// The ambient set.
    pub ambient: u64,
}
