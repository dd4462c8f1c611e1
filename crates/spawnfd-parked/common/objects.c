/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reads the dynamic sections of the loaded objects: the executable and its libraries. */
#include "internal.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

/* The dynamic string table of an object, and the object's dynamic entry for one tag or NULL. */
struct dynamic {
	const char *strings;
	size_t length;
	const ElfW(Dyn) * entry;
};

static struct dynamic read_dynamic(const struct dl_phdr_info *object, ElfW(Sxword) tag)
{
	struct dynamic dynamic = {0};
	const ElfW(Dyn) *entry = NULL;

	for (int i = 0; i < object->dlpi_phnum; i++)
		if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
			entry = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		if (entry->d_tag == DT_STRTAB)
			dynamic.strings = (const char *)entry->d_un.d_ptr;
		if (entry->d_tag == DT_STRSZ)
			dynamic.length = entry->d_un.d_val;
		if (entry->d_tag == tag)
			dynamic.entry = entry;
	}
	return dynamic;
}

static int read_executable(struct dl_phdr_info *object, size_t size, void *dynamic)
{
	*(struct dynamic *)dynamic = read_dynamic(object, DT_PREINIT_ARRAYSZ);
	/* End the iteration at the first object, which is the executable. */
	return 1;
}

bool spawnfd_imports(const char *name)
{
	struct dynamic dynamic = {0};

	dl_iterate_phdr(read_executable, &dynamic);
	return dynamic.strings && memmem(dynamic.strings, dynamic.length, name, strlen(name) + 1);
}

bool spawnfd_has_preinit(void)
{
	struct dynamic dynamic = {0};

	/* Read only the executable, because ld.so ignores the DT_PREINIT_ARRAY of libraries. */
	dl_iterate_phdr(read_executable, &dynamic);
	return dynamic.entry && dynamic.entry->d_un.d_val;
}

bool spawnfd_has_relative_part(const char *list, bool has_origin)
{
	for (;; list++) {
		if (*list != '/' && !(has_origin && (!strncmp(list, "$ORIGIN", 7) ||
						     !strncmp(list, "${ORIGIN}", 9))))
			return true;
		list = strchr(list, ':');
		if (!list)
			return false;
	}
}

static int has_relative_path(struct dl_phdr_info *object, size_t size, void *unused)
{
	static const ElfW(Sxword) tags[] = {DT_RPATH, DT_RUNPATH};

	/* Skip the vDSO: its name is not empty, as the executable's is, and has no slash. The vDSO
	 * searches no libraries, and its DT_STRTAB is not relocated, so its strings must not be
	 * read. */
	if (*object->dlpi_name && !strchr(object->dlpi_name, '/'))
		return 0;
	for (int i = 0; i < 2; i++) {
		struct dynamic dynamic = read_dynamic(object, tags[i]);

		if (dynamic.entry &&
		    spawnfd_has_relative_part(dynamic.strings + dynamic.entry->d_un.d_val, true))
			return 1;
	}
	return 0;
}

bool spawnfd_has_relative_library_path(void)
{
	return dl_iterate_phdr(has_relative_path, NULL) != 0;
}

/* The directories in which ld.so searches for the executable's libraries. */
static union {
	Dl_serinfo list;
	char buffer[32 << 10];
} search_path;

static int record_paths(struct dl_phdr_info *object, size_t size, void *unused)
{
	const char *path = object->dlpi_name, *name = strrchr(path, '/');
	char candidate[PATH_MAX];

	/* Skip this preloaded object itself. ld.so has loaded it by its path in /proc/self/fd. */
	if (*path != '/' || !strncmp(path, "/proc/", 6))
		return 0;
	spawnfd_record_file(path);
	for (unsigned i = 0; i < search_path.list.dls_cnt; i++) {
		const Dl_serpath *directory = &search_path.list.dls_serpath[i];
		size_t length = strlen(directory->dls_name);

		/* Skip the system directories, which come last. For these the owner watches
		 * ld.so.cache. */
		if (directory->dls_flags & LA_SER_DEFAULT)
			continue;
		if (length == (size_t)(name - path) && !strncmp(directory->dls_name, path, length))
			break;
		/* `name` begins with a slash. The double slash tells the owner that the file need
		 * not exist. */
		if (snprintf(candidate, sizeof(candidate), "%s/%s", directory->dls_name, name) <
		    PATH_MAX)
			spawnfd_record_file(candidate);
	}
	return 0;
}

void spawnfd_record_library_paths(void)
{
	void *executable = dlopen(NULL, RTLD_LAZY);
	Dl_serinfo needed;

	if (executable && !dlinfo(executable, RTLD_DI_SERINFOSIZE, &needed) &&
	    needed.dls_size <= sizeof(search_path)) {
		search_path.list = needed;
		if (dlinfo(executable, RTLD_DI_SERINFO, &search_path.list))
			search_path.list.dls_cnt = 0;
	}
	dl_iterate_phdr(record_paths, NULL);
}
