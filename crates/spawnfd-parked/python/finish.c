/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Skips the part of CPython's finalization that has no visible effect.
 *
 * Py_FinalizeEx() first does the visible work: it waits for threads, calls the functions of atexit
 * and flushes the standard streams. Then it restores the handler of SIGINT. Last it destroys all
 * objects. The destruction takes 3 of a short program's 4 ms, and in a forked process it copies
 * nearly every page. This file replaces sigaction(), which Py_FinalizeEx() calls for SIGINT. If no
 * remaining object has a visible destruction, sigaction() returns 0 directly to the caller of
 * Py_FinalizeEx(). In case of doubt sigaction() returns normally, and CPython destroys the objects
 * (decision record 0017).
 */
#include "finish.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

/* True while a program runs and no event has required its finalization. */
static bool can_skip;
/* True after an event that requires CPython to destroy its objects. */
static volatile bool must_finalize;
/* The function to call before the first import; NULL once it has been called. */
static void (*before_first_import)(void);

static struct {
	/* Py_IsFinalizing() of CPython. */
	int (*is_finalizing)(void);
	/* Functions of libgcc. */
	_Unwind_Reason_Code (*unwind)(_Unwind_Trace_Fn, void *);
	_Unwind_Ptr (*address)(struct _Unwind_Context *);
	_Unwind_Word (*stack)(struct _Unwind_Context *);
	_Unwind_Word (*value)(struct _Unwind_Context *, int);
	void *(*enclosing)(void *);
} symbols;

static const char harmless[] =
	" _abc _ast _asyncio _bisect _blake2 _bz2 _codecs _collections "
	" _contextvars _csv _datetime _decimal _functools _hashlib _heapq _hmac "
	" _imp _io _json _locale _lzma _md5 _opcode _operator _pickle "
	" _posixsubprocess _queue _random _sha1 _sha2 _sha256 _sha3 _sha512 "
	" _signal _socket _sre _ssl _stat _statistics _string _struct "
	" _suggestions _symtable _sysconfig _thread _tokenize _types _typing "
	" _uuid _warnings _weakref _zoneinfo _zstd array atexit binascii "
	" builtins cmath decimal errno fcntl grp io itertools marshal math "
	" posix pwd resource select sys sys._jit sys.monitoring termios time "
	" unicodedata zlib ";

bool spawnfd_is_harmless(const char *name)
{
	size_t length = name ? strlen(name) : 0;

	/* A module's definition may have no name. Spaces separate the names in the list `harmless`,
	 * so the list has no name with a space. */
	if (!length || strchr(name, ' '))
		return false;
	for (const char *found = strstr(harmless, name); found; found = strstr(found + 1, name))
		if (found[-1] == ' ' && found[length] == ' ')
			return true;
	return false;
}

static bool is_built_in(const char *name)
{
	for (const struct module *one = *py.PyImport_Inittab; one->name; one++)
		if (!strcmp(one->name, name))
			return true;
	return false;
}

/* Requires finalization if this event imports a C module that is not known to be harmless, or that
 * does not belong to the interpreter. */
static void check_import(object *arguments)
{
	object *file = py.PyTuple_GetItem(arguments, 1);
	const char *name = py.PyUnicode_AsUTF8(py.PyTuple_GetItem(arguments, 0));
	const char *path = file && file != py._Py_NoneStruct ? py.PyUnicode_AsUTF8(file) : NULL;

	if (!name || (file != py._Py_NoneStruct && !path)) {
		py.PyErr_Clear();
		must_finalize = true;
	} else if (path ? !strstr(path, "/lib-dynload/") || !spawnfd_is_harmless(name)
			: is_built_in(name) && !spawnfd_is_harmless(name)) {
		must_finalize = true;
	}
}

/* The audit hook. It never refuses an event. */
static int audit(const char *event, object *arguments, void *unused)
{
	/* Audit hooks, tracing and monitoring could observe the destruction of objects. A scandir
	 * iterator or a socket warns when CPython destroys it. sys.unraisablehook reports a failed
	 * flush. The other events are uses of gc, threads and interpreters. */
	static const char *const prefixes[] = {
		"sys.addaudithook",
		"sys.set",
		"sys.monitoring",
		"sys.unraisablehook",
		"os.scandir",
		"socket.__new__",
		"gc.",
		"_thread.start",
		"cpython.PyInterpreterState_New",
	};

	if (before_first_import) {
		void (*call)(void) = before_first_import;

		if (strcmp(event, "import") != 0)
			return 0;
		before_first_import = NULL;
		call();
	}
	if (!strcmp(event, "open"))
		spawnfd_python_record_open(arguments);
	if (must_finalize)
		return 0;
	if (!strcmp(event, "import"))
		check_import(arguments);
	for (size_t i = 0; i < sizeof(prefixes) / sizeof(*prefixes); i++)
		if (!strncmp(event, prefixes[i], strlen(prefixes[i])))
			must_finalize = true;
	return 0;
}

static bool find_symbols(void)
{
	/* Load libgcc here instead of linking it, because most parked programs do not need it. */
	void *unwinder = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
	const struct {
		void *library, *found;
		const char *name;
	} names[] = {
		{RTLD_DEFAULT, &symbols.is_finalizing,
		 layout->minor < 13 ? "_Py_IsFinalizing" : "Py_IsFinalizing"},
		{unwinder, &symbols.unwind, "_Unwind_Backtrace"},
		{unwinder, &symbols.address, "_Unwind_GetIP"},
		{unwinder, &symbols.stack, "_Unwind_GetCFA"},
		{unwinder, &symbols.value, "_Unwind_GetGR"},
		{unwinder, &symbols.enclosing, "_Unwind_FindEnclosingFunction"},
	};

	for (size_t i = 0; unwinder && i < sizeof(names) / sizeof(*names); i++) {
		void *found = dlsym(names[i].library, names[i].name);

		if (!found)
			return false;
		memcpy(names[i].found, &found, sizeof(found));
	}
	return unwinder != NULL;
}

void spawnfd_finish_add_audit_hook(void (*first_import)(void))
{
	before_first_import = first_import;
	if (py.PySys_AddAuditHook(audit, NULL))
		spawnfd_cannot_park("the interpreter's initialisation failed");
	must_finalize = !find_symbols() || spawnfd_has_shadow_stack();
}

void spawnfd_finish_end_startup(void)
{
	must_finalize = must_finalize || !spawnfd_objects_find();
}

void spawnfd_finish_enable(void)
{
	can_skip = !must_finalize;
}

static bool has_one_thread(void)
{
	void *interpreter = py.PyInterpreterState_Head();
	void *thread = interpreter ? py.PyInterpreterState_ThreadHead(interpreter) : NULL;

	return thread && !py.PyInterpreterState_Next(interpreter) && !py.PyThreadState_Next(thread);
}

struct search {
	struct caller found;
	int depth;
};

static _Unwind_Reason_Code find_caller(struct _Unwind_Context *context, void *into)
{
	struct search *search = into;
	_Unwind_Ptr address = symbols.address(context);
	void *function = symbols.enclosing((void *)address);

	/* At most five frames precede the frame of Py_FinalizeEx()'s caller: two of this file, two
	 * signal functions of CPython, and Py_FinalizeEx(). */
	if (search->depth++ > 6)
		return _URC_END_OF_STACK;
	if (function != (void *)py.Py_RunMain && function != (void *)py.Py_Exit)
		return _URC_NO_REASON;
	search->found = (struct caller){
		.return_address = address,
		.stack = symbols.stack(context),
	};
	for (int i = 0; i < spawnfd_preserved_count; i++)
		search->found.preserved[i] = symbols.value(context, spawnfd_preserved[i]);
	return _URC_END_OF_STACK;
}

int __sigaction(int number, const struct sigaction *action, struct sigaction *old);
/* The next sigaction() in symbol order: the function of libc, or of another library that replaces
 * it. */
static int (*original)(int, const struct sigaction *, struct sigaction *) = __sigaction;

/* Looks up the function at load time, because a signal handler may call sigaction(). */
__attribute__((constructor)) static void find_original(void)
{
	void *found = dlsym(RTLD_NEXT, "sigaction");

	if (found)
		memcpy(&original, &found, sizeof(found));
}

/* Replaces libc's sigaction() in every program that parks. */
PUBLIC int sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
	struct search search = {.depth = 0};
	int result = original(number, action, old);

	if (!can_skip || number != SIGINT || !action || action->sa_handler != SIG_DFL || result)
		return result;
	if (must_finalize || !symbols.is_finalizing() || !has_one_thread() ||
	    !spawnfd_objects_can_be_skipped())
		return result;
	symbols.unwind(find_caller, &search);
	/* Skip finalization only once. After KeyboardInterrupt, CPython resets SIGINT a second time
	 * and kills itself by it. */
	can_skip = false;
	if (search.found.return_address)
		spawnfd_return_to(&search.found);
	return result;
}
