/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Populates the pages that a program uses first: its text, its data and the beginning of its heap.
 * Otherwise each of these pages is a page fault when the program starts (decision record 0020).
 * Libraries are left out, because ld.so has already touched nearly all of their pages that small
 * programs use.
 */
#include "internal.h"

#include <link.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* linux/mman.h defines these values since Linux 5.14. An older kernel refuses them, and the pages
 * stay unpopulated. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Larger segments are not populated, because programs use only a part of them. */
enum { MAX_TEXT = 4 << 20, MAX_DATA = 256 << 10, HEAP = 96 << 10 };

static void populate(uintptr_t start, uintptr_t end, int advice)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

	start &= ~(page - 1);
	end = (end + page - 1) & ~(page - 1);
	if (start < end && end - start <= (advice == MADV_POPULATE_READ ? MAX_TEXT : MAX_DATA))
		madvise((void *)start, end - start, advice);
}

static int populate_segments(struct dl_phdr_info *object, size_t size, void *unused)
{
	uintptr_t base = object->dlpi_addr, relro = 0;

	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_GNU_RELRO)
			relro = base + object->dlpi_phdr[i].p_vaddr + object->dlpi_phdr[i].p_memsz;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
		uintptr_t start = base + segment->p_vaddr, end = start + segment->p_memsz;

		if (segment->p_type != PT_LOAD)
			continue;
		if (!(segment->p_flags & PF_W))
			populate(start, end, MADV_POPULATE_READ);
		else
			/* ld.so has already written to the pages of PT_GNU_RELRO. */
			populate(relro > start ? relro : start, end, MADV_POPULATE_WRITE);
	}
	/* Stop after the first object, which is the executable. */
	return 1;
}

void spawnfd_prefault_program(void)
{
	char *end = sbrk(0);

	dl_iterate_phdr(populate_segments, NULL);
	if ((uintptr_t)end - spawnfd_heap_start() >= HEAP)
		populate(spawnfd_heap_start(), spawnfd_heap_start() + HEAP, MADV_POPULATE_WRITE);
}
