// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tests IORING_OP_SPAWN while its child has not yet executed its program: other
 * requests go on, the request can be cancelled, and the submitter or the ring
 * can end. After a cancelled request, nothing of the child remains.
 *
 * To keep a child in that state, an action opens a FIFO, which blocks. The test
 * lets the child continue by opening the FIFO's other end.
 */
#include "spawn_test.h"
#include <pthread.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include "ring.h"
#include "kselftest_harness.h"

#ifdef HAVE_URING_SPAWN

#define ACTION(name) .type = SPAWN_ACTION_##name

FIXTURE(async)
{
	int fd;
	int before;
	unsigned int flags; /* sqe flags of spawn requests */
	struct ring ring;
	struct spawn_open fifo;
	struct spawn_action actions[2];
	struct spawn_args held, args; /* the child of `held` blocks on the FIFO */
};

FIXTURE_VARIANT(async)
{
	unsigned int ring;
	unsigned int sqe;
};

FIXTURE_VARIANT_ADD(async, at_once){};
FIXTURE_VARIANT_ADD(async, deferred){
	.ring = IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER,
};
FIXTURE_VARIANT_ADD(async, worker){
	.ring = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
	.sqe = IOSQE_ASYNC,
};
FIXTURE_VARIANT_ADD(async, deferred_worker){
	.ring = IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER,
	.sqe = IOSQE_ASYNC,
};

FIXTURE_SETUP(async)
{
	int error;

	block_sigchld();
	NEED_BUILDER(self->fd);
	close(self->fd);
	own_directory();
	ASSERT_EQ(0, mkfifo("fifo", 0600));
	self->fd = builder_of(STRINGS("child", "exit", "3"));
	error = ring_open(&self->ring, variant->ring);
	if (error)
		SKIP(return, "no such io_uring: %s", strerror(-error));
	self->flags = variant->sqe;
	self->fifo = (struct spawn_open)OPEN_OF("fifo", .flags = O_RDONLY);
	self->actions[0] = (struct spawn_action){
		ACTION(OPEN),
		.fd = AT_FDCWD,
		.newfd = 9,
		.arg = ADDRESS(&self->fifo),
	};
	/* Tests that set nr_actions to 2 get a child that fails here after it has opened the
	 * FIFO: descriptor 77 is not open. */
	self->actions[1] = (struct spawn_action){ACTION(FCHDIR), .fd = 77};
	self->held = make_args(self->actions, 1);
	self->args = make_args(NULL, 0);
	self->before = next_fd();
}

FIXTURE_TEARDOWN(async)
{
	EXPECT_EQ(self->before, next_fd());
	EXPECT_NO_CHILD();
	ring_close(&self->ring);
	close(self->fd);
}

/* Opens the FIFO for writing, so that the blocked child continues. If no child has got to the FIFO
 * yet, the call waits for one. */
static int release(void)
{
	int fd = open("fifo", O_WRONLY | O_CLOEXEC);

	return fd < 0 ? -errno : close(fd);
}

/* Stores the pids of a thread's children, and returns their number. The number includes children
 * that have not yet executed their program. */
static int children(pid_t pid, pid_t tid, pid_t *pids, int max)
{
	char path[64], text[512], *at = text;
	int count = 0, length;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, tid);
	file_text(path, text, sizeof(text));
	while (count < max && sscanf(at, "%d %n", pids + count, &length) == 1) {
		at += length;
		count++;
	}
	return count;
}

/* Submits the queued requests and waits until the thread has `count` children. Returns the pid of
 * the last child. */
static pid_t submit_and_see(struct ring *ring, int count)
{
	pid_t pids[64] = {};

	submit(ring, 0);
	while (children(getpid(), gettid(), pids, 64) < count) {
		ring_poll(ring);
		sched_yield();
	}
	return pids[count - 1];
}

static struct io_uring_sqe *hold(FIXTURE_DATA(async) * self, __u64 user_data)
{
	struct io_uring_sqe *sqe = queue_spawn(&self->ring, self->fd, &self->held, user_data);

	sqe->flags = self->flags;
	return sqe;
}

static bool ends(int pidfd)
{
	struct pollfd wait_for = {.fd = pidfd, .events = POLLIN};
	bool ended = poll(&wait_for, 1, TIMEOUT * 500) == 1;

	close(pidfd);
	return ended;
}

static int cancel(struct ring *ring, __u64 user_data, unsigned int flags, int fd)
{
	struct io_uring_sqe *sqe = queue(ring, IORING_OP_ASYNC_CANCEL, 1000);

	sqe->addr = user_data;
	sqe->cancel_flags = flags;
	sqe->fd = fd;
	if (flags & IORING_ASYNC_CANCEL_OP)
		sqe->len = IORING_OP_SPAWN;
	submit(ring, 0);
	return completion(ring, 1000);
}

/* While the child of one request is blocked, other requests of the ring complete. */
TEST_F_TIMEOUT(async, others_go_on, TIMEOUT)
{
	int pidfd, res;

	for (int i = 0; i < 5; i++) {
		hold(self, 10);
		queue_spawn(&self->ring, self->fd, &self->args, 11)->flags = self->flags;
		queue(&self->ring, IORING_OP_NOP, 12);
		EXPECT_EQ(3, submit(&self->ring, 0));
		EXPECT_EQ(0, completion(&self->ring, 12));
		pidfd = completion(&self->ring, 11);
		ASSERT_LE(0, pidfd);
		EXPECT_EQ(3, reap_and_close(pidfd));
		submit_and_see(&self->ring, 1);
		EXPECT_FALSE(completed(&self->ring, 10, &res));
		EXPECT_EQ(0, self->held.pid);
		/* waitpid() does not return a child that has not yet called exec. */
		EXPECT_EQ(-1, waitpid(-1, NULL, WNOHANG));
		ASSERT_EQ(0, release());
		pidfd = completion(&self->ring, 10);
		ASSERT_LE(0, pidfd);
		EXPECT_LT(0, self->held.pid);
		EXPECT_EQ(FD_CLOEXEC, fcntl(pidfd, F_GETFD));
		EXPECT_EQ(3, reap_and_close(pidfd));
	}
}

/* The completion also reports an error that occurs in the child after submission. */
TEST_F_TIMEOUT(async, late_errors, TIMEOUT)
{
	pid_t pid;
	int res;

	self->held.nr_actions = 2;
	hold(self, 10);
	submit_and_see(&self->ring, 1);
	EXPECT_EQ(SPAWN_FAILED_SETUP, self->held.failed);
	ASSERT_EQ(0, release());
	EXPECT_EQ(-EBADF, completion(&self->ring, 10));
	EXPECT_EQ(1, self->held.failed);
	EXPECT_EQ(0, self->held.pid);
	EXPECT_NO_CHILD();

	self->held.nr_actions = 1;
	self->held.path = ADDRESS("/nonexistent");
	hold(self, 10);
	submit_and_see(&self->ring, 1);
	ASSERT_EQ(0, release());
	EXPECT_EQ(-ENOENT, completion(&self->ring, 10));
	EXPECT_EQ(SPAWN_FAILED_EXEC, self->held.failed);
	EXPECT_NO_CHILD();

	/* If a signal kills the child before exec, the request completes with EINTR. */
	hold(self, 10);
	pid = submit_and_see(&self->ring, 1);
	EXPECT_FALSE(completed(&self->ring, 10, &res));
	ASSERT_EQ(0, kill(pid, SIGKILL));
	EXPECT_EQ(-EINTR, completion(&self->ring, 10));
	EXPECT_EQ(0, self->held.failed);
	EXPECT_NO_CHILD();
}

/* The kernel reserves the pidfd's number before it creates the child. If no number is free, the
 * request fails with EMFILE. */
TEST_F_TIMEOUT(async, no_descriptor_left, TIMEOUT)
{
	struct rlimit limit = {self->before, 1024}, before;

	getrlimit(RLIMIT_NOFILE, &before);
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
	hold(self, 10);
	submit(&self->ring, 0);
	EXPECT_EQ(-EMFILE, completion(&self->ring, 10));
	EXPECT_EQ(SPAWN_FAILED_SETUP, self->held.failed);
	setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F_TIMEOUT(async, becomes_the_pidfd, TIMEOUT)
{
	int own = builder_of(STRINGS("child", "exit", "4"));

	ASSERT_LE(0, own);
	self->held.flags = SPAWN_BECOME_PIDFD;
	queue_spawn(&self->ring, own, &self->held, 10)->flags = self->flags;
	submit_and_see(&self->ring, 1);
	/* The number is reserved while the child is blocked. */
	EXPECT_EQ(-EBADF, sys_config(own, PIDFD_CONFIG_RESET, PIDFD_CONFIG_KEY_ALL, NULL, 0));
	EXPECT_EQ(-EBADF, result(close(own)));
	ASSERT_EQ(0, release());
	EXPECT_EQ(own, completion(&self->ring, 10));
	EXPECT_EQ(FD_CLOEXEC, fcntl(own, F_GETFD));
	EXPECT_EQ(4, reap_and_close(own));
}

TEST_F_TIMEOUT(async, cancelled, TIMEOUT)
{
	static const struct {
		unsigned int flags;
		bool by_fd;
		int res;
	} ways[] = {
		{0, false, 0},
		{IORING_ASYNC_CANCEL_FD, true, 0},
		{IORING_ASYNC_CANCEL_OP, false, 0},
		{IORING_ASYNC_CANCEL_ANY, false, 1},
		{IORING_ASYNC_CANCEL_ALL, false, 1},
		{IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_FD, true, 1},
	};

	for (size_t i = 0; i < COUNT(ways); i++) {
		hold(self, 10);
		submit_and_see(&self->ring, 1);
		EXPECT_EQ(-ENOENT, cancel(&self->ring, 11, 0, 0));
		EXPECT_EQ(-EBADF, cancel(&self->ring, 10, IORING_ASYNC_CANCEL_FD, -1));
		EXPECT_EQ(-ENOENT, cancel(&self->ring, 10, IORING_ASYNC_CANCEL_FD, self->ring.fd));
		EXPECT_EQ(ways[i].res,
			  cancel(&self->ring, 10, ways[i].flags, ways[i].by_fd ? self->fd : 0))
		{
			TH_LOG("way %zu", i);
		}
		EXPECT_EQ(-ECANCELED, completion(&self->ring, 10));
		EXPECT_EQ(0, self->held.pid);
		EXPECT_NO_CHILD();
		EXPECT_EQ(self->before, next_fd());
		EXPECT_EQ(-ENOENT, cancel(&self->ring, 10, 0, 0));
	}
}

/* IORING_REGISTER_SYNC_CANCEL can cancel the request. It waits until the request is gone. */
TEST_F_TIMEOUT(async, cancelled_in_step, TIMEOUT)
{
	struct io_uring_sync_cancel_reg reg = {.addr = 10, .timeout = {-1, -1}};

	hold(self, 10);
	submit_and_see(&self->ring, 1);
	EXPECT_EQ(0, result(syscall(__NR_io_uring_register, self->ring.fd,
				    IORING_REGISTER_SYNC_CANCEL, &reg, 1)));
	EXPECT_EQ(-ECANCELED, completion(&self->ring, 10));
}

TEST_F_TIMEOUT(async, many_cancelled, TIMEOUT)
{
	struct spawn_args args[20];

	for (size_t i = 0; i < COUNT(args); i++) {
		args[i] = self->held;
		queue_spawn(&self->ring, self->fd, args + i, i)->flags = self->flags;
	}
	submit_and_see(&self->ring, COUNT(args));
	EXPECT_EQ(COUNT(args), cancel(&self->ring, 0, IORING_ASYNC_CANCEL_ANY, 0));
	for (size_t i = 0; i < COUNT(args); i++)
		EXPECT_EQ(-ECANCELED, completion(&self->ring, i));
}

/* A cancellation races with exec. Either the program runs normally, or the request completes with
 * ECANCELED and nothing of the child remains. */
TEST_F_TIMEOUT(async, cancelled_or_not, TIMEOUT)
{
	int begun = 0, rounds = 150;

	for (int i = 0; i < rounds; i++) {
		int pidfd, found;

		queue_spawn(&self->ring, self->fd, &self->args, 10)->flags = self->flags;
		submit(&self->ring, 0);
		for (int j = 0; j < i * 2; j++)
			sched_yield();
		found = cancel(&self->ring, 10, 0, 0);
		pidfd = completion(&self->ring, 10);
		if (pidfd >= 0) {
			begun++;
			EXPECT_TRUE(found == -ENOENT || found == -EALREADY);
			EXPECT_EQ(3, reap_and_close(pidfd));
			continue;
		}
		EXPECT_EQ(-ECANCELED, pidfd);
		EXPECT_TRUE(found == 0 || found == -EALREADY)
		{
			TH_LOG("round %d: %d", i, found);
		}
		EXPECT_NO_CHILD();
	}
	TH_LOG("%d of %d begun", begun, rounds);
}

/* A child that is killed while it searches for its program stops searching, so it does not open the
 * program at the end of the search path. */
TEST_F_TIMEOUT(async, cancelled_search, TIMEOUT)
{
	enum { ENTRIES = 40000 };
	char *search = malloc(ENTRIES * 3 + 2);
	int own = builder_of(STRINGS("child", "exit", "3")),
	    watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	bool cancelled = false;
	char events[4096];

	copy_file(child_path, "program", 0755);
	ASSERT_LE(0, inotify_add_watch(watch, "program", IN_OPEN));
	for (int i = 0; i < ENTRIES; i++)
		memcpy(search + i * 3, "/x:", 3);
	strcpy(search + ENTRIES * 3, ".");
	ASSERT_EQ(0, sys_config(own, PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_NAME, "program", 0));
	ASSERT_EQ(0, sys_config(own, PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_SEARCH_PATH, search,
				0));
	for (int i = 0; i < 20 && !cancelled; i++) {
		int pidfd;

		queue_spawn(&self->ring, own, &self->args, 10)->flags = self->flags;
		submit_and_see(&self->ring, 1);
		cancel(&self->ring, 10, 0, 0);
		pidfd = completion(&self->ring, 10);
		if (pidfd >= 0) {
			/* The search was faster. */
			EXPECT_EQ(3, reap_and_close(pidfd));
			EXPECT_LT(0, read(watch, events, sizeof(events)));
			continue;
		}
		EXPECT_EQ(-ECANCELED, pidfd);
		EXPECT_EQ(-1, read(watch, events, sizeof(events)));
		EXPECT_EQ(EAGAIN, errno);
		cancelled = true;
	}
	EXPECT_TRUE(cancelled);
	free(search);
	close(watch);
	close(own);
}

TEST_F_TIMEOUT(async, link_timeout, TIMEOUT)
{
	struct __kernel_timespec soon = {0, 1000000}, late = {10000, 0};
	struct io_uring_sqe *sqe;
	int pidfd;

	hold(self, 10)->flags |= IOSQE_IO_LINK;
	sqe = queue(&self->ring, IORING_OP_LINK_TIMEOUT, 11);
	sqe->addr = ADDRESS(&soon);
	sqe->len = 1;
	submit(&self->ring, 0);
	EXPECT_EQ(-ECANCELED, completion(&self->ring, 10));
	EXPECT_EQ(-ETIME, completion(&self->ring, 11));
	EXPECT_NO_CHILD();

	hold(self, 20)->flags |= IOSQE_IO_LINK;
	sqe = queue(&self->ring, IORING_OP_LINK_TIMEOUT, 21);
	sqe->addr = ADDRESS(&late);
	sqe->len = 1;
	submit_and_see(&self->ring, 1);
	ASSERT_EQ(0, release());
	pidfd = completion(&self->ring, 20);
	ASSERT_LE(0, pidfd);
	EXPECT_EQ(3, reap_and_close(pidfd));
	EXPECT_EQ(-ECANCELED, completion(&self->ring, 21));
}

/* A linked request starts once the spawned program has started. If the spawn fails, IOSQE_IO_LINK
 * cancels the linked request, but IOSQE_IO_HARDLINK does not. */
TEST_F_TIMEOUT(async, links, TIMEOUT)
{
	int pidfd, res;

	hold(self, 10)->flags |= IOSQE_IO_LINK;
	queue_spawn(&self->ring, self->fd, &self->args, 11)->flags = self->flags | IOSQE_IO_LINK;
	queue(&self->ring, IORING_OP_NOP, 12);
	submit_and_see(&self->ring, 1);
	EXPECT_FALSE(completed(&self->ring, 12, &res));
	ASSERT_EQ(0, release());
	pidfd = completion(&self->ring, 10);
	ASSERT_LE(0, pidfd);
	EXPECT_EQ(3, reap_and_close(pidfd));
	pidfd = completion(&self->ring, 11);
	ASSERT_LE(0, pidfd);
	EXPECT_EQ(3, reap_and_close(pidfd));
	EXPECT_EQ(0, completion(&self->ring, 12));

	self->held.nr_actions = 2;
	hold(self, 20)->flags |= IOSQE_IO_LINK;
	queue(&self->ring, IORING_OP_NOP, 21);
	submit_and_see(&self->ring, 1);
	ASSERT_EQ(0, release());
	EXPECT_EQ(-EBADF, completion(&self->ring, 20));
	EXPECT_EQ(-ECANCELED, completion(&self->ring, 21));

	hold(self, 30)->flags |= IOSQE_IO_HARDLINK;
	queue(&self->ring, IORING_OP_NOP, 31);
	submit_and_see(&self->ring, 1);
	EXPECT_FALSE(completed(&self->ring, 31, &res));
	ASSERT_EQ(0, release());
	EXPECT_EQ(-EBADF, completion(&self->ring, 30));
	EXPECT_EQ(0, completion(&self->ring, 31));

	/* If the first request is cancelled, the kernel also cancels the linked request. */
	hold(self, 40)->flags |= IOSQE_IO_LINK;
	queue_spawn(&self->ring, self->fd, &self->args, 41)->flags = self->flags;
	submit_and_see(&self->ring, 1);
	EXPECT_EQ(0, cancel(&self->ring, 40, 0, 0));
	EXPECT_EQ(-ECANCELED, completion(&self->ring, 40));
	EXPECT_EQ(-ECANCELED, completion(&self->ring, 41));
}

TEST_F_TIMEOUT(async, drain, TIMEOUT)
{
	int pidfd, res;

	hold(self, 10);
	queue(&self->ring, IORING_OP_NOP, 11)->flags = IOSQE_IO_DRAIN;
	queue_spawn(&self->ring, self->fd, &self->args, 12)->flags = self->flags | IOSQE_IO_DRAIN;
	submit_and_see(&self->ring, 1);
	EXPECT_FALSE(completed(&self->ring, 11, &res));
	ASSERT_EQ(0, release());
	pidfd = completion(&self->ring, 10);
	ASSERT_LE(0, pidfd);
	EXPECT_EQ(3, reap_and_close(pidfd));
	EXPECT_EQ(0, completion(&self->ring, 11));
	pidfd = completion(&self->ring, 12);
	ASSERT_LE(0, pidfd);
	EXPECT_EQ(3, reap_and_close(pidfd));
}

/* After a success with IOSQE_CQE_SKIP_SUCCESS, no completion reports the pidfd. SPAWN_BECOME_PIDFD
 * makes the number known in advance: it is the builder's. */
TEST_F_TIMEOUT(async, no_completion_if_all_is_well, TIMEOUT)
{
	int own = builder_of(STRINGS("child", "exit", "4")), res;

	self->args.flags = SPAWN_BECOME_PIDFD;
	queue_spawn(&self->ring, own, &self->args, 10)->flags =
		self->flags | IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK;
	queue(&self->ring, IORING_OP_NOP, 11);
	submit(&self->ring, 0);
	EXPECT_EQ(0, completion(&self->ring, 11));
	EXPECT_FALSE(completed(&self->ring, 10, &res));
	EXPECT_LT(0, self->args.pid);
	EXPECT_EQ(4, reap_and_close(own));

	self->args = make_args(NULL, 0);
	self->args.path = ADDRESS("/nonexistent");
	queue_spawn(&self->ring, self->fd, &self->args, 20)->flags =
		self->flags | IOSQE_CQE_SKIP_SUCCESS;
	submit(&self->ring, 0);
	EXPECT_EQ(-ENOENT, completion(&self->ring, 20));
}

/* A request can use a builder that is registered with the ring. Such a builder has no descriptor
 * number, so SPAWN_BECOME_PIDFD fails with EINVAL. */
TEST_F_TIMEOUT(async, registered_builder, TIMEOUT)
{
	struct io_uring_sqe *sqe;
	int pidfd;

	ASSERT_EQ(0, result(syscall(__NR_io_uring_register, self->ring.fd, IORING_REGISTER_FILES,
				    &self->fd, 1)));
	for (int become = 0; become < 2; become++) {
		self->args.flags = become ? SPAWN_BECOME_PIDFD : 0;
		sqe = queue_spawn(&self->ring, 0, &self->args, 10);
		sqe->flags = self->flags | IOSQE_FIXED_FILE;
		submit(&self->ring, 0);
		pidfd = completion(&self->ring, 10);
		if (become) {
			EXPECT_EQ(-EINVAL, pidfd);
		} else {
			ASSERT_LE(0, pidfd);
			EXPECT_EQ(3, reap_and_close(pidfd));
		}
	}
	ASSERT_EQ(0, result(syscall(__NR_io_uring_register, self->ring.fd, IORING_UNREGISTER_FILES,
				    NULL, 0)));
}

struct sharer {
	int *number, *turn;
	int code;
};

static void *keep_the_table(void *data)
{
	struct sharer *sharer = data;

	while (!__atomic_load_n(sharer->turn, __ATOMIC_ACQUIRE))
		sched_yield();
	sharer->code = reap_and_close(*sharer->number);
	return NULL;
}

/* The kernel installs the pidfd in the descriptor table that the submitter had at submission. Here
 * the submitter has left that table since, and another thread still uses it. */
TEST_F_TIMEOUT(async, table_left_meanwhile, TIMEOUT)
{
	int pidfd = -1, turn = 0;
	struct sharer sharer = {&pidfd, &turn, -1};
	pthread_t thread;

	ASSERT_EQ(0, pthread_create(&thread, NULL, keep_the_table, &sharer));
	hold(self, 10);
	submit_and_see(&self->ring, 1);
	ASSERT_EQ(0, unshare(CLONE_FILES));
	ASSERT_EQ(0, release());
	pidfd = completion(&self->ring, 10);
	EXPECT_LE(0, pidfd);
	EXPECT_EQ(-1, fcntl(pidfd, F_GETFD));
	__atomic_store_n(&turn, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	EXPECT_EQ(3, sharer.code);
	forget_sigchld();
}

/* If the test closes the ring, the kernel kills and reaps the children that are still blocked. */
TEST_F_TIMEOUT(async, ring_is_closed, TIMEOUT)
{
	for (int i = 0; i < 5; i++) {
		int pidfd;

		hold(self, 10);
		hold(self, 11);
		queue_spawn(&self->ring, self->fd, &self->args, 12)->flags = IOSQE_IO_DRAIN;
		pidfd = sys_pidfd_open(submit_and_see(&self->ring, 2), 0);
		ASSERT_LE(0, pidfd);
		ring_close(&self->ring);
		EXPECT_TRUE(ends(pidfd));
		while (waitpid(-1, NULL, WNOHANG | __WALL) == 0)
			sched_yield();
		ASSERT_EQ(0, ring_open(&self->ring, 0));
	}
}

struct submitter {
	FIXTURE_DATA(async) * self;
	int pidfd;
};

static void *submit_and_leave(void *data)
{
	struct submitter *submitter = data;

	hold(submitter->self, 10);
	submitter->pidfd = sys_pidfd_open(submit_and_see(&submitter->self->ring, 1), 0);
	return NULL;
}

/* If the submitting thread ends, the kernel cancels its request and kills the child. The process
 * continues. */
TEST_F_TIMEOUT(async, thread_ends, TIMEOUT)
{
	struct submitter submitter = {self, -1};
	pthread_t thread;

	if (variant->ring & IORING_SETUP_SINGLE_ISSUER)
		SKIP(return, "a thread of its own cannot submit");
	for (int i = 0; i < 5; i++) {
		ASSERT_EQ(0, pthread_create(&thread, NULL, submit_and_leave, &submitter));
		pthread_join(thread, NULL);
		ASSERT_LE(0, submitter.pidfd);
		EXPECT_TRUE(ends(submitter.pidfd));
		EXPECT_EQ(-ECANCELED, completion(&self->ring, 10));
		EXPECT_NO_CHILD();
	}
}

/* If the submitting process exits, is killed, or executes another program, the kernel kills the
 * child. */
TEST_F_TIMEOUT(async, submitter_ends, TIMEOUT)
{
	static const int ends_with[] = {0, SIGKILL, 5 << 8};

	for (int i = 0; i < 9; i++) {
		int status, pidfd;
		pid_t pid, child;

		pid = fork();
		if (pid == 0) {
			static char *const words[] = {"child", "exit", "5", NULL};

			if (ring_open(&self->ring, variant->ring))
				_exit(1);
			hold(self, 10);
			submit_and_see(&self->ring, 1);
			/* The test waits for this stop before it looks for the child. */
			raise(SIGSTOP);
			if (i % 3 == 0)
				_exit(0);
			execv(child_path, words);
			_exit(2);
		}
		ASSERT_EQ(pid, waitpid(pid, &status, WUNTRACED));
		ASSERT_TRUE(WIFSTOPPED(status));
		ASSERT_EQ(1, children(pid, pid, &child, 1));
		pidfd = sys_pidfd_open(child, 0);
		ASSERT_LE(0, pidfd);
		kill(pid, i % 3 == 1 ? SIGKILL : SIGCONT);
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		EXPECT_EQ(ends_with[i % 3], status);
		EXPECT_TRUE(ends(pidfd));
		forget_sigchld();
	}
}

/* A tracer of the submitter sees the request as a fork(). The kernel reports PTRACE_EVENT_FORK
 * later, when it holds no lock of the ring. */
TEST_F_TIMEOUT(async, traced, TIMEOUT)
{
	const unsigned long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
	pid_t pid, child = 0, got;
	bool forked = false, executed = false;
	int status, end = -1;

	pid = fork();
	if (pid == 0) {
		int pidfd;

		if (ring_open(&self->ring, variant->ring))
			_exit(1);
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		raise(SIGSTOP);
		queue_spawn(&self->ring, self->fd, &self->args, 10)->flags = self->flags;
		submit(&self->ring, 0);
		pidfd = completion(&self->ring, 10);
		_exit(pidfd < 0 ? 1 : reap(pidfd));
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	ASSERT_TRUE(WIFSTOPPED(status));
	ASSERT_EQ(0, ptrace(PTRACE_SETOPTIONS, pid, NULL, options));
	ASSERT_EQ(0, ptrace(PTRACE_CONT, pid, NULL, NULL));
	while (end < 0) {
		got = waitpid(-1, &status, __WALL);
		ASSERT_LT(0, got);
		if (!WIFSTOPPED(status)) {
			if (got == pid)
				end = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
			continue;
		}
		if (status >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8)) {
			unsigned long message;

			EXPECT_EQ(pid, got);
			ASSERT_EQ(0, ptrace(PTRACE_GETEVENTMSG, got, NULL, &message));
			EXPECT_TRUE(!child || child == (pid_t)message);
			child = message;
			forked = true;
		}
		if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8)) {
			EXPECT_NE(pid, got);
			EXPECT_TRUE(!child || child == got);
			child = got;
			executed = true;
		}
		ptrace(PTRACE_CONT, got, NULL,
		       WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP
			       ? NULL
			       : (void *)(long)WSTOPSIG(status));
	}
	EXPECT_EQ(3, end);
	EXPECT_TRUE(forked);
	EXPECT_TRUE(executed);
	forget_sigchld();
}

#else

TEST(operation)
{
	SKIP(return, "the series has no IORING_OP_SPAWN");
}

#endif

TEST_HARNESS_MAIN
