/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The end of a Python program of which nothing has to be torn down. */
#ifndef SPAWNFD_FINISH_H
#define SPAWNFD_FINISH_H

#include "cpython.h"

/* Halfway through CPython's initialisation: has it say what is loaded and done from then on. */
void spawnfd_finish_add_audit_hook(void);

/* When start-up is done. */
void spawnfd_finish_end_startup(void);

/* When the program begins. */
void spawnfd_finish_enable(void);

/* --- between the files of python ------------------------------------------------------- */

/* Finds where CPython keeps its objects; false where that is not as it is known. */
bool spawnfd_objects_find(void);

/* Whether the objects of a module in C own nothing but memory and descriptors, or are finalized as
 * those of Python are. */
bool spawnfd_is_harmless(const char *module);

/* Whether no object but the standard streams, which have been flushed, would be seen to go. */
bool spawnfd_objects_can_be_skipped(void);

/* What the unwinder finds of a function that has called: where it goes on, and with what. */
struct caller {
	unsigned long go_on, stack, rbx, rbp, r12, r13, r14, r15;
};

/* Returns 0 to the one who has called, from whatever has been called since. */
_Noreturn void spawnfd_return_to(const struct caller *caller);

/* Whether returns are held against a second stack, which then would have to be unwound, too. */
bool spawnfd_has_shadow_stack(void);

#endif
