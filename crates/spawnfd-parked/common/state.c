/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What start-up code may not have changed by the time a program parks: its environment,
 * descriptors, threads and children. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
	/* A hash of the environment. */
	uint64_t environment;
	/* The open descriptors below 1024, a bit for each. */
	uint64_t descriptors[16];
} before;

/* Calls `each` with the number of each open descriptor; false where they cannot be listed. */
static bool each_descriptor(void (*each)(int))
{
	_Alignas(8) char buffer[2048];
	int list = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long length;

	if (list < 0)
		return false;
	while ((length = syscall(SYS_getdents64, list, buffer, sizeof(buffer))) > 0) {
		for (long at = 0; at < length;) {
			/* struct linux_dirent64: inode and offset of 8 bytes each, length of 2,
			 * type of 1, name. */
			unsigned short size;
			const char *name = buffer + at + 19;

			memcpy(&size, buffer + at + 16, sizeof(size));
			at += size;
			if (*name != '.' && atoi(name) != list)
				each(atoi(name));
		}
	}
	close(list);
	return length == 0;
}

/* FNV-1a, with the NUL of each variable. */
static uint64_t hash_environment(void)
{
	uint64_t hash = 1;

	for (char **at = environ; at && *at; at++)
		for (const char *byte = *at;; byte++) {
			hash = (hash ^ (unsigned char)*byte) * UINT64_C(0x100000001b3);
			if (!*byte)
				break;
		}
	return hash;
}

static void record_descriptor(int fd)
{
	if (fd < 1024)
		before.descriptors[fd / 64] |= UINT64_C(1) << fd % 64;
}

bool spawnfd_record_state(void)
{
	before.environment = hash_environment();
	return each_descriptor(record_descriptor);
}

void spawnfd_check_environment(void)
{
	if (hash_environment() != before.environment)
		spawnfd_cannot_park("changed environment");
}

static bool descriptor_is_new;

static void is_it_new(int fd)
{
	if (fd >= 1024 || !(before.descriptors[fd / 64] >> fd % 64 & 1))
		descriptor_is_new = true;
}

static bool has_children(void)
{
	siginfo_t info;

	return !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || errno != ECHILD;
}

static bool has_one_thread(void)
{
	struct stat tasks;

	/* The directory's own links, and one thread's. */
	return !stat("/proc/self/task", &tasks) && tasks.st_nlink == 3;
}

void spawnfd_check_state(void)
{
	if (!has_one_thread())
		spawnfd_cannot_park("threads");
	if (has_children())
		spawnfd_cannot_park("children");
	if (!each_descriptor(is_it_new) || descriptor_is_new)
		spawnfd_cannot_park("descriptors");
}
