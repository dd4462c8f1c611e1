/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The places where threads wait. */
#define _GNU_SOURCE
#include "threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* --- condition variables ------------------------------------------------------------------------
 * A number that every signal moves on, and nothing about who waits: a copy has nobody to account
 * for. They replace libc's throughout the process, so that no one is used by both.
 */

struct condition {
	_Atomic uint32_t signals;
	uint32_t monotonic, shared;
};
_Static_assert(sizeof(struct condition) <= sizeof(pthread_cond_t), "fits");

struct pause {
	struct condition *condition;
	uint32_t seen;
	const struct timespec *until;
	bool monotonic;
};

static int pause_until_signalled(void *argument)
{
	const struct pause *pause = argument;
	int operation = FUTEX_WAIT_BITSET;

	if (!pause->condition->shared)
		operation |= FUTEX_PRIVATE_FLAG;
	if (!pause->monotonic)
		operation |= FUTEX_CLOCK_REALTIME;
	return syscall(SYS_futex, &pause->condition->signals, operation, pause->seen, pause->until,
		       NULL, FUTEX_BITSET_MATCH_ANY)
		       ? errno
		       : 0;
}

static int wait_on(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until,
		   bool monotonic)
{
	struct condition *condition = (void *)cond;
	struct pause pause = {condition, atomic_load(&condition->signals), until, monotonic};
	int error;

	spawnfd_before_wait();
	if (until && (until->tv_nsec < 0 || until->tv_nsec >= 1000000000))
		return EINVAL;
	error = pthread_mutex_unlock(mutex);
	if (error)
		return error;
	/* A time before the epoch has passed; the kernel calls it invalid. */
	if (until && until->tv_sec < 0)
		error = ETIMEDOUT;
	else
		error = spawnfd_interruptible_wait(cond, pause_until_signalled, &pause, 0);
	pthread_mutex_lock(mutex);
	return error == ETIMEDOUT ? ETIMEDOUT : 0;
}

PUBLIC int pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attributes)
{
	clockid_t clock = CLOCK_REALTIME;
	int shared = PTHREAD_PROCESS_PRIVATE;

	if (attributes) {
		pthread_condattr_getclock(attributes, &clock);
		pthread_condattr_getpshared(attributes, &shared);
	}
	*(struct condition *)cond = (struct condition){
		.monotonic = clock == CLOCK_MONOTONIC,
		.shared = shared == PTHREAD_PROCESS_SHARED,
	};
	return 0;
}

PUBLIC int pthread_cond_destroy(pthread_cond_t *cond)
{
	(void)cond;
	return 0;
}

PUBLIC int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	return wait_on(cond, mutex, NULL, false);
}

PUBLIC int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
				  const struct timespec *until)
{
	return wait_on(cond, mutex, until, ((struct condition *)cond)->monotonic);
}

PUBLIC int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
				  const struct timespec *until)
{
	return wait_on(cond, mutex, until, clock == CLOCK_MONOTONIC);
}

static int wake(pthread_cond_t *cond, int count)
{
	struct condition *condition = (void *)cond;

	spawnfd_before_wake(cond);
	atomic_fetch_add(&condition->signals, 1);
	syscall(SYS_futex, &condition->signals, condition->shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE,
		count, NULL, NULL, 0);
	return 0;
}

PUBLIC int pthread_join(pthread_t thread, void **result)
{
	static int (*original)(pthread_t, void **);

	if (!original)
		original = (__typeof__(original))dlsym(RTLD_NEXT, "pthread_join");
	spawnfd_before_wait();
	return original(thread, result);
}

PUBLIC int pthread_cond_signal(pthread_cond_t *cond)
{
	return wake(cond, 1);
}

PUBLIC int pthread_cond_broadcast(pthread_cond_t *cond)
{
	return wake(cond, INT32_MAX);
}

/* --- semaphores, and event loops ----------------------------------------------------------------
 * libc's, and the kernel's: asking once more is no harm.
 */

static int (*libc_sem_wait)(sem_t *), (*libc_sem_post)(sem_t *);

static void find_semaphores(void)
{
	if (libc_sem_post)
		return;
	libc_sem_wait = (__typeof__(libc_sem_wait))dlsym(RTLD_NEXT, "sem_wait");
	libc_sem_post = (__typeof__(libc_sem_post))dlsym(RTLD_NEXT, "sem_post");
}

static int wait_for_semaphore(void *semaphore)
{
	return libc_sem_wait(semaphore);
}

PUBLIC int sem_wait(sem_t *semaphore)
{
	find_semaphores();
	spawnfd_before_wait();
	return spawnfd_interruptible_wait(semaphore, wait_for_semaphore, semaphore, -1);
}

/* Called by handlers of signals, too: by then it has been waited for. */
PUBLIC int sem_post(sem_t *semaphore)
{
	find_semaphores();
	spawnfd_before_wake(semaphore);
	return libc_sem_post(semaphore);
}

struct poll {
	int epoll;
	struct epoll_event *events;
	int most, timeout;
	const sigset_t *mask;
};

static int wait_for_events(void *argument)
{
	const struct poll *poll = argument;

	return (int)syscall(SYS_epoll_pwait, poll->epoll, poll->events, poll->most, poll->timeout,
			    poll->mask, 8);
}

PUBLIC int epoll_pwait(int epoll, struct epoll_event *events, int most, int timeout,
		       const sigset_t *mask)
{
	struct poll poll = {epoll, events, most, timeout, mask};

	if (timeout == 0)
		return wait_for_events(&poll);
	return spawnfd_interruptible_wait((void *)(intptr_t)epoll, wait_for_events, &poll, -1);
}

/* As a loop is told that there is something for it. */
PUBLIC ssize_t write(int fd, const void *data, size_t length)
{
	static ssize_t (*original)(int, const void *, size_t);

	if (!original)
		original = (__typeof__(original))dlsym(RTLD_NEXT, "write");
	spawnfd_before_write(fd);
	return original(fd, data, length);
}
