/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A parked CPython is given the command line, environment and signals of a program. */
#define _GNU_SOURCE
#include "finish.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* `start` and `text`, each as CPython decodes what the system gives it, and `end`. */
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

/* The path of a script as CPython remembers it: absolute from 3.9 on. */
static wchar_t *script_path(const char *path)
{
	char directory[PATH_MAX + 1];

	if (layout->minor < 9 || path[0] == '/' || !getcwd(directory, PATH_MAX))
		return decode("", path, L"");
	if (layout->minor >= 11 && !strcmp(path, "."))
		return decode(directory, "", L"");
	return decode(strcat(directory, "/"), path, L"");
}

static object *list_of(wchar_t **items, int count)
{
	object *list = py.PyList_New(0);

	for (int i = 0; list && i < count; i++) {
		object *text = py.PyUnicode_FromWideChar(items[i], -1);

		if (!text || py.PyList_Append(list, text))
			return NULL;
		py.Py_DecRef(text);
	}
	return list;
}

static bool set_list(unsigned offset, wchar_t **items, int count)
{
	struct wide_list *list = field(config, offset);

	return !py.PyConfig_SetWideStringList(config, list, count, items).type;
}

/* By malloc(): CPython frees these by its default allocator, whatever it uses otherwise. */
static bool set_as_given(wchar_t **items, int count)
{
	wchar_t **copy = calloc((size_t)count + 1, sizeof(wchar_t *));

	for (int i = 0; copy && i < count; i++)
		if (!(copy[i] = wcsdup(items[i])))
			return false;
	*original_argv = (struct wide_list){count, copy};
	return copy;
}

/*
 * Puts the command line into the configuration, as config_read_cmdline() of CPython would: `flags`
 * arguments, known already, then what is to run and its arguments. False: not a command line of
 * this interpreter as it was parked.
 */
static bool set_command_line(const struct program *program, int flags, object **argv,
			     object **orig_argv)
{
	wchar_t **all = calloc((size_t)program->argc + 2, sizeof(wchar_t *));
	wchar_t *run[3] = {NULL}, **own;
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
	if (original_argv && !set_as_given(all, program->argc))
		return false;
	if (word[0] == '-' && (word[1] == 'c' || word[1] == 'm')) {
		const char *what = word + 2;

		if (!*what && ++first == program->argc)
			return false;
		if (!*what)
			what = program->argv[first];
		all[first] = word[1] == 'c' ? L"-c" : L"-m";
		run[word[1] == 'm'] = decode("", what, word[1] == 'c' ? L"\n" : L"");
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
	own = field(config, layout->run_command);
	for (int i = 0; i < 3; i++)
		if (py.PyConfig_SetString(config, &own[i], run[i]).type)
			return false;
	/* What was allocated is left: this happens once in the life of a process. */
	return *argv && *orig_argv && (run[0] || run[1] || run[2] || !isatty(0));
}

static object *environment(void)
{
	object *fresh = py.PyDict_New();

	for (char **at = environ; fresh && *at; at++) {
		const char *equals = strchr(*at, '=');
		object *name, *value;

		if (!equals)
			continue;
		name = py.PyBytes_FromStringAndSize(*at, equals - *at);
		value = py.PyBytes_FromStringAndSize(equals + 1, (ssize_t)strlen(equals + 1));
		/* The first of two counts, as at every start. */
		if (!name || !value || !py.PyDict_SetDefault(fresh, name, value))
			return NULL;
		py.Py_DecRef(name);
		py.Py_DecRef(value);
	}
	return fresh;
}

static object *ignored_signals(const struct sigaction *asked)
{
	object *list = py.PyList_New(0);

	for (int number = 1; list && number <= 64; number++) {
		object *item;

		if (asked[number].sa_handler != SIG_IGN)
			continue;
		item = py.PyLong_FromLong(number);
		if (!item || py.PyList_Append(list, item))
			return NULL;
		py.Py_DecRef(item);
	}
	return list;
}

/* What resume() of adapter.py is to renew; 8, 16 and 32 are the standard streams. */
enum { ENVIRONMENT = 1, ZONE = 2, SIGNALS = 4, STDIN = 8, IMPORTERS = 64 };

static bool same_environment(const struct startup *it)
{
	size_t i = 0;

	while (environ[i] && it->environment[i] && !strcmp(environ[i], it->environment[i]))
		i++;
	return it->change_count == 0 && !environ[i] && !it->environment[i];
}

static bool same_zone(const struct startup *it)
{
	const char *zone = spawnfd_python_value_in(environ, "TZ", 2);
	const struct stat *then = &it->local_time;
	struct stat now;

	if (zone || it->zone)
		return zone && it->zone && !strcmp(zone, it->zone);
	now = spawnfd_python_local_time();
	return now.st_dev == then->st_dev && now.st_ino == then->st_ino &&
	       now.st_size == then->st_size && now.st_mtim.tv_sec == then->st_mtim.tv_sec &&
	       now.st_mtim.tv_nsec == then->st_mtim.tv_nsec &&
	       now.st_ctim.tv_sec == then->st_ctim.tv_sec &&
	       now.st_ctim.tv_nsec == then->st_ctim.tv_nsec;
}

/* Whether a stream over `fd` would be made as the one over what stood there before was: both are
 * pipes, or /dev/null. Of terminals and files CPython wants to know more. */
static bool same_kind(const struct stat *then, int fd)
{
	struct stat now;

	if (fstat(fd, &now) || (now.st_mode & S_IFMT) != (then->st_mode & S_IFMT) ||
	    now.st_blksize != then->st_blksize)
		return false;
	return S_ISFIFO(now.st_mode) || (S_ISCHR(now.st_mode) && now.st_rdev == then->st_rdev &&
					 now.st_rdev == makedev(1, 3));
}

/* Whether something stands now where an import has looked in vain. Its paths are spoiled. */
static bool has_come(char *missing)
{
	for (char *save, *path = strtok_r(missing, "\n", &save); path;
	     path = strtok_r(NULL, "\n", &save))
		if (!access(path, F_OK))
			return true;
	return false;
}

static int changes(const struct startup *it, const struct program *program)
{
	int what = 0;

	if (!same_environment(it))
		what |= ENVIRONMENT;
	if (!same_zone(it))
		what |= ZONE;
	if (program->signals)
		what |= SIGNALS;
	if (has_come(it->missing))
		what |= IMPORTERS;
	for (int fd = 0; fd < 3; fd++)
		if (!same_kind(&it->streams[fd], fd))
			what |= STDIN << fd;
	return what;
}

/* Has adapter.py renew what is not any more as start-up found it. */
static bool renew(struct startup *it, int what, const struct sigaction *asked)
{
	object *function = py.PyDict_GetItemString(it->namespace, "resume");
	object *fresh = what & ENVIRONMENT ? environment() : py.PyDict_New();
	object *ignored = ignored_signals(asked), *done;

	if (!function || !fresh || !ignored)
		return false;
	done = py.PyObject_CallFunction(function, "OiOO", it->state, what, fresh, ignored);
	if (!done)
		return false;
	py.Py_DecRef(done);
	py.Py_DecRef(fresh);
	py.Py_DecRef(ignored);
	return true;
}

/* Whether CPython would find the same executable by this name as by the path it was parked by. */
static bool names_it(const struct program *program, const char *parked)
{
	const char *name = program->argv[0], *list = NULL;
	char path[PATH_MAX];

	if (!strcmp(name, parked))
		return true;
	for (char **at = program->envp; *at && !list; at++)
		if (!strncmp(*at, "PATH=", 5))
			list = *at + 5;
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

bool spawnfd_python_resume(struct startup *it, const struct program *program)
{
	static struct sigaction asked[65];
	object *argv, *orig_argv;
	int what;

	if (program->argc < it->flags || !names_it(program, it->name) ||
	    !set_command_line(program, it->flags, &argv, &orig_argv))
		return false;
	for (size_t i = 0; i < it->change_count; i++)
		if (it->changes[i].value)
			setenv(it->changes[i].name, it->changes[i].value, 1);
		else
			unsetenv(it->changes[i].name);
	what = changes(it, program);
	if (what & SIGNALS)
		spawnfd_python_read_dispositions(asked);
	else
		memcpy(asked, it->before, sizeof(asked));
	if (py.PySys_SetObject("argv", argv) ||
	    (layout->orig_argv && py.PySys_SetObject("orig_argv", orig_argv)) ||
	    ((what || it->renews) && !renew(it, what, asked)))
		return false;
	py.Py_DecRef(argv);
	py.Py_DecRef(orig_argv);
	py.Py_DecRef(it->state);
	py.PyDict_Clear(it->namespace);
	py.Py_DecRef(it->namespace);
	/* Last: until here an interrupt ends the process, as it would have early in a start. */
	for (int number = 1; number <= 64; number++)
		if (spawnfd_python_sets_signal(it, number) &&
		    (number != SIGINT || asked[SIGINT].sa_handler != SIG_IGN))
			sigaction(number, &it->after[number], NULL);
	spawnfd_finish_enable();
	return true;
}
