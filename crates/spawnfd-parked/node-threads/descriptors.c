/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Replaces the descriptors of an event loop in a forked child. After a fork, parent and child share
 * the epolls, eventfds and pipes. So the child replaces each by a new object of the same kind at
 * the same number. libuv needs no change, because it knows only the numbers.
 */
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
enum { MAX_DESCRIPTORS = 64, MAX_WATCHES = 64 };

static struct {
	enum kind kind;
	int flags;
	bool close_on_exec;
	/* The descriptor of the read end if this is a pipe's write end. Otherwise -1. */
	int reader;
	/* The number of unread bytes of a pipe. */
	int content;
	/* The counter of an eventfd. */
	uint64_t count;
} descriptors[MAX_DESCRIPTORS];

static struct {
	int epoll, fd;
	struct epoll_event event;
} watches[MAX_WATCHES];
static size_t watch_count;

/* Reads the counter of an eventfd or the list of an epoll: proc_pid_fdinfo(5). */
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
		if (watch_count == MAX_WATCHES) {
			fits = false;
			break;
		}
		watches[watch_count].epoll = fd;
		watches[watch_count].fd = (int)target;
		watches[watch_count].event.events = events;
		watches[watch_count++].event.data.u64 = data;
	}
	if (info)
		fclose(info);
	return info && fits;
}

static bool record(int fd, int limit)
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
	/* Parent and child may share /dev/null, so the child need not replace it. */
	if (!strcmp(target, "/dev/null"))
		return true;
	if (!strcmp(target, "anon_inode:[eventpoll]"))
		descriptors[fd].kind = EPOLL;
	if (!strcmp(target, "anon_inode:[eventfd]"))
		descriptors[fd].kind = EVENT;
	if (descriptors[fd].kind != NOTHING)
		return read_info(fd);
	if (!S_ISFIFO(file.st_mode) || strncmp(target, "pipe:", 5))
		return false;
	descriptors[fd].kind = PIPE;
	descriptors[fd].reader = -1;
	if (ioctl(fd, FIONREAD, &descriptors[fd].content) || descriptors[fd].content > 4096)
		return false;
	if ((descriptors[fd].flags & O_ACCMODE) == O_RDONLY)
		return true;
	for (int read_end = 3; read_end < limit && descriptors[fd].reader < 0; read_end++)
		if (read_end != fd && !fstat(read_end, &other) && other.st_ino == file.st_ino &&
		    other.st_dev == file.st_dev &&
		    (fcntl(read_end, F_GETFL) & O_ACCMODE) == O_RDONLY)
			descriptors[fd].reader = read_end;
	return descriptors[fd].reader >= 0;
}

bool spawnfd_descriptors_record(int limit)
{
	for (int fd = 3; fd < limit; fd++)
		if (fd >= MAX_DESCRIPTORS || !record(fd, limit))
			return false;
	return true;
}

/* Moves `new` to the number `fd` and sets the recorded flags. */
static bool install(int new, int fd)
{
	bool done = new >= 0 && dup3(new, fd, descriptors[fd].close_on_exec ? O_CLOEXEC : 0) >= 0 &&
		    (descriptors[fd].kind == EPOLL || !fcntl(fd, F_SETFL, descriptors[fd].flags));

	if (new >= 0)
		close(new);
	return done;
}

static bool recreate_pipe(int writer)
{
	static const char filling[4096];
	int reader = descriptors[writer].reader, content = descriptors[reader].content, ends[2];

	/* Only the number of bytes matters: the readers of these pipes ignore the values. */
	return !pipe2(ends, O_CLOEXEC) &&
	       (!content || write(ends[1], filling, (size_t)content) == content) &&
	       install(ends[0], reader) && install(ends[1], writer);
}

bool spawnfd_descriptors_recreate(void)
{
	bool done = true;

	for (int fd = 3; fd < MAX_DESCRIPTORS && done; fd++) {
		if (descriptors[fd].kind == EPOLL)
			done = install(epoll_create1(EPOLL_CLOEXEC), fd);
		else if (descriptors[fd].kind == EVENT)
			done = install(eventfd((unsigned)descriptors[fd].count, EFD_CLOEXEC), fd);
		else if (descriptors[fd].kind == PIPE && descriptors[fd].reader >= 0)
			done = recreate_pipe(fd);
	}
	for (size_t i = 0; i < watch_count && done; i++)
		done = !epoll_ctl(watches[i].epoll, EPOLL_CTL_ADD, watches[i].fd,
				  &watches[i].event);
	return done;
}

uint64_t spawnfd_descriptors_watched_by(int epoll)
{
	uint64_t mask = 0;

	if (epoll < 3 || epoll >= MAX_DESCRIPTORS)
		return 0;
	if (descriptors[epoll].kind != EPOLL)
		read_info(epoll);
	for (size_t i = 0; i < watch_count; i++)
		if (watches[i].epoll == epoll && watches[i].fd < MAX_DESCRIPTORS)
			mask |= UINT64_C(1) << watches[i].fd;
	return mask;
}

/* --- resources that cannot be recreated ---------------------------------------------------------
 */

/* Ignores MADV_DONTFORK in fork mode. V8 excludes memory from forks, but the child needs it. */
PUBLIC int madvise(void *address, size_t length, int advice)
{
	if (advice == MADV_DONTFORK && spawnfd_in_fork_mode())
		return 0;
	return (int)syscall(SYS_madvise, address, length, advice);
}

/* Refuses io_uring in fork mode, so libuv uses epoll alone. A child would share the rings with its
 * parent. They cannot be replaced, because /proc does not distinguish one ring from another. */
PUBLIC long syscall(long number, ...)
{
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
	return REPLACED(syscall)(number, argument[0], argument[1], argument[2], argument[3],
				 argument[4], argument[5]);
}
