/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The macros and functions that run.c and remote.c share. */
#pragma once
#include <errno.h>
#include <spawnfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s: errno %d, %s\n", __FILE__, __LINE__,           \
				#condition, errno, error.message);                                 \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)
#define FAILS(call, failure, code) CHECK((errno = 0, (call) == (failure) && errno == (code)))
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct spawnfd_error error = SPAWNFD_ERROR_INIT;

static inline struct spawnfd_command *shell(const char *script)
{
	struct spawnfd_command *command = spawnfd_command_new(WORDS("sh", "-c", script), &error);

	CHECK(command);
	return command;
}

static inline void set(struct spawnfd_command *command, const char *name, const char *value)
{
	CHECK(spawnfd_command_set(command, name, value, &error) == 0);
}

static inline double number(const struct spawnfd_result *result, const char *name)
{
	double value = -1;

	CHECK(spawnfd_result_number(result, name, &value, &error) == 0);
	return value;
}

static inline int has(const struct spawnfd_result *result, const char *name, const char *expected)
{
	size_t length;
	const char *found = spawnfd_result_text(result, name, &length, &error);

	CHECK(found && found[length] == 0);
	return strcmp(found, expected) == 0 && strlen(expected) == length;
}

/* Waits for the result of a job, and frees both. */
static inline void finish(struct spawnfd_job *job, const char *stop)
{
	struct spawnfd_result *result = spawnfd_job_wait(job, -1, &error);

	CHECK(result && has(result, "stop", stop));
	spawnfd_result_free(result);
	spawnfd_job_free(job);
}

/* The tests of remote.c. */
struct spawnfd_remote *connect_to_server(int timeout_ms);
void connections_run_programs(void);
