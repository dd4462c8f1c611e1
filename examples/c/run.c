/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A bounded run, a job with streamed lines, a session, and a warm start, by the C library.
 *
 *   cc -o run run.c $(pkg-config --cflags --libs spawnfd)
 */
#include <errno.h>
#include <poll.h>
#include <spawnfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct spawnfd_error error = SPAWNFD_ERROR_INIT;

static void check(int ok)
{
	if (!ok) {
		fprintf(stderr, "%s\n", error.message);
		exit(1);
	}
}

static struct spawnfd_command *new_command(const char *const *argv)
{
	struct spawnfd_command *command = spawnfd_command_new(argv, &error);

	check(command != NULL);
	return command;
}

static void set(struct spawnfd_command *command, const char *name, const char *value)
{
	check(spawnfd_command_set(command, name, value, &error) == 0);
}

/* Text of a result; empty if the result has no such text. */
static const char *text(const struct spawnfd_result *result, const char *name)
{
	const char *found = spawnfd_result_text(result, name, NULL, NULL);

	return found ? found : "";
}

/* Runs a program with a timeout and bounded output. */
static void bounded_run(void)
{
	const char *argv[] = {"sh", "-c", "seq 100000; sleep 60", NULL};
	struct spawnfd_command *command = new_command(argv);
	struct spawnfd_result *result;
	double omitted;

	set(command, "timeout", "2s");
	set(command, "keep", "4:7");
	set(command, "marker", "[{omitted} omitted]");
	check(spawnfd_command_add_action(command, "umask", "077", &error) == 0);
	result = spawnfd_run(command, &error);
	check(result != NULL);
	printf("%s", text(result, "stdout"));
	check(spawnfd_result_number(result, "omitted_bytes", &omitted, &error) == 0);
	printf("stop: %s, ok: %d, omitted: %.0f bytes\n", text(result, "stop"),
	       spawnfd_result_ok(result), omitted);
	printf("reason: %s\n", spawnfd_result_reason(result));
	spawnfd_result_free(result);
	spawnfd_command_free(command);
}

/* Prints the lines of a job while it runs, and writes to it. */
static void streamed_job(void)
{
	const char *argv[] = {"sh", "-c", "echo ready; read word; echo got $word >&2; exit 3",
			      NULL};
	struct spawnfd_command *command = new_command(argv);
	struct spawnfd_line line = SPAWNFD_LINE_INIT;
	struct spawnfd_result *result;
	struct spawnfd_job *job;
	double code;
	int more = 1;

	set(command, "stdin", "stream");
	job = spawnfd_start(command, &error);
	check(job != NULL);
	check(spawnfd_job_write(job, "hello\n", 6, -1, &error) == 6);
	while (more == 1) {
		struct pollfd ready = {.fd = spawnfd_job_fd(job), .events = POLLIN};

		check(poll(&ready, 1, -1) == 1);
		while ((more = spawnfd_job_next_line(job, &line, 0, &error)) == 1)
			printf("%s: %s", line.stream == 1 ? "stdout" : "stderr", line.text);
		check(more == 0 || errno == EAGAIN);
		more = more == 0 ? 0 : 1;
	}
	result = spawnfd_job_wait(job, -1, &error);
	check(result != NULL);
	check(spawnfd_result_number(result, "code", &code, &error) == 0);
	printf("code: %.0f\n", code);
	spawnfd_result_free(result);
	spawnfd_job_free(job);
	spawnfd_command_free(command);
}

/* Runs three commands in one shell. */
static void session(void)
{
	const char *argv[] = {"bash", NULL};
	const char *texts[] = {"cd /usr; greeting=hello", "echo $greeting from $PWD", "sleep 60"};
	struct spawnfd_command *shell = new_command(argv);
	struct spawnfd_command *options = new_command(NULL);
	struct spawnfd_session *session = spawnfd_session_open(shell, &error);

	check(session != NULL);
	set(options, "timeout", "1s");
	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		struct spawnfd_result *result;

		result = spawnfd_session_run(session, texts[i], options, &error);
		check(result != NULL);
		printf("%s: %s\n%s", text(result, "stop"), text(result, "cwd"),
		       text(result, "stdout"));
		spawnfd_result_free(result);
	}
	spawnfd_session_free(session);
	spawnfd_command_free(options);
	spawnfd_command_free(shell);
}

/* Starts a Python that has been started ahead. */
static void warm_start(void)
{
	const char *argv[] = {"python3", "-c", "print(6 * 7)", NULL};
	struct spawnfd_command *command = new_command(argv);
	struct spawnfd_warm *warm = spawnfd_warm_new(0, 0, &error);
	struct spawnfd_result *result;

	check(warm != NULL);
	check(spawnfd_warm_add(warm, "python3", 1, &error) == 0);
	check(spawnfd_warm_fill(warm, 10000, &error) >= 0);
	check(spawnfd_command_set_warm(command, warm, &error) == 0);
	result = spawnfd_run(command, &error);
	check(result != NULL);
	printf("%s", text(result, "stdout"));
	fprintf(stderr, "started: %s\n", text(result, "started"));
	spawnfd_result_free(result);
	spawnfd_warm_free(warm);
	spawnfd_command_free(command);
}

int main(void)
{
	bounded_run();
	streamed_job();
	session();
	warm_start();
	return 0;
}
