/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Symbol versions of glibc. */
#include <spawn.h>
#include <stddef.h>

/* FIRST is the version of the first glibc for this processor. */
#ifdef __aarch64__
#define FIRST "GLIBC_2.17"
#else
#define FIRST "GLIBC_2.2.5"

/* The first versions of posix_spawn and posix_spawnp. Programs that were linked before glibc 2.15
 * use them. */
#define FUNCTION(name, version, calls)                                                             \
	int calls(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,         \
		  const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]);    \
	__attribute__((symver(version))) int name(                                                 \
		pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,           \
		const posix_spawnattr_t *attributes, char *const argv[], char *const envp[])       \
	{                                                                                          \
		return calls(pid, file, actions, attributes, argv, envp);                          \
	}

FUNCTION(posix_spawn_2_2_5, "posix_spawn@GLIBC_2.2.5", spawnfd_posix_spawn_with_shell)
FUNCTION(posix_spawnp_2_2_5, "posix_spawnp@GLIBC_2.2.5", spawnfd_posix_spawnp_with_shell)
#endif

/*
 * glibc 2.34 moved dlsym and dlvsym from libdl into libc. References to the first version of these
 * functions are valid in both. They are weak, because a program may lack libdl on an older glibc.
 * Such a program has no other implementation of posix_spawn to look up. The linker's option --wrap
 * sends the calls of the library here.
 */
extern __attribute__((weak)) void *libc_dlsym(void *handle, const char *name);
extern __attribute__((weak)) void *libc_dlvsym(void *handle, const char *name, const char *version);
__asm__(".symver libc_dlsym, dlsym@" FIRST);
__asm__(".symver libc_dlvsym, dlvsym@" FIRST);

void *__wrap_dlsym(void *handle, const char *name)
{
	return libc_dlsym ? libc_dlsym(handle, name) : NULL;
}

void *__wrap_dlvsym(void *handle, const char *name, const char *version)
{
	return libc_dlvsym ? libc_dlvsym(handle, name, version) : NULL;
}
