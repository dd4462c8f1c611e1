/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the parts of the zygote share. */
#ifndef SPAWNFD_ZYGOTE_H
#define SPAWNFD_ZYGOTE_H

#include <stdint.h>

/* Where the program begins. It does not return. */
void spawnfd_zygote(int argc, char **argv);

/*
 * clone(2) of a child that runs on a stack of its own, whose end is `top`, and exits with what
 * `run` returns. The child's number, or a negative errno.
 */
long spawnfd_clone(unsigned long flags, void *top, int32_t *number, int (*run)(void *), void *data);

/* clone(2) by this processor's own conventions, and its system call. */
long spawnfd_enter(long number, const long arguments[6]);

#endif
