/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The tests of spawnfd_run(3). The first argument names the test. run.rs compiles and runs this
 * program, also under valgrind and with the sanitizers of the compiler.
 */
#define _GNU_SOURCE
#include "run.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static struct spawnfd_result *run(struct spawnfd_command *command)
{
	struct spawnfd_result *result = spawnfd_run(command, &error);

	CHECK(result);
	spawnfd_command_free(command);
	return result;
}

static struct spawnfd_job *start(struct spawnfd_command *command)
{
	struct spawnfd_job *job = spawnfd_start(command, &error);

	CHECK(job);
	spawnfd_command_free(command);
	return job;
}

static void await_result(struct spawnfd_job *job)
{
	struct spawnfd_result *result = spawnfd_job_wait(job, -1, &error);

	CHECK(result);
	spawnfd_result_free(result);
}

/* This test and the next one start no program: valgrind cannot run the library's clone(2). */
static void null_arguments_are_refused(void)
{
	struct spawnfd_command *command = shell("true");
	struct spawnfd_line line = SPAWNFD_LINE_INIT;
	uint64_t cursor = 0;
	char byte;
	double value;

	FAILS(spawnfd_command_set(NULL, "timeout", "1", NULL), -1, EINVAL);
	FAILS(spawnfd_command_set(command, NULL, "1", NULL), -1, EINVAL);
	FAILS(spawnfd_command_set_bytes(NULL, "input", "", 0, NULL), -1, EINVAL);
	FAILS(spawnfd_command_set_bytes(command, NULL, "", 0, NULL), -1, EINVAL);
	FAILS(spawnfd_command_set_bytes(command, "input", NULL, 1, NULL), -1, EINVAL);
	CHECK(spawnfd_command_set_bytes(command, "input", NULL, 0, &error) == 0);
	FAILS(spawnfd_command_set_fd(NULL, "stdin", 0, NULL), -1, EINVAL);
	FAILS(spawnfd_command_set_fd(command, NULL, 0, NULL), -1, EINVAL);
	FAILS(spawnfd_command_set_env(NULL, "A", "", NULL), -1, EINVAL);
	FAILS(spawnfd_command_set_env(command, NULL, "", NULL), -1, EINVAL);
	FAILS(spawnfd_command_keep_env(NULL, WORDS("*"), NULL), -1, EINVAL);
	FAILS(spawnfd_command_keep_env(command, NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_command_add_action(NULL, "setsid", NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_command_add_action(command, NULL, NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_command_set_sandbox(NULL, WORDS("env"), NULL), -1, EINVAL);
	FAILS(spawnfd_command_set_sandbox(command, NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_command_set_warm(NULL, NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_run(NULL, NULL), NULL, EINVAL);
	FAILS(spawnfd_start(NULL, NULL), NULL, EINVAL);
	FAILS(spawnfd_job_detach(NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_job_fd(NULL), -1, EINVAL);
	FAILS(spawnfd_job_pid(NULL), -1, EINVAL);
	FAILS(spawnfd_job_next_line(NULL, &line, 0, NULL), -1, EINVAL);
	FAILS(spawnfd_job_read(NULL, &cursor, &byte, 1, NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_job_write(NULL, "", 0, 0, NULL), -1, EINVAL);
	FAILS(spawnfd_job_close_stdin(NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_job_wait(NULL, 0, NULL), NULL, EINVAL);
	FAILS(spawnfd_job_stop(NULL, 0, NULL), -1, EINVAL);
	FAILS(spawnfd_job_signal(NULL, 0, 0, NULL), -1, EINVAL);
	FAILS(spawnfd_job_resize(NULL, 80, 24, NULL), -1, EINVAL);
	CHECK(spawnfd_result_ok(NULL) == 0 && spawnfd_result_reason(NULL) == NULL);
	FAILS(spawnfd_result_number(NULL, "code", &value, NULL), -1, EINVAL);
	FAILS(spawnfd_result_text(NULL, "stop", NULL, NULL), NULL, EINVAL);
	FAILS(spawnfd_result_json(NULL, NULL), NULL, EINVAL);
	FAILS(spawnfd_remote_connect(NULL, 0, 0, NULL), NULL, EINVAL);
	FAILS(spawnfd_remote_run(NULL, command, NULL), NULL, EINVAL);
	FAILS(spawnfd_remote_start(NULL, command, NULL), NULL, EINVAL);
	FAILS(spawnfd_remote_ping(NULL, &value, NULL), -1, EINVAL);
	spawnfd_remote_free(NULL);
	FAILS(spawnfd_session_open(NULL, NULL), NULL, EINVAL);
	FAILS(spawnfd_session_run(NULL, "true", NULL, NULL), NULL, EINVAL);
	FAILS(spawnfd_session_start(NULL, "true", NULL, NULL), NULL, EINVAL);
	FAILS(spawnfd_session_interrupt(NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_warm_add(NULL, "true", 0, NULL), -1, EINVAL);
	FAILS(spawnfd_warm_fill(NULL, 0, NULL), -1, EINVAL);
	spawnfd_command_free(NULL);
	spawnfd_job_free(NULL);
	spawnfd_result_free(NULL);
	spawnfd_session_free(NULL);
	spawnfd_warm_free(NULL);
	spawnfd_command_free(command);
}

static void errors_say_what_failed(void)
{
	struct spawnfd_error small = SPAWNFD_ERROR_INIT;
	struct {
		struct spawnfd_error error;
		char later[8];
	} large;
	struct spawnfd_command *command = shell("true");

	FAILS(spawnfd_command_set(command, "timeout", "soon", &error), -1, EINVAL);
	CHECK(error.error == EINVAL && error.action == -1 && !strcmp(error.stage, "validate"));
	CHECK(strstr(error.message, "timeout must be a number of seconds"));
	FAILS(spawnfd_command_set(command, "tomeout", "1", &error), -1, EINVAL);
	CHECK(strstr(error.message, "there is no option \"tomeout\""));
	FAILS(spawnfd_command_set(command, "time\xff", "1", &error), -1, EINVAL);
	CHECK(strstr(error.message, "valid UTF-8"));
	FAILS(spawnfd_command_set(command, "stdout", "loud", &error), -1, EINVAL);
	CHECK(strstr(error.message, "stdout must be one of \"capture\""));
	FAILS(spawnfd_command_set(command, "limits", "1", &error), -1, EINVAL);
	FAILS(spawnfd_command_set_bytes(command, "timeout", "1", 1, &error), -1, EINVAL);
	FAILS(spawnfd_command_set_fd(command, "stdlog", 1, &error), -1, EINVAL);
	FAILS(spawnfd_command_set_fd(command, "stdout", 1000, &error), -1, EBADF);
	FAILS(spawnfd_command_set_env(command, "A=B", "", &error), -1, EINVAL);
	FAILS(spawnfd_command_add_action(command, "umsk", "022", &error), -1, EINVAL);
	FAILS(spawnfd_command_add_action(command, "umask", "999", &error), -1, EINVAL);
	CHECK(strstr(error.message, "umask must be an octal number"));
	FAILS(spawnfd_command_add_action(command, "setsid", "1", &error), -1, EINVAL);
	FAILS(spawnfd_command_add_action(command, "descriptor", "1000:5", &error), -1, EBADF);
	FAILS(spawnfd_command_set_sandbox(command, WORDS("no-such-program"), &error), -1, ENOENT);
	FAILS(spawnfd_command_new((const char *const[]){NULL}, &error), NULL, EINVAL);

	/* An option of another call. */
	set(command, "window", "1K");
	FAILS(spawnfd_run(command, &error), NULL, EINVAL);
	CHECK(strstr(error.message, "the call run has no option \"window\""));
	spawnfd_command_free(command);

	command = spawnfd_command_new(WORDS("no-such-program"), &error);
	FAILS(spawnfd_run(command, &error), NULL, ENOENT);
	CHECK(!strcmp(error.stage, "template") && strstr(error.message, "no-such-program"));

	/* The library refuses a struct without its size, fills a later version, and leaves it
	 * unchanged otherwise. */
	small.size = 8;
	small.error = 7;
	FAILS(spawnfd_run(command, &small), NULL, EINVAL);
	CHECK(small.error == 7);
	memset(&large, 'x', sizeof(large));
	large.error.size = sizeof(large);
	FAILS(spawnfd_run(command, &large.error), NULL, ENOENT);
	CHECK(large.error.error == ENOENT && large.error.size == sizeof(large) &&
	      large.later[7] == 0);
	spawnfd_command_free(command);

	command = spawnfd_command_new(NULL, &error);
	FAILS(spawnfd_run(command, &error), NULL, EINVAL);
	spawnfd_command_free(command);
}

static void objects_need_their_arguments(void)
{
	struct spawnfd_result *result = run(shell("true"));
	struct spawnfd_job *job = start(shell("true"));
	struct spawnfd_line line = SPAWNFD_LINE_INIT;
	uint64_t cursor = 0;
	char byte;
	double value;

	FAILS(spawnfd_job_next_line(job, NULL, 0, NULL), -1, EINVAL);
	FAILS(spawnfd_job_read(job, NULL, &byte, 1, NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_job_read(job, &cursor, NULL, 1, NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_job_read(job, &cursor, &byte, 0, NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_job_write(job, NULL, 1, 0, NULL), -1, EINVAL);
	FAILS(spawnfd_job_stop(job, -1, NULL), -1, EINVAL);
	FAILS(spawnfd_job_signal(job, 1000, 0, NULL), -1, EINVAL);
	FAILS(spawnfd_result_number(result, NULL, &value, NULL), -1, EINVAL);
	FAILS(spawnfd_result_number(result, "code", NULL, NULL), -1, EINVAL);
	FAILS(spawnfd_result_text(result, NULL, NULL, NULL), NULL, EINVAL);
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 0);
	await_result(job);
	CHECK(spawnfd_job_read(job, &cursor, &byte, 1, NULL, &error) == 0);
	CHECK(spawnfd_result_number(result, "code", &value, &error) == 0);
	spawnfd_result_free(result);
	finish(job, "exited");
}

static void options_and_actions_take_effect(void)
{
	struct spawnfd_command *command =
		shell("umask; pwd; cat; echo $A$B$C; echo e >&2; cat <&7");
	struct spawnfd_result *result;
	char *json;
	int ends[2];

	CHECK(pipe2(ends, O_CLOEXEC) == 0 && write(ends[1], "piped\n", 6) == 6);
	close(ends[1]);
	set(command, "cwd", "/usr");
	set(command, "stderr", "merge");
	CHECK(spawnfd_command_set_bytes(command, "input", "in\0put\n", 7, &error) == 0);
	CHECK(spawnfd_command_set_env(command, "A", "lost", &error) == 0);
	CHECK(spawnfd_command_keep_env(command, WORDS("PATH", "TMP*"), &error) == 0);
	CHECK(spawnfd_command_set_env(command, "B", "b", &error) == 0);
	CHECK(spawnfd_command_set_env(command, "C", "c", &error) == 0);
	CHECK(spawnfd_command_set_env(command, "C", NULL, &error) == 0);
	CHECK(spawnfd_command_add_action(command, "umask", "027", &error) == 0);
	char descriptor[20];
	snprintf(descriptor, sizeof(descriptor), "%d:7", ends[0]);
	CHECK(spawnfd_command_add_action(command, "descriptor", descriptor, &error) == 0);
	close(ends[0]);
	result = run(command);
	size_t length;
	const char *text = spawnfd_result_text(result, "stdout", &length, &error);
	const char expected[] = "0027\n/usr\nin\0put\nb\ne\npiped\n";
	CHECK(length == sizeof(expected) - 1 && !memcmp(text, expected, sizeof(expected)));
	CHECK(has(result, "stderr", "") && has(result, "stop", "exited") &&
	      spawnfd_result_ok(result));
	CHECK(number(result, "code") == 0 && number(result, "wall_seconds") > 0);
	CHECK(number(result, "ok") == 1 && number(result, "leftovers") == 0);
	CHECK(number(result, "omitted/stdout/bytes") == 0);
	double value;
	FAILS(spawnfd_result_number(result, "signal", &value, &error), -1, ENODATA);
	FAILS(spawnfd_result_number(result, "stop", &value, &error), -1, EINVAL);
	FAILS(spawnfd_result_text(result, "code", NULL, &error), NULL, EINVAL);
	FAILS(spawnfd_result_text(result, "no such", NULL, &error), NULL, ENODATA);
	CHECK(spawnfd_result_reason(result) == NULL);
	json = spawnfd_result_json(result, &error);
	CHECK(json && strstr(json, "\"stop\":\"exited\"") && strstr(json, "piped"));
	free(json);
	spawnfd_result_free(result);

	command = shell("true");
	CHECK(spawnfd_command_add_action(command, "umask", "022", &error) == 0);
	CHECK(spawnfd_command_add_action(command, "chdir", "/nonexistent", &error) == 0);
	FAILS(spawnfd_run(command, &error), NULL, ENOENT);
	CHECK(error.action == 1 && !strcmp(error.stage, "action"));
	spawnfd_command_free(command);

	/* A descriptor as a stream; the last setting of a name counts. */
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	command = shell("echo to the pipe");
	set(command, "stdout", "null");
	CHECK(spawnfd_command_set_fd(command, "stdout", ends[1], &error) == 0);
	close(ends[1]);
	result = run(command);
	char buffer[20];
	CHECK(has(result, "stdout", "") && read(ends[0], buffer, sizeof(buffer)) == 12);
	close(ends[0]);
	spawnfd_result_free(result);

	command = shell("echo $0; sleep 60");
	set(command, "timeout", "60");
	set(command, "timeout", "1s");
	set(command, "combined", "true");
	result = run(command);
	CHECK(has(result, "stop", "timeout") && number(result, "signal") == SIGTERM);
	CHECK(!strcmp(spawnfd_result_reason(result), "timed out after 1 s"));
	CHECK(has(result, "output/0/text", "sh\n") && has(result, "stdout", "sh\n"));
	json = spawnfd_result_json(result, &error);
	CHECK(json && strstr(json, "\"text\":\"sh\\n\"") && strstr(json, "\"stdout\":\"sh\\n\""));
	free(json);
	spawnfd_result_free(result);

	/* A sandbox; the same command runs twice. */
	command = spawnfd_command_new(WORDS("sh", "-c", "echo $WHERE"), &error);
	CHECK(spawnfd_command_set_sandbox(command, WORDS("env", "WHERE=inside"), &error) == 0);
	for (int i = 0; i < 2; i++) {
		result = spawnfd_run(command, &error);
		CHECK(result && has(result, "stdout", "inside\n"));
		spawnfd_result_free(result);
	}
	spawnfd_command_free(command);
}

static int is_ready(struct spawnfd_job *job, int timeout)
{
	struct pollfd ready = {.fd = spawnfd_job_fd(job), .events = POLLIN};

	return poll(&ready, 1, timeout);
}

static void jobs_stream_their_output(void)
{
	struct spawnfd_command *command =
		shell("echo one; read word; echo two >&2; printf three; read end");
	struct spawnfd_line line = SPAWNFD_LINE_INIT;
	struct spawnfd_job *job;
	char buffer[4];
	uint64_t cursor = 0, lost = 1;

	set(command, "stdin", "stream");
	job = start(command);
	CHECK(spawnfd_job_pid(job) > 0);
	CHECK(is_ready(job, -1) == 1);
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 1);
	CHECK(line.stream == 1 && line.position == 0 && line.lost == 0 && line.length == 4);
	CHECK(!strcmp(line.text, "one\n") && line.size == sizeof(line));
	FAILS(spawnfd_job_next_line(job, &line, 0, &error), -1, EAGAIN);
	CHECK(is_ready(job, 0) == 0);
	FAILS(spawnfd_job_next_line(job, &line, 1, &error), -1, ETIMEDOUT);
	FAILS(spawnfd_job_wait(job, 1, &error), NULL, ETIMEDOUT);
	CHECK(spawnfd_job_write(job, "word\n", 5, 0, &error) == 5);
	CHECK(is_ready(job, -1) == 1);
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 1);
	CHECK(line.stream == 2 && !strcmp(line.text, "two\n"));
	CHECK(spawnfd_job_close_stdin(job, &error) == 0);
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 1);
	CHECK(line.stream == 1 && !strcmp(line.text, "three"));
	line.size = 8;
	FAILS(spawnfd_job_next_line(job, &line, -1, &error), -1, EINVAL);
	line.size = sizeof(line);
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 0 && line.stream == 0);
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 0 && line.length == 0);
	await_result(job);
	/* An ended job stays readable. */
	CHECK(is_ready(job, -1) == 1);
	FAILS(spawnfd_job_write(job, "x", 1, 0, &error), -1, EPIPE);
	/* The window still has all output. */
	CHECK(spawnfd_job_read(job, &cursor, buffer, 4, &lost, &error) == 4);
	CHECK(cursor == 4 && lost == 0 && !memcmp(buffer, "one\n", 4));
	cursor = 12;
	CHECK(spawnfd_job_read(job, &cursor, buffer, 4, NULL, &error) == 1 && buffer[0] == 'e');
	CHECK(spawnfd_job_read(job, &cursor, buffer, 4, NULL, &error) == 0 && cursor == 13);
	finish(job, "exited");

	/* A reader with a cursor, which polls. */
	command = shell("for i in 1 2 3 4 5 6 7 8 9; do echo $i; done; exec sleep 60");
	set(command, "window", "6");
	job = start(command);
	for (cursor = 0, lost = 0; cursor < 18;) {
		uint64_t gap = 0;

		CHECK(is_ready(job, -1) == 1);
		while (spawnfd_job_read(job, &cursor, buffer, 4, &gap, &error) > 0)
			lost += gap;
		CHECK(errno == EAGAIN);
	}
	CHECK(lost <= 12);
	FAILS(spawnfd_job_write(job, "x", 1, 0, &error), -1, EBADF);
	CHECK(spawnfd_job_signal(job, SIGUSR1, 1, &error) == 0);
	finish(job, "exited");

	/* A slow reader learns what it has lost. */
	command = shell("seq 1 100000; exec sleep 60");
	set(command, "window", "1K");
	job = start(command);
	for (cursor = 0; cursor < 588895;) {
		CHECK(is_ready(job, -1) == 1);
		while (spawnfd_job_read(job, &cursor, buffer, 4, NULL, &error) > 0)
			;
	}
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 1 && line.lost > 0);
	CHECK(spawnfd_job_stop(job, 0, &error) == 0);
	finish(job, "cancelled");

	/* A full input queue, a terminal, and a job that the caller frees while it runs. */
	command = shell("exec sleep 60");
	set(command, "stdin", "stream");
	job = start(command);
	char *much = calloc(1, 1 << 20);
	ssize_t accepted = spawnfd_job_write(job, much, 1 << 20, 0, &error);
	CHECK(accepted > 0 && accepted < 1 << 20);
	FAILS(spawnfd_job_write(job, much, 1 << 20, 1, &error), -1, ETIMEDOUT);
	FAILS(spawnfd_job_write(job, much, 1 << 20, 0, &error), -1, EAGAIN);
	free(much);
	spawnfd_job_free(job);
	command = shell(
		"trap 'stty size; exit' WINCH; echo up; while :; do read x || sleep 0.1; done");
	set(command, "terminal", "80x24");
	job = start(command);
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 1 && !strcmp(line.text, "up\r\n"));
	CHECK(spawnfd_job_resize(job, 100, 30, &error) == 0);
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 1 &&
	      !strcmp(line.text, "30 100\r\n"));
	finish(job, "exited");
	job = start(shell("exit 3"));
	CHECK(spawnfd_job_detach(job, &error) == 0);
}

static void sessions_keep_their_state(void)
{
	struct spawnfd_command *bash = spawnfd_command_new(WORDS("bash"), &error);
	struct spawnfd_command *options = spawnfd_command_new(NULL, &error);
	struct spawnfd_line line = SPAWNFD_LINE_INIT;
	struct spawnfd_session *session;
	struct spawnfd_result *result;
	struct spawnfd_job *job;

	CHECK(bash && options);
	set(bash, "stderr", "merge");
	CHECK(spawnfd_command_set_env(bash, "A", "a", &error) == 0);
	CHECK(spawnfd_command_add_action(bash, "umask", "027", &error) == 0);
	session = spawnfd_session_open(bash, &error);
	CHECK(session);
	set(bash, "timeout", "1");
	FAILS(spawnfd_session_open(bash, &error), NULL, EINVAL);
	result = spawnfd_session_run(session, "cd /usr; b=b; umask; echo e >&2", NULL, &error);
	CHECK(result && has(result, "stdout", "0027\ne\n") && has(result, "cwd", "/usr"));
	spawnfd_result_free(result);
	set(options, "cwd", "/");
	set(options, "timeout", "10s");
	CHECK(spawnfd_command_set_env(options, "C", "c", &error) == 0);
	result = spawnfd_session_run(session, "echo $A$b$C $PWD", options, &error);
	CHECK(result && has(result, "stdout", "abc /\n"));
	spawnfd_result_free(result);
	FAILS(spawnfd_session_run(session, "true", bash, &error), NULL, EINVAL);
	FAILS(spawnfd_session_run(session, NULL, NULL, &error), NULL, EINVAL);

	set(options, "stdin", "stream");
	job = spawnfd_session_start(session, "read x; echo got $x; sleep 60", options, &error);
	CHECK(job);
	FAILS(spawnfd_session_run(session, "true", NULL, &error), NULL, EBUSY);
	CHECK(spawnfd_job_write(job, "yes\n", 4, 0, &error) == 4);
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 1 &&
	      !strcmp(line.text, "got yes\n"));
	CHECK(spawnfd_session_interrupt(session, &error) == 0);
	finish(job, "exited");
	result = spawnfd_session_run(session, "exit 3", NULL, &error);
	CHECK(result && number(result, "shell_exited") == 1 && number(result, "shell_code") == 3);
	spawnfd_result_free(result);
	FAILS(spawnfd_session_run(session, "true", NULL, &error), NULL, ESRCH);
	spawnfd_session_free(session);
	spawnfd_command_free(bash);
	spawnfd_command_free(options);
}

static void parked_processes_serve_commands(void)
{
	struct spawnfd_warm *warm = spawnfd_warm_new(4, 64 << 20, &error);
	struct spawnfd_command *command = shell("echo $0");
	struct spawnfd_result *result;

	CHECK(warm);
	FAILS(spawnfd_warm_add(warm, "no-such-program", 0, &error), -1, ENOENT);
	CHECK(spawnfd_warm_add(warm, "sh", 1, &error) == 0);
	CHECK(spawnfd_warm_fill(warm, 60000, &error) >= 0);
	CHECK(spawnfd_command_set_warm(command, warm, &error) == 0);
	spawnfd_warm_free(warm);
	result = spawnfd_run(command, &error);
	CHECK(result && has(result, "stdout", "sh\n"));
	spawnfd_result_free(result);
	CHECK(spawnfd_command_set_warm(command, NULL, &error) == 0);
	spawnfd_command_free(command);
}

static int open_descriptors(void)
{
	int count = 0;

	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* The first round fills the library's caches. */
static void frees_close_all_descriptors(void)
{
	int before = open_descriptors(), reserved;

	/* Under a seccomp filter, the library also keeps descriptors of its own. */
	spawnfd_reserve_descriptors();
	reserved = open_descriptors();
	CHECK(reserved == before + 8 || reserved == before + 10);
	spawnfd_reserve_descriptors();
	CHECK(open_descriptors() == reserved);
	for (int round = 0; round < 4; round++) {
		struct spawnfd_command *bash = spawnfd_command_new(WORDS("bash"), &error);
		struct spawnfd_session *session = spawnfd_session_open(bash, &error);
		struct spawnfd_command *command = shell("echo out");
		struct spawnfd_remote *remote = connect_to_server(60000);
		struct spawnfd_result *result;

		CHECK(session);
		spawnfd_job_free(spawnfd_remote_start(remote, command, &error));
		spawnfd_remote_free(remote);
		CHECK(spawnfd_command_set_fd(command, "stdin", 0, &error) == 0);
		CHECK(spawnfd_command_add_action(command, "descriptor", "1:9", &error) == 0);
		result = spawnfd_session_run(session, "true", NULL, &error);
		CHECK(result);
		spawnfd_result_free(result);
		finish(spawnfd_start(command, &error), "exited");
		spawnfd_job_free(start(shell("sleep 60")));
		spawnfd_result_free(run(command));
		spawnfd_session_free(session);
		spawnfd_command_free(bash);
		/* The library ends the job and the session in the background, and then its idle
		 * helpers. */
		if (round == 0)
			sleep(2);
		for (int i = 0; round > 0 && open_descriptors() > before && i < 1000; i++)
			usleep(10000);
		CHECK(round == 0 || open_descriptors() <= before);
		before = round == 0 ? open_descriptors() : before;
	}
}

static struct spawnfd_job *waited;

static void *wait_for_a_line(void *unused)
{
	struct spawnfd_line line = SPAWNFD_LINE_INIT;

	(void)unused;
	spawnfd_job_next_line(waited, &line, -1, NULL);
	return NULL;
}

/* A thread of the parent holds the lock of the job's lines at the fork. */
static void a_forked_child_is_usable(void)
{
	struct spawnfd_command *command = shell("echo run");
	struct spawnfd_command *bash = spawnfd_command_new(WORDS("bash"), &error);
	struct spawnfd_session *session = spawnfd_session_open(bash, &error);
	struct spawnfd_warm *warm = spawnfd_warm_new(0, 0, &error);
	struct spawnfd_line line = SPAWNFD_LINE_INIT;
	struct spawnfd_result *result = spawnfd_run(command, &error);
	pthread_t thread;
	uint64_t cursor = 0;
	char byte;
	int status;

	CHECK(session && warm && result);
	waited = start(shell("exec sleep 60"));
	CHECK(pthread_create(&thread, NULL, wait_for_a_line, NULL) == 0);
	usleep(20000);
	pid_t child = fork();
	if (child == 0) {
		alarm(30);
		FAILS(spawnfd_job_next_line(waited, &line, -1, &error), -1, ECHILD);
		CHECK(strstr(error.message, "forked process"));
		FAILS(spawnfd_job_read(waited, &cursor, &byte, 1, NULL, &error), -1, ECHILD);
		FAILS(spawnfd_job_write(waited, "x", 1, -1, &error), -1, ECHILD);
		FAILS(spawnfd_job_wait(waited, -1, &error), NULL, ECHILD);
		FAILS(spawnfd_job_stop(waited, 0, &error), -1, ECHILD);
		FAILS(spawnfd_job_signal(waited, SIGKILL, 1, &error), -1, ECHILD);
		FAILS(spawnfd_job_close_stdin(waited, &error), -1, ECHILD);
		FAILS(spawnfd_job_resize(waited, 80, 24, &error), -1, ECHILD);
		FAILS(spawnfd_job_detach(waited, &error), -1, ECHILD);
		FAILS(spawnfd_job_fd(waited), -1, ECHILD);
		FAILS(spawnfd_job_pid(waited), -1, ECHILD);
		FAILS(spawnfd_session_run(session, "true", NULL, &error), NULL, ECHILD);
		FAILS(spawnfd_session_start(session, "true", NULL, &error), NULL, ECHILD);
		FAILS(spawnfd_session_interrupt(session, &error), -1, ECHILD);
		FAILS(spawnfd_warm_add(warm, "sh", 0, &error), -1, ECHILD);
		FAILS(spawnfd_warm_fill(warm, -1, &error), -1, ECHILD);
		FAILS(spawnfd_command_set_warm(command, warm, &error), -1, ECHILD);
		spawnfd_job_free(waited);
		spawnfd_session_free(session);
		spawnfd_warm_free(warm);
		/* Results and commands can be used, and so can new objects. */
		CHECK(has(result, "stdout", "run\n"));
		spawnfd_result_free(result);
		result = spawnfd_run(command, &error);
		CHECK(result && has(result, "stdout", "run\n"));
		spawnfd_result_free(result);
		struct spawnfd_job *own = spawnfd_start(command, &error);
		CHECK(own && spawnfd_job_next_line(own, &line, -1, &error) == 1);
		finish(own, "exited");
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	/* The parent's objects still work. */
	FAILS(spawnfd_job_wait(waited, 0, &error), NULL, ETIMEDOUT);
	CHECK(spawnfd_job_stop(waited, 0, &error) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	finish(waited, "cancelled");
	spawnfd_result_free(result);
	result = spawnfd_session_run(session, "echo alive", NULL, &error);
	CHECK(result && has(result, "stdout", "alive\n"));
	spawnfd_result_free(result);
	spawnfd_session_free(session);
	spawnfd_warm_free(warm);
	spawnfd_command_free(bash);
	spawnfd_command_free(command);
}

static const struct spawnfd_command *shared;

static void *run_repeatedly(void *unused)
{
	(void)unused;
	for (int i = 0; i < 10; i++) {
		struct spawnfd_result *result = spawnfd_run(shared, NULL);

		if (!result || !spawnfd_result_ok(result))
			return (void *)shared;
		spawnfd_result_free(result);
	}
	return NULL;
}

static void threads_share_a_command(void)
{
	struct spawnfd_command *command = shell("echo shared");
	pthread_t threads[4];

	shared = command;
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, run_repeatedly, NULL) == 0);
	for (int i = 0; i < 4; i++) {
		void *failed;

		CHECK(pthread_join(threads[i], &failed) == 0 && failed == NULL);
	}
	spawnfd_command_free(command);
}

/* The script prints the pid of a process of the tree. The test kills this program in the middle of
 * the call. */
static const char *hold = "setsid sleep 600 & echo $! >&9; wait";

static void hold_run(void)
{
	struct spawnfd_command *command = shell(hold);

	CHECK(spawnfd_command_add_action(command, "descriptor", "1:9", &error) == 0);
	spawnfd_run(command, &error);
}

static void hold_job(void)
{
	struct spawnfd_command *command = shell(hold);

	CHECK(spawnfd_command_add_action(command, "descriptor", "1:9", &error) == 0);
	spawnfd_job_wait(start(command), -1, &error);
}

static void hold_session(void)
{
	struct spawnfd_command *bash = spawnfd_command_new(WORDS("bash"), &error);
	struct spawnfd_session *session;

	CHECK(bash && spawnfd_command_add_action(bash, "descriptor", "1:9", &error) == 0);
	session = spawnfd_session_open(bash, &error);
	CHECK(session);
	spawnfd_session_run(session, hold, NULL, &error);
}

static const struct {
	const char *name;
	void (*test)(void);
} tests[] = {
	{"null", null_arguments_are_refused},
	{"errors", errors_say_what_failed},
	{"objects", objects_need_their_arguments},
	{"options", options_and_actions_take_effect},
	{"jobs", jobs_stream_their_output},
	{"sessions", sessions_keep_their_state},
	{"warm", parked_processes_serve_commands},
	{"remote", connections_run_programs},
	{"free", frees_close_all_descriptors},
	{"fork", a_forked_child_is_usable},
	{"threads", threads_share_a_command},
	{"hold-run", hold_run},
	{"hold-job", hold_job},
	{"hold-session", hold_session},
};

int main(int argc, char **argv)
{
	/* A directory of the caller's PATH may refuse the search. */
	setenv("PATH", "/usr/bin:/bin", 1);
	for (size_t i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		if (argc == 2 && !strcmp(argv[1], tests[i].name)) {
			tests[i].test();
			return 0;
		}
	}
	return 2;
}
