/* SPDX-License-Identifier: GPL-2.0-only */
/* Helpers for tests of children that block in an action, before exec. */
#ifndef BLOCKED_H
#define BLOCKED_H

#include "spawn_test.h"

/* Waits until the process has a child, and returns the child's pid. The child may not have executed
 * its program yet. */
static inline pid_t child_of(pid_t parent)
{
	char path[64], text[512], *state;
	int pid, found;

	for (;;) {
		/* The kernel assigns pids in ascending order, and nothing else in the guest forks.
		 * So the child's pid is among the next ones. */
		for (pid = parent + 1; pid < parent + 100; pid++) {
			snprintf(path, sizeof(path), "/proc/%d/stat", pid);
			state = strrchr(file_text(path, text, sizeof(text)), ')');
			if (state && sscanf(state + 1, " %*c %d", &found) == 1 && found == parent)
				return pid;
		}
		sched_yield();
	}
}

/* Forks a process that runs the builder. The spawned child blocks in an action that opens a FIFO;
 * *child is its pid. The process exits with the errno of the spawn, or with the child's status. */
static inline pid_t start_blocked(int fd, pid_t *child)
{
	static struct spawn_open fifo;
	struct spawn_action action = {
		.type = SPAWN_ACTION_OPEN, .fd = AT_FDCWD, .newfd = 9, .arg = ADDRESS(&fifo)};
	pid_t pid;

	*child = -1;
	fifo = (struct spawn_open)OPEN_OF("fifo");
	unlink("fifo");
	if (mkfifo("fifo", 0644) < 0)
		return -1;
	pid = fork();
	if (pid == 0) {
		struct spawn_args args = make_args(&action, 1);
		long ret;

		args.argv = ADDRESS(STRINGS("child", "exit", "0"));
		ret = sys_run(fd, &args, sizeof(args));
		_exit(ret >= 0 ? reap(ret) : -ret);
	}
	*child = child_of(pid);
	return pid;
}

/* Lets a child of start_blocked() go on, and waits until its caller exits. Returns the status. */
static inline int go_on(pid_t pid)
{
	int writer = open("fifo", O_WRONLY | O_CLOEXEC), status = -1;

	waitpid(pid, &status, 0);
	close(writer);
	return status;
}

/* Waits until the process sleeps: it waits for the FIFO, or is frozen. */
static inline void until_asleep(pid_t pid)
{
	char path[64], text[512], *state;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	do {
		sched_yield();
		state = strrchr(file_text(path, text, sizeof(text)), ')');
	} while (state && state[2] != 'S');
}

#endif
