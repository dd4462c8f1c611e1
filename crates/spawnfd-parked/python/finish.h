/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Skips CPython's finalization at the end of a program if the finalization has no visible effect:
 * finish.c. */
#pragma once

#include "cpython.h"

/* Adds an audit hook, which observes imports and other events. Call it before CPython's
 * initialisation. The hook calls `first_import` before the initialisation imports its first module:
 * CPython then has its configuration and can run code, but has not run `site`. */
void spawnfd_finish_add_audit_hook(void (*first_import)(void));

/* Finds CPython's lists of objects. Call it at the end of start-up. */
void spawnfd_finish_end_startup(void);

/* Allows finalization to be skipped from now on. Call it when the program begins. */
void spawnfd_finish_enable(void);

/* --- between the files of python ------------------------------------------------------- */

/* Finds CPython's lists of objects; false if their layout is not as expected. */
bool spawnfd_objects_find(void);

/* Whether this C module is harmless: its objects own only memory and descriptors, or have
 * finalizers of the kind that Python objects have. */
bool spawnfd_is_harmless(const char *module);

/* Whether no object has a visible destruction, except the standard streams, which are flushed. */
bool spawnfd_objects_can_be_skipped(void);

/* The registers that a function must preserve: their DWARF numbers, in the order of `preserved` of
 * struct caller. */
enum { MAX_PRESERVED = 19 };
extern const int spawnfd_preserved[];
extern const int spawnfd_preserved_count;

/* The registers of a calling function, as the unwinder finds them. */
struct caller {
	unsigned long return_address, stack, preserved[MAX_PRESERVED];
};

/* Makes the function `caller` continue as if its call had returned 0. Drops all frames of deeper
 * calls, like longjmp(). */
_Noreturn void spawnfd_return_to(const struct caller *caller);

/* Whether the CPU compares return addresses with a shadow stack. spawnfd_return_to() does not
 * unwind a shadow stack. */
bool spawnfd_has_shadow_stack(void);
