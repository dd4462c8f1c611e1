/* SPDX-License-Identifier: GPL-2.0-only */
/* Helpers for tests of spawn actions. The macros run the fixture's builder, self->fd, and store the
 * outcome in self->it. */
#ifndef ACTION_TEST_H
#define ACTION_TEST_H

#include "spawn_test.h"
#include <sys/prctl.h>

#define ACTION(name) .type = SPAWN_ACTION_##name
#define SET(cmd, key, value, aux)                                                                  \
	sys_config(self->fd, PIDFD_CONFIG_##cmd, PIDFD_CONFIG_KEY_##key, value, aux)
#define CAP(name) (1ULL << CAP_##name)
#define NOBODY 4242
#define IDS(id) {ACTION(SETRESUID), .fd = id, .newfd = id, .arg = id}

/* A fixture that skips its tests without root. Its builder runs `child state` (child.c), which
 * prints the child's state. */
#define ROOTS_FIXTURE(name)                                                                        \
	FIXTURE(name)                                                                              \
	{                                                                                          \
		int fd;                                                                            \
		struct outcome it;                                                                 \
	};                                                                                         \
	FIXTURE_SETUP(name)                                                                        \
	{                                                                                          \
		block_sigchld();                                                                   \
		NEED_BUILDER(self->fd);                                                            \
		close(self->fd);                                                                   \
		if (getuid() != 0)                                                                 \
			SKIP(return, "not root");                                                  \
		own_directory();                                                                   \
		self->fd = builder_of(STRINGS("child", "state"));                                  \
	}                                                                                          \
	FIXTURE_TEARDOWN(name)                                                                     \
	{                                                                                          \
		close(self->fd);                                                                   \
	}

static const int negative[] = {-1, -2, -99, AT_FDCWD, INT_MIN, INT_MIN + 1};
static const int huge[] = {1 << 19, 1 << 20, (1 << 26) + 1, INT_MAX - 1, INT_MAX};
static const struct spawn_action no_new_privs = {ACTION(NO_NEW_PRIVS)},
				 setsid_first = {ACTION(SETSID)};

#define RUN(...)                                                                                   \
	do {                                                                                       \
		const struct spawn_action list_[] = {__VA_ARGS__};                                 \
		start(&self->it, self->fd, NULL, list_, COUNT(list_), 0);                          \
	} while (0)

/* Runs these actions. The spawn must succeed, and the child must exit with 0. */
#define GOOD(...)                                                                                  \
	do {                                                                                       \
		RUN(__VA_ARGS__);                                                                  \
		EXPECT_LE(0, self->it.ret)                                                         \
		{                                                                                  \
			TH_LOG("error %ld, failed %d", self->it.ret, self->it.failed);             \
		}                                                                                  \
		EXPECT_EQ(0, self->it.code);                                                       \
	} while (0)

/* Runs these actions. The spawn must fail with this error at the action with this index. The index
 * may also be a SPAWN_FAILED_* constant. */
#define BAD(error, index, ...)                                                                     \
	do {                                                                                       \
		RUN(__VA_ARGS__);                                                                  \
		EXPECT_EQ(-(error), self->it.ret)                                                  \
		{                                                                                  \
			TH_LOG("failed %d", self->it.failed);                                      \
			if (self->it.ret >= 0)                                                     \
				TH_LOG("%s", self->it.out);                                        \
		}                                                                                  \
		EXPECT_EQ(index, self->it.failed);                                                 \
	} while (0)

#define HAS(...)                                                                                   \
	do {                                                                                       \
		EXPECT_TRUE(has_line(self->it.out, __VA_ARGS__))                                   \
		{                                                                                  \
			TH_LOG("%s", self->it.out);                                                \
		}                                                                                  \
	} while (0)

/* Checks that the kernel refuses an invalid action in both places: as the second action of
 * pidfd_spawn_run(), and in pidfd_config(). */
#define WRONG(error, ...)                                                                          \
	do {                                                                                       \
		const struct spawn_action wrong_ = {__VA_ARGS__};                                  \
		BAD(error, 1, {ACTION(UMASK)}, wrong_);                                            \
		EXPECT_EQ(-(error), sys_config_actions(self->fd, &wrong_, 1));                     \
	} while (0)

/* Drops root for the rest of the test. Other tests keep root, because the harness runs each test in
 * a process of its own. */
static inline void become_user(void)
{
	if (setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0)
		abort();
	/* The change of ids makes the process not dumpable, and root then owns its /proc files.
	 * A dumpable process owns them itself. */
	prctl(PR_SET_DUMPABLE, 1);
}

/* For tests of ROOTS_FIXTURE. */
#define BECOME_USER()                                                                              \
	do {                                                                                       \
		become_user();                                                                     \
		renew(&self->fd, STRINGS("child", "state"));                                       \
	} while (0)

/* Starts `child hold`, which waits for the end of its standard input, a pipe. Returns the write end
 * of the pipe. The child exits when the test closes it. */
static inline int hold(int fd, int *pidfd, const struct spawn_action *actions, unsigned int count)
{
	struct spawn_action all[8] = {};
	struct spawn_args args;
	int in[2], out[2];
	char byte;

	if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
		abort();
	all[0] = (struct spawn_action){ACTION(DUP2), .fd = in[0], .newfd = 0};
	all[1] = (struct spawn_action){ACTION(DUP2), .fd = out[1], .newfd = 1};
	if (count)
		memcpy(all + 2, actions, count * sizeof(*actions));
	args = make_args(all, count + 2);
	args.argv = ADDRESS(STRINGS("child", "hold"));
	*pidfd = sys_run(fd, &args, sizeof(args));
	close(in[0]);
	close(out[1]);
	/* The child prints "ready" when its program runs. */
	if (*pidfd >= 0 && read(out[0], &byte, 1) != 1)
		abort();
	close(out[0]);
	return in[1];
}

#endif
