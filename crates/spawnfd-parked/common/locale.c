/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program's first setlocale(3) opens and maps a dozen files: 0.3 ms, more than a small one takes
 * to start. libc keeps what it has once loaded, by name; so what the environment asks for is loaded
 * ahead here, and no more than loaded: the program is in the locale "C" until it asks itself, by
 * the variables that it is given (docs/adr/0019).
 */
#define _GNU_SOURCE
#include "internal.h"

#include <dirent.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Where libc has its locales. */
static const char directory[] = "/usr/lib/locale";

/* Notes which of them `name` may stand for, C.utf8 for C.UTF-8: what is not in there may come. */
static void note_places(const char *name)
{
	size_t language = strcspn(name, "_.@");
	DIR *list = opendir(directory);
	struct dirent *entry;
	char path[PATH_MAX];

	while (list && (entry = readdir(list)))
		if (language && !strncmp(entry->d_name, name, language) &&
		    snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name) <
			    (int)sizeof(path))
			spawnfd_note_file(path);
	if (list)
		closedir(list);
}

/* Files of up to so many bytes become memory. */
enum { SMALL = 16 << 10 };

/*
 * A mapping costs a forked child more, at its birth and at its end, than its pages do, and each
 * page of a file is a page fault in each child. So a small file that has been mapped becomes memory
 * with its contents, in the same place: neighbours become one mapping.
 */
static void copy_small_file(const char *line)
{
	static char contents[SMALL];
	char *end, *start = (char *)strtoul(line, &end, 16);
	size_t length = strtoul(end + 1, &end, 16) - (unsigned long)start;

	if (!spawnfd_note_file_of(line) || length > SMALL || strncmp(end, " r--p ", 6) != 0)
		return;
	memcpy(contents, start, length);
	if (mmap(start, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0) != start)
		spawnfd_cannot_park("memory");
	memcpy(start, contents, length);
	mprotect(start, length, PROT_READ);
}

void spawnfd_load_locale(void)
{
	locale_t loaded = (locale_t)0;

	for (char **at = environ; *at; at++)
		if (!strncmp(*at, "LOCPATH=", 8))
			return;
	if (!spawnfd_imports("setlocale"))
		return;
	spawnfd_note_mapped();
	/* One by one: what is not there is no reason to go without the others. */
	for (int category = LC_CTYPE; category <= LC_IDENTIFICATION; category++) {
		locale_t with_it =
			category == LC_ALL ? (locale_t)0 : newlocale(1 << category, "", loaded);

		if (with_it)
			loaded = with_it;
	}
	spawnfd_each_line("/proc/self/maps", copy_small_file);
	spawnfd_note_file(directory);
	spawnfd_note_file("/usr/share/locale/locale.alias");
	for (char **at = environ; *at; at++)
		if (!strncmp(*at, "LANG=", 5) || (!strncmp(*at, "LC_", 3) && strchr(*at, '=')))
			note_places(strchr(*at, '=') + 1);
}
