/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What node.c, and find.c, know of a Node.js that is parked. */
#ifndef SPAWNFD_NODE_H
#define SPAWNFD_NODE_H

#include "../common/park.h"

#include <stdint.h>
#include <sys/stat.h>
#include <termios.h>

/* What Node was started with, to be found again. */
struct node_markers {
	char name[64], code[64], script[64];
	/* What libuv takes for the process's title: where argv begins, and how long all of it is.
	 */
	char *title;
	size_t title_room;
	/* How many arguments there are; and how many of them are not flags. */
	int arguments, operands;
};

/* As libstdc++ has std::string and std::vector<std::string>. */
struct node_string {
	char *text;
	size_t length;
	size_t capacity;
	size_t rest;
};

struct node_vector {
	struct node_string *begin, *end, *limit;
};

/* What libuv knows of the title; what Node restores when it exits: src/node.cc, `stdio`. */
struct node_title {
	char *text;
	size_t length, room;
};

struct node_stdio {
	int flags;
	bool is_terminal;
	struct stat stat;
	struct termios termios;
};

enum { NODE_MAX_LOCATIONS = 64 };

/* Where it all is. */
struct node_locations {
	struct node_string *code[NODE_MAX_LOCATIONS], *script[NODE_MAX_LOCATIONS];
	struct node_vector *operands[NODE_MAX_LOCATIONS], *arguments[NODE_MAX_LOCATIONS];
	struct node_title *title;
	struct node_stdio *stdio;
	/* Points in time: CLOCK_MONOTONIC in ns, the same as double; CLOCK_REALTIME in us as
	 * double. */
	uint64_t *ticks[NODE_MAX_LOCATIONS];
	double *tick_doubles[NODE_MAX_LOCATIONS], *dates[NODE_MAX_LOCATIONS];
	size_t code_count, script_count, operand_count, argument_count;
	size_t tick_count, tick_double_count, date_count;
	/* When they were looked for: as `ticks`, and as `dates`. */
	uint64_t tick;
	double date;
};

/* What is to stand there. */
struct node_arguments {
	/* NULL, if there is none. */
	char *code;
	char **operands;
	int operand_count;
};

/* Whether this flag is one after which comes code. */
bool spawnfd_node_takes_code(const char *flag);

/* Why a Node with these flags, and the environment that there is, cannot be parked, `late` or not;
 * or NULL. */
const char *spawnfd_node_check_flags(char **flags, int count, bool late);

/* Finds all places, but for those of points in time. NULL, or what is missing. */
const char *spawnfd_node_find(const struct node_markers *marks, struct node_locations *places);

/* Finds points in time. NULL, or what is missing. */
const char *spawnfd_node_find_times(struct node_locations *places);

/* The regions that were searched last, one by one; false, if there are no more. */
bool spawnfd_node_region(size_t number, uint64_t **begin, uint64_t **end);

/* Finds V8's generators of random numbers in them. NULL, or what is missing. */
const char *spawnfd_node_find_generators(void);

/* Gives each a state of its own: for a fork. */
void spawnfd_node_reseed_generators(void);

/* The first word, of all that were searched last, that is this one. */
void *spawnfd_node_find_object(const void *first_word);

/*
 * Has `parking` called at the end of Node's preparations, for code or for a script, with those of
 * its own modules loaded that `ahead` names, with commas; and has all that was read of the command
 * line by then read again after it. Follows spawnfd_node_find. False, if this Node does not have
 * what it takes.
 */
bool spawnfd_node_park_late(bool code, const char *ahead, void (*parking)(void));

/* Unmaps all pages of files that are as they were read. */
void spawnfd_node_unmap_files(void);

/* Puts the program's words there, and moves points in time on by as long as was waited. */
void spawnfd_node_replace(const struct node_locations *places, const struct program *program,
			  const struct node_arguments *words);

#endif
