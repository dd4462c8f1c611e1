/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* How a parked process and its owner are connected: docs/adr/0013. */
#ifndef SPAWNFD_LINE_H
#define SPAWNFD_LINE_H

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

struct spawnfd_line {
	/* This process's end, and a pidfd of the owner. */
	int socket, owner;
	struct spawnfd_page *page;
};

/* Says what this process has to say of itself, with its pidfd if that is not -1. */
void spawnfd_say(const struct spawnfd_line *line, struct spawnfd_reply head, const char *text,
		 size_t length, int pidfd);

/*
 * Waits for a request, and receives it: its length, 0 if it is none, and the descriptors that came.
 * If the owner is gone, it does not return.
 */
size_t spawnfd_receive(const struct spawnfd_line *line, char *message, int *sources, size_t *count);

/* Waits for the owner's word, and takes the request. False: it is not to be. */
bool spawnfd_is_to_go(const struct spawnfd_line *line, uint32_t serial);

/* Has an owner who waits look at the page. */
void spawnfd_wake(const struct spawnfd_line *line);

/* The request that was taken has been carried out. */
void spawnfd_became(const struct spawnfd_line *line);

/* The step at `index` has failed; SPAWNFD_NO_STEP: it is no step of the caller's. */
_Noreturn void spawnfd_fail(const struct spawnfd_line *line, uint32_t index, int error);

/* Nothing has been done, and another request may come; but an owner who has said go has gone. */
void spawnfd_refuse(const struct spawnfd_line *line);

/* Maps a page; NULL if that cannot be. */
struct spawnfd_page *spawnfd_map(int file);

/* Keeps the page from children that are forked; false where that cannot be. */
bool spawnfd_keep_line(const struct spawnfd_line *line);

/* In a child that has been forked: it waits by a line of its own, and says so. */
void spawnfd_wait_apart(struct spawnfd_line *line, struct spawnfd_page *page, int socket,
			uint64_t private_bytes);

#endif
