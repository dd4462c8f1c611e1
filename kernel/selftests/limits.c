// SPDX-License-Identifier: GPL-2.0-only
/* Tests limits, cgroups and namespaces. A spawn obeys them like fork() and execve().
 * After a failed spawn, nothing remains charged. */
#include "spawn_test.h"
#include "blocked.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include "kselftest_harness.h"

#define ACTION(name) .type = SPAWN_ACTION_##name
#define SET(cmd, key, value, aux)                                                                  \
	sys_config(self->fd, PIDFD_CONFIG_##cmd, PIDFD_CONFIG_KEY_##key, value, aux)
#define CGROUPS "/sys/fs/cgroup"

FIXTURE(limits)
{
	int fd;
	struct outcome it;
};

FIXTURE_SETUP(limits)
{
	block_sigchld();
	if (getuid() != 0)
		SKIP(return, "not root");
	NEED_BUILDER(self->fd);
	close(self->fd);
	self->fd = builder_of(STRINGS("child", "state"));
}

FIXTURE_TEARDOWN(limits)
{
	close(self->fd);
}

static void limit_processes(unsigned long most)
{
	struct rlimit limit = {most, most};

	setrlimit(RLIMIT_NPROC, &limit);
}

/* Starts a child that waits for the end of its standard input.
 * *hold is the other end of that pipe. Returns a pidfd or a negative errno. */
static long start_holding(int fd, int *hold, const struct spawn_action *more)
{
	struct spawn_action actions[2] = {};
	struct spawn_args args;
	int in[2], out[2];
	char byte;
	long pidfd;

	if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
		return -errno;
	struct spawn_action all[] = {
		{ACTION(DUP2), .fd = in[0], .newfd = 0},
		{ACTION(DUP2), .fd = out[1], .newfd = 1},
		more ? *more : actions[0],
	};
	args = make_args(all, more ? 3 : 2);
	args.argv = ADDRESS(STRINGS("child", "hold"));
	pidfd = sys_run(fd, &args, sizeof(args));
	close(in[0]);
	close(out[1]);
	*hold = in[1];
	if (pidfd < 0)
		close(in[1]);
	else if (read(out[0], &byte, 1) != 1)
		pidfd = -EPIPE;
	close(out[0]);
	return pidfd;
}

TEST_F_TIMEOUT(limits, processes_of_a_user, TIMEOUT)
{
	ASSERT_EQ(0, setresuid(4242, 4242, 4242));
	renew(&self->fd, STRINGS("child", "state"));
	limit_processes(1);
	for (int i = 0; i < 10; i++) {
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		EXPECT_EQ(-EAGAIN, self->it.ret);
		EXPECT_EQ(SPAWN_FAILED_SETUP, self->it.failed);
	}
	EXPECT_NO_CHILD();
}

/* A failed spawn must not remain charged to the user.
 * With RLIMIT_NPROC at 2, later spawns would fail with EAGAIN. */
TEST_F_TIMEOUT(limits, failures_are_not_counted, TIMEOUT)
{
	static const struct spawn_action bad = {ACTION(FCHDIR), .fd = 500};

	ASSERT_EQ(0, setresuid(4243, 4243, 4243));
	renew(&self->fd, STRINGS("child", "state"));
	limit_processes(2);
	for (int i = 0; i < 30; i++) {
		start(&self->it, self->fd, NULL, &bad, 1, 0);
		ASSERT_EQ(-EBADF, self->it.ret);
		EXPECT_EQ(0, SET(SET_STRING, PATH, "/nonexistent", 0));
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		ASSERT_EQ(-ENOENT, self->it.ret);
		EXPECT_EQ(0, SET(SET_STRING, PATH, child_path, 0));
	}
	EXPECT_NO_CHILD();
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(0, self->it.code);
}

/* If an action changes to a user who has too many processes, exec fails with EAGAIN. */
TEST_F_TIMEOUT(limits, processes_of_the_new_user, TIMEOUT)
{
	struct spawn_action become = {ACTION(SETRESUID), .fd = 4244, .newfd = 4244, .arg = 4244};
	int hold;
	long pidfd = start_holding(self->fd, &hold, &become);

	ASSERT_LE(0, pidfd);
	limit_processes(0);
	start(&self->it, self->fd, NULL, &become, 1, 0);
	EXPECT_EQ(-EAGAIN, self->it.ret);
	EXPECT_EQ(SPAWN_FAILED_EXEC, self->it.failed);
	limit_processes(10);
	start(&self->it, self->fd, NULL, &become, 1, 0);
	EXPECT_EQ(0, self->it.code);
	EXPECT_TRUE(has_line(self->it.out, "uids=4244 4244 4244"));
	close(hold);
	EXPECT_EQ(0, reap_and_close(pidfd));
}

TEST_F_TIMEOUT(limits, descriptors, TIMEOUT)
{
	struct rlimit old, few;
	int free_one = next_fd();

	getrlimit(RLIMIT_NOFILE, &old);
	few = old;
	few.rlim_cur = free_one;
	setrlimit(RLIMIT_NOFILE, &few);
	struct spawn_args args = make_args(NULL, 0);
	for (int i = 0; i < 20; i++) {
		EXPECT_EQ(-EMFILE, sys_run(self->fd, &args, sizeof(args)));
		EXPECT_EQ(SPAWN_FAILED_SETUP, args.failed);
	}
	EXPECT_NO_CHILD();
	setrlimit(RLIMIT_NOFILE, &old);
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(0, self->it.code);
}

/* Spawns as an unprivileged user while a sysctl has this value, and stores the result in shared
 * memory. Returns 0 if the helper process succeeded. */
static int run_with_sysctl(int fd, const char *path, const char *value, struct outcome *shared)
{
	char old[64];
	int status = -1;
	int begin[2], ready[2];
	pid_t pid;
	char byte;

	if (pipe2(begin, O_CLOEXEC) < 0 || pipe2(ready, O_CLOEXEC) < 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		struct spawn_args args = make_args(NULL, 0);

		args.argv = ADDRESS(STRINGS("child", "exit", "0"));
		close(begin[1]);
		if (setresuid(4249, 4249, 4249) < 0)
			_exit(1);
		/* The builder must be open before the sysctl changes. */
		renew(&fd, STRINGS("child", "exit", "0"));
		if (write(ready[1], "", 1) != 1 || read(begin[0], &byte, 1) != 0)
			_exit(1);
		shared->ret = sys_run(fd, &args, sizeof(args));
		shared->failed = args.failed;
		if (shared->ret >= 0)
			reap(shared->ret);
		_exit(waitpid(-1, NULL, WNOHANG | __WALL) != -1 || errno != ECHILD);
	}
	close(begin[0]);
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		return -EPIPE;
	close(ready[0]);
	file_text(path, old, sizeof(old));
	status = put_text(path, value);
	close(begin[1]);
	waitpid(pid, &status, 0);
	put_text(path, old);
	return status;
}

/* A spawn fails if the system has too many open files (for the pidfd) or too many threads. */
TEST_F_TIMEOUT(limits, system_is_full, TIMEOUT)
{
	struct outcome *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
				      MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	ASSERT_NE(MAP_FAILED, shared);
	EXPECT_EQ(0, run_with_sysctl(self->fd, "/proc/sys/fs/file-max", "0", shared));
	EXPECT_EQ(-ENFILE, shared->ret);
	EXPECT_EQ(SPAWN_FAILED_SETUP, shared->failed);
	EXPECT_EQ(0, run_with_sysctl(self->fd, "/proc/sys/kernel/threads-max", "20", shared));
	EXPECT_EQ(-EAGAIN, shared->ret);
	EXPECT_EQ(SPAWN_FAILED_SETUP, shared->failed);
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(0, self->it.code);
}

#define USER_PAGES "/proc/sys/fs/spawn-user-pages-max"

/* Opens builders that keep 100 KiB each until the kernel refuses one. Returns their number, and
 * closes them. */
static int count_builders(long *error)
{
	static char text[100 << 10];
	int fds[64], count = 0;

	memset(text, 'a', sizeof(text) - 1);
	do {
		fds[count] = builder();
		*error = sys_config(fds[count], PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ENVP,
				    STRINGS(text), 0);
		count++;
	} while (*error == 0 && count < (int)COUNT(fds));
	for (int i = 0; i < count; i++)
		close(fds[i]);
	return count - (*error != 0);
}

/* The memory that the builders of a user keep is limited, except for CAP_SYS_RESOURCE. */
TEST_F_TIMEOUT(limits, memory_of_a_user, TIMEOUT)
{
	static __u32 groups[10000];
	const struct spawn_action large = {ACTION(SETGROUPS), .count = COUNT(groups),
					   .arg = ADDRESS(groups)};
	/* The kernel needs more than a page for the shortest filter. */
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	const struct spawn_action filter = {ACTION(SECCOMP), .count = 1, .arg = ADDRESS(&allow)};
	struct spawn_action many[20], filters[SPAWN_MAX_ACTIONS];
	char old[64];
	long error;

	file_text(USER_PAGES, old, sizeof(old));
	ASSERT_EQ(0, put_text(USER_PAGES, "150"));
	EXPECT_EQ(64, count_builders(&error));
	EXPECT_EQ(0, error);
	for (size_t i = 0; i < COUNT(many); i++)
		many[i] = large;
	for (size_t i = 0; i < COUNT(filters); i++)
		filters[i] = filter;
	pid_t pid = fork();
	if (pid == 0) {
		int wrong = setresuid(4251, 4251, 4251) != 0;

		renew(&self->fd, STRINGS("child", "exit", "0"));
		/* Every builder is released, and so is its charge. */
		for (int i = 0; i < 3; i++) {
			wrong |= (count_builders(&error) != 5) << 1;
			wrong |= (error != -EDQUOT) << 2;
		}
		/* The same for actions with all their data, also those of one run. */
		wrong |= (sys_config_actions(self->fd, many, 10) != 0) << 3;
		wrong |= (sys_config_actions(self->fd, many, 20) != -EDQUOT) << 4;
		wrong |= (sys_config_actions(self->fd, NULL, 0) != 0) << 5;
		start(&self->it, self->fd, NULL, many, 20, 0);
		wrong |= (self->it.ret != -EDQUOT || self->it.failed < 0) << 6;
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		wrong |= (self->it.code != 0) << 7;
		if (sys_config_actions(self->fd, filters, COUNT(filters)) != -EDQUOT ||
		    sys_config_actions(self->fd, filters, 50) != 0)
			wrong |= 1 << 3;
		_exit(wrong);
	}
	int status = -1;
	waitpid(pid, &status, 0);
	EXPECT_EQ(0, status) TH_LOG("wrong %x", status >> 8);
	EXPECT_EQ(0, put_text(USER_PAGES, old));
}

/* Small objects count like large ones. */
TEST_F_TIMEOUT(limits, small_objects_of_a_user, TIMEOUT)
{
	static char text[900];
	char old[64];
	int status = -1;

	memset(text, 'a', sizeof(text) - 1);
	file_text(USER_PAGES, old, sizeof(old));
	ASSERT_EQ(0, put_text(USER_PAGES, "1"));
	pid_t pid = fork();
	if (pid == 0) {
		long error = setresuid(4252, 4252, 4252);
		int count;

		for (count = 0; error == 0 && count < 20; count++)
			error = sys_config(builder(), PIDFD_CONFIG_SET_STRING,
					   PIDFD_CONFIG_KEY_PATH, text, 0);
		_exit(error == -EDQUOT ? count : 99);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(5 << 8, status);
	EXPECT_EQ(0, put_text(USER_PAGES, old));
}

FIXTURE(group)
{
	int fd;
	int directory;
	char path[64];
	struct outcome it;
};

FIXTURE_SETUP(group)
{
	block_sigchld();
	if (getuid() != 0)
		SKIP(return, "not root");
	NEED_BUILDER(self->fd);
	close(self->fd);
	self->fd = builder_of(STRINGS("child", "state"));
	put_text(CGROUPS "/cgroup.subtree_control", "+pids");
	snprintf(self->path, sizeof(self->path), CGROUPS "/spawn-%d", getpid());
	if (mkdir(self->path, 0755) < 0)
		SKIP(return, "no cgroup v2 here: %s", strerror(errno));
	self->directory = open(self->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ASSERT_LE(0, self->directory);
	ASSERT_EQ(0, SET(SET_FD, CGROUP, NULL, self->directory));
}

FIXTURE_TEARDOWN(group)
{
	if (self->directory > 0) {
		close(self->directory);
		EXPECT_EQ(0, rmdir(self->path));
	}
	close(self->fd);
}

static char *of_group(const char *path, const char *name, char *text)
{
	char file[128];

	snprintf(file, sizeof(file), "%s/%s", path, name);
	return file_text(file, text, 64);
}

TEST_F_TIMEOUT(group, child_is_in_it, TIMEOUT)
{
	char text[64];

	for (int i = 0; i < 5; i++) {
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		EXPECT_EQ(0, self->it.code);
		EXPECT_TRUE(has_line(self->it.out, "cgroup=0::%s", self->path + strlen(CGROUPS)))
		{
			TH_LOG("%s", self->it.out);
		}
	}
	EXPECT_STREQ("populated 0", of_group(self->path, "cgroup.events", text));
}

TEST_F_TIMEOUT(group, its_limit, TIMEOUT)
{
	char file[128], text[64];
	int hold;
	long pidfd;

	snprintf(file, sizeof(file), "%s/pids.max", self->path);
	if (put_text(file, "1") != 0)
		SKIP(return, "no pids controller");
	pidfd = start_holding(self->fd, &hold, NULL);
	ASSERT_LE(0, pidfd);
	for (int i = 0; i < 10; i++) {
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		EXPECT_EQ(-EAGAIN, self->it.ret);
		EXPECT_EQ(SPAWN_FAILED_SETUP, self->it.failed);
	}
	EXPECT_STREQ("1", of_group(self->path, "pids.current", text));
	close(hold);
	EXPECT_EQ(0, reap_and_close(pidfd));
	EXPECT_STREQ("0", of_group(self->path, "pids.current", text));
	/* When a failed call returns, its child is no longer charged to the cgroup. */
	ASSERT_EQ(0, SET(SET_STRING, PATH, "/nonexistent", 0));
	for (int i = 0; i < 20; i++) {
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		ASSERT_EQ(-ENOENT, self->it.ret);
		EXPECT_STREQ("0", of_group(self->path, "pids.current", text));
	}
	EXPECT_NO_CHILD();
}

/* A child that starts in a frozen cgroup still executes its program, so the call returns.
 * The child then freezes, and SIGKILL can end it. */
TEST_F_TIMEOUT(group, frozen, TIMEOUT)
{
	char file[128];
	long pidfd;

	snprintf(file, sizeof(file), "%s/cgroup.freeze", self->path);
	ASSERT_EQ(0, put_text(file, "1"));
	for (int i = 0; i < 5; i++) {
		struct spawn_args args = make_args(NULL, 0);

		args.argv = ADDRESS(STRINGS("child", "exit", "0"));
		pidfd = sys_run(self->fd, &args, sizeof(args));
		ASSERT_LE(0, pidfd);
		EXPECT_EQ(0, syscall(__NR_pidfd_send_signal, (int)pidfd, SIGKILL, NULL, 0));
		EXPECT_EQ(128 + SIGKILL, reap_and_close(pidfd));
		args.path = ADDRESS("/nonexistent");
		EXPECT_EQ(-ENOENT, sys_run(self->fd, &args, sizeof(args)));
	}
	EXPECT_EQ(0, put_text(file, "0"));
	EXPECT_NO_CHILD();
}

/* Freezes or thaws a cgroup, and waits until all its processes are frozen or until it is thawed. */
static void freeze(const char *group, bool frozen)
{
	char path[128], events[64];
	int fd;

	snprintf(path, sizeof(path), "%s/cgroup.freeze", group);
	if (put_text(path, frozen ? "1" : "0") != 0)
		abort();
	snprintf(path, sizeof(path), "%s/cgroup.events", group);
	do {
		sched_yield();
		memset(events, 0, sizeof(events));
		fd = open(path, O_RDONLY | O_CLOEXEC);
		read_all(fd, events, sizeof(events));
		close(fd);
	} while (!strstr(events, frozen ? "frozen 1" : "frozen 0"));
}

/* A cgroup can be frozen while an action blocks. When it is thawed, the action goes on. A child
 * that is killed while it is frozen no longer counts as frozen, so the cgroup can be frozen again.
 */
TEST_F_TIMEOUT(group, frozen_before_exec, TIMEOUT)
{
	pid_t pid, child;
	int status;

	own_directory();
	for (int i = 0; i < 6; i++) {
		pid = start_blocked(self->fd, &child);
		ASSERT_LT(0, child);
		until_asleep(child);
		freeze(self->path, true);
		if (i % 2) {
			ASSERT_EQ(0, kill(child, SIGKILL));
			ASSERT_EQ(pid, waitpid(pid, &status, 0));
			EXPECT_EQ(EINTR << 8, status);
			freeze(self->path, false);
		} else {
			freeze(self->path, false);
			EXPECT_EQ(0, go_on(pid));
		}
	}
	forget_sigchld();
}

TEST_F_TIMEOUT(group, what_is_none, TIMEOUT)
{
	static const int closed[] = {1 << 19, INT_MAX};
	char below[128], file[160];
	int root = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
	    null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	for (size_t i = 0; i < COUNT(closed); i++) {
		ASSERT_EQ(0, SET(SET_FD, CGROUP, NULL, closed[i]));
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		EXPECT_EQ(-EBADF, self->it.ret);
		EXPECT_EQ(SPAWN_FAILED_SETUP, self->it.failed);
	}
	ASSERT_EQ(0, SET(SET_FD, CGROUP, NULL, root));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(-EBADF, self->it.ret);
	ASSERT_EQ(0, SET(SET_FD, CGROUP, NULL, null));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(-EBADF, self->it.ret);
	/* The call fails for a cgroup that has been removed. */
	snprintf(below, sizeof(below), "%s/below", self->path);
	ASSERT_EQ(0, mkdir(below, 0755));
	int gone = open(below, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	ASSERT_EQ(0, SET(SET_FD, CGROUP, NULL, gone));
	ASSERT_EQ(0, rmdir(below));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_TRUE(self->it.ret == -ENODEV || self->it.ret == -ENOENT);
	/* A cgroup below a threaded one is invalid, so it cannot have processes. */
	char inner[192];
	ASSERT_EQ(0, mkdir(below, 0755));
	snprintf(file, sizeof(file), "%s/cgroup.type", below);
	snprintf(inner, sizeof(inner), "%s/inner", below);
	if (put_text(file, "threaded") == 0 && mkdir(inner, 0755) == 0) {
		int invalid = open(inner, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

		ASSERT_EQ(0, SET(SET_FD, CGROUP, NULL, invalid));
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		EXPECT_EQ(-EOPNOTSUPP, self->it.ret);
		close(invalid);
		rmdir(inner);
	}
	rmdir(below);
	/* A user who may not write to the cgroup cannot spawn into it. */
	ASSERT_EQ(0, SET(SET_FD, CGROUP, NULL, self->directory));
	EXPECT_NO_CHILD();
	pid_t pid = fork();
	if (pid == 0) {
		if (setresuid(4245, 4245, 4245) != 0)
			_exit(1);
		renew(&self->fd, STRINGS("child", "state"));
		SET(SET_FD, CGROUP, NULL, self->directory);
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		_exit(self->it.ret == -EACCES && self->it.failed == SPAWN_FAILED_SETUP ? 0 : 2);
	}
	int status = -1;
	waitpid(pid, &status, 0);
	EXPECT_EQ(0, status);
	close(root);
	close(null);
	close(gone);
}

FIXTURE(namespaces)
{
	int fd;
	struct outcome it;
};

FIXTURE_SETUP(namespaces)
{
	block_sigchld();
	NEED_BUILDER(self->fd);
	close(self->fd);
	self->fd = builder_of(STRINGS("child", "state"));
}

FIXTURE_TEARDOWN(namespaces)
{
	close(self->fd);
}

FIXTURE_VARIANT(namespaces)
{
	const char *name;
	unsigned int flags;
	bool unprivileged;
};

FIXTURE_VARIANT_ADD(namespaces, uts){.name = "uts", .flags = CLONE_NEWUTS};
FIXTURE_VARIANT_ADD(namespaces, ipc){.name = "ipc", .flags = CLONE_NEWIPC};
FIXTURE_VARIANT_ADD(namespaces, mnt){.name = "mnt", .flags = CLONE_NEWNS};
FIXTURE_VARIANT_ADD(namespaces, net){.name = "net", .flags = CLONE_NEWNET};
FIXTURE_VARIANT_ADD(namespaces, pid){.name = "pid", .flags = CLONE_NEWPID};
FIXTURE_VARIANT_ADD(namespaces, time){.name = "time", .flags = CLONE_NEWTIME};
FIXTURE_VARIANT_ADD(namespaces, user){.name = "user", .flags = CLONE_NEWUSER};
FIXTURE_VARIANT_ADD(namespaces,
		    user_of_a_user){.name = "user", .flags = CLONE_NEWUSER, .unprivileged = true};
FIXTURE_VARIANT_ADD(namespaces, all_of_a_user){
	.name = "net",
	.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS |
		 CLONE_NEWIPC | CLONE_NEWCGROUP | CLONE_NEWTIME,
	.unprivileged = true,
};

TEST_F_TIMEOUT(namespaces, are_new, TIMEOUT)
{
	char ours[PATH_MAX] = "", path[64];
	int rounds = 5;

	if (getuid() != 0)
		SKIP(return, "not root");
	if (variant->unprivileged) {
		ASSERT_EQ(0, setresuid(4246, 4246, 4246));
		renew(&self->fd, STRINGS("child", "state"));
	}
	snprintf(path, sizeof(path), "/proc/self/ns/%s", variant->name);
	ASSERT_LT(0, readlink(path, ours, sizeof(ours) - 1));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_TRUE(has_line(self->it.out, "%sns=%s", variant->name, ours));
	ASSERT_EQ(0, SET(SET_FLAGS, NAMESPACES, NULL, variant->flags));
	while (rounds--) {
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		EXPECT_LE(0, self->it.ret);
		EXPECT_EQ(0, self->it.code);
		EXPECT_FALSE(has_line(self->it.out, "%sns=%s", variant->name, ours));
		/* The child is the first process of its pid namespace.
		 * Its parent is outside, so getppid() returns 0. */
		if (variant->flags & CLONE_NEWPID) {
			EXPECT_TRUE(has_line(self->it.out, "pid=1"));
			EXPECT_TRUE(has_line(self->it.out, "ppid=0"));
			EXPECT_LT(1, self->it.pid);
		}
		if (variant->flags & CLONE_NEWUSER)
			EXPECT_TRUE(has_line(self->it.out, "uids=65534 65534 65534"));
		/* A spawn that fails after the kernel created the namespaces must leave
		 * no child behind. */
		ASSERT_EQ(0, SET(SET_STRING, PATH, "/nonexistent", 0));
		start(&self->it, self->fd, NULL, NULL, 0, 0);
		EXPECT_EQ(-ENOENT, self->it.ret);
		ASSERT_EQ(0, SET(SET_STRING, PATH, child_path, 0));
	}
	EXPECT_NO_CHILD();
}

TEST_F_TIMEOUT(namespaces, need_rights, TIMEOUT)
{
	if (getuid() != 0)
		SKIP(return, "not root");
	ASSERT_EQ(0, setresuid(4247, 4247, 4247));
	renew(&self->fd, STRINGS("child", "state"));
	ASSERT_EQ(0, SET(SET_FLAGS, NAMESPACES, NULL, variant->flags));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	if (variant->flags & CLONE_NEWUSER) {
		EXPECT_EQ(0, self->it.code);
	} else {
		EXPECT_EQ(-EPERM, self->it.ret);
		EXPECT_EQ(SPAWN_FAILED_SETUP, self->it.failed);
	}
}

TEST_HARNESS_MAIN
