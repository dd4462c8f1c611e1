// SPDX-License-Identifier: GPL-2.0-only
/*
 * Does all kinds of spawns at once, for SPAWN_STRESS_SECONDS (default 3) of the guest's
 * time. The purpose is to make the kernel report faults in its log. The test checks
 * results only where one result is certain.
 */
#include "spawn_test.h"
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#ifdef HAVE_URING_SPAWN
#include "ring.h"
#endif
#include "kselftest_harness.h"

#define ACTION(name) .type = SPAWN_ACTION_##name

static int stop;
static bool to_be_killed; /* this process will be killed: do not count its results */
static long runs, wrong;

static unsigned int next_random(unsigned int *state)
{
	*state = *state * 1664525 + 1013904223;
	return *state >> 8;
}

static unsigned int seconds(void)
{
	const char *text = getenv("SPAWN_STRESS_SECONDS");

	return text ? atoi(text) : 3;
}

static bool stopped(void)
{
	return __atomic_load_n(&stop, __ATOMIC_RELAXED);
}

static void count(bool right, const char *what, long ret)
{
	__atomic_add_fetch(&runs, 1, __ATOMIC_RELAXED);
	if (!right && !to_be_killed && __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED) <= 10)
		fprintf(stderr, "# wrong: %s: %ld\n", what, ret);
}

#ifdef HAVE_TEMPLATES
/* Spawns from a new template, or from one that all threads share and use at the same time. */
static void run_template(unsigned int *state)
{
	static int shared;
	struct spawn_template_spawn_args args = {};
	__s32 pidfd = -1;
	long ret;
	int fd = __atomic_load_n(&shared, __ATOMIC_RELAXED);

	if (!fd || next_random(state) % 4 == 0) {
		fd = template_of(child_path);
		if (fd < 0)
			return;
	}
	args.pidfd = ADDRESS(&pidfd);
	args.argv = ADDRESS(STRINGS("child", "exit", "3"));
	ret = sys_spawn(fd, &args, sizeof(args));
	if (ret >= 0)
		ret = reap_and_close(pidfd);
	count(ret == 3 || ret == -EAGAIN || ret == -ENOMEM, "template", ret);
	if (!__atomic_load_n(&shared, __ATOMIC_RELAXED))
		__atomic_store_n(&shared, fd, __ATOMIC_RELAXED);
	else if (fd != __atomic_load_n(&shared, __ATOMIC_RELAXED))
		close(fd);
}
#else
static void run_template(unsigned int *state)
{
}
#endif

#ifdef HAVE_URING_SPAWN
/* Submits four requests to a new ring. Some are linked, some fail, and one may be cancelled. */
static void run_ring(int fd, unsigned int *state)
{
	static const char *const words[] = {"child", "exit", "3", NULL};
	struct spawn_args args[4];
	struct ring ring;
	int pidfd;

	if (ring_open(&ring, 0)) {
		ring_close(&ring);
		return;
	}
	for (int i = 0; i < 4; i++) {
		struct io_uring_sqe *sqe;

		args[i] = make_args(NULL, 0);
		args[i].argv = ADDRESS(words);
		args[i].path = next_random(state) % 6 ? 0 : ADDRESS("/nonexistent");
		sqe = queue_spawn(&ring, fd, args + i, i);
		sqe->flags = (next_random(state) % 2 ? IOSQE_IO_LINK : 0) |
			     (next_random(state) % 3 ? 0 : IOSQE_ASYNC);
		if (i == 3)
			sqe->flags &= ~IOSQE_IO_LINK;
	}
	if (next_random(state) % 3 == 0)
		queue(&ring, IORING_OP_ASYNC_CANCEL, 4)->addr = next_random(state) % 4;
	submit(&ring, 0);
	for (int i = 0; i < 4; i++) {
		pidfd = completion(&ring, i);
		if (pidfd >= 0)
			pidfd = reap_and_close(pidfd);
		count(pidfd == 3 || pidfd == -ENOENT || pidfd == -ECANCELED || pidfd == -EAGAIN ||
			      pidfd == -ENOMEM,
		      "ring", pidfd);
	}
	ring_close(&ring);
}

/* Submits a request whose child blocks while it opens a FIFO. Then opens the other end, cancels the
 * request, or lets a linked timeout cancel it. All threads use the same FIFO. */
static void run_held(int fd, unsigned int *state)
{
	static const char *const words[] = {"child", "exit", "3", NULL};
	struct spawn_open fifo = OPEN_OF("fifo", .flags = O_RDONLY);
	struct spawn_action action = {ACTION(OPEN), .fd = AT_FDCWD, .newfd = 9,
				      .arg = ADDRESS(&fifo)};
	struct __kernel_timespec time = {0, next_random(state) % 5000000};
	struct spawn_args args = make_args(&action, 1);
	unsigned int end = next_random(state) % 4;
	struct io_uring_sqe *sqe;
	struct ring ring;
	int pidfd, writer;

	if (ring_open(&ring, next_random(state) % 2
				     ? IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER
				     : 0)) {
		ring_close(&ring);
		return;
	}
	args.argv = ADDRESS(words);
	sqe = queue_spawn(&ring, fd, &args, 1);
	sqe->flags = next_random(state) % 2 ? IOSQE_ASYNC : 0;
	if (end == 0) {
		sqe->flags |= IOSQE_IO_LINK;
		sqe = queue(&ring, IORING_OP_LINK_TIMEOUT, 2);
		sqe->addr = ADDRESS(&time);
		sqe->len = 1;
	}
	submit(&ring, 0);
	for (unsigned int i = next_random(state) % 20; i; i--)
		sched_yield();
	if (end == 1 || end == 3) {
		sqe = queue(&ring, IORING_OP_ASYNC_CANCEL, 3);
		sqe->cancel_flags = IORING_ASYNC_CANCEL_ANY;
		submit(&ring, 0);
	}
	/* This process will be killed, so it can close the ring and lose the pidfd of a
	 * pending request. */
	if (to_be_killed && end == 3) {
		ring_close(&ring);
		return;
	}
	while (!completed(&ring, 1, &pidfd)) {
		/* Open the FIFO even after a cancellation, because the cancellation may
		 * have missed the request. */
		writer = open("fifo", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
		if (writer >= 0)
			close(writer);
		ring_poll(&ring);
		sched_yield();
	}
	if (pidfd >= 0)
		pidfd = reap_and_close(pidfd);
	count(pidfd == 3 || pidfd == -ECANCELED || pidfd == -EAGAIN || pidfd == -ENOMEM, "held",
	      pidfd);
	ring_close(&ring);
}
#else
static void run_ring(int fd, unsigned int *state)
{
}

static void run_held(int fd, unsigned int *state)
{
}
#endif

/* Returns a Landlock ruleset for all threads. It denies creating FIFOs, which no child does. */
static int ruleset(void)
{
	static int fd;
	struct landlock_ruleset_attr attributes = {.handled_access_fs =
							   LANDLOCK_ACCESS_FS_MAKE_FIFO};

	if (!__atomic_load_n(&fd, __ATOMIC_RELAXED))
		__atomic_store_n(
			&fd,
			syscall(__NR_landlock_create_ruleset, &attributes, sizeof(attributes), 0),
			__ATOMIC_RELAXED);
	return __atomic_load_n(&fd, __ATOMIC_RELAXED);
}

static struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};

/* Runs a builder with these actions, and closes it. The child must exit with status 3. */
static void run_own(const char *what, int fd, const struct spawn_action *actions,
		    unsigned int count_of)
{
	struct spawn_args args = make_args(actions, count_of);
	long ret;

	args.argv = ADDRESS(STRINGS("child", "exit", "3"));
	args.flags = SPAWN_BECOME_PIDFD;
	ret = sys_run(fd, &args, sizeof(args));
	if (ret >= 0)
		ret = reap(ret);
	count(ret == 3 || ret == -EAGAIN || ret == -ENOMEM || ret == -ENOSPC, what, ret);
	close(fd);
}

/* Starts a child in new namespaces, or lets a child join a time namespace. */
static void run_elsewhere(unsigned int *state)
{
	char users[32], groups[32];
	int fd = builder_of(NULL), joined = open("/proc/self/ns/time", O_RDONLY | O_CLOEXEC);
	const struct spawn_action maps[] = {
		{ACTION(DENY_SETGROUPS)},
		{ACTION(UID_MAP), .arg = ADDRESS(users)},
		{ACTION(GID_MAP), .arg = ADDRESS(groups)},
		{ACTION(SETNS), .fd = joined},
	};
	bool may_join = joined >= 0 && !getuid() && next_random(state) % 2;

	snprintf(users, sizeof(users), "0 %d 1", getuid());
	snprintf(groups, sizeof(groups), "0 %d 1", getgid());
	if (!may_join)
		sys_config(fd, PIDFD_CONFIG_SET_FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, NULL,
			   CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWTIME);
	run_own("namespaces", fd, may_join ? maps + 3 : maps,
		may_join ? 1 : next_random(state) % 4);
	close(joined);
}

/* Starts a child that gets a new controlling terminal. */
static void run_on_terminal(void)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), unlocked = 0, slave;
	struct spawn_action actions[] = {{ACTION(SETSID)}, {ACTION(CTTY)}, {ACTION(TCSETPGRP)}};

	ioctl(master, TIOCSPTLCK, &unlocked);
	slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	actions[1].fd = actions[2].fd = slave;
	if (slave >= 0)
		run_own("terminal", builder_of(NULL), actions, COUNT(actions));
	close(slave);
	close(master);
}

/* Does one run of a random kind. Checks the result if only one result is possible. */
static void run_one(int shared, unsigned int *state)
{
	static const __u64 usr1 = 1ULL << (SIGUSR1 - 1);
	struct spawn_sigset set = {ADDRESS(&usr1), 8};
	struct spawn_open null = OPEN_OF("/dev/null", .flags = O_RDWR),
			  none = OPEN_OF("/nonexistent");
	struct rlimit64 limit = {64, 64};
	struct spawn_capabilities none_at_all = {.bounding = ~0ULL};
	struct spawn_action actions[] = {
		{ACTION(SETSID)},
		{ACTION(OPEN), .fd = AT_FDCWD, .newfd = 9, .arg = ADDRESS(&null)},
		{ACTION(DUP2), .fd = 2, .newfd = 20},
		{ACTION(SIGMASK), .arg = ADDRESS(&set)},
		{ACTION(RLIMIT), .fd = RLIMIT_NOFILE, .arg = ADDRESS(&limit)},
		{ACTION(CHDIR), .arg = ADDRESS("/")},
		{ACTION(CLOSE_RANGE), .fd = 3, .newfd = -1, .flags = CLOSE_RANGE_CLOEXEC},
		{ACTION(NO_NEW_PRIVS)},
		{ACTION(SECCOMP), .fd = COUNT(allow), .arg = ADDRESS(allow)},
		{ACTION(LANDLOCK), .fd = ruleset()},
		{ACTION(NICE), .fd = 1},
		{ACTION(SCHEDULER), .fd = SCHED_BATCH},
		{ACTION(OOM_SCORE_ADJ), .fd = 100},
		{ACTION(KEEP_CAPS)},
		{ACTION(CAPABILITIES), .arg = ADDRESS(&none_at_all)},
		{ACTION(OPEN), .fd = AT_FDCWD, .newfd = 9, .arg = ADDRESS(&none)},
	};
	const unsigned int last = COUNT(actions) - 1;
	unsigned int kind = next_random(state) % 16;

	if (actions[9].fd < 0) /* The kernel has no Landlock. */
		actions[9] = actions[7];
	if (kind == 8)
		return run_elsewhere(state);
	if (kind == 9)
		return run_on_terminal();

	if (kind == 10 || kind == 11)
		return run_template(state);
	if (kind == 12)
		return run_ring(shared, state);
	if (kind == 14 || kind == 15)
		return run_held(shared, state);
	struct spawn_args args =
		make_args(actions, kind == 1 ? last + 1 : next_random(state) % (last + 1));
	int fd = shared, own = -1;
	long ret;

	args.argv = ADDRESS(STRINGS("child", "exit", "3"));
	if (kind == 2)
		args.path = ADDRESS("/nonexistent");
	if (kind == 3)
		args.flags = SPAWN_FDS_INHERIT;
	if (kind == 4)
		args.flags = SPAWN_FDS_NONE;
	if (kind >= 5 && kind < 8) {
		fd = own = builder_of(NULL);
		if (kind == 6)
			args.flags = SPAWN_BECOME_PIDFD;
		if (kind == 7)
			sys_config(fd, PIDFD_CONFIG_SET_FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, NULL,
				   getuid() ? CLONE_NEWUSER | CLONE_NEWPID
					    : CLONE_NEWPID | CLONE_NEWUTS);
	}
	ret = sys_run(fd, &args, sizeof(args));
	if (kind == 1 || kind == 2) {
		count(ret == -ENOENT && args.failed == (kind == 1 ? (int)last : SPAWN_FAILED_EXEC),
		      "failure", ret);
	} else if (ret >= 0) {
		if (next_random(state) % 4 == 0)
			syscall(__NR_pidfd_send_signal, (int)ret, SIGKILL, NULL, 0);
		int code = reap(ret);

		count(code == 3 || code == 128 + SIGKILL, "run", code);
	} else {
		count(ret == -EAGAIN || ret == -ENOMEM, "call", ret);
	}
	if (ret >= 0)
		close(ret);
	if (own >= 0 && own != ret)
		close(own);
}

static void *run_always(void *data)
{
	unsigned int state = (unsigned int)(uintptr_t)pthread_self() ^ *(int *)data;
	int fd = *(int *)data;

	while (!stopped())
		run_one(fd, &state);
	return NULL;
}

static void nothing(int number)
{
	(void)number;
}

static void *send_signals(void *data)
{
	pthread_t *threads = data;

	while (!stopped()) {
		for (int i = 0; i < 3; i++)
			pthread_kill(threads[i], SIGUSR1);
		sched_yield();
	}
	return NULL;
}

/* Opens, duplicates and closes builders, and reconfigures the shared builder while other
 * threads run it. */
static void *open_and_close(void *data)
{
	while (!stopped()) {
		int fd = builder_of(STRINGS("child", "exit", "0")), copy = dup(fd);

		sys_config(copy, PIDFD_CONFIG_RESET, PIDFD_CONFIG_KEY_ALL, NULL, 0);
		sys_config(*(int *)data, PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ENVP,
			   STRINGS("A=1"), 0);
		close(fd);
		close(copy);
	}
	return NULL;
}

/* Forks processes that spawn children from two threads, and kills each process at a
 * random moment. */
static void kill_callers(int fd, unsigned int *state)
{
	while (!stopped()) {
		pid_t pid = fork();
		int status;

		if (pid == 0) {
			pthread_t thread;

			to_be_killed = true;
			/* The time may have run out just before the fork. */
			__atomic_store_n(&stop, 0, __ATOMIC_RELAXED);
			signal(SIGCHLD, next_random(state) % 2 ? SIG_IGN : SIG_DFL);
			pthread_create(&thread, NULL, run_always, &fd);
			run_always(&fd);
			_exit(0);
		}
		for (unsigned int i = next_random(state) % 200; i; i--)
			sched_yield();
		kill(pid, SIGKILL);
		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		count(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "caller", status);
	}
}

FIXTURE(stress)
{
	int fd;
};

FIXTURE_SETUP(stress)
{
	NEED_BUILDER(self->fd);
	close(self->fd);
	own_directory();
	ASSERT_EQ(0, mkfifo("fifo", 0600));
	self->fd = builder_of(STRINGS("child", "exit", "3"));
}

FIXTURE_TEARDOWN(stress)
{
	close(self->fd);
}

static void *wait_for_the_end(void *data)
{
	struct timespec end;

	(void)data;
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += seconds();
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
		;
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	return NULL;
}

TEST_F_TIMEOUT(stress, everything, 900)
{
	pthread_t threads[6];
	unsigned int state = getpid();
	struct sigaction action = {.sa_handler = nothing};

	/* This process, instead of the guest's init, becomes the parent of a killed
	 * caller's children. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	sigaction(SIGUSR1, &action, NULL);
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(0, pthread_create(threads + i, NULL, run_always, &self->fd));
	ASSERT_EQ(0, pthread_create(threads + 3, NULL, send_signals, threads));
	ASSERT_EQ(0, pthread_create(threads + 4, NULL, open_and_close, &self->fd));
	ASSERT_EQ(0, pthread_create(threads + 5, NULL, wait_for_the_end, NULL));
	kill_callers(self->fd, &state);
	for (size_t i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
	/* Reap the children of killed callers. They exit without a signal from this test. */
	while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR)
		;
	TH_LOG("%ld runs and kills in %u s, %ld wrong", runs, seconds(), wrong);
	EXPECT_LT(10, runs);
	EXPECT_EQ(0, wrong);
}

TEST_HARNESS_MAIN
