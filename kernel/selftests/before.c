// SPDX-License-Identifier: GPL-2.0-only
/* Tests children whose program has not begun yet, because an action blocks: stops, tracers, what is
 * charged for them, and which descriptors they have. */
#include "spawn_test.h"
#include "blocked.h"
#include <pthread.h>
#include <sys/ptrace.h>
#include "kselftest_harness.h"

#define ACTION(name) .type = SPAWN_ACTION_##name
#define SET(cmd, key, value, aux)                                                                  \
	sys_config(self->fd, PIDFD_CONFIG_##cmd, PIDFD_CONFIG_KEY_##key, value, aux)

FIXTURE(before)
{
	int fd;
	struct outcome it;
};

FIXTURE_SETUP(before)
{
	block_sigchld();
	NEED_BUILDER(self->fd);
	close(self->fd);
	own_directory();
	self->fd = builder_of(STRINGS("child", "state"));
}

FIXTURE_TEARDOWN(before)
{
	close(self->fd);
}

/* A stop signal does not interrupt an action. It takes effect when the program begins. */
TEST_F_TIMEOUT(before, stopped_before_exec, TIMEOUT)
{
	pid_t pid, child;

	for (int i = 0; i < 5; i++) {
		pid = start_blocked(self->fd, &child);
		ASSERT_LT(0, child);
		until_asleep(child);
		EXPECT_EQ(0, kill(child, SIGSTOP));
		EXPECT_EQ(0, kill(child, SIGCONT));
		EXPECT_EQ(0, kill(child, SIGSTOP));
		sched_yield();
		EXPECT_EQ(0, kill(child, SIGCONT));
		EXPECT_EQ(0, go_on(pid));
	}
	forget_sigchld();
}

/* A tracer can stop a child in an action that blocks. The action then goes on. */
TEST_F_TIMEOUT(before, seized_before_exec, TIMEOUT)
{
	pid_t pid, child;
	int status;

	for (int i = 0; i < 5; i++) {
		pid = start_blocked(self->fd, &child);
		ASSERT_LT(0, child);
		until_asleep(child);
		ASSERT_EQ(0, ptrace(PTRACE_SEIZE, child, 0, 0));
		ASSERT_EQ(0, ptrace(PTRACE_INTERRUPT, child, 0, 0));
		ASSERT_EQ(child, waitpid(child, &status, __WALL));
		EXPECT_EQ(SIGTRAP | PTRACE_EVENT_STOP << 8, status >> 8);
		ASSERT_EQ(0, ptrace(PTRACE_CONT, child, 0, 0));
		until_asleep(child);
		EXPECT_EQ(0, ptrace(PTRACE_INTERRUPT, child, 0, 0));
		ASSERT_EQ(child, waitpid(child, &status, __WALL));
		ASSERT_EQ(0, ptrace(PTRACE_DETACH, child, 0, 0));
		EXPECT_EQ(0, go_on(pid));
		/* A child that is killed in its stop is gone, and its caller gets EINTR. */
		pid = start_blocked(self->fd, &child);
		ASSERT_EQ(0, ptrace(PTRACE_SEIZE, child, 0, 0));
		ASSERT_EQ(0, ptrace(PTRACE_INTERRUPT, child, 0, 0));
		ASSERT_EQ(child, waitpid(child, &status, __WALL));
		EXPECT_EQ(0, kill(child, SIGKILL));
		EXPECT_EQ(child, waitpid(child, &status, __WALL));
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		EXPECT_EQ(EINTR << 8, status);
	}
	forget_sigchld();
}

static long anonymous_kib(pid_t pid)
{
	char path[64], line[256];
	long kib = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "r");
	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, "RssAnon:", 8) == 0)
			kib = atol(line + 8);
	if (file)
		fclose(file);
	return kib;
}

/* Until the program begins, its arguments are charged to the caller. The child has no mm by which
 * the OOM killer could find them. */
TEST_F_TIMEOUT(before, arguments_are_charged, TIMEOUT)
{
	static char text[100 << 10];
	const char *list[41] = {};
	struct rlimit limit = {64 << 20, RLIM_INFINITY};
	pid_t pid, child;
	long before;

	memset(text, 'a', sizeof(text) - 1);
	for (size_t i = 0; i < COUNT(list) - 1; i++)
		list[i] = text;
	ASSERT_EQ(0, setrlimit(RLIMIT_STACK, &limit));
	/* The builder keeps the strings in the kernel, so they are not in the caller's own memory.
	 */
	ASSERT_EQ(0, SET(SET_STRINGS, ENVP, list, 0));
	before = anonymous_kib(getpid());
	for (int i = 0; i < 3; i++) {
		pid = start_blocked(self->fd, &child);
		ASSERT_LT(0, child);
		EXPECT_LT(before + 3000, anonymous_kib(pid));
		EXPECT_EQ(0, go_on(pid));
		/* The same for a caller that dies first. */
		pid = start_blocked(self->fd, &child);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	/* This process has run no child that still counts. */
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_LE(0, self->it.ret);
	EXPECT_GT(before + 1000, anonymous_kib(getpid()));
	forget_sigchld();
}

struct become {
	int fd;
	long ret;
};

static void *become_in_thread(void *data)
{
	struct spawn_open fifo = OPEN_OF("fifo");
	struct spawn_action action = {ACTION(OPEN), .fd = AT_FDCWD, .newfd = 9,
				      .arg = ADDRESS(&fifo)};
	struct spawn_args args = make_args(&action, 1);
	struct become *it = data;

	args.flags = SPAWN_BECOME_PIDFD;
	args.argv = ADDRESS(STRINGS("child", "exit", "0"));
	it->ret = sys_run(it->fd, &args, sizeof(args));
	return NULL;
}

/* From before the program begins until the call returns, the number of a builder that becomes a
 * pidfd is reserved. So the pidfd cannot be lost. After an error, the builder is back. */
TEST_F_TIMEOUT(before, number_of_a_becoming_builder, TIMEOUT)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

	for (int i = 0; i < 6; i++) {
		struct become it = {.fd = builder_of(STRINGS("child", "exit", "0"))};
		bool fails = i % 2;
		pthread_t thread;
		pid_t child;

		fcntl(it.fd, F_SETFD, 0);
		unlink("fifo");
		ASSERT_EQ(0, mkfifo("fifo", 0644));
		ASSERT_EQ(0, pthread_create(&thread, NULL, become_in_thread, &it));
		child = child_of(getpid());
		EXPECT_EQ(-EBADF, result(close(it.fd)));
		EXPECT_EQ(-EBUSY, result(dup2(null, it.fd)));
		EXPECT_EQ(-EBADF,
			  sys_config(it.fd, PIDFD_CONFIG_RESET, PIDFD_CONFIG_KEY_ALL, NULL, 0));
		EXPECT_NE(it.fd, next_fd());
		close_range(it.fd, it.fd, 0);
		if (fails)
			kill(child, SIGKILL);
		else
			close(open("fifo", O_WRONLY | O_CLOEXEC));
		pthread_join(thread, NULL);
		if (fails) {
			EXPECT_EQ(-EINTR, it.ret);
			EXPECT_EQ(0, fcntl(it.fd, F_GETFD));
			EXPECT_EQ(0, sys_config(it.fd, PIDFD_CONFIG_RESET, PIDFD_CONFIG_KEY_ALL,
						NULL, 0));
		} else {
			EXPECT_EQ(it.fd, it.ret);
			EXPECT_EQ(FD_CLOEXEC, fcntl(it.fd, F_GETFD));
			EXPECT_EQ(0, reap(it.fd));
		}
		close(it.fd);
	}
	close(null);
	forget_sigchld();
}

/* A child that inherits descriptors never has one that is close-on-exec, not even until exec. */
TEST_F_TIMEOUT(before, no_transient_copy, TIMEOUT)
{
	struct spawn_open fifo = OPEN_OF("fifo");
	int pipes[2];
	pid_t pid, child;

	ASSERT_EQ(0, mkfifo("fifo", 0644));
	ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
	pid = fork();
	if (pid == 0) {
		struct spawn_action actions[] = {
			{ACTION(DUP2), .fd = pipes[0], .newfd = 20},
			{ACTION(OPEN), .fd = AT_FDCWD, .newfd = 21, .arg = ADDRESS(&fifo)},
			/* The action does nothing, so the child need not have the descriptor. */
			{ACTION(CLOSE), .fd = pipes[1]},
		};
		struct spawn_args args = make_args(actions, COUNT(actions));
		long ret;

		args.flags = SPAWN_FDS_INHERIT;
		args.argv = ADDRESS(STRINGS("child", "exit", "0"));
		ret = sys_run(self->fd, &args, sizeof(args));
		_exit(ret >= 0 ? reap(ret) : -ret);
	}
	child = child_of(pid);
	until_asleep(child);
	for (int fd = 0; fd < 30; fd++) {
		char path[64], target[64];
		ssize_t length;

		snprintf(path, sizeof(path), "/proc/%d/fd/%d", child, fd);
		length = readlink(path, target, sizeof(target) - 1);
		if (fd <= 2 || fd == 20 || fd == pipes[0]) {
			EXPECT_LT(0, length) TH_LOG("fd %d", fd);
		} else {
			EXPECT_EQ(-1, length) TH_LOG("fd %d", fd);
		}
	}
	close(pipes[1]);
	EXPECT_EQ(0, go_on(pid));
	close(pipes[0]);
	forget_sigchld();
}

TEST_HARNESS_MAIN
