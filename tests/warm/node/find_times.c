/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Stores times in memory, and checks which of them find.c recognizes and replaces. Reads the clock
 * of fake_clock.c. */
#include "node.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

extern uint64_t fake_time;

/* Volatile, so that the compiler keeps each value in memory. */
struct stored {
	volatile uint64_t read, neighbour, pair_of_numbers;
	volatile double read_as_double, neighbour_as_double;
};

int main(void)
{
	static struct node_locations locations;
	static char *argv[] = {"name", NULL};
	const struct program program = {.argc = 1, .argv = argv};
	const uint64_t pause = 20000000;
	struct node_title title;
	struct stored *stored = malloc(sizeof(*stored)), before;
	struct timespec now;

	fake_time += pause;
	clock_gettime(CLOCK_MONOTONIC, &now);
	stored->read = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	stored->neighbour = stored->read + 1;
	stored->pair_of_numbers = stored->read + 1000;
	stored->read_as_double = (double)stored->read;
	/* In a year, doubles of this size are multiples of 4. */
	stored->neighbour_as_double = stored->read_as_double + 4;
	before = *stored;
	fake_time += pause;
	assert(!spawnfd_node_find_times(&locations));
	fake_time += pause;
	locations.title = &title;
	spawnfd_node_replace(&locations, &program, 1, false);
	assert(stored->read == before.read + pause);
	assert(stored->read_as_double == before.read_as_double + (double)pause);
	assert(stored->neighbour == before.neighbour);
	assert(stored->pair_of_numbers == before.pair_of_numbers);
	assert(stored->neighbour_as_double == before.neighbour_as_double);
	return 0;
}
