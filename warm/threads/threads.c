/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Threads that wait, and go on in a copy of their process. */
#define _GNU_SOURCE
#include "threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

struct thread {
	void *(*start)(void *);
	void *argument;
	/* Where libc keeps its number; what it knows it by; its thread pointer; its list of robust
	 * mutexes. */
	int *tid;
	pthread_t id;
	void *storage;
	void *robust;
	size_t robust_length;
	char name[16];
	sigjmp_buf context;
	char *frame;
	atomic_bool alive, waits;
};

enum { MAX_THREADS = 64 };
static struct thread threads[MAX_THREADS];
static atomic_uint thread_count;
static _Atomic uint32_t frozen;
/* This process is a child: it needs no copies of its own. */
static bool is_copy;

#if defined(__x86_64__)
enum { SEQUENCE_SIGNATURE = 0x53053053 };
#else
enum { SEQUENCE_SIGNATURE = (int)0xd428bc00 };
#endif

static _Thread_local struct thread *self __attribute__((tls_model("initial-exec")));

static void *start(void *argument)
{
	struct thread *thread = argument;
	void *result;

	self = thread;
	thread->id = pthread_self();
	thread->storage = __builtin_thread_pointer();
	prctl(PR_GET_TID_ADDRESS, &thread->tid, 0, 0, 0);
	syscall(SYS_get_robust_list, 0, &thread->robust, &thread->robust_length);
	result = thread->start(thread->argument);
	self = NULL;
	thread->alive = false;
	return result;
}

PUBLIC int pthread_create(pthread_t *id, const pthread_attr_t *attributes,
			  void *(*function)(void *), void *argument)
{
	static int (*original)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	struct thread *thread;
	unsigned at;
	int error;

	if (!original)
		original = (__typeof__(original))dlsym(RTLD_NEXT, "pthread_create");
	if (is_copy)
		return original(id, attributes, function, argument);
	at = atomic_fetch_add(&thread_count, 1);
	if (at >= MAX_THREADS)
		return EAGAIN;
	thread = &threads[at];
	thread->start = function;
	thread->argument = argument;
	thread->alive = true;
	error = original(id, attributes, start, thread);
	if (error)
		thread->alive = false;
	return error;
}

static void wait_while_frozen(struct thread *thread)
{
	for (;;) {
		atomic_store(&thread->waits, false);
		if (!atomic_load(&frozen))
			return;
		atomic_store(&thread->waits, true);
		syscall(SYS_futex, &frozen, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
	}
}

int spawnfd_rest(int (*block)(void *), void *argument, int again)
{
	struct thread *thread = self;
	int result, error;

	if (!thread || is_copy)
		return block(argument);
	thread->frame = __builtin_frame_address(0);
	if (sigsetjmp(thread->context, 1)) {
		errno = EINTR;
		return again;
	}
	atomic_store(&thread->waits, true);
	result = block(argument);
	error = errno;
	wait_while_frozen(thread);
	errno = error;
	return result;
}

bool spawnfd_threads_freeze(void)
{
	const struct timespec a_moment = {.tv_nsec = 100000};

	atomic_store(&frozen, 1);
	for (unsigned at = 0, tries = 0; at < thread_count; at++)
		while (threads[at].alive && !threads[at].waits) {
			if (++tries > 50000)
				return false;
			nanosleep(&a_moment, NULL);
		}
	for (unsigned at = 0; at < thread_count; at++)
		if (threads[at].alive && !threads[at].name[0])
			pthread_getname_np(threads[at].id, threads[at].name,
					   sizeof(threads[at].name));
	return true;
}

void spawnfd_threads_thaw(void)
{
	atomic_store(&frozen, 0);
	syscall(SYS_futex, &frozen, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Restartable sequences, as libc (2.35 and later) registers them: rseq(2). */
static void register_sequences(struct thread *thread)
{
	const ptrdiff_t *offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
	const unsigned *size = dlsym(RTLD_DEFAULT, "__rseq_size");
	uint32_t *cpu;

	if (!offset || !size || !*size)
		return;
	/* The second word of the area is the processor's number, or why there is none. */
	cpu = (uint32_t *)((char *)thread->storage + *offset) + 1;
	*cpu = (uint32_t)-1;
	if (syscall(SYS_rseq, cpu - 1, *size > 32 ? *size : 32, 0, SEQUENCE_SIGNATURE))
		*cpu = (uint32_t)-2;
}

static int resume(void *argument)
{
	struct thread *thread = argument;

	syscall(SYS_set_robust_list, thread->robust, thread->robust_length);
	register_sequences(thread);
	siglongjmp(thread->context, 1);
}

bool spawnfd_threads_again(void)
{
	const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
			  CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;

	char name[16];
	sigset_t mask;
	bool done = true;

	is_copy = true;
	atomic_store(&frozen, 0);
	prctl(PR_GET_NAME, name);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	for (unsigned at = 0; at < thread_count && done; at++) {
		struct thread *thread = &threads[at];

		if (!thread->alive)
			continue;
		/* Both are inherited: nobody sees them otherwise. */
		prctl(PR_SET_NAME, thread->name);
		pthread_sigmask(SIG_SETMASK, &thread->context[0].__saved_mask, NULL);
		/* What lies below the frame that it goes on in is of no use to it. */
		done = clone(resume, thread->frame - 4096, flags, thread, thread->tid,
			     thread->storage, thread->tid) > 0;
	}
	prctl(PR_SET_NAME, name);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	return done;
}

bool spawnfd_threads_are_as_made(void)
{
	unsigned alive = 0;
	struct stat tasks;

	for (unsigned at = 0; at < thread_count; at++)
		alive += threads[at].alive;
	/* The directory's own links; the first thread's. */
	return is_copy && !stat("/proc/self/task", &tasks) && tasks.st_nlink == 2 + 1 + alive;
}
