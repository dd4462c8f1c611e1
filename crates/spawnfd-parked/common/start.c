/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Takes a program over before its main().
 *
 * This object is preloaded (ld.so(8), LD_PRELOAD). The environment variable SPAWNFD_PARK holds what
 * the owner passes to it: enum spawnfd_park_field.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct parking parking;

static char **find_variable(const char *name)
{
	size_t length = strlen(name);

	for (char **at = environ; at && *at; at++)
		if (!strncmp(*at, name, length) && (*at)[length] == '=')
			return at;
	return NULL;
}

static void remove_variable(const char *name)
{
	char **at = find_variable(name);

	for (; at && *at; at++)
		*at = at[1];
}

/* Finds out, once, whether this program is to be parked; before any of its code runs, if possible.
 */
static void look(void)
{
	static bool looked;
	char **variable, *at;
	unsigned long long passed[SPAWNFD_PARK_KIND];
	int page, output;
	struct stat executable;

	if (looked)
		return;
	looked = true;
	variable = find_variable(SPAWNFD_PARK_VARIABLE);
	if (!variable)
		return;
	at = *variable + strlen(SPAWNFD_PARK_VARIABLE "=");
	for (int i = 0; i < SPAWNFD_PARK_KIND; i++, at++) {
		passed[i] = strtoull(at, &at, 10);
		if (*at != ':')
			return;
	}
	if (!at[0] || at[1] != ':' || !at[2])
		return;
	output = at[3] == ':' ? atoi(at + 4) : 0;
	/* If this cannot be told, the program must not run. */
	if (stat("/proc/self/exe", &executable))
		_exit(126);
	if (executable.st_dev != passed[SPAWNFD_PARK_DEVICE] ||
	    executable.st_ino != passed[SPAWNFD_PARK_INODE])
		return;
	parking.line.socket = (int)passed[SPAWNFD_PARK_SOCKET];
	parking.line.owner = (int)passed[SPAWNFD_PARK_OWNER];
	parking.object = (int)passed[SPAWNFD_PARK_OBJECT];
	page = (int)passed[SPAWNFD_PARK_PAGE];
	parking.kind = at[0];
	parking.mode = at[2];
	remove_variable(SPAWNFD_PARK_VARIABLE);
	remove_variable("LD_PRELOAD");
	parking.line.page = spawnfd_map(page);
	close(page);
	if (!parking.line.page || !spawnfd_record_state())
		_exit(126);
	for (int i = 0; i < 3; i++)
		fcntl((int[]){parking.line.socket, parking.line.owner, parking.object}[i], F_SETFD,
		      FD_CLOEXEC);
	if (output)
		spawnfd_capture_output(output);
	parking.active = true;
	/* Such a program would run instead of waiting: Go's own linker makes them. */
	if (!spawnfd_imports("__libc_start_main"))
		spawnfd_cannot_park("own entry");
	if (spawnfd_has_preinit())
		spawnfd_cannot_park("preinit_array");
}

/* The first constructor of all (-z initfirst): even libc's have yet to run. */
__attribute__((constructor(101))) static void begin(int argc, char **argv, char **envp)
{
	(void)argc;
	(void)argv;
	if (!environ)
		environ = envp;
	look();
}

bool spawnfd_forks(void)
{
	return parking.mode == SPAWNFD_MODE_FORK;
}

_Noreturn void spawnfd_cannot_park(const char *why)
{
	spawnfd_say(&parking.line, (struct spawnfd_reply){.kind = SPAWNFD_REPLY_CANNOT}, why,
		    strlen(why), -1);
	_exit(126);
}

/* --- interposed functions of libc ---------------------------------------------------------------
 */

static char *value_of(const char *name)
{
	char **at;

	look();
	if (parking.active && parking.kind == SPAWNFD_KIND_NODE)
		spawnfd_node_looks(name);
	if (parking.active)
		spawnfd_note_variable(name);
	at = name && *name ? find_variable(name) : NULL;
	return at ? *at + strlen(name) + 1 : NULL;
}

PUBLIC char *getenv(const char *name)
{
	return value_of(name);
}

/* A program that is secure (AT_SECURE) has no use for LD_PRELOAD: where this runs, none is. */
PUBLIC char *secure_getenv(const char *name)
{
	return value_of(name);
}

static int (*the_main)(int, char **, char **);

static int parked_main(int argc, char **argv, char **envp)
{
	if (parking.kind == SPAWNFD_KIND_PYTHON)
		return spawnfd_python_main(argc, argv, envp, the_main);
	return spawnfd_node_main(argc, argv, envp, the_main);
}

PUBLIC int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
			     void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
			     void *stack_end)
{
	__typeof__(&__libc_start_main) original =
		(__typeof__(original))dlsym(RTLD_NEXT, "__libc_start_main");

	look();
	the_main = main;
	if (parking.active && parking.kind != SPAWNFD_KIND_MAIN)
		main = parked_main;
	if (parking.active && parking.kind == SPAWNFD_KIND_MAIN) {
		/* Before the executable's own constructors, which are given the arguments: Rust's
		 * library keeps them. */
		const struct program *program = spawnfd_park(NULL);

		argc = program->argc;
		argv = program->argv;
	}
	errno = 0;
	return original(main, argc, argv, init, fini, rtld_fini, stack_end);
}
