/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Captures the output of start-up code to stdout and stderr. This output would be lost, so a
 * program that writes before it parks cannot park. */
#include "internal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Copies of descriptors 1 and 2 while both refer to the capture file; 0 or less if there is no
 * copy. */
static int saved[2];

void spawnfd_capture_output(int file)
{
	for (int i = 0; i < 2; i++) {
		/* The copy fails if the sandbox program has closed descriptor 1 or 2. */
		saved[i] = fcntl(1 + i, F_DUPFD_CLOEXEC, file);
		if (saved[i] > 0 && dup3(file, 1 + i, 0) < 0)
			_exit(126);
	}
	close(file);
}

void spawnfd_restore_output(void)
{
	struct stat file;
	bool has_output = false;

	for (int i = 0; i < 2; i++) {
		if (saved[i] <= 0)
			continue;
		has_output |= !fstat(1 + i, &file) && file.st_size > 0;
		dup3(saved[i], 1 + i, 0);
		close(saved[i]);
	}
	if (has_output)
		spawnfd_cannot_park("start-up code writes");
}
