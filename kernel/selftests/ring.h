/* SPDX-License-Identifier: GPL-2.0-only */
/* A minimal io_uring client without liburing. A ring has no lock, so only one thread may use it. */
#ifndef RING_H
#define RING_H

#include "spawn_test.h"
#include <linux/io_uring.h>

struct ring {
	int fd;
	unsigned int *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
	unsigned int queued;
	void *rings;
	size_t rings_size, sqes_size;
	/* Completions that the test took from the ring while it waited for another request. */
	struct {
		__u64 user_data;
		int res;
	} kept[128];
	int count;
};

static inline int ring_open(struct ring *ring, unsigned int flags)
{
	struct io_uring_params params = {.flags = flags};
	char *rings;

	memset(ring, 0, sizeof(*ring));
	ring->fd = result(syscall(__NR_io_uring_setup, 64, &params));
	if (ring->fd < 0)
		return ring->fd;
	rings = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(*ring->cqes) + 4096,
		     PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd,
		     IORING_OFF_SQ_RING);
	ring->sqes = mmap(NULL, params.sq_entries * sizeof(*ring->sqes), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
	ring->rings = rings;
	ring->rings_size = params.cq_off.cqes + params.cq_entries * sizeof(*ring->cqes) + 4096;
	ring->sqes_size = params.sq_entries * sizeof(*ring->sqes);
	if (rings == MAP_FAILED || ring->sqes == MAP_FAILED)
		return -ENOMEM;
	ring->sq_tail = (void *)(rings + params.sq_off.tail);
	ring->sq_mask = (void *)(rings + params.sq_off.ring_mask);
	ring->sq_array = (void *)(rings + params.sq_off.array);
	ring->cq_head = (void *)(rings + params.cq_off.head);
	ring->cq_tail = (void *)(rings + params.cq_off.tail);
	ring->cq_mask = (void *)(rings + params.cq_off.ring_mask);
	ring->cqes = (void *)(rings + params.cq_off.cqes);
	return 0;
}

static inline void ring_close(struct ring *ring)
{
	if (ring->fd >= 0) {
		munmap(ring->rings, ring->rings_size);
		munmap(ring->sqes, ring->sqes_size);
		close(ring->fd);
	}
}

static inline struct io_uring_sqe *queue(struct ring *ring, int opcode, __u64 user_data)
{
	unsigned int tail = *ring->sq_tail + ring->queued, index = tail & *ring->sq_mask;
	struct io_uring_sqe *sqe = ring->sqes + index;

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = opcode;
	sqe->user_data = user_data;
	ring->sq_array[index] = index;
	ring->queued++;
	return sqe;
}

static inline struct io_uring_sqe *queue_spawn(struct ring *ring, int fd, struct spawn_args *args,
					       __u64 user_data)
{
	struct io_uring_sqe *sqe = queue(ring, IORING_OP_SPAWN, user_data);

	sqe->fd = fd;
	sqe->addr = ADDRESS(args);
	sqe->len = sizeof(*args);
	return sqe;
}

static inline int submit(struct ring *ring, unsigned int wait_for)
{
	unsigned int count = ring->queued;

	__atomic_store_n(ring->sq_tail, *ring->sq_tail + count, __ATOMIC_RELEASE);
	ring->queued = 0;
	return result(syscall(__NR_io_uring_enter, ring->fd, count, wait_for,
			      wait_for ? IORING_ENTER_GETEVENTS : 0, NULL, 0));
}

/* Enters the kernel, so that it runs pending task work and posts completions. Does not wait. */
static inline void ring_poll(struct ring *ring)
{
	syscall(__NR_io_uring_enter, ring->fd, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
}

/* Returns true and sets *res if the request with this user_data has completed.
 * Requests may complete in any order. */
static inline bool completed(struct ring *ring, __u64 user_data, int *res)
{
	unsigned int head = *ring->cq_head;

	for (; head != __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE); head++) {
		struct io_uring_cqe *cqe = ring->cqes + (head & *ring->cq_mask);

		if (ring->count == COUNT(ring->kept))
			abort();
		ring->kept[ring->count].user_data = cqe->user_data;
		ring->kept[ring->count++].res = cqe->res;
	}
	__atomic_store_n(ring->cq_head, head, __ATOMIC_RELEASE);
	for (int i = 0; i < ring->count; i++) {
		if (ring->kept[i].user_data == user_data) {
			*res = ring->kept[i].res;
			ring->kept[i] = ring->kept[--ring->count];
			return true;
		}
	}
	return false;
}

/* Waits until the request with this user_data completes, and returns its result. */
static inline int completion(struct ring *ring, __u64 user_data)
{
	int res;

	while (!completed(ring, user_data, &res)) {
		if (syscall(__NR_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) <
			    0 &&
		    errno != EINTR)
			return -9999;
	}
	return res;
}

#endif
