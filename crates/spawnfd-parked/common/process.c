/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reads /proc/self files, and makes the kernel show the arguments of another program. */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/prctl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Some libcs do not allow both <sys/prctl.h> and <linux/prctl.h> in one file. */
extern int prctl(int option, ...);

bool spawnfd_each_line(const char *path, void (*each)(const char *line))
{
	/* The buffer must hold the longest line, which contains a path. */
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

static void read_fields(const char *line)
{
	/* The fields of /proc/self/stat, counted from 1 as in proc_pid_stat(5). */
	unsigned long long field[52];
	/* Field 2, the name in parentheses, may contain any character, even newlines. Field 3 is a
	 * letter. */
	const char *text = strrchr(line, ')');
	char *end;

	text = text ? strchr(text, ' ') : NULL;
	text = text ? strchr(text + 1, ' ') : NULL;
	if (!text)
		return;
	for (int i = 4; i <= 51; i++) {
		field[i] = strtoull(text, &end, 10);
		text = end;
	}
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
}

bool spawnfd_read_memory_map(void)
{
	if (!spawnfd_each_line("/proc/self/stat", read_fields))
		return false;
	memory.brk = (unsigned long)sbrk(0);
	return prctl(PR_SET_MM, PR_SET_MM_MAP, &memory, sizeof(memory), 0) == 0;
}

uintptr_t spawnfd_heap_start(void)
{
	return memory.start_brk;
}

void spawnfd_set_shown_arguments(const struct program *program, size_t argv_length,
				 size_t env_length)
{
	char *slash;

	memory.brk = (unsigned long)sbrk(0);
	memory.arg_start = (unsigned long)program->argv[0];
	memory.arg_end = memory.env_start = memory.arg_start + argv_length;
	memory.env_end = memory.env_start + env_length;
	/* This call cannot fail, because spawnfd_read_memory_map() made it once. Only the addresses
	 * of the strings and the end of the heap have changed since. */
	prctl(PR_SET_MM, PR_SET_MM_MAP, &memory, sizeof(memory), 0);
	program_invocation_name = program->argv[0];
	slash = strrchr(program->argv[0], '/');
	program_invocation_short_name = slash ? slash + 1 : program->argv[0];
}
