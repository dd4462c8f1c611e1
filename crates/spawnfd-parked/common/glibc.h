/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Versions of glibc's symbols. The object runs with glibc 2.28 and later, whichever version it is
 * built with. */
#pragma once

/* glibc's first version for a processor. */
#if defined(__x86_64__)
#define GLIBC_FIRST "GLIBC_2.2.5"
#else
#define GLIBC_FIRST "GLIBC_2.17"
#endif

/* The version of a function that glibc for x86_64 has had only since `version`. */
#if defined(__x86_64__)
#define GLIBC_SINCE(version) "GLIBC_" version
#else
#define GLIBC_SINCE(version) GLIBC_FIRST
#endif

/*
 * Makes `name` in this file the function `function` of glibc with this version. Otherwise the
 * linker would choose the newest version, and an older glibc could not load the object. glibc keeps
 * the old versions.
 */
#define GLIBC_FUNCTION(name, function, version) __asm__(".symver " #name ", " #function "@" version)
