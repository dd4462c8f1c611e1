// SPDX-License-Identifier: GPL-2.0-only
/* Tests spawn templates. Their system calls and structures are those of the RFC that
 * proposed them. */
#include "spawn_test.h"
#include <pthread.h>
#include "kselftest_harness.h"

#ifdef HAVE_TEMPLATES

#define ACTION(name) .type = SPAWN_TEMPLATE_ACTION_##name

/* Like start(), but runs a template: reads the child's output and reaps the child. */
static void spawn(struct outcome *it, int fd, const char *const *argv,
		  const struct spawn_template_action *actions, size_t count, __u64 flags)
{
	struct spawn_template_action all[SPAWN_MAX_ACTIONS] = {};
	struct spawn_template_spawn_args args = {.flags = flags};
	int pipes[2];
	__s32 pidfd = -1;

	memset(it, 0, sizeof(*it));
	it->code = -1;
	if (pipe2(pipes, O_CLOEXEC) < 0)
		abort();
	all[0] = (struct spawn_template_action){ACTION(DUP2), .fd = pipes[1], .newfd = 1};
	if (count)
		memcpy(all + 1, actions, count * sizeof(*actions));
	args.pidfd = ADDRESS(&pidfd);
	args.argv = ADDRESS(argv);
	args.actions = ADDRESS(all);
	args.actions_len = count + 1;
	it->ret = sys_spawn(fd, &args, sizeof(args));
	close(pipes[1]);
	if (it->ret >= 0) {
		it->pid = it->ret;
		read_all(pipes[0], it->out, sizeof(it->out));
		it->code = reap_and_close(pidfd);
	}
	close(pipes[0]);
}

TEST(abi)
{
	EXPECT_EQ(72, sizeof(struct spawn_template_create_args));
	EXPECT_EQ(80, sizeof(struct spawn_template_spawn_args));
	EXPECT_EQ(24, sizeof(struct spawn_template_action));
	EXPECT_EQ(32, sizeof(struct spawn_template_open));
	EXPECT_EQ(16, sizeof(struct spawn_template_sigset));
	EXPECT_EQ(8, offsetof(struct spawn_template_create_args, execfd));
	EXPECT_EQ(16, offsetof(struct spawn_template_create_args, filename));
	EXPECT_EQ(8, offsetof(struct spawn_template_spawn_args, pidfd));
	EXPECT_EQ(40, offsetof(struct spawn_template_spawn_args, actions_len));
#if __NR_spawn_template_create != -1
	EXPECT_EQ(472, __NR_spawn_template_create);
	EXPECT_EQ(473, __NR_spawn_template_spawn);
#endif
}

FIXTURE(template)
{
	int fd;
	int before;
	struct outcome it;
};

FIXTURE_SETUP(template)
{
	int probe;

	block_sigchld();
	/* Test for builders before templates: on another kernel, the template numbers
	 * may be other system calls. */
	NEED_BUILDER(probe);
	close(probe);
	own_directory();
	self->fd = template_of(child_path);
	if (self->fd == -ENOSYS)
		SKIP(return, "this kernel has no spawn_template_create");
	ASSERT_LE(0, self->fd);
	self->before = next_fd();
}

FIXTURE_TEARDOWN(template)
{
	EXPECT_EQ(self->before, next_fd());
	EXPECT_NO_CHILD();
	close(self->fd);
}

TEST_F_TIMEOUT(template, create_inconsistent, TIMEOUT)
{
	struct spawn_template_create_args args;
	union {
		struct spawn_template_create_args args;
		char bytes[4096];
	} longer = {.args = of_path(child_path)};
	static const size_t bad[] = {0, 1, 71};
	static const size_t huge[] = {4097, INT_MAX, SIZE_MAX};
	int fd;

	for (size_t i = 0; i < COUNT(bad); i++) {
		EXPECT_EQ(-EINVAL, sys_create(&longer, bad[i]));
		EXPECT_EQ(-EINVAL, sys_create(BAD_POINTER, bad[i]));
	}
	for (size_t i = 0; i < COUNT(huge); i++)
		EXPECT_EQ(-E2BIG, sys_create(&longer, huge[i]));
	EXPECT_EQ(-EFAULT, sys_create(BAD_POINTER, 72));
	fd = sys_create(&longer, 4096);
	EXPECT_LE(0, fd);
	close(fd);
	longer.bytes[4095] = 1;
	EXPECT_EQ(-E2BIG, sys_create(&longer, 4096));
	EXPECT_EQ(-E2BIG, (longer.args.flags = ~0ULL, sys_create(&longer, 4096)));
	for (int bit = 1; bit < 64; bit++) {
		args = of_path(child_path);
		args.flags = 1ULL << bit;
		EXPECT_EQ(-EINVAL, sys_create(&args, sizeof(args)));
	}
	for (int bit = 0; bit < 32; bit++) {
		args = of_path(child_path);
		args.exec_flags = 1U << bit;
		EXPECT_EQ(-EINVAL, sys_create(&args, sizeof(args)));
	}
	for (int i = 0; i < 4; i++) {
		args = of_path(child_path);
		args.reserved[i] = 1;
		EXPECT_EQ(-EINVAL, sys_create(&args, sizeof(args)));
	}
	args = of_path(child_path);
	args.actions = ADDRESS(&args);
	EXPECT_EQ(-EINVAL, sys_create(&args, sizeof(args)));
	args = of_path(child_path);
	args.actions_len = 1;
	EXPECT_EQ(-EINVAL, sys_create(&args, sizeof(args)));
	args = of_path(child_path);
	args.execfd = 0; /* a descriptor and a path */
	EXPECT_EQ(-EINVAL, sys_create(&args, sizeof(args)));
	args = of_path(NULL); /* no descriptor and no path */
	EXPECT_EQ(-EINVAL, sys_create(&args, sizeof(args)));
	args = of_path("child");
	EXPECT_EQ(-EINVAL, sys_create(&args, sizeof(args)));
	args.filename = BAD_ADDRESS;
	EXPECT_EQ(-EFAULT, sys_create(&args, sizeof(args)));
}

TEST_F_TIMEOUT(template, create_refused, TIMEOUT)
{
	struct spawn_template_create_args args = of_path(NULL);
	char here[PATH_MAX], path[PATH_MAX + 16];

	getcwd(here, sizeof(here));
	write_file("plain", "x", 0644);
	snprintf(path, sizeof(path), "%s/plain", here);
	EXPECT_EQ(-EACCES, template_of(path));
	EXPECT_EQ(-EACCES, template_of("/"));
	EXPECT_EQ(-EACCES, template_of("/dev/null"));
	EXPECT_EQ(-ENOENT, template_of("/nonexistent"));
	EXPECT_EQ(-ENOTDIR, template_of("/dev/null/child"));
	EXPECT_GT(0, template_of(""));
	static const int closed[] = {1 << 19, INT_MAX};
	for (size_t i = 0; i < COUNT(closed); i++) {
		args.execfd = closed[i];
		EXPECT_EQ(-EBADF, sys_create(&args, sizeof(args)));
	}
	static const int negative[] = {-2, -100, INT_MIN};
	for (size_t i = 0; i < COUNT(negative); i++) {
		args.execfd = negative[i];
		EXPECT_EQ(-EINVAL, sys_create(&args, sizeof(args)));
	}
	args.execfd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	EXPECT_EQ(-EACCES, sys_create(&args, sizeof(args)));
	close(args.execfd);
}

TEST_F_TIMEOUT(template, cloexec, TIMEOUT)
{
	struct spawn_template_create_args args = of_path(child_path);
	int fd;

	EXPECT_EQ(FD_CLOEXEC, fcntl(self->fd, F_GETFD));
	args.flags = 0;
	fd = sys_create(&args, sizeof(args));
	ASSERT_LE(0, fd);
	EXPECT_EQ(0, fcntl(fd, F_GETFD));
	close(fd);
}

TEST_F_TIMEOUT(template, spawn_inconsistent, TIMEOUT)
{
	__s32 pidfd = -7;
	const char *const words[] = {"child", "exit", "0", NULL};
	const struct spawn_template_spawn_args good = {.pidfd = ADDRESS(&pidfd),
						       .argv = ADDRESS(words)};
	struct spawn_template_spawn_args args;
	struct spawn_template_action action = {};
	union {
		struct spawn_template_spawn_args args;
		char bytes[128];
	} longer = {.args = good};
	static const size_t bad[] = {0, 1, 79};

	for (size_t i = 0; i < COUNT(bad); i++) {
		EXPECT_EQ(-EINVAL, sys_spawn(self->fd, &longer, bad[i]));
		EXPECT_EQ(-EINVAL, sys_spawn(-1, BAD_POINTER, bad[i]));
	}
	EXPECT_EQ(-E2BIG, sys_spawn(self->fd, &longer, 4097));
	longer.bytes[127] = 1;
	EXPECT_EQ(-E2BIG, sys_spawn(self->fd, &longer, sizeof(longer)));
	static const int others[] = {-1, INT_MIN, INT_MAX, 1 << 19};
	for (size_t i = 0; i < COUNT(others); i++) {
		args = good;
		EXPECT_EQ(-EBADF, sys_spawn(others[i], &args, sizeof(args)));
	}
	EXPECT_EQ(-EINVAL, sys_spawn(0, &args, sizeof(args)));
	EXPECT_EQ(-EFAULT, sys_spawn(self->fd, BAD_POINTER, sizeof(args)));
	for (int bit = 1; bit < 64; bit++) {
		args = good;
		args.flags = 1ULL << bit;
		EXPECT_EQ(-EINVAL, sys_spawn(self->fd, &args, sizeof(args)));
	}
	for (int i = 0; i < 4; i++) {
		args = good;
		args.reserved[i] = 1ULL << 63;
		EXPECT_EQ(-EINVAL, sys_spawn(self->fd, &args, sizeof(args)));
	}
	args = good;
	args.pidfd = 0;
	EXPECT_EQ(-EINVAL, sys_spawn(self->fd, &args, sizeof(args)));
	args.pidfd = BAD_ADDRESS;
	EXPECT_EQ(-EFAULT, sys_spawn(self->fd, &args, sizeof(args)));
	args = good;
	args.actions = ADDRESS(&action);
	static const __u64 counts[] = {257, 1ULL << 32, (1ULL << 32) + 1, 1ULL << 63, ~0ULL};
	for (size_t i = 0; i < COUNT(counts); i++) {
		args.actions_len = counts[i];
		EXPECT_EQ(-E2BIG, sys_spawn(self->fd, &args, sizeof(args)));
	}
	args.actions_len = 1;
	args.actions = BAD_ADDRESS;
	EXPECT_EQ(-EFAULT, sys_spawn(self->fd, &args, sizeof(args)));
	args = good;
	args.argv = BAD_ADDRESS;
	EXPECT_EQ(-EFAULT, sys_spawn(self->fd, &args, sizeof(args)));
	args = good;
	args.envp = BAD_ADDRESS;
	EXPECT_EQ(-EFAULT, sys_spawn(self->fd, &args, sizeof(args)));
	/* After these errors, pidfd is still negative, so a caller does not close some
	 * other descriptor. */
	EXPECT_GT(0, pidfd);
}

TEST_F_TIMEOUT(template, runs, TIMEOUT)
{
	for (int i = 0; i < 20; i++) {
		spawn(&self->it, self->fd, STRINGS("a name", "state"), NULL, 0, 0);
		ASSERT_LT(0, self->it.ret);
		EXPECT_EQ(0, self->it.code);
		EXPECT_TRUE(has_line(self->it.out, "comm=child"));
		EXPECT_TRUE(has_line(self->it.out, "exe=%s", child_path));
		EXPECT_TRUE(has_line(self->it.out, "execfn=%s", child_path));
		EXPECT_TRUE(has_line(self->it.out, "pid=%ld", self->it.ret));
		EXPECT_TRUE(has_line(self->it.out, "fds=0 1 2 "));
	}
	forget_sigchld();
}

TEST_F_TIMEOUT(template, actions, TIMEOUT)
{
	static __u64 mask = 1ULL << (SIGUSR1 - 1);
	struct spawn_template_sigset set = {ADDRESS(&mask), 8};
	struct spawn_template_open null = {ADDRESS("/dev/null"), {.flags = O_RDWR}};
	int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), file = open("/dev/null", O_RDONLY);
	struct spawn_template_action actions[] = {
		{ACTION(FCHDIR), .fd = root},
		{ACTION(OPEN), .fd = AT_FDCWD, .newfd = 30, .arg = ADDRESS(&null)},
		{ACTION(SIGMASK), .arg = ADDRESS(&set)},
		{ACTION(SIGDEFAULT), .arg = ADDRESS(&set)},
		{ACTION(DUP2), .fd = file, .newfd = 31},
		{ACTION(CLOSE), .fd = 31},
		{ACTION(CLOSE_RANGE), .fd = 0, .newfd = 0},
	};

	self->before = next_fd();
	signal(SIGUSR1, SIG_IGN);
	spawn(&self->it, self->fd, STRINGS("child", "state"), actions, COUNT(actions), 0);
	EXPECT_EQ(0, self->it.code)
	{
		TH_LOG("%ld", self->it.ret);
	}
	EXPECT_TRUE(has_line(self->it.out, "cwd=/"));
	EXPECT_TRUE(has_line(self->it.out, "mask=%d ", SIGUSR1));
	EXPECT_TRUE(has_line(self->it.out, "ignored="));
	/* After the actions, all descriptors above 2 are closed, even those that actions opened. */
	EXPECT_TRUE(has_line(self->it.out, "fds=1 2 "))
	{
		TH_LOG("%s", self->it.out);
	}
	spawn(&self->it, self->fd, STRINGS("child", "fds"), actions, COUNT(actions),
	      SPAWN_TEMPLATE_SPAWN_INHERIT_FDS);
	EXPECT_NE(NULL, strstr(self->it.out, " 30 "));
	static const struct spawn_template_action wrong[] = {
		{.type = 7},
		{.type = UINT_MAX},
		{ACTION(CLOSE), .fd = -1},
		{ACTION(DUP2), .fd = -1, .newfd = 5},
		{ACTION(DUP2), .newfd = -1},
		{ACTION(FCHDIR), .fd = -1},
		{ACTION(CLOSE), .flags = 1},
		{ACTION(CLOSE_RANGE), .fd = -1, .newfd = 5},
		{ACTION(CLOSE), .fd = INT_MIN},
	};
	forget_sigchld();
	for (size_t i = 0; i < COUNT(wrong); i++) {
		spawn(&self->it, self->fd, STRINGS("child", "fds"), wrong + i, 1, 0);
		EXPECT_EQ(-EINVAL, self->it.ret)
		{
			TH_LOG("%zu", i);
		}
	}
	struct spawn_template_action missing = {ACTION(CLOSE), .fd = 1 << 19};
	spawn(&self->it, self->fd, STRINGS("child", "fds"), &missing, 1, 0);
	EXPECT_EQ(-EBADF, self->it.ret);
	missing = (struct spawn_template_action){ACTION(OPEN), .fd = AT_FDCWD, .newfd = 5,
						 .arg = BAD_ADDRESS};
	spawn(&self->it, self->fd, STRINGS("child", "fds"), &missing, 1, 0);
	EXPECT_EQ(-EFAULT, self->it.ret);
	close(root);
	close(file);
	self->before = next_fd();
}

FIXTURE(stale)
{
	int fd;
	char path[PATH_MAX];
	struct outcome it;
};

FIXTURE_SETUP(stale)
{
	int probe;

	block_sigchld();
	NEED_BUILDER(probe);
	close(probe);
	own_directory();
	getcwd(self->path, sizeof(self->path) - 16);
	strcat(self->path, "/program");
	copy_file(child_path, self->path, 0755);
	self->fd = template_of(self->path);
	if (self->fd == -ENOSYS)
		SKIP(return, "this kernel has no spawn_template_create");
	ASSERT_LE(0, self->fd);
	spawn(&self->it, self->fd, STRINGS("child", "exit", "3"), NULL, 0, 0);
	ASSERT_EQ(3, self->it.code);
	forget_sigchld();
}

FIXTURE_TEARDOWN(stale)
{
	EXPECT_NO_CHILD();
	close(self->fd);
}

FIXTURE_VARIANT(stale)
{
	int how;
};

enum { REPLACED, REMOVED, WRITTEN, TOUCHED, MODE, OWNER, CUT, LINKED, DIRECTORY_RENAMED };

FIXTURE_VARIANT_ADD(stale, replaced){.how = REPLACED};
FIXTURE_VARIANT_ADD(stale, removed){.how = REMOVED};
FIXTURE_VARIANT_ADD(stale, written){.how = WRITTEN};
FIXTURE_VARIANT_ADD(stale, touched){.how = TOUCHED};
FIXTURE_VARIANT_ADD(stale, mode){.how = MODE};
FIXTURE_VARIANT_ADD(stale, owner){.how = OWNER};
FIXTURE_VARIANT_ADD(stale, cut){.how = CUT};
FIXTURE_VARIANT_ADD(stale, linked){.how = LINKED};
FIXTURE_VARIANT_ADD(stale, directory_renamed){.how = DIRECTORY_RENAMED};

/* Waits until the clock for file timestamps advances.
 * It advances at timer interrupts only, so a quick change may leave the same timestamp. */
static void let_clock_move(const char *path)
{
	struct stat before, now;

	stat(path, &before);
	do {
		write_file("clock", "x", 0644);
		stat("clock", &now);
	} while (now.st_mtim.tv_sec == before.st_ctim.tv_sec &&
		 now.st_mtim.tv_nsec == before.st_ctim.tv_nsec);
}

/* A template does not prevent changes to its file. After a change, a spawn fails with ESTALE. */
TEST_F_TIMEOUT(stale, is_refused, TIMEOUT)
{
	char other[PATH_MAX];
	int fd;

	let_clock_move(self->path);
	switch (variant->how) {
	case REPLACED:
		copy_file(child_path, "new", 0755);
		ASSERT_EQ(0, rename("new", self->path));
		break;
	case REMOVED:
		ASSERT_EQ(0, unlink(self->path));
		break;
	case WRITTEN:
		fd = open(self->path, O_RDWR | O_CLOEXEC);
		ASSERT_LE(0, fd);
		ASSERT_EQ(1, pread(fd, other, 1, 1000));
		ASSERT_EQ(1, pwrite(fd, other, 1, 1000));
		close(fd);
		break;
	case TOUCHED:
		ASSERT_EQ(0, utimensat(AT_FDCWD, self->path, NULL, 0));
		break;
	case MODE:
		ASSERT_EQ(0, chmod(self->path, 0700));
		break;
	case OWNER:
		if (getuid() != 0)
			SKIP(return, "not root");
		ASSERT_EQ(0, chown(self->path, 1, 1));
		break;
	case CUT:
		ASSERT_EQ(0, truncate(self->path, 100));
		break;
	case LINKED:
		ASSERT_EQ(0, link(self->path, "another-name"));
		break;
	case DIRECTORY_RENAMED:
		getcwd(other, sizeof(other) - 8);
		strcat(other, "-moved");
		self->path[strlen(self->path) - strlen("/program")] = 0;
		ASSERT_EQ(0, rename(self->path, other));
		break;
	}
	for (int i = 0; i < 3; i++) {
		spawn(&self->it, self->fd, STRINGS("child", "exit", "3"), NULL, 0, 0);
		EXPECT_EQ(-ESTALE, self->it.ret);
	}
}

/* A template created from a descriptor checks that file. The path of the file does not matter. */
TEST_F_TIMEOUT(stale, by_descriptor, TIMEOUT)
{
	struct spawn_template_create_args args = of_path(NULL);
	int fd, template;

	if (variant->how != REPLACED && variant->how != WRITTEN)
		return;
	fd = open(self->path, O_RDONLY | O_CLOEXEC);
	args.execfd = fd;
	template = sys_create(&args, sizeof(args));
	ASSERT_LE(0, template);
	close(fd);
	spawn(&self->it, template, STRINGS("child", "state"), NULL, 0, 0);
	EXPECT_TRUE(has_line(self->it.out, "comm=program"));
	EXPECT_TRUE(has_line(self->it.out, "fds=0 1 2 "));
	let_clock_move(self->path);
	if (variant->how == REPLACED) {
		copy_file(child_path, "new", 0755);
		let_clock_move(self->path);
		ASSERT_EQ(0, rename(self->path, "old-name"));
		/* The path now has no file. A file system that updates ctime at rename makes the
		 * template stale. Otherwise the spawn executes the renamed file. */
		spawn(&self->it, template, STRINGS("child", "exit", "3"), NULL, 0, 0);
		EXPECT_TRUE(self->it.ret == -ESTALE || self->it.code == 3);
	} else {
		ASSERT_EQ(0, utimensat(AT_FDCWD, self->path, NULL, 0));
		spawn(&self->it, template, STRINGS("child", "exit", "3"), NULL, 0, 0);
		EXPECT_EQ(-ESTALE, self->it.ret);
	}
	forget_sigchld();
	close(template);
}

/* A process with other credentials than the template's creator gets EACCES. */
TEST_F_TIMEOUT(template, other_credentials, TIMEOUT)
{
	int status = -1;
	pid_t pid;

	if (getuid() != 0)
		SKIP(return, "not root");
	for (int way = 0; way < 4; way++) {
		pid = fork();
		if (pid == 0) {
			int error = 0;

			if (way == 0)
				error = setresuid(4242, 4242, 4242);
			else if (way == 1)
				error = setresgid(-1, 4242, -1);
			else if (way == 2)
				error = syscall(__NR_setgroups, 1, (gid_t[]){4242});
			/* Case 3 sets the ids that the process has.
			 * The credentials are equal, so the spawn succeeds. */
			if (way == 3)
				error = setresuid(0, 0, 0);
			spawn(&self->it, self->fd, STRINGS("child", "exit", "3"), NULL, 0, 0);
			_exit(error	 ? 100
			      : way == 3 ? self->it.code != 3
					 : self->it.ret != -EACCES);
		}
		waitpid(pid, &status, 0);
		EXPECT_EQ(0, status)
		{
			TH_LOG("way %d", way);
		}
	}
	forget_sigchld();
}

/* A duplicate of the template's descriptor works after the original is closed. */
TEST_F_TIMEOUT(template, is_a_descriptor, TIMEOUT)
{
	int copy = dup(self->fd);

	close(self->fd);
	for (int i = 0; i < 3; i++) {
		spawn(&self->it, copy, STRINGS("child", "exit", "3"), NULL, 0, 0);
		EXPECT_EQ(3, self->it.code);
	}
	ASSERT_EQ(self->fd, dup2(copy, self->fd));
	close(copy);
	forget_sigchld();
}

TEST_F_TIMEOUT(template, scripts, TIMEOUT)
{
	struct spawn_template_create_args args = of_path(NULL);
	char text[PATH_MAX + 64], path[PATH_MAX + 16];
	int template;

	getcwd(path, PATH_MAX);
	strcat(path, "/script");
	snprintf(text, sizeof(text), "#!%s state\n", child_path);
	write_file(path, text, 0755);
	template = template_of(path);
	ASSERT_LE(0, template);
	spawn(&self->it, template, STRINGS("child"), NULL, 0, 0);
	EXPECT_TRUE(has_line(self->it.out, "comm=script"));
	EXPECT_TRUE(has_line(self->it.out, "exe=%s", child_path));
	close(template);
	args.execfd = open(path, O_RDONLY | O_CLOEXEC);
	template = sys_create(&args, sizeof(args));
	close(args.execfd);
	ASSERT_LE(0, template);
	forget_sigchld();
	spawn(&self->it, template, STRINGS("child"), NULL, 0, 0);
	EXPECT_EQ(-ENOENT, self->it.ret);
	close(template);
}

/* If the file is not a program, the call returns the error of exec, and no process remains. */
TEST_F_TIMEOUT(template, exec_errors, TIMEOUT)
{
	char path[PATH_MAX + 16];
	int template;

	getcwd(path, PATH_MAX);
	strcat(path, "/garbage");
	write_file(path, "neither this nor that\n", 0755);
	template = template_of(path);
	if (template >= 0) {
		for (int i = 0; i < 10; i++) {
			spawn(&self->it, template, STRINGS("child"), NULL, 0, 0);
			EXPECT_EQ(-ENOEXEC, self->it.ret);
			EXPECT_NO_CHILD();
		}
		close(template);
	} else {
		EXPECT_EQ(-ENOEXEC, template);
	}
}

/* A thread that spawns from the template while the test replaces the file.
 * Each call must execute the original program or fail with ESTALE. */
static void *spawn_while_replaced(void *data)
{
	struct outcome it;
	long wrong = 0;

	for (int i = 0; i < 60; i++) {
		spawn(&it, *(int *)data, STRINGS("child", "exit", "3"), NULL, 0, 0);
		wrong += !(it.ret == -ESTALE || it.code == 3);
	}
	return (void *)wrong;
}

TEST_F_TIMEOUT(stale, by_many_threads, TIMEOUT)
{
	pthread_t threads[3];
	void *wrong;

	if (variant->how != REPLACED)
		return;
	for (size_t i = 0; i < COUNT(threads); i++)
		ASSERT_EQ(0, pthread_create(threads + i, NULL, spawn_while_replaced, &self->fd));
	for (int i = 0; i < 30; i++) {
		copy_file("/proc/self/exe", "new", 0755);
		ASSERT_EQ(0, rename("new", self->path));
	}
	for (size_t i = 0; i < COUNT(threads); i++) {
		pthread_join(threads[i], &wrong);
		EXPECT_EQ(NULL, wrong);
	}
	forget_sigchld();
}

#else

TEST(templates)
{
	SKIP(return, "the series has no linux/spawn_template.h");
}

#endif

TEST_HARNESS_MAIN
