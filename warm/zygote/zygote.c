/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that is parked to execute others. It waits for a request as all do that are parked
 * (warm/main), carries its steps out, and executes what it names: in its own place, or, in mode
 * fork, in a child of its parent's.
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

static void reply(uint32_t word, uint32_t serial)
{
	struct spawnfd_reply message = {.protocol = SPAWNFD_PROTOCOL,
					.word = word,
					.serial = serial,
					.pid = getpid(),
					/* More or less: some pages of its own, and its tables. */
					.private_bytes = 64 << 10};

	while (send(SOCKET, &message, sizeof(message), MSG_NOSIGNAL) < 0 && errno == EINTR)
		continue;
}

/* Waits for the owner's word. False: it is not to be. */
static bool is_to_go(uint32_t serial)
{
	_Atomic uint64_t *claim = (_Atomic uint64_t *)&page->claim;
	const uint64_t offered = (uint64_t)serial * 4 + SPAWNFD_OFFERED;
	uint64_t go = (uint64_t)serial * 4 + SPAWNFD_GO;
	struct pollfd owner = {OWNER, POLLIN, 0};
	const struct timespec a_while = {.tv_nsec = 50000000};

	while (atomic_load(claim) == offered)
		if (syscall(SYS_futex, claim, FUTEX_WAIT, (uint32_t)offered, &a_while, NULL, 0) &&
		    errno == ETIMEDOUT && poll(&owner, 1, 0) > 0)
			_exit(0);
	return atomic_compare_exchange_strong(claim, &go, (uint64_t)serial * 4 + SPAWNFD_TAKEN);
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

/* Whether a step writes to a file of the process's own, which root owns while it is not dumpable.
 */
static bool needs_own_files(void)
{
	for (uint32_t i = 0; i < page->first && i < SPAWNFD_MAX_FIRST; i++)
		if (page->steps[i].op == SPAWNFD_OOM_SCORE_ADJ)
			return true;
	for (uint32_t i = 0; i < request.head->steps; i++)
		if (request.steps[i].op == SPAWNFD_OOM_SCORE_ADJ)
			return true;
	return false;
}

/* Executes what was asked for. Comes back only if it is not to be. */
static int execute(void *forked)
{
	const struct spawnfd_request *head = request.head;
	/* In mode fork this memory is the zygote's own, and its numbers stand for other files. */
	struct request own = request;
	int socket = SOCKET, error;
	uint32_t index;

	if (!is_to_go(head->serial))
		return 0;
	if (!forked || needs_own_files())
		prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	error = spawnfd_read_page(&own) ? spawnfd_carry_out(&own, &socket, &index) : EINVAL;
	if (error)
		fail(index == UINT32_MAX ? SPAWNFD_AT_DESCRIPTORS : SPAWNFD_AT_ACTION,
		     index & UINT16_MAX, error);
	spawnfd_settle_signals(&own);
	for (uint32_t i = 0; i < head->checks; i++) {
		error = verify(&own.checks[i], &own);
		if (error)
			fail(SPAWNFD_AT_CHECK, i, error);
	}
	page->report = SPAWNFD_REPORT_EXEC;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &page->mask, NULL, sizeof(page->mask));
	/* All that is not the program's is close-on-exec. */
	if (head->program < 0)
		syscall(SYS_execve, own.strings + head->path, program.argv, program.envp);
	else
		syscall(SYS_execveat, own.sources[head->program], "", program.argv, program.envp,
			AT_EMPTY_PATH);
	fail(SPAWNFD_AT_EXEC, 0, errno);
}

/*
 * Has a child of this process's parent execute it, and sleeps until it has, or has ended: it stands
 * in this memory, as one of vfork's does. An errno where there is no child.
 */
static int execute_in_child(void)
{
	static _Alignas(16) char stack[32 << 10];
	long pid =
		spawnfd_clone(CLONE_VM | CLONE_VFORK | CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD,
			      stack + sizeof(stack), &page->child, execute, stack);

	return pid < 0 ? (int)-pid : 0;
}

void spawnfd_zygote(int argc, char **argv)
{
	static _Alignas(16) char message[SPAWNFD_MAX_MESSAGE * 2];
	const bool forks = argc > 1 && argv[1][0] == 'f';
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
	reply(SPAWNFD_PARKED, 0);
	for (;;) {
		size_t count, length = receive(message, request.sources, &count);
		uint32_t serial = 0;
		bool refused = true;

		request.page = page;
		if (spawnfd_read_request(message, length, sizeof(message), count, &request,
					 &program)) {
			serial = request.head->serial;
			if (forks)
				refused = execute_in_child();
			else
				refused = execute(NULL);
		}
		prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
		if (refused)
			reply(SPAWNFD_REFUSED, serial);
		else if (forks && atomic_load((_Atomic uint64_t *)&page->claim) !=
					  (uint64_t)serial * 4 + SPAWNFD_WITHDRAWN)
			reply(SPAWNFD_BECAME, serial);
		for (size_t i = 0; i < count; i++)
			close(request.sources[i]);
	}
}
