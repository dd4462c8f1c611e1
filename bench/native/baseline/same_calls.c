// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The floor of spawnfd: a C program that makes the same system calls as a spawn and a wait by the
 * library, in the same order, and does nothing else. So a ratio to this program is the cost of the
 * library's own instructions. The test same_calls compares the system calls by strace.
 *
 * This is the spawn of a program by its path, with stdout to a descriptor below 64, by a thread
 * without seccomp filters. It needs Linux 6.9 (PIDFD_THREAD). Like the library, it has two
 * strategies for the child's descriptor table: the child of the only thread keeps the low
 * descriptors (TrimTable), and a child of another thread copies its stdout from the sleeping
 * parent (PidfdGetfd).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ULL
#endif
#ifndef P_PIDFD
#define P_PIDFD 3
#endif

enum {
	PAGE = 4096,
	STACK_SIZE = 64 << 10,
	GROUPS = 64,
	ONE_THREAD_LINKS = 3,	  /* of /proc/self/task: two, and one for each thread */
	RANGE_UNSHARE = 1 << 1,	  /* CLOSE_RANGE_UNSHARE */
	PIDFD_OF_THREAD = O_EXCL, /* PIDFD_THREAD */
};

extern char **environ;

/* The number of a descriptor, and its file. */
struct known_fd {
	int fd;
	dev_t device;
	ino_t inode;
};

struct credentials {
	struct __user_cap_data_struct capabilities[2];
	gid_t groups[GROUPS];
	int group_count;
	uid_t uids[3];
	gid_t gids[3];
};

/* A program to start, and what one thread needs to start it. */
struct same_calls {
	char *program;
	struct statx recorded;
	struct credentials creator;
	char *stack; /* above a guard page */
	bool is_ready;
	/* Opened by the first start: a directory in the main thread, a pidfd in another thread. */
	struct known_fd threads, self;
	struct known_fd child;
};

/* The child's input. */
struct start {
	const struct same_calls *same;
	char **argv;
	int out;
	bool trims;
};

static bool identify(int fd, struct known_fd *found)
{
	struct stat stat;

	if (syscall(SYS_fstat, fd, &stat))
		return false;
	*found = (struct known_fd){.fd = fd, .device = stat.st_dev, .inode = stat.st_ino};
	return true;
}

static bool is_same(const struct known_fd *known)
{
	struct known_fd now;

	return identify(known->fd, &now) && now.device == known->device &&
	       now.inode == known->inode;
}

static bool is_same_time(const struct statx_timestamp *a, const struct statx_timestamp *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool is_same_program(const struct same_calls *same)
{
	const struct statx *old = &same->recorded;
	struct statx now;

	return syscall(SYS_statx, AT_FDCWD, same->program, 0, STATX_BASIC_STATS, &now) == 0 &&
	       now.stx_dev_major == old->stx_dev_major && now.stx_dev_minor == old->stx_dev_minor &&
	       now.stx_ino == old->stx_ino && now.stx_size == old->stx_size &&
	       now.stx_mode == old->stx_mode && now.stx_uid == old->stx_uid &&
	       now.stx_gid == old->stx_gid && is_same_time(&now.stx_ctime, &old->stx_ctime) &&
	       is_same_time(&now.stx_mtime, &old->stx_mtime);
}

static bool read_capabilities(struct credentials *of)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};

	return syscall(SYS_capget, &header, of->capabilities) == 0;
}

static bool read_ids(struct credentials *of)
{
	of->group_count = (int)syscall(SYS_getgroups, GROUPS, of->groups);
	return of->group_count >= 0 &&
	       syscall(SYS_getresuid, &of->uids[0], &of->uids[1], &of->uids[2]) == 0 &&
	       syscall(SYS_getresgid, &of->gids[0], &of->gids[1], &of->gids[2]) == 0;
}

/* Whether ids and groups cannot change without a change of capabilities. */
static bool has_fixed_ids(const struct credentials *of)
{
	return !of->capabilities[0].permitted && !of->capabilities[1].permitted &&
	       of->uids[0] == of->uids[1] && of->uids[1] == of->uids[2] &&
	       of->gids[0] == of->gids[1] && of->gids[1] == of->gids[2];
}

static bool has_same_credentials(const struct same_calls *same)
{
	const struct credentials *old = &same->creator;
	struct credentials now;

	if (!read_capabilities(&now) ||
	    memcmp(now.capabilities, old->capabilities, sizeof(now.capabilities)))
		return false;
	if (has_fixed_ids(old))
		return true;
	return read_ids(&now) && now.group_count == old->group_count &&
	       !memcmp(now.groups, old->groups, sizeof(gid_t) * (size_t)now.group_count) &&
	       !memcmp(now.uids, old->uids, sizeof(now.uids)) &&
	       !memcmp(now.gids, old->gids, sizeof(now.gids));
}

/* Whether the calling thread is the only one. The library checks the descriptor before its use. */
static bool is_alone(const struct same_calls *same)
{
	struct stat stat;

	return same->threads.fd >= 0 && is_same(&same->threads) &&
	       syscall(SYS_fstat, same->threads.fd, &stat) == 0 &&
	       stat.st_nlink == ONE_THREAD_LINKS;
}

/* The kernel's struct sigaction. */
struct kernel_sigaction {
	void *handler;
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};

static void become_program(const struct start *start)
{
	const struct same_calls *same = start->same;
	struct kernel_sigaction by_default = {.handler = SIG_DFL};
	int source = start->out, highest = start->out;

	if (start->trims) {
		if (syscall(SYS_close_range, source + 1, ~0U, RANGE_UNSHARE))
			return;
	} else {
		/* pidfd_getfd finds a free number here or below. */
		highest = same->self.fd + 1;
		if (syscall(SYS_close_range, highest, ~0U, RANGE_UNSHARE) || !is_same(&same->self))
			return;
		source = (int)syscall(SYS_pidfd_getfd, same->self.fd, source, 0);
	}
	if (syscall(SYS_dup3, source, 1, 0) == 1 && syscall(SYS_close_range, 3, highest, 0) == 0 &&
	    syscall(SYS_rt_sigaction, SIGPIPE, &by_default, NULL, sizeof(by_default.mask)) == 0 &&
	    is_same_program(same))
		syscall(SYS_execve, same->program, start->argv, environ);
}

static void run_child(const struct start *start)
{
	become_program(start);
	_exit(127);
}

/* Makes a clone3 call whose child calls run_child() on a stack of its own. */
static long clone_child(const struct clone_args *args, const struct start *start)
{
#if defined(__x86_64__)
	long result;

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "mov %[start], %%rdi\n\t"
			 "call *%[child]\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(result)
			 : "0"((long)SYS_clone3), "D"(args),
			   "S"(sizeof(*args)), [child] "r"(run_child), [start] "r"(start)
			 : "rcx", "r11", "cc", "memory");
	return result;
#elif defined(__aarch64__)
	register long number __asm__("x8") = SYS_clone3;
	register long result __asm__("x0") = (long)args;
	register long size __asm__("x1") = sizeof(*args);

	__asm__ volatile("svc #0\n\t"
			 "cbnz x0, 1f\n\t"
			 "mov x0, %[start]\n\t"
			 "blr %[child]\n\t"
			 "brk #1\n"
			 "1:"
			 : "+r"(result)
			 : "r"(number), "r"(size), [child] "r"(run_child), [start] "r"(start)
			 : "x30", "cc", "memory");
	return result;
#else
#error "no clone3 with a stack for this architecture yet"
#endif
}

/* Opens the files of the thread that starts the program. */
static bool get_ready(struct same_calls *same)
{
	long thread = syscall(SYS_gettid);
	struct known_fd *opened = &same->self;
	int fd;

	if (thread == getpid()) {
		opened = &same->threads;
		fd = open("/proc/self/task", O_PATH | O_DIRECTORY | O_CLOEXEC);
	} else {
		fd = (int)syscall(SYS_pidfd_open, thread, PIDFD_OF_THREAD);
	}
	same->is_ready = fd >= 0 && identify(fd, opened);
	return same->is_ready;
}

void spawnfd_same_calls_close(struct same_calls *same)
{
	if (same->threads.fd >= 0)
		close(same->threads.fd);
	if (same->self.fd >= 0)
		close(same->self.fd);
	if (same->stack)
		munmap(same->stack - PAGE, PAGE + STACK_SIZE);
	free(same->program);
	free(same);
}

/* Returns NULL, with errno, on an error. */
struct same_calls *spawnfd_same_calls_open(const char *program)
{
	struct same_calls *same = calloc(1, sizeof(*same));
	char *guard;

	if (!same)
		return NULL;
	same->threads.fd = same->self.fd = same->child.fd = -1;
	same->program = strdup(program);
	guard = mmap(NULL, PAGE + STACK_SIZE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
	if (guard != MAP_FAILED)
		same->stack = guard + PAGE;
	if (same->program && same->stack && mprotect(guard, PAGE, PROT_NONE) == 0 &&
	    statx(AT_FDCWD, program, 0, STATX_BASIC_STATS, &same->recorded) == 0 &&
	    read_capabilities(&same->creator) && read_ids(&same->creator))
		return same;
	spawnfd_same_calls_close(same);
	return NULL;
}

/*
 * Starts the program with argv[0] as its only argument, with this process's environment and with
 * `out` as descriptor 1. Returns 0 or -errno. The same thread makes all starts.
 */
int spawnfd_same_calls_start(struct same_calls *same, int out)
{
	char *argv[] = {same->program, NULL};
	struct start start = {.same = same, .argv = argv, .out = out};
	int pidfd = -1;
	struct clone_args args = {
		.flags = CLONE_VM | CLONE_FILES | CLONE_PIDFD | CLONE_VFORK | CLONE_CLEAR_SIGHAND,
		.pidfd = (uintptr_t)&pidfd,
		.stack = (uintptr_t)same->stack,
		.stack_size = STACK_SIZE,
	};
	long pid;

	if (!same->is_ready && !get_ready(same))
		return -errno;
	if (prctl(PR_GET_SECCOMP))
		return -ENOTSUP;
	if (!has_same_credentials(same))
		return -EACCES;
	start.trims = is_alone(same);
	if (!start.trims && same->self.fd < 0)
		return -ENOTSUP;
	pid = clone_child(&args, &start);
	if (pid < 0)
		return (int)pid;
	return identify(pidfd, &same->child) ? 0 : -errno;
}

/* Waits for the program. Returns its exit code, or -errno; a signal that ended it is -ECANCELED. */
int spawnfd_same_calls_finish(struct same_calls *same)
{
	siginfo_t ended;
	struct rusage usage;

	if (!is_same(&same->child))
		return -EBADF;
	while (syscall(SYS_waitid, P_PIDFD, same->child.fd, &ended, WEXITED | __WALL, &usage))
		if (errno != EINTR)
			return -errno;
	if (is_same(&same->child))
		close(same->child.fd);
	same->child.fd = -1;
	return ended.si_code == CLD_EXITED ? ended.si_status : -ECANCELED;
}
