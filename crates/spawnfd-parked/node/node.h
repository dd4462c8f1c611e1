/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Declarations that the files of the Node.js adapter share. */
#pragma once

#include "../common/park.h"

#include <stdint.h>
#include <sys/stat.h>
#include <termios.h>

/* Unique strings that Node gets instead of its real arguments. find.c finds all copies of them. */
struct node_markers {
	/* These strings replace argv[0], the code after -e, and the path of the script. */
	char name[64], code[64], script[64];
	/* The contiguous strings of argv, which libuv overwrites with the process title. */
	char *title;
	size_t title_size;
	/* The number of arguments. */
	int arguments;
	/* The number of arguments that are neither flags nor code: argv[0] and the script. */
	int operands;
};

/* The layout of std::string and std::vector<std::string> in libstdc++. */
struct node_string {
	char *text;
	size_t length;
	size_t capacity;
	/* The second half of the buffer for short strings. */
	size_t unused;
};

struct node_vector {
	struct node_string *begin, *end, *limit;
};

/* libuv's record of the process title: src/unix/proctitle.c. */
struct node_title {
	char *text;
	size_t length, size;
};

/* The state of a standard descriptor, which Node restores when it exits: `stdio` in src/node.cc. */
struct node_stdio {
	int flags;
	bool is_terminal;
	struct stat stat;
	struct termios termios;
};

enum { NODE_MAX_LOCATIONS = 64 };

/* Addresses in Node's memory. */
struct node_locations {
	struct node_string *code[NODE_MAX_LOCATIONS], *script[NODE_MAX_LOCATIONS];
	struct node_vector *operands[NODE_MAX_LOCATIONS], *arguments[NODE_MAX_LOCATIONS];
	struct node_title *title;
	struct node_stdio *stdio;
	/* Recorded times: CLOCK_MONOTONIC in ns, the same as a double, and CLOCK_REALTIME in us as
	 * a double. */
	uint64_t *ticks[NODE_MAX_LOCATIONS];
	double *tick_doubles[NODE_MAX_LOCATIONS], *dates[NODE_MAX_LOCATIONS];
	size_t code_count, script_count, operand_count, argument_count;
	size_t tick_count, tick_double_count, date_count;
	/* The time of the search, in the units of `ticks` and of `dates`. */
	uint64_t tick;
	double date;
};

/* Replaces main() of Node.js, which parks when it reads the variable NODE_V8_COVERAGE. */
int spawnfd_node_main(int argc, char **argv, char **envp, int (*original)(int, char **, char **));

/* Notifies this adapter that the program calls getenv(name). */
void spawnfd_node_on_getenv(const char *name);

/* Whether the argument after this flag is code. */
bool spawnfd_node_takes_code(const char *flag);

/* The reason why Node cannot park with these flags and the current environment, or NULL. `late` is
 * true if Node would park at the end of its bootstrap (late.c). */
const char *spawnfd_node_check_flags(char **flags, int count, bool late);

/* Finds all locations except those of recorded times. Returns NULL, or what is missing. */
const char *spawnfd_node_find(const struct node_markers *markers, struct node_locations *locations);

/* Finds recorded times. Returns NULL, or what went wrong. */
const char *spawnfd_node_find_times(struct node_locations *locations);

/* The ranges of memory that the last search covered. */
struct node_region {
	uintptr_t *begin, *end;
};
extern struct node_region spawnfd_node_regions[];
extern size_t spawnfd_node_region_count;

/* Goes through all words of these ranges that are the first of `count` words. */
#define EACH_WORD(word, count)                                                                     \
	for (size_t region = 0; region < spawnfd_node_region_count; region++)                      \
		for (uintptr_t *word = spawnfd_node_regions[region].begin;                         \
		     word + (count) <= spawnfd_node_regions[region].end; word++)

/* Finds V8's random number generators in the searched regions. Returns NULL, or what is missing. */
const char *spawnfd_node_find_generators(void);

/* Gives each generator a new random state. Each forked child calls this function. */
void spawnfd_node_reseed_generators(void);

/* The first address in the searched regions whose word is `first_word`, or NULL. */
void *spawnfd_node_find_object(const void *first_word);

/* Looks up the functions of Node that late.c needs. Returns NULL, or the reason why Node can park
 * only before its first line of JavaScript. Call this function before the other ones of late.c. */
const char *spawnfd_node_find_symbols(void);

/*
 * Arranges a call of `callback` just before Node runs its main script, if Node has not loaded its
 * internal modules yet. False if Node has loaded them. Call this function after
 * spawnfd_node_find().
 */
bool spawnfd_node_call_before_main_script(void (*callback)(void));

/*
 * Arranges a call of `park` at the end of Node's bootstrap. Before that call, Node loads the
 * builtin modules that `preload` lists, separated by commas. After the call, Node reads its command
 * line again. `code` is true if Node runs code, not a script. Call this function after
 * spawnfd_node_find(). False if this Node lacks an object that late.c needs.
 */
bool spawnfd_node_park_late(bool code, const char *preload, void (*park)(void));

/* Unmaps all unmodified pages of private file mappings. */
void spawnfd_node_unmap_files(void);

/*
 * Writes the program's arguments to all locations, and adds the time since the search to recorded
 * times. `first` is the index of the first argument after the flags. This argument is code if
 * `has_code` is true.
 */
void spawnfd_node_replace(const struct node_locations *locations, const struct program *program,
			  int first, bool has_code);
