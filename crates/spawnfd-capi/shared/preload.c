/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The two versions of posix_spawn and posix_spawnp in glibc on x86_64. Programs that were linked
 * before glibc 2.15 use the first one. */
#include <spawn.h>

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
