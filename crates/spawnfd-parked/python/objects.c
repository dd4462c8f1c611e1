/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Checks whether the destruction of an object would be visible: by a __del__ method, by the
 * callback of a weak reference, by the release of a buffer, or by code of a C module.
 *
 * All objects with a visible destruction are in the lists of CPython's garbage collector, one list
 * for each of its three generations. This code reads every object and writes to none: in a forked
 * process, a changed reference count would make the kernel copy the page.
 */
#include "finish.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* PyGC_Head, which precedes each object. The collector uses the low bits of both words as flags. */
struct gc_head {
	uintptr_t next, previous;
};

/* CPython's struct gc_generation. */
struct generation {
	struct gc_head head;
	int threshold, count;
};

/* Offsets in PyObject, PyTypeObject, PyWeakReference and PyCFunctionObject, in bytes. They are the
 * same from 3.8 to 3.14. */
enum {
	TYPE = 8,
	TYPE_NAME = 24,
	TYPE_SIZE = 32,
	TYPE_BUFFER = 160,
	TYPE_FLAGS = 168,
	TYPE_DEL = 376,
	TYPE_FINALIZE = 392,
	BUFFER_RELEASE = 8,
	REFERENCE_CALLBACK = 24,
	FUNCTION_DEFINITION = 16,
	MODULE_NAME = 40,
};
#define IS_IMMUTABLE (1UL << 8)
#define IS_HEAP_TYPE (1UL << 9)
#define IS_TYPE (1UL << 31)

/* The garbage collector's array of three generations. */
static struct generation *generations;
/* All objects at the time of parking, in the order of the collector's list. */
static const struct gc_head **listed;
static size_t listed_count;
/* The objects that sys.stdin, sys.stdout and sys.stderr consist of. */
static const object *streams[9];
static int stream_count;

static inline void *read_word(const void *base, size_t offset)
{
	void *value;

	memcpy(&value, (const char *)base + offset, sizeof(value));
	return value;
}

static inline struct gc_head *next_head(const struct gc_head *link)
{
	return (struct gc_head *)(link->next & ~(uintptr_t)3);
}

static inline unsigned long flags(const object *type)
{
	return (unsigned long)read_word(type, TYPE_FLAGS);
}

/* Whether the reference is a KeyedRef of a WeakValueDictionary with a key of type str or int. The
 * reference's callback hashes the key. Hashing a str or an int runs no code of the program. */
static bool has_plain_key(const object *reference, const object *type)
{
	size_t key_offset = (size_t)read_word(py._PyWeakref_RefType, TYPE_SIZE);
	const object *key;

	if (strcmp(read_word(type, TYPE_NAME), "KeyedRef") != 0 ||
	    (size_t)read_word(type, TYPE_SIZE) != key_offset + sizeof(key))
		return false;
	key = read_word(reference, key_offset);
	return key && (read_word(key, TYPE) == py.PyUnicode_Type ||
		       read_word(key, TYPE) == py.PyLong_Type);
}

/* Whether a weak reference has a callback with a possible effect. The callbacks of _abc registries
 * and of the collections in weakref only remove the reference. */
static bool has_visible_callback(const object *reference, const object *type)
{
	object *callback = read_word(reference, REFERENCE_CALLBACK);
	object *module = NULL;
	const char *name;

	if (!callback)
		return false;
	if (read_word(callback, TYPE) == py.PyCFunction_Type)
		return strcmp(read_word(read_word(callback, FUNCTION_DEFINITION), 0), "_destroy") !=
		       0;
	if (flags(type) & IS_HEAP_TYPE && !has_plain_key(reference, type))
		return true;
	if (read_word(callback, TYPE) == py.PyFunction_Type)
		module = py.PyFunction_GetModule(callback);
	name = module ? py.PyUnicode_AsUTF8(module) : NULL;
	return !name || (strcmp(name, "weakref") != 0 && strcmp(name, "_weakrefset") != 0);
}

/* Whether a module is a C module that is not known to be harmless. Audit events do not report every
 * import, so all modules are checked. */
static bool is_unknown_module(object *module)
{
	const void *definition = py.PyModule_GetDef(module);

	return definition && !spawnfd_is_harmless(read_word(definition, MODULE_NAME));
}

/* Whether the destruction of this object is visible. */
static bool has_visible_destruction(const object *candidate)
{
	const object *type = read_word(candidate, TYPE), *buffer;

	if (read_word(type, TYPE_FINALIZE) || read_word(type, TYPE_DEL))
		return true;
	if (type == py._PyWeakref_RefType || type == py._PyWeakref_ProxyType ||
	    type == py._PyWeakref_CallableProxyType ||
	    (flags(type) & IS_HEAP_TYPE && py.PyType_IsSubtype(type, py._PyWeakref_RefType)))
		return has_visible_callback(candidate, type);
	if (type == py.PyModule_Type)
		return is_unknown_module((object *)candidate);
	/* Since 3.12, a Python class can have __release_buffer__(). */
	if (!(flags(type) & IS_TYPE) ||
	    (flags(candidate) & (IS_HEAP_TYPE | IS_IMMUTABLE)) != IS_HEAP_TYPE)
		return false;
	buffer = read_word(candidate, TYPE_BUFFER);
	return buffer && read_word(buffer, BUFFER_RELEASE);
}

/* Finds the collector's lists by following a new object through them. */
static bool find_generations(void)
{
	object *fresh = py.PyList_New(0);
	struct gc_head *link = (struct gc_head *)fresh - 1, *old;
	size_t steps = 0;
	bool is_expected;

	if (!fresh || read_word(fresh, TYPE) != py.PyList_Type)
		return false;
	/* A new object is the last in the youngest generation, so the list head comes next. */
	generations = (struct generation *)next_head(link);
	is_expected = (generations->head.previous & ~(uintptr_t)3) == (uintptr_t)link;
	py.PyGC_Collect();
	/* The collection has moved all objects to the oldest generation. */
	old = next_head(link);
	while (is_expected && old != &generations[2].head && steps++ < 10000000)
		old = next_head(old);
	is_expected = is_expected && old == &generations[2].head;
	for (int i = 0; is_expected && i < 2; i++)
		is_expected = next_head(&generations[i].head) == &generations[i].head;
	py.Py_DecRef(fresh);
	return is_expected;
}

/* Records the addresses of all objects, which fetch_ahead() uses. */
static void list_objects(void)
{
	const struct gc_head *head = &generations[2].head;
	size_t count = 0;

	for (const struct gc_head *link = next_head(head); link != head; link = next_head(link))
		count++;
	listed = malloc(count * sizeof(*listed));
	if (!listed)
		return;
	for (const struct gc_head *link = next_head(head); link != head; link = next_head(link))
		listed[listed_count++] = link;
}

/* Checks the layout by known properties of these types. */
static bool layout_is_known(void)
{
	return !strcmp(read_word(py.PyList_Type, TYPE_NAME), "list") &&
	       !read_word(py.PyList_Type, TYPE_FINALIZE) &&
	       read_word(py.PyGen_Type, TYPE_FINALIZE) && !read_word(py.PyGen_Type, TYPE_DEL) &&
	       !(flags(py.PyList_Type) & (IS_HEAP_TYPE | IS_TYPE)) &&
	       flags(read_word(py.PyList_Type, TYPE)) & IS_TYPE;
}

bool spawnfd_objects_find(void)
{
	if (!layout_is_known() || !find_generations())
		return false;
	list_objects();
	return true;
}

/* Adds an object to the parts of streams. False if its type is not `type`, or if it has an
 * attribute besides `allowed`: CPython might call such an attribute instead of a method. */
static bool add_part(object *part, const char *type, const char *allowed)
{
	object *attributes, *value = NULL;
	ssize_t size = -1;

	if (strcmp(read_word(read_word(part, TYPE), TYPE_NAME), type) != 0)
		return false;
	attributes = py.PyObject_GetAttrString(part, "__dict__");
	if (attributes) {
		size = py.PyObject_Size(attributes);
		value = allowed ? py.PyDict_GetItemString(attributes, allowed) : NULL;
		py.Py_DecRef(attributes);
	}
	streams[stream_count++] = part;
	return size == (value ? 1 : 0);
}

/* Returns an attribute as a borrowed reference: `whole` keeps the object alive. */
static object *part_of(object *whole, const char *name)
{
	object *part = py.PyObject_GetAttrString(whole, name);

	if (part)
		py.Py_DecRef(part);
	return part;
}

/* Adds the parts of a standard stream. True if the stream is as start-up makes it, or is None. */
static bool add_stream(const char *name, const char *buffer_type)
{
	object *stream = py.PySys_GetObject(name), *buffer, *raw;

	/* If sys.stdout is None, sys.__stdout__ may still refer to a stream. That stream does not
	 * become a known part, so its destruction counts as visible. */
	if (!stream || stream == py._Py_NoneStruct)
		return true;
	if (!add_part(stream, "_io.TextIOWrapper", "mode") || !(buffer = part_of(stream, "buffer")))
		return false;
	raw = buffer;
	if (strcmp(read_word(read_word(buffer, TYPE), TYPE_NAME), "_io.FileIO") != 0 &&
	    (!add_part(buffer, buffer_type, NULL) || !(raw = part_of(buffer, "raw"))))
		return false;
	return add_part(raw, "_io.FileIO", "name") && part_of(raw, "closefd") == py._Py_FalseStruct;
}

static bool find_streams(void)
{
	stream_count = 0;
	return add_stream("stdin", "_io.BufferedReader") &&
	       add_stream("stdout", "_io.BufferedWriter") &&
	       add_stream("stderr", "_io.BufferedWriter");
}

static bool is_stream_part(const object *candidate)
{
	for (int i = 0; i < stream_count; i++)
		if (streams[i] == candidate)
			return true;
	return false;
}

/*
 * Prefetches an object that comes some steps after `link`. Each object has the address of the next
 * object, and few objects are in a cache, so the loop mostly waits for memory. `listed` has the
 * addresses from the time of parking, so the CPU can fetch several objects at once. `position` is
 * the index in `listed`. CPython may have freed an object since then. Prefetching the address of a
 * freed object does no harm.
 */
static void fetch_ahead(const struct gc_head *link, size_t *position)
{
	enum { AHEAD = 24, NEAR = 8 };

	for (size_t i = *position; i < listed_count && i < *position + NEAR; i++) {
		if (listed[i] != link)
			continue;
		*position = i + 1;
		if (i + AHEAD < listed_count) {
			__builtin_prefetch(listed[i + AHEAD]);
			__builtin_prefetch((const char *)(listed[i + AHEAD] + 1) + TYPE);
		}
		break;
	}
}

static bool only_streams_are_visible(void)
{
	size_t position = 0;

	for (int i = 2; i >= 0; i--) {
		struct gc_head *head = &generations[i].head;

		for (struct gc_head *link = next_head(head); link != head; link = next_head(link)) {
			fetch_ahead(link, &position);
			if (has_visible_destruction(link + 1) && !is_stream_part(link + 1))
				return false;
		}
	}
	return true;
}

/* Flushes a stream again; false on failure. Py_FinalizeEx() has flushed the stream, but it does not
 * report a failure of standard error. A signal handler may also have written since then. */
static bool flush_again(const char *name)
{
	object *stream = py.PySys_GetObject(name), *closed, *done;

	if (!stream || stream == py._Py_NoneStruct)
		return true;
	closed = part_of(stream, "closed");
	if (closed != py._Py_FalseStruct)
		return closed != NULL;
	done = py.PyObject_CallMethod(stream, "flush", NULL);
	if (done)
		py.Py_DecRef(done);
	return done != NULL;
}

bool spawnfd_objects_can_be_skipped(void)
{
	/* The order matters: find_streams() allocates objects, so it may start a garbage
	 * collection, which may print. */
	bool can_skip = find_streams() && only_streams_are_visible() && flush_again("stdout") &&
			flush_again("stderr");

	py.PyErr_Clear();
	return can_skip;
}
