/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Records the files that the modules of an entry point read during their import. Also detects that
 * they read the working directory. */
#include "cpython.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

/* CPython's struct PyMethodDef, and the first fields of PyModuleDef: PyModuleDef_Base has 40 bytes.
 */
struct method {
	const char *name;
	object *(*call)(object *module, object *none);
	int flags;
	const char *documentation;
};
struct definition {
	char base[40];
	const char *name, *documentation;
	ssize_t size;
	struct method *methods;
};

/* The functions that read the working directory. */
static struct function {
	const char *name;
	struct method *method;
	object *(*original)(object *module, object *none);
} functions[2] = {{.name = "getcwd"}, {.name = "getcwdb"}};

static bool is_importing, has_read_directory;
/* The program's working directory, or empty if it is not known. */
static const char *working_directory;

static object *read_directory(object *module, object *none)
{
	has_read_directory = true;
	return functions[0].original(module, none);
}

static object *read_directory_bytes(object *module, object *none)
{
	has_read_directory = true;
	return functions[1].original(module, none);
}

static void record_read(const char *path)
{
	static const char *const ignored[] = {"/proc/", "/sys/", "/dev/"};
	char absolute[PATH_MAX];

	/* The bytecode of a module depends on the module's file, which is recorded. */
	if (strstr(path, "/__pycache__/"))
		return;
	for (size_t i = 0; i < sizeof(ignored) / sizeof(*ignored); i++)
		if (!strncmp(path, ignored[i], strlen(ignored[i])))
			return;
	if (*path != '/') {
		has_read_directory = true;
		snprintf(absolute, sizeof(absolute), "%s/%s", working_directory, path);
		path = absolute;
	}
	spawnfd_record_file(path);
}

void spawnfd_python_record_open(object *arguments)
{
	object *path;
	long flags;

	if (!is_importing)
		return;
	flags = py.PyLong_AsLong(py.PyTuple_GetItem(arguments, 2));
	/* The first argument may also be the number of a descriptor. */
	if ((flags & O_ACCMODE) == O_RDONLY &&
	    py.PyUnicode_FSConverter(py.PyTuple_GetItem(arguments, 0), &path)) {
		record_read(py.PyBytes_AsString(path));
		py.Py_DecRef(path);
	}
	py.PyErr_Clear();
}

void spawnfd_python_begin_imports(const char *directory)
{
	object *(*const recording[])(object *, object *) = {read_directory, read_directory_bytes};
	object *module = py.PyImport_ImportModule("posix");
	const struct definition *definition = module ? py.PyModule_GetDef(module) : NULL;

	if (!definition || strcmp(definition->name, "posix"))
		spawnfd_cannot_park("unknown build of CPython");
	for (struct method *method = definition->methods; method->name; method++)
		for (int i = 0; i < 2; i++)
			if (!strcmp(method->name, functions[i].name)) {
				functions[i].method = method;
				functions[i].original = method->call;
				method->call = recording[i];
			}
	py.Py_DecRef(module);
	working_directory = directory;
	is_importing = true;
}

void spawnfd_python_end_imports(void)
{
	is_importing = false;
	for (int i = 0; i < 2; i++)
		if (functions[i].method)
			functions[i].method->call = functions[i].original;
	if (has_read_directory && !*working_directory)
		spawnfd_cannot_park("start-up code reads the working directory");
}
