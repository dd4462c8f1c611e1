/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The functions of libc that the zygote and its files of common call. Most are system calls. */
#define _GNU_SOURCE
#include "zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

/* <sys/prctl.h> declares its own with other types from one libc to the next. */
int prctl(int option, ...);

static int error_number;

int *__errno_location(void)
{
	return &error_number;
}

long syscall(long number, ...)
{
	long arguments[6], result;
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		arguments[i] = va_arg(list, long);
	va_end(list);
	result = spawnfd_enter(number, arguments);
	if (result < 0 && result >= -4095) {
		error_number = (int)-result;
		return -1;
	}
	return result;
}

static long argument(va_list list)
{
	return va_arg(list, long);
}

void _exit(int status)
{
	for (;;)
		syscall(SYS_exit_group, status);
}

int close(int fd)
{
	return (int)syscall(SYS_close, fd);
}

int fstat(int fd, struct stat *found)
{
	return (int)syscall(SYS_fstat, fd, found);
}

int munmap(void *address, size_t length)
{
	return (int)syscall(SYS_munmap, address, length);
}

int dup3(int from, int to, int flags)
{
	return (int)syscall(SYS_dup3, from, to, flags);
}

int fcntl(int fd, int command, ...)
{
	va_list list;
	long value;

	va_start(list, command);
	value = argument(list);
	va_end(list);
	return (int)syscall(SYS_fcntl, fd, command, value);
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	long value;

	va_start(list, request);
	value = argument(list);
	va_end(list);
	return (int)syscall(SYS_ioctl, fd, request, value);
}

/* Nothing here creates files but by openat2, or what a request says. */
int openat(int dir, const char *path, int flags, ...)
{
	va_list list;
	long mode;

	va_start(list, flags);
	mode = argument(list);
	va_end(list);
	return (int)syscall(SYS_openat, dir, path, flags, mode);
}

int prctl(int option, ...)
{
	va_list list;
	long values[4];

	va_start(list, option);
	for (int i = 0; i < 4; i++)
		values[i] = va_arg(list, long);
	va_end(list);
	return (int)syscall(SYS_prctl, option, values[0], values[1], values[2], values[3]);
}

ssize_t write(int fd, const void *bytes, size_t length)
{
	return syscall(SYS_write, fd, bytes, length);
}

pid_t getpid(void)
{
	return (pid_t)syscall(SYS_getpid);
}

pid_t getpgrp(void)
{
	return (pid_t)syscall(SYS_getpgid, 0);
}

int tcsetpgrp(int fd, pid_t group)
{
	return ioctl(fd, TIOCSPGRP, &group);
}

void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}

int poll(struct pollfd *list, nfds_t count, int milliseconds)
{
	const struct timespec time = {.tv_sec = milliseconds / 1000,
				      .tv_nsec = milliseconds % 1000 * 1000000L};

	return (int)syscall(SYS_ppoll, list, count, milliseconds < 0 ? NULL : &time, NULL, 0);
}

ssize_t recvmsg(int socket, struct msghdr *message, int flags)
{
	return syscall(SYS_recvmsg, socket, message, flags);
}

ssize_t sendmsg(int socket, const struct msghdr *message, int flags)
{
	return syscall(SYS_sendmsg, socket, message, flags);
}

/* What the compiler itself calls. The loops are not to become calls of themselves. */

void *memcpy(void *restrict to, const void *restrict from, size_t length)
{
	for (size_t i = 0; i < length; i++)
		((char *)to)[i] = ((const char *)from)[i];
	return to;
}

void *memset(void *at, int byte, size_t length)
{
	for (size_t i = 0; i < length; i++)
		((char *)at)[i] = (char)byte;
	return at;
}

void *memchr(const void *at, int byte, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (((const char *)at)[i] == (char)byte)
			return (char *)at + i;
	return NULL;
}
