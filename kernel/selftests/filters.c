// SPDX-License-Identifier: GPL-2.0-only
/* Tests seccomp filters of the caller and of the child: a filter decides about each step of a spawn
 * as about the system call that the step stands for. */
#include "spawn_test.h"
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/prctl.h>
#include <linux/sched/types.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

#include "kselftest_harness.h"
#include "action_test.h"

ROOTS_FIXTURE(filters)

#define LOAD(member) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, member))
#define RETURN(answer) BPF_STMT(BPF_RET | BPF_K, answer)
#define FAIL(error) RETURN(SECCOMP_RET_ERRNO | (error))
/* Continues with the next instruction if the value is equal, else skips `others`. */
#define IF(value, others) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, others)
#define IF_ANY(bits, others) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, others)
/* Gives an error to a system call. Leaves the call's number in the accumulator. */
#define REFUSE(name, error) IF(__NR_##name, 1), FAIL(error)
/* The same, if the call's first argument has any of these bits, or if its argument is this value.
 * All others go on with the number in the accumulator. */
#define REFUSE_BITS(name, arg, bits, error)                                                        \
	IF(__NR_##name, 4), LOAD(args[arg]), IF_ANY(bits, 1), FAIL(error), LOAD(nr)
#define REFUSE_VALUE(name, arg, value, error)                                                      \
	IF(__NR_##name, 4), LOAD(args[arg]), IF(value, 1), FAIL(error), LOAD(nr)

static int restrict_caller(const struct sock_filter *code, size_t count)
{
	struct sock_fprog program = {count, (struct sock_filter *)code};

	return result(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

#define OPEN_NULL                                                                                  \
	{ACTION(OPEN), .fd = AT_FDCWD, .newfd = 7,                                                 \
	 .arg = ADDRESS(&((struct spawn_open)OPEN_OF("/dev/null")))}

/* The filter of systemd's RestrictNamespaces=net, as libseccomp translates it for the native
 * architecture: network namespaces are allowed, and no others. */
TEST_F_TIMEOUT(filters, restrict_namespaces, TIMEOUT)
{
	static const unsigned int refused = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS |
					    CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID;
	struct sock_filter code[] = {
		LOAD(arch),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
		RETURN(SECCOMP_RET_ALLOW),
		LOAD(nr),
		REFUSE(clone3, ENOSYS),
		REFUSE_VALUE(setns, 1, 0, EPERM),
		REFUSE_BITS(setns, 1, refused, EPERM),
		REFUSE_BITS(unshare, 0, refused, EPERM),
		REFUSE_BITS(clone, 0, refused, EPERM),
		RETURN(SECCOMP_RET_ALLOW),
	};
	int mount = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
	int net = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

	ASSERT_LE(0, mount);
	ASSERT_LE(0, net);
	ASSERT_EQ(0, restrict_caller(code, COUNT(code)));
	GOOD(setsid_first, OPEN_NULL);
	GOOD({ACTION(SETNS), .fd = net, .flags = CLONE_NEWNET});
	BAD(EPERM, 1, setsid_first, {ACTION(SETNS), .fd = mount, .flags = CLONE_NEWNS});
	BAD(EPERM, 1, setsid_first, {ACTION(SETNS), .fd = mount});
	for (unsigned int bit = 0; bit < 32; bit++) {
		unsigned int flag = 1U << bit;

		if (!(flag & (refused | CLONE_NEWNET)))
			continue;
		ASSERT_EQ(0, SET(SET_FLAGS, NAMESPACES, NULL, flag));
		if (flag == CLONE_NEWNET)
			GOOD(setsid_first);
		else
			BAD(EPERM, SPAWN_FAILED_SETUP, setsid_first);
	}
	EXPECT_NO_CHILD();
	close(mount);
	close(net);
}

/* The filter of Flatpak, without the calls that no spawn makes. */
TEST_F_TIMEOUT(filters, flatpak, TIMEOUT)
{
	struct sock_filter code[] = {
		LOAD(nr),
		REFUSE(unshare, EPERM),
		REFUSE(setns, EPERM),
		REFUSE(mount, EPERM),
		REFUSE(chroot, EPERM),
		REFUSE_BITS(clone, 0, CLONE_NEWUSER, EPERM),
		REFUSE_VALUE(ioctl, 1, TIOCSTI, EPERM),
		REFUSE(clone3, ENOSYS),
		RETURN(SECCOMP_RET_ALLOW),
	};
	int net = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	int group = open("/sys/fs/cgroup", O_RDONLY | O_CLOEXEC | O_DIRECTORY);

	ASSERT_LE(0, net);
	ASSERT_EQ(0, restrict_caller(code, COUNT(code)));
	GOOD(setsid_first, OPEN_NULL, {ACTION(DUP2), .fd = 2, .newfd = 9});
	BAD(EPERM, 0, {ACTION(CHROOT), .arg = ADDRESS("/")});
	BAD(EPERM, 0, {ACTION(SETNS), .fd = net, .flags = CLONE_NEWNET});
	ASSERT_EQ(0, SET(SET_FLAGS, NAMESPACES, NULL, CLONE_NEWUSER));
	BAD(EPERM, SPAWN_FAILED_SETUP, setsid_first);
	/* Only unshare() and clone3() can create a time namespace. */
	ASSERT_EQ(0, SET(SET_FLAGS, NAMESPACES, NULL, CLONE_NEWTIME));
	BAD(EPERM, SPAWN_FAILED_SETUP, setsid_first);
	ASSERT_EQ(0, SET(SET_FLAGS, NAMESPACES, NULL, 0));
	/* Only clone3() can create a process in a cgroup. */
	if (group >= 0) {
		ASSERT_EQ(0, SET(SET_FD, CGROUP, NULL, group));
		BAD(ENOSYS, SPAWN_FAILED_SETUP, setsid_first);
	}
	EXPECT_NO_CHILD();
	close(net);
	close(group);
}

/* A caller that may not fork cannot spawn. A thread is not a process: the filter may allow clone()
 * with CLONE_THREAD. */
TEST_F_TIMEOUT(filters, no_processes, TIMEOUT)
{
	struct sock_filter code[] = {
		LOAD(nr),
		IF(__NR_clone, 4),
		LOAD(args[0]),
		IF_ANY(CLONE_THREAD, 1),
		RETURN(SECCOMP_RET_ALLOW),
		FAIL(ENOTTY),
		RETURN(SECCOMP_RET_ALLOW),
	};

	ASSERT_EQ(0, restrict_caller(code, COUNT(code)));
	BAD(ENOTTY, SPAWN_FAILED_SETUP, setsid_first);
	EXPECT_NO_CHILD();
}

#define ASKED(call, a0, a1, a2, ...)                                                               \
	{                                                                                          \
		__NR_##call, #call, {a0, a1, a2},                                                  \
		{                                                                                  \
			__VA_ARGS__                                                                \
		}                                                                                  \
	}
#define PRCTL(option, a1, a2, ...) ASKED(prctl, PR_##option, a1, a2, __VA_ARGS__)

/* Each action, and the configured directory, is one system call for the filters. They see 1 for an
 * address that the call would read, so a filter that allows only queries refuses the action. */
TEST_F_TIMEOUT(filters, each_action, TIMEOUT)
{
	__u64 signal = 1ULL << (SIGUSR1 - 1), cpus = 1;
	struct spawn_sigset set = {ADDRESS(&signal), 8};
	struct rlimit64 limit = {100, 100};
	struct sched_attr scheduling = {.size = sizeof(scheduling)};
	struct spawn_capabilities fewer = {.bounding = ~CAP(CHOWN)};
	struct sock_filter allow[] = {RETURN(SECCOMP_RET_ALLOW)};
	__u32 group = 5;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	int top = open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	const struct {
		int nr;
		const char *name;
		unsigned int args[3];
		struct spawn_action action;
	} cases[] = {
		ASKED(close, null, 0, 0, ACTION(CLOSE), .fd = null),
		ASKED(dup3, null, 9, O_CLOEXEC, ACTION(DUP2), .fd = null, .newfd = 9,
		      .flags = O_CLOEXEC),
		ASKED(fcntl, null, F_SETFD, 0, ACTION(DUP2), .fd = null, .newfd = null),
		ASKED(fchdir, top, 0, 0, ACTION(FCHDIR), .fd = top),
		ASKED(openat2, AT_FDCWD, 1, 1, ACTION(OPEN), .fd = AT_FDCWD, .newfd = 7,
		      .arg = ADDRESS(&((struct spawn_open)OPEN_OF("/dev/null")))),
		ASKED(close_range, 50, 60, CLOSE_RANGE_CLOEXEC, ACTION(CLOSE_RANGE), .fd = 50,
		      .newfd = 60, .flags = CLOSE_RANGE_CLOEXEC),
		ASKED(rt_sigprocmask, SIG_SETMASK, 1, 0, ACTION(SIGMASK), .arg = ADDRESS(&set)),
		ASKED(rt_sigaction, SIGUSR1, 1, 0, ACTION(SIGDEFAULT), .arg = ADDRESS(&set)),
		ASKED(rt_sigaction, SIGUSR1, 1, 0, ACTION(SIGIGNORE), .arg = ADDRESS(&set)),
		ASKED(chdir, 1, 0, 0, ACTION(CHDIR), .arg = ADDRESS("/")),
		ASKED(setsid, 0, 0, 0, ACTION(SETSID)),
		ASKED(setpgid, 0, 0, 0, ACTION(SETPGID)),
		ASKED(umask, 022, 0, 0, ACTION(UMASK), .fd = 022),
		ASKED(prlimit64, 0, RLIMIT_NOFILE, 1, ACTION(RLIMIT), .fd = RLIMIT_NOFILE,
		      .arg = ADDRESS(&limit)),
		ASKED(setgroups, 1, 1, 0, ACTION(SETGROUPS), .fd = 1, .arg = ADDRESS(&group)),
		ASKED(setgroups, 0, 0, 0, ACTION(SETGROUPS)),
		ASKED(setresgid, -1, 6, 7, ACTION(SETRESGID), .fd = -1, .newfd = 6, .arg = 7),
		ASKED(setresuid, 5, -1, 7, ACTION(SETRESUID), .fd = 5, .newfd = -1, .arg = 7),
		PRCTL(SET_NO_NEW_PRIVS, 1, 0, ACTION(NO_NEW_PRIVS)),
		PRCTL(SET_PDEATHSIG, SIGTERM, 0, ACTION(PDEATHSIG), .fd = SIGTERM),
		ASKED(sched_setattr, 0, 1, 0, ACTION(SCHED_ATTR), .arg = ADDRESS(&scheduling)),
		ASKED(sched_setaffinity, 0, 8, 1, ACTION(AFFINITY), .fd = 8, .arg = ADDRESS(&cpus)),
		ASKED(chroot, 1, 0, 0, ACTION(CHROOT), .arg = ADDRESS("/")),
		ASKED(ioctl, null, TIOCSCTTY, 1, ACTION(CTTY), .fd = null, .flags = 1),
		ASKED(ioctl, null, TIOCSPGRP, 1, ACTION(TCSETPGRP), .fd = null),
		ASKED(setpriority, PRIO_PROCESS, 0, 3, ACTION(NICE), .fd = 3),
		ASKED(sched_setscheduler, 0, SCHED_BATCH, 1, ACTION(SCHEDULER), .fd = SCHED_BATCH),
		ASKED(sched_setparam, 0, 1, 0, ACTION(SCHEDULER), .fd = -1),
		ASKED(openat, AT_FDCWD, 1, O_WRONLY | O_CLOEXEC, ACTION(OOM_SCORE_ADJ), .fd = 1),
		ASKED(write, -1, 1, 5, ACTION(OOM_SCORE_ADJ), .fd = 1),
		ASKED(capset, 1, 1, 0, ACTION(CAPABILITIES), .arg = ADDRESS(&fewer)),
		PRCTL(CAPBSET_DROP, CAP_CHOWN, 0, ACTION(CAPABILITIES), .arg = ADDRESS(&fewer)),
		PRCTL(CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, ACTION(CAPABILITIES),
		      .arg = ADDRESS(&fewer)),
		PRCTL(SET_KEEPCAPS, 1, 0, ACTION(KEEP_CAPS)),
		ASKED(setns, null, CLONE_NEWUTS, 0, ACTION(SETNS), .fd = null,
		      .flags = CLONE_NEWUTS),
		ASKED(write, -1, 1, 4, ACTION(DENY_SETGROUPS)),
		ASKED(write, -1, 1, 5, ACTION(UID_MAP), .arg = ADDRESS("0 0 1")),
		ASKED(write, -1, 1, 5, ACTION(GID_MAP), .arg = ADDRESS("0 0 1")),
		ASKED(landlock_restrict_self, null, 0, 0, ACTION(LANDLOCK), .fd = null),
		ASKED(seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_LOG, 1, ACTION(SECCOMP),
		      .fd = 1, .arg = ADDRESS(allow), .flags = SECCOMP_FILTER_FLAG_LOG),
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct sock_filter code[] = {
			LOAD(nr),      IF(cases[i].nr, 7),
			LOAD(args[0]), IF(cases[i].args[0], 5),
			LOAD(args[1]), IF(cases[i].args[1], 3),
			LOAD(args[2]), IF(cases[i].args[2], 1),
			FAIL(EXDEV),   RETURN(SECCOMP_RET_ALLOW),
		};
		struct spawn_action filter = {ACTION(SECCOMP), .fd = COUNT(code),
					      .arg = ADDRESS(code)};

		BAD(EXDEV, 1, filter, cases[i].action);
		if (self->it.ret != -EXDEV)
			TH_LOG("case %zu: %s", i, cases[i].name);
	}
	EXPECT_NO_CHILD();
	close(null);
	close(top);
}

TEST_F_TIMEOUT(filters, configured_directory, TIMEOUT)
{
	struct sock_filter code[] = {LOAD(nr), REFUSE(fchdir, EXDEV), RETURN(SECCOMP_RET_ALLOW)};
	int top = open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY);

	ASSERT_EQ(0, SET(SET_FD, CWD, NULL, top));
	ASSERT_EQ(0, restrict_caller(code, COUNT(code)));
	BAD(EXDEV, SPAWN_FAILED_CWD, setsid_first);
	EXPECT_NO_CHILD();
	close(top);
}

/* Each answer of a filter about an action is an error of the action. No process gets SIGSYS. */
TEST_F_TIMEOUT(filters, answers, TIMEOUT)
{
	static const struct {
		unsigned int answer;
		int error;
	} answers[] = {
		{SECCOMP_RET_ERRNO | ENOTTY, ENOTTY},
		{SECCOMP_RET_ERRNO, EACCES},
		{SECCOMP_RET_KILL_PROCESS, EACCES},
		{SECCOMP_RET_TRAP, EACCES},
		{SECCOMP_RET_TRACE, ENOSYS},
		{SECCOMP_RET_USER_NOTIF, ENOSYS},
		{SECCOMP_RET_LOG, 0},
	};

	for (size_t i = 0; i < COUNT(answers); i++) {
		struct sock_filter code[] = {
			LOAD(nr),
			IF(__NR_setsid, 1),
			RETURN(answers[i].answer),
			RETURN(SECCOMP_RET_ALLOW),
		};
		struct spawn_action filter = {ACTION(SECCOMP), .fd = COUNT(code),
					      .arg = ADDRESS(code)};

		if (answers[i].error)
			BAD(answers[i].error, 1, filter, setsid_first);
		else
			GOOD(filter, setsid_first);
	}
	EXPECT_NO_CHILD();
}

TEST_HARNESS_MAIN
