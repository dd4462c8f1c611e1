/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Parks a CPython after its initialisation, and starts a program in it.
 *
 * The interpreter is startup as Py_BytesMain() would, with the flags it was given and `-c` of
 * nothing (initialise.c); parked; and then its own record of the command line is replaced by the
 * request's (resume.c), so that Py_RunMain() finds what it would have found. What start-up took
 * from the process otherwise (os.environ, the standard streams, signal handlers) adapter.py renews.
 * CPython's functions are looked up by name.
 */
#define _GNU_SOURCE
#include "cpython.h"

#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* For a program that turns out to be none for this interpreter: nothing is touched yet. */
static _Noreturn void start_anew(const struct program *program)
{
	/* By the path it was parked by: argv[0] may be anything. */
	execve((const char *)getauxval(AT_EXECFN), program->argv, program->envp);
	_exit(127);
}

int spawnfd_python_main(int argc, char **argv, char **envp, int (*original)(int, char **, char **))
{
	static struct startup it;
	struct spawnfd_fork_hooks hooks;
	const struct program *program;
	sigset_t all;

	(void)envp;
	(void)original;
	/* What reaches a process that is to be parked is not meant for the program. */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	spawnfd_python_initialise(&it, argc, argv);
	for (int number = 1; number <= 64; number++)
		if (spawnfd_python_sets_signal(&it, number))
			sigaction(number, &it.before[number], NULL);
	hooks = (struct spawnfd_fork_hooks){
		.before = py.PyOS_BeforeFork,
		.after_parent = py.PyOS_AfterFork_Parent,
		.after_child = py.PyOS_AfterFork_Child,
	};
	program = spawnfd_park(&hooks);
	if (!spawnfd_python_resume(&it, program))
		start_anew(program);
	return py.Py_RunMain();
}
