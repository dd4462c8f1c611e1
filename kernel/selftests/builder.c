// SPDX-License-Identifier: GPL-2.0-only
/* Tests builders (empty pidfds that spawn programs): opening and configuring them, the arguments
 * that the kernel refuses, the order of its checks, and repeated runs. */
#include "spawn_test.h"
#include <pthread.h>
#include <linux/sched.h>
#include "kselftest_harness.h"

#define STRING PIDFD_CONFIG_SET_STRING
#define STRINGS_OF PIDFD_CONFIG_SET_STRINGS
#define FD PIDFD_CONFIG_SET_FD
#define ACTIONS PIDFD_CONFIG_SET_ACTIONS
#define FLAGS PIDFD_CONFIG_SET_FLAGS
#define RESET PIDFD_CONFIG_RESET
#define KEY(name) PIDFD_CONFIG_KEY_##name

TEST(abi)
{
	EXPECT_EQ(32, sizeof(struct spawn_action));
	EXPECT_EQ(16, offsetof(struct spawn_action, arg));
	EXPECT_EQ(24, offsetof(struct spawn_action, reserved));
	EXPECT_EQ(32, SPAWN_ACTION_SIZE_VER0);
	EXPECT_EQ(8, offsetof(struct spawn_action, fd));
	EXPECT_EQ(8, offsetof(struct spawn_action, count));
	EXPECT_EQ(8, offsetof(struct spawn_action, score));
	EXPECT_EQ(12, offsetof(struct spawn_action, newfd));
	EXPECT_EQ(12, offsetof(struct spawn_action, priority));
	EXPECT_EQ(16, offsetof(struct spawn_action, saved));
	EXPECT_EQ(24, sizeof(struct spawn_action_list));
	EXPECT_EQ(24, SPAWN_ACTION_LIST_SIZE_VER0);
	EXPECT_EQ(8, offsetof(struct spawn_action_list, nr_actions));
	EXPECT_EQ(12, offsetof(struct spawn_action_list, action_size));
	EXPECT_EQ(16, offsetof(struct spawn_action_list, failed));
	EXPECT_EQ(64, sizeof(struct spawn_args));
	EXPECT_EQ(64, SPAWN_ARGS_SIZE_VER0);
	EXPECT_EQ(8, offsetof(struct spawn_args, path));
	EXPECT_EQ(16, offsetof(struct spawn_args, argv));
	EXPECT_EQ(24, offsetof(struct spawn_args, envp));
	EXPECT_EQ(32, offsetof(struct spawn_args, actions));
	EXPECT_EQ(40, offsetof(struct spawn_args, action_size));
	EXPECT_EQ(44, offsetof(struct spawn_args, failed));
	EXPECT_EQ(48, offsetof(struct spawn_args, pid));
	EXPECT_EQ(16, sizeof(struct spawn_sigset));
	EXPECT_EQ(40, sizeof(struct spawn_open));
	EXPECT_EQ(16, offsetof(struct spawn_open, how));
	EXPECT_EQ(40, sizeof(struct spawn_capabilities));
	EXPECT_EQ(19, SPAWN_ACTION_SIGIGNORE);
	EXPECT_EQ(33, SPAWN_ACTION_SECCOMP);
	EXPECT_EQ(256, SPAWN_MAX_ACTIONS);
#if __NR_pidfd_config != -1
	EXPECT_EQ(474, __NR_pidfd_config);
	EXPECT_EQ(475, __NR_pidfd_spawn_run);
#endif
}

FIXTURE(opened)
{
	int fd;
};

FIXTURE_SETUP(opened)
{
	block_sigchld();
	NEED_BUILDER(self->fd);
}

FIXTURE_TEARDOWN(opened)
{
	close(self->fd);
}

TEST_F_TIMEOUT(opened, open_flags, TIMEOUT)
{
	static const pid_t pids[] = {1, -1, INT_MIN, INT_MAX};
	int fd;

	for (size_t i = 0; i < COUNT(pids); i++) {
		EXPECT_EQ(-EINVAL, sys_pidfd_open(pids[i], PIDFD_EMPTY)) TH_LOG("pid %d", pids[i]);
	}
	EXPECT_EQ(-EINVAL, sys_pidfd_open(getpid(), PIDFD_EMPTY));
	for (int bit = 0; bit < 32; bit++) {
		unsigned int flag = 1U << bit;

		if (flag == PIDFD_EMPTY)
			continue;
		fd = sys_pidfd_open(0, PIDFD_EMPTY | flag);
		if (flag == O_NONBLOCK) {
			ASSERT_LE(0, fd);
			EXPECT_NE(0, fcntl(fd, F_GETFL) & O_NONBLOCK);
			close(fd);
		} else {
			EXPECT_EQ(-EINVAL, fd) TH_LOG("bit %d", bit);
		}
	}
	EXPECT_EQ(FD_CLOEXEC, fcntl(self->fd, F_GETFD));
	EXPECT_EQ(0, fcntl(self->fd, F_GETFL) & O_NONBLOCK);
}

/* A builder refers to no process. Calls that need one fail, and poll() does not report that a
 * process has ended. */
TEST_F_TIMEOUT(opened, is_no_process, TIMEOUT)
{
	struct pollfd poll_it = {.fd = self->fd, .events = POLLIN | POLLOUT | POLLHUP | POLLRDHUP};
	siginfo_t info;
	char byte;

	EXPECT_EQ(0, poll(&poll_it, 1, 0)) TH_LOG("events %x", poll_it.revents);
	EXPECT_EQ(-EBADF, result(syscall(__NR_pidfd_send_signal, self->fd, 0, NULL, 0)));
	EXPECT_EQ(-EBADF, result(syscall(__NR_pidfd_send_signal, self->fd, SIGKILL, NULL, 0)));
	EXPECT_EQ(-EBADF, result(syscall(__NR_pidfd_getfd, self->fd, 0, 0)));
	EXPECT_EQ(-EBADF, result(waitid(P_PIDFD, self->fd, &info, WEXITED | WNOHANG)));
	EXPECT_EQ(-EINVAL, result(setns(self->fd, CLONE_NEWNS)));
	EXPECT_EQ(-EINVAL, result(setns(self->fd, 0)));
	EXPECT_GT(0, read(self->fd, &byte, 1));
	EXPECT_GT(0, write(self->fd, &byte, 1));
}

static void *const somewhere = child_path;

static struct spawn_action_list no_actions;

static const struct refused {
	const char *name;
	unsigned int cmd, key;
	void *value;
	int aux;
	int error;
} refused[] = {
	{"command 6", 6, KEY(PATH), child_path, 0, EINVAL},
	{"command -1", ~0U, KEY(PATH), child_path, 0, EINVAL},
	{"command 1 << 31", 1U << 31, KEY(PATH), child_path, 0, EINVAL},
	{"key 11", STRING, 11, child_path, 0, EINVAL},
	{"key -1", STRING, ~0U, child_path, 0, EINVAL},
	{"string of all", STRING, KEY(ALL), child_path, 0, EINVAL},
	{"string of exec_fd", STRING, KEY(EXEC_FD), child_path, 0, EINVAL},
	{"string of cwd", STRING, KEY(CWD), child_path, 0, EINVAL},
	{"string of argv", STRING, KEY(ARGV), child_path, 0, EINVAL},
	{"string of actions", STRING, KEY(ACTIONS), child_path, 0, EINVAL},
	{"string of namespaces", STRING, KEY(NAMESPACES), child_path, 0, EINVAL},
	{"fd of path", FD, KEY(PATH), NULL, 0, EINVAL},
	{"fd of envp", FD, KEY(ENVP), NULL, 0, EINVAL},
	{"strings of path", STRINGS_OF, KEY(PATH), child_path, 0, EINVAL},
	{"strings of actions", STRINGS_OF, KEY(ACTIONS), child_path, 0, EINVAL},
	{"actions of argv", ACTIONS, KEY(ARGV), NULL, 0, EINVAL},
	{"flags of path", FLAGS, KEY(PATH), NULL, 0, EINVAL},
	{"reset of key 11", RESET, 11, NULL, 0, EINVAL},
	{"reset of key -1", RESET, ~0U, NULL, 0, EINVAL},
	{"reset with a value", RESET, KEY(PATH), child_path, 0, EINVAL},
	{"reset with aux", RESET, KEY(PATH), NULL, 1, EINVAL},
	{"string with aux", STRING, KEY(PATH), child_path, 1, EINVAL},
	{"string with aux -1", STRING, KEY(PATH), child_path, -1, EINVAL},
	{"strings with aux", STRINGS_OF, KEY(ARGV), child_path, INT_MIN, EINVAL},
	{"fd with a value", FD, KEY(EXEC_FD), child_path, 0, EINVAL},
	{"flags with a value", FLAGS, KEY(NAMESPACES), child_path, 0, EINVAL},
	{"aux before the value", STRING, KEY(PATH), BAD_POINTER, 1, EINVAL},
	{"key before the value", STRING, KEY(ALL), BAD_POINTER, 0, EINVAL},
	{"path nowhere", STRING, KEY(PATH), BAD_POINTER, 0, EFAULT},
	{"path NULL", STRING, KEY(PATH), NULL, 0, EFAULT},
	{"name nowhere", STRING, KEY(NAME), BAD_POINTER, 0, EFAULT},
	{"search path nowhere", STRING, KEY(SEARCH_PATH), BAD_POINTER, 0, EFAULT},
	{"path empty", STRING, KEY(PATH), "", 0, ENOENT},
	{"name empty", STRING, KEY(NAME), "", 0, ENOENT},
	{"argv nowhere", STRINGS_OF, KEY(ARGV), BAD_POINTER, 0, EFAULT},
	{"envp nowhere", STRINGS_OF, KEY(ENVP), BAD_POINTER, 0, EFAULT},
	{"exec_fd -1", FD, KEY(EXEC_FD), NULL, -1, EBADF},
	{"exec_fd least", FD, KEY(EXEC_FD), NULL, INT_MIN, EBADF},
	{"exec_fd AT_FDCWD", FD, KEY(EXEC_FD), NULL, AT_FDCWD, EBADF},
	{"cwd -1", FD, KEY(CWD), NULL, -1, EBADF},
	{"cwd AT_FDCWD", FD, KEY(CWD), NULL, AT_FDCWD, EBADF},
	{"cwd least", FD, KEY(CWD), NULL, INT_MIN, EBADF},
	{"cgroup -1", FD, KEY(CGROUP), NULL, -1, EBADF},
	{"cgroup AT_FDCWD", FD, KEY(CGROUP), NULL, AT_FDCWD, EBADF},
	{"actions of size -1", ACTIONS, KEY(ACTIONS), &no_actions, -1, EINVAL},
	{"actions of size 0", ACTIONS, KEY(ACTIONS), &no_actions, 0, EINVAL},
	{"actions of size 23", ACTIONS, KEY(ACTIONS), &no_actions, 23, EINVAL},
	{"actions of size 4097", ACTIONS, KEY(ACTIONS), &no_actions, 4097, E2BIG},
	{"actions nowhere", ACTIONS, KEY(ACTIONS), BAD_POINTER, 24, EFAULT},
	{"actions NULL", ACTIONS, KEY(ACTIONS), NULL, 24, EFAULT},
	{"namespaces -1", FLAGS, KEY(NAMESPACES), NULL, -1, EINVAL},
	{"namespaces and CLONE_VM", FLAGS, KEY(NAMESPACES), NULL, CLONE_NEWNS | CLONE_VM, EINVAL},
	{"namespaces and a signal", FLAGS, KEY(NAMESPACES), NULL, CLONE_NEWNS | SIGCHLD, EINVAL},
};

/* A refused call changes nothing: the builder still runs as configured. */
TEST_F_TIMEOUT(opened, refused, TIMEOUT)
{
	struct outcome it;
	long ret;

	(void)somewhere;
	ASSERT_EQ(0, sys_config(self->fd, STRING, KEY(PATH), child_path, 0));
	ASSERT_EQ(0, sys_config(self->fd, STRINGS_OF, KEY(ARGV), STRINGS("child", "exit", "5"), 0));
	for (size_t i = 0; i < COUNT(refused); i++) {
		const struct refused *one = refused + i;

		ret = sys_config(self->fd, one->cmd, one->key, one->value, one->aux);
		EXPECT_EQ(-one->error, ret) TH_LOG("%s", one->name);
	}
	start(&it, self->fd, NULL, NULL, 0, 0);
	EXPECT_LE(0, it.ret);
	EXPECT_EQ(5, it.code);
}

TEST_F_TIMEOUT(opened, namespace_flags, TIMEOUT)
{
	const unsigned int allowed = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
				     CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWTIME;

	for (int bit = 0; bit < 32; bit++) {
		unsigned int flag = 1U << bit;

		EXPECT_EQ(allowed & flag ? 0 : -EINVAL,
			  sys_config(self->fd, FLAGS, KEY(NAMESPACES), NULL, flag))
		{
			TH_LOG("bit %d", bit);
		}
	}
}

static void *many(void *with, size_t length)
{
	char *text = malloc(length + 1);

	memset(text, *(char *)with, length);
	text[length] = 0;
	return text;
}

TEST_F_TIMEOUT(opened, lengths, TIMEOUT)
{
	char *edge = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EXPECT_EQ(0, sys_config(self->fd, STRING, KEY(PATH), many("/", PATH_MAX - 1), 0));
	EXPECT_EQ(-ENAMETOOLONG, sys_config(self->fd, STRING, KEY(PATH), many("/", PATH_MAX), 0));
	EXPECT_EQ(-ENAMETOOLONG, sys_config(self->fd, STRING, KEY(PATH), many("/", 1 << 20), 0));
	EXPECT_EQ(0, sys_config(self->fd, STRING, KEY(NAME), many("a", PATH_MAX - 1), 0));
	EXPECT_EQ(-ENAMETOOLONG, sys_config(self->fd, STRING, KEY(NAME), many("a", PATH_MAX), 0));
	EXPECT_EQ(0, sys_config(self->fd, STRING, KEY(SEARCH_PATH), "", 0));
	EXPECT_EQ(0, sys_config(self->fd, STRING, KEY(SEARCH_PATH), many(":", (128 << 10) - 1), 0));
	EXPECT_EQ(-E2BIG, sys_config(self->fd, STRING, KEY(SEARCH_PATH), many(":", 128 << 10), 0));
	EXPECT_EQ(-E2BIG, sys_config(self->fd, STRING, KEY(SEARCH_PATH), many(":", 1 << 21), 0));
	/* If a string or a list continues into unmapped memory, the call fails with EFAULT. */
	ASSERT_EQ(0, munmap(edge + 4096, 4096));
	memset(edge, 'a', 4096);
	EXPECT_EQ(-EFAULT, sys_config(self->fd, STRING, KEY(PATH), edge + 4090, 0));
	((char **)(edge + 4096))[-1] = edge;
	EXPECT_EQ(-EFAULT, sys_config(self->fd, STRINGS_OF, KEY(ARGV), edge + 4096 - 8, 0));
	((char **)(edge + 4096))[-1] = NULL;
	EXPECT_EQ(-EINVAL, sys_config(self->fd, STRINGS_OF, KEY(ARGV), edge + 4096 - 8, 0));
	EXPECT_EQ(0, sys_config(self->fd, STRINGS_OF, KEY(ENVP), edge + 4096 - 8, 0));
	EXPECT_EQ(-E2BIG, sys_config(self->fd, STRINGS_OF, KEY(ARGV),
				     STRINGS("child", many("a", 128 << 10)), 0));
	EXPECT_EQ(-EFAULT,
		  sys_config(self->fd, STRINGS_OF, KEY(ARGV), STRINGS("child", BAD_POINTER), 0));
}

/* Calls fail with EBADF if the descriptor is not open or is not a builder. */
TEST_F_TIMEOUT(opened, other_descriptors, TIMEOUT)
{
	struct spawn_args args = make_args(NULL, 0);
	int others[] = {-1, INT_MIN, INT_MAX, AT_FDCWD, 1 << 20, 0, sys_pidfd_open(getpid(), 0)};

	args.path = ADDRESS(child_path);
	args.argv = ADDRESS(STRINGS("child", "exit", "0"));
	ASSERT_LE(0, others[COUNT(others) - 1]);
	for (size_t i = 0; i < COUNT(others); i++) {
		EXPECT_EQ(-EBADF, sys_config(others[i], STRING, KEY(PATH), child_path, 0))
		TH_LOG("fd %d", others[i]);
		EXPECT_EQ(-EBADF, sys_config(others[i], ~0U, ~0U, BAD_POINTER, -1))
		TH_LOG("fd %d", others[i]);
		EXPECT_EQ(-EBADF, sys_run(others[i], &args, sizeof(args)))
		TH_LOG("fd %d", others[i]);
	}
	EXPECT_NO_CHILD();
}

FIXTURE(ready)
{
	int fd;
	int before;
};

FIXTURE_SETUP(ready)
{
	block_sigchld();
	NEED_BUILDER(self->fd);
	close(self->fd);
	self->fd = builder_of(STRINGS("child", "exit", "3"));
	self->before = next_fd();
}

FIXTURE_TEARDOWN(ready)
{
	EXPECT_NO_CHILD();
	EXPECT_EQ(self->before, next_fd());
	close(self->fd);
}

TEST_F_TIMEOUT(ready, sizes, TIMEOUT)
{
	static const size_t bad[] = {0, 1, 8, 32, 63};
	static const size_t huge[] = {4097, 65536, INT_MAX, SIZE_MAX / 2, SIZE_MAX};
	union {
		struct spawn_args args;
		char bytes[4096];
	} given = {};
	long ret;

	for (size_t i = 0; i < COUNT(bad); i++) {
		EXPECT_EQ(-EINVAL, sys_run(self->fd, &given, bad[i])) TH_LOG("size %zu", bad[i]);
		EXPECT_EQ(-EINVAL, sys_run(-1, BAD_POINTER, bad[i])) TH_LOG("size %zu", bad[i]);
	}
	for (size_t i = 0; i < COUNT(huge); i++) {
		EXPECT_EQ(-E2BIG, sys_run(self->fd, &given, huge[i])) TH_LOG("size %zu", huge[i]);
	}
	EXPECT_EQ(-EFAULT, sys_run(self->fd, BAD_POINTER, sizeof(given.args)));
	EXPECT_EQ(-EFAULT, sys_run(self->fd, NULL, sizeof(given.args)));
	static const size_t good[] = {64, 65, 72, 4096};
	for (size_t i = 0; i < COUNT(good); i++) {
		memset(&given, 0, sizeof(given));
		ret = sys_run(self->fd, &given, good[i]);
		ASSERT_LE(0, ret) TH_LOG("size %zu", good[i]);
		EXPECT_EQ(3, reap_and_close(ret));
		if (good[i] == 64)
			continue;
		memset(&given, 0, sizeof(given));
		given.bytes[good[i] - 1] = 1;
		EXPECT_EQ(-E2BIG, sys_run(self->fd, &given, good[i])) TH_LOG("size %zu", good[i]);
	}
}

TEST_F_TIMEOUT(ready, wrong_args, TIMEOUT)
{
	static const struct spawn_action actions[257] = {{.type = SPAWN_ACTION_SETSID}};
	struct spawn_args args;

	for (int bit = 0; bit < 32; bit++) {
		unsigned int flag = 1U << bit;

		args = make_args(NULL, 0);
		args.flags = flag;
		if (flag & (SPAWN_FDS_NONE | SPAWN_FDS_INHERIT | SPAWN_BECOME_PIDFD))
			continue;
		EXPECT_EQ(-EINVAL, sys_run(self->fd, &args, sizeof(args))) TH_LOG("bit %d", bit);
	}
	args = make_args(NULL, 0);
	args.flags = SPAWN_FDS_NONE | SPAWN_FDS_INHERIT;
	EXPECT_EQ(-EINVAL, sys_run(self->fd, &args, sizeof(args)));
	args = make_args(NULL, 0);
	args.reserved0 = 1;
	EXPECT_EQ(-EINVAL, sys_run(self->fd, &args, sizeof(args)));
	args = make_args(NULL, 0);
	args.reserved1 = 1ULL << 63;
	EXPECT_EQ(-EINVAL, sys_run(self->fd, &args, sizeof(args)));
	args = make_args(NULL, 0);
	args.action_size = sizeof(*actions);
	EXPECT_EQ(-EINVAL, sys_run(self->fd, &args, sizeof(args)));
	args = make_args(NULL, 0);
	args.actions = ADDRESS(actions);
	EXPECT_EQ(-EINVAL, sys_run(self->fd, &args, sizeof(args)));
	static const struct {
		unsigned int size;
		int error;
	} sizes[] = {{0, EINVAL},  {1, EINVAL},	   {24, EINVAL},  {31, EINVAL},
		     {33, EINVAL}, {4100, EINVAL}, {4104, E2BIG}, {1U << 31, E2BIG}};
	for (size_t i = 0; i < COUNT(sizes); i++) {
		struct spawn_action_list list = make_list(actions, 1);

		args = make_args(actions, 1);
		args.action_size = list.action_size = sizes[i].size;
		EXPECT_EQ(-sizes[i].error, sys_run(self->fd, &args, sizeof(args)))
		TH_LOG("size %u", sizes[i].size);
		EXPECT_EQ(-sizes[i].error,
			  sys_config(self->fd, ACTIONS, KEY(ACTIONS), &list, sizeof(list)))
		TH_LOG("size %u", sizes[i].size);
	}
	static const unsigned int counts[] = {257, 1 << 16, INT_MAX, 1U << 27, 1U << 31, UINT_MAX};
	for (size_t i = 0; i < COUNT(counts); i++) {
		args = make_args(actions, counts[i]);
		EXPECT_EQ(-E2BIG, sys_run(self->fd, &args, sizeof(args)))
		TH_LOG("count %u", counts[i]);
		EXPECT_EQ(-E2BIG, sys_config_actions(self->fd, actions, counts[i]))
		TH_LOG("count %u", counts[i]);
	}
}

/* A run can have 256 actions: the builder's configured actions and those of spawn_args together. */
TEST_F_TIMEOUT(ready, action_limit, TIMEOUT)
{
	struct spawn_action actions[256] = {};
	struct spawn_args args;
	long ret;

	for (size_t i = 0; i < COUNT(actions); i++)
		actions[i] = (struct spawn_action){.type = SPAWN_ACTION_UMASK, .fd = 022};
	args = make_args(actions, 256);
	ret = sys_run(self->fd, &args, sizeof(args));
	ASSERT_LE(0, ret);
	EXPECT_EQ(3, reap_and_close(ret));
	ASSERT_EQ(0, sys_config_actions(self->fd, actions, 200));
	args = make_args(actions, 56);
	ret = sys_run(self->fd, &args, sizeof(args));
	ASSERT_LE(0, ret);
	EXPECT_EQ(3, reap_and_close(ret));
	args = make_args(actions, 57);
	EXPECT_EQ(-E2BIG, sys_run(self->fd, &args, sizeof(args)));
	/* spawn_args.failed counts the builder's 200 configured actions first. */
	actions[55] = (struct spawn_action){.type = SPAWN_ACTION_CLOSE, .fd = 1 << 19};
	args = make_args(actions, 56);
	EXPECT_EQ(-EBADF, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(255, args.failed);
	ASSERT_EQ(0, sys_config_actions(self->fd, NULL, 0));
	args = make_args(actions, 56);
	EXPECT_EQ(-EBADF, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(55, args.failed);
}

/* The kernel checks arguments in a fixed order. If several are wrong, the call returns the error of
 * the first check. */
TEST_F_TIMEOUT(ready, checks_ordering, TIMEOUT)
{
	static const struct spawn_action bad_type[] = {{.type = 99}};
	static const struct spawn_action missing[] = {{.type = SPAWN_ACTION_CLOSE, .fd = 1 << 19}};
	struct rlimit limit, none;
	union {
		struct spawn_args args;
		char bytes[128];
	} longer = {};
	struct spawn_args args;

	/* The kernel refuses nonzero bytes behind the struct before it checks the flags. */
	longer.args.flags = ~0U;
	longer.bytes[127] = 1;
	EXPECT_EQ(-E2BIG, sys_run(self->fd, &longer, sizeof(longer)));
	/* The kernel checks the flags, then the number of actions, then the descriptor. */
	args = make_args(bad_type, 257);
	args.flags = ~0U;
	EXPECT_EQ(-EINVAL, sys_run(-1, &args, sizeof(args)));
	args.flags = 0;
	EXPECT_EQ(-E2BIG, sys_run(-1, &args, sizeof(args)));
	/* The kernel checks the descriptor, then writes to args, then checks the configuration. */
	ASSERT_EQ(0, sys_config(self->fd, RESET, KEY(ALL), NULL, 0));
	args = make_args(NULL, 0);
	EXPECT_EQ(-EBADF, sys_run(-1, read_only(&args, sizeof(args)), sizeof(args)));
	EXPECT_EQ(-EFAULT, sys_run(self->fd, read_only(&args, sizeof(args)), sizeof(args)));
	/* The kernel checks the program's path before it reads the actions. */
	args = make_args(BAD_POINTER, 1);
	EXPECT_EQ(-EINVAL, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(SPAWN_FAILED_SETUP, args.failed);
	args.path = BAD_ADDRESS;
	EXPECT_EQ(-EFAULT, sys_run(self->fd, &args, sizeof(args)));
	args.path = ADDRESS("");
	EXPECT_EQ(-ENOENT, sys_run(self->fd, &args, sizeof(args)));
	args.path = ADDRESS(child_path);
	EXPECT_EQ(-EINVAL, sys_run(self->fd, &args, sizeof(args))); /* argv is missing */
	args.argv = BAD_ADDRESS;
	EXPECT_EQ(-EFAULT, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(0, args.failed); /* the kernel reads actions before argv */
	/* The kernel checks the actions, then the configured descriptors, then argv, then whether a
	 * number for the pidfd is free. The child looks up the program last. */
	ASSERT_EQ(0, sys_config(self->fd, FD, KEY(CWD), NULL, 1 << 19));
	args = make_args(bad_type, 1);
	args.path = ADDRESS("/nonexistent");
	args.argv = BAD_ADDRESS;
	EXPECT_EQ(-EINVAL, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(0, args.failed);
	args.actions = ADDRESS(missing);
	EXPECT_EQ(-EBADF, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(SPAWN_FAILED_SETUP, args.failed);
	ASSERT_EQ(0, sys_config(self->fd, RESET, KEY(CWD), NULL, 0));
	getrlimit(RLIMIT_NOFILE, &limit);
	none = limit;
	none.rlim_cur = 3;
	while (next_fd() < 3)
		ASSERT_LE(0, dup(0));
	setrlimit(RLIMIT_NOFILE, &none);
	EXPECT_EQ(-EFAULT, sys_run(self->fd, &args, sizeof(args)));
	args.argv = ADDRESS(STRINGS("child"));
	EXPECT_EQ(-EMFILE, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(SPAWN_FAILED_SETUP, args.failed);
	EXPECT_EQ(0, args.pid);
	setrlimit(RLIMIT_NOFILE, &limit);
	/* The child performs the actions before it looks up the program. */
	EXPECT_EQ(-EBADF, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(0, args.failed);
	args = make_args(NULL, 0);
	args.path = ADDRESS("/nonexistent");
	args.argv = ADDRESS(STRINGS("child"));
	EXPECT_EQ(-ENOENT, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(SPAWN_FAILED_EXEC, args.failed);
	EXPECT_EQ(0, args.pid);
}

TEST_F_TIMEOUT(ready, tells_pid_and_pidfd, TIMEOUT)
{
	struct spawn_args args = make_args(NULL, 0);
	struct pollfd wait_for = {.events = POLLIN};
	char name[64], text[4096];
	siginfo_t info = {};
	FILE *file;
	int found = 0;

	args.failed = 7;
	args.pid = -1;
	wait_for.fd = sys_run(self->fd, &args, sizeof(args));
	ASSERT_LE(0, wait_for.fd);
	EXPECT_LT(0, args.pid);
	EXPECT_EQ(FD_CLOEXEC, fcntl(wait_for.fd, F_GETFD));
	EXPECT_EQ(0, fcntl(wait_for.fd, F_GETFL) & O_NONBLOCK);
	EXPECT_EQ(1, poll(&wait_for, 1, -1));
	snprintf(name, sizeof(name), "/proc/self/fdinfo/%d", wait_for.fd);
	file = fopen(name, "r");
	ASSERT_NE(NULL, file);
	while (fgets(text, sizeof(text), file))
		if (strncmp(text, "Pid:", 4) == 0)
			found = atoi(text + 4);
	fclose(file);
	EXPECT_EQ(args.pid, found);
	EXPECT_EQ(0, waitid(P_PID, args.pid, &info, WEXITED));
	EXPECT_EQ(args.pid, info.si_pid);
	EXPECT_EQ(CLD_EXITED, info.si_code);
	EXPECT_EQ(3, info.si_status);
	close(wait_for.fd);
	sigset_t set;
	struct timespec at_once = {};
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	EXPECT_EQ(SIGCHLD, sigtimedwait(&set, &info, &at_once));
	EXPECT_EQ(args.pid, info.si_pid);
}

TEST_F_TIMEOUT(ready, nonblock, TIMEOUT)
{
	int fd = sys_pidfd_open(0, PIDFD_EMPTY | O_NONBLOCK);
	struct spawn_args args = make_args(NULL, 0);
	siginfo_t info;
	int pipes[2], pidfd;

	ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
	args.path = ADDRESS(child_path);
	args.argv = ADDRESS(STRINGS("child", "cat"));
	struct spawn_action actions[] = {{.type = SPAWN_ACTION_DUP2, .fd = pipes[0], .newfd = 0}};
	args.actions = ADDRESS(actions);
	args.nr_actions = 1;
	args.action_size = sizeof(*actions);
	pidfd = sys_run(fd, &args, sizeof(args));
	ASSERT_LE(0, pidfd);
	EXPECT_NE(0, fcntl(pidfd, F_GETFL) & O_NONBLOCK);
	EXPECT_EQ(-EAGAIN, result(waitid(P_PIDFD, pidfd, &info, WEXITED)));
	close(pipes[1]);
	close(pipes[0]);
	struct pollfd wait_for = {.fd = pidfd, .events = POLLIN};
	EXPECT_EQ(1, poll(&wait_for, 1, -1));
	EXPECT_EQ(0, reap_and_close(pidfd));
	close(fd);
}

/* A builder can run many times. A run adds no descriptor to the caller except the pidfd, and its
 * argv does not change the configured argv. */
TEST_F_TIMEOUT(ready, again_and_again, TIMEOUT)
{
	struct outcome it;
	char number[16];

	for (int i = 0; i < 100; i++) {
		snprintf(number, sizeof(number), "%d", i);
		start(&it, self->fd, STRINGS("child", "exit", number), NULL, 0, 0);
		ASSERT_LE(0, it.ret);
		ASSERT_EQ(i, it.code);
		ASSERT_EQ(self->before, next_fd());
	}
	start(&it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(3, it.code);
}

TEST_F_TIMEOUT(ready, reset, TIMEOUT)
{
	struct outcome it;

	EXPECT_EQ(0, sys_config(self->fd, STRINGS_OF, KEY(ENVP), STRINGS("A=1"), 0));
	start(&it, self->fd, STRINGS("child", "args"), NULL, 0, 0);
	EXPECT_TRUE(has_line(it.out, "env=A=1"));
	EXPECT_EQ(0, sys_config(self->fd, RESET, KEY(ENVP), NULL, 0));
	start(&it, self->fd, STRINGS("child", "args"), NULL, 0, 0);
	EXPECT_EQ(NULL, strstr(it.out, "env="));
	EXPECT_EQ(0, sys_config(self->fd, RESET, KEY(ARGV), NULL, 0));
	start(&it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(-EINVAL, it.ret);
	EXPECT_EQ(0, sys_config(self->fd, STRINGS_OF, KEY(ARGV), STRINGS("child", "exit", "4"), 0));
	start(&it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(4, it.code);
	EXPECT_EQ(0, sys_config(self->fd, RESET, KEY(PATH), NULL, 0));
	start(&it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(-EINVAL, it.ret);
	EXPECT_EQ(0, sys_config(self->fd, STRING, KEY(PATH), child_path, 0));
	EXPECT_EQ(0, sys_config(self->fd, RESET, KEY(ALL), NULL, 0));
	start(&it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(-EINVAL, it.ret);
	for (unsigned int key = 0; key <= KEY(NAMESPACES); key++) {
		EXPECT_EQ(0, sys_config(self->fd, RESET, key, NULL, 0)) TH_LOG("key %u", key);
	}
}

/* spawn_args.path replaces the configured path for one run. The configuration does not change. */
TEST_F_TIMEOUT(ready, given_instead_of_configured, TIMEOUT)
{
	struct outcome it;
	struct spawn_args args;
	long ret;

	ASSERT_EQ(0, sys_config(self->fd, STRING, KEY(PATH), "/nonexistent", 0));
	start(&it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(-ENOENT, it.ret);
	args = make_args(NULL, 0);
	args.path = ADDRESS(child_path);
	ret = sys_run(self->fd, &args, sizeof(args));
	ASSERT_LE(0, ret);
	EXPECT_EQ(3, reap_and_close(ret));
	start(&it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(-ENOENT, it.ret);
}

TEST_F_TIMEOUT(ready, becomes_pidfd, TIMEOUT)
{
	struct spawn_args args = make_args(NULL, 0);
	int other = dup(self->fd);
	long ret;

	args.flags = SPAWN_BECOME_PIDFD;
	args.path = ADDRESS("/nonexistent");
	EXPECT_EQ(-ENOENT, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(0, fcntl(other, F_SETFD, 0));
	args.path = 0;
	ASSERT_EQ(self->fd, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(FD_CLOEXEC, fcntl(self->fd, F_GETFD));
	EXPECT_EQ(-EBADF, sys_config(self->fd, RESET, KEY(ALL), NULL, 0));
	EXPECT_EQ(3, reap(self->fd));
	EXPECT_EQ(-EBADF, sys_run(self->fd, &args, sizeof(args)));
	/* A duplicate of the builder's descriptor still refers to the builder. */
	args.flags = 0;
	ret = sys_run(other, &args, sizeof(args));
	ASSERT_LE(0, ret);
	EXPECT_EQ(3, reap_and_close(ret));
	close(other);
}

/* A forked process can run the builder that it inherited. */
TEST_F_TIMEOUT(ready, survives_fork, TIMEOUT)
{
	struct spawn_args args = make_args(NULL, 0);
	int status = -1;
	pid_t pid;

	pid = fork();
	if (pid == 0) {
		long pidfd = sys_run(self->fd, &args, sizeof(args));

		_exit(pidfd < 0 ? 100 : reap(pidfd));
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(3 << 8, status);
	forget_sigchld();
}

static void *run_many(void *shared)
{
	int fd = *(int *)shared;
	char number[16];
	long wrong = 0;

	for (int i = 0; i < 30; i++) {
		struct spawn_args args = make_args(NULL, 0);
		long pidfd;

		snprintf(number, sizeof(number), "%d", i);
		args.argv = ADDRESS(STRINGS("child", "exit", number));
		pidfd = sys_run(fd, &args, sizeof(args));
		wrong += pidfd < 0 || reap_and_close(pidfd) != i;
	}
	return (void *)wrong;
}

static void *configure_many(void *shared)
{
	int fd = *(int *)shared;

	for (int i = 0; i < 500; i++) {
		sys_config(fd, STRINGS_OF, KEY(ARGV), STRINGS("child", "exit", "9"), 0);
		sys_config(fd, STRINGS_OF, KEY(ENVP), STRINGS("A=1", "B=2"), 0);
		sys_config(fd, STRING, KEY(PATH), child_path, 0);
		sys_config(fd, RESET, KEY(ENVP), NULL, 0);
	}
	return NULL;
}

TEST_F_TIMEOUT(ready, by_many_threads, TIMEOUT)
{
	pthread_t threads[5];
	void *wrong;

	for (size_t i = 0; i < COUNT(threads); i++)
		ASSERT_EQ(0, pthread_create(threads + i, NULL, i ? run_many : configure_many,
					    &self->fd));
	for (size_t i = 0; i < COUNT(threads); i++) {
		ASSERT_EQ(0, pthread_join(threads[i], &wrong));
		EXPECT_EQ(NULL, wrong) TH_LOG("%ld wrong", (long)wrong);
	}
	forget_sigchld();
}

static void *open_and_close(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
		int fd = builder_of(STRINGS("child", "exit", "0"));

		close(fd);
	}
	return NULL;
}

/* Runs succeed while another thread opens and closes builders of its own. */
TEST_F_TIMEOUT(ready, closed_meanwhile, TIMEOUT)
{
	int stop = 0;
	pthread_t thread;

	ASSERT_EQ(0, pthread_create(&thread, NULL, open_and_close, &stop));
	for (int i = 0; i < 50; i++) {
		struct spawn_args args = make_args(NULL, 0);
		int fd = builder_of(STRINGS("child", "exit", "0"));
		long pidfd;

		args.flags = i % 2 ? SPAWN_BECOME_PIDFD : 0;
		pidfd = sys_run(fd, &args, sizeof(args));
		EXPECT_LE(0, pidfd);
		if (pidfd >= 0) {
			EXPECT_EQ(0, reap_and_close(pidfd));
		}
		if (pidfd != fd)
			close(fd);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	forget_sigchld();
}

TEST_HARNESS_MAIN
