/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Whether an object of a Python program would be seen to go: by a __del__, by what a weak reference
 * calls, by a buffer that is given back, by what a module in C does.
 *
 * CPython keeps all objects that can have such things in the lists of its collector, three
 * generations. They are only read, every one: a reference counted up would copy the page.
 */
#define _GNU_SOURCE
#include "finish.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* PyGC_Head, before each object; the low bits of both are the collector's own. */
struct link {
	uintptr_t next, previous;
};

/* gc_generation: a head of a list, and two numbers. */
struct generation {
	struct link head;
	int threshold, count;
};

/* What is public of PyObject, PyTypeObject, PyWeakReference, PyCFunctionObject, in bytes: the same
 * from 3.8 to 3.13. */
enum {
	TYPE = 8,
	TYPE_NAME = 24,
	TYPE_SIZE = 32,
	TYPE_BUFFER = 160,
	TYPE_FLAGS = 168,
	TYPE_DEL = 376,
	TYPE_FINALIZE = 392,
	BUFFER_RELEASE = 8,
	REFERENCE_CALLS = 24,
	FUNCTION_DEFINITION = 16,
	MODULE_NAME = 40,
};
#define IS_IMMUTABLE (1UL << 8)
#define IS_HEAP_TYPE (1UL << 9)
#define IS_TYPE (1UL << 31)

static struct {
	void *list, *generator, *function, *c_function;
	void *reference, *proxy, *callable_proxy;
	void *module, *text, *number;
} types;

static int (*is_subtype)(const object *, const object *);
static object *(*module_of)(object *);
static const char *(*text_of)(object *);
static const void *(*definition_of)(object *);
static object *(*system_object)(const char *);
static object *(*attribute)(object *, const char *);
static object *(*call_method)(object *, const char *, const char *, ...);
static ssize_t (*size_of)(object *);
static void (*clear_error)(void);
static const object *none, *no;

/* Three, one behind the other. */
static struct generation *generations;
/* All objects as they were listed when it parked. */
static const struct link **listed;
static size_t listed_count;
/* What the standard streams are made of. */
static const object *streams[9];
static int stream_count;

static inline void *at(const void *of, size_t offset)
{
	void *value;

	memcpy(&value, (const char *)of + offset, sizeof(value));
	return value;
}

static inline struct link *next(const struct link *link)
{
	return (struct link *)(link->next & ~(uintptr_t)3);
}

static inline unsigned long flags(const object *type)
{
	return (unsigned long)at(type, TYPE_FLAGS);
}

/* One of a dictionary of weak values, whose key is hashed once more: by no code of a program's. */
static bool has_plain_key(const object *reference, const object *type)
{
	size_t place = (size_t)at(types.reference, TYPE_SIZE);
	const object *key;

	if (strcmp(at(type, TYPE_NAME), "KeyedRef") != 0 ||
	    (size_t)at(type, TYPE_SIZE) != place + sizeof(key))
		return false;
	key = at(reference, place);
	return key && (at(key, TYPE) == types.text || at(key, TYPE) == types.number);
}

/* A weak reference that calls something when its object goes; of the interpreter's own, some only
 * forget it: in an _abc registry, in the collections of weakref. */
static bool calls(const object *reference, const object *type)
{
	object *called = at(reference, REFERENCE_CALLS);
	object *module = NULL;
	const char *name;

	if (!called)
		return false;
	if (at(called, TYPE) == types.c_function)
		return strcmp(at(at(called, FUNCTION_DEFINITION), 0), "_destroy") != 0;
	if (flags(type) & IS_HEAP_TYPE && !has_plain_key(reference, type))
		return true;
	if (at(called, TYPE) == types.function)
		module = module_of(called);
	name = module ? text_of(module) : NULL;
	return !name || (strcmp(name, "weakref") != 0 && strcmp(name, "_weakrefset") != 0);
}

/* However it was imported: not all ways are heard of. */
static bool is_doubtful_module(object *module)
{
	const void *definition = definition_of(module);

	return definition && !spawnfd_is_harmless(at(definition, MODULE_NAME));
}

/* Whether it is seen when this object goes. */
static bool matters(const object *it)
{
	const object *type = at(it, TYPE), *buffer;

	if (at(type, TYPE_FINALIZE) || at(type, TYPE_DEL))
		return true;
	if (type == types.reference || type == types.proxy || type == types.callable_proxy ||
	    (flags(type) & IS_HEAP_TYPE && is_subtype(type, types.reference)))
		return calls(it, type);
	if (type == types.module)
		return is_doubtful_module((object *)it);
	/* A class in Python that lends a buffer, from 3.12 on. */
	if (!(flags(type) & IS_TYPE) || (flags(it) & (IS_HEAP_TYPE | IS_IMMUTABLE)) != IS_HEAP_TYPE)
		return false;
	buffer = at(it, TYPE_BUFFER);
	return buffer && at(buffer, BUFFER_RELEASE);
}

/* Finds the collector's lists by what it does with a new object. */
static bool find_generations(void)
{
	object *fresh = py.PyList_New(0);
	struct link *link = (struct link *)fresh - 1, *old;
	size_t steps = 0;
	bool known;

	if (!fresh || at(fresh, TYPE) != types.list)
		return false;
	/* It is the last of the youngest, whose head comes next. */
	generations = (struct generation *)next(link);
	known = (generations->head.previous & ~(uintptr_t)3) == (uintptr_t)link;
	py.PyGC_Collect();
	/* And now, with all others, one of the oldest. */
	old = next(link);
	while (known && old != &generations[2].head && steps++ < 10000000)
		old = next(old);
	known = known && old == &generations[2].head;
	for (int i = 0; known && i < 2; i++)
		known = next(&generations[i].head) == &generations[i].head;
	py.Py_DecRef(fresh);
	return known;
}

/* Remembers where the objects are, for who goes through them all once more. */
static void list_objects(void)
{
	const struct link *head = &generations[2].head;
	size_t count = 0;

	for (const struct link *link = next(head); link != head; link = next(link))
		count++;
	listed = malloc(count * sizeof(*listed));
	if (!listed)
		return;
	for (const struct link *link = next(head); link != head; link = next(link))
		listed[listed_count++] = link;
}

static bool find_types(void)
{
	const struct {
		void **found;
		const char *name;
	} names[] = {
		{&types.list, "PyList_Type"},
		{&types.generator, "PyGen_Type"},
		{&types.function, "PyFunction_Type"},
		{&types.c_function, "PyCFunction_Type"},
		{&types.reference, "_PyWeakref_RefType"},
		{&types.proxy, "_PyWeakref_ProxyType"},
		{&types.callable_proxy, "_PyWeakref_CallableProxyType"},
		{&types.module, "PyModule_Type"},
		{&types.text, "PyUnicode_Type"},
		{&types.number, "PyLong_Type"},
		{(void **)&none, "_Py_NoneStruct"},
		{(void **)&no, "_Py_FalseStruct"},
		{(void **)&is_subtype, "PyType_IsSubtype"},
		{(void **)&module_of, "PyFunction_GetModule"},
		{(void **)&text_of, "PyUnicode_AsUTF8"},
		{(void **)&definition_of, "PyModule_GetDef"},
		{(void **)&system_object, "PySys_GetObject"},
		{(void **)&attribute, "PyObject_GetAttrString"},
		{(void **)&call_method, "PyObject_CallMethod"},
		{(void **)&size_of, "PyObject_Size"},
		{(void **)&clear_error, "PyErr_Clear"},
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (!(*names[i].found = dlsym(RTLD_DEFAULT, names[i].name)))
			return false;
	/* The layout is right where it says of these what is known. */
	return !strcmp(at(types.list, TYPE_NAME), "list") && !at(types.list, TYPE_FINALIZE) &&
	       at(types.generator, TYPE_FINALIZE) && !at(types.generator, TYPE_DEL) &&
	       !(flags(types.list) & (IS_HEAP_TYPE | IS_TYPE)) &&
	       flags(at(types.list, TYPE)) & IS_TYPE;
}

bool spawnfd_objects_find(void)
{
	if (!find_types() || !find_generations())
		return false;
	list_objects();
	return true;
}

/* Takes note of a part of a stream, if it is one of this type, with no attributes but one at most:
 * none that would be called in a method's stead. */
static bool note(object *part, const char *type, const char *own)
{
	object *attributes, *it = NULL;
	ssize_t size = -1;

	if (strcmp(at(at(part, TYPE), TYPE_NAME), type) != 0)
		return false;
	attributes = attribute(part, "__dict__");
	if (attributes) {
		size = size_of(attributes);
		it = own ? py.PyDict_GetItemString(attributes, own) : NULL;
		py.Py_DecRef(attributes);
	}
	streams[stream_count++] = part;
	return size == (it ? 1 : 0);
}

/* The object is kept by the one that it was asked for. */
static object *part_of(object *whole, const char *name)
{
	object *part = attribute(whole, name);

	if (part)
		py.Py_DecRef(part);
	return part;
}

/* One of the three as start-up makes them, or None. */
static bool note_stream(const char *name, const char *buffer_type)
{
	object *stream = system_object(name), *buffer, *raw;

	/* Is it gone, another one may be left in sys.__stdout__. */
	if (!stream || stream == none)
		return true;
	if (!note(stream, "_io.TextIOWrapper", "mode") || !(buffer = part_of(stream, "buffer")))
		return false;
	raw = buffer;
	if (strcmp(at(at(buffer, TYPE), TYPE_NAME), "_io.FileIO") != 0 &&
	    (!note(buffer, buffer_type, NULL) || !(raw = part_of(buffer, "raw"))))
		return false;
	return note(raw, "_io.FileIO", "name") && part_of(raw, "closefd") == no;
}

static bool note_streams(void)
{
	stream_count = 0;
	return note_stream("stdin", "_io.BufferedReader") &&
	       note_stream("stdout", "_io.BufferedWriter") &&
	       note_stream("stderr", "_io.BufferedWriter");
}

static bool is_known(const object *it)
{
	for (int i = 0; i < stream_count; i++)
		if (streams[i] == it)
			return true;
	return false;
}

/*
 * Fetches what will be looked at a while after `link`. Each object is found by the one before, and
 * hardly any is in a cache: that is most of the time it takes to go through them all. By the list
 * of what was there before, some come at once. No more than a hint: what has gone since was memory
 * once, and nothing is read here.
 */
static void fetch_ahead(const struct link *link, size_t *place)
{
	enum { AHEAD = 24, NEAR = 8 };

	for (size_t i = *place; i < listed_count && i < *place + NEAR; i++) {
		if (listed[i] != link)
			continue;
		*place = i + 1;
		if (i + AHEAD < listed_count) {
			__builtin_prefetch(listed[i + AHEAD]);
			__builtin_prefetch((const char *)(listed[i + AHEAD] + 1) + TYPE);
		}
		break;
	}
}

static bool only_streams_matter(void)
{
	size_t place = 0;

	for (int i = 2; i >= 0; i--) {
		struct link *head = &generations[i].head;

		for (struct link *link = next(head); link != head; link = next(link)) {
			fetch_ahead(link, &place);
			if (matters(link + 1) && !is_known(link + 1))
				return false;
		}
	}
	return true;
}

/* Whether all was written that was to be: a failure to write to standard error is not told, and a
 * handler of SIGHUP has gone since the flush. */
static bool is_written(const char *name)
{
	object *stream = system_object(name), *closed, *done;

	if (!stream || stream == none)
		return true;
	closed = part_of(stream, "closed");
	if (closed != no)
		return closed != NULL;
	done = call_method(stream, "flush", NULL);
	if (done)
		py.Py_DecRef(done);
	return done != NULL;
}

bool spawnfd_objects_can_be_skipped(void)
{
	/* In this order: what is made to look at the streams may start a collection, which may
	 * print. */
	bool unseen = note_streams() && only_streams_matter() && is_written("stdout") &&
		      is_written("stderr");

	clear_error();
	return unseen;
}
