/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the objects that are loaded, the executable first of all, say of themselves. */
#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

/* The dynamic strings of one, and the entry with which `tag` is to be found in them, if any. */
struct names {
	const char *strings;
	size_t length;
	const ElfW(Dyn) * entry;
};

static struct names names_of(const struct dl_phdr_info *object, ElfW(Sxword) tag)
{
	struct names names = {0};
	const ElfW(Dyn) *entry = NULL;

	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
			entry = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_STRTAB)
			names.strings = (const char *)entry->d_un.d_ptr;
		if (entry->d_tag == DT_STRSZ)
			names.length = entry->d_un.d_val;
		if (entry->d_tag == tag)
			names.entry = entry;
	}
	return names;
}

static int imports(struct dl_phdr_info *object, size_t size, void *name)
{
	struct names names = names_of(object, DT_NULL);

	(void)size;
	/* The executable is the first of all, and the only one that is looked at. */
	return names.strings && memmem(names.strings, names.length, name, strlen(name) + 1) ? 1
											    : -1;
}

bool spawnfd_imports(const char *name)
{
	return dl_iterate_phdr(imports, (void *)name) == 1;
}

static int has_preinit(struct dl_phdr_info *object, size_t size, void *unused)
{
	struct names names = names_of(object, DT_PREINIT_ARRAYSZ);

	(void)size;
	(void)unused;
	/* Of the executable alone: ld.so ignores that of libraries. */
	return names.entry && names.entry->d_un.d_val ? 1 : -1;
}

bool spawnfd_has_preinit(void)
{
	return dl_iterate_phdr(has_preinit, NULL) == 1;
}

/* Whether a list of directories has one that depends on the working directory. */
static bool is_from_here(const char *list)
{
	for (;; list++) {
		if (*list != '/' && strncmp(list, "$ORIGIN", 7) != 0 &&
		    strncmp(list, "${ORIGIN}", 9) != 0)
			return true;
		list = strchr(list, ':');
		if (!list)
			return false;
	}
}

static int searches_from_here(struct dl_phdr_info *object, size_t size, void *unused)
{
	static const ElfW(Sxword) tags[] = {DT_RPATH, DT_RUNPATH};

	(void)size;
	(void)unused;
	/* The executable has no name here. The kernel's own object has no path, and searches
	 * nothing: its strings lie elsewhere than it says. */
	if (*object->dlpi_name && !strchr(object->dlpi_name, '/'))
		return 0;
	for (int i = 0; i < 2; i++) {
		struct names names = names_of(object, tags[i]);

		if (names.entry && is_from_here(names.strings + names.entry->d_un.d_val))
			return 1;
	}
	return 0;
}

bool spawnfd_searches_from_here(void)
{
	return dl_iterate_phdr(searches_from_here, NULL) != 0;
}

/* The directories in which the executable's libraries are searched. */
static union {
	Dl_serinfo list;
	char room[32 << 10];
} searched;

static int note_names(struct dl_phdr_info *object, size_t size, void *unused)
{
	const char *path = object->dlpi_name, *name = strrchr(path, '/');
	char other[PATH_MAX];

	(void)size;
	(void)unused;
	/* This object has been found by its descriptor. */
	if (*path != '/' || !strncmp(path, "/proc/", 6))
		return 0;
	spawnfd_note_file(path);
	for (unsigned i = 0; i < searched.list.dls_cnt; i++) {
		const Dl_serpath *place = &searched.list.dls_serpath[i];
		size_t length = strlen(place->dls_name);

		/* The system's own come last, and are told of by the loader's cache. */
		if (place->dls_flags & LA_SER_DEFAULT)
			continue;
		if (length == (size_t)(name - path) && !strncmp(place->dls_name, path, length))
			break;
		/* The doubled slash says that it need not be there. */
		if (snprintf(other, sizeof(other), "%s/%s", place->dls_name, name) < PATH_MAX)
			spawnfd_note_file(other);
	}
	return 0;
}

void spawnfd_note_searched(void)
{
	void *executable = dlopen(NULL, RTLD_LAZY);
	Dl_serinfo needed;

	if (executable && !dlinfo(executable, RTLD_DI_SERINFOSIZE, &needed) &&
	    needed.dls_size <= sizeof(searched)) {
		searched.list = needed;
		if (dlinfo(executable, RTLD_DI_SERINFO, &searched.list))
			searched.list.dls_cnt = 0;
	}
	dl_iterate_phdr(note_names, NULL);
}
