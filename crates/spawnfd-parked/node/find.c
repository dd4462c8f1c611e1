/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Finds what Node has copied of its arguments, and puts others there.
 *
 * Searched is all private memory that is in use. (Most is in the heap proper, but V8 may reserve
 * what lies behind it, and malloc then goes elsewhere.) The marks are random, so that what equals
 * one is a copy of it. Points in time are told by their value: nanoseconds since boot, between the
 * start of this process and now; where addresses could have such values they are left alone.
 */
#define _GNU_SOURCE
#include "node.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The memory that is searched, as words. */
struct region {
	uintptr_t *begin, *end;
};
static struct region regions[8192];
static size_t region_count;

static uint64_t tick_at_start;
static double date_at_start;

static uint64_t tick(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static double date(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (double)now.tv_sec * 1e6 + (double)(now.tv_nsec / 1000);
}

__attribute__((constructor)) static void start(void)
{
	tick_at_start = tick();
	date_at_start = date();
}

static bool add_region(uintptr_t begin, uintptr_t end)
{
	if (region_count == sizeof(regions) / sizeof(*regions))
		return false;
	regions[region_count++] = (struct region){(uintptr_t *)begin, (uintptr_t *)end};
	return true;
}

bool spawnfd_node_region(size_t number, uint64_t **begin, uint64_t **end)
{
	if (number >= region_count)
		return false;
	*begin = (uint64_t *)regions[number].begin;
	*end = (uint64_t *)regions[number].end;
	return true;
}

/* Of a mapping, the pages that were ever written to: pagemap's bits 62 and 63. */
static bool add_used_pages(int pagemap, uintptr_t begin, uintptr_t end)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), run = 0;
	uint64_t bits[512];

	for (uintptr_t at = begin; at < end;) {
		size_t count = (end - at) / page < 512 ? (end - at) / page : 512;

		if (pread(pagemap, bits, count * 8, (off_t)(at / page * 8)) != (ssize_t)(count * 8))
			return false;
		for (size_t i = 0; i < count; i++, at += page) {
			if (bits[i] >> 62) {
				run = run ? run : at;
			} else if (run) {
				if (!add_region(run, at))
					return false;
				run = 0;
			}
		}
	}
	return !run || add_region(run, end);
}

/*
 * All but this list itself. False if it cannot be done; `ticks_are_sure` is false if points in time
 * up to `until` might be addresses.
 */
static bool list_regions(uint64_t until, bool *ticks_are_sure)
{
	FILE *list = fopen("/proc/self/maps", "re");
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	char line[4400], access[5], path[4096];
	uintptr_t begin, end;
	bool done = list && pagemap >= 0;

	*ticks_are_sure = true;
	region_count = 0;
	while (done && fgets(line, sizeof(line), list)) {
		bool own;

		path[0] = 0;
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %*s %4095[^\n]", &begin,
			   &end, access, path) < 3)
			continue;
		if (begin <= until && end >= tick_at_start)
			*ticks_are_sure = false;
		own = begin <= (uintptr_t)regions && end > (uintptr_t)regions;
		/* Names in brackets are the kernel's, but for the heap's. */
		if (!own && !strncmp(access, "rw-p", 4) &&
		    (path[0] != '[' || !strcmp(path, "[heap]")))
			done = add_used_pages(pagemap, begin, end);
	}
	if (list)
		fclose(list);
	if (pagemap >= 0)
		close(pagemap);
	return done && region_count;
}

static bool is_readable(uintptr_t address, size_t length)
{
	for (size_t i = 0; i < region_count; i++)
		if (address >= (uintptr_t)regions[i].begin &&
		    address + length <= (uintptr_t)regions[i].end)
			return true;
	return false;
}

static bool is_copy(const uintptr_t *at, const char *mark, size_t length)
{
	return at[1] == length && is_readable(at[0], length + 1) &&
	       !memcmp((void *)at[0], mark, length + 1);
}

/* Asked again before they are moved on: other threads may have put other things there. */
static bool is_tick(uint64_t value, const struct node_locations *places)
{
	return value >= tick_at_start && value <= places->tick;
}

static bool is_tick_double(double value, const struct node_locations *places)
{
	return value >= (double)tick_at_start && value <= (double)places->tick;
}

static bool is_date(double value, const struct node_locations *places)
{
	return value >= date_at_start && value <= places->date;
}

#define ADD(list, count, item)                                                                     \
	((count) < NODE_MAX_LOCATIONS ? (void)((list)[(count)++] = (item))                         \
				      : (void)(overflow = true))

/* First round: strings. */
static bool find_strings(const struct node_markers *marks, struct node_locations *places,
			 struct node_string **names, size_t *name_count)
{
	size_t name = strlen(marks->name), code = strlen(marks->code),
	       script = strlen(marks->script);
	bool overflow = false;

	for (size_t i = 0; i < region_count; i++) {
		for (uintptr_t *at = regions[i].begin; at + 3 < regions[i].end; at++) {
			struct node_string *string = (void *)at;

			if (at[0] == (uintptr_t)marks->title && at[1] == name &&
			    at[2] == marks->title_room)
				places->title = (void *)at;
			else if (is_copy(at, marks->name, name))
				ADD(names, *name_count, string);
			else if (is_copy(at, marks->code, code))
				ADD(places->code, places->code_count, string);
			else if (is_copy(at, marks->script, script))
				ADD(places->script, places->script_count, string);
		}
	}
	return !overflow;
}

/* Second round: vectors, known by the name that they begin with. */
static bool find_vectors(const struct node_markers *marks, struct node_locations *places,
			 struct node_string **names, size_t name_count)
{
	bool overflow = false;

	for (size_t i = 0; i < region_count; i++) {
		for (uintptr_t *at = regions[i].begin; at + 3 < regions[i].end; at++) {
			struct node_vector *vector = (void *)at;
			size_t n = 0;

			while (n < name_count && vector->begin != names[n])
				n++;
			if (n == name_count || vector->end < vector->begin ||
			    vector->limit < vector->end)
				continue;
			if (vector->end - vector->begin == marks->operands)
				ADD(places->operands, places->operand_count, vector);
			else if (vector->end - vector->begin == marks->arguments)
				ADD(places->arguments, places->argument_count, vector);
		}
	}
	return !overflow;
}

/* Node's notes of 0, 1 and 2 are one behind the other, somewhere. */
static struct node_stdio *find_stdio(void)
{
	struct node_stdio *found = NULL;
	struct stat now[3];

	for (int fd = 0; fd < 3; fd++)
		if (fstat(fd, &now[fd]))
			return NULL;
	for (size_t i = 0; i < region_count; i++) {
		uintptr_t *end = regions[i].end - 3 * sizeof(struct node_stdio) / sizeof(uintptr_t);

		for (uintptr_t *at = regions[i].begin; at <= end; at++) {
			struct node_stdio *all = (void *)at;
			int fd = 0;

			while (fd < 3 && all[fd].stat.st_ino == now[fd].st_ino &&
			       all[fd].stat.st_dev == now[fd].st_dev &&
			       all[fd].stat.st_mode == now[fd].st_mode &&
			       all[fd].flags == fcntl(fd, F_GETFL))
				fd++;
			if (fd < 3)
				continue;
			if (found)
				return NULL;
			found = all;
		}
	}
	return found;
}

const char *spawnfd_node_find(const struct node_markers *marks, struct node_locations *places)
{
	struct node_string *names[NODE_MAX_LOCATIONS];
	size_t name_count = 0;
	bool sure;

	if (!list_regions(tick(), &sure))
		return "the memory's map";
	if (!find_strings(marks, places, names, &name_count) ||
	    !find_vectors(marks, places, names, name_count))
		return "too many copies of its arguments";
	places->stdio = find_stdio();
	if (!places->operand_count || (places->code_count == 0) == (places->script_count == 0))
		return "the copies of its arguments";
	if (!places->title)
		return "the process's title";
	if (!places->stdio)
		return "its notes of the standard descriptors";
	return NULL;
}

const char *spawnfd_node_find_times(struct node_locations *places)
{
	bool overflow = false, sure;

	places->tick = tick();
	places->date = date();
	if (!list_regions(places->tick, &sure))
		return "the memory's map";
	for (size_t i = 0; sure && i < region_count; i++) {
		for (uintptr_t *at = regions[i].begin; at < regions[i].end; at++) {
			double number;

			/* A small integer of V8's stands in the upper half: every four seconds one
			 * looks like the time. */
			if (!(uint32_t)*at)
				continue;
			memcpy(&number, at, sizeof(number));
			if (is_tick(*at, places))
				ADD(places->ticks, places->tick_count, (uint64_t *)at);
			else if (is_tick_double(number, places))
				ADD(places->tick_doubles, places->tick_double_count, (double *)at);
			else if (is_date(number, places))
				ADD(places->dates, places->date_count, (double *)at);
		}
	}
	return overflow ? "too many points in time" : NULL;
}

void *spawnfd_node_find_object(const void *first_word)
{
	for (size_t i = 0; i < region_count; i++)
		for (uintptr_t *at = regions[i].begin; at < regions[i].end; at++)
			if (*at == (uintptr_t)first_word)
				return at;
	return NULL;
}

/* --- and replaces -------------------------------------------------------------------------------
 */

static void *memory(size_t size)
{
	void *new = malloc(size ? size : 1);

	if (!new)
		abort();
	return new;
}

/* The old text stays where it is. The new one is Node's to free: both allocate with malloc. */
static void set_string(struct node_string *string, const char *text)
{
	size_t length = strlen(text);

	string->text = memcpy(memory(length + 1), text, length + 1);
	string->length = string->capacity = length;
}

static void set_vector(struct node_vector *vector, const char *name, char **rest, int count)
{
	struct node_string *all = memory(((size_t)count + 1) * sizeof(*all));

	set_string(&all[0], name);
	for (int i = 0; i < count; i++)
		set_string(&all[i + 1], rest[i]);
	vector->begin = all;
	vector->end = vector->limit = all + count + 1;
}

void spawnfd_node_replace(const struct node_locations *places, const struct program *program,
			  const struct node_arguments *words)
{
	uint64_t ticks = tick() - places->tick;
	double dates = date() - places->date;
	const char *last = program->argv[program->argc - 1];

	for (size_t i = 0; i < places->code_count; i++)
		set_string(places->code[i], words->code);
	for (size_t i = 0; i < places->script_count; i++)
		set_string(places->script[i], words->operand_count ? words->operands[0] : "");
	for (size_t i = 0; i < places->operand_count; i++)
		set_vector(places->operands[i], program->argv[0], words->operands,
			   words->operand_count);
	for (size_t i = 0; i < places->argument_count; i++)
		set_vector(places->arguments[i], program->argv[0], program->argv + 1,
			   program->argc - 1);
	*places->title = (struct node_title){
		program->argv[0],
		strlen(program->argv[0]),
		(size_t)(last + strlen(last) + 1 - program->argv[0]),
	};
	for (size_t i = 0; i < places->tick_count; i++)
		if (is_tick(*places->ticks[i], places))
			*places->ticks[i] += ticks;
	for (size_t i = 0; i < places->tick_double_count; i++)
		if (is_tick_double(*places->tick_doubles[i], places))
			*places->tick_doubles[i] += (double)ticks;
	for (size_t i = 0; i < places->date_count; i++)
		if (is_date(*places->dates[i], places))
			*places->dates[i] += dates;
}
