/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Compares environment, descriptors, threads and children of this process with the state before
 * start-up code ran. If start-up code has changed one of them, the process cannot park. */
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
} recorded;

/* Calls `each` with the number of each open descriptor; false if they cannot be listed. */
static bool each_descriptor(void (*each)(int))
{
	_Alignas(8) char buffer[2048];
	int list = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long length;

	if (list < 0)
		return false;
	while ((length = syscall(SYS_getdents64, list, buffer, sizeof(buffer))) > 0) {
		for (long offset = 0; offset < length;) {
			/* struct linux_dirent64: d_ino and d_off have 8 bytes each, d_reclen 2
			 * bytes, d_type 1 byte; d_name follows. */
			unsigned short size;
			const char *name = buffer + offset + 19;

			memcpy(&size, buffer + offset + 16, sizeof(size));
			offset += size;
			if (*name != '.' && atoi(name) != list)
				each(atoi(name));
		}
	}
	close(list);
	return length == 0;
}

/* An FNV-1a hash of all variables, each with its NUL. */
static uint64_t hash_environment(void)
{
	uint64_t hash = 1;

	for (char **entry = environ; entry && *entry; entry++)
		for (const char *byte = *entry;; byte++) {
			hash = (hash ^ (unsigned char)*byte) * UINT64_C(0x100000001b3);
			if (!*byte)
				break;
		}
	return hash;
}

static void record_descriptor(int fd)
{
	if (fd < 1024)
		recorded.descriptors[fd / 64] |= UINT64_C(1) << fd % 64;
}

bool spawnfd_record_state(void)
{
	recorded.environment = hash_environment();
	return each_descriptor(record_descriptor);
}

void spawnfd_check_environment(void)
{
	if (hash_environment() != recorded.environment)
		spawnfd_cannot_park("changed environment");
}

static bool descriptor_is_new;

static void check_descriptor(int fd)
{
	if (fd >= 1024 || !(recorded.descriptors[fd / 64] >> fd % 64 & 1))
		descriptor_is_new = true;
}

static bool has_children(void)
{
	siginfo_t info;

	return !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || errno != ECHILD;
}

nlink_t spawnfd_count_threads(void)
{
	struct stat tasks;

	/* The link count of /proc/self/task is two for the directory itself, and one for each
	 * thread. */
	return stat("/proc/self/task", &tasks) ? 0 : tasks.st_nlink - 2;
}

void spawnfd_check_state(void)
{
	if (spawnfd_count_threads() != 1)
		spawnfd_cannot_park("threads");
	if (has_children())
		spawnfd_cannot_park("children");
	if (!each_descriptor(check_descriptor) || descriptor_is_new)
		spawnfd_cannot_park("descriptors");
}
