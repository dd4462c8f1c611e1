/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Declarations that the files of common share, except the files that the zygote also uses. */
#pragma once

#include "connection.h"
#include "park.h"

/* The contents of the environment variable SPAWNFD_PARK. */
struct parking {
	/* True from the owner's demand to park this program until a request starts a program. */
	bool active;
	/* Members of enum spawnfd_kind and enum spawnfd_mode. */
	char kind, mode;
	/* The descriptor of this shared object, which LD_PRELOAD loads. */
	int object;
	struct spawnfd_connection connection;
};
extern struct parking parking;

/* On its first call, reads from the environment whether the owner wants this program to park. All
 * constructors and interposed functions call this function, so that the first call precedes the
 * code of the program if possible. */
void spawnfd_detect_parking(void);

/*
 * Calls `each` with every line of a file, without its newline. False if the file cannot be read.
 * The function does not use stdio, because stdio would start the program's heap and touch pages of
 * libc. Each such page costs time again when the process exits.
 */
bool spawnfd_each_line(const char *path, void (*each)(const char *line));

/* Records the environment and the open descriptors; false if they cannot be listed. */
bool spawnfd_record_state(void);

/* Refuses to park if the environment has changed since it was recorded. */
void spawnfd_check_environment(void);

/* Refuses to park if the process has threads, children, or descriptors that were not recorded. */
void spawnfd_check_state(void);

/* Redirects stdout and stderr to `file`, and closes the descriptor `file`. */
void spawnfd_capture_output(int file);

/* Restores stdout and stderr. Refuses to park if the program has written to them. */
void spawnfd_restore_output(void);

/* Records all mapped files as dependencies. */
void spawnfd_record_mappings(void);

/* Records the file in a line of /proc/self/maps. True if the file is a new dependency. */
bool spawnfd_record_mapping(const char *line);

/* The maximum size of all recorded names, in bytes. */
#define SPAWNFD_DEPENDENCIES_SIZE (112 << 10)

/* Writes the recorded variables, files and modules, with an empty string after each list. Later
 * lookups are no longer recorded. Returns the bytes written. */
size_t spawnfd_write_dependencies(char *text);

/* Whether the executable's dynamic string table contains `name`. It does if the executable imports
 * the symbol `name`. */
bool spawnfd_imports(const char *name);

/* Whether the executable has a DT_PREINIT_ARRAY. ld.so calls these functions before the
 * constructors of libraries. */
bool spawnfd_has_preinit(void);

/* Whether a loaded object has a relative directory in its RPATH or RUNPATH. */
bool spawnfd_has_relative_library_path(void);

/*
 * Records the path by which ld.so found each library, because the path may contain symbolic links.
 * Also records the paths that ld.so searched before without success: a file there would be loaded
 * instead.
 */
void spawnfd_record_library_paths(void);

/* Makes libc load the locale that the environment names, if the program imports setlocale(3). */
void spawnfd_preload_locale(void);

/* Populates the pages that the program will use first. */
void spawnfd_prefault_program(void);

/* Reads the addresses that prctl(PR_SET_MM_MAP) needs. False if this process may not make the call.
 */
bool spawnfd_read_memory_map(void);

/* The start address of the heap. Call spawnfd_read_memory_map() first. */
uintptr_t spawnfd_heap_start(void);

/*
 * Makes /proc/PID/cmdline, /proc/PID/environ and libc's program_invocation_name show `program`. The
 * strings of `program` must be contiguous.
 */
void spawnfd_set_shown_arguments(const struct program *program, size_t argv_length,
				 size_t env_length);

/* Whether spawnfd_fork() can give a child the state that libc expects after a fork. */
bool spawnfd_can_fork(void);

/*
 * Forks a child of this process's parent (CLONE_PARENT). Returns 0 in the child, -1 in this
 * process, or an errno if the fork failed. The kernel writes the child's pid to `child` before the
 * child runs.
 */
int spawnfd_fork(const struct spawnfd_interpreter *interpreter, int32_t *child);
