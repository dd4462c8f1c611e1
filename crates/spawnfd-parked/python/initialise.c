/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* CPython's initialisation, up to where the process parks. */
#define _GNU_SOURCE
#include "finish.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Taken out of the environment: modules to be imported ahead, with commas between. */

static void check(struct status status)
{
	if (status.type == STATUS_EXIT)
		spawnfd_cannot_park("flags with which the interpreter exits");
	if (status.type == STATUS_ERROR)
		spawnfd_cannot_park(status.message ? status.message
						   : "the interpreter's initialisation failed");
}

static object *checked(object *result, const char *what)
{
	if (!result)
		spawnfd_cannot_park(what);
	return result;
}

void spawnfd_python_read_dispositions(struct sigaction *actions)
{
	for (int number = 1; number <= 64; number++)
		sigaction(number, NULL, &actions[number]);
}

/* The environment before. Initialisation sets LC_CTYPE (PEP 538), .pth files may set anything. */
static char **first_environ;

const char *spawnfd_python_value_in(char **environment, const char *name, size_t length)
{
	for (; *environment; environment++)
		if (!strncmp(*environment, name, length) && (*environment)[length] == '=')
			return *environment + length + 1;
	return NULL;
}

static void note_change(struct startup *it, const char *entry, const char *value)
{
	struct change *change = &it->changes[it->change_count];

	if (it->change_count++ == sizeof(it->changes) / sizeof(*it->changes))
		spawnfd_cannot_park("start-up code changes much of the environment");
	change->name = strndup(entry, strcspn(entry, "="));
	change->value = value ? strdup(value) : NULL;
	spawnfd_record_variable(change->name);
}

static char **copy_environ(void)
{
	size_t count = 0;
	char **copy;

	while (environ[count])
		count++;
	copy = calloc(count + 1, sizeof(char *));
	for (size_t i = 0; copy && i < count; i++)
		copy[i] = strdup(environ[i]);
	return copy;
}

static void compare_environ(struct startup *it)
{
	for (char **at = environ; *at; at++) {
		size_t length = strcspn(*at, "=");
		const char *old = spawnfd_python_value_in(first_environ, *at, length);

		if ((*at)[length] && (!old || strcmp(old, *at + length + 1)))
			note_change(it, *at, *at + length + 1);
	}
	for (char **at = first_environ; *at; at++) {
		size_t length = strcspn(*at, "=");

		if ((*at)[length] && !spawnfd_python_value_in(environ, *at, length))
			note_change(it, *at, NULL);
		free(*at);
	}
	free(first_environ);
}

/*
 * What is said on 1 and 2 before the program starts is the program's, and would be lost. A pipe, as
 * most programs will have: then the streams that are made over it can stay.
 */
static int hearing, outputs[2];

static void begin_to_hear(struct startup *it)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		spawnfd_cannot_park("no pipe for what start-up code says");
	hearing = ends[0];
	for (int i = 0; i < 2; i++) {
		outputs[i] = fcntl(1 + i, F_DUPFD_CLOEXEC, 3);
		if (outputs[i] < 0 || dup3(ends[1], 1 + i, 0) < 0)
			spawnfd_cannot_park("no pipe for what start-up code says");
	}
	close(ends[1]);
	for (int i = 0; i < 3; i++)
		fstat(i, &it->streams[i]);
}

static void end_to_hear(void)
{
	char said[160] = "start-up code writes: ";
	size_t length = strlen(said);
	ssize_t heard = read(hearing, said + length, sizeof(said) - 1 - length);

	for (int i = 0; i < 2; i++) {
		dup3(outputs[i], 1 + i, 0);
		close(outputs[i]);
	}
	close(hearing);
	if (heard > 0) {
		said[length + (size_t)heard] = 0;
		spawnfd_cannot_park(said);
	}
}

/* Calls `note` with each line of `text`, which it spoils. */
static void each_line(char *text, void (*note)(const char *))
{
	for (char *save, *line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save))
		note(line);
}

static bool has_relative_part(const char *list)
{
	for (;; list++) {
		if (*list != '/')
			return true;
		list += strcspn(list, ":");
		if (!*list)
			return false;
	}
}

/* What depends on where the process stands, or that no program would have after these arguments. */
static void check_arguments(int argc, char **argv)
{
	const char *path = getenv("PATH");
	/* Initialisation itself writes there. */
	const char *bytecode = spawnfd_python_value_in(environ, "PYTHONPYCACHEPREFIX", 19);

	for (int i = 1; i < argc; i++) {
		const char *option = strstr(argv[i], "pycache_prefix=");

		if (!strcmp(argv[i], "-") || !strcmp(argv[i], "--"))
			spawnfd_cannot_park("more than flags");
		if (option)
			bytecode = strchr(option, '=') + 1;
	}
	if (bytecode && *bytecode && *bytecode != '/')
		spawnfd_cannot_park("a relative path to bytecode");
	if (strchr(argv[0], '/') ? argv[0][0] != '/' : !path || has_relative_part(path))
		spawnfd_cannot_park("a relative path to the interpreter");
}

/* The source of adapter.py, which the assembler finds by -I. */
extern const char spawnfd_python_adapter[];
__asm__(".pushsection .rodata\n"
	".hidden spawnfd_python_adapter\n"
	".globl spawnfd_python_adapter\n"
	"spawnfd_python_adapter: .incbin \"adapter.py\"\n"
	".byte 0\n"
	".popsection");

static object *call_adapter(struct startup *it, const char *name)
{
	object *function = checked(py.PyDict_GetItemString(it->namespace, name), "adapter");

	return checked(py.PyObject_CallFunction(function, NULL), "adapter");
}

static void load_adapter(struct startup *it)
{
	object *code =
		checked(py.Py_CompileString(spawnfd_python_adapter, "<spawnfd>", 257), "adapter");

	it->namespace = checked(py.PyDict_New(), "adapter");
	py.PyDict_SetItemString(it->namespace, "__builtins__", py.PyEval_GetBuiltins());
	py.Py_DecRef(checked(py.PyEval_EvalCode(code, it->namespace, it->namespace), "adapter"));
	py.Py_DecRef(code);
}

static void import_ahead(char *names)
{
	for (char *save, *name = strtok_r(names, ",", &save); name;
	     name = strtok_r(NULL, ",", &save)) {
		object *module = py.PyImport_ImportModule(name);
		char why[200];

		if (!module) {
			snprintf(why, sizeof(why), "cannot import %s", name);
			spawnfd_cannot_park(why);
		}
		py.Py_DecRef(module);
	}
}

/* As Py_BytesMain() does, with a stop halfway. */
static void initialise(struct startup *it, int argc, char **argv, char *preload)
{
	/* libc reads these past getenv(). */
	static const char *const early[] = {"LC_ALL", "LC_CTYPE", "LANG", "LOCPATH", "TZDIR"};
	_Alignas(16) char own[2048] = {0};
	char **with_command = calloc((size_t)argc + 3, sizeof(char *));
	object *settled;
	char *why, *names, *files, *missing;

	memcpy(with_command, argv, (size_t)argc * sizeof(char *));
	with_command[argc] = "-c";
	with_command[argc + 1] = MARKER;
	for (size_t i = 0; i < sizeof(early) / sizeof(*early); i++)
		spawnfd_record_variable(early[i]);
	py.PyConfig_InitPythonConfig(own);
	*(int *)field(own, layout->init_main) = 0;
	check(py.PyConfig_SetBytesArgv(own, argc + 2, with_command));
	check(py.Py_InitializeFromConfig(own));
	py.PyConfig_Clear(own);
	free(with_command);
	if (!spawnfd_python_find_config(argc))
		spawnfd_cannot_park("a build of CPython that is not known");
	load_adapter(it);
	py.Py_DecRef(call_adapter(it, "record"));
	spawnfd_finish_add_audit_hook();
	check(py._Py_InitializeMain());
	*(int *)field(config, layout->init_main) = 1;
	/* Read in any case, and used only to find an executable that is named without a slash. */
	if (strchr(argv[0], '/'))
		spawnfd_forget_variable("PATH");
	if (preload)
		import_ahead(preload);
	settled = call_adapter(it, "settle");
	if (!py.PyArg_ParseTuple(settled, "zyyyiO", &why, &names, &files, &missing, &it->renews,
				 &it->state))
		spawnfd_cannot_park("adapter");
	if (why)
		spawnfd_cannot_park(why);
	each_line(names, spawnfd_record_variable);
	each_line(files, spawnfd_record_file);
	it->missing = strdup(missing);
	py.Py_IncRef(it->state);
	py.Py_DecRef(settled);
	py.PyGC_Collect();
	spawnfd_finish_end_startup();
}

struct stat spawnfd_python_local_time(void)
{
	struct stat file = {0};

	if (stat("/etc/localtime", &file))
		file = (struct stat){0};
	return file;
}

/* What the module time is made by. libc does not look again while TZ is the same. */
static void note_zone(struct startup *it)
{
	const char *zone = spawnfd_python_value_in(environ, "TZ", 2);
	const char *directory = spawnfd_python_value_in(environ, "TZDIR", 5);
	char path[PATH_MAX];

	it->local_time = spawnfd_python_local_time();
	it->zone = zone ? strdup(zone) : NULL;
	if (!zone)
		return;
	zone += *zone == ':';
	if (*zone == '/')
		directory = "";
	else if (!directory || !*directory)
		directory = "/usr/share/zoneinfo";
	if (snprintf(path, sizeof(path), "%s/%s", directory, zone) < (int)sizeof(path))
		spawnfd_record_file(path);
}

void spawnfd_python_initialise(struct startup *it, int argc, char **argv)
{
	char *preload = getenv(SPAWNFD_PRELOAD_VARIABLE);

	if (preload) {
		preload = strdup(preload);
		unsetenv(SPAWNFD_PRELOAD_VARIABLE);
	}
	spawnfd_forget_variable(SPAWNFD_PRELOAD_VARIABLE);
	if (!spawnfd_python_resolve())
		spawnfd_cannot_park("not CPython 3.8 to 3.13");
	check_arguments(argc, argv);
	it->flags = argc;
	it->name = argv[0];
	spawnfd_python_read_dispositions(it->before);
	first_environ = copy_environ();
	begin_to_hear(it);
	note_zone(it);
	initialise(it, argc, argv, preload);
	end_to_hear();
	compare_environ(it);
	it->environment = copy_environ();
	free(preload);
	spawnfd_python_read_dispositions(it->after);
}
