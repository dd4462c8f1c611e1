/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that is parked to execute others. It waits for a request as all do that are parked
 * (warm/main), carries its steps out, and executes what it names in its own place. In mode fork it
 * has children of its parent's that do so.
 *
 *     spawnfd-zygote MODE      r: reserve, f: fork
 *
 * Its end of the pair, a pidfd of the owner, and the shared page are descriptors 3, 4 and 5. It has
 * no libc: one that is made ahead costs what exec costs, and no more.
 */
#define _GNU_SOURCE
#include "park.h"
#include "zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SOCKET = 3, OWNER = 4, PAGE = 5 };

static struct spawnfd_page *page;
/* What is to be executed. */
static struct request request;
static struct program program;

static size_t receive(char *message, int *sources, size_t *count)
{
	static union {
		struct cmsghdr head;
		char room[CMSG_SPACE(SPAWNFD_MAX_DESCRIPTORS * sizeof(int))];
	} control;
	struct iovec part = {message, SPAWNFD_MAX_MESSAGE};
	struct msghdr received = {.msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control)};
	struct pollfd both[] = {{SOCKET, POLLIN, 0}, {OWNER, POLLIN, 0}};
	ssize_t length;

	while (poll(both, 2, -1) < 0 || !both[0].revents)
		if (both[1].revents)
			_exit(0);
	length = recvmsg(SOCKET, &received, MSG_CMSG_CLOEXEC);
	if (length <= 0)
		_exit(0);
	*count = 0;
	/* There is one kind of control message, and one of it. */
	if (received.msg_controllen >= CMSG_LEN(0) && control.head.cmsg_type == SCM_RIGHTS) {
		const int *given = (const int *)CMSG_DATA(&control.head);

		*count = (control.head.cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < *count; i++)
			sources[i] = given[i];
	}
	return received.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? 0 : (size_t)length;
}

/* Says that it waits; a child sends its pidfd with it. */
static void tell_that_it_is_parked(int pidfd)
{
	struct spawnfd_reply message = {.protocol = SPAWNFD_PROTOCOL,
					.word = SPAWNFD_PARKED,
					.pid = getpid(),
					/* More or less: some pages of its own, and its tables. */
					.private_bytes = 64 << 10};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct iovec part = {&message, sizeof(message)};
	struct msghdr sent = {.msg_iov = &part, .msg_iovlen = 1};

	if (pidfd >= 0) {
		*(int *)CMSG_DATA(&control.head) = pidfd;
		sent.msg_control = &control;
		sent.msg_controllen = sizeof(control);
	}
	while (syscall(SYS_sendmsg, SOCKET, &sent, MSG_NOSIGNAL) < 0 && errno == EINTR)
		continue;
}

static uint64_t claim(uint32_t serial, enum spawnfd_state state)
{
	return (uint64_t)serial * 8 + state;
}

static bool turn(uint64_t from, uint64_t to)
{
	return atomic_compare_exchange_strong((_Atomic uint64_t *)&page->claim, &from, to);
}

static void tell(void)
{
	syscall(SYS_futex, &page->claim, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Waits for the owner's word. False: it is not to be. */
static bool is_to_go(uint32_t serial)
{
	const uint64_t offered = claim(serial, SPAWNFD_OFFERED);
	struct pollfd owner = {OWNER, POLLIN, 0};
	const struct timespec a_while = {.tv_nsec = 50000000};

	while (atomic_load((_Atomic uint64_t *)&page->claim) == offered)
		if (syscall(SYS_futex, &page->claim, FUTEX_WAIT, (uint32_t)offered, &a_while, NULL,
			    0) &&
		    errno == ETIMEDOUT && poll(&owner, 1, 0) > 0)
			_exit(0);
	return turn(claim(serial, SPAWNFD_GO), claim(serial, SPAWNFD_TAKEN));
}

/* Nothing has been done, and another request may come; but an owner who has said go has gone. */
static void refuse(void)
{
	uint64_t now = atomic_load((_Atomic uint64_t *)&page->claim);

	if (now % 8 == SPAWNFD_OFFERED && turn(now, now - now % 8 + SPAWNFD_REFUSED))
		tell();
	else if (atomic_load((_Atomic uint64_t *)&page->claim) % 8 == SPAWNFD_GO)
		_exit(127);
}

static _Noreturn void fail(enum spawnfd_stage stage, uint32_t index, int error)
{
	page->report = SPAWNFD_REPORT_FAILED(stage, index, error);
	_exit(127);
}

/* Whether a search would take it: is_candidate in crates/spawnfd-child/src/plan.rs. */
static bool is_candidate(const char *path, const struct statx *file)
{
	long error = syscall(SYS_faccessat2, AT_FDCWD, path, X_OK, AT_EACCESS);

	/* Before Linux 5.8, or refused: by the real ids. */
	if (error && (errno == ENOSYS || errno == EPERM))
		error = syscall(SYS_faccessat, AT_FDCWD, path, X_OK);
	return !error && S_ISREG(file->stx_mode);
}

/* 0, ESTALE, or why it cannot be told: as verify_one in crates/spawnfd-child/src/child.rs. */
static int verify(const struct spawnfd_check *check, const struct request *of)
{
	const char *path = of->strings + check->path;
	bool source = check->kind == SPAWNFD_SAME_SOURCE;
	struct statx now;
	long error =
		syscall(SYS_statx, source ? of->sources[of->head->program] : AT_FDCWD,
			source ? "" : path, source ? AT_EMPTY_PATH : 0, STATX_BASIC_STATS, &now);

	if (check->kind == SPAWNFD_ABSENT)
		return !error && is_candidate(path, &now) ? ESTALE : 0;
	if (error)
		return errno == ENOENT || errno == ENOTDIR ? ESTALE : errno;
	if (now.stx_dev_major == check->device[0] && now.stx_dev_minor == check->device[1] &&
	    now.stx_ino == check->inode && now.stx_size == check->size &&
	    now.stx_mode == check->mode && now.stx_uid == check->owner &&
	    now.stx_gid == check->group && now.stx_ctime.tv_sec == check->ctime &&
	    now.stx_ctime.tv_nsec == check->ctime_nanoseconds &&
	    now.stx_mtime.tv_sec == check->mtime &&
	    now.stx_mtime.tv_nsec == check->mtime_nanoseconds)
		return 0;
	return ESTALE;
}

/* Executes what was asked for. Comes back only if it is not to be. */
static void execute(void)
{
	const struct spawnfd_request *head = request.head;
	int socket = SOCKET, error;
	uint32_t index;

	if (!is_to_go(head->serial))
		return;
	/* Whoever waits for it hears of what follows by the socket. */
	tell();
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	error = spawnfd_read_page(&request) ? spawnfd_carry_out(&request, &socket, &index) : EINVAL;
	if (error)
		fail(index == UINT32_MAX ? SPAWNFD_AT_DESCRIPTORS : SPAWNFD_AT_ACTION,
		     index & UINT16_MAX, error);
	spawnfd_settle_signals(&request);
	for (uint32_t i = 0; i < head->checks; i++) {
		error = verify(&request.checks[i], &request);
		if (error)
			fail(SPAWNFD_AT_CHECK, i, error);
	}
	page->report = SPAWNFD_REPORT_EXEC;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &page->mask, NULL, sizeof(page->mask));
	/* All that is not the program's is close-on-exec. */
	if (head->program < 0)
		syscall(SYS_execve, request.strings + head->path, program.argv, program.envp);
	else
		syscall(SYS_execveat, request.sources[head->program], "", program.argv,
			program.envp, AT_EMPTY_PATH);
	fail(SPAWNFD_AT_EXEC, 0, errno);
}

/* Forks a child of this process's parent, which waits with the socket and the page that have come:
 * its number stands in that page before it runs. True in the child. */
static bool fork_one(const int *sources)
{
	struct spawnfd_page *own =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, sources[1], 0);
	int pidfd;

	if (own == MAP_FAILED)
		return false;
	if (syscall(SYS_clone, CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD, NULL, &own->child,
		    NULL, NULL)) {
		munmap(own, 4096);
		return false;
	}
	munmap(page, 4096);
	page = own;
	pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (pidfd < 0 || dup3(sources[0], SOCKET, O_CLOEXEC) < 0)
		_exit(126);
	tell_that_it_is_parked(pidfd);
	close(pidfd);
	return true;
}

void spawnfd_zygote(int argc, char **argv)
{
	static _Alignas(16) char message[SPAWNFD_MAX_MESSAGE * 2];
	bool forks = argc > 1 && argv[1][0] == 'f';
	const uint64_t all = ~UINT64_C(0);

	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof(all));
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, PAGE, 0);
	if (page == MAP_FAILED)
		_exit(126);
	close(PAGE);
	fcntl(SOCKET, F_SETFD, FD_CLOEXEC);
	fcntl(OWNER, F_SETFD, FD_CLOEXEC);
	prctl(PR_SET_NAME, "spawnfd-zygote", 0, 0, 0);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	tell_that_it_is_parked(-1);
	for (;;) {
		size_t count, length = receive(message, request.sources, &count);
		bool sound;

		request.page = page;
		sound = spawnfd_read_request(message, length, sizeof(message), count, &request,
					     &program);
		if (!sound || forks != !!(request.head->flags & SPAWNFD_FORK))
			refuse();
		else if (!forks)
			execute();
		else if (fork_one(request.sources))
			forks = false;
		for (size_t i = 0; i < count; i++)
			close(request.sources[i]);
	}
}
