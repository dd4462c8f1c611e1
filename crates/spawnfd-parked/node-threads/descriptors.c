/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Descriptors that an event loop is made of. What they refer to is shared with the parent after a
 * fork; here each is replaced by another of its kind, under the same number, and nobody has to
 * know.
 */
#define _GNU_SOURCE
#include "threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <sys/mman.h>

enum kind { NOTHING, EPOLL, EVENT, PIPE };
enum { MAX_DESCRIPTORS = 64, MAX_WATCHED = 64 };

static struct {
	enum kind kind;
	int flags;
	bool close_on_exec;
	/* A pipe's other end, if it is the one to write to; what it holds. */
	int reader;
	int content;
	uint64_t count;
} descriptors[MAX_DESCRIPTORS];

static struct {
	int epoll, fd;
	struct epoll_event event;
} watched[MAX_WATCHED];
static size_t watched_count;

/* What /proc/self/fdinfo says of one that is an epoll or an eventfd: proc_pid_fdinfo(5). */
static bool read_info(int fd)
{
	char path[64], line[256];
	FILE *info;
	bool fits = true;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	info = fopen(path, "re");
	while (info && fgets(line, sizeof(line), info)) {
		unsigned target, events;
		uint64_t data;

		sscanf(line, "eventfd-count: %" SCNx64, &descriptors[fd].count);
		if (sscanf(line, "tfd: %u events: %x data: %" SCNx64, &target, &events, &data) != 3)
			continue;
		if (watched_count == MAX_WATCHED) {
			fits = false;
			break;
		}
		watched[watched_count].epoll = fd;
		watched[watched_count].fd = (int)target;
		watched[watched_count].event.events = events;
		watched[watched_count++].event.data.u64 = data;
	}
	if (info)
		fclose(info);
	return info && fits;
}

static bool remember(int fd, int limit)
{
	char path[64], target[64] = "";
	struct stat file, other;

	if (fstat(fd, &file))
		return errno == EBADF;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, target, sizeof(target) - 1) < 0)
		return false;
	descriptors[fd].flags = fcntl(fd, F_GETFL);
	descriptors[fd].close_on_exec = fcntl(fd, F_GETFD) & FD_CLOEXEC;
	/* Shared, and no harm. */
	if (!strcmp(target, "/dev/null"))
		return true;
	if (!strcmp(target, "anon_inode:[eventpoll]")) {
		descriptors[fd].kind = EPOLL;
		return read_info(fd);
	}
	if (!strcmp(target, "anon_inode:[eventfd]")) {
		descriptors[fd].kind = EVENT;
		return read_info(fd);
	}
	if (!S_ISFIFO(file.st_mode) || strncmp(target, "pipe:", 5))
		return false;
	descriptors[fd].kind = PIPE;
	descriptors[fd].reader = -1;
	if (ioctl(fd, FIONREAD, &descriptors[fd].content) || descriptors[fd].content > 4096)
		return false;
	if ((descriptors[fd].flags & O_ACCMODE) == O_RDONLY)
		return true;
	for (int at = 3; at < limit && descriptors[fd].reader < 0; at++)
		if (at != fd && !fstat(at, &other) && other.st_ino == file.st_ino &&
		    other.st_dev == file.st_dev && (fcntl(at, F_GETFL) & O_ACCMODE) == O_RDONLY)
			descriptors[fd].reader = at;
	return descriptors[fd].reader >= 0;
}

bool spawnfd_descriptors_record(int limit)
{
	for (int fd = 3; fd < limit; fd++)
		if (fd >= MAX_DESCRIPTORS || !remember(fd, limit))
			return false;
	return true;
}

/* Brings `made` to the number `fd`, with the flags that are remembered. */
static bool put(int made, int fd)
{
	bool done = made >= 0 &&
		    dup3(made, fd, descriptors[fd].close_on_exec ? O_CLOEXEC : 0) >= 0 &&
		    (descriptors[fd].kind == EPOLL || !fcntl(fd, F_SETFL, descriptors[fd].flags));

	if (made >= 0)
		close(made);
	return done;
}

static bool put_pipe(int writer)
{
	static const char filling[4096];
	int reader = descriptors[writer].reader, content = descriptors[reader].content, ends[2];

	/* Who waits at such a pipe counts bytes, and does not read them. */
	return !pipe2(ends, O_CLOEXEC) &&
	       (!content || write(ends[1], filling, (size_t)content) == content) &&
	       put(ends[0], reader) && put(ends[1], writer);
}

bool spawnfd_descriptors_recreate(void)
{
	bool done = true;

	for (int fd = 3; fd < MAX_DESCRIPTORS && done; fd++) {
		if (descriptors[fd].kind == EPOLL)
			done = put(epoll_create1(EPOLL_CLOEXEC), fd);
		else if (descriptors[fd].kind == EVENT)
			done = put(eventfd((unsigned)descriptors[fd].count, EFD_CLOEXEC), fd);
		else if (descriptors[fd].kind == PIPE && descriptors[fd].reader >= 0)
			done = put_pipe(fd);
	}
	for (size_t at = 0; at < watched_count && done; at++)
		done = !epoll_ctl(watched[at].epoll, EPOLL_CTL_ADD, watched[at].fd,
				  &watched[at].event);
	return done;
}

uint64_t spawnfd_descriptors_watched_by(int epoll)
{
	uint64_t all = 0;

	if (epoll < 3 || epoll >= MAX_DESCRIPTORS)
		return 0;
	if (descriptors[epoll].kind != EPOLL)
		read_info(epoll);
	for (size_t at = 0; at < watched_count; at++)
		if (watched[at].epoll == epoll && watched[at].fd < MAX_DESCRIPTORS)
			all |= UINT64_C(1) << watched[at].fd;
	return all;
}

/* --- what could not be made again ---------------------------------------------------------------
 */

/* V8 keeps some memory from a fork's child; this child needs it. */
PUBLIC int madvise(void *address, size_t length, int advice)
{
	if (advice == MADV_DONTFORK && spawnfd_in_fork_mode())
		return 0;
	return (int)syscall(SYS_madvise, address, length, advice);
}

/* Rings are shared with a child, and cannot be told from each other there: libuv does without. */
PUBLIC long syscall(long number, ...)
{
	static long (*original)(long, long, long, long, long, long, long);
	__builtin_va_list list;
	long argument[6];

	if (number == SYS_io_uring_setup && spawnfd_in_fork_mode()) {
		errno = ENOSYS;
		return -1;
	}
	__builtin_va_start(list, number);
	for (int i = 0; i < 6; i++)
		argument[i] = __builtin_va_arg(list, long);
	__builtin_va_end(list);
	if (!original)
		original = (__typeof__(original))dlsym(RTLD_NEXT, "syscall");
	return original(number, argument[0], argument[1], argument[2], argument[3], argument[4],
			argument[5]);
}
