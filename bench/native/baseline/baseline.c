// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The raw baselines: what a C programmer writes when only speed matters.
 *
 * Each starts `program` with the one argument argv[0], this process's environment, and `out` as
 * descriptor 1, and returns the pid, or -errno. `search` says that `program` is a name to be found
 * in PATH. No signal handling, no pidfd, no closing of descriptors: these are floors, not rivals.
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
