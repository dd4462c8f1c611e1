/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Declarations that the parts of the preloaded object share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "protocol.h"

/* Marks a function that replaces the libc function of the same name. */
#define PUBLIC __attribute__((visibility("default")))

/* The function that the PUBLIC function `name` replaces: that of libc, or of another library. */
#define REPLACED(name)                                                                             \
	({                                                                                         \
		static __typeof__(&name) next;                                                     \
		if (!next)                                                                         \
			next = (__typeof__(next))dlsym(RTLD_NEXT, #name);                          \
		next;                                                                              \
	})

/* The program that a request asks for. */
struct program {
	int argc;
	char **argv;
	char **envp;
	/* Signals whose disposition has changed since the process parked: bit n-1 for signal n. */
	uint64_t signals;
};

struct request;

/* An interpreter's part in parking. A program without an interpreter parks with zeros. */
struct spawnfd_interpreter {
	/* Run before and after each fork, in fork mode. NULL: nothing to do. */
	void (*before_fork)(void);
	void (*after_fork_in_parent)(void);
	void (*after_fork_in_child)(void);
	/* Whether this process can become the program that a request asks for. NULL: always. */
	bool (*accepts)(const struct request *request, const struct program *program);
	/* True if the interpreter has threads and descriptors above 2 that must stay. It checks
	 * them itself, and `accepts` refuses requests that keep other descriptors above 2. */
	bool keeps_descriptors;
};

/*
 * Reports to the owner that this process is parked, and waits for a request. Returns in the process
 * that becomes the requested program: descriptors, working directory, signals and environ are set,
 * but an interpreter must still renew its own state. In fork mode the function returns in each
 * child. If the owner has died, the process exits.
 */
const struct program *spawnfd_park(const struct spawnfd_interpreter *interpreter);

/* Whether this process parks in fork mode: its forked children become programs, not the process
 * itself. */
bool spawnfd_in_fork_mode(void);

/* The address of libc's field for the id of the calling thread. */
int *spawnfd_own_thread_id(void);

/*
 * Records a variable that start-up code read. The owner starts a program cold if its value differs.
 */
void spawnfd_record_variable(const char *name);

/* Removes a recorded variable, because its value has no effect. */
void spawnfd_forget_variable(const char *name);

/* Whether a colon-separated list has a directory that depends on the working directory. If
 * `has_origin` is true, $ORIGIN counts as an absolute directory, as in ld.so(8). */
bool spawnfd_has_relative_part(const char *list, bool has_origin);

/* The value of the variable whose name has `length` bytes. NULL if `environment` lacks it. */
char *spawnfd_value_in(char **environment, const char *name, size_t length);

/* Removes a variable of the protocol from the environment. Returns a copy of its value, or NULL. */
char *spawnfd_take_variable(const char *name);

/* The number of threads of this process; 0 if /proc cannot be read. */
nlink_t spawnfd_count_threads(void);

/* Records a file or directory. If that file changes, the owner discards the parked process. */
void spawnfd_record_file(const char *path);

/* Records the name of a top-level module that start-up code imported or looked up. */
void spawnfd_record_module(const char *name);

/* Reports to the owner why this program cannot park, and exits. */
_Noreturn void spawnfd_cannot_park(const char *why);

/* --- between the files of common -------------------------------------------------------------
 */

/* A received request: the parts of the message, its descriptors, and the shared page. */
struct request {
	const struct spawnfd_request *head;
	struct spawnfd_page *page;
	const struct spawnfd_step *steps;
	const struct spawnfd_check *checks;
	const int32_t *keep;
	char *strings;
	int sources[SPAWNFD_MAX_DESCRIPTORS];
};

/* The size of a buffer for any message, and for as many pointers as the message can have strings.
 */
#define SPAWNFD_REQUEST_SIZE (SPAWNFD_MAX_MESSAGE * (1 + sizeof(char *)))

/*
 * Validates a message of `length` bytes, and sets pointers to its parts in `request`. The buffer
 * `message` has `size` bytes. Behind the message, the function writes the arrays argv and envp of
 * `program` to the buffer. False if the message is not a valid request.
 */
bool spawnfd_read_request(char *message, size_t length, size_t size, size_t descriptors,
			  struct request *request, struct program *program);

/* Validates the steps that the owner has written to the page. */
bool spawnfd_read_page(const struct request *request);

/*
 * Validates the page and performs the steps of a request. First moves `socket` above all numbers
 * that the request names. Returns 0, or the errno of the failed step, which spawnfd_begin() has
 * recorded.
 */
int spawnfd_perform_steps(struct request *request, int *socket);

/* Makes a system call as syscall(2) does. EPERM: a filter would kill the process for the call. */
long spawnfd_syscall(const struct request *request, enum spawnfd_call call, long first, long second,
		     long third, long fourth, long fifth);

/* Closes the `count` descriptors of a list. */
void spawnfd_close_all(const int *list, size_t count);

/* Closes all descriptors except 0 to 2, the descriptors that the request keeps, and `except`.
 * `except` must be higher than the descriptors that the request keeps. */
void spawnfd_close_others(const struct request *request, int except);

/*
 * Whether a seccomp filter permits the system calls whose results later code ignores. The caller
 * has blocked all signals.
 */
bool spawnfd_required_calls_work(void);

/* The kernel's struct sigaction. */
struct spawnfd_disposition {
	unsigned long handler, flags, restorer, mask;
};

/* Changes the disposition of a signal by a system call, because libc's sigaction() refuses the two
 * signals that libc reserves. */
long spawnfd_set_disposition(int number, const struct spawnfd_disposition *now,
			     struct spawnfd_disposition *old);

/* Discards all pending signals. */
void spawnfd_discard_signals(void);

/* Sets the signal mask, including the signals that libc reserves. */
void spawnfd_set_mask(uint64_t mask);

/* Sets the signal dispositions that the shared page asks for. Does not set the signal mask. */
void spawnfd_set_dispositions(const struct request *request);
