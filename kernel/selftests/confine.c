// SPDX-License-Identifier: GPL-2.0-only
/* Tests the actions that restrict the child: capabilities, Landlock, seccomp. */
#include "spawn_test.h"
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include "kselftest_harness.h"
#include "action_test.h"

ROOTS_FIXTURE(confine)

static struct spawn_capabilities no_capabilities = {.bounding = ~0ULL};
static struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};

TEST_F_TIMEOUT(confine, checked_when_given, TIMEOUT)
{
	static const struct {
		unsigned int type;
		unsigned int flags; /* that the type accepts */
		bool fd, newfd, arg;
	} types[] = {
		{SPAWN_ACTION_CHROOT, 0, false, false, true},
		{SPAWN_ACTION_CTTY, 1, true, false, false},
		{SPAWN_ACTION_TCSETPGRP, 0, true, false, false},
		{SPAWN_ACTION_NICE, 0, true, false, false},
		{SPAWN_ACTION_SCHEDULER, 0, true, true, false},
		{SPAWN_ACTION_OOM_SCORE_ADJ, 0, true, false, false},
		{SPAWN_ACTION_CAPABILITIES, 0, false, false, true},
		{SPAWN_ACTION_KEEP_CAPS, 0, false, false, false},
		{SPAWN_ACTION_SETNS, 0x7e020080, true, false, false},
		{SPAWN_ACTION_DENY_SETGROUPS, 0, false, false, false},
		{SPAWN_ACTION_UID_MAP, 0, false, false, true},
		{SPAWN_ACTION_GID_MAP, 0, false, false, true},
		{SPAWN_ACTION_LANDLOCK, 0, true, false, false},
		{SPAWN_ACTION_SECCOMP, 6, true, false, true},
	};

	for (size_t i = 0; i < COUNT(types); i++) {
		unsigned int type = types[i].type;
		int fd = type == SPAWN_ACTION_SECCOMP ? 1 : 0;
		__u64 arg = type == SPAWN_ACTION_CAPABILITIES ? ADDRESS(&no_capabilities)
			    : type == SPAWN_ACTION_SECCOMP    ? ADDRESS(allow)
			    : types[i].arg		      ? ADDRESS("x")
							      : 0;

		WRONG(EINVAL, .type = type, .fd = fd, .arg = arg, .reserved = 1);
		WRONG(EINVAL, .type = type, .fd = fd, .arg = arg, .reserved = 1ULL << 63);
		for (int bit = 0; bit < 32; bit++)
			if (!(types[i].flags >> bit & 1)) {
				WRONG(EINVAL, .type = type, .fd = fd, .arg = arg,
				      .flags = 1U << bit);
			}
		if (!types[i].fd) {
			WRONG(EINVAL, .type = type, .fd = 1, .arg = arg);
			WRONG(EINVAL, .type = type, .fd = -1, .arg = arg);
		}
		if (!types[i].newfd) {
			WRONG(EINVAL, .type = type, .fd = fd, .newfd = 1, .arg = arg);
			WRONG(EINVAL, .type = type, .fd = fd, .newfd = -1, .arg = arg);
		}
		if (!types[i].arg) {
			WRONG(EINVAL, .type = type, .fd = fd, .arg = 1);
		} else {
			WRONG(EFAULT, .type = type, .fd = fd, .arg = BAD_ADDRESS);
			WRONG(EFAULT, .type = type, .fd = fd, .arg = 1);
			WRONG(EFAULT, .type = type, .fd = fd, .arg = 1ULL << 63);
			WRONG(EFAULT, .type = type, .fd = fd, .arg = ~0ULL);
		}
		for (size_t j = 0; j < COUNT(negative); j++)
			if (types[i].fd && type != SPAWN_ACTION_NICE &&
			    !(type == SPAWN_ACTION_SCHEDULER && negative[j] == -1) &&
			    !(type == SPAWN_ACTION_OOM_SCORE_ADJ && negative[j] >= -1000)) {
				WRONG(EINVAL, .type = type, .fd = negative[j], .arg = arg);
			}
	}
	EXPECT_NO_CHILD();
}

/* An action fails if its descriptor is not open in the child, or is of the wrong kind. */
TEST_F_TIMEOUT(confine, descriptors, TIMEOUT)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC),
	    path = open("/dev/null", O_PATH | O_CLOEXEC);

	for (size_t i = 0; i < COUNT(huge); i++) {
		BAD(EBADF, 1, setsid_first, {ACTION(CTTY), .fd = huge[i]});
		BAD(EBADF, 1, setsid_first, {ACTION(TCSETPGRP), .fd = huge[i]});
		BAD(EBADF, 1, setsid_first, {ACTION(SETNS), .fd = huge[i]});
		BAD(EBADF, 1, setsid_first, {ACTION(LANDLOCK), .fd = huge[i]});
	}
	BAD(ENOTTY, 0, {ACTION(CTTY), .fd = null});
	BAD(ENOTTY, 0, {ACTION(TCSETPGRP), .fd = null});
	BAD(EINVAL, 0, {ACTION(SETNS), .fd = null});
	BAD(EBADFD, 0, {ACTION(LANDLOCK), .fd = null});
	BAD(EBADF, 0, {ACTION(CTTY), .fd = path});
	BAD(EBADF, 0, {ACTION(TCSETPGRP), .fd = path});
	BAD(EBADF, 0, {ACTION(SETNS), .fd = path});
	/* An earlier action closes this descriptor in the child. */
	BAD(EBADF, 1, {ACTION(CLOSE), .fd = null}, {ACTION(LANDLOCK), .fd = null});
	EXPECT_NO_CHILD();
}

TEST_F_TIMEOUT(confine, capabilities, TIMEOUT)
{
	struct spawn_capabilities want = {
		.effective = CAP(KILL),
		.permitted = CAP(KILL) | CAP(CHOWN),
		.inheritable = CAP(KILL),
		.bounding = CAP(KILL) | CAP(CHOWN) | CAP(SETUID),
		.ambient = CAP(KILL),
	};
	struct spawn_action set = {ACTION(CAPABILITIES), .arg = ADDRESS(&want)};
	unsigned long long all;
	char before[4096], after[4096];
	int fd;

	fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	read_all(fd, before, sizeof(before));
	close(fd);
	ASSERT_EQ(1, sscanf(strstr(before, "CapBnd:"), "CapBnd: %llx", &all));

	/* A user other than root keeps only the ambient capabilities over exec. */
	GOOD({ACTION(KEEP_CAPS)}, IDS(NOBODY), set);
	HAS("uids=%d %d %d", NOBODY, NOBODY, NOBODY);
	HAS("CapInh:\t%016llx", CAP(KILL));
	HAS("CapPrm:\t%016llx", CAP(KILL));
	HAS("CapEff:\t%016llx", CAP(KILL));
	HAS("CapBnd:\t%016llx", want.bounding);
	HAS("CapAmb:\t%016llx", CAP(KILL));
	/* For root, exec restores all capabilities of the bounding set. */
	GOOD(set);
	HAS("CapEff:\t%016llx", want.bounding);
	HAS("CapPrm:\t%016llx", want.bounding);
	BAD(EPERM, 1, set, {ACTION(CHROOT), .arg = ADDRESS("/")});
	BAD(EPERM, 1, IDS(NOBODY), set);
	/* The kernel ignores bits of unknown capabilities, but refuses them in the ambient set. */
	want.bounding = ~0ULL;
	want.inheritable = want.permitted = want.effective = ~0ULL;
	GOOD(set);
	HAS("CapBnd:\t%016llx", all);
	HAS("CapInh:\t%016llx", all);
	want.ambient = 1ULL << 63;
	WRONG(EINVAL, ACTION(CAPABILITIES), .arg = ADDRESS(&want));
	want.ambient = 1ULL << (CAP_LAST_CAP + 1);
	WRONG(EINVAL, ACTION(CAPABILITIES), .arg = ADDRESS(&want));
	want.ambient = CAP(CHOWN);
	want.inheritable = CAP(KILL);
	BAD(EPERM, 1, setsid_first, set);
	want = (struct spawn_capabilities){.effective = CAP(KILL), .bounding = ~0ULL};
	BAD(EPERM, 1, setsid_first, set);
	/* The caller's own capabilities have not changed. */
	fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	read_all(fd, after, sizeof(after));
	close(fd);
	EXPECT_EQ(0, strncmp(strstr(before, "CapInh:"), strstr(after, "CapInh:"), 5 * 25));

	BECOME_USER();
	want = no_capabilities;
	GOOD(set);
	HAS("CapPrm:\t%016llx", 0ULL);
	HAS("CapBnd:\t%016llx", all);
	want.bounding = all & ~CAP(KILL);
	BAD(EPERM, 0, set);
	want = no_capabilities;
	want.permitted = CAP(KILL);
	BAD(EPERM, 0, set);
	want = no_capabilities;
	want.inheritable = CAP(KILL);
	BAD(EPERM, 0, set);
	GOOD({ACTION(KEEP_CAPS)});
	EXPECT_NO_CHILD();
}

/* Creates a Landlock ruleset that denies these kinds of access to every file. */
static int ruleset_against(__u64 accesses)
{
	struct landlock_ruleset_attr attributes = {.handled_access_fs = accesses};

	return syscall(__NR_landlock_create_ruleset, &attributes, sizeof(attributes), 0);
}

TEST_F_TIMEOUT(confine, landlock, TIMEOUT)
{
	int reading = ruleset_against(LANDLOCK_ACCESS_FS_READ_DIR);
	int running = ruleset_against(LANDLOCK_ACCESS_FS_EXECUTE);
	struct spawn_action restricted = {ACTION(LANDLOCK), .fd = reading};
	const char *const *words = STRINGS("child", "open", "/");

	if (reading < 0)
		SKIP(return, "no Landlock: %s", strerror(errno));
	start(&self->it, self->fd, words, &restricted, 1, 0);
	EXPECT_LE(0, self->it.ret);
	EXPECT_EQ(EACCES, self->it.code);
	start(&self->it, self->fd, words, NULL, 0, 0);
	EXPECT_EQ(0, self->it.code);
	BAD(EACCES, SPAWN_FAILED_EXEC, {ACTION(LANDLOCK), .fd = running});
	BAD(EACCES, 1, restricted,
	    {ACTION(OPEN), .fd = AT_FDCWD, .newfd = 5,
	     .arg = ADDRESS(&((struct spawn_open)OPEN_OF("/")))});
	struct spawn_action many[18];
	for (size_t i = 0; i < COUNT(many); i++)
		many[i] = restricted;
	start(&self->it, self->fd, words, many, 16, 0);
	EXPECT_EQ(EACCES, self->it.code);
	start(&self->it, self->fd, words, many, 17, 0);
	EXPECT_EQ(-E2BIG, self->it.ret);
	EXPECT_EQ(16, self->it.failed);

	BECOME_USER();
	BAD(EPERM, 0, restricted);
	BAD(EPERM, 1, setsid_first, restricted, no_new_privs);
	start(&self->it, self->fd, words, ((const struct spawn_action[]){no_new_privs, restricted}),
	      2, 0);
	EXPECT_EQ(EACCES, self->it.code);
	/* The caller itself is not restricted. */
	int fd = open("/", O_RDONLY | O_CLOEXEC);
	EXPECT_LE(0, fd);
	EXPECT_EQ(0, prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	close(fd);
	close(reading);
	close(running);
	EXPECT_NO_CHILD();
}

/* A seccomp filter that gives this answer to one system call, and allows all others. */
#define FILTER(number, answer)                                                                     \
	{                                                                                          \
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),             \
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),                                 \
		BPF_STMT(BPF_RET | BPF_K, answer),                                                 \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),                                      \
	}
#define FILTERED(code) {ACTION(SECCOMP), .fd = COUNT(code), .arg = ADDRESS(code)}
#define CALL_TEXT(number) #number
#define CALL(number) STRINGS("child", "call", CALL_TEXT(number))

TEST_F_TIMEOUT(confine, seccomp, TIMEOUT)
{
	struct sock_filter no_getpid[] = FILTER(__NR_getpid, SECCOMP_RET_ERRNO | EXDEV);
	struct spawn_action filter = FILTERED(no_getpid);
	static const unsigned int flags[] = {
		0, SECCOMP_FILTER_FLAG_LOG, SECCOMP_FILTER_FLAG_SPEC_ALLOW,
		SECCOMP_FILTER_FLAG_LOG | SECCOMP_FILTER_FLAG_SPEC_ALLOW};
	char number[16];
	const char *const words[] = {"child", "call", number, NULL};

	snprintf(number, sizeof(number), "%d", __NR_getpid);
	for (size_t i = 0; i < COUNT(flags); i++) {
		filter.flags = flags[i];
		start(&self->it, self->fd, words, &filter, 1, 0);
		EXPECT_LE(0, self->it.ret);
		EXPECT_EQ(EXDEV, self->it.code);
	}
	filter.flags = 0;
	start(&self->it, self->fd, words, NULL, 0, 0);
	EXPECT_EQ(0, self->it.code);
	/* If a child has several filters, the strictest answer wins. */
	struct sock_filter kill[] = FILTER(__NR_getpid, SECCOMP_RET_KILL_PROCESS);
	start(&self->it, self->fd, words, ((const struct spawn_action[]){filter, FILTERED(kill)}),
	      2, 0);
	EXPECT_EQ(128 + SIGSYS, self->it.code);
	/* A builder keeps the filter as a configured action, and starts many programs with it. */
	ASSERT_EQ(0, sys_config_actions(self->fd, &filter, 1));
	for (int i = 0; i < 20; i++) {
		start(&self->it, self->fd, words, NULL, 0, 0);
		EXPECT_EQ(EXDEV, self->it.code);
	}
	GOOD(setsid_first);
	HAS("Seccomp:\t2");
	HAS("nnp=0");
	ASSERT_EQ(0, SET(RESET, ACTIONS, NULL, 0));

	BECOME_USER();
	BAD(EACCES, 0, filter);
	start(&self->it, self->fd, words, ((const struct spawn_action[]){no_new_privs, filter}), 2,
	      0);
	EXPECT_EQ(EXDEV, self->it.code);
	EXPECT_EQ(0, prctl(PR_GET_SECCOMP, 0, 0, 0, 0));
	EXPECT_NO_CHILD();
}

/* The kernel refuses invalid filter programs, and filters that are too long. */
TEST_F_TIMEOUT(confine, seccomp_programs, TIMEOUT)
{
	static struct sock_filter long_one[4097];
	struct sock_filter endless[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
	struct sock_filter outside[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4096),
					BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
	struct sock_filter jump[] = {BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 255, 255),
				     BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
	struct spawn_action most[10];

	for (size_t i = 0; i < COUNT(long_one); i++)
		long_one[i] = allow[0];
	WRONG(EINVAL, ACTION(SECCOMP), .fd = 0, .arg = ADDRESS(allow));
	WRONG(EINVAL, ACTION(SECCOMP), .fd = 0);
	WRONG(EINVAL, ACTION(SECCOMP), .fd = 1);
	WRONG(EINVAL, ACTION(SECCOMP), .fd = 4097, .arg = ADDRESS(long_one));
	WRONG(EINVAL, ACTION(SECCOMP), .fd = 65536 + 1, .arg = ADDRESS(allow));
	WRONG(EINVAL, ACTION(SECCOMP), .fd = INT_MAX, .arg = ADDRESS(allow));
	WRONG(EINVAL, ACTION(SECCOMP), .fd = 1, .arg = ADDRESS(endless));
	WRONG(EINVAL, ACTION(SECCOMP), .fd = 2, .arg = ADDRESS(outside));
	WRONG(EINVAL, ACTION(SECCOMP), .fd = 2, .arg = ADDRESS(jump));
	WRONG(EINVAL, ACTION(SECCOMP), .fd = 1, .arg = ADDRESS(allow),
	      .flags = SECCOMP_FILTER_FLAG_NEW_LISTENER);
	/* All filters of a task may have 32768 instructions together. Three filters of 4096 fit,
	 * but ten do not. */
	for (size_t i = 0; i < COUNT(most); i++)
		most[i] = (struct spawn_action){ACTION(SECCOMP), .fd = 4096,
						.arg = ADDRESS(long_one)};
	start(&self->it, self->fd, STRINGS("child", "exit", "3"), most, 3, 0);
	EXPECT_EQ(3, self->it.code);
	start(&self->it, self->fd, STRINGS("child", "exit", "3"), most, COUNT(most), 0);
	EXPECT_EQ(-ENOMEM, self->it.ret);
	EXPECT_LE(3, self->it.failed);
	EXPECT_GT(8, self->it.failed);
	EXPECT_NO_CHILD();
}

/* After the actions, the kernel asks the child's filters whether it may call execve(), or with
 * EXEC_FD execveat(). */
TEST_F_TIMEOUT(confine, seccomp_and_exec, TIMEOUT)
{
	static const struct {
		unsigned int answer;
		int error;
	} answers[] = {
		{SECCOMP_RET_ERRNO | ENOTTY, ENOTTY},
		{SECCOMP_RET_ERRNO | 0xffff, 4095},
		{SECCOMP_RET_ERRNO, EACCES},
		{SECCOMP_RET_KILL_PROCESS, EACCES},
		{SECCOMP_RET_KILL_THREAD, EACCES},
		{SECCOMP_RET_TRAP, EACCES},
		{SECCOMP_RET_TRACE, ENOSYS},
		{SECCOMP_RET_USER_NOTIF, ENOSYS},
		{0x12340000 /* unknown */, EACCES},
		{SECCOMP_RET_LOG, 0},
		{SECCOMP_RET_ALLOW, 0},
	};
	int program = open(child_path, O_RDONLY | O_CLOEXEC);

	for (int by_descriptor = 0; by_descriptor < 2; by_descriptor++) {
		int asked = by_descriptor ? __NR_execveat : __NR_execve;
		int other = by_descriptor ? __NR_execve : __NR_execveat;

		if (by_descriptor)
			ASSERT_EQ(0, SET(SET_FD, EXEC_FD, NULL, program));
		for (size_t i = 0; i < COUNT(answers); i++) {
			struct sock_filter code[] = FILTER(asked, answers[i].answer);
			struct sock_filter beside[] = FILTER(other, answers[i].answer);

			if (answers[i].error) {
				BAD(answers[i].error, SPAWN_FAILED_EXEC, FILTERED(code));
			} else {
				GOOD(FILTERED(code));
			}
			GOOD(FILTERED(beside));
		}
	}
	/* For execveat(), the filter sees the descriptor and the flags. */
	struct sock_filter with_flag[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_execveat, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, program, 0, 2),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[4])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AT_EMPTY_PATH, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	GOOD(FILTERED(with_flag));
	close(program);
	ASSERT_EQ(0, SET(SET_STRING, PATH, child_path, 0));
	/* This filter kills the process at every call except execve(). An action after it fails.
	 * Without one, the program dies at its first call. */
	struct sock_filter no_calls[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_execve, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	BAD(EACCES, 1, FILTERED(no_calls), setsid_first);
	RUN(FILTERED(no_calls));
	EXPECT_LE(0, self->it.ret);
	EXPECT_EQ(128 + SIGSYS, self->it.code);
	EXPECT_NO_CHILD();
}

/* The kernel asks a filter that the child inherits about execve() too. */
TEST_F_TIMEOUT(confine, inherited_seccomp_and_exec, TIMEOUT)
{
	struct sock_filter code[] = FILTER(__NR_execve, SECCOMP_RET_ERRNO | ENOTTY);
	struct sock_fprog program = {COUNT(code), code};

	ASSERT_EQ(0, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
	BAD(ENOTTY, SPAWN_FAILED_EXEC, setsid_first);
	EXPECT_NO_CHILD();
}

/* A child keeps its filter after the test has closed the builder that configured it. */
TEST_F_TIMEOUT(confine, seccomp_outlives_builder, TIMEOUT)
{
	struct sock_filter code[] = FILTER(__NR_exit_group, SECCOMP_RET_KILL_PROCESS);
	struct spawn_action filter = FILTERED(code);
	int own = builder_of(NULL), holder, input;

	ASSERT_EQ(0, sys_config_actions(own, &filter, 1));
	input = hold(own, &holder, NULL, 0);
	ASSERT_LE(0, holder);
	close(own);
	close(input);
	EXPECT_EQ(128 + SIGSYS, reap_and_close(holder));
	EXPECT_NO_CHILD();
}

TEST_HARNESS_MAIN
