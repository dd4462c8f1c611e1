/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What start-up code writes to stdout and stderr belongs to the program and would be lost, so a
 * program that writes before it parks cannot park. */
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Copies of descriptors 1 and 2 while a file stands in their place; 0: none does. */
static int outputs[2];

void spawnfd_capture_output(int file)
{
	for (int i = 0; i < 2; i++) {
		/* A sandbox's own program may have closed one. */
		outputs[i] = fcntl(1 + i, F_DUPFD_CLOEXEC, file);
		if (outputs[i] > 0 && dup3(file, 1 + i, 0) < 0)
			_exit(126);
	}
	close(file);
}

void spawnfd_restore_output(void)
{
	struct stat file;
	bool any = false;

	for (int i = 0; i < 2; i++) {
		if (outputs[i] <= 0)
			continue;
		any |= !fstat(1 + i, &file) && file.st_size > 0;
		dup3(outputs[i], 1 + i, 0);
		close(outputs[i]);
	}
	if (any)
		spawnfd_cannot_park("start-up code writes");
}
