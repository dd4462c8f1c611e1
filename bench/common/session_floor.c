// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The lower bound of a session's command: drives bash by the protocol of spawnfd's sessions.
 *
 * Usage: session_floor CALLS 1. The program starts one bash, whose standard input is a control
 * pipe. Each call has three pipes (stdout, stderr, status), which bash opens through
 * /proc/OWNER/fd. One control line sources a file in memory that runs the call's text. The other
 * line reports status, times and directory. The program shares no code with spawnfd. It checks
 * each call's status and directory, and the length and FNV-1a hash of stdout and stderr.
 *
 * A call has the form: bash -c TEXT. The program runs TEXT.
 */
#define _GNU_SOURCE
#include "floor_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_MS 60000
#define MAX_REPORT (PATH_MAX + 256)

enum { OUT, ERR, STATUS, PIPES };

static pid_t shell;
static int control;
static int script;     /* the file that the shell sources for each call */
static char **scripts; /* for each preset, a script that runs its text */
static char real_directory[PATH_MAX];

static char *quote(const char *text)
{
	char *word = malloc(4 * strlen(text) + 3), *end = word;

	if (!word)
		fail("out of memory");
	*end++ = '\'';
	for (; *text; text++)
		end = *text == '\'' ? stpcpy(end, "'\\''") : (*end = *text, end + 1);
	*end++ = '\'';
	*end = '\0';
	return word;
}

static void prepare_texts(void)
{
	scripts = calloc(preset_count, sizeof(*scripts));
	if (!scripts)
		fail("out of memory");
	for (size_t i = 0; i < preset_count; i++) {
		char **argv = presets[i].argv;

		if (!argv[0] || !argv[1] || !argv[2] || strcmp(argv[1], "-c"))
			fail("preset %s is not bash -c TEXT", presets[i].name);
		if (asprintf(&scripts[i], "builtin eval %s", quote(argv[2])) < 0)
			fail("out of memory");
	}
}

static void start_shell(char *program)
{
	char *argv[] = {program, "--noediting", "--norc", "-i", "-s", "+o", "history", "+H", NULL};
	int input[2], null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	script = memfd_create("session-floor", MFD_CLOEXEC);
	if (null_fd < 0 || script < 0 || pipe2(input, O_CLOEXEC) ||
	    !realpath(directory, real_directory))
		fail("cannot set up: %s", strerror(errno));
	shell = vfork();
	if (shell == 0) {
		if (setsid() > 0 && dup2(input[0], 0) == 0 && dup2(null_fd, 1) == 1 &&
		    dup2(null_fd, 2) == 2 && chdir(directory) == 0)
			execve(program, argv, environment);
		_exit(127);
	}
	if (shell < 0)
		fail("vfork: %s", strerror(errno));
	close(input[0]);
	close(null_fd);
	control = input[1];
}

/* Writes the script of a call, and two control lines: one runs the script, one reports its end. */
static void send_lines(const char *text, int pipes[PIPES][2])
{
	char lines[512];
	int owner = getpid(), length;

	if (ftruncate(script, 0) || pwrite(script, text, strlen(text), 0) != (ssize_t)strlen(text))
		fail("pwrite: %s", strerror(errno));
	length = snprintf(lines, sizeof(lines),
			  " { builtin . /proc/%d/fd/%d </dev/null "
			  ">/proc/%d/fd/%d 2>/proc/%d/fd/%d; }\n"
			  " { { builtin printf '\\0%%s ' \"$?\";builtin times;"
			  "builtin printf '%%s\\0\\0' \"${PWD-}\"; } >/proc/%d/fd/%d||exit; }\n",
			  owner, script, owner, pipes[OUT][1], owner, pipes[ERR][1], owner,
			  pipes[STATUS][1]);
	if (write(control, lines, (size_t)length) != length)
		fail("write: %s", strerror(errno));
}

/* Reads from one stream of a call. Returns false at its end. */
static bool read_stream(int fd, struct output *output)
{
	static unsigned char buffer[1 << 16];
	ssize_t got = read(fd, buffer, sizeof(buffer));

	if (got < 0)
		fail("read: %s", strerror(errno));
	hash_more(output, buffer, (size_t)got);
	return got > 0;
}

/* Reads both streams until the report is complete. */
static void read_report(int pipes[PIPES][2], struct output seen[2], char report[MAX_REPORT])
{
	struct pollfd watched[PIPES];
	size_t length = 0;

	for (int i = 0; i < PIPES; i++)
		watched[i] = (struct pollfd){.fd = pipes[i][0], .events = POLLIN};
	while (length < 3 || report[length - 2] || report[length - 1]) {
		if (poll(watched, PIPES, DEADLINE_MS) <= 0)
			fail("the shell did not report the end of a command");
		for (int i = 0; i < STATUS; i++)
			if (watched[i].revents)
				read_stream(pipes[i][0], &seen[i]);
		if (watched[STATUS].revents) {
			ssize_t got = read(pipes[STATUS][0], report + length, MAX_REPORT - length);

			if (got <= 0)
				fail("the report of a command is too long or unreadable");
			length += (size_t)got;
		}
	}
}

/* After a NUL byte, the report has the status, two lines of times, and the directory. */
static void check_report(const struct preset *preset, const char *report,
			 const struct output seen[2])
{
	const char *line = strchr(report + 1, '\n');
	const char *cwd = line ? strchr(line + 1, '\n') : NULL;

	if (!cwd || strcmp(cwd + 1, real_directory))
		fail("preset %s: the shell is in %s", preset->name, cwd ? cwd + 1 : "no directory");
	check(preset, atoi(report + 1), seen);
}

static void run_call(const struct preset *preset, char report[MAX_REPORT], struct output seen[2])
{
	int pipes[PIPES][2];

	for (int i = 0; i < PIPES; i++)
		if (pipe2(pipes[i], O_CLOEXEC))
			fail("pipe2: %s", strerror(errno));
	clear_output(&seen[OUT]);
	clear_output(&seen[ERR]);
	send_lines(scripts[preset - presets], pipes);
	read_report(pipes, seen, report);
	for (int i = 0; i < PIPES; i++)
		close(pipes[i][1]);
	for (int i = 0; i < STATUS; i++)
		while (read_stream(pipes[i][0], &seen[i]))
			;
	for (int i = 0; i < PIPES; i++)
		close(pipes[i][0]);
}

static const int64_t *run(const struct preset **calls, size_t count)
{
	static int64_t *times;
	char report[MAX_REPORT];
	struct output seen[2];

	times = realloc(times, (count + 1) * sizeof(*times));
	if (!times)
		fail("out of memory");
	for (size_t i = 0; i < count; i++) {
		struct timespec begin, end;

		clock_gettime(CLOCK_MONOTONIC, &begin);
		run_call(calls[i], report, seen);
		clock_gettime(CLOCK_MONOTONIC, &end);
		times[i] = (end.tv_sec - begin.tv_sec) * 1000000000ll + end.tv_nsec - begin.tv_nsec;
		check_report(calls[i], report, seen);
	}
	return times;
}

int main(int argc, char **argv)
{
	if (argc != 3 || strcmp(argv[2], "1"))
		fail("usage: session_floor CALLS 1");
	read_calls(argv[1]);
	if (!preset_count)
		fail("no calls");
	prepare_texts();
	start_shell(presets[0].argv[0]);
	serve(run);
	close(control);
	while (waitpid(shell, NULL, 0) < 0)
		if (errno != EINTR)
			fail("waitpid: %s", strerror(errno));
	return 0;
}
