/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Functions that are new symbols of libc since glibc 2.28. The object has them under their usual
 * names, but calls what every glibc since 2.28 has. check-glibc.sh of the packages tests this.
 */
#include "glibc.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* glibc 2.33 added these two functions. Older headers define them inline. */

int stat(const char *path, struct stat *found)
{
	return (int)syscall(SYS_newfstatat, AT_FDCWD, path, found, 0);
}

int fstat(int fd, struct stat *found)
{
	/* The system call of glibc 2.33 and later: a seccomp filter may permit only this one. */
	return (int)syscall(SYS_newfstatat, fd, "", found, AT_EMPTY_PATH);
}

/*
 * glibc 2.34 moved these three functions from libdl into libc. The references are weak, because a
 * program may lack libdl. Linking with libdl would add its mappings to every parked process.
 */
extern __attribute__((weak)) __typeof__(dlopen) libc_dlopen;
extern __attribute__((weak)) __typeof__(dlsym) libc_dlsym;
extern __attribute__((weak)) __typeof__(dlinfo) libc_dlinfo;
GLIBC_FUNCTION(libc_dlopen, dlopen, GLIBC_FIRST);
GLIBC_FUNCTION(libc_dlsym, dlsym, GLIBC_FIRST);
GLIBC_FUNCTION(libc_dlinfo, dlinfo, GLIBC_SINCE("2.3.3"));

/* glibc before 2.34 has these functions for its own use of libraries. */
extern __attribute__((weak)) void *__libc_dlopen_mode(const char *name, int mode);
extern __attribute__((weak)) void *__libc_dlsym(void *library, const char *name);
enum { RTLD_FROM_LIBC = (int)0x80000000 };

/* A function of libdl, which libc then loads into the program. NULL: there is none. */
static void *load_from_libdl(const char *name)
{
	static void *libdl;

	if (!libdl && __libc_dlopen_mode && __libc_dlsym)
		libdl = __libc_dlopen_mode("libdl.so.2", RTLD_NOW | RTLD_FROM_LIBC);
	return libdl ? __libc_dlsym(libdl, name) : NULL;
}

/* Calls the function of libc or libdl. Without both, the call has the value `otherwise`. */
#define CALL(name, otherwise, ...)                                                                 \
	({                                                                                         \
		static __typeof__(&name) function;                                                 \
		if (!function)                                                                     \
			function = libc_##name ? libc_##name : load_from_libdl(#name);             \
		function ? function(__VA_ARGS__) : (otherwise);                                    \
	})

void *dlopen(const char *path, int mode)
{
	return CALL(dlopen, NULL, path, mode);
}

void *dlsym(void *library, const char *name)
{
	return CALL(dlsym, NULL, library, name);
}

int dlinfo(void *library, int request, void *found)
{
	return CALL(dlinfo, -1, library, request, found);
}
