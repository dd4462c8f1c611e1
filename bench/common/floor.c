// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The lower bound of the agent and job benchmarks: makes the same calls in a minimal C loop.
 *
 * Usage: floor CALLS IN_FLIGHT. One thread starts each call with vfork, dup2, chdir and execve,
 * reads its two pipes through one epoll set, and calls waitpid when both are at end-of-file. The
 * program shares no code with spawnfd. It reads orders from stdin, one JSON object per line, like
 * worker.py. floor.py writes the call list. The program checks each call's exit code, and the
 * length and FNV-1a hash of stdout and stderr.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FNV_OFFSET 0xcbf29ce484222325ull
#define FNV_PRIME 0x100000001b3ull
#define MAX_IN_FLIGHT 1024

struct output {
	uint64_t length;
	uint64_t hash;
};

struct preset {
	char *name;
	char **argv;
	int code;
	struct output expected[2]; /* stdout, stderr */
};

struct running {
	const struct preset *preset; /* NULL: the slot is free */
	pid_t pid;
	int pipe[2];
	struct output seen[2];
};

static char *directory;
static char **environment;
static struct preset *presets;
static size_t preset_count;
static struct running *slots;
static int slot_count;
static int null_fd;
static int epoll_fd;

static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
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

static void hash_more(struct output *output, const unsigned char *data, size_t length)
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

static void read_calls(const char *path)
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

			preset->expected[stream].hash = FNV_OFFSET;
			hash_more(&preset->expected[stream], (unsigned char *)text, length);
			free(text);
		}
		preset->argv = read_strings(file);
	}
	fclose(file);
}

/* ---- one call ---- */

static void watch(int fd, int slot, int stream)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)(slot * 2 + stream)};

	if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event))
		fail("epoll_ctl: %s", strerror(errno));
}

static void start(int slot, const struct preset *preset)
{
	struct running *running = &slots[slot];
	int out[2], err[2];
	pid_t pid;

	if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
		fail("pipe2: %s", strerror(errno));
	pid = vfork();
	if (pid == 0) {
		if (dup2(null_fd, 0) == 0 && dup2(out[1], 1) == 1 && dup2(err[1], 2) == 2 &&
		    chdir(directory) == 0)
			execve(preset->argv[0], preset->argv, environment);
		_exit(127);
	}
	if (pid < 0)
		fail("vfork: %s", strerror(errno));
	close(out[1]);
	close(err[1]);
	*running = (struct running){
		.preset = preset,
		.pid = pid,
		.pipe = {out[0], err[0]},
		.seen = {{.hash = FNV_OFFSET}, {.hash = FNV_OFFSET}},
	};
	watch(out[0], slot, 0);
	watch(err[0], slot, 1);
}

static void check(const struct running *running, int status)
{
	const struct preset *preset = running->preset;

	if (!WIFEXITED(status) || WEXITSTATUS(status) != preset->code)
		fail("preset %s, backend floor: wait status %d, expected exit code %d",
		     preset->name, status, preset->code);
	for (int stream = 0; stream < 2; stream++) {
		const struct output *seen = &running->seen[stream];
		const struct output *expected = &preset->expected[stream];

		if (seen->length != expected->length || seen->hash != expected->hash)
			fail("preset %s, backend floor: %s differs: %ju bytes, expected %ju",
			     preset->name, stream ? "stderr" : "stdout", (uintmax_t)seen->length,
			     (uintmax_t)expected->length);
	}
}

/* Reads from a pipe once. Returns true if the call has ended. */
static bool progress(struct running *running, int stream)
{
	static unsigned char buffer[1 << 16];
	ssize_t got = read(running->pipe[stream], buffer, sizeof(buffer));
	int status;

	if (got < 0)
		fail("read: %s", strerror(errno));
	if (got > 0) {
		hash_more(&running->seen[stream], buffer, (size_t)got);
		return false;
	}
	/*
	 * close() alone does not remove the pipe from the epoll set. vfork returns before exec has
	 * closed the child's close-on-exec descriptors, so a new child may still hold this pipe.
	 * epoll would then report the pipe for the slot's next call.
	 */
	if (epoll_ctl(epoll_fd, EPOLL_CTL_DEL, running->pipe[stream], NULL))
		fail("epoll_ctl: %s", strerror(errno));
	close(running->pipe[stream]);
	running->pipe[stream] = -1;
	if (running->pipe[!stream] >= 0)
		return false;
	while (waitpid(running->pid, &status, 0) < 0)
		if (errno != EINTR)
			fail("waitpid: %s", strerror(errno));
	check(running, status);
	running->preset = NULL;
	return true;
}

static void run(const struct preset **calls, size_t count)
{
	struct epoll_event events[64];
	size_t next = 0, done = 0;

	for (int slot = 0; slot < slot_count && next < count; slot++)
		start(slot, calls[next++]);
	while (done < count) {
		int ready = epoll_wait(epoll_fd, events, 64, -1);

		if (ready < 0 && errno != EINTR)
			fail("epoll_wait: %s", strerror(errno));
		for (int i = 0; i < ready; i++) {
			int slot = (int)(events[i].data.u32 / 2);
			int stream = (int)(events[i].data.u32 % 2);

			if (!progress(&slots[slot], stream))
				continue;
			done++;
			if (next < count)
				start(slot, calls[next++]);
		}
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

int main(int argc, char **argv)
{
	const struct preset **calls = NULL;
	size_t count = 0, line_size = 0;
	char *line = NULL;

	if (argc != 3)
		fail("usage: floor CALLS IN_FLIGHT");
	slot_count = atoi(argv[2]);
	if (slot_count < 1 || slot_count > MAX_IN_FLIGHT)
		fail("IN_FLIGHT must be 1 to %d", MAX_IN_FLIGHT);
	read_calls(argv[1]);
	slots = calloc((size_t)slot_count, sizeof(*slots));
	null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (!slots || null_fd < 0 || epoll_fd < 0)
		fail("cannot set up: %s", strerror(errno));
	print_line("{\"hello\": true}");
	while (getline(&line, &line_size, stdin) > 0) {
		if (strstr(line, "\"prepare\"")) {
			count = read_names(line, &calls);
			print_line("{\"ready\": true}");
		} else if (strstr(line, "\"go\"")) {
			double cpu = cpu_seconds();
			struct timespec begin, end;

			clock_gettime(CLOCK_MONOTONIC, &begin);
			run(calls, count);
			clock_gettime(CLOCK_MONOTONIC, &end);
			printf("{\"begin_ns\": %jd, \"end_ns\": %jd, \"cpu_s\": %.6f, "
			       "\"calls\": %zu, \"started\": {\"vfork\": %zu}}\n",
			       nanoseconds(&begin), nanoseconds(&end), cpu_seconds() - cpu, count,
			       count);
			fflush(stdout);
		} else if (strstr(line, "\"finish\"")) {
			print_line("{\"finished\": true}");
			return 0;
		} else {
			fail("unknown order");
		}
	}
	return 0;
}
