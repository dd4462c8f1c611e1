/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the kernel shows of this process, and how it is made to show another program's arguments. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/prctl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* <sys/prctl.h> and <linux/prctl.h> do not go together everywhere. */
extern int prctl(int option, ...);

bool spawnfd_each_line(const char *path, void (*each)(const char *line))
{
	/* The longest has a path in it. */
	char text[2 * PATH_MAX + 1];
	size_t length = 0;
	ssize_t more;
	int file = open(path, O_RDONLY | O_CLOEXEC);

	if (file < 0)
		return false;
	while ((more = read(file, text + length, sizeof(text) - 1 - length)) > 0) {
		char *line = text, *end;

		text[length += (size_t)more] = 0;
		for (; (end = strchr(line, '\n')); line = end + 1) {
			*end = 0;
			each(line);
		}
		length -= (size_t)(line - text);
		memmove(text, line, length);
	}
	close(file);
	return more == 0;
}

static struct prctl_mm_map memory;

/* Fields of /proc/self/stat, counted from 1: proc_pid_stat(5). */
static unsigned long long field[52];

static void read_fields(const char *line)
{
	/* The name before may have anything in it, line breaks too. Field 3 is a letter. */
	char *at = strrchr(line, ')');

	at = at ? strchr(at, ' ') : NULL;
	at = at ? strchr(at + 1, ' ') : NULL;
	for (int i = 4; at && i <= 51; i++)
		field[i] = strtoull(at, &at, 10);
}

bool spawnfd_remember_memory(void)
{
	if (!spawnfd_each_line("/proc/self/stat", read_fields))
		return false;
	memory = (struct prctl_mm_map){
		.start_code = field[26],
		.end_code = field[27],
		.start_stack = field[28],
		.start_data = field[45],
		.end_data = field[46],
		.start_brk = field[47],
		.arg_start = field[48],
		.arg_end = field[49],
		.env_start = field[50],
		.env_end = field[51],
		.exe_fd = (__u32)-1,
	};
	memory.brk = (unsigned long)sbrk(0);
	return prctl(PR_SET_MM, PR_SET_MM_MAP, &memory, sizeof(memory), 0) == 0;
}

uintptr_t spawnfd_heap(void)
{
	return memory.start_brk;
}

void spawnfd_show_arguments(const struct program *program, size_t argv_length, size_t env_length)
{
	char *slash;

	memory.brk = (unsigned long)sbrk(0);
	memory.arg_start = (unsigned long)program->argv[0];
	memory.arg_end = memory.env_start = memory.arg_start + argv_length;
	memory.env_end = memory.env_start + env_length;
	/* The same as before, but for addresses in this very mapping: it cannot fail any more. */
	prctl(PR_SET_MM, PR_SET_MM_MAP, &memory, sizeof(memory), 0);
	program_invocation_name = program->argv[0];
	slash = strrchr(program->argv[0], '/');
	program_invocation_short_name = slash ? slash + 1 : program->argv[0];
}
