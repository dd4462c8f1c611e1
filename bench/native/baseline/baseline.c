// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The C baselines: the fastest plain code for starting a program.
 *
 * Each function starts `program` with argv[0] as its only argument, with this process's environment
 * and with `out` as descriptor 1. It returns the pid, or -errno. If `search` is true, `program` is
 * a name to search in PATH. The baselines handle no signals, create no pidfd and close no
 * descriptors: they are lower bounds, not replacements for a launcher.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdbool.h>
#include <unistd.h>

extern char **environ;

static void run(char *program, int out, bool search)
{
	char *argv[] = {program, NULL};

	if (dup2(out, 1) == 1) {
		if (search)
			execvp(program, argv);
		else
			execve(program, argv, environ);
	}
	_exit(127);
}

/* vfork + dup2 + execve. */
pid_t spawnfd_baseline_vfork(char *program, int out, bool search)
{
	pid_t pid = vfork();

	if (pid == 0)
		run(program, out, search);
	return pid < 0 ? -errno : pid;
}

/* fork + dup2 + execve. */
pid_t spawnfd_baseline_fork(char *program, int out, bool search)
{
	pid_t pid = fork();

	if (pid == 0)
		run(program, out, search);
	return pid < 0 ? -errno : pid;
}

/* The C library's posix_spawn, or posix_spawnp, with default attributes and one adddup2. */
pid_t spawnfd_baseline_posix_spawn(char *program, int out, bool search)
{
	char *argv[] = {program, NULL};
	posix_spawn_file_actions_t actions;
	pid_t pid = -1;
	int err = posix_spawn_file_actions_init(&actions);

	if (err)
		return -err;
	err = posix_spawn_file_actions_adddup2(&actions, out, 1);
	if (!err)
		err = search ? posix_spawnp(&pid, program, &actions, NULL, argv, environ)
			     : posix_spawn(&pid, program, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return err ? -err : pid;
}
