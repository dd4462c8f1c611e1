/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* CPython's initialisation, up to where the process parks. */
#include "finish.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(struct status status)
{
	if (status.type == STATUS_EXIT)
		spawnfd_cannot_park("a flag that makes the interpreter exit");
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

/* The environment before the initialisation. CPython sets LC_CTYPE (PEP 538), and .pth files may
 * set any variable. */
static char **first_environ;

static void record_change(struct startup *startup, const char *entry, const char *value)
{
	struct change *change = &startup->changes[startup->change_count];

	if (startup->change_count++ == sizeof(startup->changes) / sizeof(*startup->changes))
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

static void compare_environ(struct startup *startup)
{
	for (char **entry = environ; *entry; entry++) {
		size_t length = strcspn(*entry, "=");
		const char *old = spawnfd_value_in(first_environ, *entry, length);

		if ((*entry)[length] && (!old || strcmp(old, *entry + length + 1)))
			record_change(startup, *entry, *entry + length + 1);
	}
	for (char **entry = first_environ; *entry; entry++) {
		size_t length = strcspn(*entry, "=");

		if ((*entry)[length] && !spawnfd_value_in(environ, *entry, length))
			record_change(startup, *entry, NULL);
		free(*entry);
	}
	free(first_environ);
}

/*
 * Start-up code's output to descriptors 1 and 2 would be lost. So both refer to a pipe during
 * start-up, and if the pipe has any content, the process cannot park. A file would also do. But for
 * most programs descriptors 1 and 2 are pipes, and such a program can keep the stream objects that
 * CPython has made for the pipe.
 */
static int read_end, saved[2];

static void capture_output(struct startup *startup)
{
	int ends[2];

	/* Only this end does not block, because start-up code may refuse other descriptors. */
	if (pipe2(ends, O_CLOEXEC) || fcntl(ends[0], F_SETFL, O_NONBLOCK))
		spawnfd_cannot_park("no pipe for start-up output");
	read_end = ends[0];
	for (int i = 0; i < 2; i++) {
		saved[i] = fcntl(1 + i, F_DUPFD_CLOEXEC, 3);
		if (saved[i] < 0 || dup3(ends[1], 1 + i, 0) < 0)
			spawnfd_cannot_park("no pipe for start-up output");
	}
	close(ends[1]);
	for (int i = 0; i < 3; i++)
		fstat(i, &startup->streams[i]);
}

static void restore_output(void)
{
	char output[138], why[160];
	ssize_t length = read(read_end, output, sizeof(output) - 1);

	for (int i = 0; i < 2; i++) {
		dup3(saved[i], 1 + i, 0);
		close(saved[i]);
	}
	close(read_end);
	if (length > 0) {
		output[length] = 0;
		snprintf(why, sizeof(why), "start-up code writes: %s", output);
		spawnfd_cannot_park(why);
	}
}

/* Calls `each` with each line of `text`. Replaces the newlines in `text` by NULs. */
static void each_line(char *text, void (*each)(const char *))
{
	for (char *save, *line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save))
		each(line);
}

/* Refuses arguments after which no program can follow. Also refuses relative paths, because the
 * parked process does not have the program's working directory. */
static void check_arguments(int argc, char **argv)
{
	const char *path = getenv("PATH");
	/* CPython's initialisation writes bytecode below this directory. */
	const char *bytecode = spawnfd_value_in(environ, "PYTHONPYCACHEPREFIX", 19);

	for (int i = 1; i < argc; i++) {
		const char *option = strstr(argv[i], "pycache_prefix=");

		if (!strcmp(argv[i], "-") || !strcmp(argv[i], "--"))
			spawnfd_cannot_park("args has more than flags");
		if (option)
			bytecode = strchr(option, '=') + 1;
	}
	if (bytecode && *bytecode && *bytecode != '/')
		spawnfd_cannot_park("a relative path to bytecode");
	if (strchr(argv[0], '/') ? argv[0][0] != '/'
				 : !path || spawnfd_has_relative_part(path, false))
		spawnfd_cannot_park("a relative path to the interpreter");
}

/* The text of adapter.py. build.rs passes -I, by which the assembler finds the file. */
extern const char spawnfd_python_adapter[];
__asm__(".pushsection .rodata\n"
	".hidden spawnfd_python_adapter\n"
	".globl spawnfd_python_adapter\n"
	"spawnfd_python_adapter: .incbin \"adapter.py\"\n"
	".byte 0\n"
	".popsection");

static object *adapter_function(struct startup *startup, const char *name)
{
	return checked(py.PyDict_GetItemString(startup->namespace, name), "adapter");
}

static object *call_adapter(struct startup *startup, const char *name)
{
	return checked(py.PyObject_CallFunction(adapter_function(startup, name), NULL), "adapter");
}

static void load_adapter(struct startup *startup)
{
	object *code =
		checked(py.Py_CompileString(spawnfd_python_adapter, "<spawnfd>", 257), "adapter");

	startup->namespace = checked(py.PyDict_New(), "adapter");
	py.PyDict_SetItemString(startup->namespace, "__builtins__", py.PyEval_GetBuiltins());
	py.Py_DecRef(checked(py.PyEval_EvalCode(code, startup->namespace, startup->namespace),
			     "adapter"));
	py.Py_DecRef(code);
}

static void import_modules(char *names)
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

/* A path as CPython decodes its arguments. */
static object *decoded(const char *path)
{
	return checked(py.PyUnicode_DecodeFSDefault(path), "adapter");
}

/* Imports the modules of the entry point. First in sys.path is the directory of a script's real
 * path, or the working directory if the entry is a module. */
static void import_entry(struct startup *startup, const char *entry, bool knows_directory)
{
	char directory[PATH_MAX] = "", path[PATH_MAX], *end;
	object *function = adapter_function(startup, "import_entry"), *why;

	if (knows_directory && !getcwd(directory, sizeof(directory)))
		spawnfd_cannot_park("working directory");
	strcpy(path, directory);
	if (*entry == '/') {
		if (!realpath(entry, path))
			spawnfd_cannot_park("cannot read the entry");
		end = strrchr(path, '/');
		end[end == path] = 0;
	}
	spawnfd_python_begin_imports(directory);
	why = checked(py.PyObject_CallFunction(function, "NN", decoded(entry), decoded(path)),
		      "adapter");
	spawnfd_python_end_imports();
	if (why != py._Py_NoneStruct)
		spawnfd_cannot_park(checked((void *)py.PyUnicode_AsUTF8(why), "adapter"));
	py.Py_DecRef(why);
}

/* The arguments of begin_recording(), which the audit hook calls. */
static struct startup *starting;
static int starting_argc;

/* Loads adapter.py, which records what start-up code reads from now on. */
static void begin_recording(void)
{
	if (!spawnfd_python_find_config(starting_argc))
		spawnfd_cannot_park("unknown build of CPython");
	load_adapter(starting);
	py.Py_DecRef(call_adapter(starting, "record"));
}

/* Initialises CPython as Py_BytesMain() does. */
static void initialise(struct startup *startup, int argc, char **argv, char *preload,
		       const char *entry, bool knows_directory)
{
	/* libc reads these variables without getenv(). */
	static const char *const variables[] = {"LC_ALL", "LC_CTYPE", "LANG", "LOCPATH", "TZDIR"};
	_Alignas(16) char new_config[2048] = {0};
	char **with_command = calloc((size_t)argc + 3, sizeof(char *));
	object *result;
	char *why, *names, *files, *modules, *missing;

	memcpy(with_command, argv, (size_t)argc * sizeof(char *));
	with_command[argc] = "-c";
	with_command[argc + 1] = MARKER;
	for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
		spawnfd_record_variable(variables[i]);
	py.PyConfig_InitPythonConfig(new_config);
	check(py.PyConfig_SetBytesArgv(new_config, argc + 2, with_command));
	starting = startup;
	starting_argc = argc;
	spawnfd_finish_add_audit_hook(begin_recording);
	check(py.Py_InitializeFromConfig(new_config));
	py.PyConfig_Clear(new_config);
	free(with_command);
	if (!startup->namespace)
		spawnfd_cannot_park("unknown build of CPython");
	/* CPython always reads PATH, but uses it only if argv[0] has no slash. */
	if (strchr(argv[0], '/'))
		spawnfd_forget_variable("PATH");
	if (entry)
		import_entry(startup, entry, knows_directory);
	if (preload)
		import_modules(preload);
	result = call_adapter(startup, "finish_recording");
	if (!py.PyArg_ParseTuple(result, "zyyyyiO", &why, &names, &files, &modules, &missing,
				 &startup->needs_resume, &startup->state))
		spawnfd_cannot_park("adapter");
	if (why)
		spawnfd_cannot_park(why);
	each_line(names, spawnfd_record_variable);
	each_line(files, spawnfd_record_file);
	each_line(modules, spawnfd_record_module);
	startup->missing = strdup(missing);
	py.Py_IncRef(startup->state);
	py.Py_DecRef(result);
	py.PyGC_Collect();
	spawnfd_finish_end_startup();
}

struct stat spawnfd_python_local_time(void)
{
	struct stat file = {0};

	stat("/etc/localtime", &file);
	return file;
}

/* Records the time zone that the module `time` uses. libc does not read the zone again while TZ is
 * unchanged. */
static void record_zone(struct startup *startup)
{
	const char *zone = spawnfd_value_in(environ, "TZ", 2);
	const char *directory = spawnfd_value_in(environ, "TZDIR", 5);
	char path[PATH_MAX];

	startup->local_time = spawnfd_python_local_time();
	startup->zone = zone ? strdup(zone) : NULL;
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

void spawnfd_python_initialise(struct startup *startup, int argc, char **argv)
{
	char *preload = spawnfd_take_variable(SPAWNFD_PRELOAD_VARIABLE);
	char *entry = spawnfd_take_variable(SPAWNFD_ENTRY_VARIABLE);
	char *same_directory = spawnfd_take_variable(SPAWNFD_SAME_DIRECTORY_VARIABLE);
	const char *unknown = spawnfd_python_resolve();

	if (unknown)
		spawnfd_cannot_park(unknown);
	check_arguments(argc, argv);
	startup->flags = argc;
	startup->name = argv[0];
	spawnfd_python_read_dispositions(startup->before);
	first_environ = copy_environ();
	capture_output(startup);
	record_zone(startup);
	initialise(startup, argc, argv, preload, entry, same_directory);
	restore_output();
	compare_environ(startup);
	startup->environment = copy_environ();
	free(preload);
	free(entry);
	free(same_directory);
	spawnfd_python_read_dispositions(startup->after);
}
