/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Shared between the files of common that are not in the zygote. */
#ifndef SPAWNFD_INTERNAL_H
#define SPAWNFD_INTERNAL_H

#include "line.h"
#include "park.h"

/* What the owner passed in the environment variable SPAWNFD_PARK. */
struct parking {
	/* This program is to be parked, and is not yet another program. */
	bool active;
	char kind, mode;
	/* The descriptor of this object. */
	int object;
	struct spawnfd_line line;
};
extern struct parking parking;

/*
 * Calls `each` with every line of a file, without its newline; false where it cannot be read. No
 * stdio here: it has the program's heap begin, and maps pages of libc that cost as much at its end.
 */
bool spawnfd_each_line(const char *path, void (*each)(const char *line));

/* Records the environment and the open descriptors; false where those cannot be listed. */
bool spawnfd_record_state(void);

/* Refuses to park if the environment has changed since it was recorded. */
void spawnfd_check_environment(void);

/* Refuses to park if the process has threads, children, or descriptors that were not recorded. */
void spawnfd_check_state(void);

/* Sends stdout and stderr to a file, and closes its descriptor. */
void spawnfd_capture_output(int file);

/* Restores stdout and stderr. Refuses to park if the program has written to them. */
void spawnfd_restore_output(void);

/* Notes the files that are mapped; the one in a line of /proc/self/maps, and whether it is new. */
void spawnfd_note_mapped(void);
bool spawnfd_note_file_of(const char *line);

/* Bytes of all notes. */
#define SPAWNFD_NOTES_ROOM (2 * ((56 << 10) + 1))

/* Writes the noted variables, an empty string, the noted files, and an empty string. Ignores what
 * is noted from here on. Returns the bytes. */
size_t spawnfd_report_notes(char *text);

/* Whether the executable's dynamic strings, in which what it imports is named, have `name`. */
bool spawnfd_imports(const char *name);

/* Whether the executable has functions that ld.so calls before the constructors of libraries. */
bool spawnfd_has_preinit(void);

/* Whether one of the objects that are loaded is to be searched for others in a relative place. */
bool spawnfd_searches_from_here(void);

/*
 * Notes by what names the objects were found, on which symbolic links may lie; and by what names
 * they would have been found before, had they been there.
 */
void spawnfd_note_searched(void);

/* Has libc load the locale that the environment asks for, if the program will ask for one. */
void spawnfd_load_locale(void);

/* Touches what the program will touch first. */
void spawnfd_touch_program(void);

/* Reads what PR_SET_MM_MAP wants to be told again; false where that is not allowed. */
bool spawnfd_remember_memory(void);

/* Where the heap begins; after spawnfd_remember_memory(). */
uintptr_t spawnfd_heap(void);

/*
 * Makes /proc/PID/cmdline, environ, and what libc calls the program, those of `program`, whose
 * strings stand one after the other.
 */
void spawnfd_show_arguments(const struct program *program, size_t argv_length, size_t env_length);

/* Whether a child can be given all that libc wants to be told of a fork. */
bool spawnfd_can_fork(void);

/*
 * Forks a child of this process's parent. 0 in the child; -1 in this process; an errno where there
 * is no child. The kernel leaves its number in `child` before it runs.
 */
int spawnfd_fork(const struct spawnfd_fork_hooks *hooks, int32_t *child);

#endif
