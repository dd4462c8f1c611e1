/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Finds what Node has copied of its arguments, and puts others there.
 *
 * Searched are the heap and the writable data of what is loaded. The marks are random, so that what
 * equals one is a copy of it. Points in time are told by their value: nanoseconds since boot, between
 * the start of this process and now; where addresses could have such values they are left alone.
 */
#define _GNU_SOURCE
#include "node.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The memory that is searched, as words. */
struct region {
	uintptr_t *begin, *end;
};
static struct region regions[256];
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

/*
 * The heap, and the writable data of files: their mappings, and the one without a name behind. Not
 * this object's, whose marks are no copies. False if `ticks` might be addresses.
 */
static bool list_regions(uint64_t until, bool *ticks_are_sure)
{
	FILE *list = fopen("/proc/self/maps", "re");
	char line[4400], access[5], path[4096];
	unsigned long begin, end, file_end = 0;

	*ticks_are_sure = true;
	region_count = 0;
	while (list && fgets(line, sizeof(line), list)) {
		bool file, heap;

		path[0] = 0;
		if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %4095[^\n]", &begin, &end, access, path) < 3)
			continue;
		if (begin <= until && end >= tick_at_start)
			*ticks_are_sure = false;
		heap = !strcmp(path, "[heap]");
		file = path[0] == '/' && strncmp(path, "/memfd:", 7) && strncmp(path, "/dev/", 5);
		if (file || (!path[0] && begin == file_end))
			file_end = end;
		else if (!heap)
			continue;
		if (strncmp(access, "rw-p", 4))
			continue;
		if (region_count == sizeof(regions) / sizeof(*regions)) {
			region_count = 0;
			break;
		}
		regions[region_count++] = (struct region){(uintptr_t *)begin, (uintptr_t *)end};
	}
	if (list)
		fclose(list);
	return region_count > 0;
}

static bool is_readable(uintptr_t address, size_t length)
{
	for (size_t i = 0; i < region_count; i++)
		if (address >= (uintptr_t)regions[i].begin && address + length <= (uintptr_t)regions[i].end)
			return true;
	return false;
}

static bool is_copy(const uintptr_t *at, const char *mark, size_t length)
{
	return at[1] == length && is_readable(at[0], length + 1) && !memcmp((void *)at[0], mark, length + 1);
}

#define ADD(list, count, item)                                                                     \
	((count) < NODE_MAX_PLACES ? (void)((list)[(count)++] = (item)) : (void)(overflow = true))

/* First round: strings, and what is known by its value. */
static bool find_strings(const struct node_marks *marks, struct node_places *places, bool ticks_are_sure,
			 struct node_string **names, size_t *name_count)
{
	size_t name = strlen(marks->name), code = strlen(marks->code), script = strlen(marks->script);
	bool overflow = false;

	for (size_t i = 0; i < region_count; i++) {
		for (uintptr_t *at = regions[i].begin; at + 3 < regions[i].end; at++) {
			struct node_string *string = (void *)at;
			double number;

			memcpy(&number, at, sizeof(number));
			if (at[0] == (uintptr_t)marks->title && at[1] == name && at[2] == marks->title_room)
				places->title = (void *)at;
			else if (is_copy(at, marks->name, name))
				ADD(names, *name_count, string);
			else if (is_copy(at, marks->code, code))
				ADD(places->code, places->code_count, string);
			else if (is_copy(at, marks->script, script))
				ADD(places->script, places->script_count, string);
			else if (!ticks_are_sure)
				continue;
			else if (*at >= tick_at_start && *at <= places->tick)
				ADD(places->ticks, places->tick_count, (uint64_t *)at);
			else if (number >= (double)tick_at_start && number <= (double)places->tick)
				ADD(places->tick_doubles, places->tick_double_count, (double *)at);
			else if (number >= date_at_start && number <= places->date)
				ADD(places->dates, places->date_count, (double *)at);
		}
	}
	return !overflow;
}

/* Second round: vectors, known by the name that they begin with. */
static bool find_vectors(const struct node_marks *marks, struct node_places *places, struct node_string **names,
			 size_t name_count)
{
	bool overflow = false;

	for (size_t i = 0; i < region_count; i++) {
		for (uintptr_t *at = regions[i].begin; at + 3 < regions[i].end; at++) {
			struct node_vector *vector = (void *)at;
			size_t n = 0;

			while (n < name_count && vector->begin != names[n])
				n++;
			if (n == name_count || vector->end < vector->begin || vector->limit < vector->end)
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

			while (fd < 3 && all[fd].stat.st_ino == now[fd].st_ino && all[fd].stat.st_dev == now[fd].st_dev &&
			       all[fd].stat.st_mode == now[fd].st_mode && all[fd].flags == fcntl(fd, F_GETFL))
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

const char *spawnfd_node_find(const struct node_marks *marks, struct node_places *places)
{
	struct node_string *names[NODE_MAX_PLACES];
	size_t name_count = 0;
	bool sure;

	places->tick = tick();
	places->date = date();
	if (!list_regions(places->tick, &sure))
		return "the memory's map";
	if (!find_strings(marks, places, sure, names, &name_count) ||
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

/* --- and replaces ------------------------------------------------------------------------------- */

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

void spawnfd_node_replace(const struct node_places *places, const struct program *program,
			  const struct node_words *words)
{
	uint64_t ticks = tick() - places->tick;
	double dates = date() - places->date;
	const char *last = program->argv[program->argc - 1];

	for (size_t i = 0; i < places->code_count; i++)
		set_string(places->code[i], words->code);
	for (size_t i = 0; i < places->script_count; i++)
		set_string(places->script[i], words->operand_count ? words->operands[0] : "");
	for (size_t i = 0; i < places->operand_count; i++)
		set_vector(places->operands[i], program->argv[0], words->operands, words->operand_count);
	for (size_t i = 0; i < places->argument_count; i++)
		set_vector(places->arguments[i], program->argv[0], program->argv + 1, program->argc - 1);
	*places->title = (struct node_title){
		program->argv[0],
		strlen(program->argv[0]),
		(size_t)(last + strlen(last) + 1 - program->argv[0]),
	};
	for (size_t i = 0; i < places->tick_count; i++)
		*places->ticks[i] += ticks;
	for (size_t i = 0; i < places->tick_double_count; i++)
		*places->tick_doubles[i] += (double)ticks;
	for (size_t i = 0; i < places->date_count; i++)
		*places->dates[i] += dates;
}
