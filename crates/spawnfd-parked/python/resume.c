/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Gives a parked CPython the command line, environment and signals of a program. */
#include "finish.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Decodes `start` and `text` as CPython decodes arguments, and joins them with `end`. */
static wchar_t *decode(const char *start, const char *text, const wchar_t *end)
{
	wchar_t *first = py.Py_DecodeLocale(start, NULL);
	wchar_t *second = py.Py_DecodeLocale(text, NULL);
	wchar_t *all = NULL;

	if (first && second)
		all = calloc(wcslen(first) + wcslen(second) + wcslen(end) + 1, sizeof(wchar_t));
	if (all)
		wcscat(wcscat(wcscpy(all, first), second), end);
	py.PyMem_RawFree(first);
	py.PyMem_RawFree(second);
	return all;
}

/* Returns the path of a script in the form that CPython records: an absolute path since 3.9. */
static wchar_t *script_path(const char *path)
{
	char directory[PATH_MAX + 1];

	if (layout->minor < 9 || path[0] == '/' || !getcwd(directory, PATH_MAX))
		return decode("", path, L"");
	if (layout->minor >= 11 && !strcmp(path, "."))
		return decode(directory, "", L"");
	return decode(strcat(directory, "/"), path, L"");
}

/* Appends a new reference to a list; false on failure. */
static bool append(object *list, object *item)
{
	if (!item || py.PyList_Append(list, item))
		return false;
	py.Py_DecRef(item);
	return true;
}

static object *list_of(wchar_t **items, int count)
{
	object *list = py.PyList_New(0);

	for (int i = 0; list && i < count; i++)
		if (!append(list, py.PyUnicode_FromWideChar(items[i], -1)))
			return NULL;
	return list;
}

static bool set_list(unsigned offset, wchar_t **items, int count)
{
	struct wide_list *list = field(config, offset);

	return !py.PyConfig_SetWideStringList(config, list, count, items).type;
}

/* Replaces the list of Py_GetArgcArgv(). Allocates by malloc(), because CPython frees this list by
 * its default raw allocator. */
static bool set_original_argv(wchar_t **items, int count)
{
	wchar_t **copy = calloc((size_t)count + 1, sizeof(wchar_t *));

	for (int i = 0; copy && i < count; i++)
		if (!(copy[i] = wcsdup(items[i])))
			return false;
	*original_argv = (struct wide_list){count, copy};
	return copy;
}

/*
 * Sets the command line in the configuration as CPython's config_read_cmdline() does. The first
 * `flags` arguments are those with which the interpreter parked. The others are the program and its
 * arguments. False if the parked interpreter cannot run this command line.
 */
static bool set_command_line(const struct program *program, int flags, object **argv,
			     object **orig_argv)
{
	wchar_t **all = calloc((size_t)program->argc + 2, sizeof(wchar_t *));
	wchar_t *run[3] = {NULL}, **run_fields;
	const char *word = flags < program->argc ? program->argv[flags] : "";
	int first = flags;

	for (int i = 0; all && i < program->argc; i++)
		if (!(all[i] = py.Py_DecodeLocale(program->argv[i], NULL)))
			return false;
	if (!all)
		return false;
	*orig_argv = list_of(all, program->argc);
	if (layout->orig_argv && !set_list(layout->orig_argv, all, program->argc))
		return false;
	if (original_argv && !set_original_argv(all, program->argc))
		return false;
	if (word[0] == '-' && (word[1] == 'c' || word[1] == 'm')) {
		const char *command = word + 2;

		if (!*command && ++first == program->argc)
			return false;
		if (!*command)
			command = program->argv[first];
		all[first] = word[1] == 'c' ? L"-c" : L"-m";
		run[word[1] == 'm'] = decode("", command, word[1] == 'c' ? L"\n" : L"");
	} else if (word[0] == '-' && word[1]) {
		return false;
	} else if (first == program->argc) {
		all[program->argc] = L"";
	} else if (word[0] != '-') {
		run[2] = script_path(word);
	}
	int count = program->argc - first + (first == program->argc);

	*argv = list_of(all + first, count);
	if (!set_list(layout->argv, all + first, count))
		return false;
	run_fields = field(config, layout->run_command);
	for (int i = 0; i < 3; i++)
		if (py.PyConfig_SetString(config, &run_fields[i], run[i]).type)
			return false;
	/* This function does not free its allocations, because it runs once in a process. */
	return *argv && *orig_argv && (run[0] || run[1] || run[2] || !isatty(0));
}

static object *environment(void)
{
	object *new_environment = py.PyDict_New();

	for (char **entry = environ; new_environment && *entry; entry++) {
		const char *equals = strchr(*entry, '=');
		object *name, *value;

		if (!equals)
			continue;
		name = py.PyBytes_FromStringAndSize(*entry, equals - *entry);
		value = py.PyBytes_FromStringAndSize(equals + 1, (ssize_t)strlen(equals + 1));
		/* If a name occurs twice, its first value counts, as in os.environ after a cold
		 * start. */
		if (!name || !value || !py.PyDict_SetDefault(new_environment, name, value))
			return NULL;
		py.Py_DecRef(name);
		py.Py_DecRef(value);
	}
	return new_environment;
}

static object *ignored_signals(const struct sigaction *dispositions)
{
	object *list = py.PyList_New(0);

	for (int number = 1; list && number <= 64; number++)
		if (dispositions[number].sa_handler == SIG_IGN &&
		    !append(list, py.PyLong_FromLong(number)))
			return NULL;
	return list;
}

/* The parts of the state that resume() of adapter.py updates, as bits. STDIN << 1 stands for
 * stdout, and STDIN << 2 for stderr. */
enum { ENVIRONMENT = 1, ZONE = 2, SIGNALS = 4, STDIN = 8, IMPORTERS = 64 };

static bool same_environment(const struct startup *startup)
{
	size_t i = 0;

	while (environ[i] && startup->environment[i] &&
	       !strcmp(environ[i], startup->environment[i]))
		i++;
	return startup->change_count == 0 && !environ[i] && !startup->environment[i];
}

static bool same_zone(const struct startup *startup)
{
	const char *zone = spawnfd_value_in(environ, "TZ", 2);
	const struct stat *old = &startup->local_time;
	struct stat now;

	if (zone || startup->zone)
		return zone && startup->zone && !strcmp(zone, startup->zone);
	now = spawnfd_python_local_time();
	return now.st_dev == old->st_dev && now.st_ino == old->st_ino &&
	       now.st_size == old->st_size && now.st_mtim.tv_sec == old->st_mtim.tv_sec &&
	       now.st_mtim.tv_nsec == old->st_mtim.tv_nsec &&
	       now.st_ctim.tv_sec == old->st_ctim.tv_sec &&
	       now.st_ctim.tv_nsec == old->st_ctim.tv_nsec;
}

/* Whether the stream object that CPython made for the earlier file `old` is valid for `fd`. It is
 * valid if both are pipes, or both are /dev/null. The stream object of a terminal or a regular file
 * depends on more properties of the file. */
static bool same_kind(const struct stat *old, int fd)
{
	struct stat now;

	if (fstat(fd, &now) || (now.st_mode & S_IFMT) != (old->st_mode & S_IFMT) ||
	    now.st_blksize != old->st_blksize)
		return false;
	return S_ISFIFO(now.st_mode) || (S_ISCHR(now.st_mode) && now.st_rdev == old->st_rdev &&
					 now.st_rdev == makedev(1, 3));
}

/* Whether a path that imports did not find at start-up exists now. Replaces the newlines in
 * `missing` by NULs. */
static bool path_exists_now(char *missing)
{
	for (char *save, *path = strtok_r(missing, "\n", &save); path;
	     path = strtok_r(NULL, "\n", &save))
		if (!access(path, F_OK))
			return true;
	return false;
}

/* Returns the parts of the state that differ from those at start-up, as bits. */
static int find_changes(const struct startup *startup, const struct program *program)
{
	int parts = 0;

	if (!same_environment(startup))
		parts |= ENVIRONMENT;
	if (!same_zone(startup))
		parts |= ZONE;
	if (program->signals)
		parts |= SIGNALS;
	if (path_exists_now(startup->missing))
		parts |= IMPORTERS;
	for (int fd = 0; fd < 3; fd++)
		if (!same_kind(&startup->streams[fd], fd))
			parts |= STDIN << fd;
	return parts;
}

/* Calls resume() of adapter.py, which updates `parts` of the state. */
static bool call_resume(struct startup *startup, int parts, const struct sigaction *dispositions)
{
	object *function = py.PyDict_GetItemString(startup->namespace, "resume");
	object *new_environment = parts & ENVIRONMENT ? environment() : py.PyDict_New();
	object *ignored = ignored_signals(dispositions), *done;

	if (!function || !new_environment || !ignored)
		return false;
	done = py.PyObject_CallFunction(function, "OiOO", startup->state, parts, new_environment,
					ignored);
	if (!done)
		return false;
	py.Py_DecRef(done);
	py.Py_DecRef(new_environment);
	py.Py_DecRef(ignored);
	return true;
}

/* Whether CPython would find the executable at `parked` by the program's argv[0] and PATH. */
static bool finds_executable(const struct program *program, const char *parked)
{
	const char *name = program->argv[0];
	const char *list = spawnfd_value_in(program->envp, "PATH", 4);
	char path[PATH_MAX];

	if (!strcmp(name, parked))
		return true;
	if (!list || !*name || strchr(name, '/') || parked[0] != '/')
		return false;
	for (; *list == '/'; list += list[0] == ':') {
		int length = (int)strcspn(list, ":");
		struct stat found;

		snprintf(path, sizeof(path), "%.*s/%s", length, list, name);
		if (!stat(path, &found) && S_ISREG(found.st_mode) && found.st_mode & 0111)
			return !strcmp(path, parked);
		list += length;
	}
	return false;
}

bool spawnfd_python_resume(struct startup *startup, const struct program *program)
{
	static struct sigaction dispositions[65];
	object *argv, *orig_argv;
	int parts;

	if (program->argc < startup->flags || !finds_executable(program, startup->name) ||
	    !set_command_line(program, startup->flags, &argv, &orig_argv))
		return false;
	for (size_t i = 0; i < startup->change_count; i++)
		if (startup->changes[i].value)
			setenv(startup->changes[i].name, startup->changes[i].value, 1);
		else
			unsetenv(startup->changes[i].name);
	parts = find_changes(startup, program);
	if (parts & SIGNALS)
		spawnfd_python_read_dispositions(dispositions);
	else
		memcpy(dispositions, startup->before, sizeof(dispositions));
	if (py.PySys_SetObject("argv", argv) ||
	    (layout->orig_argv && py.PySys_SetObject("orig_argv", orig_argv)) ||
	    ((parts || startup->needs_resume) && !call_resume(startup, parts, dispositions)))
		return false;
	py.Py_DecRef(argv);
	py.Py_DecRef(orig_argv);
	py.Py_DecRef(startup->state);
	py.PyDict_Clear(startup->namespace);
	py.Py_DecRef(startup->namespace);
	/* Set the handlers last. Until then SIGINT kills the process, as SIGINT does early in a
	 * cold start. */
	for (int number = 1; number <= 64; number++)
		if (spawnfd_python_sets_signal(startup, number) &&
		    (number != SIGINT || dispositions[SIGINT].sa_handler != SIG_IGN))
			sigaction(number, &startup->after[number], NULL);
	spawnfd_finish_enable();
	return true;
}
