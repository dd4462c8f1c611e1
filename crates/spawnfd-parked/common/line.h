/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The connection between a parked process and its owner: docs/adr/0013. */
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

/* Sends a reply to the owner, with `pidfd` unless that is -1. */
void spawnfd_say(const struct spawnfd_line *line, struct spawnfd_reply head, const char *text,
		 size_t length, int pidfd);

/*
 * * Waits for a message and receives it with its descriptors. Returns its length, or 0 if the
 * message was truncated. If the owner has died, the process exits.
 */
size_t spawnfd_receive(const struct spawnfd_line *line, char *message, int *sources, size_t *count);

/* Waits until the owner confirms the request, and takes it. False if the owner withdraws it. */
bool spawnfd_is_to_go(const struct spawnfd_line *line, uint32_t serial);

/* Wakes an owner that waits on the page. */
void spawnfd_wake(const struct spawnfd_line *line);

/* Reports to the owner that this process has performed the request. */
void spawnfd_became(const struct spawnfd_line *line);

/*
 * Reports a failed step and exits. SPAWNFD_NO_STEP: the failure is in none of the caller's steps.
 */
_Noreturn void spawnfd_fail(const struct spawnfd_line *line, uint32_t index, int error);

/*
 * * Refuses a request of which no step has run; the process then waits for the next one. If the
 * owner has already confirmed the request, the process reports a failure and exits.
 */
void spawnfd_refuse(const struct spawnfd_line *line);

/* Maps a page; NULL on failure. */
struct spawnfd_page *spawnfd_map(int file);

/* Excludes the page from forked children (MADV_DONTFORK); false on failure. */
bool spawnfd_keep_line(const struct spawnfd_line *line);

/* In a forked child: switches to a socket and page of its own, and reports to the owner. */
void spawnfd_wait_apart(struct spawnfd_line *line, struct spawnfd_page *page, int socket,
			uint64_t private_bytes);

#endif
