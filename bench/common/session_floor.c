// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Lower bounds of a session's command. The program shares no code with spawnfd. It checks each
 * call's status and directory, and the length and FNV-1a hash of stdout and stderr.
 *
 * Usage: session_floor CALLS 1. The program starts one bash. Each call has two pipes (stdout,
 * stderr), which bash opens through /proc/OWNER/fd. A call has the form: bash -c TEXT. The program
 * runs TEXT.
 *
 * As session_floor, the program drives bash by the protocol of spawnfd's sessions: bash waits for a
 * byte of a pipe, and then sources a file in memory. The file runs the text, and proves by a number
 * that it did. A second file reports status, times and directory.
 *
 * As session_pipe_floor (-DCONTROL_PIPE), it gives bash two lines through a pipe that is bash's
 * standard input. Nothing proves that a reported status is that of the text, because anything in
 * the shell can read the lines.
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

#ifdef CONTROL_PIPE
static const bool has_control_pipe = true;
#else
static const bool has_control_pipe = false;
#endif

static pid_t shell;
static int control; /* the write end of the pipe by which the shell gets its lines, or wakes */
static int status_pipe[2];
static int script;	/* the file that the shell sources for each call */
static int report_file; /* the file that the shell sources after each call */
static char **texts;	/* for each preset, its text as a word of the shell */
static char real_directory[PATH_MAX];
static char number[17]; /* of a call, in the files of the shell; empty with a control pipe */

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
	texts = calloc(preset_count, sizeof(*texts));
	if (!texts)
		fail("out of memory");
	for (size_t i = 0; i < preset_count; i++) {
		char **argv = presets[i].argv;

		if (!argv[0] || !argv[1] || !argv[2] || strcmp(argv[1], "-c"))
			fail("preset %s is not bash -c TEXT", presets[i].name);
		texts[i] = quote(argv[2]);
	}
}

static int new_file(void)
{
	int file = memfd_create("session-floor", MFD_CLOEXEC);

	if (file < 0)
		fail("memfd_create: %s", strerror(errno));
	return file;
}

static void new_pipe(int ends[2])
{
	if (pipe2(ends, O_CLOEXEC))
		fail("pipe2: %s", strerror(errno));
}

static void replace(int file, const char *contents)
{
	size_t length = strlen(contents);

	if (ftruncate(file, 0) || pwrite(file, contents, length, 0) != (ssize_t)length)
		fail("pwrite: %s", strerror(errno));
}

static void write_control(const char *bytes, size_t length)
{
	if (write(control, bytes, length) != (ssize_t)length)
		fail("write: %s", strerror(errno));
}

/* Writes the files that make the shell wait for a byte of a pipe, and returns its standard input.
 */
static int prepare_files(int wake)
{
	enum { TURNS = 128, LINES = 256, LENGTH = 256 };
	int owner = getpid(), lines = new_file(), boot = new_file();
	char line[LENGTH + 1], turn[LENGTH];
	char *contents = calloc(TURNS + LINES, sizeof(line)), *end = contents;

	if (!contents)
		fail("out of memory");
	report_file = new_file();
	snprintf(turn, sizeof(turn),
		 "\\builtin . /proc/%d/fd/%d \"$?\" \"$-\";\\builtin read -r -u 9 _ "
		 "9</proc/%d/fd/%d&&"
		 "\\builtin . /proc/self/fd/0 </proc/%d/fd/%d\n",
		 owner, report_file, owner, wake, owner, script);
	for (int i = 0; i < TURNS; i++)
		end = stpcpy(end, turn);
	replace(boot, contents);
	/* The length of a line divides that of what bash reads at once. So bash reads whole lines,
	 * although each line makes it read from the beginning. */
	snprintf(line, sizeof(line),
		 "\\builtin . /proc/%d/fd/%d \"$?\" \"$-\" </dev/null;"
		 "\\command exec </proc/%d/fd/%d;\\builtin . /proc/%d/fd/%d </dev/null",
		 owner, report_file, owner, lines, owner, boot);
	end = contents;
	for (int i = 0; i < LINES; i++)
		end += sprintf(end, "%-*s\n", LENGTH - 1, line);
	replace(lines, contents);
	free(contents);
	return lines;
}

static void start_shell(char *program)
{
	char *argv[] = {program, "--noediting", "--norc", "-i", "-s", "+o", "history", "+H", NULL};
	int ends[2], input, null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null_fd < 0 || !realpath(directory, real_directory))
		fail("cannot set up: %s", strerror(errno));
	new_pipe(ends);
	new_pipe(status_pipe);
	script = new_file();
	control = ends[1];
	input = has_control_pipe ? ends[0] : prepare_files(ends[0]);
	shell = vfork();
	if (shell == 0) {
		if (setsid() > 0 && dup2(input, 0) == 0 && dup2(null_fd, 1) == 1 &&
		    dup2(null_fd, 2) == 2 && chdir(directory) == 0)
			execve(program, argv, environment);
		_exit(127);
	}
	if (shell < 0)
		fail("vfork: %s", strerror(errno));
	if (has_control_pipe)
		close(input);
	close(null_fd);
}

/* Lets the shell run a text by two lines: one sources a file, one reports its end. */
static void send_lines(const char *text, int pipes[STATUS][2])
{
	char lines[512];
	int owner = getpid(), length;
	char *contents;

	if (asprintf(&contents, "builtin eval %s", text) < 0)
		fail("out of memory");
	replace(script, contents);
	free(contents);
	length = snprintf(lines, sizeof(lines),
			  " { builtin . /proc/%d/fd/%d </dev/null "
			  ">/proc/%d/fd/%d 2>/proc/%d/fd/%d; }\n"
			  " { { builtin printf '\\0C %%s =%%s\\0' \"$?\" \"${PWD-}\";builtin times;"
			  "builtin printf '\\0E\\0'; } >/proc/%d/fd/%d||exit; }\n",
			  owner, script, owner, pipes[OUT][1], owner, pipes[ERR][1], owner,
			  status_pipe[1]);
	write_control(lines, (size_t)length);
}

/* Lets the shell run a text by two files, and wakes it. */
static void send_files(const char *text, int pipes[STATUS][2])
{
	static unsigned long long count;
	int owner = getpid();
	char *contents;

	snprintf(number, sizeof(number), "%016llx", ++count);
	if (asprintf(&contents,
		     "\\builtin set +xv\n"
		     "(($1==1||$1==127))&&"
		     "\\builtin eval '\\builtin printf \"\\0V%s\\0\" >/proc/%d/fd/%d'\n"
		     "\\builtin times >/proc/%d/fd/%d\n"
		     "\\builtin printf '\\0C%s %%s %%s=%%s\\0\\0E%s\\0' \"$1\" \"$2\" \"${PWD-}\" "
		     ">/proc/%d/fd/%d\n"
		     "\\command exec <>/dev/null >&0 2>&0\n\\builtin return\n",
		     number, owner, status_pipe[1], owner, status_pipe[1], number, number, owner,
		     status_pipe[1]) < 0)
		fail("out of memory");
	replace(report_file, contents);
	free(contents);
	if (asprintf(&contents,
		     "\\builtin printf '\\0B%s%%s\\0' \"${FUNCNAME[1]-source}\" >/proc/%d/fd/%d;"
		     "\\builtin eval -- %s "
		     "</dev/null >/proc/%d/fd/%d 2>&1 2>|/proc/%d/fd/%d 2>/proc/%d/fd/%d\n",
		     number, owner, status_pipe[1], text, owner, pipes[OUT][1], owner, script,
		     owner, pipes[ERR][1]) < 0)
		fail("out of memory");
	replace(script, contents);
	free(contents);
	write_control("\n", 1);
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

/* Returns the place after the name and number of the first record of this kind, or NULL. The shell
 * may report before it begins with the text: so a record counts only after the begin of the call.
 */
static const char *find_record(const char *report, size_t length, char kind)
{
	const char *from = report, *end = report + length;
	size_t digits = strlen(number);

	if (!has_control_pipe && kind != 'B')
		from = find_record(report, length, 'B');
	for (const char *at = from; at && at + 2 + digits < end; at++)
		if (at[0] == '\0' && at[1] == kind && !memcmp(at + 2, number, digits) &&
		    memchr(at + 2 + digits, '\0', (size_t)(end - at - 2 - (ptrdiff_t)digits)))
			return at + 2 + digits;
	return NULL;
}

/* Reads both streams until the report is complete. Returns the report's length. */
static size_t read_report(int pipes[STATUS][2], struct output seen[2], char report[MAX_REPORT])
{
	struct pollfd watched[PIPES];
	size_t length = 0;

	for (int i = 0; i < STATUS; i++)
		watched[i] = (struct pollfd){.fd = pipes[i][0], .events = POLLIN};
	watched[STATUS] = (struct pollfd){.fd = status_pipe[0], .events = POLLIN};
	while (!find_record(report, length, 'E')) {
		if (poll(watched, PIPES, DEADLINE_MS) <= 0)
			fail("the shell did not report the end of a command");
		for (int i = 0; i < STATUS; i++)
			if (watched[i].revents)
				read_stream(pipes[i][0], &seen[i]);
		if (watched[STATUS].revents) {
			ssize_t got = read(status_pipe[0], report + length, MAX_REPORT - length);

			if (got <= 0)
				fail("the report of a command is too long or unreadable");
			length += (size_t)got;
		}
	}
	return length;
}

/* The record of a call's end has the status and the directory. */
static void check_report(const struct preset *preset, const char *report, size_t length,
			 const struct output seen[2])
{
	const char *status = find_record(report, length, 'C');
	const char *words = status ? strchr(status, ' ') : NULL;
	const char *cwd = words ? strchr(words, '=') : NULL;

	if (!cwd || strcmp(cwd + 1, real_directory))
		fail("preset %s: the shell is in %s", preset->name, cwd ? cwd + 1 : "no directory");
	check(preset, atoi(words), seen);
}

static size_t run_call(const struct preset *preset, char report[MAX_REPORT], struct output seen[2])
{
	int pipes[STATUS][2];
	const char *text = texts[preset - presets];
	size_t length;

	for (int i = 0; i < STATUS; i++) {
		new_pipe(pipes[i]);
		clear_output(&seen[i]);
	}
	if (has_control_pipe)
		send_lines(text, pipes);
	else
		send_files(text, pipes);
	length = read_report(pipes, seen, report);
	for (int i = 0; i < STATUS; i++)
		close(pipes[i][1]);
	for (int i = 0; i < STATUS; i++)
		while (read_stream(pipes[i][0], &seen[i]))
			;
	for (int i = 0; i < STATUS; i++)
		close(pipes[i][0]);
	return length;
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
		size_t length = run_call(calls[i], report, seen);

		clock_gettime(CLOCK_MONOTONIC, &end);
		times[i] = (end.tv_sec - begin.tv_sec) * 1000000000ll + end.tv_nsec - begin.tv_nsec;
		check_report(calls[i], report, length, seen);
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
	if (!has_control_pipe) {
		replace(script, "\\command exit\n");
		write_control("\n", 1);
	}
	close(control);
	while (waitpid(shell, NULL, 0) < 0)
		if (errno != EINTR)
			fail("waitpid: %s", strerror(errno));
	return 0;
}
