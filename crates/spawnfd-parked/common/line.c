/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a parked process has in common with its owner: a socket, and a page. Shared with the zygote,
 * which has no libc. */
#define _GNU_SOURCE
#include "line.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void spawnfd_say(const struct spawnfd_line *line, struct spawnfd_reply head, const char *text,
		 size_t length, int pidfd)
{
	struct iovec parts[] = {{&head, sizeof(head)}, {(void *)text, length}};
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

	head.version = SPAWNFD_VERSION;
	head.pid = getpid();
	if (pidfd >= 0) {
		memcpy(CMSG_DATA(&control.head), &pidfd, sizeof(int));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
	}
	while (sendmsg(line->socket, &message, MSG_NOSIGNAL) < 0 && errno == EINTR)
		continue;
}

size_t spawnfd_receive(const struct spawnfd_line *line, char *message, int *sources, size_t *count)
{
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(SPAWNFD_MAX_DESCRIPTORS * sizeof(int))];
	} control;
	struct iovec part = {message, SPAWNFD_MAX_MESSAGE};
	struct msghdr received = {.msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control)};
	struct pollfd both[] = {{line->socket, POLLIN, 0}, {line->owner, POLLIN, 0}};
	ssize_t length;

	/* The owner's end may have come into other processes' hands: its death is told by the
	 * pidfd. */
	while (poll(both, 2, -1) < 0 || !both[0].revents)
		if (both[1].revents)
			_exit(0);
	length = recvmsg(line->socket, &received, MSG_CMSG_CLOEXEC);
	if (length <= 0)
		_exit(0);
	*count = 0;
	/* There is one kind of control message here, and one of it. */
	if (received.msg_controllen >= CMSG_LEN(0) && control.head.cmsg_level == SOL_SOCKET &&
	    control.head.cmsg_type == SCM_RIGHTS) {
		*count = (control.head.cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(sources, CMSG_DATA(&control.head), *count * sizeof(int));
	}
	return received.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? 0 : (size_t)length;
}

static _Atomic uint64_t *claim_of(const struct spawnfd_line *line)
{
	return (_Atomic uint64_t *)&line->page->claim;
}

static uint64_t claim(uint32_t serial, enum spawnfd_claim state)
{
	return (uint64_t)serial * SPAWNFD_CLAIM_STATES + state;
}

static enum spawnfd_claim state_now(const struct spawnfd_line *line)
{
	return (enum spawnfd_claim)(atomic_load(claim_of(line)) % SPAWNFD_CLAIM_STATES);
}

/* False, if the request is not in state `from`. */
static bool turn(const struct spawnfd_line *line, enum spawnfd_claim from, enum spawnfd_claim to)
{
	uint64_t now = atomic_load(claim_of(line));

	return now % SPAWNFD_CLAIM_STATES == from &&
	       atomic_compare_exchange_strong(claim_of(line), &now, now - (uint64_t)from + to);
}

void spawnfd_wake(const struct spawnfd_line *line)
{
	syscall(SYS_futex, claim_of(line), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

bool spawnfd_is_to_go(const struct spawnfd_line *line, uint32_t serial)
{
	const uint64_t offered = claim(serial, SPAWNFD_CLAIM_OFFERED);
	uint64_t go = claim(serial, SPAWNFD_CLAIM_GO);
	struct pollfd owner = {line->owner, POLLIN, 0};
	const struct timespec a_while = {.tv_nsec = 50000000};

	while (atomic_load(claim_of(line)) == offered)
		/* The lower half, on a machine that has it first. */
		if (syscall(SYS_futex, claim_of(line), FUTEX_WAIT, (uint32_t)offered, &a_while,
			    NULL, 0) &&
		    errno == ETIMEDOUT && poll(&owner, 1, 0) > 0)
			_exit(0);
	return atomic_compare_exchange_strong(claim_of(line), &go,
					      claim(serial, SPAWNFD_CLAIM_TAKEN));
}

void spawnfd_became(const struct spawnfd_line *line)
{
	turn(line, SPAWNFD_CLAIM_TAKEN, SPAWNFD_CLAIM_BECAME);
	spawnfd_wake(line);
}

_Noreturn void spawnfd_fail(const struct spawnfd_line *line, uint32_t index, int error)
{
	line->page->index = index;
	line->page->error = error;
	turn(line, state_now(line), SPAWNFD_CLAIM_FAILED);
	spawnfd_wake(line);
	_exit(127);
}

void spawnfd_refuse(const struct spawnfd_line *line)
{
	if (turn(line, SPAWNFD_CLAIM_OFFERED, SPAWNFD_CLAIM_REFUSED))
		spawnfd_wake(line);
	else if (state_now(line) == SPAWNFD_CLAIM_GO)
		spawnfd_fail(line, SPAWNFD_NO_STEP, EINVAL);
}

struct spawnfd_page *spawnfd_map(int file)
{
	void *page = mmap(NULL, SPAWNFD_PAGE_SIZE, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_POPULATE, file, 0);

	return page == MAP_FAILED ? NULL : page;
}

bool spawnfd_keep_line(const struct spawnfd_line *line)
{
	return syscall(SYS_madvise, line->page, SPAWNFD_PAGE_SIZE, MADV_DONTFORK) == 0;
}

void spawnfd_wait_apart(struct spawnfd_line *line, struct spawnfd_page *page, int socket,
			uint64_t private_bytes)
{
	int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	line->page = page;
	if (pidfd < 0 || dup3(socket, line->socket, O_CLOEXEC) < 0)
		_exit(126);
	spawnfd_say(line,
		    (struct spawnfd_reply){.kind = SPAWNFD_REPLY_PARKED,
					   .private_bytes = private_bytes},
		    NULL, 0, pidfd);
	close(pidfd);
}
