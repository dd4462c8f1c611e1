// SPDX-License-Identifier: GPL-2.0-only
// The first process of a guest. Mounts the usual file systems, runs one command, reports its exit
// status, and ends the guest.
//
// The guest has three serial ports: one for the kernel's console, one for the command's output,
// and one on which this program reports the line `exit N`. The program is static, so it runs even
// if the root file system is almost empty.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

static const struct {
	const char *type, *target, *options;
	unsigned long flags;
} mounts[] = {
	{"proc", "/proc", "", MS_NOSUID | MS_NODEV | MS_NOEXEC},
	{"sysfs", "/sys", "", MS_NOSUID | MS_NODEV | MS_NOEXEC},
	{"devtmpfs", "/dev", "mode=0755", MS_NOSUID},
	{"devpts", "/dev/pts", "mode=0620,ptmxmode=0666", MS_NOSUID | MS_NOEXEC},
	{"tmpfs", "/dev/shm", "mode=1777", MS_NOSUID | MS_NODEV},
	{"debugfs", "/sys/kernel/debug", "", MS_NOSUID | MS_NODEV | MS_NOEXEC},
	{"cgroup2", "/sys/fs/cgroup", "", MS_NOSUID | MS_NODEV | MS_NOEXEC},
};

// Opens a serial port. If raw is set, the terminal driver does not change the bytes.
static int port(const char *path, int raw)
{
	int fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (fd < 0) {
		fprintf(stderr, "init: %s: %s\n", path, strerror(errno));
		return -1;
	}
	struct termios settings;
	if (raw && tcgetattr(fd, &settings) == 0) {
		cfmakeraw(&settings);
		tcsetattr(fd, TCSANOW, &settings);
	}
	return fd;
}

// Runs the command in a new session and waits for it. Also reaps orphans, whose parent is now this
// process. Returns the command's exit status, or 128 plus the signal that killed it. If `person` is
// set, `output` is also the command's standard input and its session's controlling terminal.
static int run(char **command, int output, int person)
{
	pid_t pid = fork();
	if (pid == 0) {
		int input = person ? output : open("/dev/null", O_RDONLY | O_CLOEXEC);
		setsid();
		if (person)
			ioctl(output, TIOCSCTTY, 0);
		if (input >= 0 && dup2(input, 0) == 0 && dup2(output, 1) == 1 &&
		    dup2(output, 2) == 2)
			execvp(command[0], command);
		dprintf(output, "init: %s: %s\n", command[0], strerror(errno));
		_exit(errno == ENOENT ? 127 : 126);
	}
	int status;
	for (pid_t ended = 0; ended != pid;) {
		ended = wait(&status);
		if (ended < 0 && errno != EINTR)
			return 126;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
	(void)argc;
	umask(022);
	for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++) {
		mkdir(mounts[i].target, 0755);
		// Continue if the kernel lacks a file system. The command may not need it.
		if (mount(mounts[i].type, mounts[i].target, mounts[i].type, mounts[i].flags,
			  mounts[i].options) != 0)
			fprintf(stderr, "init: %s: %s\n", mounts[i].target, strerror(errno));
	}
	symlink("/proc/self/fd", "/dev/fd");
	mkdir("/tmp", 01777);
	chmod("/tmp", 01777);
	// Set the limits that systemd sets. The kernel's default hard limit is 4096.
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){1024, 524288});
	setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
	setenv("HOME", "/tmp", 1);
	unsetenv("TERM");

	// The kernel passes unknown words of its command line as arguments. The command to run
	// follows the word `run`.
	int person = 0;
	char **command = argv + 1;
	while (*command && strcmp(*command, "run") != 0)
		person |= strcmp(*command++, "shell") == 0;
	if (person)
		setenv("TERM", "vt100", 1);
	int output = port("/dev/ttyS1", !person);
	int answer = port("/dev/ttyS2", 1);
	if (output >= 0 && answer >= 0 && command[0] && command[1]) {
		int status = run(command + 1, output, person);
		tcdrain(output);
		dprintf(answer, "exit %d\n", status);
		tcdrain(answer);
	} else {
		fprintf(stderr, "init: no ports, or no command\n");
	}
	// A kernel without ACPI cannot power off. QEMU runs with -no-reboot, so a reboot ends the
	// guest.
	reboot(RB_AUTOBOOT);
	return 1;
}
