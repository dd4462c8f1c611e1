/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Validates a message from the owner. This code changes no state of the process. A test of
 * the repository passes mutated messages to it. */
#include "park.h"

#include <stdalign.h>
#include <string.h>

/* Writes pointers to the `count` strings between `text` and `end`, and then NULL, to `array`. False
 * if there are not exactly `count` strings, each with its NUL. */
static bool split(char *text, char *end, uint32_t count, char **array)
{
	for (uint32_t i = 0; i < count; i++) {
		char *nul = text < end ? memchr(text, 0, (size_t)(end - text)) : NULL;

		if (!nul)
			return false;
		array[i] = text;
		text = nul + 1;
	}
	array[count] = NULL;
	return text == end;
}

static bool is_valid_call(const struct spawnfd_step *step, const struct spawnfd_request *head)
{
	const uint64_t values[SPAWNFD_ARGUMENTS] = {step->x, step->y, step->z};
	uint32_t kinds = (uint32_t)step->b;

	for (int i = 0; i < SPAWNFD_ARGUMENTS; i++, kinds >>= SPAWNFD_ARGUMENT_BITS) {
		switch ((enum spawnfd_argument)(kinds & 3)) {
		case SPAWNFD_ARGUMENT_NUMBER:
			break;
		case SPAWNFD_ARGUMENT_SOURCE:
			if (values[i] >= head->sources)
				return false;
			break;
		case SPAWNFD_ARGUMENT_TEXT:
			if (values[i] >= head->strings || step->text > head->strings - values[i])
				return false;
			break;
		case SPAWNFD_ARGUMENT_DATA:
			if (i < SPAWNFD_ARGUMENTS - 1)
				return false;
		}
	}
	return !kinds;
}

static bool is_valid_step(const struct spawnfd_step *step, const struct spawnfd_request *head)
{
	switch (step->op) {
	case SPAWNFD_OP_OPEN:
		if (step->a == SPAWNFD_NO_SOURCE)
			break;
		/* fall through */
	case SPAWNFD_OP_CGROUP:
	case SPAWNFD_OP_REPLACE:
		if (step->a < 0 || (uint32_t)step->a >= head->sources)
			return false;
		break;
	case SPAWNFD_OP_CAPABILITIES:
		if (head->strings < sizeof(struct spawnfd_capabilities) ||
		    step->text > head->strings - sizeof(struct spawnfd_capabilities))
			return false;
		break;
	case SPAWNFD_OP_CALL:
		return is_valid_call(step, head);
	default:
		if (step->op >= SPAWNFD_OP_COUNT)
			return false;
	}
	/* The last string ends with a NUL. So every offset within the strings is a terminated
	 * string. */
	return step->text < head->strings;
}

static bool is_valid_check(const struct spawnfd_check *check, const struct spawnfd_request *head)
{
	return check->kind < SPAWNFD_CHECK_COUNT && check->path < head->strings &&
	       (check->kind != SPAWNFD_CHECK_SAME_SOURCE || head->program >= 0);
}

bool spawnfd_read_page(const struct request *request)
{
	if (request->page->first > SPAWNFD_MAX_FIRST)
		return false;
	for (uint32_t i = 0; i < request->page->first; i++)
		if (!is_valid_step(&request->page->steps[i], request->head))
			return false;
	return true;
}

bool spawnfd_read_request(char *message, size_t length, size_t size, size_t descriptors,
			  struct request *request, struct program *program)
{
	const struct spawnfd_request *head = (const void *)message;
	size_t offset = sizeof(*head);

	if (length < offset || length > SPAWNFD_MAX_MESSAGE || head->version != SPAWNFD_VERSION)
		return false;
	/* None of these counts is larger than the message, so no sum below overflows. */
	if (head->steps > length || head->keep > length || head->argc > length ||
	    head->envc > length || head->checks > length)
		return false;
	if (head->sources != descriptors || descriptors > SPAWNFD_MAX_DESCRIPTORS ||
	    head->above < SPAWNFD_FIRST_DESCRIPTOR || head->flags & ~SPAWNFD_FLAGS)
		return false;
	if (head->flags & SPAWNFD_FLAG_FORK && head->sources != SPAWNFD_FORK_COUNT)
		return false;
	request->head = head;
	request->steps = (const void *)(message + offset);
	offset += head->steps * sizeof(struct spawnfd_step);
	request->checks = (const void *)(message + offset);
	offset += head->checks * sizeof(struct spawnfd_check);
	request->keep = (const void *)(message + offset);
	offset += head->keep * sizeof(int32_t);
	request->strings = message + offset;
	if (offset > length || length - offset != head->strings || !head->strings ||
	    message[length - 1])
		return false;
	if (head->argv_length > head->strings ||
	    head->env_length > head->strings - head->argv_length)
		return false;
	for (uint32_t i = 0; i < head->steps; i++)
		if (!is_valid_step(&request->steps[i], head))
			return false;
	if (head->program < SPAWNFD_NO_SOURCE || head->program >= (int64_t)head->sources ||
	    head->path >= head->strings)
		return false;
	for (uint32_t i = 0; i < head->checks; i++)
		if (!is_valid_check(&request->checks[i], head))
			return false;
	for (uint32_t i = 0; i < head->keep; i++)
		if (request->keep[i] < SPAWNFD_FIRST_DESCRIPTOR ||
		    (i && request->keep[i] <= request->keep[i - 1]))
			return false;

	size_t arrays = (length + alignof(char *) - 1) & ~(alignof(char *) - 1);

	if (size < arrays || (size - arrays) / sizeof(char *) < (size_t)head->argc + head->envc + 2)
		return false;
	program->argc = (int)head->argc;
	program->argv = (char **)(void *)(message + arrays);
	program->envp = program->argv + head->argc + 1;

	char *env = request->strings + head->argv_length;

	return split(request->strings, env, head->argc, program->argv) &&
	       split(env, env + head->env_length, head->envc, program->envp);
}
