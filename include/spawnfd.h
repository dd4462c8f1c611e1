// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The C interface of spawnfd: spawn templates, the pidfd builder, and posix_spawn.
 *
 * The manual pages spawn_template_create(2), spawn_template_spawn(2), spawnfd_builder(3) and spawnfd_posix_spawn(3)
 * describe the functions. A program that is linked with -lspawnfd also uses this library's posix_spawn(3), which
 * <spawn.h> declares. The file is generated from the Rust source.
 */

#ifndef SPAWNFD_H
#define SPAWNFD_H

#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <linux/openat2.h>

// One action of the child. Members that the type does not use are 0. Descriptor numbers are the child's.
struct spawn_action {
  // `SPAWN_ACTION_*`.
  uint32_t type;
  // Flags of the type.
  uint32_t flags;
  // A descriptor number, or another number of the type.
  union {
    int32_t fd;
    uint32_t first;
    int32_t pgid;
    uint32_t mask;
    uint32_t resource;
    uint32_t count;
    uint32_t size;
    uint32_t real;
    int32_t signal;
    int32_t nice;
    int32_t policy;
    int32_t score;
  };
  // A second number.
  union {
    int32_t newfd;
    uint32_t last;
    uint32_t effective;
    int32_t priority;
  };
  // An address, or a third number.
  union {
    uint64_t arg;
    uint64_t saved;
  };
  // Reserved, 0.
  uint64_t reserved;
};

// A flag of `pidfd_open(2)` in the kernel series: a pidfd without a process. `spawnfd_builder_open` implies it.
#define PIDFD_EMPTY (1 << 27)

// Removes the value of a key, or of all keys. `value` is NULL and `aux` is 0.
#define PIDFD_CONFIG_RESET 0

// Sets a string. `value` is a `const char *`, and `aux` is 0.
#define PIDFD_CONFIG_SET_STRING 1

// Sets a descriptor. `value` is NULL, and `aux` is the descriptor's number.
#define PIDFD_CONFIG_SET_FD 2

// Sets a list of strings. `value` is a `const char *const *` that ends with NULL, and `aux` is 0.
#define PIDFD_CONFIG_SET_STRINGS 3

// Sets the actions. `value` is a `struct spawn_action_list *`, and `aux` is the size of this struct.
#define PIDFD_CONFIG_SET_ACTIONS 4

// Sets flags. `value` is NULL, and `aux` has the flags.
#define PIDFD_CONFIG_SET_FLAGS 5

// All keys, for `PIDFD_CONFIG_RESET`.
#define PIDFD_CONFIG_KEY_ALL 0

// The program's path, a string. Replaces `NAME` and `EXEC_FD`.
#define PIDFD_CONFIG_KEY_PATH 1

// The program's name, a string that a run searches in `SEARCH_PATH`. Replaces `PATH` and `EXEC_FD`.
#define PIDFD_CONFIG_KEY_NAME 2

// The directories to search, a string with colons between them.
#define PIDFD_CONFIG_KEY_SEARCH_PATH 3

// The program, a descriptor. Replaces `PATH` and `NAME`.
#define PIDFD_CONFIG_KEY_EXEC_FD 4

// The directory in which the child starts, a descriptor.
#define PIDFD_CONFIG_KEY_CWD 5

// The directory of the cgroup (v2) in which the child starts, a descriptor.
#define PIDFD_CONFIG_KEY_CGROUP 6

// The program's arguments, a list of strings.
#define PIDFD_CONFIG_KEY_ARGV 7

// The program's environment, a list of strings.
#define PIDFD_CONFIG_KEY_ENVP 8

// The actions before those of a run.
#define PIDFD_CONFIG_KEY_ACTIONS 9

// The new namespaces in which the child starts: `CLONE_NEW*` flags.
#define PIDFD_CONFIG_KEY_NAMESPACES 10

// Closes `fd`, which need not be open.
#define SPAWN_ACTION_CLOSE 0

// Makes `newfd` a copy of `fd`. `flags` is 0 or O_CLOEXEC. For equal numbers, clears close-on-exec.
#define SPAWN_ACTION_DUP2 1

// Changes the working directory to `fd`.
#define SPAWN_ACTION_FCHDIR 2

// Opens a file as `newfd`. `fd` is a directory or AT_FDCWD, and `arg` is a `struct spawn_open *`.
#define SPAWN_ACTION_OPEN 3

// Closes the descriptors from `first` to `last` (-1: all higher ones). `flags` is 0 or CLOSE_RANGE_CLOEXEC.
#define SPAWN_ACTION_CLOSE_RANGE 4

// Sets the program's signal mask. `arg` is a `struct spawn_sigset *`.
#define SPAWN_ACTION_SIGMASK 5

// Sets signals to their default action. `arg` is a `struct spawn_sigset *`.
#define SPAWN_ACTION_SIGDEFAULT 6

// Changes the working directory. `arg` is a `const char *`.
#define SPAWN_ACTION_CHDIR 7

// Creates a session.
#define SPAWN_ACTION_SETSID 8

// Joins the process group `pgid`; 0 creates a group.
#define SPAWN_ACTION_SETPGID 9

// Sets the file mode creation mask to `mask`, 0 to 0777.
#define SPAWN_ACTION_UMASK 10

// Sets the limit of `resource`. `arg` is a `struct rlimit64 *`.
#define SPAWN_ACTION_RLIMIT 11

// Sets the supplementary groups. `count` is their number, and `arg` is a `uint32_t *`.
#define SPAWN_ACTION_SETGROUPS 12

// Sets the group ids `real`, `effective` and `saved`; -1 leaves an id unchanged.
#define SPAWN_ACTION_SETRESGID 13

// Sets the user ids `real`, `effective` and `saved`; -1 leaves an id unchanged.
#define SPAWN_ACTION_SETRESUID 14

// Sets no_new_privs.
#define SPAWN_ACTION_NO_NEW_PRIVS 15

// Sets the parent-death signal to `signal`.
#define SPAWN_ACTION_PDEATHSIG 16

// Sets scheduling attributes. `arg` is a `struct sched_attr *` with its size.
#define SPAWN_ACTION_SCHED_ATTR 17

// Sets the CPU affinity. `size` is the size of the mask in bytes, and `arg` is its address.
#define SPAWN_ACTION_AFFINITY 18

// Ignores signals. `arg` is a `struct spawn_sigset *`.
#define SPAWN_ACTION_SIGIGNORE 19

// Changes the root directory. `arg` is a `const char *`.
#define SPAWN_ACTION_CHROOT 20

// Makes `fd` the controlling terminal. `flags` is the argument of TIOCSCTTY, 0 or 1.
#define SPAWN_ACTION_CTTY 21

// Makes the child's process group the foreground group of the terminal `fd`.
#define SPAWN_ACTION_TCSETPGRP 22

// Sets the nice value to `nice`.
#define SPAWN_ACTION_NICE 23

// Sets the scheduling policy to `policy` (-1: unchanged), and the priority to `priority`.
#define SPAWN_ACTION_SCHEDULER 24

// Sets the OOM killer's score adjustment to `score`, -1000 to 1000.
#define SPAWN_ACTION_OOM_SCORE_ADJ 25

// Sets all capability sets. `arg` is a `struct spawn_capabilities *`.
#define SPAWN_ACTION_CAPABILITIES 26

// Keeps the permitted capabilities across a change of user ids.
#define SPAWN_ACTION_KEEP_CAPS 27

// Joins the namespaces of `fd`. `flags` has CLONE_NEW* flags, or 0.
#define SPAWN_ACTION_SETNS 28

// Disables setgroups(2) in the child's user namespace.
#define SPAWN_ACTION_DENY_SETGROUPS 29

// Writes `arg`, a `const char *`, to /proc/self/uid_map.
#define SPAWN_ACTION_UID_MAP 30

// Writes `arg`, a `const char *`, to /proc/self/gid_map.
#define SPAWN_ACTION_GID_MAP 31

// Restricts the child by the Landlock ruleset `fd`.
#define SPAWN_ACTION_LANDLOCK 32

// Adds a seccomp filter of `count` instructions, a `struct sock_filter *` in `arg`. `flags`: `SECCOMP_FILTER_FLAG_*`.
#define SPAWN_ACTION_SECCOMP 33

// The maximum number of actions of a run, those of the configuration included.
#define SPAWN_MAX_ACTIONS 256

// The child starts without descriptors, not with 0 to 2.
#define SPAWN_FDS_NONE (1 << 0)

// The child starts with all descriptors of the caller that are not close-on-exec.
#define SPAWN_FDS_INHERIT (1 << 1)

// The builder's number becomes the pidfd.
#define SPAWN_BECOME_PIDFD (1 << 2)

// The child failed to find, open or execute the program.
#define SPAWN_FAILED_EXEC -1

// The run failed before there was a child.
#define SPAWN_FAILED_SETUP -2

// The child failed to change to the configured directory.
#define SPAWN_FAILED_CWD -3

// The size of the first version of `struct spawn_action`.
#define SPAWN_ACTION_SIZE_VER0 32

// The size of the first version of `struct spawn_action_list`.
#define SPAWN_ACTION_LIST_SIZE_VER0 24

// The size of the first version of `struct spawn_args`.
#define SPAWN_ARGS_SIZE_VER0 64

// The template descriptor is close-on-exec.
#define SPAWN_TEMPLATE_CREATE_CLOEXEC (1 << 0)

// The program inherits the descriptors above 2.
#define SPAWN_TEMPLATE_SPAWN_INHERIT_FDS (1 << 0)

// Closes `fd`.
#define SPAWN_TEMPLATE_ACTION_CLOSE 0

// Makes `newfd` a copy of `fd`. `flags` may be O_CLOEXEC.
#define SPAWN_TEMPLATE_ACTION_DUP2 1

// Changes the working directory to `fd`.
#define SPAWN_TEMPLATE_ACTION_FCHDIR 2

// Opens a file below `fd` as `newfd`. `arg` is the address of a `struct spawn_template_open`.
#define SPAWN_TEMPLATE_ACTION_OPEN 3

// Closes the descriptors from `fd` to `newfd` (-1: the highest one). `flags` are those of close_range(2).
#define SPAWN_TEMPLATE_ACTION_CLOSE_RANGE 4

// Sets the signal mask. `arg` is the address of a `struct spawn_template_sigset`.
#define SPAWN_TEMPLATE_ACTION_SIGMASK 5

// Sets signals to their default disposition. `arg` is the address of a `struct spawn_template_sigset`.
#define SPAWN_TEMPLATE_ACTION_SIGDEFAULT 6

// The size of the first version of `struct spawn_template_create_args`.
#define SPAWN_TEMPLATE_CREATE_ARGS_SIZE_VER0 72

// The size of the first version of `struct spawn_template_spawn_args`.
#define SPAWN_TEMPLATE_SPAWN_ARGS_SIZE_VER0 80

// The parameters and results of one run. Reserved members are 0.
struct spawn_args {
  // `SPAWN_FDS_*` and `SPAWN_BECOME_PIDFD`.
  uint32_t flags;
  // The number of `actions`.
  uint32_t nr_actions;
  // The address of the program's path, which replaces the configured program; or 0.
  uint64_t path;
  // The address of the arguments, which replace the configured ones; or 0.
  uint64_t argv;
  // The address of the environment, which replaces the configured one; or 0.
  uint64_t envp;
  // The address of actions that follow the configured ones; 0 without actions.
  uint64_t actions;
  // `sizeof(struct spawn_action)`; 0 without actions.
  uint32_t action_size;
  // Result: the cause of a failure, the index of an action or `SPAWN_FAILED_*`.
  int32_t failed;
  // Result: the child's process id.
  int32_t pid;
  // Reserved.
  uint32_t reserved0;
  // Reserved.
  uint64_t reserved1;
};

// The arguments of `spawn_template_create`.
struct spawn_template_create_args {
  uint64_t flags;
  int32_t execfd;
  uint32_t exec_flags;
  uint64_t filename;
  uint64_t actions;
  uint64_t actions_len;
  uint64_t reserved[4];
};

// The arguments of `spawn_template_spawn`.
struct spawn_template_spawn_args {
  uint64_t flags;
  uint64_t pidfd;
  uint64_t argv;
  uint64_t envp;
  uint64_t actions;
  uint64_t actions_len;
  uint64_t reserved[4];
};

// A list of actions, for `PIDFD_CONFIG_SET_ACTIONS`.
struct spawn_action_list {
  // The address of the actions; 0 without actions.
  uint64_t actions;
  // The number of actions.
  uint32_t nr_actions;
  // `sizeof(struct spawn_action)`; 0 without actions.
  uint32_t action_size;
  // Result: the index of a refused action, or `SPAWN_FAILED_SETUP`.
  int32_t failed;
  // Reserved, 0.
  uint32_t reserved;
};

// The argument of `SPAWN_ACTION_OPEN`.
struct spawn_open {
  // The address of the path.
  uint64_t path;
  // `sizeof(struct open_how)`.
  uint64_t how_size;
  // The arguments of openat2(2).
  struct open_how how;
};

// A set of signals.
struct spawn_sigset {
  // The address of the set: 64 bits, bit n-1 for signal n.
  uint64_t sigset;
  // The size of the set, 8.
  uint64_t sigsetsize;
};

// The argument of `SPAWN_ACTION_CAPABILITIES`. Bit n of a set is capability n.
struct spawn_capabilities {
  // The effective set.
  uint64_t effective;
  // The permitted set.
  uint64_t permitted;
  // The inheritable set.
  uint64_t inheritable;
  // The bounding set, from which capabilities can only be dropped.
  uint64_t bounding;
  // The ambient set.
  uint64_t ambient;
};

// An action of a spawn.
struct spawn_template_action {
  // SPAWN_TEMPLATE_ACTION_*.
  uint32_t type;
  uint32_t flags;
  int32_t fd;
  int32_t newfd;
  uint64_t arg;
};

// The argument of SPAWN_TEMPLATE_ACTION_OPEN.
struct spawn_template_open {
  uint64_t path;
  struct open_how how;
};

// The argument of SPAWN_TEMPLATE_ACTION_SIGMASK and SPAWN_TEMPLATE_ACTION_SIGDEFAULT.
struct spawn_template_sigset {
  uint64_t sigset;
  // The size of the kernel's signal set: 8.
  uint64_t sigsetsize;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Creates a builder without configuration, and returns its descriptor, which is close-on-exec.
int spawnfd_builder_open(unsigned int flags);

// Sets or resets a key of a builder.
int spawnfd_builder_config(int fd, unsigned int cmd, unsigned int key, const void *value, int aux);

// Starts the program of a builder, and returns a pidfd, which is close-on-exec.
int spawnfd_builder_run(int fd, struct spawn_args *args, size_t size);

// Creates a template for an executable, and returns the template's descriptor.
int spawn_template_create(const struct spawn_template_create_args *args, size_t size);

// Spawns the executable of a template. Returns the child's pid, and stores a pidfd, close-on-exec, at `pidfd`.
pid_t spawn_template_spawn(int template_fd, const struct spawn_template_spawn_args *args, size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPAWNFD_H */
