/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* CPython as this adapter knows it: functions by name, and what is public of its structures. */
#ifndef SPAWNFD_CPYTHON_H
#define SPAWNFD_CPYTHON_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <wchar.h>

#include "../common/park.h"

/* What `-c` is given while it waits. Found in the configuration, it shows that the layout is right.
 */
#define MARKER "spawnfd: parked"

typedef void object;

/* PyStatus, PyWideStringList: public in cpython/initconfig.h, the same in all versions. */
struct status {
	enum { STATUS_OK, STATUS_ERROR, STATUS_EXIT } type;
	const char *function;
	const char *message;
	int exit_code;
};
struct wide_list {
	ssize_t length;
	wchar_t **items;
};

#define FUNCTIONS(X)                                                                               \
	X(const char *, Py_GetVersion, (void))                                                     \
	X(void, PyConfig_InitPythonConfig, (void *))                                               \
	X(struct status, PyConfig_SetBytesArgv, (void *, ssize_t, char *const *))                  \
	X(struct status, PyConfig_SetString, (void *, wchar_t **, const wchar_t *))                \
	X(struct status, PyConfig_SetWideStringList,                                               \
	  (void *, struct wide_list *, ssize_t, wchar_t **))                                       \
	X(void, PyConfig_Clear, (void *))                                                          \
	X(struct status, Py_InitializeFromConfig, (void *))                                        \
	X(struct status, _Py_InitializeMain, (void))                                               \
	X(int, Py_RunMain, (void))                                                                 \
	X(wchar_t *, Py_DecodeLocale, (const char *, size_t *))                                    \
	X(void, PyMem_RawFree, (void *))                                                           \
	X(object *, Py_CompileString, (const char *, const char *, int))                           \
	X(object *, PyEval_EvalCode, (object *, object *, object *))                               \
	X(object *, PyEval_GetBuiltins, (void))                                                    \
	X(object *, PyObject_CallFunction, (object *, const char *, ...))                          \
	X(int, PyArg_ParseTuple, (object *, const char *, ...))                                    \
	X(object *, PyImport_ImportModule, (const char *))                                         \
	X(object *, PyBytes_FromStringAndSize, (const char *, ssize_t))                            \
	X(object *, PyUnicode_FromWideChar, (const wchar_t *, ssize_t))                            \
	X(int, PySys_SetObject, (const char *, object *))                                          \
	X(object *, PyLong_FromLong, (long))                                                       \
	X(object *, PyList_New, (ssize_t))                                                         \
	X(int, PyList_Append, (object *, object *))                                                \
	X(object *, PyDict_New, (void))                                                            \
	X(void, PyDict_Clear, (object *))                                                          \
	X(int, PyDict_SetItemString, (object *, const char *, object *))                           \
	X(object *, PyDict_GetItemString, (object *, const char *))                                \
	X(object *, PyDict_SetDefault, (object *, object *, object *))                             \
	X(ssize_t, PyGC_Collect, (void))                                                           \
	X(void, Py_IncRef, (object *))                                                             \
	X(void, Py_DecRef, (object *))                                                             \
	X(void, PyOS_BeforeFork, (void))                                                           \
	X(void, PyOS_AfterFork_Parent, (void))                                                     \
	X(void, PyOS_AfterFork_Child, (void))

#define DECLARE(result, name, arguments) result(*name) arguments;
struct functions {
	FUNCTIONS(DECLARE)
};
#undef DECLARE
extern struct functions py;

/*
 * Where PyConfig has its fields, in bytes, where pointers have 8. run_command, run_module and
 * run_filename stand in a row. 0 as `orig_argv`: not there yet.
 */
struct layout {
	int minor;
	unsigned argv, orig_argv, run_command, init_main;
};
extern const struct layout *layout;

/* The interpreter's own configuration: a PyConfig. */
extern char *config;

/* The command line as it came, for Py_GetArgcArgv(); NULL, where nobody can ask for it. */
extern struct wide_list *original_argv;

static inline void *field(void *of, unsigned offset)
{
	return (char *)of + offset;
}

/* Finds the functions, and the layout of this version; false where it is not known. */
bool spawnfd_python_resolve(void);

/* Finds the configuration of an interpreter startup with `argc` arguments and `-c MARKER`. */
bool spawnfd_python_find_config(int argc);

/* --- between the files of python ------------------------------------------------------- */

/* What initialisation leaves: `state` for resume() of adapter.py, which is in `namespace`. */
struct startup {
	object *namespace, *state;
	/* Flags are the arguments before this one; argv[0] is the interpreter. */
	int flags;
	const char *name;
	/* Dispositions before and after. */
	struct sigaction before[65], after[65];
	/* Variables that it set, or (without a value) took out. */
	struct change {
		char *name, *value;
	} changes[32];
	size_t change_count;
	/* The environment then, with those. */
	char **environment;
	/* Paths that were not there, a line each. */
	char *missing;
	/* Files that standard streams were made over. */
	struct stat streams[3];
	/* TZ, and what /etc/localtime was. */
	const char *zone;
	struct stat local_time;
	/* resume() has to be called in any case. */
	int renews;
};

/* Initialises CPython. Does not return where it cannot be parked. */
void spawnfd_python_initialise(struct startup *it, int argc, char **argv);

/* The value of a variable, or NULL. */
const char *spawnfd_python_value_in(char **environment, const char *name, size_t length);

/* What local time depends on beside TZ; all zeros where there is no such file. */
struct stat spawnfd_python_local_time(void);

/* Dispositions of all signals, by their numbers. */
void spawnfd_python_read_dispositions(struct sigaction *actions);

/* Whether initialisation has settled what becomes of a signal. */
static inline bool spawnfd_python_sets_signal(const struct startup *it, int number)
{
	/* The two are ignored by CPython, whatever they were. */
	return it->before[number].sa_handler != it->after[number].sa_handler || number == SIGPIPE ||
	       number == SIGXFSZ;
}

/* Gives the interpreter what `program` would have given it at its start; false: it cannot be. */
bool spawnfd_python_resume(struct startup *it, const struct program *program);

#endif
