/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A fork that has its parent's threads and descriptors of its own.
 *
 * fork(2) copies the memory of all threads, and one thread. Here every thread that waits does so in
 * spawnfd_rest(), which has noted how to go on from there. So a child can make each of them once
 * more, on its own stack, with its own thread-local storage: to them it is a wait that ended for no
 * reason. libc's descriptors of them are in that memory as well, so that they can be joined.
 *
 * This is part of the object that is preloaded for mode fork only: it replaces libc's condition
 * variables, whose waiters could not be copied.
 */
#ifndef SPAWNFD_THREADS_H
#define SPAWNFD_THREADS_H

#include <stdbool.h>

/* Waits by `block(argument)`, which may be called in vain in a child: there `again` is the answer.
 */
int spawnfd_rest(int (*block)(void *), void *argument, int again);

/* Only in the object for mode fork. */
#pragma weak spawnfd_threads_freeze
#pragma weak spawnfd_threads_thaw
#pragma weak spawnfd_threads_again
#pragma weak spawnfd_threads_are_as_made
#pragma weak spawnfd_descriptors_remember
#pragma weak spawnfd_descriptors_again

/* Holds all threads where they wait; false, if one does not wait within some seconds. */
bool spawnfd_threads_freeze(void);
void spawnfd_threads_thaw(void);

/* In a child: makes the threads that the parent had. False, if there cannot be so many. */
bool spawnfd_threads_again(void);

/* In a child: whether it has these threads and no others. */
bool spawnfd_threads_are_as_made(void);

/* Remembers the epolls, eventfds and pipes from 3 up to below `limit`; false, if there is another
 * descriptor. */
bool spawnfd_descriptors_remember(int limit);

/* In a child: puts others in their places. False, if there cannot be so many. */
bool spawnfd_descriptors_again(void);

#endif
