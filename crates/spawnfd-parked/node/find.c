/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Finds Node's copies of its arguments, and replaces them.
 *
 * The search covers all private memory in use. Most copies are in the heap of brk(2). But V8 may
 * reserve the addresses behind this heap, and then malloc() uses other mappings. Node has random
 * markers as arguments, so a string that equals a marker is a copy. The search recognizes a stored
 * time by its value, which Node has read from the clock. If addresses of this process can have such
 * values, this code changes no times.
 */
#include "node.h"
#include "../node-threads/threads.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_REGIONS = 8192 };
struct node_region spawnfd_node_regions[MAX_REGIONS];
size_t spawnfd_node_region_count;

/* This object's variables: the linker defines these symbols. */
extern char __bss_start[] __attribute__((visibility("hidden")));
extern char _end[] __attribute__((visibility("hidden")));

static uint64_t tick_at_start;
static double date_at_start;

static uint64_t tick(void)
{
	/* Do not record this time: Node has not read it. Make no system call either: a seccomp
	 * filter may refuse it, because libc reads the clock without a system call. */
	int (*read_clock)(clockid_t, struct timespec *) = spawnfd_clock_read_unrecorded;
	struct timespec now;

	if (!read_clock)
		read_clock = clock_gettime;
	read_clock(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static double date(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (double)now.tv_sec * 1e6 + (double)(now.tv_nsec / 1000);
}

__attribute__((constructor)) static void record_start(void)
{
	tick_at_start = tick();
	date_at_start = date();
}

static bool add_region(uintptr_t begin, uintptr_t end)
{
	if (spawnfd_node_region_count == MAX_REGIONS)
		return false;
	spawnfd_node_regions[spawnfd_node_region_count++] =
		(struct node_region){(uintptr_t *)begin, (uintptr_t *)end};
	return true;
}

/* Whether a page has contents, by its entry in /proc/self/pagemap. Bit 63: the page is in memory.
 * Bit 62: the page is swapped out, or is a guard page (MADV_GUARD_INSTALL), which is unreadable.
 * The stacks of threads have such pages in glibc 2.43. */
static bool is_used(uint64_t entry, int memory, uintptr_t address)
{
	char byte;

	return entry >> 63 || (entry >> 62 && pread(memory, &byte, 1, (off_t)address) == 1);
}

/* Adds the pages of a mapping that have contents. */
static bool add_used_pages(int pagemap, int memory, uintptr_t begin, uintptr_t end)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), run_start = 0;
	uint64_t bits[512];

	for (uintptr_t address = begin; address < end;) {
		size_t count = (end - address) / page < 512 ? (end - address) / page : 512;

		if (pread(pagemap, bits, count * 8, (off_t)(address / page * 8)) !=
		    (ssize_t)(count * 8))
			return false;
		for (size_t i = 0; i < count; i++, address += page) {
			if (is_used(bits[i], memory, address)) {
				run_start = run_start ? run_start : address;
			} else if (run_start) {
				if (!add_region(run_start, address))
					return false;
				run_start = 0;
			}
		}
	}
	return !run_start || add_region(run_start, end);
}

/*
 * Lists the regions to search, without this object's own variables. False if /proc cannot be read
 * or there are too many regions. Sets `ticks_are_unambiguous` to false if a time up to `until` may
 * also be an address.
 */
static bool list_regions(uint64_t until, bool *ticks_are_unambiguous)
{
	FILE *list = fopen("/proc/self/maps", "re");
	int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	int memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	char line[4400], access[5], path[4096];
	uintptr_t begin, end;
	bool done = list && pagemap >= 0 && memory >= 0;

	*ticks_are_unambiguous = true;
	spawnfd_node_region_count = 0;
	while (done && fgets(line, sizeof(line), list)) {
		bool is_own_data;

		path[0] = 0;
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %*s %4095[^\n]", &begin,
			   &end, access, path) < 3)
			continue;
		if (begin <= until && end >= tick_at_start)
			*ticks_are_unambiguous = false;
		is_own_data = begin < (uintptr_t)_end && end > (uintptr_t)__bss_start;
		/* Skip special mappings, such as [stack], but not [heap]. */
		if (!is_own_data && !strncmp(access, "rw-p", 4) &&
		    (path[0] != '[' || !strcmp(path, "[heap]")))
			done = add_used_pages(pagemap, memory, begin, end);
	}
	if (list)
		fclose(list);
	if (pagemap >= 0)
		close(pagemap);
	if (memory >= 0)
		close(memory);
	return done && spawnfd_node_region_count;
}

static bool is_readable(uintptr_t address, size_t length)
{
	for (size_t i = 0; i < spawnfd_node_region_count; i++)
		if (address >= (uintptr_t)spawnfd_node_regions[i].begin &&
		    address + length <= (uintptr_t)spawnfd_node_regions[i].end)
			return true;
	return false;
}

static bool is_copy(const uintptr_t *word, const char *marker, size_t length)
{
	return word[1] == length && is_readable(word[0], length + 1) &&
	       !memcmp((void *)word[0], marker, length + 1);
}

/* Whether a value is a stored time. The replacement checks each value again, because Node may have
 * written another value to the same address since the search. */
static bool is_tick(uint64_t value, const struct node_locations *locations)
{
	return value >= tick_at_start && value <= locations->tick && spawnfd_clock_was_read(value);
}

static bool is_tick_double(double value, const struct node_locations *locations)
{
	return value >= (double)tick_at_start && value <= (double)locations->tick &&
	       spawnfd_clock_was_read_as_double(value);
}

/* Node reads dates by another call than CLOCK_MONOTONIC. A double with the bits of a recent date is
 * no pair of small numbers. */
static bool is_date(double value, const struct node_locations *locations)
{
	return value >= date_at_start && value <= locations->date;
}

#define ADD(list, count, item)                                                                     \
	((count) < NODE_MAX_LOCATIONS ? (void)((list)[(count)++] = (item))                         \
				      : (void)(overflow = true))

/* The first pass finds strings. */
static bool find_strings(const struct node_markers *markers, struct node_locations *locations,
			 struct node_string **names, size_t *name_count)
{
	size_t name = strlen(markers->name), code = strlen(markers->code),
	       script = strlen(markers->script);
	bool overflow = false;

	EACH_WORD(word, 4) {
		struct node_string *string = (void *)word;

		if (word[0] == (uintptr_t)markers->title && word[1] == name &&
		    word[2] == markers->title_size)
			locations->title = (void *)word;
		else if (is_copy(word, markers->name, name))
			ADD(names, *name_count, string);
		else if (is_copy(word, markers->code, code))
			ADD(locations->code, locations->code_count, string);
		else if (is_copy(word, markers->script, script))
			ADD(locations->script, locations->script_count, string);
	}
	return !overflow;
}

/* The second pass finds vectors whose first element is a copy of markers->name. */
static bool find_vectors(const struct node_markers *markers, struct node_locations *locations,
			 struct node_string **names, size_t name_count)
{
	bool overflow = false;

	EACH_WORD(word, 4) {
		struct node_vector *vector = (void *)word;
		size_t n = 0;

		while (n < name_count && vector->begin != names[n])
			n++;
		if (n == name_count || vector->end < vector->begin || vector->limit < vector->end)
			continue;
		if (vector->end - vector->begin == markers->operands)
			ADD(locations->operands, locations->operand_count, vector);
		else if (vector->end - vector->begin == markers->arguments)
			ADD(locations->arguments, locations->argument_count, vector);
	}
	return !overflow;
}

/* Finds Node's array `stdio`. Returns NULL if there is no match, or more than one. */
static struct node_stdio *find_stdio(void)
{
	struct node_stdio *found = NULL;
	struct stat now[3];

	for (int fd = 0; fd < 3; fd++)
		if (fstat(fd, &now[fd]))
			return NULL;
	EACH_WORD(word, 3 * sizeof(struct node_stdio) / sizeof(uintptr_t)) {
		struct node_stdio *all = (void *)word;
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
	return found;
}

const char *spawnfd_node_find(const struct node_markers *markers, struct node_locations *locations)
{
	struct node_string *names[NODE_MAX_LOCATIONS];
	size_t name_count = 0;
	bool unambiguous;

	if (!list_regions(tick(), &unambiguous))
		return "the memory map";
	if (!find_strings(markers, locations, names, &name_count) ||
	    !find_vectors(markers, locations, names, name_count))
		return "too many copies of the arguments";
	locations->stdio = find_stdio();
	if (!locations->operand_count ||
	    (locations->code_count == 0) == (locations->script_count == 0))
		return "the copies of the arguments";
	if (!locations->title)
		return "the process title";
	if (!locations->stdio)
		return "the saved state of the standard descriptors";
	return NULL;
}

const char *spawnfd_node_find_times(struct node_locations *locations)
{
	bool overflow = false, unambiguous;

	if (!spawnfd_clock_stop_recording())
		return "too many times";
	locations->tick = tick();
	locations->date = date();
	if (!list_regions(locations->tick, &unambiguous))
		return "the memory map";
	if (!unambiguous)
		return NULL;
	EACH_WORD(word, 1) {
		double number;

		memcpy(&number, word, sizeof(number));
		if (is_tick(*word, locations))
			ADD(locations->ticks, locations->tick_count, (uint64_t *)word);
		else if (is_tick_double(number, locations))
			ADD(locations->tick_doubles, locations->tick_double_count, (double *)word);
		else if (is_date(number, locations))
			ADD(locations->dates, locations->date_count, (double *)word);
	}
	return overflow ? "too many timestamps" : NULL;
}

void *spawnfd_node_find_object(const void *first_word)
{
	EACH_WORD(word, 1)
		if (*word == (uintptr_t)first_word)
			return word;
	return NULL;
}

/* --- replacement --------------------------------------------------------------------------------
 */

static void *allocate(size_t size)
{
	void *new = malloc(size);

	if (!new)
		abort();
	return new;
}

/* Replaces the text of a std::string without freeing the old text. Node can free the new text,
 * because this file and Node allocate from the same malloc(). */
static void set_string(struct node_string *string, const char *text)
{
	size_t length = strlen(text);

	string->text = memcpy(allocate(length + 1), text, length + 1);
	string->length = string->capacity = length;
}

static void set_vector(struct node_vector *vector, const char *name, char **rest, int count)
{
	struct node_string *all = allocate(((size_t)count + 1) * sizeof(*all));

	set_string(&all[0], name);
	for (int i = 0; i < count; i++)
		set_string(&all[i + 1], rest[i]);
	vector->begin = all;
	vector->end = vector->limit = all + count + 1;
}

void spawnfd_node_replace(const struct node_locations *locations, const struct program *program,
			  int first, bool has_code)
{
	char **operands = program->argv + first + has_code;
	int operand_count = program->argc - first - has_code;
	uint64_t ticks = tick() - locations->tick;
	double dates = date() - locations->date;
	const char *last = program->argv[program->argc - 1];

	for (size_t i = 0; i < locations->code_count; i++)
		set_string(locations->code[i], program->argv[first]);
	for (size_t i = 0; i < locations->script_count; i++)
		set_string(locations->script[i], operand_count ? operands[0] : "");
	for (size_t i = 0; i < locations->operand_count; i++)
		set_vector(locations->operands[i], program->argv[0], operands, operand_count);
	for (size_t i = 0; i < locations->argument_count; i++)
		set_vector(locations->arguments[i], program->argv[0], program->argv + 1,
			   program->argc - 1);
	*locations->title = (struct node_title){
		program->argv[0],
		strlen(program->argv[0]),
		(size_t)(last + strlen(last) + 1 - program->argv[0]),
	};
	for (size_t i = 0; i < locations->tick_count; i++)
		if (is_tick(*locations->ticks[i], locations))
			*locations->ticks[i] += ticks;
	for (size_t i = 0; i < locations->tick_double_count; i++)
		if (is_tick_double(*locations->tick_doubles[i], locations))
			*locations->tick_doubles[i] += (double)ticks;
	for (size_t i = 0; i < locations->date_count; i++)
		if (is_date(*locations->dates[i], locations))
			*locations->dates[i] += dates;
}
