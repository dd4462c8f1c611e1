// SPDX-License-Identifier: GPL-2.0-only
/* Tests what a builder tells about its configuration, who may change it, and structures of other
 * versions of the interface. */
#include "spawn_test.h"
#include <linux/sched.h>
#include "kselftest_harness.h"

#define ACTIONS PIDFD_CONFIG_SET_ACTIONS
#define KEY(name) PIDFD_CONFIG_KEY_##name

FIXTURE(config)
{
	int fd;
	int before;
};

FIXTURE_SETUP(config)
{
	block_sigchld();
	NEED_BUILDER(self->fd);
	close(self->fd);
	self->fd = builder_of(STRINGS("child", "exit", "3"));
	self->before = next_fd();
}

FIXTURE_TEARDOWN(config)
{
	EXPECT_NO_CHILD();
	EXPECT_EQ(self->before, next_fd());
	close(self->fd);
}

/* A caller of another version of the interface has larger actions and a larger list. The kernel
 * accepts them if the part that it does not know is 0. */
TEST_F_TIMEOUT(config, larger_actions, TIMEOUT)
{
	struct {
		struct spawn_action it;
		__u64 more[2];
	} larger[3] = {};
	struct {
		struct spawn_action_list it;
		__u64 more;
	} list = {};
	struct spawn_args args;
	struct outcome it;
	long ret;

	for (size_t i = 0; i < COUNT(larger); i++)
		larger[i].it = (struct spawn_action){.type = SPAWN_ACTION_UMASK, .mask = 022};
	args = make_args(&larger[0].it, COUNT(larger));
	args.action_size = sizeof(larger[0]);
	ret = sys_run(self->fd, &args, sizeof(args));
	ASSERT_LE(0, ret);
	EXPECT_EQ(3, reap_and_close(ret));
	list.it = make_list(&larger[0].it, COUNT(larger));
	list.it.action_size = sizeof(larger[0]);
	EXPECT_EQ(0, sys_config(self->fd, ACTIONS, KEY(ACTIONS), &list, sizeof(list)));
	start(&it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(3, it.code);
	list.more = 1;
	EXPECT_EQ(-E2BIG, sys_config(self->fd, ACTIONS, KEY(ACTIONS), &list, sizeof(list)));
	list.more = 0;
	larger[2].more[1] = 1;
	args.failed = 0;
	EXPECT_EQ(-E2BIG, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(3 + 2, args.failed); /* the builder has three actions */
	EXPECT_EQ(-E2BIG, sys_config(self->fd, ACTIONS, KEY(ACTIONS), &list, sizeof(list)));
	EXPECT_EQ(2, list.it.failed);
	/* A refused list leaves the configured actions. */
	start(&it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(3, it.code);
}

/* The list that sets the actions of a builder also returns the index of the refused action. */
TEST_F_TIMEOUT(config, refused_action, TIMEOUT)
{
	struct spawn_action actions[5] = {};
	struct spawn_action_list list = make_list(actions, COUNT(actions));

	for (size_t i = 0; i < COUNT(actions); i++)
		actions[i] = (struct spawn_action){.type = SPAWN_ACTION_UMASK, .mask = 022};
	for (size_t i = 0; i < COUNT(actions); i++) {
		actions[i].mask = 01000;
		list.failed = 99;
		EXPECT_EQ(-EINVAL,
			  sys_config(self->fd, ACTIONS, KEY(ACTIONS), &list, sizeof(list)));
		EXPECT_EQ(i, list.failed);
		actions[i].mask = 022;
	}
	EXPECT_EQ(0, sys_config(self->fd, ACTIONS, KEY(ACTIONS), &list, sizeof(list)));
	EXPECT_EQ(SPAWN_FAILED_SETUP, list.failed);
	list.reserved = 1;
	EXPECT_EQ(-EINVAL, sys_config(self->fd, ACTIONS, KEY(ACTIONS), &list, sizeof(list)));
	list = make_list(NULL, 0);
	list.action_size = sizeof(*actions);
	EXPECT_EQ(-EINVAL, sys_config(self->fd, ACTIONS, KEY(ACTIONS), &list, sizeof(list)));
	list = make_list(actions, 1);
	EXPECT_EQ(-EFAULT, sys_config(self->fd, ACTIONS, KEY(ACTIONS),
				      read_only(&list, sizeof(list)), sizeof(list)));
	EXPECT_EQ(-EFAULT, sys_config_actions(self->fd, BAD_POINTER, 1));
}

/* The read() of a builder returns the oldest message about an error. */
TEST_F_TIMEOUT(config, log, TIMEOUT)
{
	static const struct spawn_action bad = {.type = SPAWN_ACTION_FCHDIR, .fd = 500};
	const struct spawn_action two[] = {{.type = SPAWN_ACTION_SETSID}, bad};
	struct spawn_args args = make_args(two, COUNT(two));
	char text[128] = "";
	ssize_t length;

	EXPECT_EQ(-ENODATA, result(read(self->fd, text, sizeof(text))));
	EXPECT_EQ(-EBADF, sys_run(self->fd, &args, sizeof(args)));
	args = make_args(NULL, 0);
	args.path = ADDRESS("/nonexistent");
	EXPECT_EQ(-ENOENT, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(-EINVAL, sys_config(self->fd, PIDFD_CONFIG_SET_FLAGS, KEY(NAMESPACES), NULL, 1));
	EXPECT_EQ(-EFAULT, sys_config_actions(self->fd, BAD_POINTER, 1));
	EXPECT_EQ(-EMSGSIZE, result(read(self->fd, text, 5)));
	static const char *const messages[] = {
		"e spawn: action 1: error 9\n",
		"e spawn: exec: error 2\n",
		"e config: key 10: error 22\n",
		"e config: action 0: error 14\n",
	};
	for (size_t i = 0; i < COUNT(messages); i++) {
		length = read(self->fd, text, sizeof(text) - 1);
		ASSERT_LT(0, length);
		text[length] = 0;
		EXPECT_STREQ(messages[i], text);
	}
	EXPECT_EQ(-ENODATA, result(read(self->fd, text, sizeof(text))));
	/* A fault loses the message. */
	sys_config(self->fd, PIDFD_CONFIG_SET_STRING, 100, NULL, 0);
	EXPECT_EQ(-EFAULT, result(syscall(__NR_read, self->fd, 1, sizeof(text))));
	EXPECT_EQ(-ENODATA, result(read(self->fd, text, sizeof(text))));
	/* The log keeps the newest eight messages. */
	for (int key = 100; key < 120; key++)
		sys_config(self->fd, PIDFD_CONFIG_SET_STRING, key, NULL, 0);
	for (int key = 112; key < 120; key++) {
		length = read(self->fd, text, sizeof(text) - 1);
		ASSERT_LT(0, length);
		text[length] = 0;
		EXPECT_TRUE(has_line(text, "e config: key %d: error 22", key));
	}
	EXPECT_EQ(-ENODATA, result(read(self->fd, text, sizeof(text))));
}

TEST_F_TIMEOUT(config, fdinfo, TIMEOUT)
{
	static const struct spawn_action actions[] = {{.type = SPAWN_ACTION_SETSID},
						      {.type = SPAWN_ACTION_UMASK}};
	char name[64], text[8192];
	int fd;

	ASSERT_EQ(0, sys_config_actions(self->fd, actions, COUNT(actions)));
	ASSERT_EQ(0, sys_config(self->fd, PIDFD_CONFIG_SET_STRING, KEY(PATH), "/a b\n", 0));
	ASSERT_EQ(0, sys_config(self->fd, PIDFD_CONFIG_SET_STRING, KEY(SEARCH_PATH),
				"/bin:/usr/bin", 0));
	ASSERT_EQ(0, sys_config(self->fd, PIDFD_CONFIG_SET_FD, KEY(CWD), NULL, 77));
	ASSERT_EQ(0, sys_config(self->fd, PIDFD_CONFIG_SET_FLAGS, KEY(NAMESPACES), NULL,
				CLONE_NEWUTS));
	snprintf(name, sizeof(name), "/proc/self/fdinfo/%d", self->fd);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd);
	read_all(fd, text, sizeof(text));
	close(fd);
	EXPECT_TRUE(has_line(text, "Path:\t/a\\040b\\012")) TH_LOG("%s", text);
	EXPECT_TRUE(has_line(text, "SearchPath:\t/bin:/usr/bin"));
	EXPECT_TRUE(has_line(text, "Cwd:\t77"));
	EXPECT_TRUE(has_line(text, "Argv:\t3"));
	EXPECT_TRUE(has_line(text, "Actions:\t2"));
	EXPECT_TRUE(has_line(text, "Namespaces:\t%08x", CLONE_NEWUTS));
	EXPECT_EQ(NULL, strstr(text, "Name:\t/"));
	EXPECT_EQ(NULL, strstr(text, "Envp:"));
	EXPECT_TRUE(has_line(text, "Messages:\t0"));
}

/* Only tasks with the credentials of the builder's creator can configure and run the builder. */
TEST_F_TIMEOUT(config, other_credentials, TIMEOUT)
{
	struct spawn_args args = make_args(NULL, 0);
	int status = -1;
	pid_t pid;

	if (getuid() != 0)
		SKIP(return, "not root");
	pid = fork();
	if (pid == 0) {
		int wrong = 0;

		/* The same credentials in a new struct cred are no others. */
		wrong |= setresuid(0, 0, 0) != 0;
		wrong |= (sys_config(self->fd, PIDFD_CONFIG_RESET, KEY(ENVP), NULL, 0) != 0) << 1;
		wrong |= setresuid(4242, 4242, 0) != 0;
		wrong |= (sys_config(self->fd, PIDFD_CONFIG_RESET, KEY(ENVP), NULL, 0) != -EACCES)
			 << 2;
		wrong |= (sys_config(self->fd, ~0U, ~0U, BAD_POINTER, -1) != -EACCES) << 3;
		wrong |= (sys_run(self->fd, &args, sizeof(args)) != -EACCES) << 4;
		wrong |= (args.pid != 0 || args.failed != 0) << 5;
		wrong |= setresuid(0, 0, 0) != 0;
		wrong |= (sys_config(self->fd, PIDFD_CONFIG_RESET, KEY(ENVP), NULL, 0) != 0) << 6;
		_exit(wrong);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status) TH_LOG("wrong %x", status >> 8);
	forget_sigchld();
}

TEST_HARNESS_MAIN
