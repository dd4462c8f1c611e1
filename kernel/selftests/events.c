// SPDX-License-Identifier: GPL-2.0-only
/* Tests how a spawn interacts with signals, the caller's death, ptrace, seccomp, set-user-ID
 * programs, Landlock and audit. */
#include "spawn_test.h"
#include <linux/cn_proc.h>
#include <linux/connector.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/acct.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include "audit.h"
#include "blocked.h"
#include "kselftest_harness.h"

#define ACTION(name) .type = SPAWN_ACTION_##name
#define SET(cmd, key, value, aux)                                                                  \
	sys_config(self->fd, PIDFD_CONFIG_##cmd, PIDFD_CONFIG_KEY_##key, value, aux)

FIXTURE(events)
{
	int fd;
	struct outcome it;
};

FIXTURE_SETUP(events)
{
	block_sigchld();
	NEED_BUILDER(self->fd);
	close(self->fd);
	own_directory();
	self->fd = builder_of(STRINGS("child", "state"));
}

FIXTURE_TEARDOWN(events)
{
	close(self->fd);
}

static bool ends(int pidfd)
{
	struct pollfd wait_for = {.fd = pidfd, .events = POLLIN};

	return poll(&wait_for, 1, TIMEOUT * 500) == 1;
}

TEST_F_TIMEOUT(events, caller_is_killed, TIMEOUT)
{
	pid_t pid, child;
	int status;

	for (int i = 0; i < 20; i++) {
		int pidfd;

		pid = start_blocked(self->fd, &child);
		ASSERT_LT(0, child);
		pidfd = sys_pidfd_open(child, 0);
		ASSERT_LE(0, pidfd);
		kill(pid, SIGKILL);
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		EXPECT_EQ(SIGKILL, status);
		/* The kernel kills the child too. The test need not reap it. */
		EXPECT_TRUE(ends(pidfd));
		close(pidfd);
	}
	forget_sigchld();
	EXPECT_NO_CHILD();
}

TEST_F_TIMEOUT(events, child_is_killed, TIMEOUT)
{
	static const int numbers[] = {SIGKILL};
	pid_t pid, child;
	int status;

	for (int i = 0; i < 20; i++) {
		pid = start_blocked(self->fd, &child);
		ASSERT_LT(0, child);
		kill(child, numbers[0]);
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		EXPECT_EQ(EINTR << 8, status);
	}
	forget_sigchld();
}

/* Signals other than SIGKILL do not end the child before its program starts. */
TEST_F_TIMEOUT(events, others_wait, TIMEOUT)
{
	static const int harmless[] = {SIGTERM, SIGUSR1, SIGINT, SIGHUP, SIGALRM};
	pid_t pid, child;
	int status, writer;

	for (size_t i = 0; i < COUNT(harmless); i++) {
		pid = start_blocked(self->fd, &child);
		ASSERT_LT(0, child);
		/* The child blocks all signals until exec, so this signal stays pending. It kills
		 * the program once the program starts. */
		EXPECT_EQ(0, kill(child, harmless[i]));
		writer = open("fifo", O_WRONLY | O_CLOEXEC);
		ASSERT_LE(0, writer);
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		EXPECT_EQ((128 + harmless[i]) << 8, status);
		close(writer);
	}
	forget_sigchld();
}

static int handled;

static void count_handled(int number)
{
	(void)number;
	handled++;
}

static void *signal_and_open(void *data)
{
	pthread_t caller = *(pthread_t *)data;
	pid_t child = child_of(getpid());
	int writer;

	for (int i = 0; i < 20; i++)
		pthread_kill(caller, SIGUSR1);
	writer = open("fifo", O_WRONLY | O_CLOEXEC);
	(void)child;
	return (void *)(long)writer;
}

TEST_F_TIMEOUT(events, handlers_run_after, TIMEOUT)
{
	struct spawn_open fifo = OPEN_OF("fifo");
	struct spawn_action action = {ACTION(OPEN), .fd = AT_FDCWD, .newfd = 9,
				      .arg = ADDRESS(&fifo)};
	struct spawn_args args = make_args(&action, 1);
	pthread_t caller = pthread_self(), thread;
	void *writer;
	long pidfd;

	ASSERT_EQ(0, mkfifo("fifo", 0644));
	signal(SIGUSR1, count_handled);
	ASSERT_EQ(0, pthread_create(&thread, NULL, signal_and_open, &caller));
	args.argv = ADDRESS(STRINGS("child", "exit", "6"));
	pidfd = sys_run(self->fd, &args, sizeof(args));
	ASSERT_LE(0, pidfd);
	EXPECT_EQ(6, reap_and_close(pidfd));
	EXPECT_LT(0, handled);
	pthread_join(thread, &writer);
	close((long)writer);
}

/* The test stops and continues a process group that spawns children. No spawn may fail because of
 * this, whether the stop hits the caller or the child. */
TEST_F_TIMEOUT(events, stopped_and_continued, TIMEOUT)
{
	int status = -1;
	pid_t pid;

	for (int round = 0; round < 3; round++) {
		pid = fork();
		if (pid == 0) {
			struct spawn_args args = make_args(NULL, 0);

			setpgid(0, 0);
			args.argv = ADDRESS(STRINGS("child", "exit", "3"));
			for (int i = 0; i < 40; i++) {
				long pidfd = sys_run(self->fd, &args, sizeof(args));

				if (pidfd < 0)
					_exit(-pidfd);
				if (reap_and_close(pidfd) != 3)
					_exit(200);
			}
			_exit(0);
		}
		setpgid(pid, pid);
		while (waitpid(pid, &status, WNOHANG) == 0) {
			kill(-pid, SIGSTOP);
			sched_yield();
			kill(-pid, SIGCONT);
			for (int i = 0; i < 20; i++)
				sched_yield();
		}
		EXPECT_EQ(0, status)
		{
			TH_LOG("status %x", status);
		}
	}
	forget_sigchld();
}

static void *wait_for_all(void *stop)
{
	long met = 0;

	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
		met += waitpid(-1, NULL, WNOHANG | __WALL) > 0;
	return (void *)met;
}

/* waitpid() in other threads never reports a child whose spawn failed. */
TEST_F_TIMEOUT(events, failures_are_invisible, TIMEOUT)
{
	static const struct spawn_action bad = {ACTION(FCHDIR), .fd = 500};
	pthread_t threads[2];
	int stop = 0;
	void *met;

	for (size_t i = 0; i < COUNT(threads); i++)
		ASSERT_EQ(0, pthread_create(threads + i, NULL, wait_for_all, &stop));
	for (int i = 0; i < 200; i++) {
		SET(SET_STRING, PATH, i % 3 ? "/nonexistent" : child_path, 0);
		start(&self->it, self->fd, NULL, &bad, i % 3 == 0, 0);
		EXPECT_EQ(i % 3 ? -ENOENT : -EBADF, self->it.ret);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (size_t i = 0; i < COUNT(threads); i++) {
		pthread_join(threads[i], &met);
		EXPECT_EQ(NULL, met);
	}
	EXPECT_NO_CHILD();
}

TEST_F_TIMEOUT(events, sigchld_ignored, TIMEOUT)
{
	struct spawn_args args = make_args(NULL, 0);
	siginfo_t info;
	long pidfd;

	signal(SIGCHLD, SIG_IGN);
	args.argv = ADDRESS(STRINGS("child", "exit", "1"));
	for (int i = 0; i < 10; i++) {
		pidfd = sys_run(self->fd, &args, sizeof(args));
		ASSERT_LE(0, pidfd);
		EXPECT_TRUE(ends(pidfd));
		EXPECT_EQ(-ECHILD, result(waitid(P_PIDFD, pidfd, &info, WEXITED)));
		close(pidfd);
		args.path = ADDRESS("/nonexistent");
		EXPECT_EQ(-ENOENT, sys_run(self->fd, &args, sizeof(args)));
		args.path = 0;
	}
	signal(SIGCHLD, SIG_DFL);
	EXPECT_NO_CHILD();
}

static void *run_from_thread(void *data)
{
	struct spawn_args args = make_args(NULL, 0);
	int in[2];
	struct spawn_action action = {ACTION(DUP2), .newfd = 0};

	if (pipe2(in, O_CLOEXEC) < 0)
		return NULL;
	action.fd = in[0];
	args = make_args(&action, 1);
	args.argv = ADDRESS(STRINGS("child", "cat"));
	long pidfd = sys_run(*(int *)data, &args, sizeof(args));
	close(in[0]);
	*(int *)data = in[1];
	return (void *)pidfd;
}

/* The child belongs to the process, not to the calling thread. It runs on after that thread has
 * ended, and another thread reaps it. */
TEST_F_TIMEOUT(events, thread_is_gone, TIMEOUT)
{
	int data = self->fd;
	pthread_t thread;
	void *pidfd;

	ASSERT_EQ(0, pthread_create(&thread, NULL, run_from_thread, &data));
	pthread_join(thread, &pidfd);
	ASSERT_LE(0, (long)pidfd);
	close(data);
	EXPECT_EQ(0, reap_and_close((long)pidfd));
}

/*
 * Traces a process and its children until the process ends, and stores its wait
 * status. Stores a letter for each event: v for vfork, d for vfork done, f for
 * fork or clone, e for exec, s for a stop by SIGSTOP, x for a traced child's end.
 */
static void trace(pid_t tracee, long options, char *seen, size_t size, int *status)
{
	size_t length = 0;
	int now;

	waitpid(tracee, &now, 0);
	ptrace(PTRACE_SETOPTIONS, tracee, 0, options);
	ptrace(PTRACE_CONT, tracee, 0, 0);
	for (;;) {
		pid_t pid = waitpid(-1, &now, __WALL);
		int number = 0;
		char letter = 0;

		if (pid < 0)
			break;
		if (WIFEXITED(now) || WIFSIGNALED(now)) {
			if (pid == tracee) {
				*status = now;
				break;
			}
			letter = 'x';
		} else {
			number = WSTOPSIG(now);
			switch (now >> 16) {
			case PTRACE_EVENT_VFORK:
				letter = 'v';
				break;
			case PTRACE_EVENT_VFORK_DONE:
				letter = 'd';
				break;
			case PTRACE_EVENT_FORK:
			case PTRACE_EVENT_CLONE:
				letter = 'f';
				break;
			case PTRACE_EVENT_EXEC:
				letter = 'e';
				break;
			default:
				letter = number == SIGSTOP ? 's' : 0;
			}
			if (letter || number == SIGTRAP)
				number = 0;
			ptrace(PTRACE_CONT, pid, 0, number);
		}
		if (letter && length < size - 1)
			seen[length++] = letter;
	}
	seen[length] = 0;
}

static pid_t start_traced(int fd, const char *path)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct spawn_args args = make_args(NULL, 0);
		long ret;

		args.path = ADDRESS(path);
		args.argv = ADDRESS(STRINGS("child", "exit", "7"));
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		ret = sys_run(fd, &args, sizeof(args));
		_exit(ret < 0 ? -ret : reap(ret));
	}
	return pid;
}

TEST_F_TIMEOUT(events, ptrace_follows, TIMEOUT)
{
	long all = PTRACE_O_TRACEVFORK | PTRACE_O_TRACEVFORKDONE | PTRACE_O_TRACEFORK |
		   PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
	char seen[64];
	int status = -1;

	for (int i = 0; i < 5; i++) {
		trace(start_traced(self->fd, child_path), all, seen, sizeof(seen), &status);
		EXPECT_EQ(7 << 8, status);
		/* The child may reach exec before the tracer sees the parent's vfork event. So the
		 * test does not check the order of these two. */
		EXPECT_NE(NULL, strchr(seen, 'v'))
		{
			TH_LOG("events %s", seen);
		}
		EXPECT_NE(NULL, strchr(seen, 'e'));
		EXPECT_LT(strchr(seen, 'v'), strchr(seen, 'd'));
		EXPECT_NE(NULL, strchr(seen, 'x'));
		EXPECT_EQ(NULL, strchr(seen, 'f'));
	}
	forget_sigchld();
}

TEST_F_TIMEOUT(events, ptrace_and_failure, TIMEOUT)
{
	long all = PTRACE_O_TRACEVFORK | PTRACE_O_TRACEVFORKDONE | PTRACE_O_TRACEEXEC |
		   PTRACE_O_EXITKILL;
	char seen[64];
	int status = -1;

	for (int i = 0; i < 5; i++) {
		trace(start_traced(self->fd, "/nonexistent"), all, seen, sizeof(seen), &status);
		EXPECT_EQ(ENOENT << 8, status)
		{
			TH_LOG("events %s", seen);
		}
		EXPECT_EQ(NULL, strchr(seen, 'e'));
	}
	forget_sigchld();
}

/* If the tracer does not ask for fork events, the kernel does not trace the child. */
TEST_F_TIMEOUT(events, ptrace_without_options, TIMEOUT)
{
	char seen[64];
	int status = -1;

	trace(start_traced(self->fd, child_path), PTRACE_O_EXITKILL, seen, sizeof(seen), &status);
	EXPECT_EQ(7 << 8, status);
	EXPECT_STREQ("", seen);
	forget_sigchld();
}

/* If the tracer exits while its tracee is in pidfd_spawn_run(), PTRACE_O_EXITKILL kills the
 * tracee. */
TEST_F_TIMEOUT(events, ptrace_ends, TIMEOUT)
{
	for (int i = 0; i < 5; i++) {
		int pipes[2], status;
		char byte = 0;
		pid_t tracer;

		ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
		tracer = fork();
		if (tracer == 0) {
			pid_t pid, tracee = start_traced(self->fd, child_path);

			waitpid(tracee, &status, 0);
			ptrace(PTRACE_SETOPTIONS, tracee, 0,
			       PTRACE_O_TRACEVFORK | PTRACE_O_EXITKILL);
			ptrace(PTRACE_CONT, tracee, 0, 0);
			pid = waitpid(tracee, &status, __WALL);
			if (pid == tracee && status >> 16 == PTRACE_EVENT_VFORK)
				byte = 1;
			_exit(write(pipes[1], &byte, 1) != 1);
		}
		close(pipes[1]);
		ASSERT_EQ(tracer, waitpid(tracer, &status, 0));
		EXPECT_EQ(0, status);
		EXPECT_EQ(1, read(pipes[0], &byte, 1));
		EXPECT_EQ(1, byte);
		/* The tracee has the last write end of the pipe. The read returns 0 when the tracee
		 * is dead. */
		EXPECT_EQ(0, read(pipes[0], &byte, 1));
		close(pipes[0]);
	}
	forget_sigchld();
}

static int filter_call(long number, unsigned int action)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {COUNT(code), code};

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

TEST_F_TIMEOUT(events, seccomp_by_number, TIMEOUT)
{
	ASSERT_EQ(0, filter_call(__NR_pidfd_config, SECCOMP_RET_ERRNO | ENOTTY));
	EXPECT_EQ(-ENOTTY, SET(RESET, ENVP, NULL, 0));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(0, self->it.code);
	/* The child inherits the filter and no_new_privs. */
	EXPECT_TRUE(has_line(self->it.out, "Seccomp:\t2"));
	EXPECT_TRUE(has_line(self->it.out, "nnp=1"));
	ASSERT_EQ(0, filter_call(__NR_pidfd_spawn_run, SECCOMP_RET_ERRNO | EXDEV));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(-EXDEV, self->it.ret);
	EXPECT_NO_CHILD();
}

/* The program inherits the filter, which kills it at exit_group(). The test has the same filter, so
 * it ends with exit(). */
TEST_F_TIMEOUT(events, seccomp_in_child, TIMEOUT)
{
	ASSERT_EQ(0, filter_call(__NR_exit_group, SECCOMP_RET_KILL_PROCESS));
	start(&self->it, self->fd, STRINGS("child", "exit", "0"), NULL, 0, 0);
	EXPECT_EQ(128 + SIGSYS, self->it.code);
	syscall(__NR_exit, 0);
}

/* Process accounting and the process connector report a failed spawn like a failed posix_spawn():
 * the child exits with 127. No signal has killed it. */
TEST_F_TIMEOUT(events, failures_exit_with_127, TIMEOUT)
{
	struct spawn_args args = make_args(NULL, 0);
	struct acct_v3 record;
	int fd, seen = 0;

	if (acct("accounting") < 0 && errno == ENOENT)
		write_file("accounting", "", 0600);
	if (acct("accounting") < 0)
		SKIP(return, "no process accounting: %s", strerror(errno));
	args.path = ADDRESS("/nonexistent");
	args.argv = ADDRESS(STRINGS("x"));
	EXPECT_EQ(-ENOENT, sys_run(self->fd, &args, sizeof(args)));
	ASSERT_EQ(0, acct(NULL));
	fd = open("accounting", O_RDONLY | O_CLOEXEC);
	while (read(fd, &record, sizeof(record)) == sizeof(record)) {
		if ((pid_t)record.ac_ppid != getpid())
			continue;
		seen++;
		EXPECT_EQ(127 << 8, record.ac_exitcode);
		EXPECT_EQ(0, record.ac_flag & AXSIG);
	}
	EXPECT_EQ(1, seen);
	close(fd);
	EXPECT_NO_CHILD();
}

TEST_F_TIMEOUT(events, failures_in_the_connector, TIMEOUT)
{
	struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = CN_IDX_PROC};
	struct {
		struct nlmsghdr head;
		struct cn_msg message;
		enum proc_cn_mcast_op op;
	} __attribute__((packed)) listen = {
		.head = {.nlmsg_len = sizeof(listen), .nlmsg_type = NLMSG_DONE},
		.message = {.id = {CN_IDX_PROC, CN_VAL_PROC}, .len = sizeof(listen.op)},
		.op = PROC_CN_MCAST_LISTEN,
	};
	struct spawn_args args = make_args(NULL, 0);
	char buffer[4096];
	bool ended = false;
	pid_t child = -1;
	int fd;

	fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_CONNECTOR);
	if (fd < 0)
		SKIP(return, "no connector: %s", strerror(errno));
	ASSERT_EQ(0, bind(fd, (struct sockaddr *)&address, sizeof(address)));
	ASSERT_EQ(sizeof(listen), send(fd, &listen, sizeof(listen), 0));
	args.path = ADDRESS("/nonexistent");
	args.argv = ADDRESS(STRINGS("x"));
	EXPECT_EQ(-ENOENT, sys_run(self->fd, &args, sizeof(args)));
	while (!ended && recv(fd, buffer, sizeof(buffer), 0) > 0) {
		struct cn_msg *message = NLMSG_DATA((struct nlmsghdr *)buffer);
		struct proc_event event;

		memcpy(&event, message->data, sizeof(event));
		if (event.what == PROC_EVENT_FORK && event.event_data.fork.parent_tgid == getpid())
			child = event.event_data.fork.child_tgid;
		if (event.what != PROC_EVENT_EXIT || event.event_data.exit.process_tgid != child)
			continue;
		ended = true;
		EXPECT_EQ(127U << 8, event.event_data.exit.exit_code);
	}
	EXPECT_TRUE(ended);
	close(fd);
	EXPECT_NO_CHILD();
}

/* Returns 0 if a process with the ids NOBODY can do nothing with the other process: not trace it,
 * not take its descriptors, and not see them in /proc. Otherwise returns what it can do. */
#define NOBODY 4242
static int look_into(pid_t pid)
{
	char path[64];
	int pidfd;

	if (setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0)
		return 1;
	pidfd = sys_pidfd_open(pid, 0);
	if (pidfd < 0)
		return 2;
	if (syscall(__NR_pidfd_getfd, pidfd, 0, 0) >= 0 || errno != EPERM)
		return 3;
	if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0 || errno != EPERM)
		return 4;
	if (ptrace(PTRACE_ATTACH, pid, 0, 0) == 0 || errno != EPERM)
		return 5;
	snprintf(path, sizeof(path), "/proc/%d/fd/0", pid);
	if (open(path, O_PATH | O_CLOEXEC) >= 0 || errno != EACCES)
		return 6;
	return 0;
}

/* A child whose ids have changed has the descriptors of its creator until exec. Processes with the
 * child's new ids cannot look into it, although it has no mm whose dumpability could forbid that.
 */
TEST_F_TIMEOUT(events, ids_change_before_exec, TIMEOUT)
{
	static const struct spawn_action ids[] = {
		{ACTION(SETRESGID), .fd = NOBODY, .newfd = NOBODY, .arg = NOBODY},
		{ACTION(SETRESUID), .fd = NOBODY, .newfd = NOBODY, .arg = NOBODY},
	};
	char path[64], line[256], scope[16] = "";
	const char *yama = "/proc/sys/kernel/yama/ptrace_scope";
	pid_t caller, child, other;
	int status, uid = 0;

	if (getuid() != 0)
		SKIP(return, "not root");
	/* Yama would allow only ancestors to trace. Here, only the ids must matter. */
	file_text(yama, scope, sizeof(scope));
	put_text(yama, "0");
	ASSERT_EQ(0, sys_config_actions(self->fd, ids, COUNT(ids)));
	caller = start_blocked(self->fd, &child);
	ASSERT_LT(0, caller);
	while (uid != NOBODY) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%d/status", child);
		file = fopen(path, "re");
		ASSERT_NE(NULL, file);
		while (fgets(line, sizeof(line), file))
			sscanf(line, "Uid: %d", &uid);
		fclose(file);
		sched_yield();
	}
	other = fork();
	if (other == 0)
		_exit(look_into(child));
	ASSERT_EQ(other, waitpid(other, &status, 0));
	EXPECT_EQ(0, status);
	close(open("fifo", O_WRONLY | O_CLOEXEC));
	ASSERT_EQ(caller, waitpid(caller, &status, 0));
	EXPECT_EQ(0, status);

	/* The same attempts succeed with a process that did not have other ids before. */
	child = fork();
	if (child == 0) {
		if (setresgid(NOBODY, NOBODY, NOBODY) < 0 ||
		    setresuid(NOBODY, NOBODY, NOBODY) < 0 || prctl(PR_SET_DUMPABLE, 1) < 0)
			_exit(1);
		raise(SIGSTOP);
		_exit(0);
	}
	ASSERT_EQ(child, waitpid(child, &status, WUNTRACED));
	ASSERT_TRUE(WIFSTOPPED(status));
	other = fork();
	if (other == 0)
		_exit(look_into(child));
	ASSERT_EQ(other, waitpid(other, &status, 0));
	EXPECT_EQ(3 << 8, status);
	kill(child, SIGKILL);
	ASSERT_EQ(child, waitpid(child, &status, 0));
	if (*scope)
		put_text(yama, scope);
	forget_sigchld();
}

TEST_F_TIMEOUT(events, setuid_programs, TIMEOUT)
{
	static const struct spawn_action no_new_privs = {ACTION(NO_NEW_PRIVS)};

	if (getuid() != 0)
		SKIP(return, "not root");
	copy_file(child_path, "suid", 04755);
	copy_file(child_path, "sgid", 02755);
	ASSERT_EQ(0, chown("sgid", 0, 777));
	ASSERT_EQ(0, chmod("sgid", 02755));
	ASSERT_EQ(0, setresgid(4242, 4242, 4242));
	ASSERT_EQ(0, setresuid(4242, 4242, 4242));
	renew(&self->fd, STRINGS("child", "state"));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_TRUE(has_line(self->it.out, "uids=4242 4242 4242"));
	EXPECT_TRUE(has_line(self->it.out, "secure=0"));
	EXPECT_TRUE(has_line(self->it.out, "CapPrm:\t0000000000000000"));
	ASSERT_EQ(0, SET(SET_STRING, PATH, "./suid", 0));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_TRUE(has_line(self->it.out, "uids=4242 0 0"));
	EXPECT_TRUE(has_line(self->it.out, "secure=1"));
	EXPECT_TRUE(has_line(self->it.out, "dumpable=0"));
	start(&self->it, self->fd, NULL, &no_new_privs, 1, 0);
	EXPECT_TRUE(has_line(self->it.out, "uids=4242 4242 4242"));
	EXPECT_TRUE(has_line(self->it.out, "secure=0"));
	ASSERT_EQ(0, SET(SET_STRING, PATH, "./sgid", 0));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_TRUE(has_line(self->it.out, "gids=4242 777 777"));
	EXPECT_TRUE(has_line(self->it.out, "secure=1"));
	/* The caller keeps its own ids and stays dumpable. */
	EXPECT_EQ(4242, geteuid());
	prctl(PR_SET_DUMPABLE, 1);
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(1, prctl(PR_GET_DUMPABLE));
	/* exec clears the parent-death signal for a set-group-ID program. */
	struct spawn_action death = {ACTION(PDEATHSIG), .fd = SIGTERM};
	start(&self->it, self->fd, NULL, &death, 1, 0);
	EXPECT_TRUE(has_line(self->it.out, "pdeathsig=0"));
}

/* A user can execute a program without read permission. The process is then not dumpable. */
TEST_F_TIMEOUT(events, unreadable, TIMEOUT)
{
	if (getuid() != 0)
		SKIP(return, "not root");
	copy_file(child_path, "unreadable", 0711);
	ASSERT_EQ(0, setresuid(4242, 4242, 4242));
	renew(&self->fd, STRINGS("child", "state"));
	ASSERT_EQ(0, SET(SET_STRING, PATH, "./unreadable", 0));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_TRUE(has_line(self->it.out, "dumpable=0"));
}

TEST_F_TIMEOUT(events, landlock, TIMEOUT)
{
	struct landlock_ruleset_attr attributes = {.handled_access_fs = LANDLOCK_ACCESS_FS_EXECUTE};
	int ruleset = syscall(__NR_landlock_create_ruleset, &attributes, sizeof(attributes), 0);

	if (ruleset < 0)
		SKIP(return, "no Landlock: %s", strerror(errno));
	ASSERT_EQ(0, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	ASSERT_EQ(0, syscall(__NR_landlock_restrict_self, ruleset, 0));
	start(&self->it, self->fd, NULL, NULL, 0, 0);
	EXPECT_EQ(-EACCES, self->it.ret);
	EXPECT_EQ(SPAWN_FAILED_EXEC, self->it.failed);
	EXPECT_NO_CHILD();
	close(ruleset);
}

TEST_F_TIMEOUT(events, audit, TIMEOUT)
{
	struct audit_rule_data rule = {.flags = AUDIT_FILTER_EXIT, .action = AUDIT_ALWAYS};
	const char *problem;
	struct audit audit;
	char word[64];

	rule.mask[AUDIT_WORD(__NR_execve)] |= AUDIT_BIT(__NR_execve);
	rule.mask[AUDIT_WORD(__NR_execveat)] |= AUDIT_BIT(__NR_execveat);
	problem = audit_open(&audit, &rule);
	if (problem)
		SKIP(return, "%s", problem);
	/* Audit covers only processes that start after audit was enabled. So the test forks. */
	snprintf(word, sizeof(word), "audit-me-%d", getpid());
	pid_t pid = fork();
	if (pid == 0) {
		start(&self->it, self->fd, STRINGS("child", "args", word), NULL, 0, 0);
		SET(SET_STRING, PATH, "/nonexistent-audit", 0);
		start(&self->it, self->fd, STRINGS("child", "args", word), NULL, 0, 0);
		_exit(self->it.ret == -ENOENT ? 0 : 1);
	}
	int status = -1;
	waitpid(pid, &status, 0);
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, audit_stop(&audit, &rule));
	EXPECT_LE(1, audit_find(&audit, "type=1309", word, "argc=3"));
	snprintf(word, sizeof(word), " ppid=%d ", pid);
	EXPECT_EQ(1, audit_find(&audit, "type=1300", word, " success=yes exit=0 "));
	EXPECT_EQ(1, audit_find(&audit, "type=1300", word, " success=no exit=-2 "));
	close(audit.messages);
	forget_sigchld();
}

TEST_HARNESS_MAIN
