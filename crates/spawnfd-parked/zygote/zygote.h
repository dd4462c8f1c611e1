/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Declarations that the files of the zygote share. */
#pragma once

#include <stdint.h>

/* The entry point in C, called by _start. It does not return. */
void spawnfd_zygote(int argc, char **argv);

/* Makes a system call. Returns its result, or a negative errno. */
long spawnfd_raw_syscall(long number, const long arguments[6]);
