/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Ends threads while they wait, and recreates them when they are needed: threads.h. */
#include "threads.h"
#include "glibc.h"

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
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct thread {
	void *(*start)(void *);
	void *argument;
	/* libc's field for the thread id, and the word that the kernel clears when the thread ends.
	 */
	int *tid, *cleared_word;
	pthread_t id;
	/* The object for which the thread waits, from spawnfd_interruptible_wait(). */
	const void *object;
	/* The thread pointer, which points to the thread-local storage. */
	void *storage;
	/* The list of robust mutexes. */
	void *robust;
	size_t robust_length;
	char name[16];
	/* The registers at the wait, and the stack frame. */
	sigjmp_buf context;
	char *frame;
	atomic_bool alive, waiting;
};

enum { MAX_THREADS = 64 };
static struct thread threads[MAX_THREADS];
static atomic_uint thread_count;
/* A futex. While it is 1, a thread that wakes up waits on this futex until a signal ends it. */
static _Atomic uint32_t frozen;
/* True once spawnfd_threads_end() has run. Threads that are created later belong to the program. */
static bool ended;
/* True while the recorded threads do not exist: from their end until their recreation. */
static atomic_bool suspended;
/* A bit for each descriptor whose readiness wakes one of the threads. */
static uint64_t wake_descriptors;
/* The number of threads while the recorded threads do not exist. */
static nlink_t remaining_count;

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
	thread->tid = spawnfd_own_thread_id();
	prctl(PR_GET_TID_ADDRESS, &thread->cleared_word, 0, 0, 0);
	syscall(SYS_get_robust_list, 0, &thread->robust, &thread->robust_length);
	result = thread->start(thread->argument);
	self = NULL;
	thread->alive = false;
	return result;
}

PUBLIC int pthread_create(pthread_t *id, const pthread_attr_t *attributes,
			  void *(*function)(void *), void *argument)
{
	__typeof__(&pthread_create) original = REPLACED(pthread_create);
	struct thread *thread;
	unsigned index;
	int error;

	if (ended)
		return original(id, attributes, function, argument);
	index = atomic_fetch_add(&thread_count, 1);
	if (index >= MAX_THREADS)
		return EAGAIN;
	thread = &threads[index];
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
		atomic_store(&thread->waiting, false);
		if (!atomic_load(&frozen))
			return;
		atomic_store(&thread->waiting, true);
		syscall(SYS_futex, &frozen, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
	}
}

int spawnfd_interruptible_wait(const void *object, int (*block)(void *), void *argument,
			       int interrupted)
{
	struct thread *thread = self;
	int result, error;

	if (!thread || ended)
		return block(argument);
	thread->object = object;
	thread->frame = __builtin_frame_address(0);
	if (sigsetjmp(thread->context, 1)) {
		errno = EINTR;
		return interrupted;
	}
	atomic_store(&thread->waiting, true);
	result = block(argument);
	error = errno;
	wait_while_frozen(thread);
	errno = error;
	return result;
}

/* A signal that libc reserves, so programs neither block nor handle it. */
enum { SIGNAL = 33 };

/* Handles SIGNAL. Ends the thread by system calls, so libc still regards it as waiting. */
static void end_thread(int number)
{
	syscall(SYS_set_tid_address, NULL);
	for (;;)
		syscall(SYS_exit, 0);
}

static bool wait_until(bool (*condition)(const struct thread *), const struct thread *thread)
{
	const struct timespec interval = {.tv_nsec = 100000};

	for (unsigned tries = 0; !condition(thread); tries++) {
		if (tries > 50000)
			return false;
		nanosleep(&interval, NULL);
	}
	return true;
}

static bool is_waiting(const struct thread *thread)
{
	return thread->waiting || !thread->alive;
}

static bool is_gone(const struct thread *thread)
{
	return syscall(SYS_tgkill, getpid(), *thread->tid, 0) && errno == ESRCH;
}

GLIBC_FUNCTION(pthread_getname_np, pthread_getname_np, GLIBC_SINCE("2.12"));

bool spawnfd_threads_end(void)
{
	/* 0x04000000 is SA_RESTORER, which x86 requires for a handler. */
	const unsigned long handler = (unsigned long)end_thread;
	struct spawnfd_disposition before, end = {handler, 0x04000000, handler, ~UINT64_C(0)};
	bool done = true;

	atomic_store(&frozen, 1);
	for (unsigned index = 0; index < thread_count && done; index++)
		done = wait_until(is_waiting, &threads[index]);
	spawnfd_set_disposition(SIGNAL, &end, &before);
	for (unsigned index = 0; index < thread_count && done; index++) {
		struct thread *thread = &threads[index];

		if (!thread->alive)
			continue;
		pthread_getname_np(thread->id, thread->name, sizeof(thread->name));
		wake_descriptors |= spawnfd_descriptors_watched_by((int)(intptr_t)thread->object);
		done = !syscall(SYS_tgkill, getpid(), *thread->tid, SIGNAL) &&
		       wait_until(is_gone, thread);
	}
	spawnfd_set_disposition(SIGNAL, &before, NULL);
	remaining_count = spawnfd_count_threads();
	ended = true;
	atomic_store(&frozen, 0);
	atomic_store(&suspended, true);
	return done;
}

/* Registers restartable sequences for the thread, as libc 2.35 and later does: rseq(2). */
static void register_sequences(struct thread *thread)
{
	const ptrdiff_t *offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
	const unsigned *size = dlsym(RTLD_DEFAULT, "__rseq_size");
	uint32_t *cpu;

	if (!offset || !size || !*size)
		return;
	/* The second word of struct rseq is the CPU number: -1 is uninitialized, -2 means that the
	 * registration failed. */
	cpu = (uint32_t *)((char *)thread->storage + *offset) + 1;
	*cpu = (uint32_t)-1;
	if (syscall(SYS_rseq, cpu - 1, *size > 32 ? *size : 32, 0, SEQUENCE_SIGNATURE))
		*cpu = (uint32_t)-2;
}

static int resume_thread(void *argument)
{
	struct thread *thread = argument;

	syscall(SYS_set_robust_list, thread->robust, thread->robust_length);
	register_sequences(thread);
	siglongjmp(thread->context, 1);
}

static void recreate_threads(void)
{
	const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
			  CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
	char name[16];
	sigset_t mask;

	if (!atomic_exchange(&suspended, false))
		return;
	prctl(PR_GET_NAME, name);
	sigprocmask(SIG_SETMASK, NULL, &mask);
	for (unsigned index = 0; index < thread_count; index++) {
		struct thread *thread = &threads[index];

		if (!thread->alive)
			continue;
		/* The new thread inherits name and signal mask from this thread, so set them first.
		 * The code after the loop restores this thread's name and mask. */
		prctl(PR_SET_NAME, thread->name);
		sigprocmask(SIG_SETMASK, &thread->context[0].__saved_mask, NULL);
		/* The thread's stack below the saved frame is free. Node cannot run without its
		 * threads, so a failure is fatal. */
		if (clone(resume_thread, thread->frame - 4096, flags, thread, thread->tid,
			  thread->storage, thread->cleared_word) < 0)
			abort();
	}
	prctl(PR_SET_NAME, name);
	sigprocmask(SIG_SETMASK, &mask, NULL);
}

void spawnfd_before_wake(const void *object)
{
	if (!atomic_load(&suspended))
		return;
	for (unsigned i = 0; i < thread_count; i++)
		if (threads[i].alive && threads[i].object == object) {
			recreate_threads();
			return;
		}
}

void spawnfd_before_wait(void)
{
	if (atomic_load(&suspended))
		recreate_threads();
}

void spawnfd_before_write(int fd)
{
	if (atomic_load(&suspended) && fd >= 0 && fd < 64 && wake_descriptors >> fd & 1)
		recreate_threads();
}

bool spawnfd_threads_are_unchanged(void)
{
	nlink_t count = remaining_count;

	for (unsigned index = 0; index < thread_count && !atomic_load(&suspended); index++)
		count += threads[index].alive;
	return spawnfd_count_threads() == count;
}
