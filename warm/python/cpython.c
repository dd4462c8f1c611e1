/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Finds CPython in the process. */
#define _GNU_SOURCE
#include "cpython.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct functions py;
const struct layout *layout;
char *config;

static bool find_functions(void)
{
#define FIND(result, name, arguments)                                                              \
	py.name = (__typeof__(py.name))dlsym(RTLD_DEFAULT, #name);                                 \
	if (!py.name)                                                                              \
		return false;
	FUNCTIONS(FIND)
	return true;
}

/* offsetof() in cpython/initconfig.h of each version. */
static const struct layout layouts[] = {
	{8, 96, 0, 328, 356},	  {9, 96, 0, 336, 364},	    {10, 104, 88, 352, 380},
	{11, 120, 104, 384, 412}, {12, 128, 112, 392, 420}, {13, 128, 112, 400, 436},
};
/* PyInterpreterState.config of 3.8, the one version without _Py_GetConfig. */
#define CONFIG_IN_3_8 176

bool spawnfd_python_find(void)
{
	int minor;

	if (sizeof(void *) != 8 || !find_functions() ||
	    sscanf(py.Py_GetVersion(), "3.%d.", &minor) != 1)
		return false;
	/* Its configuration has a field more. */
	if (strstr(py.Py_GetVersion(), "free-threading"))
		return false;
	for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++)
		if (layouts[i].minor == minor)
			layout = &layouts[i];
	return layout != NULL;
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
	if (argv->length != 1 || wcscmp(argv->items[0], L"-c") || !run[0] ||
	    wcscmp(run[0], L"" MARKER "\n") || run[1] || run[2] ||
	    *(int *)field(config, layout->init_main) != 0)
		return false;
	argv = field(config, layout->orig_argv);
	return !layout->orig_argv ||
	       (argv->length == argc + 2 && !wcscmp(argv->items[argc + 1], L"" MARKER));
}
