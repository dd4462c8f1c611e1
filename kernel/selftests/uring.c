// SPDX-License-Identifier: GPL-2.0-only
/* Tests IORING_OP_SPAWN, which works like pidfd_spawn_run(). Also tests it with links, with
 * cancellation, with SQPOLL rings, and under a seccomp filter. */
#include "spawn_test.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include "blocked.h"
#include "ring.h"
#include "kselftest_harness.h"

#ifdef HAVE_URING_SPAWN

FIXTURE(uring)
{
	int fd;
	int before;
	struct ring ring;
	struct spawn_args args;
};

FIXTURE_SETUP(uring)
{
	int error;

	block_sigchld();
	NEED_BUILDER(self->fd);
	close(self->fd);
	self->fd = builder_of(STRINGS("child", "exit", "3"));
	error = ring_open(&self->ring, 0);
	if (error)
		SKIP(return, "no io_uring: %s", strerror(-error));
	struct spawn_args *args = &self->args;
	*args = make_args(NULL, 0);
	queue_spawn(&self->ring, -1, args, 1);
	submit(&self->ring, 1);
	if (completion(&self->ring, 1) == -EINVAL)
		SKIP(return, "this kernel has no IORING_OP_SPAWN");
	self->before = next_fd();
}

FIXTURE_TEARDOWN(uring)
{
	EXPECT_EQ(self->before, next_fd());
	EXPECT_EQ(-1, waitpid(-1, NULL, WNOHANG | __WALL));
	close(self->ring.fd);
	close(self->fd);
}

TEST_F_TIMEOUT(uring, runs, TIMEOUT)
{
	int pidfd;

	for (int i = 0; i < 30; i++) {
		queue_spawn(&self->ring, self->fd, &self->args, 10);
		ASSERT_EQ(1, submit(&self->ring, 1));
		pidfd = completion(&self->ring, 10);
		ASSERT_LE(0, pidfd);
		EXPECT_LT(0, self->args.pid);
		EXPECT_EQ(FD_CLOEXEC, fcntl(pidfd, F_GETFD));
		EXPECT_EQ(3, reap_and_close(pidfd));
	}
}

/*
 * Checks that the child of a request is like a child of the system call. With
 * IOSQE_ASYNC, an io_uring worker thread gets the request first. The child must still
 * have the submitting task as its parent, and that task's signal mask.
 */
static void ordinary_child(struct __test_metadata *_metadata, struct ring *ring, int fd,
			   unsigned int flags)
{
	struct outcome it = {};
	int pipes[2], pidfd;
	struct spawn_action action = {.type = SPAWN_ACTION_DUP2, .newfd = 1};
	struct spawn_args args;

	ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
	action.fd = pipes[1];
	args = make_args(&action, 1);
	args.argv = ADDRESS(STRINGS("child", "state"));
	queue_spawn(ring, fd, &args, 10)->flags = flags;
	ASSERT_EQ(1, submit(ring, 1));
	pidfd = completion(ring, 10);
	ASSERT_LE(0, pidfd)
	{
		TH_LOG("flags %x: %d", flags, pidfd);
	}
	close(pipes[1]);
	read_all(pipes[0], it.out, sizeof(it.out));
	close(pipes[0]);
	EXPECT_EQ(0, reap_and_close(pidfd));
	EXPECT_TRUE(has_line(it.out, "ppid=%d", getpid()));
	EXPECT_TRUE(has_line(it.out, "mask=%d ", SIGCHLD));
	EXPECT_TRUE(has_line(it.out, "ignored="));
	EXPECT_TRUE(has_line(it.out, "pdeathsig=0"));
	EXPECT_TRUE(has_line(it.out, "fds=0 1 2 "));
	EXPECT_TRUE(has_line(it.out, "comm=child"));
	EXPECT_TRUE(has_line(it.out, "policy=0"));
}

TEST_F_TIMEOUT(uring, children_are_ordinary, TIMEOUT)
{
	for (int i = 0; i < 10; i++) {
		ordinary_child(_metadata, &self->ring, self->fd, 0);
		ordinary_child(_metadata, &self->ring, self->fd, IOSQE_ASYNC);
		ordinary_child(_metadata, &self->ring, self->fd, IOSQE_IO_DRAIN);
	}
}

TEST_F_TIMEOUT(uring, errors, TIMEOUT)
{
	static const int closed[] = {-1, INT_MIN, INT_MAX, 1 << 19, 0};
	struct io_uring_sqe *sqe;

	for (size_t i = 0; i < COUNT(closed); i++) {
		queue_spawn(&self->ring, closed[i], &self->args, 10);
		submit(&self->ring, 1);
		EXPECT_EQ(-EBADF, completion(&self->ring, 10));
	}
	self->args.path = ADDRESS("/nonexistent");
	queue_spawn(&self->ring, self->fd, &self->args, 10);
	submit(&self->ring, 1);
	EXPECT_EQ(-ENOENT, completion(&self->ring, 10));
	EXPECT_EQ(SPAWN_FAILED_EXEC, self->args.failed);
	self->args.path = 0;
	static const unsigned int short_ones[] = {0, 1, 63};
	for (size_t i = 0; i < COUNT(short_ones); i++) {
		sqe = queue_spawn(&self->ring, self->fd, &self->args, 10);
		sqe->len = short_ones[i];
		submit(&self->ring, 1);
		EXPECT_EQ(-EINVAL, completion(&self->ring, 10));
	}
	static const unsigned int huge[] = {4097, INT_MAX, UINT_MAX};
	for (size_t i = 0; i < COUNT(huge); i++) {
		sqe = queue_spawn(&self->ring, self->fd, &self->args, 10);
		sqe->len = huge[i];
		submit(&self->ring, 1);
		EXPECT_EQ(-E2BIG, completion(&self->ring, 10));
	}
	sqe = queue_spawn(&self->ring, self->fd, &self->args, 10);
	sqe->addr = BAD_ADDRESS;
	submit(&self->ring, 1);
	EXPECT_EQ(-EFAULT, completion(&self->ring, 10));
	for (int member = 0; member < 7; member++) {
		sqe = queue_spawn(&self->ring, self->fd, &self->args, 10);
		switch (member) {
		case 0:
			sqe->off = 1;
			break;
		case 1:
			sqe->rw_flags = 1;
			break;
		case 2:
			sqe->ioprio = 1;
			break;
		case 3:
			sqe->buf_index = 1;
			break;
		case 4:
			sqe->file_index = 1;
			break;
		case 5:
			sqe->addr3 = 1;
			break;
		case 6:
			sqe->__pad2[0] = 1;
			break;
		}
		submit(&self->ring, 1);
		EXPECT_EQ(-EINVAL, completion(&self->ring, 10))
		{
			TH_LOG("member %d", member);
		}
	}
	sqe = queue_spawn(&self->ring, 0, &self->args, 10);
	sqe->flags = IOSQE_FIXED_FILE;
	submit(&self->ring, 1);
	EXPECT_GT(0, completion(&self->ring, 10));
	sqe = queue_spawn(&self->ring, self->fd, &self->args, 10);
	sqe->flags = IOSQE_BUFFER_SELECT;
	submit(&self->ring, 1);
	EXPECT_GT(0, completion(&self->ring, 10));
	EXPECT_NO_CHILD();
}

/* A failed spawn cancels the requests linked behind it, unless the link is a hard link.
 * After a successful spawn, the next linked request runs. */
TEST_F_TIMEOUT(uring, links, TIMEOUT)
{
	struct spawn_args bad = make_args(NULL, 0), second = make_args(NULL, 0);
	struct io_uring_sqe *sqe;
	int pidfd;

	bad.path = ADDRESS("/nonexistent");
	sqe = queue_spawn(&self->ring, self->fd, &bad, 10);
	sqe->flags = IOSQE_IO_LINK;
	sqe = queue_spawn(&self->ring, self->fd, &second, 11);
	sqe->flags = IOSQE_IO_LINK;
	queue(&self->ring, IORING_OP_NOP, 12);
	submit(&self->ring, 3);
	EXPECT_EQ(-ENOENT, completion(&self->ring, 10));
	EXPECT_EQ(-ECANCELED, completion(&self->ring, 11));
	EXPECT_EQ(-ECANCELED, completion(&self->ring, 12));
	EXPECT_NO_CHILD();
	sqe = queue_spawn(&self->ring, self->fd, &bad, 20);
	sqe->flags = IOSQE_IO_HARDLINK;
	queue_spawn(&self->ring, self->fd, &second, 21);
	submit(&self->ring, 2);
	EXPECT_EQ(-ENOENT, completion(&self->ring, 20));
	pidfd = completion(&self->ring, 21);
	ASSERT_LE(0, pidfd);
	EXPECT_EQ(3, reap_and_close(pidfd));
	sqe = queue(&self->ring, IORING_OP_NOP, 30);
	sqe->flags = IOSQE_IO_LINK;
	sqe = queue_spawn(&self->ring, self->fd, &second, 31);
	sqe->flags = IOSQE_IO_LINK;
	queue(&self->ring, IORING_OP_NOP, 32);
	submit(&self->ring, 3);
	EXPECT_EQ(0, completion(&self->ring, 30));
	EXPECT_EQ(0, completion(&self->ring, 32));
	pidfd = completion(&self->ring, 31);
	ASSERT_LE(0, pidfd);
	EXPECT_EQ(3, reap_and_close(pidfd));
}

/* A spawn is linked behind a read that blocks. It starts when the read completes.
 * If the read is cancelled, the spawn is cancelled, too. */
TEST_F_TIMEOUT(uring, behind_what_waits, TIMEOUT)
{
	struct io_uring_sqe *sqe;
	int pipes[2], pidfd;
	char byte = 0;

	ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
	for (int round = 0; round < 6; round++) {
		sqe = queue(&self->ring, IORING_OP_READ, 10);
		sqe->fd = pipes[0];
		sqe->addr = ADDRESS(&byte);
		sqe->len = 1;
		sqe->off = -1ULL;
		sqe->flags = IOSQE_IO_LINK;
		queue_spawn(&self->ring, self->fd, &self->args, 11);
		ASSERT_EQ(2, submit(&self->ring, 0));
		EXPECT_EQ(-1, waitpid(-1, NULL, WNOHANG | __WALL));
		if (round % 2) {
			ASSERT_EQ(1, write(pipes[1], "x", 1));
			EXPECT_EQ(1, completion(&self->ring, 10));
			pidfd = completion(&self->ring, 11);
			ASSERT_LE(0, pidfd)
			{
				TH_LOG("round %d: %d", round, pidfd);
			}
			EXPECT_EQ(3, reap_and_close(pidfd));
		} else {
			sqe = queue(&self->ring, IORING_OP_ASYNC_CANCEL, 12);
			sqe->addr = round % 4 ? 11 : 10;
			submit(&self->ring, 0);
			if (round % 4) {
				completion(&self->ring, 12);
				ASSERT_EQ(1, write(pipes[1], "x", 1));
				completion(&self->ring, 10);
				pidfd = completion(&self->ring, 11);
				if (pidfd >= 0)
					reap_and_close(pidfd);
			} else {
				EXPECT_EQ(0, completion(&self->ring, 12));
				EXPECT_EQ(-ECANCELED, completion(&self->ring, 10));
				EXPECT_EQ(-ECANCELED, completion(&self->ring, 11));
			}
		}
	}
	close(pipes[0]);
	close(pipes[1]);
	self->before = next_fd();
}

/* The kernel copies what a request points to before the submission returns. The program can then
 * overwrite all of it, although the child is created later. */
TEST_F_TIMEOUT(uring, arguments_are_copied, TIMEOUT)
{
	for (int round = 0; round < 2; round++) {
		char path[PATH_MAX], word[] = "before", variable[] = "A=before", directory[] = "/";
		const char *argv[] = {"child", "args", word, NULL}, *envp[] = {variable, NULL};
		struct spawn_action actions[2] = {};
		struct io_uring_sqe *sqe;
		int in[2], out[2], pidfd;
		char byte = 0, text[256];

		ASSERT_EQ(0, pipe2(in, O_CLOEXEC));
		ASSERT_EQ(0, pipe2(out, O_CLOEXEC));
		strcpy(path, child_path);
		actions[0].type = SPAWN_ACTION_DUP2;
		actions[0].fd = out[1];
		actions[0].newfd = 1;
		actions[1].type = SPAWN_ACTION_CHDIR;
		actions[1].arg = ADDRESS(directory);
		self->args = make_args(actions, COUNT(actions));
		self->args.path = ADDRESS(path);
		self->args.argv = ADDRESS(argv);
		self->args.envp = ADDRESS(envp);
		sqe = queue(&self->ring, IORING_OP_READ, 10);
		sqe->fd = in[0];
		sqe->addr = ADDRESS(&byte);
		sqe->len = 1;
		sqe->off = -1ULL;
		sqe->flags = IOSQE_IO_LINK;
		sqe = queue_spawn(&self->ring, self->fd, &self->args, 11);
		sqe->flags = round ? IOSQE_ASYNC : 0;
		ASSERT_EQ(2, submit(&self->ring, 0));

		memset(&self->args, 0xff, sizeof(self->args));
		memset(actions, 0xff, sizeof(actions));
		strcpy(path, "/nonexistent");
		strcpy(word, "after");
		strcpy(variable, "A=after");
		strcpy(directory, "?");
		argv[0] = envp[0] = BAD_POINTER;
		ASSERT_EQ(1, write(in[1], "x", 1));
		EXPECT_EQ(1, completion(&self->ring, 10));
		pidfd = completion(&self->ring, 11);
		close(out[1]);
		ASSERT_LE(0, pidfd)
		{
			TH_LOG("round %d: %d, failed %d", round, pidfd, self->args.failed);
		}
		read_all(out[0], text, sizeof(text));
		EXPECT_STREQ("arg=child\narg=args\narg=before\nenv=A=before\n", text);
		EXPECT_LT(0, self->args.pid);
		EXPECT_EQ(0, reap_and_close(pidfd));
		close(in[0]);
		close(in[1]);
		close(out[0]);
	}
}

/* Forks a process that spawns, and stops it where its io_uring_enter() begins. Returns its pid. The
 * process exits with the status of the program, or with 100 plus the error. */
static pid_t stop_at_submission(FIXTURE_DATA(uring) * self)
{
	struct __ptrace_syscall_info info;
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		struct ring ring;
		int pidfd;

		if (ring_open(&ring, 0))
			_exit(99);
		queue_spawn(&ring, self->fd, &self->args, 10);
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		raise(SIGSTOP);
		submit(&ring, 0);
		pidfd = completion(&ring, 10);
		_exit(pidfd < 0 ? 100 - pidfd : reap(pidfd));
	}
	if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status) ||
	    ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL))
		abort();
	do {
		memset(&info, 0, sizeof(info));
		if (ptrace(PTRACE_SYSCALL, pid, 0, 0) || waitpid(pid, &status, 0) != pid ||
		    !WIFSTOPPED(status) ||
		    ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) < 0)
			abort();
	} while (info.op != PTRACE_SYSCALL_INFO_ENTRY || info.entry.nr != __NR_io_uring_enter);
	return pid;
}

/* A stop signal that is pending during the submission delays the child. It does not fail the
 * request. */
TEST_F_TIMEOUT(uring, stopped_at_submission, TIMEOUT)
{
	pid_t pid = stop_at_submission(self);
	int status;

	ASSERT_EQ(0, kill(pid, SIGSTOP));
	ASSERT_EQ(0, ptrace(PTRACE_DETACH, pid, 0, 0));
	ASSERT_EQ(pid, waitpid(pid, &status, WUNTRACED));
	ASSERT_TRUE(WIFSTOPPED(status));
	ASSERT_EQ(0, kill(pid, SIGCONT));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(3 << 8, status);
	forget_sigchld();
}

static void handle(int signal)
{
}

/* The same for a signal that has a handler. */
TEST_F_TIMEOUT(uring, interrupted_at_submission, TIMEOUT)
{
	pid_t pid;
	int status;

	signal(SIGUSR1, handle);
	pid = stop_at_submission(self);
	ASSERT_EQ(0, kill(pid, SIGUSR1));
	ASSERT_EQ(0, ptrace(PTRACE_DETACH, pid, 0, 0));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(3 << 8, status);
	forget_sigchld();
}

/* The same for the cgroup freezer. */
TEST_F_TIMEOUT(uring, frozen_at_submission, TIMEOUT)
{
	char group[] = "/sys/fs/cgroup/uring-XXXXXX", path[64], text[64], state;
	pid_t pid;
	int status;

	if (getuid() != 0 || !mkdtemp(group))
		SKIP(return, "no cgroup v2 here: %s", strerror(errno));
	pid = stop_at_submission(self);
	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	snprintf(text, sizeof(text), "%d", pid);
	ASSERT_EQ(0, put_text(path, text));
	snprintf(path, sizeof(path), "%s/cgroup.freeze", group);
	ASSERT_EQ(0, put_text(path, "1"));
	ASSERT_EQ(0, ptrace(PTRACE_DETACH, pid, 0, 0));
	/* The freezer's state is an interruptible sleep. */
	do {
		char name[64];

		sched_yield();
		snprintf(name, sizeof(name), "/proc/%d/stat", pid);
		ASSERT_EQ(1, sscanf(strrchr(file_text(name, text, sizeof(text)), ')') + 1, " %c",
				    &state));
	} while (state != 'S');
	ASSERT_EQ(0, put_text(path, "0"));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(3 << 8, status);
	forget_sigchld();
	EXPECT_EQ(0, rmdir(group));
}

/* The signals that a process blocks. */
static unsigned long blocked_by(pid_t pid)
{
	char path[64], line[256];
	unsigned long mask = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, "SigBlk:", 7) == 0)
			mask = strtoul(line + 7, NULL, 16);
	if (file)
		fclose(file);
	return mask;
}

/* Task work can create the child while the submitter has a signal mask only for one call. A signal
 * lets the submitter restore its mask, but not the child, which keeps the mask of its action. */
TEST_F_TIMEOUT(uring, temporary_mask, TIMEOUT)
{
	__u64 signals = 1ULL << (SIGUSR1 - 1);
	struct spawn_sigset set = {ADDRESS(&signals), sizeof(signals)};
	struct timespec most = {2, 0};
	int pipes[2], in[2], out[2], pidfd, status;
	struct io_uring_sqe *sqe;
	sigset_t mask;
	char byte;

	ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
	ASSERT_EQ(0, pipe2(in, O_CLOEXEC));
	ASSERT_EQ(0, pipe2(out, O_CLOEXEC));
	struct spawn_action actions[] = {
		{.type = SPAWN_ACTION_SIGMASK, .arg = ADDRESS(&set)},
		{.type = SPAWN_ACTION_DUP2, .fd = in[0], .newfd = 0},
		{.type = SPAWN_ACTION_DUP2, .fd = out[1], .newfd = 1},
	};
	struct spawn_args args = make_args(actions, COUNT(actions));

	args.argv = ADDRESS(STRINGS("child", "hold"));
	sqe = queue(&self->ring, IORING_OP_READ, 10);
	sqe->fd = pipes[0];
	sqe->addr = ADDRESS(&byte);
	sqe->len = 1;
	sqe->off = -1ULL;
	sqe->flags = IOSQE_IO_LINK;
	queue_spawn(&self->ring, self->fd, &args, 11);
	ASSERT_EQ(2, submit(&self->ring, 0));
	pid_t pid = fork();
	if (pid == 0) {
		until_asleep(getppid());
		_exit(write(pipes[1], "x", 1) != 1);
	}
	sigfillset(&mask);
	ppoll(NULL, 0, &most, &mask);
	EXPECT_EQ(1, completion(&self->ring, 10));
	pidfd = completion(&self->ring, 11);
	ASSERT_LE(0, pidfd);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	ASSERT_EQ(1, read(out[0], &byte, 1));
	EXPECT_EQ(signals, blocked_by(args.pid));
	kill(args.pid, SIGSTOP);
	ASSERT_EQ(args.pid, waitpid(args.pid, &status, WUNTRACED));
	kill(args.pid, SIGCONT);
	ASSERT_EQ(args.pid, waitpid(args.pid, &status, WCONTINUED));
	until_asleep(args.pid);
	EXPECT_EQ(signals, blocked_by(args.pid));
	close(in[1]);
	EXPECT_EQ(0, reap_and_close(pidfd));
	close(in[0]);
	close(out[0]);
	close(out[1]);
	close(pipes[0]);
	close(pipes[1]);
	forget_sigchld();
}

TEST_F_TIMEOUT(uring, many_at_once, TIMEOUT)
{
	struct spawn_args args[40];
	int pidfd;

	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < COUNT(args); i++) {
			args[i] = make_args(NULL, 0);
			if (i % 4 == 3)
				args[i].path = ADDRESS("/nonexistent");
			queue_spawn(&self->ring, self->fd, args + i, i);
		}
		ASSERT_EQ(COUNT(args), submit(&self->ring, COUNT(args)));
		for (size_t i = 0; i < COUNT(args); i++) {
			pidfd = completion(&self->ring, i);
			if (i % 4 == 3) {
				EXPECT_EQ(-ENOENT, pidfd);
				continue;
			}
			ASSERT_LE(0, pidfd);
			EXPECT_EQ(3, reap_and_close(pidfd));
		}
	}
}

/* With SQPOLL, a kernel thread submits the request.
 * It cannot create a child of the caller, so the request fails. */
TEST_F_TIMEOUT(uring, sqpoll, TIMEOUT)
{
	struct ring ring;
	int error = ring_open(&ring, IORING_SETUP_SQPOLL);

	if (error)
		SKIP(return, "no SQPOLL: %s", strerror(-error));
	self->before = next_fd();
	queue_spawn(&ring, self->fd, &self->args, 10);
	__atomic_store_n(ring.sq_tail, *ring.sq_tail + 1, __ATOMIC_RELEASE);
	syscall(__NR_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP,
		NULL, 0);
	EXPECT_EQ(-EINVAL, completion(&ring, 10));
	close(ring.fd);
	self->before = next_fd();
}

/* seccomp filters cannot see io_uring requests. A task that has a filter therefore gets EACCES. */
TEST_F_TIMEOUT(uring, under_a_filter, TIMEOUT)
{
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {1, &allow};

	ASSERT_EQ(0, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	ASSERT_EQ(0, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
	queue_spawn(&self->ring, self->fd, &self->args, 10);
	submit(&self->ring, 1);
	EXPECT_EQ(-EACCES, completion(&self->ring, 10));
	queue_spawn(&self->ring, self->fd, &self->args, 10)->flags = IOSQE_ASYNC;
	submit(&self->ring, 1);
	EXPECT_EQ(-EACCES, completion(&self->ring, 10));
}

/* The process closes the ring, exits or is killed while a spawn is linked behind a read
 * that blocks. */
TEST_F_TIMEOUT(uring, closed_meanwhile, TIMEOUT)
{
	for (int i = 0; i < 10; i++) {
		int pipes[2], status;
		pid_t pid;

		ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
		pid = fork();
		if (pid == 0) {
			struct io_uring_sqe *sqe;
			struct ring ring;
			char byte;

			if (ring_open(&ring, 0))
				_exit(1);
			sqe = queue(&ring, IORING_OP_READ, 10);
			sqe->fd = pipes[0];
			sqe->addr = ADDRESS(&byte);
			sqe->len = 1;
			sqe->flags = IOSQE_IO_LINK;
			queue_spawn(&ring, self->fd, &self->args, 11);
			submit(&ring, 0);
			if (i % 3 == 0)
				_exit(0);
			if (i % 3 == 1)
				close(ring.fd);
			raise(SIGKILL);
		}
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		EXPECT_EQ(i % 3 ? SIGKILL : 0, status);
		close(pipes[0]);
		close(pipes[1]);
	}
}

#else

TEST(operation)
{
	SKIP(return, "the series has no IORING_OP_SPAWN");
}

#endif

TEST_HARNESS_MAIN
