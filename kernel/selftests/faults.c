// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes each allocation of each call fail in turn, in the caller and in the child. The
 * call must succeed or return an error, and must leave nothing behind. test-kernel.sh
 * lets kmemleak look for leaks in the kernel afterwards.
 */
#include "spawn_test.h"
#include <dirent.h>
#ifdef HAVE_URING_SPAWN
#include "ring.h"
#endif
#include "kselftest_harness.h"

#define ACTION(name) .type = SPAWN_ACTION_##name
#define DEBUG "/sys/kernel/debug/"
/* Bounds the loops: no call makes so many allocations. */
#define MANY 3000
#define CGROUP "/sys/fs/cgroup/faults"

static int nth_fd = -1; /* /proc/PID/fail-nth of this process */

static int open_nth(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fail-nth", pid);
	return open(path, O_RDWR | O_CLOEXEC);
}

/* Makes the nth allocation of a task fail, counted from now.
 * fd is the task's fail-nth. 0 turns this off. */
static void fail(int fd, int nth)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%d", nth);

	if (pwrite(fd, text, length, 0) != length)
		abort();
}

/* Returns true if no allocation has failed because the task made fewer than n. */
static bool none_failed(int fd)
{
	char text[16] = "";

	if (pread(fd, text, sizeof(text) - 1, 0) < 0)
		abort();
	return atoi(text) > 0;
}

static const char *const settings[][2] = {
	{DEBUG "failslab/ignore-gfp-wait", "N"},
	{DEBUG "failslab/verbose", "0"},
	{DEBUG "fail_page_alloc/ignore-gfp-wait", "N"},
	{DEBUG "fail_page_alloc/ignore-gfp-highmem", "N"},
	{DEBUG "fail_page_alloc/min-order", "0"},
	{DEBUG "fail_page_alloc/verbose", "0"},
};

FIXTURE(faults)
{
	int fd;
	int before;
	int seen; /* number of allocations that have failed */
	struct spawn_open null;
	struct rlimit64 limit;
	struct spawn_action actions[5];
	struct spawn_args args;
};

FIXTURE_SETUP(faults)
{
	char text[32];

	block_sigchld();
	NEED_BUILDER(self->fd);
	close(self->fd);
	nth_fd = open_nth(getpid());
	if (nth_fd < 0)
		SKIP(return, "this kernel injects no faults");
	for (size_t i = 0; i < COUNT(settings); i++)
		if (put_text(settings[i][0], settings[i][1]))
			SKIP(return, "cannot set %s", settings[i][0]);
	own_directory();
	/* If the kernel never releases the charge for a process, pids.current of this
	 * cgroup shows it. */
	put_text("/sys/fs/cgroup/cgroup.subtree_control", "+pids");
	mkdir(CGROUP, 0755);
	snprintf(text, sizeof(text), "%d", getpid());
	ASSERT_EQ(0, put_text(CGROUP "/cgroup.procs", text));
	self->fd = builder_of(STRINGS("child", "exit", "3"));
	self->null = (struct spawn_open)OPEN_OF("/dev/null", .flags = O_RDWR);
	self->limit = (struct rlimit64){64, 64};
	struct spawn_action actions[] = {
		{ACTION(OPEN), .fd = AT_FDCWD, .newfd = 900, .arg = ADDRESS(&self->null)},
		{ACTION(CHDIR), .arg = ADDRESS("/")},
		{ACTION(RLIMIT), .fd = RLIMIT_CORE, .arg = ADDRESS(&self->limit)},
		{ACTION(DUP2), .fd = 2, .newfd = 20},
		{ACTION(SETSID)},
	};
	memcpy(self->actions, actions, sizeof(actions));
	self->args = make_args(self->actions, COUNT(actions));
	/* The first run makes the allocations that the kernel keeps for all later runs. */
	ASSERT_EQ(3, reap_and_close(sys_run(self->fd, &self->args, sizeof(self->args))));
	self->before = next_fd();
}

/* Counts the threads of this process. The worker threads of an io_uring are among them. */
static int count_threads(void)
{
	DIR *directory = opendir("/proc/self/task");
	struct dirent *entry;
	int count = 0;

	while (directory && (entry = readdir(directory)))
		count += entry->d_name[0] != '.';
	closedir(directory);
	return count;
}

FIXTURE_TEARDOWN(faults)
{
	char text[32];

	EXPECT_EQ(self->before, next_fd());
	EXPECT_NO_CHILD();
	EXPECT_EQ(count_threads(), atoi(file_text(CGROUP "/pids.current", text, sizeof(text))));
	TH_LOG("%d allocations have failed", self->seen);
	EXPECT_LT(0, self->seen);
	/* After all the faults, a run still succeeds. */
	EXPECT_EQ(3, reap_and_close(sys_run(self->fd, &self->args, sizeof(self->args))));
	close(self->fd);
	close(nth_fd);
	snprintf(text, sizeof(text), "%d", getpid());
	put_text("/sys/fs/cgroup/cgroup.procs", text);
	EXPECT_EQ(0, rmdir(CGROUP));
}

/* Returns true if a failed allocation may be the cause of this error. */
static bool is_shortage(long ret)
{
	return ret == -ENOMEM || ret == -EAGAIN || ret == -ENFILE || ret == -EMFILE ||
	       ret == -E2BIG || ret == -EFAULT;
}

/*
 * Repeats an expression with its first, second, ... allocation failing, until it makes
 * fewer allocations than that. The expression returns a descriptor, which done()
 * closes, or 0, or a negative errno.
 */
#define EACH_FAULT(something)                                                                      \
	for (int nth = 1;; nth++) {                                                                \
		bool last;                                                                         \
		long ret;                                                                          \
		ASSERT_GT(MANY, nth);                                                              \
		fail(nth_fd, nth);                                                                 \
		ret = (something);                                                                 \
		last = none_failed(nth_fd);                                                        \
		fail(nth_fd, 0);                                                                   \
		EXPECT_TRUE(ret >= 0 || is_shortage(ret))                                          \
		{                                                                                  \
			TH_LOG(#something ", allocation %d: %ld", nth, ret);                       \
		}                                                                                  \
		self->seen += !last;                                                               \
		if (ret > 0)                                                                       \
			done(ret);                                                                 \
		EXPECT_EQ(self->before, next_fd());                                                \
		EXPECT_NO_CHILD();                                                                 \
		if (last) {                                                                        \
			EXPECT_LE(0, ret);                                                         \
			break;                                                                     \
		}                                                                                  \
	}

/* Closes a descriptor. If it is a pidfd, reaps its process first. */
static void done(int fd)
{
	reap(fd);
	close(fd);
}

TEST_F_TIMEOUT(faults, configuring, TIMEOUT)
{
	static const char *const words[] = {"child", "exit", "3", NULL};
	struct spawn_action_list list = make_list(self->actions, COUNT(self->actions));
	const struct {
		int cmd, key;
		const void *value;
		int aux;
	} keys[] = {
		{PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_PATH, child_path, 0},
		{PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_SEARCH_PATH, "/bin:/usr/bin", 0},
		{PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ARGV, words, 0},
		{PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ENVP, words, 0},
		{PIDFD_CONFIG_SET_ACTIONS, PIDFD_CONFIG_KEY_ACTIONS, &list, sizeof(list)},
	};

	EACH_FAULT(sys_pidfd_open(0, PIDFD_EMPTY));
	for (size_t i = 0; i < COUNT(keys); i++)
		EACH_FAULT(
			sys_config(self->fd, keys[i].cmd, keys[i].key, keys[i].value, keys[i].aux));
	/* The teardown passes the same actions to its run, where a second SETSID would fail. */
	sys_config(self->fd, PIDFD_CONFIG_RESET, PIDFD_CONFIG_KEY_ACTIONS, NULL, 0);
}

static const unsigned int kinds[] = {0, SPAWN_FDS_NONE, SPAWN_FDS_INHERIT};

TEST_F_TIMEOUT(faults, running, TIMEOUT)
{
	static const char *const words[] = {"child", "exit", "3", NULL};
	struct spawn_args args = self->args;

	args.path = ADDRESS(child_path);
	args.argv = args.envp = ADDRESS(words);
	for (size_t i = 0; i < COUNT(kinds); i++) {
		args.flags = kinds[i];
		EACH_FAULT(sys_run(self->fd, &args, sizeof(args)));
	}
}

TEST_F_TIMEOUT(faults, namespaces, TIMEOUT)
{
	sys_config(self->fd, PIDFD_CONFIG_SET_FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, NULL,
		   CLONE_NEWUTS | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC);
	EACH_FAULT(sys_run(self->fd, &self->args, sizeof(self->args)));
	sys_config(self->fd, PIDFD_CONFIG_RESET, PIDFD_CONFIG_KEY_NAMESPACES, NULL, 0);
}

static long run_and_become(struct spawn_args *args)
{
	int fd = builder_of(STRINGS("child", "exit", "3"));
	long ret;

	if (fd < 0)
		return fd;
	args->flags = SPAWN_BECOME_PIDFD;
	args->path = ADDRESS(child_path);
	args->argv = ADDRESS(STRINGS("child"));
	ret = sys_run(fd, args, sizeof(*args));
	if (ret != fd)
		close(fd);
	return ret;
}

TEST_F_TIMEOUT(faults, becoming, TIMEOUT)
{
	struct spawn_args args = self->args;

	EACH_FAULT(run_and_become(&args));
}

#ifdef HAVE_TEMPLATES
static long run_template(void)
{
	struct spawn_template_action action = {.type = SPAWN_ACTION_DUP2, .fd = 2, .newfd = 20};
	struct spawn_template_spawn_args args = {};
	int fd = template_of(child_path);
	__s32 pidfd = -1;
	long ret;

	if (fd < 0)
		return fd;
	args.pidfd = ADDRESS(&pidfd);
	args.argv = ADDRESS(STRINGS("child", "exit", "3"));
	args.actions = ADDRESS(&action);
	args.actions_len = 1;
	ret = sys_spawn(fd, &args, sizeof(args));
	close(fd);
	return ret < 0 ? ret : pidfd;
}

TEST_F_TIMEOUT(faults, template, TIMEOUT)
{
	long ret = run_template();

	if (ret == -ENOSYS)
		SKIP(return, "no templates");
	ASSERT_LT(0, ret);
	done(ret);
	EACH_FAULT(run_template());
}
#endif

/* RLIMIT_NPROC does not limit root, so this test becomes another user. */
TEST_F_TIMEOUT(faults, charges, TIMEOUT)
{
	struct rlimit limit = {2, 2};

	ASSERT_EQ(0, setresuid(4243, 4243, -1));
	renew(&self->fd, STRINGS("child", "exit", "3"));
	EACH_FAULT(sys_run(self->fd, &self->args, sizeof(self->args)));
	/* The limit allows this process and one child.
	 * The run fails if a failed child is still charged. */
	ASSERT_EQ(0, setrlimit(RLIMIT_NPROC, &limit));
	EXPECT_EQ(3, reap_and_close(sys_run(self->fd, &self->args, sizeof(self->args))));
	ASSERT_EQ(0, setresuid(0, 0, 0));
	/* The teardown runs a builder, which must have the credentials of this process. */
	renew(&self->fd, STRINGS("child", "exit", "3"));
}

#ifdef HAVE_URING_SPAWN
static long run_request(struct ring *ring, int fd, struct spawn_args *args, unsigned int flags)
{
	long ret;

	queue_spawn(ring, fd, args, 10)->flags = flags;
	ret = submit(ring, 0);
	/* If an allocation of io_uring itself has failed, the request is still queued.
	 * Submit it again. */
	while (ret <= 0) {
		fail(nth_fd, 0);
		ret = result(syscall(__NR_io_uring_enter, ring->fd, 1, 0, 0, NULL, 0));
	}
	return completion(ring, 10);
}

TEST_F_TIMEOUT(faults, request, TIMEOUT)
{
	static const unsigned int rings[] = {0, IORING_SETUP_DEFER_TASKRUN |
							IORING_SETUP_SINGLE_ISSUER};
	struct ring ring;

	for (size_t i = 0; i < 4; i++) {
		if (ring_open(&ring, rings[i / 2]))
			SKIP(return, "no io_uring");
		self->before = next_fd();
		EACH_FAULT(run_request(&ring, self->fd, &self->args, i % 2 ? IOSQE_ASYNC : 0));
		ring_close(&ring);
		self->before = next_fd();
	}
}

/* Waits until the only child of this thread sleeps, and returns its pid. */
static pid_t child_asleep(void)
{
	char path[64], text[512], *state;
	pid_t pid;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", gettid());
	pid = atoi(file_text(path, text, sizeof(text)));
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	do
		state = strrchr(file_text(path, text, sizeof(text)), ')');
	while (state && state[2] != 'S' && !sched_yield());
	return state ? pid : -1;
}

/*
 * Makes allocations in the child fail. The child's first action blocks on a FIFO until
 * the test has set the child's fail-nth. The child then does the other actions and
 * executes the program, or fails.
 */
TEST_F_TIMEOUT(faults, child, 2 * TIMEOUT)
{
	struct spawn_open fifo = OPEN_OF("fifo", .flags = O_RDONLY);
	struct spawn_action actions[COUNT(self->actions) + 2] = {
		{ACTION(OPEN), .fd = AT_FDCWD, .newfd = 9, .arg = ADDRESS(&fifo)}};
	struct spawn_args args = make_args(actions, COUNT(actions));
	bool last = false;
	struct ring ring;

	memcpy(actions + 1, self->actions, sizeof(self->actions));
	/* If an allocation of the program itself fails, the program writes an error
	 * message to /dev/null. */
	actions[COUNT(actions) - 1] = (struct spawn_action){ACTION(DUP2), .fd = 900, .newfd = 2};
	ASSERT_EQ(0, mkfifo("fifo", 0600));
	if (ring_open(&ring, 0))
		SKIP(return, "no io_uring");
	for (int nth = 1; !last; nth++) {
		int child_fd, fifo_fd, ret;

		ASSERT_GT(MANY, nth);
		queue_spawn(&ring, self->fd, &args, 10);
		ASSERT_EQ(1, submit(&ring, 0));
		child_fd = open_nth(child_asleep());
		ASSERT_LE(0, child_fd);
		fail(child_fd, nth);
		fifo_fd = open("fifo", O_WRONLY | O_CLOEXEC);
		ASSERT_LE(0, fifo_fd);
		close(fifo_fd);
		ret = completion(&ring, 10);
		/* exec returns ENOEXEC if it cannot allocate memory for the program headers. */
		EXPECT_TRUE(ret >= 0 || is_shortage(ret) || ret == -ENOEXEC)
		{
			TH_LOG("allocation %d: %d", nth, ret);
		}
		if (ret >= 0) {
			struct pollfd end = {.fd = ret, .events = POLLIN};

			EXPECT_EQ(1, poll(&end, 1, TIMEOUT * 500));
			last = none_failed(child_fd);
			reap_and_close(ret);
		} else {
			EXPECT_NE(SPAWN_FAILED_SETUP, args.failed);
		}
		self->seen += !last;
		close(child_fd);
		EXPECT_NO_CHILD();
	}
	ring_close(&ring);
	self->before = next_fd();
}
#endif

TEST_HARNESS_MAIN
