// SPDX-License-Identifier: GPL-2.0-only
/* Tests the actions that posix_spawn() needs, and some more: their effects, the arguments that the
 * kernel refuses, when it refuses them, and the order of actions. */
#include "spawn_test.h"
#include <sys/prctl.h>

#include "kselftest_harness.h"
#include "action_test.h"

/* The test declares this struct itself, because <linux/sched/types.h> conflicts with glibc's
 * <sched.h>. */
struct sched_attr {
	__u32 size, sched_policy;
	__u64 sched_flags;
	__s32 sched_nice;
	__u32 sched_priority;
	__u64 sched_runtime, sched_deadline, sched_period;
};

/* The types of action that the loops below test. good() returns a valid action of each type. */
static const unsigned int types[] = {
	SPAWN_ACTION_CLOSE,	   SPAWN_ACTION_DUP2,	     SPAWN_ACTION_FCHDIR,
	SPAWN_ACTION_OPEN,	   SPAWN_ACTION_CLOSE_RANGE, SPAWN_ACTION_SIGMASK,
	SPAWN_ACTION_SIGDEFAULT,   SPAWN_ACTION_CHDIR,	     SPAWN_ACTION_SETSID,
	SPAWN_ACTION_SETPGID,	   SPAWN_ACTION_UMASK,	     SPAWN_ACTION_RLIMIT,
	SPAWN_ACTION_SETGROUPS,	   SPAWN_ACTION_SETRESGID,   SPAWN_ACTION_SETRESUID,
	SPAWN_ACTION_NO_NEW_PRIVS, SPAWN_ACTION_PDEATHSIG,   SPAWN_ACTION_SCHED_ATTR,
	SPAWN_ACTION_AFFINITY,	   SPAWN_ACTION_SIGIGNORE,
};

static const __u64 some_signals = 1ULL << (SIGUSR1 - 1);
static struct spawn_sigset one_set = {.sigsetsize = 8};
static struct spawn_open to_null = {.how_size = 24, .how = {.flags = O_RDWR}};
static struct rlimit64 files = {64, 128};
static __u32 groups[] = {5, 6, 70000};
static __u64 cpu0 = 1;
static struct sched_attr batch = {.size = 48, .sched_policy = 3 /* SCHED_BATCH */};

/* Returns a valid action of this type. The action changes little in the child. */
static struct spawn_action good(unsigned int type)
{
	struct spawn_action it = {.type = type};

	one_set.sigset = ADDRESS(&some_signals);
	to_null.path = ADDRESS("/dev/null");
	switch (type) {
	case SPAWN_ACTION_CLOSE:
		it.fd = 0;
		break;
	case SPAWN_ACTION_DUP2:
		it.fd = 2;
		it.newfd = 20;
		break;
	case SPAWN_ACTION_FCHDIR:
		it.fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
		break;
	case SPAWN_ACTION_OPEN:
		it.fd = AT_FDCWD;
		it.newfd = 21;
		it.arg = ADDRESS(&to_null);
		break;
	case SPAWN_ACTION_CLOSE_RANGE:
		it.fd = 30;
		it.newfd = -1;
		break;
	case SPAWN_ACTION_SIGMASK:
	case SPAWN_ACTION_SIGDEFAULT:
	case SPAWN_ACTION_SIGIGNORE:
		it.arg = ADDRESS(&one_set);
		break;
	case SPAWN_ACTION_CHDIR:
		it.arg = ADDRESS("/");
		break;
	case SPAWN_ACTION_UMASK:
		it.fd = 077;
		break;
	case SPAWN_ACTION_RLIMIT:
		it.fd = RLIMIT_NOFILE;
		it.arg = ADDRESS(&files);
		break;
	case SPAWN_ACTION_SETGROUPS:
		it.fd = COUNT(groups);
		it.arg = ADDRESS(groups);
		break;
	case SPAWN_ACTION_SETRESGID:
	case SPAWN_ACTION_SETRESUID:
		it.fd = -1;
		it.newfd = -1;
		it.arg = -1U;
		break;
	case SPAWN_ACTION_PDEATHSIG:
		it.fd = SIGKILL;
		break;
	case SPAWN_ACTION_SCHED_ATTR:
		it.arg = ADDRESS(&batch);
		break;
	case SPAWN_ACTION_AFFINITY:
		it.fd = sizeof(cpu0);
		it.arg = ADDRESS(&cpu0);
		break;
	}
	return it;
}

FIXTURE(actions)
{
	int fd;
	int before;
	struct outcome it;
};

FIXTURE_SETUP(actions)
{
	block_sigchld();
	NEED_BUILDER(self->fd);
	close(self->fd);
	self->fd = builder_of(STRINGS("child", "state"));
	self->before = next_fd();
}

FIXTURE_TEARDOWN(actions)
{
	close(self->fd);
}

TEST_F_TIMEOUT(actions, each_alone, TIMEOUT)
{
	for (size_t i = 0; i < COUNT(types); i++) {
		struct spawn_action one = good(types[i]);

		ASSERT_EQ(0, sys_config(self->fd, PIDFD_CONFIG_RESET, PIDFD_CONFIG_KEY_ACTIONS,
					NULL, 0));
		RUN(one);
		EXPECT_LE(0, self->it.ret)
		{
			TH_LOG("type %u: %ld", types[i], self->it.ret);
		}
		EXPECT_EQ(0, sys_config_actions(self->fd, &one, 1))
		{
			TH_LOG("type %u", types[i]);
		}
	}
}

/* The kernel refuses an action if an unused member is not 0 or a flag is unknown. It does so in
 * pidfd_spawn_run() and in pidfd_config(). */
TEST_F_TIMEOUT(actions, unused_members, TIMEOUT)
{
	for (size_t i = 0; i < COUNT(types); i++) {
		struct spawn_action right = good(types[i]), wrong;
		bool uses_fd = right.fd != 0 || types[i] == SPAWN_ACTION_CLOSE ||
			       types[i] == SPAWN_ACTION_SETPGID;

		for (int member = 0; member < 4 + 32; member++) {
			wrong = right;
			if (member == 0)
				wrong.reserved = 1ULL << 63;
			else if (member == 1 && !uses_fd)
				wrong.fd = 1;
			else if (member == 2 && right.newfd == 0)
				wrong.newfd = -2;
			else if (member == 3 && right.arg == 0)
				wrong.arg = ADDRESS(&right);
			else if (member >= 4 &&
				 !(types[i] == SPAWN_ACTION_DUP2 &&
				   1U << (member - 4) == O_CLOEXEC) &&
				 !(types[i] == SPAWN_ACTION_CLOSE_RANGE &&
				   1U << (member - 4) == CLOSE_RANGE_CLOEXEC))
				wrong.flags = 1U << (member - 4);
			else
				continue;
			BAD(EINVAL, 1, right, wrong);
			EXPECT_EQ(-EINVAL, sys_config_actions(self->fd, &wrong, 1))
			{
				TH_LOG("type %u, member %d", types[i], member);
			}
		}
	}
	static const unsigned int unknown[] = {
		SPAWN_ACTION_SECCOMP + 1, 255, 256, 65536, INT_MAX, 1U << 31, UINT_MAX};
	for (size_t i = 0; i < COUNT(unknown); i++) {
		BAD(EINVAL, 1, good(SPAWN_ACTION_SETSID), {.type = unknown[i]});
	}
	EXPECT_NO_CHILD();
}

/* If the pointer argument of an action is an invalid address, the call fails with EFAULT. */
TEST_F_TIMEOUT(actions, pointers, TIMEOUT)
{
	static const __u64 nowhere[] = {BAD_ADDRESS, 0, 1, 1ULL << 63, ~0ULL, 0x800000000000ULL};

	for (size_t i = 0; i < COUNT(types); i++) {
		struct spawn_action wrong = good(types[i]);

		if (!wrong.arg || types[i] == SPAWN_ACTION_SETRESGID ||
		    types[i] == SPAWN_ACTION_SETRESUID)
			continue;
		for (size_t j = 0; j < COUNT(nowhere); j++) {
			wrong.arg = nowhere[j];
			BAD(EFAULT, 0, wrong);
		}
	}
	/* These structures are readable, but the pointers in them are invalid. */
	struct spawn_sigset bad_set = {BAD_ADDRESS, 8};
	struct spawn_open bad_open = {.path = BAD_ADDRESS, .how_size = sizeof(struct open_how)};
	BAD(EFAULT, 0, {ACTION(SIGMASK), .arg = ADDRESS(&bad_set)});
	BAD(EFAULT, 0, {ACTION(SIGDEFAULT), .arg = ADDRESS(&bad_set)});
	BAD(EFAULT, 0, {ACTION(SIGIGNORE), .arg = ADDRESS(&bad_set)});
	BAD(EFAULT, 0, {ACTION(OPEN), .fd = AT_FDCWD, .newfd = 5, .arg = ADDRESS(&bad_open)});
}

/* The kernel refuses negative descriptors and values with EINVAL when it copies the actions.
 * SETPGID fails in the child. */
TEST_F_TIMEOUT(actions, negative_numbers, TIMEOUT)
{
	for (size_t i = 0; i < COUNT(negative); i++) {
		int fd = negative[i];

		BAD(EINVAL, 0, {ACTION(CLOSE), .fd = fd});
		BAD(EINVAL, 0, {ACTION(DUP2), .fd = fd, .newfd = 5});
		BAD(EINVAL, 0, {ACTION(DUP2), .fd = 1, .newfd = fd});
		BAD(EINVAL, 0, {ACTION(DUP2), .fd = fd, .newfd = fd});
		BAD(EINVAL, 0, {ACTION(FCHDIR), .fd = fd});
		BAD(EINVAL, 0,
		    {ACTION(OPEN), .fd = AT_FDCWD, .newfd = fd,
		     .arg = good(SPAWN_ACTION_OPEN).arg});
		BAD(EINVAL, 0, {ACTION(CLOSE_RANGE), .fd = fd, .newfd = -1});
		BAD(EINVAL, 0, {ACTION(UMASK), .fd = fd});
		BAD(EINVAL, 0, {ACTION(RLIMIT), .fd = fd, .arg = ADDRESS(&files)});
		BAD(EINVAL, 0, {ACTION(SETGROUPS), .fd = fd, .arg = ADDRESS(groups)});
		BAD(EINVAL, 0, {ACTION(PDEATHSIG), .fd = fd});
		BAD(EINVAL, 0, {ACTION(AFFINITY), .fd = fd, .arg = ADDRESS(&cpu0)});
		if (fd != AT_FDCWD) {
			BAD(EINVAL, 0,
			    {ACTION(OPEN), .fd = fd, .newfd = 5,
			     .arg = good(SPAWN_ACTION_OPEN).arg});
		}
		if (fd != -1) {
			BAD(EINVAL, 0, {ACTION(CLOSE_RANGE), .fd = 3, .newfd = fd});
		}
		RUN({ACTION(SETPGID), .fd = fd});
		EXPECT_GT(0, self->it.ret);
	}
	EXPECT_NO_CHILD();
}

/* If a descriptor number is beyond the child's table, the child fails with EBADF. CLOSE_RANGE
 * accepts such numbers. The kernel refuses other values that are out of range. */
TEST_F_TIMEOUT(actions, huge_numbers, TIMEOUT)
{
	for (size_t i = 0; i < COUNT(huge); i++) {
		int fd = huge[i];

		BAD(EBADF, 1, good(SPAWN_ACTION_SETSID), {ACTION(CLOSE), .fd = fd});
		BAD(EBADF, 1, good(SPAWN_ACTION_SETSID), {ACTION(DUP2), .fd = fd, .newfd = 5});
		BAD(EBADF, 1, good(SPAWN_ACTION_SETSID), {ACTION(DUP2), .fd = fd, .newfd = fd});
		BAD(EBADF, 1, good(SPAWN_ACTION_SETSID), {ACTION(DUP2), .fd = 1, .newfd = fd});
		BAD(EBADF, 1, good(SPAWN_ACTION_SETSID), {ACTION(FCHDIR), .fd = fd});
		BAD(EBADF, 1, good(SPAWN_ACTION_SETSID),
		    {ACTION(OPEN), .fd = AT_FDCWD, .newfd = fd,
		     .arg = good(SPAWN_ACTION_OPEN).arg});
		GOOD({ACTION(CLOSE_RANGE), .fd = fd, .newfd = -1});
		GOOD({ACTION(CLOSE_RANGE), .fd = fd, .newfd = INT_MAX});
		RUN({ACTION(UMASK), .fd = fd});
		EXPECT_EQ(-EINVAL, self->it.ret);
		RUN({ACTION(RLIMIT), .fd = fd, .arg = ADDRESS(&files)});
		EXPECT_EQ(-EINVAL, self->it.ret);
		RUN({ACTION(SETGROUPS), .fd = fd, .arg = ADDRESS(groups)});
		EXPECT_EQ(-EINVAL, self->it.ret);
		RUN({ACTION(PDEATHSIG), .fd = fd});
		EXPECT_EQ(-EINVAL, self->it.ret);
		RUN({ACTION(SETPGID), .fd = fd});
		EXPECT_GT(0, self->it.ret);
	}
	RUN({ACTION(CLOSE_RANGE), .fd = 10, .newfd = 9});
	EXPECT_EQ(-EINVAL, self->it.ret);
	RUN({ACTION(UMASK), .fd = 01000});
	EXPECT_EQ(-EINVAL, self->it.ret);
	RUN({ACTION(RLIMIT), .fd = RLIM_NLIMITS, .arg = ADDRESS(&files)});
	EXPECT_EQ(-EINVAL, self->it.ret);
	RUN({ACTION(PDEATHSIG), .fd = 65});
	EXPECT_EQ(-EINVAL, self->it.ret);
	RUN({ACTION(SETGROUPS), .fd = 65537, .arg = ADDRESS(groups)});
	EXPECT_EQ(-EINVAL, self->it.ret);
	EXPECT_NO_CHILD();
}

/* spawn_args.failed is the index of the first action that fails, although all later actions would
 * fail too. */
TEST_F_TIMEOUT(actions, failing_index, TIMEOUT)
{
	struct spawn_action list[20] = {};

	for (size_t i = 0; i < COUNT(list); i++) {
		for (size_t j = 0; j < COUNT(list); j++) {
			list[j] = (struct spawn_action){ACTION(UMASK), .fd = 022};
			if (j >= i)
				list[j] = (struct spawn_action){ACTION(FCHDIR), .fd = 1000 + j};
		}
		start(&self->it, self->fd, NULL, list, COUNT(list), 0);
		EXPECT_EQ(-EBADF, self->it.ret);
		EXPECT_EQ(i, self->it.failed);
		EXPECT_EQ(0, self->it.pid);
		/* The kernel checks all actions before it creates a child. So the call reports the
		 * invalid last action, not the actions that would fail in the child. */
		list[COUNT(list) - 1].reserved = 1;
		start(&self->it, self->fd, NULL, list, COUNT(list), 0);
		EXPECT_EQ(-EINVAL, self->it.ret);
		EXPECT_EQ(COUNT(list) - 1, self->it.failed);
	}
	EXPECT_NO_CHILD();
	EXPECT_EQ(self->before, next_fd());
}

TEST_F_TIMEOUT(actions, directories, TIMEOUT)
{
	int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	own_directory();
	mkdir("below", 0755);
	GOOD({ACTION(CHDIR), .arg = ADDRESS("/proc")});
	HAS("cwd=/proc");
	GOOD({ACTION(CHDIR), .arg = ADDRESS("/proc")}, {ACTION(FCHDIR), .fd = root});
	HAS("cwd=/");
	GOOD({ACTION(FCHDIR), .fd = root}, {ACTION(CHDIR), .arg = ADDRESS("proc")});
	HAS("cwd=/proc");
	GOOD({ACTION(CHDIR), .arg = ADDRESS("below")});
	BAD(ENOENT, 1, {ACTION(CHDIR), .arg = ADDRESS("below")},
	    {ACTION(CHDIR), .arg = ADDRESS("below")});
	BAD(ENOENT, 0, {ACTION(CHDIR), .arg = ADDRESS("/nonexistent")});
	BAD(ENOTDIR, 0, {ACTION(CHDIR), .arg = ADDRESS("/dev/null")});
	BAD(ENOTDIR, 0, {ACTION(FCHDIR), .fd = null});
	RUN({ACTION(CHDIR), .arg = ADDRESS("")});
	EXPECT_EQ(-ENOENT, self->it.ret);
	/* The caller's working directory has not changed: it still contains `below`. */
	EXPECT_EQ(0, access("below", F_OK));
	close(root);
	close(null);
}

TEST_F_TIMEOUT(actions, cwd_and_relative_path, TIMEOUT)
{
	char directory[PATH_MAX];
	int fd;

	strcpy(directory, child_path);
	*strrchr(directory, '/') = 0;
	/* The number is at least 100, so that start() does not reuse it for its pipe after the
	 * test has closed it. */
	fd = fcntl(open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC), F_DUPFD_CLOEXEC, 100);
	ASSERT_LE(100, fd);
	ASSERT_EQ(0, sys_config(self->fd, PIDFD_CONFIG_SET_FD, PIDFD_CONFIG_KEY_CWD, NULL, fd));
	ASSERT_EQ(0, sys_config(self->fd, PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_PATH, "./child",
				0));
	GOOD(good(SPAWN_ACTION_SETSID));
	HAS("cwd=%s", directory);
	HAS("execfn=./child");
	/* The child resolves a relative path of the program after its actions, here in /proc. */
	BAD(ENOENT, SPAWN_FAILED_EXEC, {ACTION(CHDIR), .arg = ADDRESS("/proc")});
	/* The builder keeps the number of CWD, not the directory. A run uses the directory that
	 * the number refers to at that time. */
	int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	ASSERT_EQ(fd, dup3(proc, fd, O_CLOEXEC));
	BAD(ENOENT, SPAWN_FAILED_EXEC, good(SPAWN_ACTION_SETSID));
	close(proc);
	close(fd);
	BAD(EBADF, SPAWN_FAILED_SETUP, good(SPAWN_ACTION_SETSID));
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	ASSERT_EQ(0, sys_config(self->fd, PIDFD_CONFIG_SET_FD, PIDFD_CONFIG_KEY_CWD, NULL, fd));
	BAD(ENOTDIR, SPAWN_FAILED_CWD, good(SPAWN_ACTION_SETSID));
	close(fd);
}

TEST_F_TIMEOUT(actions, sessions_and_groups, TIMEOUT)
{
	GOOD(good(SPAWN_ACTION_SETSID));
	HAS("sid=%d", self->it.pid);
	HAS("pgid=%d", self->it.pid);
	GOOD({ACTION(SETPGID), .fd = 0});
	HAS("sid=%d", getsid(0));
	HAS("pgid=%d", self->it.pid);
	GOOD({ACTION(SETPGID), .fd = getpgid(0)});
	HAS("pgid=%d", getpgid(0));
	GOOD({ACTION(UMASK), .fd = 0});
	HAS("sid=%d", getsid(0));
	HAS("ppid=%d", getpid());
	BAD(EPERM, 1, good(SPAWN_ACTION_SETSID), {ACTION(SETPGID), .fd = 0});
	BAD(EPERM, 1, good(SPAWN_ACTION_SETSID), good(SPAWN_ACTION_SETSID));
	BAD(EPERM, 1, {ACTION(SETPGID), .fd = 0}, good(SPAWN_ACTION_SETSID));
	BAD(EPERM, 0, {ACTION(SETPGID), .fd = 1 << 22});
}

TEST_F_TIMEOUT(actions, umask_and_limits, TIMEOUT)
{
	static struct rlimit64 backwards = {10, 5}, infinite = {RLIM64_INFINITY, RLIM64_INFINITY},
			       zero = {0, 0};
	mode_t mask = umask(0);

	umask(mask);
	GOOD({ACTION(UMASK), .fd = 0123});
	HAS("umask=123");
	GOOD({ACTION(UMASK), .fd = 0777}, {ACTION(UMASK), .fd = 0});
	HAS("umask=0");
	EXPECT_EQ(mask, umask(mask));
	GOOD(good(SPAWN_ACTION_RLIMIT));
	HAS("rlimit%d=64 128", RLIMIT_NOFILE);
	GOOD({ACTION(RLIMIT), .fd = RLIMIT_CORE, .arg = ADDRESS(&zero)});
	HAS("rlimit%d=0 0", RLIMIT_CORE);
	GOOD({ACTION(RLIMIT), .fd = RLIMIT_MEMLOCK, .arg = ADDRESS(&infinite)});
	HAS("rlimit%d=18446744073709551615 18446744073709551615", RLIMIT_MEMLOCK);
	RUN({ACTION(RLIMIT), .fd = RLIMIT_NOFILE, .arg = ADDRESS(&backwards)});
	EXPECT_EQ(-EINVAL, self->it.ret);
	/* Not even root can raise RLIMIT_NOFILE above the sysctl fs.nr_open. */
	BAD(EPERM, 0, {ACTION(RLIMIT), .fd = RLIMIT_NOFILE, .arg = ADDRESS(&infinite)});
	/* A limit that one action sets applies to the actions after it. */
	BAD(EBADF, 1, good(SPAWN_ACTION_RLIMIT), {ACTION(DUP2), .fd = 1, .newfd = 64});
	GOOD(good(SPAWN_ACTION_RLIMIT), {ACTION(DUP2), .fd = 1, .newfd = 63});
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	EXPECT_NE(64, limit.rlim_cur);
}

TEST_F_TIMEOUT(actions, ids, TIMEOUT)
{
	if (getuid() != 0)
		SKIP(return, "not root");
	GOOD(good(SPAWN_ACTION_SETGROUPS));
	HAS("groups=5 6 70000 ");
	GOOD({ACTION(SETGROUPS)});
	HAS("groups=");
	GOOD({ACTION(SETRESGID), .fd = 1, .newfd = 2, .arg = 3},
	     {ACTION(SETRESUID), .fd = 4, .newfd = 5, .arg = 6});
	/* exec copies the effective ids to the saved ids. */
	HAS("uids=4 5 5");
	HAS("gids=1 2 2");
	EXPECT_EQ(0, getuid());
	EXPECT_EQ(1, prctl(PR_GET_DUMPABLE));
	GOOD({ACTION(SETRESUID), .fd = -1, .newfd = -1, .arg = -1U});
	HAS("uids=0 0 0");
	/* The child performs the actions in order. After it has given up root, it may not change
	 * ids or groups any more. */
	BAD(EPERM, 1, {ACTION(SETRESUID), .fd = 1000, .newfd = 1000, .arg = 1000},
	    {ACTION(SETRESGID), .fd = 1000, .newfd = 1000, .arg = 1000});
	BAD(EPERM, 1, {ACTION(SETRESUID), .fd = 1000, .newfd = 1000, .arg = 1000},
	    good(SPAWN_ACTION_SETGROUPS));
	BAD(EPERM, 1, {ACTION(SETRESUID), .fd = 1000, .newfd = 1000, .arg = 1000},
	    {ACTION(SETRESUID)});
	/* The kernel must refuse this arg. Its low 32 bits alone would be user id 0. */
	RUN({ACTION(SETRESUID), .fd = -1, .newfd = -1, .arg = 1ULL << 32});
	EXPECT_EQ(-EINVAL, self->it.ret);
	GOOD({ACTION(SETRESGID), .fd = -1, .newfd = -1, .arg = ~0ULL});
	/* A change from root to another user clears the capabilities, as with setresuid(). */
	GOOD({ACTION(SETRESUID), .fd = 1000, .newfd = 1000, .arg = 1000});
	HAS("CapEff:\t0000000000000000");
	HAS("CapPrm:\t0000000000000000");
}

TEST_F_TIMEOUT(actions, the_rest, TIMEOUT)
{
	static __u64 none, outside = 1ULL << 63;
	static struct sched_attr odd = {.size = 48, .sched_policy = 99},
				 nice_5 = {.size = 48, .sched_nice = 5};
	static struct sched_attr short_one = {.size = 4}, long_one = {.size = 4097};

	GOOD({ACTION(UMASK), .fd = 022});
	HAS("nnp=0");
	HAS("pdeathsig=0");
	HAS("policy=0");
	GOOD(good(SPAWN_ACTION_NO_NEW_PRIVS), good(SPAWN_ACTION_PDEATHSIG),
	     good(SPAWN_ACTION_SCHED_ATTR), good(SPAWN_ACTION_AFFINITY));
	HAS("nnp=1");
	HAS("NoNewPrivs:\t1");
	HAS("pdeathsig=%d", SIGKILL);
	HAS("policy=3");
	HAS("Cpus_allowed:\t1");
	EXPECT_EQ(0, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	GOOD({ACTION(SCHED_ATTR), .arg = ADDRESS(&nice_5)});
	HAS("nice=5");
	GOOD(good(SPAWN_ACTION_PDEATHSIG), {ACTION(PDEATHSIG), .fd = 0});
	HAS("pdeathsig=0");
	BAD(EINVAL, 0, {ACTION(SCHED_ATTR), .arg = ADDRESS(&odd)});
	RUN({ACTION(SCHED_ATTR), .arg = ADDRESS(&short_one)});
	EXPECT_GT(0, self->it.ret);
	RUN({ACTION(SCHED_ATTR), .arg = ADDRESS(&long_one)});
	EXPECT_GT(0, self->it.ret);
	BAD(EINVAL, 0, {ACTION(AFFINITY), .fd = 8, .arg = ADDRESS(&none)});
	BAD(EINVAL, 0, {ACTION(AFFINITY), .fd = 8, .arg = ADDRESS(&outside)});
}

TEST_F_TIMEOUT(actions, signals, TIMEOUT)
{
	static __u64 all = ~0ULL, none;
	struct spawn_sigset to_all = {ADDRESS(&all), 8}, to_none = {ADDRESS(&none), 8};
	static const __u64 bad_sizes[] = {0, 1, 4, 7, 9, 16, 128, 1ULL << 32, ~0ULL};
	sigset_t set;

	signal(SIGUSR2, SIG_IGN);
	signal(SIGUSR1, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_SETMASK, &set, NULL);
	GOOD({ACTION(UMASK), .fd = 022});
	HAS("mask=%d ", SIGHUP);
	HAS("ignored=%d %d ", SIGUSR1, SIGUSR2);
	GOOD(good(SPAWN_ACTION_SIGMASK), good(SPAWN_ACTION_SIGDEFAULT));
	HAS("mask=%d ", SIGUSR1);
	HAS("ignored=%d ", SIGUSR2);
	GOOD({ACTION(SIGMASK), .arg = ADDRESS(&to_none)},
	     {ACTION(SIGDEFAULT), .arg = ADDRESS(&to_all)});
	HAS("mask=");
	HAS("ignored=");
	GOOD({ACTION(SIGDEFAULT), .arg = ADDRESS(&to_all)}, good(SPAWN_ACTION_SIGIGNORE));
	HAS("ignored=%d ", SIGUSR1);
	GOOD(good(SPAWN_ACTION_SIGIGNORE), {ACTION(SIGDEFAULT), .arg = ADDRESS(&to_all)});
	HAS("ignored=");
	/* SIGKILL and SIGSTOP cannot be blocked. */
	GOOD({ACTION(SIGMASK), .arg = ADDRESS(&to_all)});
	EXPECT_EQ(NULL, strstr(self->it.out, "mask=1 2 3 4 5 6 7 8 9 "));
	EXPECT_NE(NULL, strstr(self->it.out, "mask=1 2 3 4 5 6 7 8 10 "));
	for (size_t i = 0; i < COUNT(bad_sizes); i++) {
		struct spawn_sigset bad = {ADDRESS(&none), bad_sizes[i]};

		BAD(EINVAL, 0, {ACTION(SIGMASK), .arg = ADDRESS(&bad)});
		BAD(EINVAL, 0, {ACTION(SIGDEFAULT), .arg = ADDRESS(&bad)});
		BAD(EINVAL, 0, {ACTION(SIGIGNORE), .arg = ADDRESS(&bad)});
	}
	/* The caller's own signal mask and dispositions have not changed. */
	sigset_t now;
	sigprocmask(SIG_BLOCK, NULL, &now);
	EXPECT_EQ(1, sigismember(&now, SIGHUP));
	EXPECT_EQ(0, sigismember(&now, SIGUSR1));
	EXPECT_TRUE(signal(SIGUSR1, SIG_DFL) == SIG_IGN);
}

static void handler(int number)
{
	(void)number;
}

/* If the caller has a handler for a signal, the program starts with the default action. The program
 * does not ignore the signal, and the caller keeps its handler. */
TEST_F_TIMEOUT(actions, handlers, TIMEOUT)
{
	signal(SIGUSR1, handler);
	signal(SIGTERM, handler);
	GOOD({ACTION(UMASK), .fd = 022});
	HAS("ignored=");
	EXPECT_TRUE(signal(SIGUSR1, SIG_DFL) == handler);
}

TEST_F_TIMEOUT(actions, opens, TIMEOUT)
{
	struct spawn_open it = OPEN_OF("new", .flags = O_WRONLY | O_CREAT | O_EXCL, .mode = 0640);
	int here = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	struct stat status;
	char text[64];

	own_directory();
	RUN({ACTION(OPEN), .fd = AT_FDCWD, .newfd = 1, .arg = ADDRESS(&it)});
	ASSERT_LE(0, self->it.ret);
	EXPECT_EQ(0, self->it.code);
	ASSERT_EQ(0, stat("new", &status));
	EXPECT_EQ(0640, status.st_mode & 07777);
	EXPECT_LT(100, status.st_size);
	BAD(EEXIST, 0, {ACTION(OPEN), .fd = AT_FDCWD, .newfd = 1, .arg = ADDRESS(&it)});
	/* UMASK applies to files that later actions create. */
	unlink("new");
	GOOD({ACTION(UMASK), .fd = 0777},
	     {ACTION(OPEN), .fd = AT_FDCWD, .newfd = 7, .arg = ADDRESS(&it)});
	ASSERT_EQ(0, stat("new", &status));
	EXPECT_EQ(0, status.st_mode & 0777);
	/* A path can be relative to a directory descriptor, here of /proc. */
	it = (struct spawn_open)OPEN_OF("self/comm", .flags = O_RDONLY);
	start(&self->it, self->fd, STRINGS("child", "read", "9"),
	      &(struct spawn_action){ACTION(OPEN), .fd = here, .newfd = 9, .arg = ADDRESS(&it)}, 1,
	      0);
	EXPECT_LE(0, self->it.ret);
	it.how.resolve = 0x08 /* RESOLVE_BENEATH */;
	it.path = ADDRESS("../dev/null");
	BAD(EXDEV, 0, {ACTION(OPEN), .fd = here, .newfd = 9, .arg = ADDRESS(&it)});
	it.how.resolve = 1ULL << 40;
	RUN({ACTION(OPEN), .fd = here, .newfd = 9, .arg = ADDRESS(&it)});
	EXPECT_EQ(-EINVAL, self->it.ret);
	it.how = (struct open_how){.flags = 1ULL << 50};
	RUN({ACTION(OPEN), .fd = here, .newfd = 9, .arg = ADDRESS(&it)});
	EXPECT_EQ(-EINVAL, self->it.ret);
	it.how = (struct open_how){.mode = 0600};
	RUN({ACTION(OPEN), .fd = here, .newfd = 9, .arg = ADDRESS(&it)});
	EXPECT_EQ(-EINVAL, self->it.ret);
	it.how = (struct open_how){};
	it.path = ADDRESS("");
	RUN({ACTION(OPEN), .fd = here, .newfd = 9, .arg = ADDRESS(&it)});
	EXPECT_EQ(-ENOENT, self->it.ret);
	/* With O_CLOEXEC, exec closes the descriptor. Without it, the program has the
	 * descriptor. */
	it = (struct spawn_open)OPEN_OF("/dev/null", .flags = O_RDONLY | O_CLOEXEC);
	GOOD({ACTION(OPEN), .fd = AT_FDCWD, .newfd = 9, .arg = ADDRESS(&it)});
	HAS("fds=0 1 2 ");
	it.how.flags = O_RDONLY;
	GOOD({ACTION(OPEN), .fd = AT_FDCWD, .newfd = 9, .arg = ADDRESS(&it)});
	HAS("fds=0 1 2 9 ");
	GOOD({ACTION(OPEN), .fd = AT_FDCWD, .newfd = 0, .arg = ADDRESS(&it)});
	HAS("fds=0 1 2 ");
	snprintf(text, sizeof(text), "/proc/self/fd/%d", here);
	EXPECT_EQ(0, access(text, F_OK));
	close(here);
}

TEST_HARNESS_MAIN
