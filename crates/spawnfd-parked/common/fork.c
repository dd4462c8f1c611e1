/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Forks children of this process's parent (CLONE_PARENT). libc's fork() cannot do that. This code
 * therefore also runs the handlers of pthread_atfork(3). */
#include "internal.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * The fork handlers of this process. pthread_atfork(3) registers them by __register_atfork(). The
 * entry of an unloaded library is empty. The list needs no lock: start-up code that registers
 * handlers runs in one thread, and a program that has started does not use the list.
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
	__typeof__(&__register_atfork) original = REPLACED(__register_atfork);
	size_t index = registered;

	if (index < sizeof(handlers) / sizeof(*handlers)) {
		handlers[index] = (struct handlers){prepare, parent, child, dso};
		registered = index + 1;
	} else {
		too_many = true;
	}
	return original ? original(prepare, parent, child, dso) : ENOMEM;
}

static void (*finalize)(void *);

/* Looks up libc's __cxa_finalize() at load time, so that an exiting program does not call dlsym().
 */
__attribute__((constructor)) static void find_finalize(void)
{
	finalize = (__typeof__(finalize))dlsym(RTLD_NEXT, "__cxa_finalize");
}

static bool is_empty(const struct handlers *entry)
{
	return !entry->prepare && !entry->parent && !entry->child;
}

/*
 * The destructor of each library calls this function with the library's __dso_handle, in dlclose()
 * and at exit. libc then drops the fork handlers that were registered with that handle. This
 * function drops them from `handlers` too, because dlclose() unmaps the code of the handlers.
 */
PUBLIC void __cxa_finalize(void *dso)
{
	if (finalize)
		finalize(dso);
	/* `dso` is NULL for an executable that is not position-independent. Nothing unloads an
	 * executable. */
	for (size_t i = 0; dso && i < registered; i++)
		if (handlers[i].dso == dso)
			handlers[i] = (struct handlers){0};
	while (registered && is_empty(&handlers[registered - 1]))
		registered--;
}

int *spawnfd_own_thread_id(void)
{
	/* libc describes the field to debuggers: its size in bits, the number of elements, and the
	 * offset from pthread_self(). */
	const uint32_t *field = dlsym(RTLD_DEFAULT, "_thread_db_pthread_tid");
	int *cleared = NULL;

	if (field)
		return (int *)(pthread_self() + field[2]);
	/* A libc without this description has the id in the word that the kernel clears. NULL:
	 * glibc before 2.34 has such a word only in programs with libpthread. Other programs do not
	 * read the id. */
	prctl(PR_GET_TID_ADDRESS, &cleared, 0, 0, 0);
	return cleared;
}

/* libc's field for the id of this thread, and the word that the kernel clears when the thread ends.
 * Both are the same in glibc 2.41 and older, but not in glibc 2.43. */
static int *thread_id, *cleared_word;
static void *robust_list;
static size_t robust_length;

bool spawnfd_can_fork(void)
{
	thread_id = spawnfd_own_thread_id();
	return !too_many && prctl(PR_GET_TID_ADDRESS, &cleared_word, 0, 0, 0) == 0 &&
	       syscall(SYS_get_robust_list, 0, &robust_list, &robust_length) == 0;
}

int spawnfd_fork(const struct spawnfd_interpreter *interpreter, int32_t *child)
{
	/* These flags make the kernel write the child's thread id to libc's field, as libc's fork()
	 * does. */
	const unsigned long flags =
		CLONE_PARENT | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
	long pid;
	int error;

	if (interpreter->before_fork)
		interpreter->before_fork();
	for (size_t i = registered; i-- > 0;)
		if (handlers[i].prepare)
			handlers[i].prepare();
#if defined(__x86_64__)
	pid = syscall(SYS_clone, flags | SIGCHLD, NULL, child, thread_id, NULL);
#else
	pid = syscall(SYS_clone, flags | SIGCHLD, NULL, child, NULL, thread_id);
#endif
	error = errno;
	/* A child does not inherit the robust list (set_robust_list(2)), so register it again. */
	if (pid == 0)
		syscall(SYS_set_robust_list, robust_list, robust_length);
	if (pid == 0 && cleared_word != thread_id)
		syscall(SYS_set_tid_address, cleared_word);
	for (size_t i = 0; i < registered; i++) {
		void (*handler)(void) = pid == 0 ? handlers[i].child : handlers[i].parent;

		if (handler)
			handler();
	}
	if (pid == 0 && interpreter->after_fork_in_child)
		interpreter->after_fork_in_child();
	if (pid != 0 && interpreter->after_fork_in_parent)
		interpreter->after_fork_in_parent();
	return pid == 0 ? 0 : pid > 0 ? -1 : error;
}
