/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * V8's generators of random numbers, which Math.random() is seeded from: forks would draw the same.
 *
 * A generator is three words: the seed that it began with, and its state, which that seed and the
 * number of steps since determine. So it is told from anything else.
 */
#define _GNU_SOURCE
#include "node.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

enum { MAX_GENERATORS = 64, MAX_STEPS = 512 };

struct generator {
	uint64_t seed, state[2];
};
static struct generator *generators[MAX_GENERATORS];
static size_t generator_count;

/* src/base/utils/random-number-generator.cc: MurmurHash3. */
static uint64_t scatter(uint64_t x)
{
	x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
	x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
	return x ^ x >> 33;
}

/* No address, no small number: half of all words are. */
static bool may_be_random(uint64_t x)
{
	return x >> 48 && x >> 48 != 0xffff;
}

static bool is_generator(const struct generator *it)
{
	uint64_t a, b;

	if (!may_be_random(it->state[0]) || !may_be_random(it->state[1]))
		return false;
	a = scatter(it->seed);
	b = scatter(~a);
	for (int steps = 0; steps < MAX_STEPS; steps++) {
		uint64_t next = a ^ a << 23;

		if (a == it->state[0])
			return b == it->state[1];
		next ^= next >> 17;
		next ^= b ^ b >> 26;
		a = b;
		b = next;
	}
	return false;
}

const char *spawnfd_node_find_generators(void)
{
	uint64_t *begin, *end;

	for (size_t i = 0; spawnfd_node_region(i, &begin, &end); i++)
		for (uint64_t *at = begin; at + 3 <= end; at++) {
			if (!is_generator((void *)at))
				continue;
			if (generator_count == MAX_GENERATORS)
				return "too many generators of random numbers";
			generators[generator_count++] = (void *)at;
		}
	return generator_count ? NULL : "its generator of random numbers";
}

void spawnfd_node_reseed_generators(void)
{
	for (size_t i = 0; i < generator_count; i++)
		if (getrandom(generators[i]->state, sizeof(generators[i]->state), 0) < 0)
			abort();
}
