/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reports the authority of this process to its owner. */
#include "authority.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Reads a file of /proc and adds a NUL. Returns the bytes written, or 0 if they do not fit. */
static size_t read_text(const char *path, char *text, size_t size)
{
	size_t length = 0;
	long more = 0;
	int file = openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC);

	if (file < 0) {
		text[0] = 0;
		return 1;
	}
	while (length < size && (more = syscall(SYS_read, file, text + length, size - length)) > 0)
		length += (size_t)more;
	close(file);
	if (length == size)
		return 0;
	if (more < 0)
		length = 0;
	text[length] = 0;
	return length + 1;
}

size_t spawnfd_report_authority(char *text, size_t size, struct spawnfd_reply *reply)
{
	/* Read the calling thread's status, because this thread becomes the program. */
	size_t status = read_text("/proc/thread-self/status", text, size);
	size_t label;

	if (!status)
		return 0;
	label = read_text("/proc/thread-self/attr/current", text + status, size - status);
	if (!label)
		return 0;
	reply->securebits = (uint32_t)prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
	return status + label;
}
