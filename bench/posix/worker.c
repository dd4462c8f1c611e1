// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Measures the posix_spawn that this process finds: libc's, a preloaded one, or one that it was
 * linked with.
 *
 *   worker PROGRAM touch=MIB fds=COUNT threads=COUNT
 *
 * The arguments describe the process. Each line of stdin asks for samples, as
 * {"scenario":"NAME","count":COUNT}. The process answers {"samples": [[FIRST, WHOLE], ...]} in
 * nanoseconds: from before the file actions are built to the first instruction of PROGRAM, and
 * until the child is reaped. The scenario "parallel" has one sample with one figure, the
 * nanoseconds that 8 threads need for COUNT children each. PROGRAM writes its time to descriptor 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS 8
/* Above all other descriptors of the process. */
#define HIGH 15000

extern char **environ;

static char *program;
static int low_pipe[2], high_pipe;

static void check(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "worker: %s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static int64_t nanoseconds(struct timespec time)
{
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return nanoseconds(time);
}

enum scenario { DUP2, CLOSEFROM, ABOVE };

/* Starts the program with one end of a pipe as descriptor 1. */
static pid_t start(enum scenario scenario, int out)
{
	char *argv[] = {program, NULL};
	posix_spawn_file_actions_t actions;
	pid_t pid;

	check(!posix_spawn_file_actions_init(&actions), "init");
	if (scenario == CLOSEFROM)
		check(!posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0),
		      "addopen");
	check(!posix_spawn_file_actions_adddup2(&actions, out, 1), "adddup2");
	if (scenario != DUP2)
		check(!posix_spawn_file_actions_addclosefrom_np(&actions, 3), "addclosefrom");
	errno = posix_spawn(&pid, program, &actions, NULL, argv, environ);
	check(!errno, "posix_spawn");
	posix_spawn_file_actions_destroy(&actions);
	return pid;
}

static void reap(pid_t pid)
{
	int status;

	check(waitpid(pid, &status, 0) == pid && status == 0, "the program's status");
}

static void sample(enum scenario scenario)
{
	struct timespec time;
	int64_t before = now(), first, after;
	pid_t pid = start(scenario, scenario == ABOVE ? high_pipe : low_pipe[1]);

	check(read(low_pipe[0], &time, sizeof(time)) == sizeof(time), "the program's time");
	reap(pid);
	after = now();
	first = nanoseconds(time);
	check(before < first && first < after, "the program's clock");
	printf("[%lld, %lld]", (long long)(first - before), (long long)(after - before));
}

/* Starts and reaps children one after the other. */
static void *start_many(void *count)
{
	struct timespec time;
	int ends[2];

	check(!pipe2(ends, O_CLOEXEC), "pipe");
	for (long left = (long)count; left > 0; left--) {
		pid_t pid = start(DUP2, ends[1]);

		check(read(ends[0], &time, sizeof(time)) == sizeof(time), "the program's time");
		reap(pid);
	}
	close(ends[0]);
	close(ends[1]);
	return NULL;
}

static void sample_parallel(long count)
{
	pthread_t threads[THREADS];
	int64_t before = now();

	for (int i = 0; i < THREADS; i++)
		check(!pthread_create(&threads[i], NULL, start_many, (void *)count), "thread");
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	printf("[%lld]", (long long)(now() - before));
}

/* Computes, with a short sleep now and then. A launch preempts these threads. */
static void *be_busy(void *unused)
{
	struct sched_param none = {0};

	check(!sched_setscheduler(0, SCHED_IDLE, &none), "SCHED_IDLE");
	for (volatile unsigned long spins = 0;; spins++)
		if (spins % 20000 == 0)
			sched_yield();
	return unused;
}

static long option(const char *text, const char *name)
{
	size_t length = strlen(name);

	check(!strncmp(text, name, length) && text[length] == '=', text);
	return atol(text + length + 1);
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"dup2", "closefrom", "above"};
	char scenario[16];
	long count;

	check(argc == 5, "usage: worker PROGRAM touch=MIB fds=COUNT threads=COUNT");
	program = argv[1];
	check(!pipe2(low_pipe, O_CLOEXEC), "pipe");
	size_t bytes = (size_t)option(argv[2], "touch") << 20;
	if (bytes) {
		char *memory = malloc(bytes);

		check(memory != NULL, "memory");
		for (size_t at = 0; at < bytes; at += 4096)
			((volatile char *)memory)[at] = 1;
	}
	long fds = option(argv[3], "fds");
	if (fds) {
		/* It makes the descriptor table large, so other processes do without. */
		high_pipe = fcntl(low_pipe[1], F_DUPFD_CLOEXEC, HIGH);
		check(high_pipe >= HIGH, "a high descriptor");
	}
	for (; fds > 0; fds--)
		check(open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0, "open");
	for (long left = option(argv[4], "threads"); left > 0; left--) {
		pthread_t thread;

		check(!pthread_create(&thread, NULL, be_busy, NULL), "thread");
	}
	while (scanf(" {\"scenario\":\"%15[^\"]\",\"count\":%ld}", scenario, &count) == 2) {
		printf("{\"samples\": [");
		if (!strcmp(scenario, "parallel")) {
			sample_parallel(count);
		} else {
			enum scenario which = DUP2;

			while (which < ABOVE && strcmp(scenario, names[which]))
				which++;
			check(!strcmp(scenario, names[which]), "the scenario");
			for (long done = 0; done < count; done++) {
				if (done)
					printf(", ");
				sample(which);
			}
		}
		puts("]}");
		fflush(stdout);
	}
	return 0;
}
