/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Loads the environment's locale before main(). A program's first setlocale(3) opens and maps a
 * dozen files, which takes 0.3 ms. All of /bin/true takes 0.44 ms. libc keeps loaded locales by
 * name, so a later setlocale(3) finds them in memory. The current locale stays "C" until the
 * program itself calls setlocale(3) with the environment of its request (decision record 0019).
 */
#include "internal.h"

#include <dirent.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* libc's directory of locales. */
static const char directory[] = "/usr/lib/locale";

/* Records every directory that `name` may refer to, such as C.utf8 for C.UTF-8. The caller records
 * /usr/lib/locale itself, so the owner notices a locale that is installed later. */
static void record_candidates(const char *name)
{
	size_t language = strcspn(name, "_.@");
	DIR *locales = opendir(directory);
	struct dirent *entry;
	char path[PATH_MAX];

	while (locales && (entry = readdir(locales)))
		if (language && !strncmp(entry->d_name, name, language) &&
		    snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name) <
			    (int)sizeof(path))
			spawnfd_record_file(path);
	if (locales)
		closedir(locales);
}

/* The size of the largest file that this code copies to memory, in bytes. */
enum { MAX_COPIED = 16 << 10 };

/*
 * Replaces the mapping of a small file by anonymous memory with the same contents at the same
 * address. For each mapping, a forked child spends time at fork and at exit, more than for the
 * pages of the mapping. Each page of a file is also a page fault in each child. The kernel merges
 * adjacent anonymous mappings, so fewer mappings remain.
 */
static void copy_small_file(const char *line)
{
	static char contents[MAX_COPIED];
	char *end, *start = (char *)strtoul(line, &end, 16);
	size_t length = strtoul(end + 1, &end, 16) - (unsigned long)start;

	if (!spawnfd_record_mapping(line) || length > MAX_COPIED || strncmp(end, " r--p ", 6) != 0)
		return;
	memcpy(contents, start, length);
	if (mmap(start, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0) != start)
		spawnfd_cannot_park("memory");
	memcpy(start, contents, length);
	mprotect(start, length, PROT_READ);
}

void spawnfd_preload_locale(void)
{
	locale_t loaded = (locale_t)0;

	if (spawnfd_value_in(environ, "LOCPATH", 7) || !spawnfd_imports("setlocale"))
		return;
	spawnfd_record_mappings();
	/* Load each category on its own, so that a missing one does not prevent the others. */
	for (int category = LC_CTYPE; category <= LC_IDENTIFICATION; category++) {
		locale_t extended =
			category == LC_ALL ? (locale_t)0 : newlocale(1 << category, "", loaded);

		if (extended)
			loaded = extended;
	}
	spawnfd_each_line("/proc/self/maps", copy_small_file);
	spawnfd_record_file(directory);
	spawnfd_record_file("/usr/share/locale/locale.alias");
	for (char **entry = environ; *entry; entry++)
		if (!strncmp(*entry, "LANG=", 5) ||
		    (!strncmp(*entry, "LC_", 3) && strchr(*entry, '=')))
			record_candidates(strchr(*entry, '=') + 1);
}
