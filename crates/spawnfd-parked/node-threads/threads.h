/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A process that has its threads later.
 *
 * Every thread that waits does so in spawnfd_interruptible_wait(), which has noted how to go on
 * from there. So it can end there, and be made once more, on its own stack, with its own
 * thread-local storage: to it, that is a wait that ended for no reason. libc's descriptors of it
 * stay as they are, so that it can be joined. Nobody but it is in the way of its process becoming
 * another, or being forked; and it is made when something is done to what it waits for, or somebody
 * else is about to wait.
 *
 * This is part of the object that is preloaded into Node.js only: it replaces libc's condition
 * variables, whose waiters could not be copied.
 */
#ifndef SPAWNFD_THREADS_H
#define SPAWNFD_THREADS_H

#include <stdbool.h>
#include <stdint.h>

#include "../common/park.h"

/* Waits by `block(argument)`, which may be called in vain: then `again` is the answer. It is woken
 * by what is done to `at`: an address, or the number of an epoll. */
int spawnfd_interruptible_wait(const void *at, int (*block)(void *), void *argument, int again);

/* Something is about to be done to what a thread may wait for; to a descriptor; or the caller is
 * about to wait for others. */
void spawnfd_before_wake(const void *at);
void spawnfd_before_write(int fd);
void spawnfd_before_wait(void);

/* The descriptors below 64 that an epoll watches. */
uint64_t spawnfd_descriptors_watched_by(int epoll);

/* Only in the object for Node.js. */
#pragma weak spawnfd_threads_end
#pragma weak spawnfd_threads_are_unchanged
#pragma weak spawnfd_descriptors_record
#pragma weak spawnfd_descriptors_recreate

/* Ends all threads but this one; false, if one does not come to rest within some seconds: that is
 * none of Node's own. */
bool spawnfd_threads_end(void);

/* Whether there are the threads that there were then, or as many less as have not been made, and no
 * others. */
bool spawnfd_threads_are_unchanged(void);

/* Remembers the epolls, eventfds and pipes from 3 up to below `limit`; false, if there is another
 * descriptor. */
bool spawnfd_descriptors_record(int limit);

/* In a child: puts others in their places. False, if there cannot be so many. */
bool spawnfd_descriptors_recreate(void);

#endif
