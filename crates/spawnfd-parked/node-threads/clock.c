/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Records each time that Node reads from CLOCK_MONOTONIC before it parks. By these values find.c
 * recognizes the times that Node has stored. A value's range would not suffice: in the first hours
 * after boot, V8's heap has many pairs of small numbers that look like a recent time.
 */
#include "threads.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { MAX_TIMES = 1 << 15 };
static _Atomic uint64_t times[MAX_TIMES];
static atomic_size_t count;
/* True once the search for stored times is over. */
static atomic_bool complete;

static void record(const struct timespec *time)
{
	size_t index = atomic_fetch_add(&count, 1);

	if (index < MAX_TIMES)
		times[index] = (uint64_t)time->tv_sec * 1000000000 + (uint64_t)time->tv_nsec;
}

int spawnfd_clock_read_unrecorded(clockid_t clock, struct timespec *time)
{
	return REPLACED(clock_gettime)(clock, time);
}

PUBLIC int clock_gettime(clockid_t clock, struct timespec *time)
{
	int result = spawnfd_clock_read_unrecorded(clock, time);

	if (!result && clock == CLOCK_MONOTONIC &&
	    !atomic_load_explicit(&complete, memory_order_relaxed))
		record(time);
	return result;
}

static size_t recorded(void)
{
	return count < MAX_TIMES ? count : MAX_TIMES;
}

bool spawnfd_clock_was_read(uint64_t time)
{
	for (size_t i = 0; i < recorded(); i++)
		if (times[i] == time)
			return true;
	return false;
}

bool spawnfd_clock_was_read_as_double(double time)
{
	for (size_t i = 0; i < recorded(); i++)
		if ((double)times[i] == time)
			return true;
	return false;
}

bool spawnfd_clock_stop_recording(void)
{
	atomic_store(&complete, true);
	return count <= MAX_TIMES;
}
