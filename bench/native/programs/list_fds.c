// SPDX-License-Identifier: MIT OR Apache-2.0
/* Prints the open descriptors of this process in ascending order, each followed by a space. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int by_number(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

int main(void)
{
	static int fds[65536];
	size_t count = 0;
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	if (!dir)
		return 1;
	while ((entry = readdir(dir)) && count < sizeof(fds) / sizeof(*fds)) {
		int fd = atoi(entry->d_name);

		if (entry->d_name[0] != '.' && fd != dirfd(dir))
			fds[count++] = fd;
	}
	closedir(dir);
	qsort(fds, count, sizeof(*fds), by_number);
	for (size_t i = 0; i < count; i++)
		printf("%d ", fds[i]);
	return fflush(stdout) ? 1 : 0;
}
