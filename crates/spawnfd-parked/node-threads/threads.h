/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Ends the threads of a process while they wait, and recreates them when they are needed.
 *
 * Each thread waits in spawnfd_interruptible_wait(), which has saved the thread's registers. So a
 * signal can end the thread during the wait. Later this code recreates the thread by clone(2) on
 * the same stack, with the same thread-local storage. To the thread this looks like a spurious
 * wakeup. libc's record of the thread stays unchanged, so a program can join the thread. Without
 * other threads, the process can become another program, or can fork. This code recreates all
 * threads before another thread wakes one of them, and before another thread waits.
 *
 * Only the object for Node.js has this code: it replaces libc's condition variables. Those count
 * their waiters, and an ended thread would remain counted.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "../common/park.h"

/* Waits by calling `block(argument)`, and returns its result. If this code has ended and recreated
 * the thread during the wait, returns `interrupted` with errno EINTR. `object` identifies the
 * object of the wait: the address of a condition variable or semaphore, or the number of an epoll
 * descriptor. */
int spawnfd_interruptible_wait(const void *object, int (*block)(void *), void *argument,
			       int interrupted);

/* These functions recreate the threads if necessary. Call them before a wakeup by `object`, before
 * a write to `fd`, and before the caller waits for other threads. */
void spawnfd_before_wake(const void *object);
void spawnfd_before_write(int fd);
void spawnfd_before_wait(void);

/* The descriptors below 64 that an epoll watches. */
uint64_t spawnfd_descriptors_watched_by(int epoll);

/* These functions are NULL except in the preloaded object for Node.js. */
#pragma weak spawnfd_threads_end
#pragma weak spawnfd_threads_are_unchanged
#pragma weak spawnfd_descriptors_record
#pragma weak spawnfd_descriptors_recreate
#pragma weak spawnfd_clock_read_unrecorded
#pragma weak spawnfd_clock_was_read
#pragma weak spawnfd_clock_was_read_as_double
#pragma weak spawnfd_clock_stop_recording

/* Ends all threads except the caller. False if a thread does not wait within 5 s, as Node's own
 * threads do. */
bool spawnfd_threads_end(void);

/* Whether the program has created no threads since spawnfd_threads_end(). The threads that
 * spawnfd_threads_end() recorded do not count as new after their recreation. */
bool spawnfd_threads_are_unchanged(void);

/* Does the same as libc's clock_gettime(), without recording the time. */
int spawnfd_clock_read_unrecorded(clockid_t clock, struct timespec *time);

/* Whether the process has read this time from CLOCK_MONOTONIC, in ns. */
bool spawnfd_clock_was_read(uint64_t time);

/* Whether the process has read a time whose conversion to double is `time`. A double is rounded
 * after 104 days of uptime (2^53 ns). */
bool spawnfd_clock_was_read_as_double(double time);

/* Stops recording the times that the process reads. False if there were too many. */
bool spawnfd_clock_stop_recording(void);

/* Records the epoll, eventfd and pipe descriptors from 3 to limit - 1. False if there is a
 * descriptor of another kind. */
bool spawnfd_descriptors_record(int limit);

/* Replaces the recorded descriptors of a forked child by new objects. False on failure. */
bool spawnfd_descriptors_recreate(void);
