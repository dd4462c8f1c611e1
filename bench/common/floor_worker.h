// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A C worker: reads the call list that floor.py writes, and obeys the driver's orders on stdin, one
 * JSON object per line, like worker.py. Each program defines how it makes the calls.
 */
#ifndef FLOOR_WORKER_H
#define FLOOR_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct output {
	uint64_t length;
	uint64_t hash; /* FNV-1a */
};

struct preset {
	char *name;
	char **argv;
	int code;
	struct output expected[2]; /* stdout, stderr */
};

extern char *directory;
extern char **environment;
extern struct preset *presets;
extern size_t preset_count;

/* Reports an error to the driver and exits. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Reads the call list. */
void read_calls(const char *path);

void clear_output(struct output *output);
void hash_more(struct output *output, const unsigned char *data, size_t length);

/* Compares a call's answer with the expected one. */
void check(const struct preset *preset, int code, const struct output seen[2]);

/*
 * Makes calls to their end and checks their answers. Returns the time of each call in nanoseconds,
 * or NULL if the program does not measure single calls.
 */
typedef const int64_t *make_calls(const struct preset **calls, size_t count);

/* Serves the driver's orders until "finish" or the end of stdin. */
void serve(make_calls *make);

#endif
