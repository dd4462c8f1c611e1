/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Takes control of a program before its main(), and passes it to the part for its interpreter.
 *
 * This object is preloaded (ld.so(8), LD_PRELOAD). It replaces functions of libc.
 */
#include "internal.h"
#include "../node/node.h"
#include "../python/python.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

/* ld.so runs this constructor first (-z initfirst), even before those of libc. */
__attribute__((constructor(101))) static void first_constructor(int argc, char **argv, char **envp)
{
	if (!environ)
		environ = envp;
	spawnfd_detect_parking();
}

static char *look_up(const char *name)
{
	spawnfd_detect_parking();
	if (parking.active && parking.kind == SPAWNFD_KIND_NODE)
		spawnfd_node_on_getenv(name);
	if (parking.active)
		spawnfd_record_variable(name);
	return name && *name ? spawnfd_value_in(environ, name, strlen(name)) : NULL;
}

PUBLIC char *getenv(const char *name)
{
	return look_up(name);
}

/* In a set-user-ID program (AT_SECURE) secure_getenv() returns NULL. But ld.so does not preload
 * this object into such a program, so no such program calls this function. */
PUBLIC char *secure_getenv(const char *name)
{
	return look_up(name);
}

static int (*original_main)(int, char **, char **);

static int parked_main(int argc, char **argv, char **envp)
{
	if (parking.kind == SPAWNFD_KIND_PYTHON)
		return spawnfd_python_main(argc, argv, envp, original_main);
	return spawnfd_node_main(argc, argv, envp, original_main);
}

PUBLIC int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
			     void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
			     void *stack_end)
{
	__typeof__(&__libc_start_main) original = REPLACED(__libc_start_main);

	spawnfd_detect_parking();
	original_main = main;
	if (parking.active && parking.kind != SPAWNFD_KIND_MAIN)
		main = parked_main;
	if (parking.active && parking.kind == SPAWNFD_KIND_MAIN) {
		/* Park before the executable's own constructors, because they receive argc and
		 * argv. A constructor of Rust's standard library keeps these arguments. */
		const struct program *program = spawnfd_park(&(struct spawnfd_interpreter){0});

		argc = program->argc;
		argv = program->argv;
	}
	errno = 0;
	return original(main, argc, argv, init, fini, rtld_fini, stack_end);
}
