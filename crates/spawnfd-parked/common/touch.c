/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a program touches first, touched ahead: its own text and data, and where its heap goes on.
 * Each page of that would be a page fault of its start (adr/0020); of the libraries the loader has
 * touched nearly all that small programs use.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <link.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* linux/mman.h, Linux 5.14; without them it goes on as ever. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* Programs with more of it than this use but a part. */
enum { MOST_TEXT = 4 << 20, MOST_DATA = 256 << 10, HEAP = 96 << 10 };

static void populate(uintptr_t start, uintptr_t end, int how)
{
	start &= ~(uintptr_t)4095;
	end = (end + 4095) & ~(uintptr_t)4095;
	if (start < end && end - start <= (how == MADV_POPULATE_READ ? MOST_TEXT : MOST_DATA))
		madvise((void *)start, end - start, how);
}

static int touch(struct dl_phdr_info *object, size_t size, void *unused)
{
	uintptr_t base = object->dlpi_addr, relro = 0;

	(void)size;
	(void)unused;
	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_GNU_RELRO)
			relro = base + object->dlpi_phdr[i].p_vaddr + object->dlpi_phdr[i].p_memsz;
	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		uintptr_t start = base + part->p_vaddr, end = start + part->p_memsz;

		if (part->p_type != PT_LOAD)
			continue;
		if (!(part->p_flags & PF_W))
			populate(start, end, MADV_POPULATE_READ);
		else
			/* What is written once only, by the loader, is in memory already. */
			populate(relro > start ? relro : start, end, MADV_POPULATE_WRITE);
	}
	/* The first one is the program. */
	return 1;
}

void spawnfd_touch_program(void)
{
	char *end = sbrk(0);

	dl_iterate_phdr(touch, NULL);
	if ((uintptr_t)end - spawnfd_heap() >= HEAP)
		populate(spawnfd_heap(), spawnfd_heap() + HEAP, MADV_POPULATE_WRITE);
}
