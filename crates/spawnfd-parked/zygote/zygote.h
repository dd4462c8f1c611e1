/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the parts of the zygote share. */
#ifndef SPAWNFD_ZYGOTE_H
#define SPAWNFD_ZYGOTE_H

#include <stdint.h>

/* Where the program begins. It does not return. */
void spawnfd_zygote(int argc, char **argv);

/* The processor's system call: its result, or a negative errno. */
long spawnfd_enter(long number, const long arguments[6]);

#endif
