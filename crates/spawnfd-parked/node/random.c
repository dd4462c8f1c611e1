/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Gives V8's random number generators a new state. They seed Math.random(). Without a new state,
 * Math.random() would return the same numbers in all forked children.
 *
 * A generator has three words: its initial seed, and two words of state. The seed and the number of
 * steps determine the state, so the words of a generator are recognizable in memory.
 */
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

/* V8's MurmurHash3, from src/base/utils/random-number-generator.cc. */
static uint64_t murmur_hash(uint64_t x)
{
	x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
	x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
	return x ^ x >> 33;
}

/* False if a word is an address or a small number. This check skips half of all words. */
static bool may_be_random(uint64_t x)
{
	return x >> 48 && x >> 48 != 0xffff;
}

static bool is_generator(const struct generator *candidate)
{
	uint64_t a, b;

	if (!may_be_random(candidate->state[0]) || !may_be_random(candidate->state[1]))
		return false;
	a = murmur_hash(candidate->seed);
	b = murmur_hash(~a);
	for (int steps = 0; steps < MAX_STEPS; steps++) {
		uint64_t next = a ^ a << 23;

		if (a == candidate->state[0])
			return b == candidate->state[1];
		next ^= next >> 17;
		next ^= b ^ b >> 26;
		a = b;
		b = next;
	}
	return false;
}

const char *spawnfd_node_find_generators(void)
{
	EACH_WORD(word, 3) {
		if (!is_generator((void *)word))
			continue;
		if (generator_count == MAX_GENERATORS)
			return "too many random number generators";
		generators[generator_count++] = (void *)word;
	}
	return generator_count ? NULL : "the random number generator";
}

void spawnfd_node_reseed_generators(void)
{
	for (size_t i = 0; i < generator_count; i++)
		if (getrandom(generators[i]->state, sizeof(generators[i]->state), 0) < 0)
			abort();
}
