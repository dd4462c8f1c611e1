/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The test of the connections of spawnfd_run(3), a part of the program run.c. */
#define _GNU_SOURCE
#include "run.h"

#include <sys/wait.h>
#include <unistd.h>

struct spawnfd_remote *connect_to_server(int timeout_ms)
{
	const char *const *argv = WORDS(getenv("SERVER"), "--exact", "run::serves_on_purpose",
					"--ignored", "--nocapture", "--test-threads=1");
	struct spawnfd_command *transport = spawnfd_command_new(argv, &error);
	struct spawnfd_remote *remote;

	CHECK(transport);
	remote = spawnfd_remote_connect(transport, 0, timeout_ms, &error);
	CHECK(remote);
	spawnfd_command_free(transport);
	return remote;
}

/* Expects that a transport fails with this errno and a message that has these words. */
static void connect_fails(struct spawnfd_command *transport, int code, const char *words)
{
	int timeout_ms = code == ETIMEDOUT ? 200 : 60000;

	FAILS(spawnfd_remote_connect(transport, -1, timeout_ms, &error), NULL, code);
	CHECK(error.error == code && strstr(error.message, words));
	spawnfd_command_free(transport);
}

void connections_run_programs(void)
{
	struct spawnfd_remote *remote = connect_to_server(60000);
	struct spawnfd_command *command = shell("echo $0; exit 3"), *late = shell("true");
	struct spawnfd_result *result;
	struct spawnfd_line line = SPAWNFD_LINE_INIT;
	struct spawnfd_job *job;
	double seconds = -1;
	int status;
	pid_t child;

	set(command, "arg0", "name");
	result = spawnfd_remote_run(remote, command, &error);
	CHECK(result && has(result, "stdout", "name\n") && number(result, "code") == 3);
	spawnfd_result_free(result);
	CHECK(spawnfd_remote_ping(remote, &seconds, &error) == 0 && seconds >= 0);
	CHECK(spawnfd_remote_ping(remote, NULL, &error) == 0);

	/* Descriptors of this process are refused. The command can be used again. */
	CHECK(spawnfd_command_set_fd(command, "stdin", 0, &error) == 0);
	FAILS(spawnfd_remote_run(remote, command, &error), NULL, EINVAL);
	CHECK(strstr(error.message, "stdin"));
	FAILS(spawnfd_remote_start(remote, command, &error), NULL, EINVAL);
	set(command, "stdin", NULL);
	set(command, "cwd", "/no-such-directory");
	FAILS(spawnfd_remote_run(remote, command, &error), NULL, ENOENT);
	CHECK(strcmp(error.stage, "cwd") == 0);
	spawnfd_command_free(command);

	command = shell("read x; echo got $x; sleep 600");
	set(command, "stdin", "stream");
	job = spawnfd_remote_start(remote, command, &error);
	CHECK(job && spawnfd_job_pid(job) > 0);
	CHECK(spawnfd_job_write(job, "word\n", 5, -1, &error) == 5);
	CHECK(spawnfd_job_next_line(job, &line, -1, &error) == 1 &&
	      !strcmp(line.text, "got word\n"));
	CHECK(spawnfd_job_stop(job, 0, &error) == 0);
	finish(job, "cancelled");

	/* The end of the connection ends its programs. */
	job = spawnfd_remote_start(remote, command, &error);
	CHECK(job);
	child = fork();
	if (child == 0) {
		alarm(30);
		FAILS(spawnfd_remote_run(remote, command, &error), NULL, ECHILD);
		FAILS(spawnfd_remote_start(remote, command, &error), NULL, ECHILD);
		FAILS(spawnfd_remote_ping(remote, NULL, &error), -1, ECHILD);
		spawnfd_remote_free(remote);
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	FAILS(spawnfd_job_wait(job, 0, &error), NULL, ETIMEDOUT);
	spawnfd_remote_free(remote);
	finish(job, "lost");
	spawnfd_command_free(command);

	remote = connect_to_server(0);
	result = spawnfd_remote_run(remote, late, &error);
	CHECK(result && spawnfd_result_ok(result));
	spawnfd_result_free(result);
	spawnfd_remote_free(remote);

	connect_fails(shell("echo no route >&2; exit 255"), ENOTCONN, "no route");
	connect_fails(shell("exec cat"), ETIMEDOUT, "no spawnfd server has answered");
	connect_fails(shell("exec yes"), EPROTO, "no spawnfd server");
	set(late, "timeout", "1");
	connect_fails(late, EINVAL, "timeout");
	command = spawnfd_command_new(WORDS("no-such-transport"), &error);
	connect_fails(command, ENOENT, "no-such-transport");
}
