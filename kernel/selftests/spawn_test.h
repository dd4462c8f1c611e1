/* SPDX-License-Identifier: GPL-2.0-only */
/* Helpers for all tests of the spawn interface. They wrap the system calls, return errors as
 * negative errno values, start the test program `child` (child.c), and read its output. */
#ifndef SPAWN_TEST_H
#define SPAWN_TEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <linux/close_range.h>
#include <linux/spawn.h>
#if __has_include(<linux/spawn_template.h>)
#include <linux/spawn_template.h>
#define HAVE_TEMPLATES 1
#endif

/* If the kernel's headers lack a system call, its number is -1.
 * The call fails with ENOSYS, and its tests are skipped. */
#ifndef __NR_pidfd_config
#define __NR_pidfd_config -1
#define __NR_pidfd_spawn_run -1
#endif
#ifndef __NR_spawn_template_create
#define __NR_spawn_template_create -1
#define __NR_spawn_template_spawn -1
#endif
#ifndef PIDFD_EMPTY
#define PIDFD_EMPTY (1U << 27)
#endif
#ifndef P_PIDFD
#define P_PIDFD 3
#endif
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

#define BAD_POINTER ((void *)-4096L)
#define BAD_ADDRESS ((__u64) - 4096L)
#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define STRINGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define ADDRESS(pointer) ((__u64)(uintptr_t)(pointer))
/* Limit for one test, in seconds. A KASAN kernel emulated by QEMU is slow, but needs less. */
#define TIMEOUT 300

static char child_path[PATH_MAX]; /* path of the program `child`, in the test's directory */

static inline void __attribute__((constructor)) find_child(void)
{
	ssize_t length = readlink("/proc/self/exe", child_path, sizeof(child_path) - 16);
	char *slash;

	child_path[length > 0 ? length : 0] = 0;
	slash = strrchr(child_path, '/');
	strcpy(slash ? slash + 1 : child_path, "child");
}

static inline long result(long ret)
{
	return ret < 0 ? -errno : ret;
}

static inline long sys_pidfd_open(pid_t pid, unsigned int flags)
{
	return result(syscall(__NR_pidfd_open, pid, flags));
}

static inline long sys_config(int fd, unsigned int cmd, unsigned int key, const void *value,
			      int aux)
{
	return result(syscall(__NR_pidfd_config, fd, cmd, key, value, aux));
}

static inline long sys_run(int fd, void *args, size_t size)
{
	return result(syscall(__NR_pidfd_spawn_run, fd, args, size));
}

static inline struct spawn_action_list make_list(const struct spawn_action *actions,
						 unsigned int count)
{
	return (struct spawn_action_list){
		.actions = count ? ADDRESS(actions) : 0,
		.nr_actions = count,
		.action_size = count ? sizeof(*actions) : 0,
	};
}

/* Sets the actions of a builder. */
static inline long sys_config_actions(int fd, const struct spawn_action *actions,
				      unsigned int count)
{
	struct spawn_action_list list = make_list(actions, count);

	return sys_config(fd, PIDFD_CONFIG_SET_ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, &list,
			  sizeof(list));
}

/* Initializes a struct spawn_open. */
#define OPEN_OF(name, ...)                                                                         \
	{                                                                                          \
		.path = ADDRESS(name), .how_size = sizeof(struct open_how), .how = {__VA_ARGS__}   \
	}

/* Opens a builder: an empty pidfd that spawns programs.
 * Returns -EINVAL if the kernel has no builders. */
static inline int builder(void)
{
	return sys_pidfd_open(0, PIDFD_EMPTY);
}

/* Opens a builder and configures it to run `child`.
 * If argv is NULL, the builder has no arguments. */
static inline int builder_of(const char *const *argv)
{
	int fd = builder();

	if (fd < 0)
		return fd;
	sys_config(fd, PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_PATH, child_path, 0);
	if (argv)
		sys_config(fd, PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ARGV, argv, 0);
	return fd;
}

/* Replaces a builder by one of the current credentials, because the kernel refuses a builder
 * of other credentials. */
static inline void renew(int *fd, const char *const *argv)
{
	close(*fd);
	*fd = builder_of(argv);
}

/* For FIXTURE_SETUP: opens a builder. Skips the test if the kernel has no builders. */
#define NEED_BUILDER(fd)                                                                           \
	do {                                                                                       \
		(fd) = builder();                                                                  \
		if ((fd) == -EINVAL)                                                               \
			SKIP(return, "this kernel has no PIDFD_EMPTY");                            \
		ASSERT_LE(0, (fd));                                                                \
	} while (0)

static inline struct spawn_args make_args(const struct spawn_action *actions, unsigned int count)
{
	struct spawn_args args = {
		.nr_actions = count,
		.actions = count ? ADDRESS(actions) : 0,
		.action_size = count ? sizeof(*actions) : 0,
	};

	return args;
}

/* Waits for a process and returns its exit status, or 128 plus the signal that killed it.
 * Also takes the pending SIGCHLD. Returns a negative errno if waitid() fails. */
static inline int reap(int pidfd)
{
	struct timespec at_once = {};
	siginfo_t info = {};
	sigset_t set, blocked;
	int ret;

	do
		ret = waitid(P_PIDFD, pidfd, &info, WEXITED);
	while (ret < 0 && errno == EINTR);
	if (ret < 0)
		return -errno;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, NULL, &blocked);
	if (sigismember(&blocked, SIGCHLD))
		sigtimedwait(&set, NULL, &at_once);
	return info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
}

static inline int reap_and_close(int pidfd)
{
	int code = reap(pidfd);

	close(pidfd);
	return code;
}

struct outcome {
	long ret;   /* return value of the system call */
	int failed; /* spawn_args.failed, but not counting the action that start() adds */
	pid_t pid;
	int code;	/* the child's exit status, from reap() */
	char out[8192]; /* the child's standard output */
};

static inline void read_all(int fd, char *text, size_t size)
{
	size_t length = 0;
	ssize_t got;

	while (length < size - 1 && (got = read(fd, text + length, size - 1 - length)) > 0)
		length += got;
	text[length] = 0;
}

/* Runs a builder and fills *it. An action in front of the given ones redirects the child's standard
 * output to a pipe. start() reads the pipe to its end and reaps the child. */
static inline void start(struct outcome *it, int fd, const char *const *argv,
			 const struct spawn_action *actions, unsigned int count, unsigned int flags)
{
	struct spawn_action all[SPAWN_MAX_ACTIONS] = {};
	struct spawn_args args;
	int pipes[2];

	memset(it, 0, sizeof(*it));
	it->code = -1;
	if (pipe2(pipes, O_CLOEXEC) < 0) {
		it->ret = -errno;
		return;
	}
	all[0] = (struct spawn_action){.type = SPAWN_ACTION_DUP2, .fd = pipes[1], .newfd = 1};
	if (count)
		memcpy(all + 1, actions, count * sizeof(*actions));
	args = make_args(all, count + 1);
	args.flags = flags;
	args.argv = ADDRESS(argv);
	it->ret = sys_run(fd, &args, sizeof(args));
	it->failed = args.failed >= 0 ? args.failed - 1 : args.failed;
	it->pid = args.pid;
	close(pipes[1]);
	if (it->ret >= 0) {
		read_all(pipes[0], it->out, sizeof(it->out));
		it->code = reap(it->ret);
		if (!(flags & SPAWN_BECOME_PIDFD))
			close(it->ret);
	}
	close(pipes[0]);
}

/* Returns true if a whole line of the output equals the formatted text. */
static inline bool __attribute__((format(printf, 2, 3))) has_line(const char *out,
								  const char *format, ...)
{
	char line[4096];
	size_t length;
	va_list list;

	va_start(list, format);
	length = vsnprintf(line, sizeof(line), format, list);
	va_end(list);
	for (const char *at = out; at && *at;) {
		if (strncmp(at, line, length) == 0 && (at[length] == '\n' || !at[length]))
			return true;
		at = strchr(at, '\n');
		at = at ? at + 1 : NULL;
	}
	return false;
}

/* Checks that the test has no child, not even a zombie, and no pending SIGCHLD.
 * SIGCHLD must be blocked. */
#define EXPECT_NO_CHILD()                                                                          \
	do {                                                                                       \
		sigset_t pending_now;                                                              \
		EXPECT_EQ(-1, waitpid(-1, NULL, WNOHANG | __WALL));                                \
		EXPECT_EQ(ECHILD, errno);                                                          \
		sigpending(&pending_now);                                                          \
		EXPECT_EQ(0, sigismember(&pending_now, SIGCHLD));                                  \
	} while (0)

static inline void block_sigchld(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

/* Takes the pending SIGCHLD of children that the test reaped without reap(). */
static inline void forget_sigchld(void)
{
	struct timespec at_once = {};
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigtimedwait(&set, NULL, &at_once);
}

/* Returns the lowest free descriptor number. It stays the same if the test leaks no descriptor. */
static inline int next_fd(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

/* Creates a file with this content and mode. An existing file is replaced. */
static inline void write_file(const char *path, const char *text, mode_t mode)
{
	int fd;

	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) ||
	    fchmod(fd, mode) < 0)
		abort();
	close(fd);
}

static inline void copy_file(const char *from, const char *to, mode_t mode)
{
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out;
	static char buffer[1 << 16];
	ssize_t got;

	unlink(to);
	out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0700);
	while ((got = read(in, buffer, sizeof(buffer))) > 0)
		if (write(out, buffer, got) != got)
			abort();
	if (in < 0 || out < 0 || got < 0 || fchmod(out, mode) < 0)
		abort();
	close(in);
	close(out);
}

/* Creates an empty working directory for the test.
 * It is never removed: the guest's file system is in memory. */
static inline void own_directory(void)
{
	char name[] = "/tmp/spawn-test-XXXXXX";

	if (!mkdtemp(name) || chmod(name, 0755) < 0 || chdir(name) < 0)
		abort();
}

/* Returns a read-only page that begins with a copy of content. */
static inline void *read_only(const void *content, size_t size)
{
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memcpy(page, content, size);
	mprotect(page, 4096, PROT_READ);
	return page;
}

/* Reads the first line of a file in /proc or in a cgroup, without the newline.
 * After an error, the text is empty. */
static inline char *file_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	text[length > 0 ? length : 0] = 0;
	text[strcspn(text, "\n")] = 0;
	return text;
}

static inline int put_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	int ret = fd < 0 || write(fd, text, strlen(text)) < 0 ? -errno : 0;

	if (fd >= 0)
		close(fd);
	return ret;
}

#ifdef HAVE_TEMPLATES
static inline long sys_create(void *args, size_t size)
{
	return result(syscall(__NR_spawn_template_create, args, size));
}

static inline long sys_spawn(int fd, void *args, size_t size)
{
	return result(syscall(__NR_spawn_template_spawn, fd, args, size));
}

static inline struct spawn_template_create_args of_path(const char *path)
{
	return (struct spawn_template_create_args){
		.flags = SPAWN_TEMPLATE_CREATE_CLOEXEC,
		.execfd = -1,
		.filename = ADDRESS(path),
	};
}

static inline int template_of(const char *path)
{
	struct spawn_template_create_args args = of_path(path);

	return sys_create(&args, sizeof(args));
}
#endif

#endif
