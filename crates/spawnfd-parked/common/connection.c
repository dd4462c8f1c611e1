/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The connection between a parked process and its owner: a socket and a shared page. The zygote,
 * which has no libc, also uses this file. */
#include "connection.h"

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

void spawnfd_send_reply(const struct spawnfd_connection *connection, struct spawnfd_reply head,
			const char *text, size_t length, int pidfd)
{
	struct iovec parts[] = {{&head, sizeof(head)}, {(void *)text, length}};
	union {
		struct cmsghdr head;
		char buffer[CMSG_SPACE(sizeof(int))];
	} control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

	head.version = SPAWNFD_VERSION;
	head.pid = getpid();
	if (pidfd >= 0) {
		memcpy(CMSG_DATA(&control.head), &pidfd, sizeof(int));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
	}
	while (sendmsg(connection->socket, &message, MSG_NOSIGNAL) < 0 && errno == EINTR)
		continue;
}

size_t spawnfd_receive(const struct spawnfd_connection *connection, char *message, int *sources,
		       size_t *count)
{
	union {
		struct cmsghdr head;
		char buffer[CMSG_SPACE(SPAWNFD_MAX_DESCRIPTORS * sizeof(int))];
	} control;
	struct iovec part = {message, SPAWNFD_MAX_MESSAGE};
	struct msghdr received = {.msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control)};
	struct pollfd descriptors[] = {{connection->socket, POLLIN, 0},
				       {connection->owner_pidfd, POLLIN, 0}};
	ssize_t length;

	/* Also poll the owner's pidfd. After the owner's death the socket may stay open, because
	 * other processes may have inherited the owner's end. */
	while (poll(descriptors, 2, -1) < 0 || !descriptors[0].revents)
		if (descriptors[1].revents)
			_exit(0);
	length = recvmsg(connection->socket, &received, MSG_CMSG_CLOEXEC);
	if (length <= 0)
		_exit(0);
	*count = 0;
	/* The owner sends at most one control message, of type SCM_RIGHTS. */
	if (received.msg_controllen >= CMSG_LEN(0) && control.head.cmsg_level == SOL_SOCKET &&
	    control.head.cmsg_type == SCM_RIGHTS) {
		*count = (control.head.cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(sources, CMSG_DATA(&control.head), *count * sizeof(int));
	}
	return received.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? 0 : (size_t)length;
}

static _Atomic uint64_t *handshake_word(const struct spawnfd_connection *connection)
{
	return (_Atomic uint64_t *)&connection->page->handshake;
}

static uint64_t status_word(uint32_t serial, enum spawnfd_handshake state)
{
	return (uint64_t)serial * SPAWNFD_HANDSHAKE_STATES + state;
}

static enum spawnfd_handshake current_state(const struct spawnfd_connection *connection)
{
	return (enum spawnfd_handshake)(atomic_load(handshake_word(connection)) %
					SPAWNFD_HANDSHAKE_STATES);
}

/* Changes the state from `from` to `to`; false if the request is not in state `from`. */
static bool change_state(const struct spawnfd_connection *connection, enum spawnfd_handshake from,
			 enum spawnfd_handshake to)
{
	uint64_t now = atomic_load(handshake_word(connection));

	return now % SPAWNFD_HANDSHAKE_STATES == from &&
	       atomic_compare_exchange_strong(handshake_word(connection), &now,
					      now - (uint64_t)from + to);
}

void spawnfd_wake_owner(const struct spawnfd_connection *connection)
{
	syscall(SYS_futex, handshake_word(connection), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

bool spawnfd_wait_for_commit(const struct spawnfd_connection *connection, uint32_t serial)
{
	const uint64_t requested = status_word(serial, SPAWNFD_HANDSHAKE_REQUESTED);
	uint64_t committed = status_word(serial, SPAWNFD_HANDSHAKE_COMMITTED);
	struct pollfd owner = {connection->owner_pidfd, POLLIN, 0};
	const struct timespec interval = {.tv_nsec = 50000000};

	while (atomic_load(handshake_word(connection)) == requested)
		/* A futex has 32 bits: the low half of the handshake, which comes first on a
		 * little-endian machine. */
		if (syscall(SYS_futex, handshake_word(connection), FUTEX_WAIT, (uint32_t)requested,
			    &interval, NULL, 0) &&
		    errno == ETIMEDOUT && poll(&owner, 1, 0) > 0)
			_exit(0);
	return atomic_compare_exchange_strong(handshake_word(connection), &committed,
					      status_word(serial, SPAWNFD_HANDSHAKE_TAKEN));
}

void spawnfd_report_became(const struct spawnfd_connection *connection)
{
	change_state(connection, SPAWNFD_HANDSHAKE_TAKEN, SPAWNFD_HANDSHAKE_BECAME);
	spawnfd_wake_owner(connection);
}

void spawnfd_begin(struct spawnfd_page *page, enum spawnfd_stage stage, uint32_t index)
{
	page->report = SPAWNFD_REPORT_PENDING | (uint64_t)stage << SPAWNFD_REPORT_STAGE_SHIFT |
		       (uint64_t)index << SPAWNFD_REPORT_INDEX_SHIFT;
}

_Noreturn void spawnfd_fail(const struct spawnfd_connection *connection, int error)
{
	connection->page->report ^= SPAWNFD_REPORT_PENDING | (uint32_t)error;
	change_state(connection, current_state(connection), SPAWNFD_HANDSHAKE_FAILED);
	spawnfd_wake_owner(connection);
	_exit(127);
}

void spawnfd_refuse(const struct spawnfd_connection *connection)
{
	if (change_state(connection, SPAWNFD_HANDSHAKE_REQUESTED, SPAWNFD_HANDSHAKE_REFUSED))
		spawnfd_wake_owner(connection);
	else if (current_state(connection) == SPAWNFD_HANDSHAKE_COMMITTED) {
		spawnfd_begin(connection->page, SPAWNFD_STAGE_DESCRIPTORS, 0);
		spawnfd_fail(connection, EINVAL);
	}
}

struct spawnfd_page *spawnfd_map_page(int file)
{
	void *page = mmap(NULL, SPAWNFD_PAGE_SIZE, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_POPULATE, file, 0);

	return page == MAP_FAILED ? NULL : page;
}

bool spawnfd_exclude_page_from_forks(const struct spawnfd_connection *connection)
{
	return syscall(SYS_madvise, connection->page, SPAWNFD_PAGE_SIZE, MADV_DONTFORK) == 0;
}

void spawnfd_use_own_connection(struct spawnfd_connection *connection, struct spawnfd_page *page,
				int socket, uint64_t private_bytes)
{
	int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	connection->page = page;
	if (pidfd < 0 || dup3(socket, connection->socket, O_CLOEXEC) < 0)
		_exit(126);
	spawnfd_send_reply(connection,
			   (struct spawnfd_reply){.kind = SPAWNFD_REPLY_PARKED,
						  .private_bytes = private_bytes},
			   NULL, 0, pidfd);
	close(pidfd);
}
