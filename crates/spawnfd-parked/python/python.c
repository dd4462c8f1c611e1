/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Parks CPython after its initialisation, and runs a program in it.
 *
 * initialise.c initialises the interpreter as Py_BytesMain() does, with the flags of argv and a
 * placeholder for the code after -c. The process then parks. resume.c replaces the command line in
 * the interpreter's configuration by that of the request. adapter.py updates everything else that
 * start-up read from the process: os.environ, the standard streams, signal handlers. Py_RunMain()
 * runs the program. cpython.c looks up CPython's functions by name.
 */
#include "cpython.h"
#include "python.h"

#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

/* Executes the interpreter again, for a program that this parked interpreter cannot run. The
 * request has changed nothing in the process yet. */
static _Noreturn void exec_cold(const struct program *program)
{
	/* Use AT_EXECFN, the path by which this process was executed. argv[0] can be any string. */
	execve((const char *)getauxval(AT_EXECFN), program->argv, program->envp);
	_exit(127);
}

int spawnfd_python_main(int argc, char **argv, char **envp, int (*original)(int, char **, char **))
{
	static struct startup startup;
	struct spawnfd_interpreter interpreter;
	const struct program *program;
	sigset_t all;

	/* Signals that arrive before parking are not meant for the program. */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	spawnfd_python_initialise(&startup, argc, argv);
	for (int number = 1; number <= 64; number++)
		if (spawnfd_python_sets_signal(&startup, number))
			sigaction(number, &startup.before[number], NULL);
	interpreter = (struct spawnfd_interpreter){
		.before_fork = py.PyOS_BeforeFork,
		.after_fork_in_parent = py.PyOS_AfterFork_Parent,
		.after_fork_in_child = py.PyOS_AfterFork_Child,
	};
	program = spawnfd_park(&interpreter);
	if (!spawnfd_python_resume(&startup, program))
		exec_cold(program);
	return py.Py_RunMain();
}
