// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The lower bound of a call in tier subreaper: a second process, which is the program's parent and
 * reaps it and its orphans.
 *
 * Usage: subreaper_floor CALLS 1. Each call has a helper: a child of vfork that becomes a
 * subreaper, starts the call's program with vfork, and executes this program again as
 * "subreaper_floor helper PID REPORT". The helper reaps until it has no child, and writes the
 * status of process PID to the pipe REPORT. This program is linked statically, so that the helper
 * starts fast. It shares no code with spawnfd. It checks each call's exit code, and the length and
 * FNV-1a hash of stdout and stderr.
 */
#define _GNU_SOURCE
#include "floor_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUT, ERR, REPORT, PIPES };

static int null_fd;
static int own_program; /* this program's file */

static int help(pid_t program, int report)
{
	for (;;) {
		int status;
		pid_t ended = waitpid(-1, &status, 0);

		if (ended == program && write(report, &status, sizeof(status)) != sizeof(status))
			return 1;
		if (ended < 0 && errno != EINTR)
			return errno != ECHILD;
	}
}

/* Runs in a child of vfork, which shares the memory of its parent. */
static void become_helper(const struct preset *preset, int pipes[PIPES][2])
{
	char pid[16], report[16];
	char *argv[] = {"subreaper_floor", "helper", pid, report, NULL};
	pid_t program;

	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
		_exit(126);
	program = vfork();
	if (program == 0) {
		if (dup2(null_fd, 0) == 0 && dup2(pipes[OUT][1], 1) == 1 &&
		    dup2(pipes[ERR][1], 2) == 2 && chdir(directory) == 0)
			execve(preset->argv[0], preset->argv, environment);
		_exit(127);
	}
	snprintf(pid, sizeof(pid), "%d", program);
	snprintf(report, sizeof(report), "%d", pipes[REPORT][1]);
	if (program > 0 && fcntl(pipes[REPORT][1], F_SETFD, 0) == 0)
		fexecve(own_program, argv, environment);
	_exit(126);
}

/* Reads both streams of a call to their ends. */
static void read_streams(int pipes[PIPES][2], struct output seen[2])
{
	static unsigned char buffer[1 << 16];
	struct pollfd watched[2] = {
		{.fd = pipes[OUT][0], .events = POLLIN},
		{.fd = pipes[ERR][0], .events = POLLIN},
	};

	while (watched[OUT].fd >= 0 || watched[ERR].fd >= 0) {
		if (poll(watched, 2, -1) < 0 && errno != EINTR)
			fail("poll: %s", strerror(errno));
		for (int i = OUT; i <= ERR; i++) {
			if (watched[i].fd < 0 || !watched[i].revents)
				continue;
			ssize_t got = read(watched[i].fd, buffer, sizeof(buffer));

			if (got < 0)
				fail("read: %s", strerror(errno));
			if (got == 0)
				watched[i].fd = -1;
			else
				hash_more(&seen[i], buffer, (size_t)got);
		}
	}
}

static void wait_for(pid_t helper, const struct preset *preset)
{
	int status;

	while (waitpid(helper, &status, 0) < 0)
		if (errno != EINTR)
			fail("waitpid: %s", strerror(errno));
	if (status)
		fail("preset %s: wait status %d of the helper", preset->name, status);
}

static void run_call(const struct preset *preset)
{
	int pipes[PIPES][2], status;
	struct output seen[2];
	pid_t helper;

	for (int i = 0; i < PIPES; i++)
		if (pipe2(pipes[i], O_CLOEXEC))
			fail("pipe2: %s", strerror(errno));
	helper = vfork();
	if (helper == 0)
		become_helper(preset, pipes);
	if (helper < 0)
		fail("vfork: %s", strerror(errno));
	for (int i = 0; i < PIPES; i++)
		close(pipes[i][1]);
	clear_output(&seen[OUT]);
	clear_output(&seen[ERR]);
	read_streams(pipes, seen);
	if (read(pipes[REPORT][0], &status, sizeof(status)) != sizeof(status))
		fail("preset %s: the helper has not reported a status", preset->name);
	wait_for(helper, preset);
	for (int i = 0; i < PIPES; i++)
		close(pipes[i][0]);
	if (!WIFEXITED(status))
		fail("preset %s: wait status %d", preset->name, status);
	check(preset, WEXITSTATUS(status), seen);
}

static const int64_t *run(const struct preset **calls, size_t count)
{
	for (size_t i = 0; i < count; i++)
		run_call(calls[i]);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "helper"))
		return help(atoi(argv[2]), atoi(argv[3]));
	if (argc != 3 || strcmp(argv[2], "1"))
		fail("usage: subreaper_floor CALLS 1");
	read_calls(argv[1]);
	null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	own_program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	if (null_fd < 0 || own_program < 0)
		fail("cannot set up: %s", strerror(errno));
	serve(run);
	return 0;
}
