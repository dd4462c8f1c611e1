/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Leaves out what nobody would see of CPython's end.
 *
 * Py_FinalizeEx() takes everything apart, object by object: 3 ms of a short program's 4, and in a
 * fork a copy of nearly every page. First it does what is seen: it waits for threads, calls
 * atexit's functions, flushes the standard streams. Then it gives back the handler of SIGINT. If by
 * then nothing is left that would be seen to go, that call does not return to it, but to its
 * caller, with 0; if anything is in doubt, all is taken apart as ever (adr/0017).
 */
#define _GNU_SOURCE
#include "finish.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

/* Whether a program runs of which not all has to be taken apart, as far as is known. */
static bool armed;
/* Something was loaded, or done, that may have more to say at the end. */
static volatile bool in_doubt;

/* _inittab */
struct module {
	const char *name;
	void *initialise;
};

static struct {
	int (*add_hook)(int (*)(const char *, object *, void *), void *);
	object *(*tuple_item)(object *, ssize_t);
	const char *(*text)(object *);
	void (*clear_error)(void);
	int (*is_finalizing)(void);
	void *(*first_interpreter)(void);
	void *(*next_interpreter)(void *);
	void *(*first_thread)(void *);
	void *(*next_thread)(void *);
	void *run_main, *exit, *none;
	const struct module *const *built_in;
	/* libgcc's. */
	_Unwind_Reason_Code (*unwind)(_Unwind_Trace_Fn, void *);
	_Unwind_Ptr (*address)(struct _Unwind_Context *);
	_Unwind_Word (*stack)(struct _Unwind_Context *);
	_Unwind_Word (*value)(struct _Unwind_Context *, int);
	void *(*enclosing)(void *);
} find;

static const char harmless[] =
	" _abc _ast _asyncio _bisect _blake2 _bz2 _codecs _collections "
	" _contextvars _csv _datetime _decimal _functools _hashlib _heapq _imp "
	" _io _json _locale _lzma _md5 _opcode _operator _pickle "
	" _posixsubprocess _queue _random _sha1 _sha2 _sha256 _sha3 _sha512 "
	" _signal _socket _sre _ssl _stat _statistics _string _struct _symtable "
	" _sysconfig _thread _tokenize _typing _uuid _warnings _weakref "
	" _zoneinfo array atexit binascii builtins cmath decimal errno fcntl grp "
	" io itertools marshal math posix pwd resource select sys sys.monitoring termios time "
	" unicodedata zlib ";

bool spawnfd_is_harmless(const char *name)
{
	size_t length = name ? strlen(name) : 0;

	/* A definition need not have a name, and a name with a space is none of the list's. */
	if (!length || strchr(name, ' '))
		return false;
	for (const char *found = strstr(harmless, name); found; found = strstr(found + 1, name))
		if (found[-1] == ' ' && found[length] == ' ')
			return true;
	return false;
}

static bool is_built_in(const char *name)
{
	for (const struct module *one = *find.built_in; one->name; one++)
		if (!strcmp(one->name, name))
			return true;
	return false;
}

/* A module that is in C is known, and the interpreter's own. */
static void hear_of_import(object *arguments)
{
	object *file = find.tuple_item(arguments, 1);
	const char *name = find.text(find.tuple_item(arguments, 0));
	const char *path = file && file != find.none ? find.text(file) : NULL;

	if (!name || (file != find.none && !path)) {
		find.clear_error();
		in_doubt = true;
	} else if (path ? !strstr(path, "/lib-dynload/") || !spawnfd_is_harmless(name)
			: is_built_in(name) && !spawnfd_is_harmless(name)) {
		in_doubt = true;
	}
}

/* An audit hook: says nothing against anything. */
static int hear(const char *event, object *arguments, void *unused)
{
	/* Whoever listens would hear what is left out; what warns, and is not in the collector's
	 * lists; a flush that failed; threads, and interpreters. */
	static const char *const doubtful[] = {
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

	(void)unused;
	if (in_doubt)
		return 0;
	if (!strcmp(event, "import"))
		hear_of_import(arguments);
	for (size_t i = 0; i < sizeof(doubtful) / sizeof(*doubtful); i++)
		if (!strncmp(event, doubtful[i], strlen(doubtful[i])))
			in_doubt = true;
	return 0;
}

static bool find_all(void)
{
	/* Not by linking to it: most programs that park have no use for it. */
	void *unwinder = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
	const struct {
		void *library, *found;
		const char *name, *or;
	} names[] = {
		{RTLD_DEFAULT, &find.add_hook, "PySys_AddAuditHook", NULL},
		{RTLD_DEFAULT, &find.tuple_item, "PyTuple_GetItem", NULL},
		{RTLD_DEFAULT, &find.text, "PyUnicode_AsUTF8", NULL},
		{RTLD_DEFAULT, &find.clear_error, "PyErr_Clear", NULL},
		{RTLD_DEFAULT, &find.is_finalizing, "Py_IsFinalizing", "_Py_IsFinalizing"},
		{RTLD_DEFAULT, &find.first_interpreter, "PyInterpreterState_Head", NULL},
		{RTLD_DEFAULT, &find.next_interpreter, "PyInterpreterState_Next", NULL},
		{RTLD_DEFAULT, &find.first_thread, "PyInterpreterState_ThreadHead", NULL},
		{RTLD_DEFAULT, &find.next_thread, "PyThreadState_Next", NULL},
		{RTLD_DEFAULT, &find.run_main, "Py_RunMain", NULL},
		{RTLD_DEFAULT, &find.exit, "Py_Exit", NULL},
		{RTLD_DEFAULT, &find.none, "_Py_NoneStruct", NULL},
		{RTLD_DEFAULT, &find.built_in, "PyImport_Inittab", NULL},
		{unwinder, &find.unwind, "_Unwind_Backtrace", NULL},
		{unwinder, &find.address, "_Unwind_GetIP", NULL},
		{unwinder, &find.stack, "_Unwind_GetCFA", NULL},
		{unwinder, &find.value, "_Unwind_GetGR", NULL},
		{unwinder, &find.enclosing, "_Unwind_FindEnclosingFunction", NULL},
	};

	for (size_t i = 0; unwinder && i < sizeof(names) / sizeof(*names); i++) {
		void *found = dlsym(names[i].library, names[i].name);

		if (!found && names[i].or)
			found = dlsym(names[i].library, names[i].or);
		if (!found)
			return false;
		memcpy(names[i].found, &found, sizeof(found));
	}
	return unwinder != NULL;
}

void spawnfd_finish_add_audit_hook(void)
{
	in_doubt = !find_all() || spawnfd_has_shadow_stack() || find.add_hook(hear, NULL);
}

void spawnfd_finish_end_startup(void)
{
	if (!in_doubt && !spawnfd_objects_find())
		in_doubt = true;
}

void spawnfd_finish_enable(void)
{
	armed = !in_doubt;
}

static bool is_alone(void)
{
	void *interpreter = find.first_interpreter();
	void *thread = interpreter ? find.first_thread(interpreter) : NULL;

	return thread && !find.next_interpreter(interpreter) && !find.next_thread(thread);
}

struct search {
	struct caller found;
	int depth;
};

static _Unwind_Reason_Code look(struct _Unwind_Context *context, void *into)
{
	struct search *search = into;
	_Unwind_Ptr address = find.address(context);
	void *function = find.enclosing((void *)address);

	/* This and that function of ours, two of CPython's for signals, and Py_FinalizeEx(). */
	if (search->depth++ > 6)
		return _URC_END_OF_STACK;
	if (function != find.run_main && function != find.exit)
		return _URC_NO_REASON;
	search->found = (struct caller){
		.go_on = address,
		.stack = find.stack(context),
		.rbx = find.value(context, 3),
		.rbp = find.value(context, 6),
		.r12 = find.value(context, 12),
		.r13 = find.value(context, 13),
		.r14 = find.value(context, 14),
		.r15 = find.value(context, 15),
	};
	return _URC_END_OF_STACK;
}

int __sigaction(int number, const struct sigaction *action, struct sigaction *old);
/* libc's, or that of a library which stands in its place. */
static int (*original)(int, const struct sigaction *, struct sigaction *) = __sigaction;

/* Not when it is called: that may be in a handler. */
__attribute__((constructor)) static void find_original(void)
{
	void *found = dlsym(RTLD_NEXT, "sigaction");

	if (found)
		memcpy(&original, &found, sizeof(found));
}

/* In the place of that one, for every program that parks. */
PUBLIC int sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
	struct search search = {.depth = 0};
	int result = original(number, action, old);

	if (!armed || number != SIGINT || !action || action->sa_handler != SIG_DFL || result)
		return result;
	if (in_doubt || !find.is_finalizing() || !is_alone() || !spawnfd_objects_can_be_skipped())
		return result;
	find.unwind(look, &search);
	/* Once: a program that was interrupted lets SIGINT go again, to die of it. */
	armed = false;
	if (search.found.go_on)
		spawnfd_return_to(&search.found);
	return result;
}
