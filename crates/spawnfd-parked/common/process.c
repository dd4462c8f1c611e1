/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Passing for another: what the kernel shows of a process's arguments, and a fork past libc's own.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/prctl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* <sys/prctl.h> and <linux/prctl.h> do not go together everywhere. */
extern int prctl(int option, ...);

extern char *program_invocation_name, *program_invocation_short_name;

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

/* --- a fork that libc does not know of
 * ------------------------------------------------------------ */

/*
 * What pthread_atfork(3) registers: libraries do it by this name. An entry of a library that has
 * been unloaded is empty. There is no lock: start-up code that registers handlers runs in one
 * thread, and a program that has started does not use the list.
 */
struct handlers {
	void (*prepare)(void);
	void (*parent)(void);
	void (*child)(void);
	void *dso;
};
static struct handlers handlers[64];
static size_t registered;
static bool too_many;

PUBLIC int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void),
			     void *dso)
{
	int (*original)(void (*)(void), void (*)(void), void (*)(void), void *) =
		(__typeof__(original))dlsym(RTLD_NEXT, "__register_atfork");
	size_t place = registered;

	if (place < sizeof(handlers) / sizeof(*handlers)) {
		handlers[place] = (struct handlers){prepare, parent, child, dso};
		registered = place + 1;
	} else {
		too_many = true;
	}
	return original ? original(prepare, parent, child, dso) : ENOMEM;
}

static void (*finalize)(void *);

/* Not when it is called: that may be in a program that exits. */
__attribute__((constructor)) static void find_finalize(void)
{
	void *found = dlsym(RTLD_NEXT, "__cxa_finalize");

	memcpy(&finalize, &found, sizeof(found));
}

static bool is_empty(const struct handlers *entry)
{
	return !entry->prepare && !entry->parent && !entry->child;
}

/*
 * The destructor of each library calls this function with the library's __dso_handle, in dlclose()
 * and at exit. libc then drops the fork handlers that were registered with that handle, and so does
 * this object: their code is about to be unmapped, and another library may take its place.
 */
PUBLIC void __cxa_finalize(void *dso)
{
	if (finalize)
		finalize(dso);
	/* The executable has no handle unless it is position-independent, and is never unloaded. */
	for (size_t i = 0; dso && i < registered; i++)
		if (handlers[i].dso == dso)
			handlers[i] = (struct handlers){0};
	while (registered && is_empty(&handlers[registered - 1]))
		registered--;
}

static int *thread_id;
static void *robust_list;
static size_t robust_length;

bool spawnfd_can_fork(void)
{
	return !too_many && prctl(PR_GET_TID_ADDRESS, &thread_id, 0, 0, 0) == 0 && thread_id &&
	       syscall(SYS_get_robust_list, 0, &robust_list, &robust_length) == 0;
}

int spawnfd_fork(const struct spawnfd_fork_hooks *hooks, int32_t *child)
{
	/* The kernel tells libc's idea of the thread's number, as it does for libc's own fork. */
	const unsigned long flags =
		CLONE_PARENT | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
	long pid;
	int error;

	if (hooks && hooks->before)
		hooks->before();
	for (size_t i = registered; i-- > 0;)
		if (handlers[i].prepare)
			handlers[i].prepare();
#if defined(__x86_64__)
	pid = syscall(SYS_clone, flags | SIGCHLD, NULL, child, thread_id, NULL);
#else
	pid = syscall(SYS_clone, flags | SIGCHLD, NULL, child, NULL, thread_id);
#endif
	error = errno;
	if (pid == 0)
		/* Not inherited: set_robust_list(2). */
		syscall(SYS_set_robust_list, robust_list, robust_length);
	for (size_t i = 0; i < registered; i++) {
		void (*handler)(void) = pid == 0 ? handlers[i].child : handlers[i].parent;

		if (handler)
			handler();
	}
	if (hooks && pid == 0 && hooks->after_child)
		hooks->after_child();
	if (hooks && pid != 0 && hooks->after_parent)
		hooks->after_parent();
	return pid == 0 ? 0 : pid > 0 ? -1 : error;
}
