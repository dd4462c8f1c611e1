// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tests the system calls of 32-bit programs. This 64-bit program makes them with
 * int $0x80, and passes addresses below 4 GiB. Two things differ from 64-bit
 * calls: lists of strings have 32-bit pointers, and audit records i386 calls.
 */
#include "spawn_test.h"
#include <elf.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include "audit.h"
#include "kselftest_harness.h"

#ifdef __x86_64__

#define ACTION(name) .type = SPAWN_ACTION_##name
#define I386_exit 1
#define I386_waitpid 7
#define I386_getpid 20
#define I386_setresuid32 208
#define I386_execveat 358
#define I386_io_uring_setup 425
#define I386_io_uring_enter 426
#define I386_pidfd_open 434
#define I386_setsid 66
#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define IS(value, others) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, others)
#define ANSWER(answer) BPF_STMT(BPF_RET | BPF_K, answer)

static long call(long number, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e)
{
	int ret;

	asm volatile("int $0x80"
		     : "=a"(ret)
		     : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
		     : "memory", "cc", "r8", "r9", "r10", "r11");
	return ret;
}

static char *arena, *arena_end;

/* Returns a copy of an object below 4 GiB, where 32-bit pointers reach it. If `from` is NULL, the
 * memory is zero. */
static void *low(const void *from, size_t size)
{
	char *at = arena;

	arena += (size + 15) & ~15UL;
	if (arena > arena_end)
		abort();
	return from ? memcpy(at, from, size) : memset(at, 0, size);
}

static void *low_string(const char *text)
{
	return low(text, strlen(text) + 1);
}

static __u32 *low_strings(const char *const *strings)
{
	size_t count = 0;
	__u32 *list;

	while (strings[count])
		count++;
	list = low(NULL, (count + 1) * sizeof(*list));
	for (size_t i = 0; i < count; i++)
		list[i] = (uintptr_t)low_string(strings[i]);
	/* Put nonzero bytes behind the list and its strings, in case the kernel reads too far. */
	low("\xff\xff\xff\xff", 4);
	return list;
}

FIXTURE(compat)
{
	int fd;
	int before;
	int pipes[2];
	struct spawn_args *args;
	char out[8192];
};

FIXTURE_SETUP(compat)
{
	int status;
	pid_t pid = fork();

	if (pid == 0)
		_exit(call(I386_getpid, 0, 0, 0, 0, 0) == getpid() ? 0 : 1);
	waitpid(pid, &status, 0);
	if (status)
		SKIP(return, "this kernel has no 32-bit system calls");
	block_sigchld();
	forget_sigchld();
	own_directory();
	self->before = next_fd();
	arena = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT,
		     -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)arena);
	arena_end = arena + (1 << 20);
	self->fd = call(I386_pidfd_open, 0, PIDFD_EMPTY, 0, 0, 0);
	if (self->fd == -EINVAL)
		SKIP(return, "this kernel has no PIDFD_EMPTY");
	ASSERT_LE(0, self->fd);
	ASSERT_EQ(0, call(__NR_pidfd_config, self->fd, PIDFD_CONFIG_SET_STRING,
			  PIDFD_CONFIG_KEY_PATH, (uintptr_t)low_string(child_path), 0));
	ASSERT_EQ(0, pipe2(self->pipes, O_CLOEXEC));
	self->args = low(NULL, sizeof(*self->args));
}

FIXTURE_TEARDOWN(compat)
{
	close(self->fd);
	close(self->pipes[0]);
	EXPECT_EQ(self->before, next_fd());
}

/* Runs the builder with these actions, after an action that sends the child's output to a pipe.
 * Reads the output to its end. */
static long run(FIXTURE_DATA(compat) * self, const struct spawn_action *actions, int count)
{
	struct spawn_action *all = low(NULL, (count + 1) * sizeof(*all));
	long ret;

	all[0] = (struct spawn_action){ACTION(DUP2), .fd = self->pipes[1], .newfd = 1};
	if (count)
		memcpy(all + 1, actions, count * sizeof(*all));
	self->args->actions = (uintptr_t)all;
	self->args->nr_actions = count + 1;
	self->args->action_size = sizeof(*all);
	ret = call(__NR_pidfd_spawn_run, self->fd, (uintptr_t)self->args, sizeof(*self->args), 0,
		   0);
	close(self->pipes[1]);
	if (ret >= 0)
		read_all(self->pipes[0], self->out, sizeof(self->out));
	return ret;
}

TEST_F_TIMEOUT(compat, given, TIMEOUT)
{
	long pidfd;

	self->args->argv = (uintptr_t)low_strings(STRINGS("child", "args", "", "two words"));
	self->args->envp = (uintptr_t)low_strings(STRINGS("A=1", "B="));
	pidfd = run(self, NULL, 0);
	ASSERT_LE(0, pidfd);
	EXPECT_LT(0, self->args->pid);
	EXPECT_STREQ("arg=child\narg=args\narg=\narg=two words\nenv=A=1\nenv=B=\n", self->out);
	EXPECT_EQ(0, reap_and_close(pidfd));
}

TEST_F_TIMEOUT(compat, configured, TIMEOUT)
{
	long pidfd;

	ASSERT_EQ(0,
		  call(__NR_pidfd_config, self->fd, PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ARGV,
		       (uintptr_t)low_strings(STRINGS("child", "args", "x")), 0));
	ASSERT_EQ(0, call(__NR_pidfd_config, self->fd, PIDFD_CONFIG_SET_STRINGS,
			  PIDFD_CONFIG_KEY_ENVP, (uintptr_t)low_strings(STRINGS("A=1", "B=2")), 0));
	pidfd = run(self, NULL, 0);
	ASSERT_LE(0, pidfd);
	EXPECT_STREQ("arg=child\narg=args\narg=x\nenv=A=1\nenv=B=2\n", self->out);
	EXPECT_EQ(0, reap_and_close(pidfd));
}

TEST_F_TIMEOUT(compat, refused, TIMEOUT)
{
	__u32 *list = low_strings(STRINGS("child"));
	uintptr_t args = (uintptr_t)self->args;

	/* A 32-bit caller passes 32-bit arguments. The kernel must read -1 as a negative
	 * descriptor, and UINT_MAX as a size. */
	EXPECT_EQ(-EBADF, call(__NR_pidfd_config, self->fd, PIDFD_CONFIG_SET_FD,
			       PIDFD_CONFIG_KEY_CWD, 0, -1));
	EXPECT_EQ(-EBADF, call(__NR_pidfd_spawn_run, -1, args, sizeof(*self->args), 0, 0));
	EXPECT_EQ(-E2BIG, call(__NR_pidfd_spawn_run, self->fd, args, UINT_MAX, 0, 0));
	EXPECT_EQ(-EFAULT,
		  call(__NR_pidfd_spawn_run, self->fd, UINT_MAX - 7, sizeof(*self->args), 0, 0));
	list[0] = 1;
	self->args->argv = (uintptr_t)list;
	EXPECT_EQ(-EFAULT, call(__NR_pidfd_spawn_run, self->fd, args, sizeof(*self->args), 0, 0));
	EXPECT_EQ(-EFAULT, call(__NR_pidfd_config, self->fd, PIDFD_CONFIG_SET_STRINGS,
				PIDFD_CONFIG_KEY_ARGV, (uintptr_t)list, 0));
	list[0] = 0;
	EXPECT_EQ(-EINVAL, call(__NR_pidfd_spawn_run, self->fd, args, sizeof(*self->args), 0, 0));
	/* Pointers in structures have 64 bits for 32-bit callers too. The kernel must not ignore
	 * the upper half. */
	self->args->argv = 1ULL << 63 | (uintptr_t)low_strings(STRINGS("child"));
	EXPECT_EQ(-EFAULT, call(__NR_pidfd_spawn_run, self->fd, args, sizeof(*self->args), 0, 0));
	close(self->pipes[1]);
	EXPECT_NO_CHILD();
}

/* Actions of 32-bit and 64-bit callers point to the same structures. */
TEST_F_TIMEOUT(compat, actions, TIMEOUT)
{
	__u64 usr1 = 1ULL << (SIGUSR1 - 1), last = 1ULL << 63;
	struct spawn_sigset usr1_set = {(uintptr_t)low(&usr1, 8), 8},
			    last_set = {(uintptr_t)low(&last, 8), 8};
	struct spawn_open null = OPEN_OF(low_string("/dev/null"), .flags = O_RDWR);
	struct rlimit64 limit = {1ULL << 33, 1ULL << 34};
	struct {
		__u32 size, policy;
		__u64 flags;
		__s32 nice;
		__u32 priority;
		__u64 times[3];
	} scheduling = {.size = 48, .policy = SCHED_BATCH, .nice = 3};
	__u64 cpus = 1;
	__u32 groups[] = {11, 4000000000u};
	struct spawn_action actions[] = {
		{ACTION(SIGMASK), .arg = (uintptr_t)low(&last_set, sizeof(last_set))},
		{ACTION(SIGIGNORE), .arg = (uintptr_t)low(&usr1_set, sizeof(usr1_set))},
		{ACTION(OPEN), .fd = AT_FDCWD, .newfd = 9,
		 .arg = (uintptr_t)low(&null, sizeof(null))},
		{ACTION(RLIMIT), .fd = RLIMIT_FSIZE, .arg = (uintptr_t)low(&limit, sizeof(limit))},
		{ACTION(SCHED_ATTR), .arg = (uintptr_t)low(&scheduling, sizeof(scheduling))},
		{ACTION(AFFINITY), .fd = 8, .arg = (uintptr_t)low(&cpus, sizeof(cpus))},
		{ACTION(CHDIR), .arg = (uintptr_t)low_string("/")},
		{ACTION(CLOSE_RANGE), .fd = 20, .newfd = -1},
		{ACTION(SETGROUPS), .fd = 2, .arg = (uintptr_t)low(groups, sizeof(groups))},
		{ACTION(SETRESGID), .fd = -1, .newfd = 5, .arg = -1},
	};
	long pidfd;

	self->args->argv = (uintptr_t)low_strings(STRINGS("child", "state"));
	pidfd = run(self, actions, getuid() ? COUNT(actions) - 2 : COUNT(actions));
	ASSERT_LE(0, pidfd)
	{
		TH_LOG("%ld, action %d", pidfd, self->args->failed - 1);
	}
	EXPECT_EQ(0, reap_and_close(pidfd));
	EXPECT_TRUE(has_line(self->out, "mask=64 "));
	EXPECT_TRUE(has_line(self->out, "ignored=%d ", SIGUSR1));
	EXPECT_TRUE(has_line(self->out, "fds=0 1 2 9 "));
	EXPECT_TRUE(has_line(self->out, "rlimit%d=8589934592 17179869184", RLIMIT_FSIZE));
	EXPECT_TRUE(has_line(self->out, "policy=%d", SCHED_BATCH));
	EXPECT_TRUE(has_line(self->out, "nice=3"));
	EXPECT_TRUE(has_line(self->out, "cwd=/"));
	if (getuid() == 0) {
		EXPECT_TRUE(has_line(self->out, "groups=11 4000000000 "));
		EXPECT_TRUE(has_line(self->out, "gids=0 5 5"));
	}
}

#ifdef HAVE_TEMPLATES
TEST_F_TIMEOUT(compat, template, TIMEOUT)
{
	struct spawn_template_create_args *create = low(NULL, sizeof(*create));
	struct spawn_template_spawn_args *args = low(NULL, sizeof(*args));
	struct spawn_template_action *action = low(NULL, sizeof(*action));
	__s32 *pidfd = low(NULL, sizeof(*pidfd));
	int fd;

	create->flags = SPAWN_TEMPLATE_CREATE_CLOEXEC;
	create->execfd = -1;
	create->filename = (uintptr_t)low_string(child_path);
	fd = call(__NR_spawn_template_create, (uintptr_t)create, sizeof(*create), 0, 0, 0);
	if (fd == -ENOSYS)
		SKIP(return, "no templates");
	ASSERT_LE(0, fd);
	action->type = SPAWN_ACTION_DUP2;
	action->fd = self->pipes[1];
	action->newfd = 1;
	args->pidfd = (uintptr_t)pidfd;
	args->argv = (uintptr_t)low_strings(STRINGS("child", "args", "x"));
	args->envp = (uintptr_t)low_strings(STRINGS("A=1"));
	args->actions = (uintptr_t)action;
	args->actions_len = 1;
	ASSERT_LT(0, call(__NR_spawn_template_spawn, fd, (uintptr_t)args, sizeof(*args), 0, 0));
	close(self->pipes[1]);
	read_all(self->pipes[0], self->out, sizeof(self->out));
	EXPECT_STREQ("arg=child\narg=args\narg=x\nenv=A=1\n", self->out);
	EXPECT_EQ(0, reap_and_close(*pidfd));
	close(fd);
}
#endif

#ifdef HAVE_URING_SPAWN
/* If a 32-bit call creates a ring, lists of strings in its requests have 32-bit pointers. */
TEST_F_TIMEOUT(compat, ring, TIMEOUT)
{
	struct io_uring_params *params = low(NULL, sizeof(*params));
	struct spawn_action *action = low(NULL, sizeof(*action));
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqe;
	char *rings;
	int fd;

	fd = call(I386_io_uring_setup, 4, (uintptr_t)params, 0, 0, 0);
	if (fd < 0)
		SKIP(return, "no io_uring: %s", strerror(-fd));
	rings = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
	sqes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
	if (rings == MAP_FAILED)
		rings = mmap(NULL, params->cq_off.cqes + params->cq_entries * sizeof(*cqe),
			     PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
	ASSERT_NE(MAP_FAILED, (void *)rings);
	ASSERT_NE(MAP_FAILED, (void *)sqes);

	*action = (struct spawn_action){ACTION(DUP2), .fd = self->pipes[1], .newfd = 1};
	*self->args = make_args(action, 1);
	self->args->argv = (uintptr_t)low_strings(STRINGS("child", "args", "x"));
	sqes[0] = (struct io_uring_sqe){
		.opcode = IORING_OP_SPAWN,
		.fd = self->fd,
		.addr = (uintptr_t)self->args,
		.len = sizeof(*self->args),
	};
	*(__u32 *)(rings + params->sq_off.array) = 0;
	__atomic_store_n((__u32 *)(rings + params->sq_off.tail), 1, __ATOMIC_RELEASE);
	ASSERT_EQ(1, call(I386_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, 0));
	close(self->pipes[1]);
	cqe = (struct io_uring_cqe *)(rings + params->cq_off.cqes);
	ASSERT_LE(0, cqe->res);
	read_all(self->pipes[0], self->out, sizeof(self->out));
	EXPECT_STREQ("arg=child\narg=args\narg=x\n", self->out);
	EXPECT_EQ(0, reap_and_close(cqe->res));

	/* A filter sees the architecture of the call that submitted the request, also if the child
	 * is created during a later 64-bit call. */
	struct sock_filter code[] = {
		LOAD(arch),
		IS(AUDIT_ARCH_I386, 3),
		LOAD(nr),
		IS(I386_setsid, 1),
		ANSWER(SECCOMP_RET_ERRNO | EXDEV),
		ANSWER(SECCOMP_RET_ALLOW),
	};
	struct spawn_action filtered[] = {
		{ACTION(SECCOMP), .count = COUNT(code), .arg = (uintptr_t)low(code, sizeof(code))},
		{ACTION(SETSID)},
	};
	int hold[2];

	ASSERT_EQ(0, pipe2(hold, O_CLOEXEC));
	*self->args = make_args(low(filtered, sizeof(filtered)), COUNT(filtered));
	self->args->argv = (uintptr_t)low_strings(STRINGS("child", "exit", "0"));
	sqes[1] = (struct io_uring_sqe){
		.opcode = IORING_OP_READ,
		.flags = IOSQE_IO_LINK,
		.fd = hold[0],
		.addr = (uintptr_t)low(NULL, 1),
		.len = 1,
		.off = -1ULL,
	};
	sqes[2] = (struct io_uring_sqe){
		.opcode = IORING_OP_SPAWN,
		.fd = self->fd,
		.addr = (uintptr_t)self->args,
		.len = sizeof(*self->args),
	};
	((__u32 *)(rings + params->sq_off.array))[1] = 1;
	((__u32 *)(rings + params->sq_off.array))[2] = 2;
	__atomic_store_n((__u32 *)(rings + params->sq_off.tail), 3, __ATOMIC_RELEASE);
	ASSERT_EQ(2, call(I386_io_uring_enter, fd, 2, 0, 0, 0));
	ASSERT_EQ(1, write(hold[1], "x", 1));
	ASSERT_EQ(0, syscall(__NR_io_uring_enter, fd, 0, 3, IORING_ENTER_GETEVENTS, NULL, 0));
	EXPECT_EQ(1, cqe[1].res);
	EXPECT_EQ(-EXDEV, cqe[2].res);
	close(hold[0]);
	close(hold[1]);
	munmap(rings, 1 << 16);
	munmap(sqes, 4096);
	close(fd);
}
#endif

/* Writes a minimal 32-bit program that calls exit(7). */
static void write_program(const char *path)
{
	static const unsigned char code[] = {0xb8, 1, 0, 0, 0, 0xbb, 7, 0, 0, 0, 0xcd, 0x80};
	struct {
		Elf32_Ehdr head;
		Elf32_Phdr segment;
		unsigned char code[sizeof(code)];
	} file = {
		.head = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS32, ELFDATA2LSB,
				     EV_CURRENT},
			 .e_type = ET_EXEC,
			 .e_machine = EM_386,
			 .e_version = EV_CURRENT,
			 .e_entry = 0x10000 + sizeof(Elf32_Ehdr) + sizeof(Elf32_Phdr),
			 .e_phoff = sizeof(Elf32_Ehdr),
			 .e_ehsize = sizeof(Elf32_Ehdr),
			 .e_phentsize = sizeof(Elf32_Phdr),
			 .e_phnum = 1},
		.segment = {.p_type = PT_LOAD,
			    .p_vaddr = 0x10000,
			    .p_filesz = sizeof(file),
			    .p_memsz = sizeof(file),
			    .p_flags = PF_R | PF_X,
			    .p_align = 0x1000},
	};
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);

	memcpy(file.code, code, sizeof(code));
	if (fd < 0 || write(fd, &file, sizeof(file)) != sizeof(file))
		abort();
	close(fd);
}

/* 64-bit and 32-bit callers can both start a 32-bit program. */
TEST_F_TIMEOUT(compat, program, TIMEOUT)
{
	struct spawn_args native = make_args(NULL, 0);
	long pidfd;

	close(self->pipes[1]);
	write_program("program");
	native.path = ADDRESS("program");
	native.argv = ADDRESS(STRINGS("program"));
	pidfd = sys_run(self->fd, &native, sizeof(native));
	ASSERT_LE(0, pidfd);
	EXPECT_EQ(7, reap_and_close(pidfd));
	self->args->path = (uintptr_t)low_string("program");
	self->args->argv = (uintptr_t)low_strings(STRINGS("program"));
	pidfd = call(__NR_pidfd_spawn_run, self->fd, (uintptr_t)self->args, sizeof(*self->args), 0,
		     0);
	ASSERT_LE(0, pidfd);
	EXPECT_EQ(7, reap_and_close(pidfd));
}

/* Spawns from a process with this filter, in which only i386 calls work. Returns the status of the
 * program, or 100 plus the error of the spawn. */
static int run_filtered(FIXTURE_DATA(compat) * self, struct sock_filter *code, size_t count)
{
	struct sock_fprog filter = {count, code};
	int *status = low(NULL, sizeof(*status)), ended = -1;
	pid_t pid = fork();

	if (pid == 0) {
		long ret;

		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
		    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
			_exit(99);
		ret = call(__NR_pidfd_spawn_run, self->fd, (uintptr_t)self->args,
			   sizeof(*self->args), 0, 0);
		if (ret >= 0) {
			ret = call(I386_waitpid, -1, (uintptr_t)status, 0, 0, 0);
			ret = ret < 0 ? 98 : *status >> 8;
		} else {
			ret = 100 - ret;
		}
		call(I386_exit, ret, 0, 0, 0, 0);
	}
	waitpid(pid, &ended, 0);
	forget_sigchld();
	return WIFEXITED(ended) ? WEXITSTATUS(ended) : -ended;
}

/* A filter that kills other architectures lets an i386 caller spawn an i386 program. The filter
 * sees the i386 numbers of the actions, and arguments of 32 bits. */
TEST_F_TIMEOUT(compat, filter_of_one_architecture, TIMEOUT)
{
	struct sock_filter only_i386[] = {
		LOAD(arch),
		IS(AUDIT_ARCH_I386, 1),
		ANSWER(SECCOMP_RET_ALLOW),
		ANSWER(SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_filter with_ids[] = {
		LOAD(arch),
		IS(AUDIT_ARCH_I386, 7),
		LOAD(nr),
		IS(I386_setresuid32, 5),
		LOAD(args[2]),
		IS(0xffffffff, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2]) + 4),
		IS(0, 1),
		ANSWER(SECCOMP_RET_ERRNO | EXDEV),
		ANSWER(SECCOMP_RET_ALLOW),
	};
	struct spawn_action *action = low(NULL, sizeof(*action));

	close(self->pipes[1]);
	write_program("program");
	self->args->path = (uintptr_t)low_string("program");
	self->args->argv = (uintptr_t)low_strings(STRINGS("program"));
	EXPECT_EQ(7, run_filtered(self, only_i386, COUNT(only_i386)));
	*action = (struct spawn_action){ACTION(SETSID)};
	self->args->actions = (uintptr_t)action;
	self->args->nr_actions = 1;
	self->args->action_size = sizeof(*action);
	EXPECT_EQ(7, run_filtered(self, only_i386, COUNT(only_i386)));
	*action = (struct spawn_action){ACTION(SETRESUID), .fd = -1, .newfd = -1, .arg = -1};
	EXPECT_EQ(7, run_filtered(self, only_i386, COUNT(only_i386)));
	EXPECT_EQ(100 + EXDEV, run_filtered(self, with_ids, COUNT(with_ids)));
}

/* Audit records the child's exec as an i386 execveat(), because the caller made an i386 call. */
TEST_F_TIMEOUT(compat, audit, TIMEOUT)
{
	struct audit_rule_data rule = {
		.flags = AUDIT_FILTER_EXIT,
		.action = AUDIT_ALWAYS,
		.field_count = 1,
		.fields = {AUDIT_ARCH},
		.values = {AUDIT_ARCH_I386},
		.fieldflags = {AUDIT_EQUAL},
	};
	struct audit audit;
	int status = -1;
	char word[64];
	pid_t pid;

	rule.mask[AUDIT_WORD(I386_execveat)] |= AUDIT_BIT(I386_execveat);
	const char *problem = audit_open(&audit, &rule);
	if (problem)
		SKIP(return, "%s", problem);
	snprintf(word, sizeof(word), "audit-me-%d", getpid());
	close(self->pipes[1]);
	/* Audit covers only processes that start after audit was enabled. So the test forks. */
	pid = fork();
	if (pid == 0) {
		int pidfd;

		self->args->argv = (uintptr_t)low_strings(STRINGS("child", "exit", "3", word));
		pidfd = call(__NR_pidfd_spawn_run, self->fd, (uintptr_t)self->args,
			     sizeof(*self->args), 0, 0);
		_exit(pidfd < 0 ? 1 : reap(pidfd));
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(3 << 8, status);
	forget_sigchld();
	EXPECT_EQ(0, audit_stop(&audit, &rule));
	EXPECT_EQ(1, audit_find(&audit, "type=1309", word, "argc=4"));
	snprintf(word, sizeof(word), " ppid=%d ", pid);
	EXPECT_EQ(1, audit_find(&audit, "type=1300", word,
				"arch=40000003 syscall=358 success=yes exit=0 "));
	close(audit.messages);
}

#else

TEST(compat)
{
	SKIP(return, "not on this architecture");
}

#endif

TEST_HARNESS_MAIN
