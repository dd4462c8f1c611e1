/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The authority of a parked process: its credentials, as it reports them to the owner. */
#pragma once

#include <stddef.h>

#include "protocol.h"

/* The size of the report's buffer in bytes. It is enough for 1,000 supplementary groups. */
#define SPAWNFD_AUTHORITY_SIZE (12 << 10)

/*
 * Writes the calling thread's /proc status and its security label to `text`, each with a NUL, and
 * sets reply->securebits. If a file cannot be read, its string is empty. Returns the bytes written,
 * or 0 if they are more than `size`.
 */
size_t spawnfd_report_authority(char *text, size_t size, struct spawnfd_reply *reply);
