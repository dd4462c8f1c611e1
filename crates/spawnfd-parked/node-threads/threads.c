/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Threads that end where they wait, and go on when they are needed. */
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

struct thread {
	void *(*start)(void *);
	void *argument;
	/* Where libc keeps its number; what it knows it by; its thread pointer; its list of robust
	 * mutexes. */
	int *tid;
	pthread_t id;
	/* What it waits for. */
	const void *at;
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
/* They have ended; what is made from then on is the program's own. */
static bool ended;
/* They have not been made again. */
static atomic_bool asleep;
/* Descriptors by which they are woken. */
static uint64_t wakes;
/* What /proc says of how many there are without them. */
static nlink_t others;

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
	if (ended)
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

int spawnfd_interruptible_wait(const void *at, int (*block)(void *), void *argument, int again)
{
	struct thread *thread = self;
	int result, error;

	if (!thread || ended)
		return block(argument);
	thread->at = at;
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

/* Two signals are libc's own: nobody blocks or handles them. */
enum { SIGNAL = 33 };

/* As the kernel has it: libc's wrapper knows better. */
struct disposition {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(int);
	uint64_t mask;
};

/* libc is not to learn of it: to it, this thread waits. */
static void leave(int number)
{
	(void)number;
	syscall(SYS_set_tid_address, NULL);
	for (;;)
		syscall(SYS_exit, 0);
}

static nlink_t count_threads(void)
{
	struct stat tasks;

	return stat("/proc/self/task", &tasks) ? 0 : tasks.st_nlink;
}

static bool wait_until(bool (*is_so)(const struct thread *), const struct thread *thread)
{
	const struct timespec a_moment = {.tv_nsec = 100000};

	for (unsigned tries = 0; !is_so(thread); tries++) {
		if (tries > 50000)
			return false;
		nanosleep(&a_moment, NULL);
	}
	return true;
}

static bool rests(const struct thread *thread)
{
	return thread->waits || !thread->alive;
}

static bool is_gone(const struct thread *thread)
{
	return syscall(SYS_tgkill, getpid(), *thread->tid, 0) && errno == ESRCH;
}

bool spawnfd_threads_end(void)
{
	/* The flag, without which there is no handler on x86: SA_RESTORER. */
	struct disposition before, end = {leave, 0x04000000, leave, ~UINT64_C(0)};
	bool done = true;

	atomic_store(&frozen, 1);
	for (unsigned at = 0; at < thread_count && done; at++)
		done = wait_until(rests, &threads[at]);
	syscall(SYS_rt_sigaction, SIGNAL, &end, &before, sizeof(uint64_t));
	for (unsigned at = 0; at < thread_count && done; at++) {
		struct thread *thread = &threads[at];

		if (!thread->alive)
			continue;
		pthread_getname_np(thread->id, thread->name, sizeof(thread->name));
		wakes |= spawnfd_descriptors_watched_by((int)(intptr_t)thread->at);
		done = !syscall(SYS_tgkill, getpid(), *thread->tid, SIGNAL) &&
		       wait_until(is_gone, thread);
	}
	syscall(SYS_rt_sigaction, SIGNAL, &before, NULL, sizeof(uint64_t));
	others = count_threads();
	ended = true;
	atomic_store(&frozen, 0);
	atomic_store(&asleep, true);
	return done;
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

static void make_threads(void)
{
	const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
			  CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
	char name[16];
	sigset_t mask;

	if (!atomic_exchange(&asleep, false))
		return;
	prctl(PR_GET_NAME, name);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	for (unsigned at = 0; at < thread_count; at++) {
		struct thread *thread = &threads[at];

		if (!thread->alive)
			continue;
		/* Both are inherited: nobody sees them otherwise. */
		prctl(PR_SET_NAME, thread->name);
		pthread_sigmask(SIG_SETMASK, &thread->context[0].__saved_mask, NULL);
		/* What lies below the frame that it goes on in is of no use to it. Without its
		 * threads Node would not have started at all. */
		if (clone(resume, thread->frame - 4096, flags, thread, thread->tid, thread->storage,
			  thread->tid) < 0)
			abort();
	}
	prctl(PR_SET_NAME, name);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
}

void spawnfd_before_wake(const void *at)
{
	if (!atomic_load(&asleep))
		return;
	for (unsigned i = 0; i < thread_count; i++)
		if (threads[i].alive && threads[i].at == at) {
			make_threads();
			return;
		}
}

void spawnfd_before_wait(void)
{
	if (atomic_load(&asleep))
		make_threads();
}

void spawnfd_before_write(int fd)
{
	if (atomic_load(&asleep) && fd >= 0 && fd < 64 && wakes >> fd & 1)
		make_threads();
}

bool spawnfd_threads_are_unchanged(void)
{
	nlink_t count = others;

	for (unsigned at = 0; at < thread_count && !atomic_load(&asleep); at++)
		count += threads[at].alive;
	return count_threads() == count;
}
