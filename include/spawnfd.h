// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The C interface of spawnfd: runs, jobs and sessions; spawn templates, the pidfd builder, and posix_spawn.
 *
 * The manual pages spawnfd_run(3), spawn_template_create(2), spawn_template_spawn(2), spawnfd_builder(3) and
 * spawnfd_posix_spawn(3) describe the functions. A program that is linked with -lspawnfd also uses this library's
 * posix_spawn(3), which <spawn.h> declares. The file is generated from the Rust source.
 */

#ifndef SPAWNFD_H
#define SPAWNFD_H

#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <linux/openat2.h>

// The initial value of a `struct spawnfd_error`.
#define SPAWNFD_ERROR_INIT {sizeof(struct spawnfd_error), 0, -1, "", ""}

// The initial value of a `struct spawnfd_line`.
#define SPAWNFD_LINE_INIT {sizeof(struct spawnfd_line), 0, 0, 0, 0, NULL}

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

// The size of the first version of `struct spawnfd_error`.
#define SPAWNFD_ERROR_SIZE_VER0 512

// The size of the first version of `struct spawnfd_line`.
#define SPAWNFD_LINE_SIZE_VER0 40

// The longest line in bytes. A longer one is split.
#define SPAWNFD_LINE_MAX 65536

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

// A program, its arguments and its options; or only options, for a command of a session.
struct spawnfd_command;

// A program that the library has started and watches.
struct spawnfd_job;

// A connection to another machine, or to a container, where programs run.
struct spawnfd_remote;

// The result of a run, which never changes.
struct spawnfd_result;

// A shell that runs one command after the other.
struct spawnfd_session;

// A set of parked processes.
struct spawnfd_warm;

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

// The cause of a failure. Initialize it with `SPAWNFD_ERROR_INIT`. A call that succeeds does not change it.
struct spawnfd_error {
  // `sizeof(struct spawnfd_error)`, which the caller sets.
  uint32_t size;
  // The errno.
  int32_t error;
  // The index of the action that failed, counted from 0; -1 if no action failed.
  int32_t action;
  // The stage that failed, such as `exec`; a string.
  char stage[20];
  // The failure in the user's terms, then stage, system call and errno; a string of one line in UTF-8.
  char message[480];
};

// A line of a job's output. Initialize it with `SPAWNFD_LINE_INIT`.
struct spawnfd_line {
  // `sizeof(struct spawnfd_line)`, which the caller sets.
  uint32_t size;
  // The stream: 1 for standard output, 2 for standard error; 0 at the end of the output.
  uint32_t stream;
  // The number of bytes of both streams that arrived before the line.
  uint64_t position;
  // The number of bytes that were dropped just before the line, because the caller read too slowly.
  uint64_t lost;
  // The length of `text` in bytes, without the NUL character.
  size_t length;
  // The line with its line end, and a NUL character. Valid until the job's next line is read, or the job is freed.
  const char *text;
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
//
// With PIDFD_NONBLOCK (O_NONBLOCK) in `flags`, the pidfds of its runs are non-blocking.
//
// # Errors
// Returns -1 and sets errno:
// - EINVAL: an unknown flag.
// - EMFILE, ENFILE, ENOMEM.
int spawnfd_builder_open(unsigned int flags);

// Sets or resets a key of a builder.
//
// `cmd` is `PIDFD_CONFIG_SET_*` for the kind of the value, or `PIDFD_CONFIG_RESET`. `key` is `PIDFD_CONFIG_KEY_*`. An
// argument that the command does not use is 0. The function copies the value, with all data that it points to. A
// descriptor is kept as its number and must stay open until the runs return.
//
// For SET_ACTIONS, `value` is a `struct spawn_action_list`, and `aux` is its size. If an action is invalid, the member
// `failed` receives the action's index, otherwise SPAWN_FAILED_SETUP. Errors of the size and of the other members do
// not change `failed`.
//
// # Errors
// Returns -1, sets errno, and leaves the builder unchanged:
// - EBADF: `fd` is not a builder. For SET_FD: the number is negative.
// - EACCES: another process opened the builder, for example the parent of this process. Or the calling thread has
//   other credentials than the opener. Or a process has written to the builder's file, or has sealed it.
// - EFBIG: RLIMIT_FSIZE is less than the length of the configuration.
// - EINVAL: an unknown command or key; a key of another command; an unused argument that is not 0; an empty list of
//   arguments; a wrong size of the list of actions or of an action; an invalid action; an unknown namespace.
// - EFAULT: `value`, or an address in an action, is NULL.
// - ENOENT: an empty path or name. ENAMETOOLONG: a path is longer than 4095 bytes.
// - E2BIG: the strings are longer than execve(2) permits; a search path of 128 KiB; more than 256 actions; a byte
//   after the known members of a struct that is not 0; more than 8 MiB in all.
// - ENOMEM.
//
// # Safety
// `value` is NULL, or points to a value of the command's type. A list of actions is valid for writes.
int spawnfd_builder_config(int fd, unsigned int cmd, unsigned int key, const void *value, int aux);

// Starts the program of a builder, and returns a pidfd, which is close-on-exec.
//
// The call returns when the program has begun. With SPAWN_BECOME_PIDFD, the pidfd replaces the builder at the number
// `fd`, which the call returns. `size` is `sizeof(struct spawn_args)`.
//
// `args->pid` receives the child's process id. After a failure, `args->failed` is the index of the action that failed,
// counted from the first configured action, or `SPAWN_FAILED_*`. There is then no child and no SIGCHLD. Errors of
// `size`, of the members of `args`, and of `fd` do not change `args`.
//
// # Errors
// Returns -1 and sets errno. The checks have this order:
// - EINVAL: `size` is less than 64. E2BIG: `size` is more than the size of a page. EFAULT: `args` is NULL. E2BIG: a
//   byte after the known members is not 0. EINVAL: an unknown flag, both SPAWN_FDS_NONE and SPAWN_FDS_INHERIT, a
//   reserved member, or a wrong `action_size`. E2BIG: more than 256 actions, or `action_size` is more than the size of
//   a page.
// - EBADF: `fd` is not a builder. EACCES: another process opened the builder, the calling thread has other credentials
//   than the opener, or a process has written to the builder's file.
// - EFAULT, ENOENT, ENAMETOOLONG: an invalid `path`. EINVAL: no program, no search path for a name, or no arguments.
// - E2BIG: more than 256 actions with those of the configuration. EINVAL and others: an invalid action, whose index is
//   in `failed`.
// - EBADF: EXEC_FD or CWD is not open.
// - EINVAL: an empty list of arguments. E2BIG: the strings are too long.
// - EBADF: CGROUP is not open. EOPNOTSUPP: the library cannot express the run.
// - EAGAIN, ENOMEM, EMFILE, ENFILE, EPERM: the child could not be created.
// - The errors of the child: of the directory, an action, or exec. EINTR: a signal killed the child.
//
// # Safety
// `args` is NULL or valid for reads and writes of `size` bytes. The addresses in it are 0 or valid. The descriptors of
// the configuration and of the actions stay open until the call returns.
int spawnfd_builder_run(int fd, struct spawn_args *args, size_t size);

// Creates a command that starts the program `argv[0]`, a path or a name to search in PATH.
//
// `argv` ends with NULL. The function copies the strings. If `argv` is NULL, the command has only options, for
// `spawnfd_session_run` and `spawnfd_session_start`.
//
// # Errors
// Returns NULL and sets errno. EINVAL: `argv` is an empty list.
//
// # Safety
// `argv` is NULL or a list of strings that ends with NULL. `error` is NULL or valid.
struct spawnfd_command *spawnfd_command_new(const char *const *argv, struct spawnfd_error *error);

// Frees a command. Runs, jobs and sessions of the command go on. NULL has no effect.
//
// # Safety
// `command` is NULL or a command that no thread uses.
void spawnfd_command_free(struct spawnfd_command *command);

// Sets an option of a run, a job, a session, or a session's command by its name, such as `timeout` to `10s`.
//
// docs/options.md lists the names and their values. Durations are seconds, or numbers with `ms`, `s`, `m` or `h`. Numbers
// of bytes can have `K`, `M`, `G` or `T`. A `value` of NULL means no value, such as no timeout; for a stream, it means
// the default. A second call replaces the value.
//
// # Errors
// Returns -1, sets errno, and leaves the command unchanged. EINVAL: there is no option of this name, or no call accepts
// this value for it. A call that lacks the option fails with EINVAL, such as `spawnfd_run` with `window`.
//
// # Safety
// `command` is NULL or a command that no other thread uses. The strings are NULL or valid. `error` is NULL or valid.
int spawnfd_command_set(struct spawnfd_command *command,
                        const char *name,
                        const char *value,
                        struct spawnfd_error *error);

// Sets an option whose value is data, such as `input`, to a copy of `length` bytes.
//
// # Errors
// Returns -1 and sets errno. EINVAL: no option of this name has data as its value.
//
// # Safety
// `command` is NULL or a command that no other thread uses. `data` is valid for reads of `length` bytes. `name` is NULL
// or a string, and `error` is NULL or valid.
int spawnfd_command_set_bytes(struct spawnfd_command *command,
                              const char *name,
                              const void *data,
                              size_t length,
                              struct spawnfd_error *error);

// Connects the standard stream `name` (`stdin`, `stdout` or `stderr`) to a duplicate of the descriptor `fd`.
//
// Runs and jobs then neither write nor capture this stream.
//
// # Errors
// Returns -1 and sets errno. EBADF: `fd` is not open. EINVAL: there is no such stream. EMFILE.
//
// # Safety
// `command` is NULL or a command that no other thread uses. `name` is NULL or a string, and `error` is NULL or valid.
int spawnfd_command_set_fd(struct spawnfd_command *command, const char *name, int fd, struct spawnfd_error *error);

// Sets a variable of the program's environment, or removes it if `value` is NULL.
//
// The environment begins as a copy of this process's environment at the time of the start.
//
// # Errors
// Returns -1 and sets errno. EINVAL: `name` is empty or has a `=`.
//
// # Safety
// `command` is NULL or a command that no other thread uses. The strings are NULL or valid. `error` is NULL or valid.
int spawnfd_command_set_env(struct spawnfd_command *command,
                            const char *name,
                            const char *value,
                            struct spawnfd_error *error);

// Removes all variables whose names match none of `patterns`, in which `*` stands for any characters and `?` for one.
//
// An empty list removes all variables. The call applies to inherited variables, and to those that earlier calls have set.
//
// # Errors
// Returns -1 and sets errno. EINVAL: an argument is NULL.
//
// # Safety
// `command` is NULL or a command that no other thread uses. `patterns` is NULL or a list of strings that ends with NULL.
// `error` is NULL or valid.
int spawnfd_command_keep_env(struct spawnfd_command *command,
                             const char *const *patterns,
                             struct spawnfd_error *error);

// Adds an action of the child before exec by its name, such as `umask` with the arguments `022`.
//
// docs/actions.md lists the names and the arguments. `arguments` is NULL or empty for an action without arguments. The
// function duplicates the descriptors of this process that the arguments name.
//
// # Errors
// Returns -1, sets errno, and leaves the command unchanged. EINVAL: there is no such action, or its arguments are wrong.
// EBADF: a descriptor is not open.
//
// # Safety
// `command` is NULL or a command that no other thread uses. The strings are NULL or valid. `error` is NULL or valid.
int spawnfd_command_add_action(struct spawnfd_command *command,
                               const char *name,
                               const char *arguments,
                               struct spawnfd_error *error);

// Starts the program through a command that confines it, such as `bwrap --ro-bind / / --unshare-net`.
//
// `argv` ends with NULL. The function searches `argv[0]` in this process's PATH.
//
// # Errors
// Returns -1 and sets errno. EINVAL: `argv` is empty. ENOENT, EACCES: `argv[0]` cannot be found or executed.
//
// # Safety
// `command` is NULL or a command that no other thread uses. `argv` is NULL or a list of strings that ends with NULL.
// `error` is NULL or valid.
int spawnfd_command_set_sandbox(struct spawnfd_command *command, const char *const *argv, struct spawnfd_error *error);

// Lets the program start from a suitable parked process of `warm`, if there is one. NULL: from none.
//
// # Errors
// Returns -1 and sets errno. EINVAL: `command` is NULL.
//
// # Safety
// `command` is NULL or a command that no other thread uses. `warm` is NULL or valid; it can be freed after the call.
// `error` is NULL or valid.
int spawnfd_command_set_warm(struct spawnfd_command *command,
                             const struct spawnfd_warm *warm,
                             struct spawnfd_error *error);

// Reserves low descriptor numbers for the starts of this process.
//
// Call this early in a process that will have hundreds of descriptors before its first start, which would otherwise take
// longer: 1 ms for 10,000 descriptors under Docker's seccomp filter. Eight descriptors stay open, close-on-exec. If no
// low number is free, the call has no effect.
void spawnfd_reserve_descriptors(void);

// Runs the program to its end, and returns its result. The caller frees the result.
//
// The library captures the output, and ends the program's process tree at a limit and when this process ends.
//
// # Errors
// Returns NULL and sets errno:
// - ENOENT, EACCES, ENOEXEC, ENOTDIR and others: the program or its directory cannot be used. The member `stage` of the
//   error names the step that failed.
// - EINVAL: the command has no program, an option that a run does not have, or options that exclude each other.
// - The errno of an action; the member `action` has its index.
// - EAGAIN, ENOMEM, EMFILE, ENFILE, EPERM: the child could not be created.
//
// # Safety
// `command` is NULL or a command that no thread changes. `error` is NULL or valid.
struct spawnfd_result *spawnfd_run(const struct spawnfd_command *command, struct spawnfd_error *error);

// Starts the program, and returns its job. The caller frees the job, which ends the program if it still runs.
//
// # Errors
// Returns NULL and sets errno. The errors are those of `spawnfd_run`, but errors of the child, such as those of actions
// and of exec, can be errors of `spawnfd_job_wait` instead.
//
// # Safety
// `command` is NULL or a command that no thread changes. `error` is NULL or valid.
struct spawnfd_job *spawnfd_start(const struct spawnfd_command *command, struct spawnfd_error *error);

// Ends the program and its process tree if they still run, and frees the job. NULL has no effect.
//
// The call does not wait. The tree gets SIGTERM, and SIGKILL after the option `grace`; if this process ends before, it
// gets SIGKILL at once. In a forked process, the call has no effect.
//
// # Safety
// `job` is NULL or a job that no thread uses.
void spawnfd_job_free(struct spawnfd_job *job);

// Frees the job and lets the program run on. The library still watches, drains and reaps it.
//
// The program's process tree ends with this process, unless the option `tree` is `group`.
//
// # Errors
// Returns -1, sets errno, and does not free the job. EINVAL: `job` is NULL. ECHILD: a forked process.
//
// # Safety
// `job` is NULL or a job that no thread uses. `error` is NULL or valid.
int spawnfd_job_detach(struct spawnfd_job *job, struct spawnfd_error *error);

// Returns a descriptor for poll(2), which belongs to the job: the caller must neither read, write nor close it.
//
// It becomes readable (POLLIN) when output arrives and when the job has its result. It stays readable until a call of
// `spawnfd_job_next_line` or `spawnfd_job_read` fails with EAGAIN or ETIMEDOUT. Once the job has its result, it stays
// readable. So use only one of these functions with the descriptor, and call it until it fails or returns 0. The
// descriptor is close-on-exec.
//
// # Errors
// Returns -1 and sets errno. EINVAL: `job` is NULL. ECHILD: a forked process.
//
// # Safety
// `job` is NULL or valid.
int spawnfd_job_fd(const struct spawnfd_job *job);

// Returns the program's process id, for printing. Another process may have the same id once the program has ended.
//
// # Errors
// Returns -1 and sets errno. EINVAL: `job` is NULL. ECHILD: a forked process.
//
// # Safety
// `job` is NULL or valid.
pid_t spawnfd_job_pid(const struct spawnfd_job *job);

// Stores the next line of the job's output. Returns 1, or 0 once all lines up to the job's result have been read.
//
// Waits up to `timeout_ms` milliseconds; 0: does not wait; negative: without end. The line includes its line end, as
// getline(3) returns it. A line without one is the last of its stream, or a part of a line that is longer than
// `SPAWNFD_LINE_MAX` bytes. Bytes that exceed the option `window` are dropped, unless the option `hold` is `true`;
// the member `lost` of the next line counts them. One thread at a time reads lines; other threads wait for it.
//
// # Errors
// Returns -1, sets errno, and leaves `line` unchanged. EAGAIN: there is no line, and `timeout_ms` is 0. ETIMEDOUT: there
// was no line in time. EINVAL: the member `size` is too small, or an argument is NULL. ECHILD: a forked process.
//
// # Safety
// `job` is NULL or valid. `line` is NULL or points to a struct with its size. `error` is NULL or valid.
int spawnfd_job_next_line(const struct spawnfd_job *job,
                          struct spawnfd_line *line,
                          int timeout_ms,
                          struct spawnfd_error *error);

// Copies output of both streams from position `*cursor` on into `buffer`, and advances `*cursor`. Does not wait.
//
// Returns the number of bytes, or 0 at the end of the output. A position is a number of bytes of both streams in order of
// arrival, and 0 at first. The job keeps the last bytes of the output, 1 MiB unless the option `window` is set. `*lost`
// receives the number of bytes after `*cursor` that the job no longer has; `lost` may be NULL. Any number of readers
// can read with cursors of their own.
//
// # Errors
// Returns -1 and sets errno. EAGAIN: there is no further output yet. EINVAL: `size` is 0, or an argument is NULL.
// ECHILD: a forked process.
//
// # Safety
// `job` is NULL or valid. `cursor` and `lost` are NULL or valid. `buffer` is valid for writes of `size` bytes. `error` is
// NULL or valid.
ssize_t spawnfd_job_read(const struct spawnfd_job *job,
                         uint64_t *cursor,
                         void *buffer,
                         size_t size,
                         uint64_t *lost,
                         struct spawnfd_error *error);

// Queues input for a program whose option `stdin` is `stream`. Returns the number of bytes that were accepted.
//
// Waits up to `timeout_ms` milliseconds for space in the queue of 64 KiB; 0: does not wait; negative: without end. The
// number may be less than `length`.
//
// # Errors
// Returns -1 and sets errno. EAGAIN: the queue is full, and `timeout_ms` is 0. ETIMEDOUT: no byte was accepted in time.
// EPIPE: the program reads no more. EBADF: the option `stdin` is not `stream`. ECHILD: a forked process.
//
// # Safety
// `job` is NULL or valid. `data` is valid for reads of `length` bytes. `error` is NULL or valid.
ssize_t spawnfd_job_write(const struct spawnfd_job *job,
                          const void *data,
                          size_t length,
                          int timeout_ms,
                          struct spawnfd_error *error);

// Ends the program's input: the program reads EOF after the queued bytes.
//
// # Errors
// Returns -1 and sets errno. EINVAL: `job` is NULL. ECHILD: a forked process.
//
// # Safety
// `job` is NULL or valid. `error` is NULL or valid.
int spawnfd_job_close_stdin(const struct spawnfd_job *job, struct spawnfd_error *error);

// Waits for the end of the job, and returns its result, which the caller frees. Each call returns a result of its own.
//
// Waits up to `timeout_ms` milliseconds; 0: does not wait; negative: without end. The timeout does not affect the program.
//
// # Errors
// Returns NULL and sets errno. ETIMEDOUT: the job has not ended yet. ECHILD: a forked process. Otherwise the errors of
// `spawnfd_run`: the child could not start the program.
//
// # Safety
// `job` is NULL or valid. `error` is NULL or valid.
struct spawnfd_result *spawnfd_job_wait(const struct spawnfd_job *job,
                                        int timeout_ms,
                                        struct spawnfd_error *error);

// Ends the program and its process tree: sends SIGTERM, and SIGKILL after `grace_ms` milliseconds. Does not wait.
//
// # Errors
// Returns -1 and sets errno. EINVAL: `job` is NULL, or `grace_ms` is negative. ECHILD: a forked process.
//
// # Safety
// `job` is NULL or valid. `error` is NULL or valid.
int spawnfd_job_stop(const struct spawnfd_job *job, int grace_ms, struct spawnfd_error *error);

// Sends a signal to the program, or to its whole process tree if `tree` is not 0.
//
// # Errors
// Returns -1 and sets errno. EINVAL: there is no such signal, or `job` is NULL. ECHILD: a forked process.
//
// # Safety
// `job` is NULL or valid. `error` is NULL or valid.
int spawnfd_job_signal(const struct spawnfd_job *job, int signal, int tree, struct spawnfd_error *error);

// Changes the size of the terminal of a job with the option `terminal`; its foreground process group gets SIGWINCH.
//
// # Errors
// Returns -1 and sets errno. EINVAL: `job` is NULL. ECHILD: a forked process.
//
// # Safety
// `job` is NULL or valid. `error` is NULL or valid.
int spawnfd_job_resize(const struct spawnfd_job *job, uint16_t columns, uint16_t rows, struct spawnfd_error *error);

// Connects to another machine through a transport, and waits until the server answers. The caller frees the connection.
//
// The transport is a command whose standard input and output lead to `spawnfd serve` on the other machine, such as
// `ssh host spawnfd serve`. It can have a directory, an environment, actions and a sandbox, but no options of a run. It
// can be freed after the call.
//
// `lease_ms` is the time after which each side regards the other one as lost if it gives no sign of life; 0 stands for
// 30 seconds, and a negative number for no such time. The call waits at most `timeout_ms` for the server, and without end
// if that is negative. If it is 0, the call does not wait, and the first run or start does.
//
// # Errors
// Returns NULL and sets errno. EINVAL: an option of a run. ENOTCONN: the transport has ended; the message has its last
// words. EPROTO: the other side is no server of this version. ETIMEDOUT. Otherwise the errors of `spawnfd_run`.
//
// # Safety
// `transport` is NULL or a command that no thread changes. `error` is NULL or valid.
struct spawnfd_remote *spawnfd_remote_connect(const struct spawnfd_command *transport,
                                              int lease_ms,
                                              int timeout_ms,
                                              struct spawnfd_error *error);

// Ends the connection and all its programs, and frees it. NULL has no effect.
//
// The result of a job that still runs says `lost`; the caller frees the jobs as others. In a forked process, the call has
// no effect.
//
// # Safety
// `remote` is NULL or a connection that no thread uses.
void spawnfd_remote_free(struct spawnfd_remote *remote);

// Runs the program on the other machine to its end, and returns its result, which the caller frees.
//
// Paths, PATH and users are those of the other machine. The environment begins as a copy of the server's. If the
// connection is lost, the result's `stop` is `lost`: the program has ended, or ends soon, and its status is not known.
//
// # Errors
// Returns NULL and sets errno. EINVAL: an argument has a meaning in this process alone, such as a descriptor, a sandbox or
// parked processes; the message names it. ENOTCONN: the connection is lost. Otherwise the errors of `spawnfd_run`.
//
// # Safety
// `remote` is NULL or valid. `command` is NULL or a command that no thread changes. `error` is NULL or valid.
struct spawnfd_result *spawnfd_remote_run(const struct spawnfd_remote *remote,
                                          const struct spawnfd_command *command,
                                          struct spawnfd_error *error);

// Starts the program on the other machine, and returns its job, which is used and freed as one of `spawnfd_start`.
//
// The process id of the job is a number of the other machine. The job can outlive the connection, which its program does
// not.
//
// # Errors
// Returns NULL and sets errno. The errors are those of `spawnfd_remote_run` and `spawnfd_start`. ENOTCONN: the connection
// is lost; if that was during this call, the program may have started.
//
// # Safety
// `remote` is NULL or valid. `command` is NULL or a command that no thread changes. `error` is NULL or valid.
struct spawnfd_job *spawnfd_remote_start(const struct spawnfd_remote *remote,
                                         const struct spawnfd_command *command,
                                         struct spawnfd_error *error);

// Waits until the server answers, and stores the seconds until then unless `seconds` is NULL.
//
// # Errors
// Returns -1 and sets errno. ENOTCONN: the connection is lost.
//
// # Safety
// `remote` is NULL or valid. `seconds` is NULL or valid for a write. `error` is NULL or valid.
int spawnfd_remote_ping(const struct spawnfd_remote *remote, double *seconds, struct spawnfd_error *error);

// Frees a result and its texts. NULL has no effect.
//
// # Safety
// `result` is NULL or a result that no thread uses.
void spawnfd_result_free(struct spawnfd_result *result);

// Returns 1 if the program exited by itself with code 0, and 0 otherwise or if `result` is NULL.
//
// # Safety
// `result` is NULL or valid.
int spawnfd_result_ok(const struct spawnfd_result *result);

// Stores a number of the result, such as `code`, `signal` or `wall_seconds`.
//
// The names are the keys that `spawnfd run --json` prints; a slash leads to a member, as in `omitted/stdout/bytes`. The
// value of a flag is 0 or 1, and that of a list is the number of its elements.
//
// # Errors
// Returns -1 and sets errno. ENODATA: the result has no value of this name, such as `code` after a signal. EINVAL: the
// value is text.
//
// # Safety
// `result` is NULL or valid. `name` is NULL or a string. `number` is NULL or valid for a write. `error` is NULL or valid.
int spawnfd_result_number(const struct spawnfd_result *result,
                          const char *name,
                          double *number,
                          struct spawnfd_error *error);

// Returns a text of the result, such as `stdout`, `stderr`, `stop` or `tree`, and stores its length in bytes.
//
// The names are those of `spawnfd_result_number`. A NUL character follows the text. `stdout` and `stderr` have the bytes
// that the program wrote, which may include NUL characters. `length` may be NULL. The text is valid until the free of the
// result.
//
// # Errors
// Returns NULL and sets errno. ENODATA: the result has no value of this name. EINVAL: the value is a number or a list.
//
// # Safety
// `result` is NULL or valid. `name` is NULL or a string. `length` is NULL or valid for a write. `error` is NULL or valid.
const char *spawnfd_result_text(const struct spawnfd_result *result,
                                const char *name,
                                size_t *length,
                                struct spawnfd_error *error);

// Returns why the library ended the run, such as `timed out after 0.2 s`; NULL if the run ended by itself.
//
// The text is valid until the free of the result.
//
// # Safety
// `result` is NULL or valid.
const char *spawnfd_result_reason(const struct spawnfd_result *result);

// Returns the whole result as JSON, as `spawnfd run --json` prints it. The caller frees the string with free(3).
//
// # Errors
// Returns NULL and sets errno. ENOMEM.
//
// # Safety
// `result` is NULL or valid. `error` is NULL or valid.
char *spawnfd_result_json(const struct spawnfd_result *result, struct spawnfd_error *error);

// Starts a shell, bash or dash, and waits until it has read its startup files. The caller frees the session.
//
// `command` has the shell, its environment and directory, and options of sessions, such as `login`, `restart` or
// `terminal`. It can be freed after the call.
//
// # Errors
// Returns NULL and sets errno. EINVAL: an option that a session does not have. ESRCH: the shell has exited. Otherwise the
// errors of `spawnfd_run`.
//
// # Safety
// `command` is NULL or a command that no thread changes. `error` is NULL or valid.
struct spawnfd_session *spawnfd_session_open(const struct spawnfd_command *command,
                                             struct spawnfd_error *error);

// Ends the shell and its process tree, and frees the session. NULL has no effect.
//
// The call does not wait. The shell gets the time of the option `grace` to exit. In a forked process, the call has no
// effect.
//
// # Safety
// `session` is NULL or a session that no thread uses.
void spawnfd_session_free(struct spawnfd_session *session);

// Runs a command in the session to its end, and returns its result, which the caller frees.
//
// `text` is any shell code. `options` is NULL or a command without a program. It has options of a session's command, such
// as `timeout`, `cwd` or `input`, and variables.
//
// # Errors
// Returns NULL and sets errno. EBUSY: another command runs, and the option `queue` is not set. ESRCH: the shell has
// exited. EINVAL: an option that a session's command does not have. ECHILD: a forked process.
//
// # Safety
// `session` is NULL or valid. `text` is NULL or a string. `options` is NULL or a command that no thread changes. `error`
// is NULL or valid.
struct spawnfd_result *spawnfd_session_run(const struct spawnfd_session *session,
                                           const char *text,
                                           const struct spawnfd_command *options,
                                           struct spawnfd_error *error);

// Starts a command in the session, and returns its job. The free of the job ends the command, not the session.
//
// # Errors
// Returns NULL and sets errno. The errors are those of `spawnfd_session_run`.
//
// # Safety
// The same as for `spawnfd_session_run`.
struct spawnfd_job *spawnfd_session_start(const struct spawnfd_session *session,
                                          const char *text,
                                          const struct spawnfd_command *options,
                                          struct spawnfd_error *error);

// Sends SIGINT to the running command, so that the shell abandons it. Without a running command, there is no effect.
//
// # Errors
// Returns -1 and sets errno. EINVAL: `session` is NULL. ECHILD: a forked process.
//
// # Safety
// `session` is NULL or valid. `error` is NULL or valid.
int spawnfd_session_interrupt(const struct spawnfd_session *session, struct spawnfd_error *error);

// Creates a set of parked processes without programs. The caller frees it.
//
// `processes` is the maximum number of parked processes, and `memory` their maximum private memory in bytes. 0 means the
// default: 64 processes, and 512 MiB.
//
// # Errors
// Returns NULL and sets errno. EMFILE, ENFILE, ENOMEM. ENOSPC: the user has too many inotify instances.
//
// # Safety
// `error` is NULL or valid.
struct spawnfd_warm *spawnfd_warm_new(uint32_t processes,
                                      uint64_t memory,
                                      struct spawnfd_error *error);

// Frees a set of parked processes, which end with the last command that uses the set. NULL has no effect.
//
// In a forked process, the call has no effect.
//
// # Safety
// `warm` is NULL or a set that no thread uses.
void spawnfd_warm_free(struct spawnfd_warm *warm);

// Keeps `depth` processes of a program parked; 0: two. `program` is a path, or a name to search in PATH now.
//
// A thread of the library parks them. A program that cannot be parked is no error: its commands start by clone and exec.
//
// # Errors
// Returns -1 and sets errno. ENOENT, EACCES: the program cannot be found or executed. EAGAIN: the thread cannot be
// started. ECHILD: a forked process.
//
// # Safety
// `warm` is NULL or valid. `program` is NULL or a string. `error` is NULL or valid.
int spawnfd_warm_add(const struct spawnfd_warm *warm,
                     const char *program,
                     uint32_t depth,
                     struct spawnfd_error *error);

// Waits until every program has its full number of parked processes. Returns 1, or 0 if some program has not.
//
// Waits up to `timeout_ms` milliseconds; negative: without end. Returns 0 early if a program cannot be parked.
//
// # Errors
// Returns -1 and sets errno. EINVAL: `warm` is NULL. ECHILD: a forked process.
//
// # Safety
// `warm` is NULL or valid. `error` is NULL or valid.
int spawnfd_warm_fill(const struct spawnfd_warm *warm, int timeout_ms, struct spawnfd_error *error);

// Creates a template for an executable, and returns the template's descriptor.
//
// `filename` is the absolute path of the executable. Otherwise `execfd` is a descriptor of the executable. The
// template then refers to the path of the descriptor's file.
//
// # Errors
// Returns -1 and sets errno:
// - EINVAL: `size` is less than 72; an unknown flag; a reserved field is not 0; not exactly one of `execfd` and
//   `filename`; the path is relative, or longer than 4095 bytes.
// - E2BIG: `size` is more than 4096, or a field that this version does not know is not 0.
// - EFAULT: `args` is NULL.
// - EBADF: `execfd` is not open.
// - EACCES: the executable is not a regular file, or the caller may not execute it.
// - EOPNOTSUPP: `execfd` refers to a file that has no path.
// - EMFILE, ENFILE, ENOMEM, and the errors of open(2) for the path.
//
// # Safety
// `args` is NULL or valid for reads of `size` bytes. `filename` is 0 or the address of a string.
int spawn_template_create(const struct spawn_template_create_args *args, size_t size);

// Spawns the executable of a template. Returns the child's pid, and stores a pidfd, close-on-exec, at `pidfd`.
//
// The call returns when the child has executed the program or has exited. If an action or exec fails, the child exits
// with status 127 (ENOENT), 126 (EACCES, ENOEXEC) or 1.
//
// # Errors
// Returns -1 and sets errno, in this order. There is then no child.
// - EINVAL: `size` is less than 80. E2BIG: `size` is more than 4096.
// - EBADF: `template_fd` is not open. EINVAL: it is no template.
// - EACCES: another process created the template, or the thread's credentials differ from those of its creator.
// - EFAULT: `args` is NULL. E2BIG: a field that this version does not know is not 0.
// - EINVAL: an unknown flag; `pidfd` is 0; a reserved field is not 0.
// - E2BIG: there are more than 256 actions. EINVAL: an action is invalid, or `actions` is 0.
// - ESTALE: the executable has changed since the template was created.
// - EAGAIN, EMFILE, ENFILE, ENOMEM: the child could not be created.
//
// # Safety
// `args` is NULL or valid for reads of `size` bytes. `pidfd`, `actions`, and the addresses in the actions are 0 or
// valid. `argv` and `envp` are 0 or valid as execve(2) expects them.
pid_t spawn_template_spawn(int template_fd, const struct spawn_template_spawn_args *args, size_t size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPAWNFD_H */
