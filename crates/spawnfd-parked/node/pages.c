/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which pages of files stay mapped while a process is parked: each costs time when it ends. */
#define _GNU_SOURCE
#include "node.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LARGE = 256 << 10 };

/*
 * A fork has the pages of a file mapped from the beginning only where its parent has a page of its
 * own among them: else it meets them one by one. So here is one, written as it was, though nobody
 * may write there.
 */
static void have_copied(int memory, uintptr_t begin)
{
	(void)!pwrite(memory, (const void *)begin, 1, (off_t)begin);
}

void spawnfd_node_unmap_files(void)
{
	FILE *list = fopen("/proc/self/smaps", "re");
	int memory = spawnfd_in_fork_mode() ? open("/proc/self/mem", O_RDWR | O_CLOEXEC) : -1;
	char line[4400], access[5];
	uintptr_t begin = 0, end = 0, first, last;
	unsigned long kib;
	bool of_file = false;

	while (list && fgets(line, sizeof(line), list)) {
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &first, &last, access) == 3) {
			begin = first;
			end = last;
			of_file = access[1] == '-' && access[3] == 'p' && strchr(line, '/');
		} else if (sscanf(line, "Anonymous: %lu", &kib) == 1 && of_file && !kib) {
			/* What is there is the file's, and comes back when it is looked at. */
			madvise((void *)begin, end - begin, MADV_DONTNEED);
			if (memory >= 0 && end - begin >= LARGE)
				have_copied(memory, begin);
		}
	}
	if (list)
		fclose(list);
	if (memory >= 0)
		close(memory);
}
