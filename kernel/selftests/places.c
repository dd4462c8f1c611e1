// SPDX-License-Identifier: GPL-2.0-only
/* Tests the actions that set the child's root directory, terminal, priorities and namespaces. */
#include "spawn_test.h"
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>

#include "kselftest_harness.h"
#include "action_test.h"

ROOTS_FIXTURE(places)

TEST_F_TIMEOUT(places, roots, TIMEOUT)
{
	char old[PATH_MAX], now[PATH_MAX];

	mkdir("root", 0755);
	copy_file(child_path, "root/child", 0755);
	ASSERT_NE(NULL, getcwd(old, sizeof(old)));
	ASSERT_EQ(0, SET(SET_STRING, PATH, "/child", 0));
	BAD(ENOENT, SPAWN_FAILED_EXEC, setsid_first);
	/* `child` finds no /proc in the new root, so it prints a
	 * part of its state and exits with an error. */
	RUN({ACTION(CHROOT), .arg = ADDRESS("root")}, {ACTION(CHDIR), .arg = ADDRESS("/")});
	EXPECT_LE(0, self->it.ret);
	HAS("cwd=/");
	HAS("execfn=/child");
	EXPECT_EQ(0, access("root", F_OK));
	EXPECT_STREQ(old, getcwd(now, sizeof(now)));
	EXPECT_EQ(-1, access("/child", F_OK));
	/* After chroot alone, the working directory is still outside the new root. */
	ASSERT_EQ(0, SET(SET_STRING, PATH, "root/child", 0));
	RUN({ACTION(CHROOT), .arg = ADDRESS("root")});
	EXPECT_LE(0, self->it.ret);
	EXPECT_EQ(NULL, strstr(self->it.out, "cwd=/\n"));
	BAD(ENOENT, 0, {ACTION(CHROOT), .arg = ADDRESS("nonexistent")});
	BAD(ENOENT, 0, {ACTION(CHROOT), .arg = ADDRESS("")});
	BAD(ENOTDIR, 1, setsid_first, {ACTION(CHROOT), .arg = ADDRESS("root/child")});
	BAD(EPERM, 1, {ACTION(SETRESUID), .fd = NOBODY, .newfd = NOBODY, .arg = NOBODY},
	    {ACTION(CHROOT), .arg = ADDRESS("root")});
	BECOME_USER();
	BAD(EPERM, 0, {ACTION(CHROOT), .arg = ADDRESS("root")});
	EXPECT_NO_CHILD();
}

/* Returns the slave of a new pseudo terminal. The master stays open until the test ends. */
static int terminal(void)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), unlocked = 0, number;
	char name[64];

	if (master < 0 || ioctl(master, TIOCGPTN, &number) < 0 ||
	    ioctl(master, TIOCSPTLCK, &unlocked) < 0)
		return -errno;
	snprintf(name, sizeof(name), "/dev/pts/%d", number);
	return open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
}

TEST_F_TIMEOUT(places, terminals, TIMEOUT)
{
	struct spawn_action ctty = {ACTION(CTTY), .fd = terminal()};
	struct spawn_action foreground = {ACTION(TCSETPGRP), .fd = ctty.fd};
	int holder, input;

	if (ctty.fd < 0)
		SKIP(return, "no pseudo terminals: %s", strerror(-ctty.fd));
	BAD(EPERM, 0, ctty);
	BAD(ENOTTY, 1, setsid_first, foreground);
	GOOD(setsid_first, ctty);
	HAS("tty=1");
	HAS("foreground=%d", self->it.pid);
	HAS("fds=0 1 2 ");
	BAD(ENOTTY, 0, foreground);
	GOOD({ACTION(DUP2), .fd = terminal(), .newfd = 99}, setsid_first, {ACTION(CTTY), .fd = 99},
	     {ACTION(TCSETPGRP), .fd = 99});
	HAS("foreground=%d", self->it.pid);

	/* Another session has this terminal. Only root may take it away, and must set
	 * TIOCSCTTY's argument to 1. */
	ctty.fd = terminal();
	input = hold(self->fd, &holder, (struct spawn_action[]){setsid_first, ctty}, 2);
	ASSERT_LE(0, holder);
	BAD(EPERM, 1, setsid_first, ctty);
	ctty.flags = 1;
	BAD(EPERM, 2, setsid_first, IDS(NOBODY), ctty);
	GOOD(setsid_first, ctty);
	HAS("tty=1");
	close(input);
	EXPECT_EQ(0, reap_and_close(holder));
	EXPECT_NO_CHILD();
}

/* TCSETPGRP works in a background process group.
 * Unlike tcsetpgrp(), it does not stop the child by SIGTTOU. */
TEST_F_TIMEOUT(places, foreground, TIMEOUT)
{
	int fd = terminal();
	struct spawn_action foreground = {ACTION(TCSETPGRP), .fd = fd};
	pid_t leader;

	if (fd < 0)
		SKIP(return, "no pseudo terminals: %s", strerror(-fd));
	leader = fork();
	if (leader == 0) {
		ASSERT_LE(0, setsid());
		signal(SIGHUP, SIG_IGN);
		ASSERT_EQ(0, ioctl(fd, TIOCSCTTY, 0));
		GOOD({ACTION(SETPGID), .fd = 0});
		HAS("foreground=%d", getpid());
		GOOD({ACTION(SETPGID), .fd = 0}, foreground);
		HAS("pgid=%d", self->it.pid);
		HAS("foreground=%d", self->it.pid);
		/* The child above put its own process group into the foreground, and has ended.
		 * The next child puts the leader's group there. */
		GOOD(foreground);
		HAS("foreground=%d", getpid());
		EXPECT_NO_CHILD();
		_exit(0);
	}
	EXPECT_EQ(leader, waitpid(leader, NULL, 0));
	forget_sigchld();
}

TEST_F_TIMEOUT(places, priorities, TIMEOUT)
{
	GOOD({ACTION(NICE), .fd = 5});
	HAS("nice=5");
	GOOD({ACTION(NICE), .fd = INT_MAX});
	HAS("nice=19");
	GOOD({ACTION(NICE), .fd = INT_MIN});
	HAS("nice=-20");
	GOOD({ACTION(SCHEDULER), .fd = SCHED_FIFO, .newfd = 10});
	HAS("policy=1");
	HAS("priority=10");
	GOOD({ACTION(SCHEDULER), .fd = SCHED_RR, .newfd = 1},
	     {ACTION(SCHEDULER), .fd = -1, .newfd = 99});
	HAS("policy=2");
	HAS("priority=99");
	/* SCHEDULER does not change the nice value, unlike SCHED_ATTR. */
	GOOD({ACTION(NICE), .fd = 7}, {ACTION(SCHEDULER), .fd = SCHED_BATCH, .newfd = 0});
	HAS("policy=3");
	HAS("nice=7");
	GOOD({ACTION(SCHEDULER), .fd = -1, .newfd = 0});
	HAS("policy=0");
	static const int priorities[] = {0, 100, -1, INT_MIN, INT_MAX};
	for (size_t i = 0; i < COUNT(priorities); i++) {
		BAD(EINVAL, 1, setsid_first,
		    {ACTION(SCHEDULER), .fd = SCHED_FIFO, .newfd = priorities[i]});
	}
	BAD(EINVAL, 1, setsid_first, {ACTION(SCHEDULER), .fd = 77, .newfd = 0});
	BAD(EINVAL, 1, setsid_first, {ACTION(SCHEDULER), .fd = INT_MAX, .newfd = 0});
	BAD(EINVAL, 1, setsid_first, {ACTION(SCHEDULER), .fd = SCHED_OTHER, .newfd = 1});
	EXPECT_EQ(0, getpriority(PRIO_PROCESS, 0));
	EXPECT_EQ(SCHED_OTHER, sched_getscheduler(0));
	BECOME_USER();
	GOOD({ACTION(NICE), .fd = 0}, {ACTION(NICE), .fd = 3});
	HAS("nice=3");
	BAD(EACCES, 0, {ACTION(NICE), .fd = -1});
	BAD(EACCES, 1, {ACTION(NICE), .fd = 3}, {ACTION(NICE), .fd = 2});
	BAD(EPERM, 0, {ACTION(SCHEDULER), .fd = SCHED_FIFO, .newfd = 1});
	EXPECT_NO_CHILD();
}

TEST_F_TIMEOUT(places, oom_score_adj, TIMEOUT)
{
	static const int beyond[] = {1001, -1001, INT_MAX, INT_MIN, 1 << 16};
	char text[16];

	GOOD({ACTION(OOM_SCORE_ADJ), .fd = 500});
	HAS("oom=500");
	GOOD({ACTION(OOM_SCORE_ADJ), .fd = 1000}, {ACTION(OOM_SCORE_ADJ), .fd = -1000});
	HAS("oom=-1000");
	EXPECT_STREQ("0", file_text("/proc/self/oom_score_adj", text, sizeof(text)));
	for (size_t i = 0; i < COUNT(beyond); i++) {
		WRONG(EINVAL, ACTION(OOM_SCORE_ADJ), .fd = beyond[i]);
	}
	BECOME_USER();
	GOOD({ACTION(OOM_SCORE_ADJ), .fd = 300});
	HAS("oom=300");
	BAD(EACCES, 1, {ACTION(OOM_SCORE_ADJ), .fd = 300}, {ACTION(OOM_SCORE_ADJ), .fd = -1});
	EXPECT_NO_CHILD();
}

/* Reads the link /proc/PID/ns/KIND, which names a process's namespace. */
static const char *namespace_of(pid_t pid, const char *kind, char *text, size_t size)
{
	char path[64];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, kind);
	length = readlink(path, text, size - 1);
	text[length > 0 ? length : 0] = 0;
	return text;
}

static int open_namespace(pid_t pid, const char *kind)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, kind);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static pid_t pid_of(int pidfd)
{
	char path[64], text[4096], *at;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	read_all(fd, text, sizeof(text));
	close(fd);
	at = strstr(text, "\nPid:");
	return at ? atoi(at + 5) : -1;
}

TEST_F_TIMEOUT(places, joined_namespaces, TIMEOUT)
{
	static const struct {
		const char *kind, *line;
		unsigned int flag;
	} kinds[] = {
		{"uts", "utsns", CLONE_NEWUTS},	   {"net", "netns", CLONE_NEWNET},
		{"ipc", "ipcns", CLONE_NEWIPC},	   {"mnt", "mntns", CLONE_NEWNS},
		{"time", "timens", CLONE_NEWTIME},
	};
	unsigned int all = 0;
	char name[64], own[64];
	int holder, input, other = builder_of(NULL);
	pid_t pid;

	for (size_t i = 0; i < COUNT(kinds); i++)
		all |= kinds[i].flag;
	ASSERT_EQ(0, sys_config(other, PIDFD_CONFIG_SET_FLAGS, PIDFD_CONFIG_KEY_NAMESPACES, NULL,
				all));
	input = hold(other, &holder, NULL, 0);
	ASSERT_LE(0, holder);
	pid = pid_of(holder);
	for (size_t i = 0; i < COUNT(kinds); i++) {
		int fd = open_namespace(pid, kinds[i].kind);

		ASSERT_LE(0, fd);
		namespace_of(pid, kinds[i].kind, name, sizeof(name));
		namespace_of(getpid(), kinds[i].kind, own, sizeof(own));
		EXPECT_STRNE(own, name);
		GOOD({ACTION(SETNS), .fd = fd, .flags = kinds[i].flag});
		HAS("%s=%s", kinds[i].line, name);
		HAS("fds=0 1 2 ");
		GOOD({ACTION(SETNS), .fd = fd});
		HAS("%s=%s", kinds[i].line, name);
		BAD(EINVAL, 1, setsid_first, {ACTION(SETNS), .fd = fd, .flags = CLONE_NEWUSER});
		BAD(EPERM, 1, IDS(NOBODY), {ACTION(SETNS), .fd = fd});
		close(fd);
	}
	/* With a pidfd, SETNS can join several namespaces of that process at once. */
	GOOD({ACTION(SETNS), .fd = holder, .flags = all});
	for (size_t i = 0; i < COUNT(kinds); i++) {
		namespace_of(pid, kinds[i].kind, name, sizeof(name));
		HAS("%s=%s", kinds[i].line, name);
	}
	BAD(EINVAL, 0, {ACTION(SETNS), .fd = holder});
	/* The caller is still in its own namespaces. */
	namespace_of(getpid(), "uts", own, sizeof(own));
	GOOD(setsid_first);
	HAS("utsns=%s", own);
	close(input);
	EXPECT_EQ(0, reap_and_close(holder));
	close(other);
	EXPECT_NO_CHILD();
}

/* An unprivileged user starts a program in a new user namespace and maps uid 0 there.
 * The program has all capabilities in that namespace. */
TEST_F_TIMEOUT(places, user_namespaces, TIMEOUT)
{
	struct spawn_action deny = {ACTION(DENY_SETGROUPS)};
	struct spawn_action users = {ACTION(UID_MAP), .arg = ADDRESS("0 4242 1")};
	struct spawn_action groups = {ACTION(GID_MAP), .arg = ADDRESS("0 4242 1\n")};
	static char full[5000];
	char name[64];
	int holder, input, fd;

	memset(full, ' ', sizeof(full) - 1);
	WRONG(ENAMETOOLONG, ACTION(UID_MAP), .arg = ADDRESS(full));
	/* These actions fail in the initial user namespace: it already has its maps, and
	 * it has no parent. */
	BAD(EPERM, 0, users);
	BAD(EPERM, 0, groups);
	BAD(EPERM, 0, deny);
	BECOME_USER();
	BAD(EACCES, 0, deny);
	BAD(EPERM, 0, users);
	ASSERT_EQ(0, SET(SET_FLAGS, NAMESPACES, NULL, CLONE_NEWUSER));
	GOOD(deny, users, groups);
	HAS("uids=0 0 0");
	HAS("gids=0 0 0");
	/* The program gets capabilities if the map contains uid 0. */
	EXPECT_EQ(NULL, strstr(self->it.out, "CapEff:\t0000000000000000"));
	GOOD(deny, {ACTION(UID_MAP), .arg = ADDRESS("7 4242 1")});
	HAS("uids=7 7 7");
	HAS("gids=65534 65534 65534");
	HAS("CapEff:\t0000000000000000");
	/* The kernel refuses maps that the child could not write to /proc/self/uid_map
	 * or gid_map. */
	BAD(EPERM, 0, groups);
	BAD(EPERM, 2, deny, users, users);
	BAD(EPERM, 1, deny, {ACTION(UID_MAP), .arg = ADDRESS("0 0 1")});
	BAD(EPERM, 0, {ACTION(UID_MAP), .arg = ADDRESS("0 4242 2")});
	static const char *const nonsense[] = {"",
					       " ",
					       "0",
					       "0 4242",
					       "0 4242 0",
					       "0 4242 1 1",
					       "-1 4242 1",
					       "a b c",
					       "4294967295 4242 1",
					       "0 4294967295 1",
					       "0 4242 1\n0 4242 1",
					       "0 4242 1x"};
	for (size_t i = 0; i < COUNT(nonsense); i++) {
		BAD(EINVAL, 1, setsid_first, {ACTION(UID_MAP), .arg = ADDRESS(nonsense[i])});
	}
	full[4090] = 0;
	BAD(EINVAL, 0, {ACTION(UID_MAP), .arg = ADDRESS(full)});
	/* A second child joins the user namespace of a running child.
	 * The second child is dumpable. */
	input = hold(self->fd, &holder, (struct spawn_action[]){deny, users, groups}, 3);
	ASSERT_LE(0, holder);
	ASSERT_EQ(0, SET(RESET, NAMESPACES, NULL, 0));
	fd = open_namespace(pid_of(holder), "user");
	ASSERT_LE(0, fd);
	namespace_of(pid_of(holder), "user", name, sizeof(name));
	GOOD({ACTION(SETNS), .fd = fd, .flags = CLONE_NEWUSER});
	HAS("userns=%s", name);
	HAS("uids=0 0 0");
	HAS("dumpable=1");
	close(fd);
	close(input);
	EXPECT_EQ(0, reap_and_close(holder));
	EXPECT_NO_CHILD();
}

static long clock_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

static long value_of(const char *out, const char *name)
{
	const char *at = strstr(out, name);

	return at ? atol(at + strlen(name)) : -1;
}

TEST_F_TIMEOUT(places, time_namespaces, TIMEOUT)
{
	char own[64], name[64];
	int fd;

	namespace_of(getpid(), "time", own, sizeof(own));
	if (!*own)
		SKIP(return, "no time namespaces");
	GOOD(setsid_first);
	HAS("timens=%s", own);
	ASSERT_EQ(0, SET(SET_FLAGS, NAMESPACES, NULL, CLONE_NEWTIME));
	GOOD(setsid_first);
	EXPECT_FALSE(has_line(self->it.out, "timens=%s", own));
	EXPECT_GE(clock_now(), value_of(self->it.out, "\nclock="));
	ASSERT_EQ(0, SET(RESET, NAMESPACES, NULL, 0));

	/* The child enters the caller's time_for_children namespace.
	 * Both the vDSO and the system call add the namespace's offset. */
	ASSERT_EQ(0, unshare(CLONE_NEWTIME));
	ASSERT_EQ(0, put_text("/proc/self/timens_offsets", "monotonic 1000000 0"));
	namespace_of(getpid(), "time_for_children", name, sizeof(name));
	EXPECT_STRNE(own, name);
	GOOD(setsid_first);
	HAS("timens=%s", name);
	EXPECT_LE(1000000, value_of(self->it.out, "\nclock="));
	EXPECT_GE(1000000 + clock_now(), value_of(self->it.out, "\nclock="));
	EXPECT_LE(1000000, value_of(self->it.out, "\nkernel clock="));
	ASSERT_EQ(0, SET(SET_FLAGS, NAMESPACES, NULL, CLONE_NEWTIME | CLONE_NEWUTS));
	GOOD(setsid_first);
	EXPECT_FALSE(has_line(self->it.out, "timens=%s", name));
	ASSERT_EQ(0, SET(RESET, NAMESPACES, NULL, 0));
	fd = open("/proc/self/ns/time", O_RDONLY | O_CLOEXEC);
	GOOD({ACTION(SETNS), .fd = fd, .flags = CLONE_NEWTIME});
	HAS("timens=%s", own);
	EXPECT_GT(1000000, value_of(self->it.out, "\nclock="));
	close(fd);
	fd = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
	GOOD({ACTION(SETNS), .fd = fd, .flags = CLONE_NEWTIME});
	HAS("timens=%s", name);
	EXPECT_LE(1000000, value_of(self->it.out, "\nclock="));
	close(fd);
	EXPECT_GT(1000000, clock_now());
	EXPECT_NO_CHILD();
}

TEST_HARNESS_MAIN
