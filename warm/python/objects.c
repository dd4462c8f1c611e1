/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Whether an object of a Python program would be seen to go: by a __del__, by what a weak reference
 * calls, by a buffer that is given back.
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
	TYPE_BUFFER = 160,
	TYPE_FLAGS = 168,
	TYPE_DEL = 376,
	TYPE_FINALIZE = 392,
	BUFFER_RELEASE = 8,
	REFERENCE_CALLS = 24,
	FUNCTION_DEFINITION = 16,
};
#define IS_IMMUTABLE (1UL << 8)
#define IS_HEAP_TYPE (1UL << 9)
#define IS_TYPE (1UL << 31)

static struct {
	void *list, *generator, *function, *c_function;
	void *reference, *proxy, *callable_proxy;
} types;

static int (*is_subtype)(const object *, const object *);
static object *(*module_of)(object *);
static const char *(*text_of)(object *);

/* Three, one behind the other. */
static struct generation *generations;
/* What the standard streams are made of: flushed before. */
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

/* A weak reference that calls something when its object goes; of the interpreter's own, some only
 * forget it: in an _abc registry, in the collections of weakref. */
static bool calls(const object *reference)
{
	object *called = at(reference, REFERENCE_CALLS);
	object *module = NULL;
	const char *name;

	if (!called)
		return false;
	if (at(called, TYPE) == types.c_function)
		return strcmp(at(at(called, FUNCTION_DEFINITION), 0), "_destroy") != 0;
	if (at(called, TYPE) == types.function)
		module = module_of(called);
	name = module ? text_of(module) : NULL;
	return !name || (strcmp(name, "weakref") != 0 && strcmp(name, "_weakrefset") != 0);
}

/* Whether it is seen when this object goes. */
static bool matters(const object *it)
{
	const object *type = at(it, TYPE), *buffer;

	if (at(type, TYPE_FINALIZE) || at(type, TYPE_DEL))
		return true;
	if (type == types.reference || type == types.proxy || type == types.callable_proxy ||
	    (flags(type) & IS_HEAP_TYPE && is_subtype(type, types.reference)))
		return calls(it);
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
		{(void **)&is_subtype, "PyType_IsSubtype"},
		{(void **)&module_of, "PyFunction_GetModule"},
		{(void **)&text_of, "PyUnicode_AsUTF8"},
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
	return find_types() && find_generations();
}

/* Calls `with` each object that would be seen to go, until it says no. */
static bool each_that_matters(bool (*with)(const object *))
{
	for (int i = 0; i < 3; i++) {
		struct link *head = &generations[i].head;

		for (struct link *link = next(head); link != head; link = next(link))
			if (matters(link + 1) && !with(link + 1))
				return false;
	}
	return true;
}

static bool is_of_a_stream(const object *it)
{
	if (strncmp(at(at(it, TYPE), TYPE_NAME), "_io.", 4) != 0 ||
	    stream_count == sizeof(streams) / sizeof(*streams))
		return false;
	streams[stream_count++] = it;
	return true;
}

bool spawnfd_objects_begin(void)
{
	stream_count = 0;
	return each_that_matters(is_of_a_stream);
}

static bool is_known(const object *it)
{
	for (int i = 0; i < stream_count; i++)
		if (streams[i] == it)
			return true;
	return false;
}

bool spawnfd_objects_go_unseen(void)
{
	return each_that_matters(is_known);
}
