/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The connection between a parked process and its owner: decision record 0013. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

struct spawnfd_connection {
	/* This process's end of the socket pair. */
	int socket;
	/* A pidfd of the owner process. */
	int owner_pidfd;
	struct spawnfd_page *page;
};

/* Sends a reply to the owner. The reply carries `pidfd`, unless `pidfd` is -1. */
void spawnfd_send_reply(const struct spawnfd_connection *connection, struct spawnfd_reply head,
			const char *text, size_t length, int pidfd);

/*
 * Waits for a message and receives it with its descriptors. Returns the length of the message, or 0
 * if the kernel truncated it. If the owner has died, this process exits.
 */
size_t spawnfd_receive(const struct spawnfd_connection *connection, char *message, int *sources,
		       size_t *count);

/* Waits until the owner confirms the request, then marks it as taken. False if the owner withdraws
 * the request. If the owner has died, this process exits. */
bool spawnfd_wait_for_commit(const struct spawnfd_connection *connection, uint32_t serial);

/* Wakes an owner that waits on the futex in the page. */
void spawnfd_wake_owner(const struct spawnfd_connection *connection);

/* Sets the handshake to SPAWNFD_HANDSHAKE_BECAME and wakes the owner. */
void spawnfd_report_became(const struct spawnfd_connection *connection);

/* Records in the page which stage begins. The owner reads it if a signal kills this process. */
void spawnfd_begin(struct spawnfd_page *page, enum spawnfd_stage stage, uint32_t index);

/* Reports to the owner that the stage of the last spawnfd_begin() failed, and exits. */
_Noreturn void spawnfd_fail(const struct spawnfd_connection *connection, int error);

/*
 * Refuses a request of which no step has run. The process then waits for the next request. If the
 * owner has already confirmed this one, the process reports a failure and exits.
 */
void spawnfd_refuse(const struct spawnfd_connection *connection);

/* Maps the shared page that `file` refers to; NULL on failure. */
struct spawnfd_page *spawnfd_map_page(int file);

/* Excludes the page from forked children (MADV_DONTFORK); false on failure. */
bool spawnfd_exclude_page_from_forks(const struct spawnfd_connection *connection);

/* Switches a forked child to the child's own socket and page. Then reports the child to the owner.
 */
void spawnfd_use_own_connection(struct spawnfd_connection *connection, struct spawnfd_page *page,
				int socket, uint64_t private_bytes);
