/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Unmaps pages of files before the process parks. Each mapped page costs time at exit. */
#include "node.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LARGE = 256 << 10 };

/*
 * Makes fork() copy the page tables of a private file mapping. The kernel copies them only if the
 * parent has a private page in the mapping. Otherwise each page of the mapping is a page fault in
 * the child. A write through /proc/self/mem makes a private page even in a read-only mapping. This
 * write does not change the contents.
 */
static void make_private_page(int memory, uintptr_t begin)
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
			/* All pages are unmodified, so unmap them. The next access maps them again.
			 */
			madvise((void *)begin, end - begin, MADV_DONTNEED);
			if (memory >= 0 && end - begin >= LARGE)
				make_private_page(memory, begin);
		}
	}
	if (list)
		fclose(list);
	if (memory >= 0)
		close(memory);
}
