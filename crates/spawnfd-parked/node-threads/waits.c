/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Replacements of the libc functions in which threads wait or wake other threads. */
#include "threads.h"
#include "glibc.h"

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
 * A condition variable here is a number that each signal increments. Unlike a condition variable of
 * libc, it does not count its waiters. So its copy in a forked child is valid without the waiters.
 * These functions replace all of libc's functions for condition variables, so a variable never has
 * both layouts.
 */

struct condition {
	_Atomic uint32_t signals;
	uint32_t monotonic, shared;
};
_Static_assert(sizeof(struct condition) <= sizeof(pthread_cond_t), "fits");

struct condition_wait {
	struct condition *condition;
	uint32_t last_signals;
	const struct timespec *deadline;
	bool monotonic;
};

static int block_on_condition(void *argument)
{
	const struct condition_wait *condition_wait = argument;
	int operation = FUTEX_WAIT_BITSET;

	if (!condition_wait->condition->shared)
		operation |= FUTEX_PRIVATE_FLAG;
	if (!condition_wait->monotonic)
		operation |= FUTEX_CLOCK_REALTIME;
	return syscall(SYS_futex, &condition_wait->condition->signals, operation,
		       condition_wait->last_signals, condition_wait->deadline, NULL,
		       FUTEX_BITSET_MATCH_ANY)
		       ? errno
		       : 0;
}

static int wait_on(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *deadline,
		   bool monotonic)
{
	struct condition *condition = (void *)cond;
	struct condition_wait condition_wait = {condition, atomic_load(&condition->signals),
						deadline, monotonic};
	int error;

	spawnfd_before_wait();
	if (deadline && (deadline->tv_nsec < 0 || deadline->tv_nsec >= 1000000000))
		return EINVAL;
	error = pthread_mutex_unlock(mutex);
	if (error)
		return error;
	/* The kernel refuses a deadline before 1970, so report the timeout here. */
	if (deadline && deadline->tv_sec < 0)
		error = ETIMEDOUT;
	else
		error = spawnfd_interruptible_wait(cond, block_on_condition, &condition_wait, 0);
	pthread_mutex_lock(mutex);
	return error == ETIMEDOUT ? ETIMEDOUT : 0;
}

GLIBC_FUNCTION(pthread_condattr_getclock, pthread_condattr_getclock, GLIBC_SINCE("2.3.3"));
GLIBC_FUNCTION(pthread_condattr_getpshared, pthread_condattr_getpshared, GLIBC_FIRST);

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
	return 0;
}

PUBLIC int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	return wait_on(cond, mutex, NULL, false);
}

PUBLIC int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
				  const struct timespec *deadline)
{
	return wait_on(cond, mutex, deadline, ((struct condition *)cond)->monotonic);
}

PUBLIC int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
				  const struct timespec *deadline)
{
	return wait_on(cond, mutex, deadline, clock == CLOCK_MONOTONIC);
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
	spawnfd_before_wait();
	return REPLACED(pthread_join)(thread, result);
}

PUBLIC int pthread_cond_signal(pthread_cond_t *cond)
{
	return wake(cond, 1);
}

PUBLIC int pthread_cond_broadcast(pthread_cond_t *cond)
{
	return wake(cond, INT32_MAX);
}

/* --- semaphores and event loops -----------------------------------------------------------------
 * These functions call libc's originals or the kernel, because a thread can repeat such a wait.
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

/* A signal handler may call sem_post(). By then sem_wait() has looked up libc's functions, so the
 * handler does not call dlsym(). */
PUBLIC int sem_post(sem_t *semaphore)
{
	find_semaphores();
	spawnfd_before_wake(semaphore);
	return libc_sem_post(semaphore);
}

struct poll {
	int epoll;
	struct epoll_event *events;
	int max_events, timeout;
	const sigset_t *mask;
};

static int wait_for_events(void *argument)
{
	const struct poll *poll = argument;

	return (int)syscall(SYS_epoll_pwait, poll->epoll, poll->events, poll->max_events,
			    poll->timeout, poll->mask, 8);
}

static int poll_events(struct poll *poll)
{
	if (poll->timeout == 0)
		return wait_for_events(poll);
	return spawnfd_interruptible_wait((void *)(intptr_t)poll->epoll, wait_for_events, poll, -1);
}

PUBLIC int epoll_pwait(int epoll, struct epoll_event *events, int max_events, int timeout,
		       const sigset_t *mask)
{
	return poll_events(&(struct poll){epoll, events, max_events, timeout, mask});
}

/* Versions of libuv before 1.45 call this function. */
PUBLIC int epoll_wait(int epoll, struct epoll_event *events, int max_events, int timeout)
{
	return poll_events(&(struct poll){epoll, events, max_events, timeout, NULL});
}

/* libuv wakes an event loop by a write to an eventfd or pipe. */
PUBLIC ssize_t write(int fd, const void *data, size_t length)
{
	spawnfd_before_write(fd);
	return REPLACED(write)(fd, data, length);
}
