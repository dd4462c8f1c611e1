// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The lower bound of the agent and job benchmarks: makes the same calls in a minimal C loop.
 *
 * Usage: floor CALLS IN_FLIGHT. One thread starts each call with vfork, dup2, chdir and execve,
 * reads its two pipes through one epoll set, and calls waitpid when both are at end-of-file. The
 * program shares no code with spawnfd. It checks each call's exit code, and the length and FNV-1a
 * hash of stdout and stderr.
 *
 * With SECOND_THREAD, a second thread does all that. The first thread hands each call over and
 * waits for its end, both by an eventfd, as an event loop does that must not block in a start.
 */
#define _GNU_SOURCE
#include "floor_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_IN_FLIGHT 1024

struct running {
	const struct preset *preset; /* NULL: the slot is free */
	pid_t pid;
	int pipe[2];
	struct output seen[2];
};

static struct running *slots;
static int slot_count;
static int null_fd;
static int epoll_fd;

static void watch(int fd, int slot, int stream)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)(slot * 2 + stream)};

	if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event))
		fail("epoll_ctl: %s", strerror(errno));
}

static void start(int slot, const struct preset *preset)
{
	struct running *running = &slots[slot];
	int out[2], err[2];
	pid_t pid;

	if (pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC))
		fail("pipe2: %s", strerror(errno));
	pid = vfork();
	if (pid == 0) {
		if (dup2(null_fd, 0) == 0 && dup2(out[1], 1) == 1 && dup2(err[1], 2) == 2 &&
		    chdir(directory) == 0)
			execve(preset->argv[0], preset->argv, environment);
		_exit(127);
	}
	if (pid < 0)
		fail("vfork: %s", strerror(errno));
	close(out[1]);
	close(err[1]);
	*running = (struct running){
		.preset = preset,
		.pid = pid,
		.pipe = {out[0], err[0]},
	};
	clear_output(&running->seen[0]);
	clear_output(&running->seen[1]);
	watch(out[0], slot, 0);
	watch(err[0], slot, 1);
}

/* Reads from a pipe once. Returns true if the call has ended. */
static bool progress(struct running *running, int stream)
{
	static unsigned char buffer[1 << 16];
	ssize_t got = read(running->pipe[stream], buffer, sizeof(buffer));
	int status;

	if (got < 0)
		fail("read: %s", strerror(errno));
	if (got > 0) {
		hash_more(&running->seen[stream], buffer, (size_t)got);
		return false;
	}
	/*
	 * close() alone does not remove the pipe from the epoll set. vfork returns before exec has
	 * closed the child's close-on-exec descriptors, so a new child may still hold this pipe.
	 * epoll would then report the pipe for the slot's next call.
	 */
	if (epoll_ctl(epoll_fd, EPOLL_CTL_DEL, running->pipe[stream], NULL))
		fail("epoll_ctl: %s", strerror(errno));
	close(running->pipe[stream]);
	running->pipe[stream] = -1;
	if (running->pipe[!stream] >= 0)
		return false;
	while (waitpid(running->pid, &status, 0) < 0)
		if (errno != EINTR)
			fail("waitpid: %s", strerror(errno));
	if (!WIFEXITED(status))
		fail("preset %s, method floor: wait status %d", running->preset->name, status);
	check(running->preset, WEXITSTATUS(status), running->seen);
	running->preset = NULL;
	return true;
}

/* Waits for events of the pipes once, and calls `ended` for each call that has ended. */
static void serve_events(void (*ended)(int slot), void (*other)(void))
{
	struct epoll_event events[64];
	int ready = epoll_wait(epoll_fd, events, 64, -1);

	if (ready < 0 && errno != EINTR)
		fail("epoll_wait: %s", strerror(errno));
	for (int i = 0; i < ready; i++) {
		int slot = (int)(events[i].data.u32 / 2);
		int stream = (int)(events[i].data.u32 % 2);

		if (slot == MAX_IN_FLIGHT)
			other();
		else if (progress(&slots[slot], stream))
			ended(slot);
	}
}

static const struct preset **left;
static size_t left_count, done_count;

#ifndef SECOND_THREAD
static void start_next(int slot)
{
	if (left_count) {
		start(slot, *left++);
		left_count--;
	}
}

static void ended(int slot)
{
	done_count++;
	start_next(slot);
}

static const int64_t *run(const struct preset **calls, size_t count)
{
	left = calls;
	left_count = count;
	done_count = 0;
	for (int slot = 0; slot < slot_count; slot++)
		start_next(slot);
	while (done_count < count)
		serve_events(ended, NULL);
	return NULL;
}

static void set_up(void)
{
}
#else
/* The calls that the first thread has handed over, and the number of those that have ended. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct preset *handed[MAX_IN_FLIGHT];
static int order_fd, end_fd;

static void notify(int fd)
{
	if (write(fd, &(uint64_t){1}, 8) != 8)
		fail("write: %s", strerror(errno));
}

static void wait_for(int fd)
{
	uint64_t count;

	if (read(fd, &count, 8) != 8)
		fail("read: %s", strerror(errno));
}

static void take_orders(void)
{
	wait_for(order_fd);
	pthread_mutex_lock(&lock);
	for (int slot = 0; slot < slot_count; slot++) {
		if (handed[slot] && !slots[slot].preset)
			start(slot, handed[slot]);
	}
	pthread_mutex_unlock(&lock);
}

static void ended(int slot)
{
	pthread_mutex_lock(&lock);
	handed[slot] = NULL;
	done_count++;
	pthread_mutex_unlock(&lock);
	notify(end_fd);
}

static void *second_thread(void *unused)
{
	for (;;)
		serve_events(ended, take_orders);
	return unused;
}

static void hand_over(void)
{
	bool any = false;

	pthread_mutex_lock(&lock);
	for (int slot = 0; slot < slot_count && left_count; slot++) {
		if (!handed[slot]) {
			handed[slot] = *left++;
			left_count--;
			any = true;
		}
	}
	pthread_mutex_unlock(&lock);
	if (any)
		notify(order_fd);
}

static const int64_t *run(const struct preset **calls, size_t count)
{
	size_t done = 0;

	left = calls;
	left_count = count;
	while (done < count) {
		hand_over();
		wait_for(end_fd);
		pthread_mutex_lock(&lock);
		done += done_count;
		done_count = 0;
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

static void set_up(void)
{
	pthread_t thread;

	order_fd = eventfd(0, EFD_CLOEXEC);
	end_fd = eventfd(0, EFD_CLOEXEC);
	if (order_fd < 0 || end_fd < 0)
		fail("eventfd: %s", strerror(errno));
	watch(order_fd, MAX_IN_FLIGHT, 0);
	if (pthread_create(&thread, NULL, second_thread, NULL))
		fail("pthread_create failed");
}
#endif

int main(int argc, char **argv)
{
	if (argc != 3)
		fail("usage: floor CALLS IN_FLIGHT");
	slot_count = atoi(argv[2]);
	if (slot_count < 1 || slot_count > MAX_IN_FLIGHT)
		fail("IN_FLIGHT must be 1 to %d", MAX_IN_FLIGHT);
	read_calls(argv[1]);
	slots = calloc((size_t)slot_count, sizeof(*slots));
	null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (!slots || null_fd < 0 || epoll_fd < 0)
		fail("cannot set up: %s", strerror(errno));
	set_up();
	serve(run);
	return 0;
}
