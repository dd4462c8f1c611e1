/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Passes nearly valid messages to the reader of requests (crates/spawnfd-parked/common/request.c).
 * Checks that the pointers of an accepted request point into the message. request.rs builds this
 * program with sanitizers.
 *
 *     request ROUNDS SEED
 */
#include "park.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t draw(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint32_t any_number(uint32_t near)
{
	static const uint32_t odd[] = {0,	   1,	       2,	0x7fffffff, 0x80000000,
				       0xffffffff, 0xfffffffe, 0x10000, 253,	    254};

	switch (draw() % 4) {
	case 0:
		return odd[draw() % (sizeof(odd) / sizeof(*odd))];
	case 1:
		return near + (uint32_t)(draw() % 5) - 2;
	case 2:
		return (uint32_t)draw();
	default:
		return (uint32_t)(draw() % 64);
	}
}

/* Composes a valid message; returns its length. */
static size_t compose(char *message, uint32_t sources)
{
	struct spawnfd_request head = {
		.version = SPAWNFD_VERSION, .serial = 1, .sources = sources, .above = 9};
	char *at = message + sizeof(head);

	head.steps = (uint32_t)(draw() % 6);
	head.checks = (uint32_t)(draw() % 3);
	head.program = sources ? (int32_t)(draw() % sources) : -1;
	head.keep = (uint32_t)(draw() % 4);
	head.argc = 1 + (uint32_t)(draw() % 4);
	head.envc = (uint32_t)(draw() % 5);
	char *steps = at;

	at += head.steps * sizeof(struct spawnfd_step);
	for (uint32_t i = 0; i < head.checks; i++) {
		struct spawnfd_check check = {.kind = (uint32_t)(draw() % SPAWNFD_CHECK_COUNT)};

		if (!sources)
			check.kind = SPAWNFD_CHECK_SAME;
		memcpy(at, &check, sizeof(check));
		at += sizeof(check);
	}
	for (uint32_t i = 0; i < head.keep; i++) {
		int32_t number = (int32_t)(3 + i * 2);

		memcpy(at, &number, sizeof(number));
		at += sizeof(number);
	}
	char *strings = at;

	for (uint32_t i = 0; i < head.argc + head.envc; i++) {
		if (i == head.argc)
			head.argv_length = (uint32_t)(at - strings);
		at += sprintf(at, "string%u", i) + 1;
	}
	if (!head.envc)
		head.argv_length = (uint32_t)(at - strings);
	head.env_length = (uint32_t)(at - strings) - head.argv_length;
	at += sprintf(at, "/a/path") + 1;
	head.strings = (uint32_t)(at - strings);
	head.path = head.strings - 8;
	for (uint32_t i = 0; i < head.steps; i++) {
		struct spawnfd_step step = {.op = (uint16_t)(draw() % SPAWNFD_OP_COUNT), .b = 1};

		step.a = sources ? (int32_t)(draw() % sources) : -1;
		if (!sources)
			step.op = SPAWNFD_OP_OPEN;
		step.text = head.strings - 8;
		/* The text is a path, shorter than the struct that this operation needs. */
		if (step.op == SPAWNFD_OP_CAPABILITIES)
			step.op = SPAWNFD_OP_TCSETPGRP;
		if (step.op == SPAWNFD_OP_CALL) {
			step.b = SPAWNFD_ARGUMENT_TEXT | SPAWNFD_ARGUMENT_SOURCE << 2 |
				 SPAWNFD_ARGUMENT_DATA << 4;
			step.x = step.text;
			step.y = draw() % sources;
			step.text = 8;
		}
		memcpy(steps + i * sizeof(step), &step, sizeof(step));
	}
	memcpy(message, &head, sizeof(head));
	return (size_t)(at - message);
}

static void inside(const char *at, const char *from, const char *to)
{
	if (at < from || at >= to || !memchr(at, 0, (size_t)(to - at)))
		abort();
}

/* Checks that a call refers only to received descriptors, and to bytes within the strings. */
static void check_call(const struct spawnfd_step *step, uint32_t sources, const char *strings,
		       const char *end)
{
	const uint64_t values[] = {step->x, step->y, step->z};

	for (int i = 0; i < SPAWNFD_ARGUMENTS; i++) {
		switch ((uint32_t)step->b >> i * SPAWNFD_ARGUMENT_BITS & 3) {
		case SPAWNFD_ARGUMENT_SOURCE:
			if (values[i] >= sources)
				abort();
			break;
		case SPAWNFD_ARGUMENT_TEXT:
			if (values[i] >= (uint64_t)(end - strings) ||
			    step->text > (uint64_t)(end - strings) - values[i])
				abort();
			break;
		}
	}
}

int main(int argc, char **argv)
{
	unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 100000, accepted = 0,
		      mutated = 0;
	static struct request request;
	static struct spawnfd_page page;

	state = argc > 2 ? strtoul(argv[2], NULL, 10) | 1 : 1;
	for (unsigned long round = 0; round < rounds; round++) {
		char scratch[4096];
		uint32_t sources = (uint32_t)(draw() % 4);
		size_t length = compose(scratch, sources);
		struct program program;
		unsigned changes = (unsigned)(draw() % 4);

		for (unsigned i = 0; i < changes; i++) {
			size_t at = draw() % length & ~(size_t)3;
			uint32_t now;

			if (draw() % 3 == 0) {
				scratch[draw() % length] = (char)draw();
			} else if (at + 4 <= length) {
				memcpy(&now, scratch + at, 4);
				now = any_number(now);
				memcpy(scratch + at, &now, 4);
			}
		}
		size_t whole = draw() % 8;

		if (!whole)
			length = draw() % (length + 1);
		/* The sanitizer reports a read past `room`, the size that the reader gets. */
		size_t room = length + 8 + draw() % 256;
		char *message = malloc(room);

		memcpy(message, scratch, length);
		request.page = &page;
		page.first = any_number(2);
		if (spawnfd_read_request(message, length, room, sources, &request, &program)) {
			const char *end = message + length;

			accepted++;
			mutated += changes > 0;
			for (int i = 0; i < program.argc; i++)
				inside(program.argv[i], request.strings, end);
			if (program.argv[program.argc])
				abort();
			for (char **at = program.envp; *at; at++)
				inside(*at, request.strings, end);
			for (uint32_t i = 0; i < request.head->steps; i++) {
				const struct spawnfd_step *step = &request.steps[i];
				const char *text = request.strings + step->text;

				if (step->op == SPAWNFD_OP_CALL) {
					check_call(step, sources, request.strings, end);
					continue;
				}
				inside(text, request.strings, end);
				if (step->op == SPAWNFD_OP_CAPABILITIES &&
				    sizeof(struct spawnfd_capabilities) > (size_t)(end - text))
					abort();
			}
			inside(request.strings + request.head->path, request.strings, end);
			for (uint32_t i = 0; i < request.head->checks; i++)
				inside(request.strings + request.checks[i].path, request.strings,
				       end);
			if (request.head->program >= (int32_t)sources)
				abort();
			(void)spawnfd_read_page(&request);
		} else if (!changes && whole && room >= length + 8 + 16 * sizeof(char *)) {
			/* A valid message may be refused only if the buffer is too small. */
			abort();
		}
		free(message);
	}
	printf("%lu accepted, %lu of them changed\n", accepted, mutated);
	return 0;
}
