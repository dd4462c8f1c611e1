// SPDX-License-Identifier: MIT OR Apache-2.0
#define _GNU_SOURCE
#include "floor_worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define FNV_OFFSET 0xcbf29ce484222325ull
#define FNV_PRIME 0x100000001b3ull

char *directory;
char **environment;
struct preset *presets;
size_t preset_count;

void fail(const char *format, ...)
{
	va_list arguments;

	printf("{\"error\": \"");
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\"}\n");
	fflush(stdout);
	exit(1);
}

void clear_output(struct output *output)
{
	*output = (struct output){.hash = FNV_OFFSET};
}

void hash_more(struct output *output, const unsigned char *data, size_t length)
{
	uint64_t hash = output->hash;

	for (size_t i = 0; i < length; i++)
		hash = (hash ^ data[i]) * FNV_PRIME;
	output->hash = hash;
	output->length += length;
}

/* ---- the call list: "<length> <bytes>\n" for strings, "<number>\n" for numbers ---- */

static size_t read_number(FILE *file, int end)
{
	size_t number;

	if (fscanf(file, "%zu", &number) != 1 || fgetc(file) != end)
		fail("the call list is malformed at byte %ld", ftell(file));
	return number;
}

static char *read_string(FILE *file, size_t *length)
{
	size_t size = read_number(file, ' ');
	char *text = malloc(size + 1);

	if (!text || fread(text, 1, size, file) != size || fgetc(file) != '\n')
		fail("the call list has a truncated string");
	text[size] = '\0';
	if (length)
		*length = size;
	return text;
}

static char **read_strings(FILE *file)
{
	size_t count = read_number(file, '\n');
	char **list = calloc(count + 1, sizeof(*list));

	if (!list)
		fail("out of memory");
	for (size_t i = 0; i < count; i++)
		list[i] = read_string(file, NULL);
	return list;
}

void read_calls(const char *path)
{
	FILE *file = fopen(path, "re");
	char header[32];

	if (!file || !fgets(header, sizeof(header), file) || strcmp(header, "spawnfd-floor 1\n"))
		fail("%s is not a call list", path);
	directory = read_string(file, NULL);
	environment = read_strings(file);
	preset_count = read_number(file, '\n');
	presets = calloc(preset_count, sizeof(*presets));
	if (!presets)
		fail("out of memory");
	for (size_t i = 0; i < preset_count; i++) {
		struct preset *preset = &presets[i];

		preset->name = read_string(file, NULL);
		preset->code = (int)read_number(file, '\n');
		for (int stream = 0; stream < 2; stream++) {
			size_t length;
			char *text = read_string(file, &length);

			clear_output(&preset->expected[stream]);
			hash_more(&preset->expected[stream], (unsigned char *)text, length);
			free(text);
		}
		preset->argv = read_strings(file);
	}
	fclose(file);
}

void check(const struct preset *preset, int code, const struct output seen[2])
{
	if (code != preset->code)
		fail("preset %s, method floor: exit code %d, expected %d", preset->name, code,
		     preset->code);
	for (int stream = 0; stream < 2; stream++) {
		const struct output *expected = &preset->expected[stream];

		if (seen[stream].length != expected->length || seen[stream].hash != expected->hash)
			fail("preset %s, method floor: %s differs: %ju bytes, expected %ju",
			     preset->name, stream ? "stderr" : "stdout",
			     (uintmax_t)seen[stream].length, (uintmax_t)expected->length);
	}
}

/* ---- orders from stdin ---- */

static const struct preset *find_preset(const char *name, size_t length)
{
	for (size_t i = 0; i < preset_count; i++)
		if (strlen(presets[i].name) == length && !memcmp(presets[i].name, name, length))
			return &presets[i];
	fail("no preset %.*s", (int)length, name);
}

/* Reads the names in {"do":"prepare","calls":["a","b"]}. Names contain no quotes. */
static size_t read_names(const char *line, const struct preset ***calls)
{
	const char *place = strchr(line, '[');
	size_t count = 0, capacity = 0;

	if (!place)
		fail("prepare without calls");
	while ((place = strchr(place, '"'))) {
		const char *end = strchr(++place, '"');

		if (!end)
			fail("prepare has an unterminated name");
		if (count == capacity) {
			capacity = capacity ? capacity * 2 : 64;
			*calls = realloc(*calls, capacity * sizeof(**calls));
			if (!*calls)
				fail("out of memory");
		}
		(*calls)[count++] = find_preset(place, (size_t)(end - place));
		place = end + 1;
	}
	return count;
}

static double cpu_seconds(void)
{
	struct rusage usage[2];

	getrusage(RUSAGE_SELF, &usage[0]);
	getrusage(RUSAGE_CHILDREN, &usage[1]);
	double seconds = 0;

	for (int i = 0; i < 2; i++)
		seconds += (double)(usage[i].ru_utime.tv_sec + usage[i].ru_stime.tv_sec) +
			   (double)(usage[i].ru_utime.tv_usec + usage[i].ru_stime.tv_usec) / 1e6;
	return seconds;
}

static intmax_t nanoseconds(const struct timespec *time)
{
	return (intmax_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

static void print_line(const char *line)
{
	puts(line);
	fflush(stdout);
}

static void print_result(size_t count, const struct timespec *begin, const struct timespec *end,
			 double cpu, const int64_t *times)
{
	printf("{\"begin_ns\": %jd, \"end_ns\": %jd, \"cpu_s\": %.6f, \"calls\": %zu, "
	       "\"started\": {\"vfork\": %zu}, \"ns\": [",
	       nanoseconds(begin), nanoseconds(end), cpu, count, count);
	for (size_t i = 0; times && i < count; i++)
		printf("%s%jd", i ? ", " : "", (intmax_t)times[i]);
	print_line("]}");
}

void serve(make_calls *make)
{
	const struct preset **calls = NULL;
	size_t count = 0, line_size = 0;
	char *line = NULL;

	print_line("{\"hello\": true}");
	while (getline(&line, &line_size, stdin) > 0) {
		if (strstr(line, "\"prepare\"")) {
			count = read_names(line, &calls);
			print_line("{\"ready\": true}");
		} else if (strstr(line, "\"go\"")) {
			double cpu = cpu_seconds();
			struct timespec begin, end;
			const int64_t *times;

			clock_gettime(CLOCK_MONOTONIC, &begin);
			times = make(calls, count);
			clock_gettime(CLOCK_MONOTONIC, &end);
			print_result(count, &begin, &end, cpu_seconds() - cpu, times);
		} else if (strstr(line, "\"finish\"")) {
			print_line("{\"finished\": true}");
			return;
		} else {
			fail("unknown order");
		}
	}
}
