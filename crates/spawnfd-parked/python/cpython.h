/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The parts of CPython that this adapter uses: symbols by name, and public structures. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <wchar.h>

#include "../common/park.h"

/* A placeholder for the argument of -c, until a request replaces it. If
 * spawnfd_python_find_config() finds a copy of the placeholder in CPython's configuration, the
 * structs below have the layout of this CPython. */
#define MARKER "spawnfd: parked"

typedef void object;

/* PyStatus and PyWideStringList: public in cpython/initconfig.h, the same in all versions. */
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

/* CPython's struct _inittab. */
struct module {
	const char *name;
	void *initialise;
};

/* Functions and objects that all supported versions of CPython export. An entry without an argument
 * list is an object. */
#define SYMBOLS(X)                                                                                 \
	X(const char *, Py_GetVersion, (void))                                                     \
	X(void, PyConfig_InitPythonConfig, (void *))                                               \
	X(struct status, PyConfig_SetBytesArgv, (void *, ssize_t, char *const *))                  \
	X(struct status, PyConfig_SetString, (void *, wchar_t **, const wchar_t *))                \
	X(struct status, PyConfig_SetWideStringList,                                               \
	  (void *, struct wide_list *, ssize_t, wchar_t **))                                       \
	X(void, PyConfig_Clear, (void *))                                                          \
	X(struct status, Py_InitializeFromConfig, (void *))                                        \
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
	X(const char *, PyBytes_AsString, (object *))                                              \
	X(object *, PyUnicode_DecodeFSDefault, (const char *))                                     \
	X(int, PyUnicode_FSConverter, (object *, object **))                                       \
	X(object *, PyUnicode_FromWideChar, (const wchar_t *, ssize_t))                            \
	X(int, PySys_SetObject, (const char *, object *))                                          \
	X(object *, PyLong_FromLong, (long))                                                       \
	X(long, PyLong_AsLong, (object *))                                                         \
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
	X(void, PyOS_AfterFork_Child, (void))                                                      \
	X(int, PySys_AddAuditHook, (int (*)(const char *, object *, void *), void *))              \
	X(object *, PySys_GetObject, (const char *))                                               \
	X(object *, PyTuple_GetItem, (object *, ssize_t))                                          \
	X(const char *, PyUnicode_AsUTF8, (object *))                                              \
	X(void, PyErr_Clear, (void))                                                               \
	X(void *, PyInterpreterState_Head, (void))                                                 \
	X(void *, PyInterpreterState_Next, (void *))                                               \
	X(void *, PyInterpreterState_ThreadHead, (void *))                                         \
	X(void *, PyThreadState_Next, (void *))                                                    \
	X(void, Py_Exit, (int))                                                                    \
	X(int, PyType_IsSubtype, (const object *, const object *))                                 \
	X(object *, PyFunction_GetModule, (object *))                                              \
	X(const void *, PyModule_GetDef, (object *))                                               \
	X(object *, PyObject_GetAttrString, (object *, const char *))                              \
	X(object *, PyObject_CallMethod, (object *, const char *, const char *, ...))              \
	X(ssize_t, PyObject_Size, (object *))                                                      \
	X(struct module *, PyImport_Inittab, )                                                     \
	X(object, PyList_Type, )                                                                   \
	X(object, PyGen_Type, )                                                                    \
	X(object, PyFunction_Type, )                                                               \
	X(object, PyCFunction_Type, )                                                              \
	X(object, _PyWeakref_RefType, )                                                            \
	X(object, _PyWeakref_ProxyType, )                                                          \
	X(object, _PyWeakref_CallableProxyType, )                                                  \
	X(object, PyModule_Type, )                                                                 \
	X(object, PyUnicode_Type, )                                                                \
	X(object, PyLong_Type, )                                                                   \
	X(object, _Py_NoneStruct, )                                                                \
	X(object, _Py_FalseStruct, )

#define DECLARE(result, name, arguments) result(*name) arguments;
struct symbols {
	SYMBOLS(DECLARE)
};
#undef DECLARE
extern struct symbols py;

/*
 * The offsets of PyConfig's fields in bytes, on a machine with 8-byte pointers. PyConfig's fields
 * run_command, run_module and run_filename are contiguous. `orig_argv` is 0 in versions of CPython
 * without this field.
 */
struct layout {
	int minor;
	unsigned argv, orig_argv, run_command;
};
extern const struct layout *layout;

/* The interpreter's own configuration: a PyConfig. */
extern char *config;

/* The list that Py_GetArgcArgv() returns; NULL if no program can call that function. */
extern struct wide_list *original_argv;

static inline void *field(void *base, unsigned offset)
{
	return (char *)base + offset;
}

/* Looks up the symbols and the layout of this version. Returns NULL, or the reason why this build
 * cannot park. */
const char *spawnfd_python_resolve(void);

/* Finds the configuration of the interpreter, which runs with `argc` arguments and `-c MARKER`. */
bool spawnfd_python_find_config(int argc);

/* --- between the files of python ------------------------------------------------------- */

/* Facts about the initialisation that the resumption needs. */
struct startup {
	/* The namespace of adapter.py, and the argument `state` of its function resume(). */
	object *namespace, *state;
	/* The number of arguments before the program: argv[0] and the interpreter's flags. */
	int flags;
	/* argv[0], the path of the interpreter. */
	const char *name;
	/* Signal dispositions before and after the initialisation. */
	struct sigaction before[65], after[65];
	/* Environment variables that start-up code set, or removed (`value` is NULL). */
	struct change {
		char *name, *value;
	} changes[32];
	size_t change_count;
	/* The environment after the initialisation. */
	char **environment;
	/* The paths that imports did not find, one per line. */
	char *missing;
	/* The files of descriptors 0 to 2 when CPython created sys.stdin, sys.stdout and
	 * sys.stderr. */
	struct stat streams[3];
	/* The value of TZ, and the identity of /etc/localtime, at start-up. */
	const char *zone;
	struct stat local_time;
	/* True if resume() of adapter.py must run even if nothing has changed. */
	int needs_resume;
};

/* Between these calls, the modules of an entry point are imported. `directory` is the program's
 * working directory. If it is empty and a module reads the working directory or a relative path,
 * the process exits. */
void spawnfd_python_begin_imports(const char *directory);
void spawnfd_python_end_imports(void);

/* Records the file of an audit event `open` between these calls. */
void spawnfd_python_record_open(object *arguments);

/* Initialises CPython. If this interpreter cannot park, the process exits. */
void spawnfd_python_initialise(struct startup *startup, int argc, char **argv);

/* The status of /etc/localtime, on which local time depends besides TZ. If this file does not
 * exist, all fields are 0. */
struct stat spawnfd_python_local_time(void);

/* Reads the dispositions of signals 1 to 64 to actions[1] to actions[64]. */
void spawnfd_python_read_dispositions(struct sigaction *actions);

/* Whether the initialisation sets the disposition of a signal. */
static inline bool spawnfd_python_sets_signal(const struct startup *startup, int number)
{
	/* CPython always ignores SIGPIPE and SIGXFSZ. */
	return startup->before[number].sa_handler != startup->after[number].sa_handler ||
	       number == SIGPIPE || number == SIGXFSZ;
}

/* Prepares the interpreter for `program`. False if a cold start of `program` would use another
 * interpreter, or if this parked interpreter cannot run `program`. */
bool spawnfd_python_resume(struct startup *startup, const struct program *program);
