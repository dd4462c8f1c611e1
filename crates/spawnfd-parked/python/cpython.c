/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Finds the symbols and the configuration of CPython in this process. */
#include "cpython.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

struct symbols py;
const struct layout *layout;
char *config;
struct wide_list *original_argv;

static bool find_symbols(void)
{
#define FIND(result, name, arguments)                                                              \
	py.name = (__typeof__(py.name))dlsym(RTLD_DEFAULT, #name);                                 \
	if (!py.name)                                                                              \
		return false;
	SYMBOLS(FIND)
	return true;
}

/* The offsets of PyConfig's fields in each version, from cpython/initconfig.h. */
static const struct layout layouts[] = {
	{8, 96, 0, 328},     {9, 96, 0, 336},	  {10, 104, 88, 352},  {11, 120, 104, 384},
	{12, 128, 112, 392}, {13, 128, 112, 400}, {14, 128, 112, 408},
};
/* The offset of PyInterpreterState.config in 3.8, the only version without _Py_GetConfig. */
#define CONFIG_IN_3_8 176

const char *spawnfd_python_resolve(void)
{
	bool found = sizeof(void *) == 8 && find_symbols();
	int minor;

	/* The configuration of a free-threaded build has one more field. */
	if (found && strstr(py.Py_GetVersion(), "free-threading"))
		return "free-threaded CPython";
	found = found && sscanf(py.Py_GetVersion(), "3.%d.", &minor) == 1;
	for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++)
		if (found && layouts[i].minor == minor)
			layout = &layouts[i];
	return layout ? NULL : "not CPython 3.8 to 3.14";
}

/* The address of the function Py_GetArgcArgv(), and the list that the function returns. */
struct result {
	const char *function;
	struct wide_list list;
};

static int search_object(struct dl_phdr_info *object, size_t size, void *wanted)
{
	const struct result *result = wanted;
	bool has_function = false;

	for (int i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
		const char *begin = (const char *)object->dlpi_addr + segment->p_vaddr;

		has_function |= segment->p_type == PT_LOAD && result->function >= begin &&
				result->function < begin + segment->p_memsz;
	}
	for (int i = 0; has_function && i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
		struct wide_list *candidate =
			(void *)((object->dlpi_addr + segment->p_vaddr + 7) & ~7ul);
		char *end = (char *)object->dlpi_addr + segment->p_vaddr + segment->p_memsz;

		if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_W))
			continue;
		/* The list may begin at any word. */
		for (; (char *)(candidate + 1) <= end;
		     candidate = (void *)((char *)candidate + sizeof(char *)))
			if (candidate->items == result->list.items &&
			    candidate->length == result->list.length)
				original_argv = candidate;
	}
	return has_function;
}

/*
 * Finds the list that Py_GetArgcArgv() returns. Modules such as setproctitle find the address of
 * the arguments by this function. The list is in CPython's data segment, at another offset in each
 * version from 3.8 to 3.14.
 */
static bool find_original_argv_list(int argc)
{
	void (*get)(int *, wchar_t ***) = (__typeof__(get))dlsym(RTLD_DEFAULT, "Py_GetArgcArgv");
	struct result result = {.function = (const char *)get};
	int count = 0;

	/* If CPython does not export the function, no program can call it. Do not replace the list
	 * in a debug build, because a debug build frees the list with another allocator. */
	if (!get || dlsym(RTLD_DEFAULT, "_Py_NegativeRefcount"))
		return true;
	get(&count, &result.list.items);
	result.list.length = count;
	if (count != argc + 2 || wcscmp(result.list.items[argc + 1], L"" MARKER))
		return false;
	dl_iterate_phdr(search_object, &result);
	return original_argv != NULL;
}

bool spawnfd_python_find_config(int argc)
{
	const void *(*get_config)(void) =
		(__typeof__(get_config))dlsym(RTLD_DEFAULT, "_Py_GetConfig");
	char *(*get_state)(void) =
		(__typeof__(get_state))dlsym(RTLD_DEFAULT, "_PyInterpreterState_Get");
	const struct wide_list *argv;
	wchar_t **run;

	if (get_config)
		config = (char *)get_config();
	else if (layout->minor == 8 && get_state)
		config = get_state() + CONFIG_IN_3_8;
	else
		return false;
	argv = field(config, layout->argv);
	run = field(config, layout->run_command);
	if (!find_original_argv_list(argc) || argv->length != 1 || wcscmp(argv->items[0], L"-c") ||
	    !run[0] || wcscmp(run[0], L"" MARKER "\n") || run[1] || run[2])
		return false;
	argv = field(config, layout->orig_argv);
	return !layout->orig_argv ||
	       (argv->length == argc + 2 && !wcscmp(argv->items[argc + 1], L"" MARKER));
}
