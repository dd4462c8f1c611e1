// SPDX-License-Identifier: GPL-2.0-only
/*
 * The program that the tests start. Its first argument is a command:
 *
 *   exit N    exits with status N
 *   args      prints its arguments and environment strings, one per line
 *   bytes     prints the number of arguments, and their size with the NULs
 *   fds       prints the numbers of its open descriptors on one line
 *   state     prints its ids, signals, limits, namespaces etc., one per line
 *   cat       copies its standard input to its standard output
 *   hold      prints "ready", and waits for the end of its standard input
 *   pause     prints "ready", and waits for a signal
 *   read N    copies descriptor N to its standard output
 *   open F    opens the file F; exits with 0 or the errno
 *   call N    makes system call N with all arguments 0; exits with 0 or the errno
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void print_fds(void)
{
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;

	if (!directory)
		exit(99);
	printf("fds=");
	while ((entry = readdir(directory)))
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(directory))
			printf("%s ", entry->d_name);
	printf("\n");
	closedir(directory);
}

static void print_link(const char *name, const char *path)
{
	char target[PATH_MAX];
	ssize_t length = readlink(path, target, sizeof(target));

	printf("%s=%.*s\n", name, (int)(length < 0 ? 0 : length), target);
}

static void print_signals(void)
{
	struct sigaction action;
	sigset_t mask;

	sigprocmask(SIG_BLOCK, NULL, &mask);
	printf("mask=");
	for (int i = 1; i < 65; i++)
		if (sigismember(&mask, i) == 1)
			printf("%d ", i);
	printf("\nignored=");
	for (int i = 1; i < 65; i++)
		if (sigaction(i, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
			printf("%d ", i);
	printf("\n");
}

static void print_status(void)
{
	static const char *const wanted[] = {
		"SigPnd:",	 "ShdPnd:",	 "NoNewPrivs:", "Seccomp:", "TracerPid:",
		"CapInh:",	 "CapPrm:",	 "CapEff:",	"CapBnd:",  "CapAmb:",
		"Cpus_allowed:", "CoreDumping:", "THP_enabled:"};
	char line[4096];
	FILE *file = fopen("/proc/self/status", "r");

	while (file && fgets(line, sizeof(line), file))
		for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
			if (strncmp(line, wanted[i], strlen(wanted[i])) == 0)
				fputs(line, stdout);
	if (file)
		fclose(file);
}

/* Prints whether the process has a controlling terminal, and the terminal's foreground process
 * group. Prints 0 for both if there is no terminal. */
static void print_terminal(void)
{
	int fd = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);

	printf("tty=%d\nforeground=%d\n", fd >= 0, fd >= 0 ? tcgetpgrp(fd) : 0);
	if (fd >= 0)
		close(fd);
}

/* Prints CLOCK_MONOTONIC as the vDSO and as the system call report it. Both must apply the offset
 * of a time namespace. */
static void print_clocks(void)
{
	struct timespec fast, slow;

	clock_gettime(CLOCK_MONOTONIC, &fast);
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &slow);
	printf("clock=%ld\nkernel clock=%ld\n", (long)fast.tv_sec, (long)slow.tv_sec);
}

static void print_file(const char *name, const char *path)
{
	char text[256] = "";
	FILE *file = fopen(path, "r");

	if (file && !fgets(text, sizeof(text), file))
		text[0] = 0;
	text[strcspn(text, "\n")] = 0;
	printf("%s=%s\n", name, text);
	if (file)
		fclose(file);
}

static void print_state(void)
{
	struct sched_param param = {};
	char text[PATH_MAX];
	gid_t groups[64];
	uid_t id[3];
	int number;
	mode_t mask = umask(0);

	umask(mask);
	printf("pid=%d\nppid=%d\npgid=%d\nsid=%d\numask=%o\n", getpid(), getppid(), getpgid(0),
	       getsid(0), mask);
	printf("cwd=%s\n", getcwd(text, sizeof(text)) ? text : "?");
	getresuid(id, id + 1, id + 2);
	printf("uids=%u %u %u\n", id[0], id[1], id[2]);
	getresgid(id, id + 1, id + 2);
	printf("gids=%u %u %u\n", id[0], id[1], id[2]);
	number = getgroups(64, groups);
	printf("groups=");
	for (int i = 0; i < number; i++)
		printf("%u ", groups[i]);
	printf("\n");
	print_signals();
	number = 0;
	prctl(PR_GET_PDEATHSIG, &number);
	printf("pdeathsig=%d\nnnp=%d\ndumpable=%d\n", number,
	       prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), prctl(PR_GET_DUMPABLE));
	sched_getparam(0, &param);
	printf("policy=%d\npriority=%d\nnice=%d\n", sched_getscheduler(0), param.sched_priority,
	       getpriority(PRIO_PROCESS, 0));
	prctl(PR_GET_NAME, text);
	printf("comm=%s\nexecfn=%s\nsecure=%lu\n", text, (char *)getauxval(AT_EXECFN),
	       getauxval(AT_SECURE));
	print_link("exe", "/proc/self/exe");
	for (int i = 0; i < RLIM_NLIMITS; i++) {
		struct rlimit limit;

		getrlimit(i, &limit);
		printf("rlimit%d=%llu %llu\n", i, (unsigned long long)limit.rlim_cur,
		       (unsigned long long)limit.rlim_max);
	}
	print_link("pidns", "/proc/self/ns/pid");
	print_link("utsns", "/proc/self/ns/uts");
	print_link("userns", "/proc/self/ns/user");
	print_link("mntns", "/proc/self/ns/mnt");
	print_link("netns", "/proc/self/ns/net");
	print_link("ipcns", "/proc/self/ns/ipc");
	print_link("timens", "/proc/self/ns/time");
	print_file("oom", "/proc/self/oom_score_adj");
	print_terminal();
	print_clocks();
	FILE *file = fopen("/proc/self/cgroup", "r");
	if (file && fgets(text, sizeof(text), file))
		printf("cgroup=%s", text);
	if (file)
		fclose(file);
	print_status();
	print_fds();
}

static void copy(int from)
{
	char buffer[4096];
	ssize_t got;

	while ((got = read(from, buffer, sizeof(buffer))) > 0)
		if (write(1, buffer, got) != got)
			exit(98);
	if (got < 0)
		exit(97);
}

int main(int argc, char **argv, char **envp)
{
	const char *what = argc > 1 ? argv[1] : "";
	size_t bytes = 0;
	char byte;

	if (strcmp(what, "exit") == 0)
		return atoi(argv[2]);
	if (strcmp(what, "args") == 0) {
		for (int i = 0; i < argc; i++)
			printf("arg=%s\n", argv[i]);
		for (int i = 0; envp[i]; i++)
			printf("env=%s\n", envp[i]);
	} else if (strcmp(what, "bytes") == 0) {
		for (int i = 0; i < argc; i++)
			bytes += strlen(argv[i]) + 1;
		printf("count=%d\nbytes=%zu\n", argc, bytes);
	} else if (strcmp(what, "fds") == 0) {
		print_fds();
	} else if (strcmp(what, "state") == 0) {
		print_state();
	} else if (strcmp(what, "cat") == 0) {
		copy(0);
	} else if (strcmp(what, "hold") == 0) {
		printf("ready\n");
		fflush(stdout);
		while (read(0, &byte, 1) > 0)
			;
	} else if (strcmp(what, "pause") == 0) {
		printf("ready\n");
		fflush(stdout);
		pause();
	} else if (strcmp(what, "read") == 0) {
		copy(atoi(argv[2]));
	} else if (strcmp(what, "open") == 0) {
		return open(argv[2], O_RDONLY) < 0 ? errno : 0;
	} else if (strcmp(what, "call") == 0) {
		return syscall(atoi(argv[2]), 0, 0, 0, 0, 0, 0) < 0 ? errno : 0;
	} else {
		return 96;
	}
	return fflush(stdout) ? 95 : 0;
}
