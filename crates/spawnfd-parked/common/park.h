/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the parts of the object that is preloaded into a program to be parked share. */
#ifndef SPAWNFD_PARK_H
#define SPAWNFD_PARK_H

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

/* A function that ld.so finds before libc's of the same name. */
#define PUBLIC __attribute__((visibility("default")))

/* The program that a request asks for. */
struct program {
	int argc;
	char **argv;
	char **envp;
	/* Signals whose disposition is another than when it was parked: bit n-1 for n. */
	uint64_t signals;
};

/* What an interpreter does round the birth of a child, in fork mode. */
struct spawnfd_fork_hooks {
	void (*before)(void);
	void (*after_parent)(void);
	void (*after_child)(void);
};

/*
 * Tells the owner that this process is parked, and waits. Returns in a process that has become the
 * program asked for: descriptors, working directory, signals, environ and the like are set; what an
 * interpreter keeps for itself is left. In fork mode that is a child, again and again. If the owner
 * is gone, it does not return.
 */
const struct program *spawnfd_park(const struct spawnfd_fork_hooks *hooks);

/* Whether it is a child of this process that becomes the program. */
bool spawnfd_forks(void);

/* Notes a variable that was looked at: a program whose value differs has to be started cold. */
void spawnfd_note_variable(const char *name);

/* Takes such a note back: it was looked at, and does not matter. */
void spawnfd_forget_variable(const char *name);

/* Notes a file, or a directory, whose change makes what is parked stale. */
void spawnfd_note_file(const char *path);

/* Tells the owner why this program cannot be parked, and exits. */
_Noreturn void spawnfd_cannot_park(const char *why);

/* main() of a program that parks after CPython's initialisation. */
__attribute__((weak)) int spawnfd_python_main(int argc, char **argv, char **envp,
					      int (*original)(int, char **, char **));

/* main() of Node.js, which parks at a look at a variable later on. */
int spawnfd_node_main(int argc, char **argv, char **envp, int (*original)(int, char **, char **));

/* Tells the Node adapter that a variable is about to be looked at. */
void spawnfd_node_looks(const char *name);

/* Whether a parked Node.js can become the program of a request. */
struct request;
bool spawnfd_node_accepts(const struct request *request, const struct program *program);

/* --- between the files of common -------------------------------------------------------------
 */

/* A request as received: the message, the descriptors it came with, and what the owner has found.
 */
struct request {
	const struct spawnfd_request *head;
	struct spawnfd_page *page;
	const struct spawnfd_step *steps;
	const struct spawnfd_check *checks;
	const int32_t *keep;
	char *strings;
	int sources[SPAWNFD_MAX_DESCRIPTORS];
};

/* Room for any message, and for places of as many strings as it may hold. */
#define SPAWNFD_ROOM (SPAWNFD_MAX_MESSAGE * (1 + sizeof(char *)))

/*
 * Checks a message of `length` bytes in `room` bytes of memory, and points at its parts. The two
 * arrays of `program` are laid behind it. False, if it is not what a request must be.
 */
bool spawnfd_read_request(char *message, size_t length, size_t room, size_t descriptors,
			  struct request *request, struct program *program);

/* The same for the steps that the owner has left in the page. */
bool spawnfd_read_page(const struct request *request);

/*
 * Carries out a request. `socket` is out of the way of all its numbers when it returns. 0, or the
 * error of the step whose index it leaves.
 */
int spawnfd_carry_out(struct request *request, int *socket, uint32_t *index);

/* Closes the `count` descriptors of a list. */
void spawnfd_close_all(const int *list, size_t count);

/* Leaves the program the descriptors it is to have, and `but`. */
void spawnfd_keep_only(const struct request *request, int but);

/* Whether what is done without asking how it went can be done: a seccomp filter may refuse it. All
 * signals are blocked. */
bool spawnfd_may_become(void);

/* Discards the signals that wait to be let in. */
void spawnfd_discard_signals(void);

/* Sets the mask of all signals, also of those that libc keeps to itself. */
void spawnfd_set_mask(uint64_t mask);

/* Sets the dispositions; the caller sets the mask. */
void spawnfd_settle_signals(const struct request *request);

#endif
