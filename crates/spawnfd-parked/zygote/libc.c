/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The libc functions that the zygote and its files from common/ call. Most are system calls. */
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
#include <unistd.h>

/* This file declares prctl(), because libcs declare it with different types in <sys/prctl.h>. */
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
	result = spawnfd_raw_syscall(number, arguments);
	if (result < 0 && result >= -4095) {
		error_number = (int)-result;
		return -1;
	}
	return result;
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
	value = va_arg(list, long);
	va_end(list);
	return (int)syscall(SYS_fcntl, fd, command, value);
}

int openat(int dir, const char *path, int flags, ...)
{
	va_list list;
	long mode;

	va_start(list, flags);
	mode = va_arg(list, long);
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
	return (int)syscall(SYS_ioctl, fd, TIOCSPGRP, &group);
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
	return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
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

/* The compiler may emit calls of these functions. build.rs passes -fno-builtin, so the compiler
 * does not turn the loops in these functions into such calls. */

void *memcpy(void *restrict to, const void *restrict from, size_t length)
{
	for (size_t i = 0; i < length; i++)
		((char *)to)[i] = ((const char *)from)[i];
	return to;
}

void *memset(void *address, int byte, size_t length)
{
	for (size_t i = 0; i < length; i++)
		((char *)address)[i] = (char)byte;
	return address;
}

void *memchr(const void *address, int byte, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (((const char *)address)[i] == (char)byte)
			return (char *)address + i;
	return NULL;
}

int memcmp(const void *one, const void *other, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (((const unsigned char *)one)[i] != ((const unsigned char *)other)[i])
			return ((const unsigned char *)one)[i] - ((const unsigned char *)other)[i];
	return 0;
}
