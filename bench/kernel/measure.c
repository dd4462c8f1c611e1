// SPDX-License-Identifier: MIT OR Apache-2.0
// Starts programs with each of the kernel's methods, in a guest whose clock
// counts instructions. Prints one line for each start:
//
//   sample PARENT CHILD METHOD FIRST WHOLE FAULTS
//
// FIRST is the time from the call to the child's first clock reading. WHOLE is
// the time until the child is reaped and its pidfd is closed. FAULTS is the
// number of the child's minor page faults. If the kernel lacks a method, the
// program prints `missing METHOD` once.
//
//   measure ROUNDS PARENT CHILD=PROGRAM...
//
// PARENT is small, touched1g or fds10000. If CHILD does not contain `.life`,
// the program must write its first time stamp to descriptor 1, as
// first_instruction.S does. PROGRAM is a path, followed by arguments after `,`.
//
// If PARENT is plain, METHOD is an operation that every kernel has: fork, exec
// or fault. FIRST is then 0.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/spawn.h>
#include <linux/spawn_template.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PIDFD_EMPTY
#define PIDFD_EMPTY (1U << 27)
#endif
#define ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))
#define WARM_UP 8

static char *const environment[] = {"PATH=/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8", "TERM=dumb",
				    NULL};
static const char *path;
static char **words;
static int builder, template, ring;
static struct io_uring_sqe *sqes;
static unsigned *sq_tail, *sq_mask, *sq_array, *cq_head;

// The result of a method: the child's pid, its pidfd, or both. A missing value is negative.
struct started {
	long pid, pidfd;
};

static int config(int fd, unsigned command, unsigned key, const void *value)
{
	return syscall(__NR_pidfd_config, fd, command, key, value, 0);
}

static struct started by_fork(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		execve(path, words, environment);
		_exit(127);
	}
	return (struct started){pid, -1};
}

static struct started by_vfork(void)
{
	pid_t pid = vfork();

	if (pid == 0) {
		execve(path, words, environment);
		_exit(127);
	}
	return (struct started){pid, -1};
}

static struct started by_posix_spawn(void)
{
	pid_t pid;
	int error = posix_spawn(&pid, path, NULL, NULL, words, environment);

	return (struct started){error ? -error : pid, -1};
}

static struct started run(int fd, struct spawn_args *args)
{
	return (struct started){-1, syscall(__NR_pidfd_spawn_run, fd, args, sizeof(*args))};
}

// Runs a builder that has no settings, because the call passes them all. The child gets only
// descriptor 1.
static struct started by_pristine(void)
{
	struct spawn_action actions[] = {{.type = SPAWN_ACTION_DUP2, .fd = 1, .newfd = 1}};
	struct spawn_args args = {
		.flags = SPAWN_FDS_NONE,
		.nr_actions = 1,
		.path = ADDRESS(path),
		.argv = ADDRESS(words),
		.envp = ADDRESS(environment),
		.actions = ADDRESS(actions),
		.action_size = sizeof(*actions),
	};
	static int empty = -1;

	if (empty < 0)
		empty = syscall(__NR_pidfd_open, 0, PIDFD_EMPTY);
	return run(empty, &args);
}

static void configure(int fd)
{
	config(fd, PIDFD_CONFIG_SET_STRING, PIDFD_CONFIG_KEY_PATH, path);
	config(fd, PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ARGV, words);
	config(fd, PIDFD_CONFIG_SET_STRINGS, PIDFD_CONFIG_KEY_ENVP, environment);
}

static struct started by_builder(void)
{
	struct spawn_args args = {};

	return run(builder, &args);
}

// Like posix_spawn, the child inherits all descriptors that exec would not close.
static struct started by_inheriting_builder(void)
{
	struct spawn_args args = {.flags = SPAWN_FDS_INHERIT};

	return run(builder, &args);
}

static struct started by_fresh_builder(void)
{
	struct spawn_args args = {};
	int fd = syscall(__NR_pidfd_open, 0, PIDFD_EMPTY);
	struct started it;

	configure(fd);
	it = run(fd, &args);
	close(fd);
	return it;
}

static struct started by_template(void)
{
	int pidfd = -1;
	struct spawn_template_spawn_args args = {
		.pidfd = ADDRESS(&pidfd),
		.argv = ADDRESS(words),
		.envp = ADDRESS(environment),
	};
	long pid = syscall(__NR_spawn_template_spawn, template, &args, sizeof(args));

	return (struct started){pid, pidfd};
}

static struct io_uring_cqe *cqes;

static struct started by_uring(void)
{
	struct spawn_args args = {};
	unsigned index = *sq_tail & *sq_mask;
	struct io_uring_sqe *sqe = sqes + index;
	long result;

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = IORING_OP_SPAWN;
	sqe->fd = builder;
	sqe->addr = ADDRESS(&args);
	sqe->len = sizeof(args);
	sq_array[index] = index;
	__atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_RELEASE);
	syscall(__NR_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	result = cqes[*cq_head & *sq_mask].res;
	__atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
	return (struct started){-1, result};
}

static bool open_ring(void)
{
	struct io_uring_params params = {.flags = IORING_SETUP_CQSIZE, .cq_entries = 4};
	char *rings;

	ring = syscall(__NR_io_uring_setup, 4, &params);
	if (ring < 0)
		return false;
	rings = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
		     IORING_OFF_SQ_RING);
	if (rings == MAP_FAILED)
		rings = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
			     IORING_OFF_SQ_RING);
	sqes = mmap(NULL, 4 * sizeof(*sqes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
		    ring, IORING_OFF_SQES);
	if (rings == MAP_FAILED || sqes == MAP_FAILED)
		return false;
	sq_tail = (void *)(rings + params.sq_off.tail);
	sq_mask = (void *)(rings + params.sq_off.ring_mask);
	sq_array = (void *)(rings + params.sq_off.array);
	cq_head = (void *)(rings + params.cq_off.head);
	cqes = (void *)(rings + params.cq_off.cqes);
	return true;
}

static struct method {
	const char *name;
	struct started (*start)(void);
	bool missing;
} methods[] = {
	{"vfork", by_vfork, false},
	{"fork", by_fork, false},
	{"posix_spawn", by_posix_spawn, false},
	{"pristine", by_pristine, false},
	{"builder", by_builder, false},
	{"builder_inherit", by_inheriting_builder, false},
	{"builder_fresh", by_fresh_builder, false},
	{"template", by_template, false},
	{"io_uring", by_uring, false},
};
#define METHODS (sizeof(methods) / sizeof(*methods))

static int64_t now(void)
{
	struct timespec time;

	syscall(__NR_clock_gettime, CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000LL + time.tv_nsec;
}

// The cost of one start.
struct cost {
	int64_t first, whole;
	long faults;
};

// Measures one start. Returns false if the method is missing or the child failed.
static bool sample(struct method *method, int from_child, bool stamps, struct cost *cost)
{
	struct timespec time = {};
	struct rusage usage = {};
	siginfo_t info = {};
	int64_t begun = now();
	struct started it = method->start();
	int failed;

	if (it.pid < 0 && it.pidfd < 0)
		return false;
	if (it.pidfd >= 0) {
		failed = syscall(__NR_waitid, P_PIDFD, it.pidfd, &info, WEXITED, &usage);
		close(it.pidfd);
	} else {
		failed = syscall(__NR_waitid, P_PID, it.pid, &info, WEXITED, &usage);
	}
	*cost = (struct cost){0, now() - begun, usage.ru_minflt};
	if (failed || info.si_code != CLD_EXITED || info.si_status != 0)
		return false;
	if (stamps) {
		if (read(from_child, &time, sizeof(time)) != sizeof(time))
			return false;
		cost->first = time.tv_sec * 1000000000LL + time.tv_nsec - begun;
	}
	return true;
}

// A fork whose child exits at once.
static bool plain_fork(void)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	return waitpid(pid, &status, 0) == pid && status == 0;
}

// Starts a static program by vfork and exec.
static bool plain_exec(void)
{
	int status = -1;
	pid_t pid = by_vfork().pid;

	return waitpid(pid, &status, 0) == pid && status == 0;
}

// Reads pages of a file in a private mapping, then writes to them. Writes to anonymous pages.
static bool plain_fault(void)
{
	const size_t size = 64 * 4096;
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	volatile char *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0),
		      *anonymous = mmap(NULL, size, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	close(file);
	if (shared == MAP_FAILED || anonymous == MAP_FAILED)
		return false;
	for (size_t at = 0; at < size; at += 4096)
		(void)shared[at];
	for (size_t at = 0; at < size; at += 4096) {
		shared[at] = 1;
		anonymous[at] = 1;
	}
	return munmap((void *)shared, size) == 0 && munmap((void *)anonymous, size) == 0;
}

static const struct operation {
	const char *name;
	bool (*run)(void);
} operations[] = {
	{"fork", plain_fork},
	{"exec", plain_exec},
	{"fault", plain_fault},
};
#define OPERATIONS (sizeof(operations) / sizeof(*operations))

// Measures the operations that every kernel has.
static int measure_plain(FILE *report, int rounds, char *child)
{
	char *equals = strchr(child, '='), *list[] = {equals + 1, NULL};
	int64_t *costs = calloc(OPERATIONS * rounds, sizeof(*costs));

	*equals = 0;
	path = list[0];
	words = list;
	for (int round = -WARM_UP; round < rounds; round++)
		for (size_t i = 0; i < OPERATIONS; i++) {
			int64_t begun = now();

			if (!operations[i].run())
				return 1;
			if (round >= 0)
				costs[i * rounds + round] = now() - begun;
		}
	for (size_t i = 0; i < OPERATIONS; i++)
		for (int round = 0; round < rounds; round++)
			fprintf(report, "sample plain %s %s 0 %lld 0\n", child, operations[i].name,
				(long long)costs[i * rounds + round]);
	return fclose(report) ? 1 : 0;
}

static void make_parent(const char *parent)
{
	if (strcmp(parent, "touched1g") == 0) {
		char *memory = mmap(NULL, 1UL << 30, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		madvise(memory, 1UL << 30, MADV_NOHUGEPAGE);
		for (size_t i = 0; i < 1UL << 30; i += 4096)
			memory[i] = 1;
	} else if (strcmp(parent, "fds10000") == 0) {
		struct rlimit limit = {20000, 20000};

		setrlimit(RLIMIT_NOFILE, &limit);
		// Close-on-exec, as in most programs: fork copies the descriptors, and exec closes
		// them.
		while (fcntl(0, F_DUPFD_CLOEXEC, 3) < 9999)
			;
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 3 ? atoi(argv[1]) : 0, output = dup(1), pipes[2];
	const char *parent = argc > 2 ? argv[2] : "";
	FILE *report = fdopen(output, "w");

	if (rounds < 1 || pipe(pipes) < 0)
		return 2;
	fcntl(output, F_SETFD, FD_CLOEXEC);
	fcntl(pipes[0], F_SETFD, FD_CLOEXEC);
	if (strcmp(parent, "plain") == 0) {
		// The program writes its time stamp here.
		dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), 1);
		return measure_plain(report, rounds, argv[3]);
	}
	dup2(pipes[1], 1);
	close(pipes[1]);
	builder = syscall(__NR_pidfd_open, 0, PIDFD_EMPTY);
	for (size_t i = 0; i < METHODS; i++) {
		// vfork, fork and posix_spawn exist on every kernel.
		bool standard = i < 3;

		methods[i].missing = !standard && (builder < 0 ||
						   (methods[i].start == by_uring && !open_ring()));
		if (methods[i].missing)
			fprintf(report, "missing %s: %s\n", methods[i].name, strerror(errno));
	}
	make_parent(parent);
	for (int child = 3; child < argc; child++) {
		char *name = argv[child], *list[16] = {}, *equals = strchr(name, '=');
		struct cost *costs = calloc(METHODS * rounds, sizeof(*costs));
		bool stamps;

		*equals = 0;
		stamps = !strstr(name, ".life");
		for (char *word = strtok(equals + 1, ","), **next = list; word;
		     word = strtok(NULL, ","))
			*next++ = word;
		path = list[0];
		words = list;
		if (builder >= 0) {
			struct spawn_template_create_args args = {
				.flags = SPAWN_TEMPLATE_CREATE_CLOEXEC, .execfd = -1};

			configure(builder);
			args.filename = ADDRESS(path);
			if (template > 0)
				close(template);
			template = syscall(__NR_spawn_template_create, &args, sizeof(args));
		}
		for (int round = -WARM_UP; round < rounds; round++) {
			// No warm-up for fork: in a large parent, one fork costs as much as all
			// other methods.
			for (size_t turn = 0; turn < METHODS; turn++) {
				size_t number = (turn + round + WARM_UP) % METHODS;
				struct method *method = methods + number;
				struct cost cost;

				if (method->missing || (method->start == by_fork && round < 0))
					continue;
				if (!sample(method, pipes[0], stamps, &cost)) {
					method->missing = true;
					fprintf(report, "missing %s: %s with %s: %s\n",
						method->name, parent, name, strerror(errno));
				} else if (round >= 0) {
					costs[number * rounds + round] = cost;
				}
			}
		}
		for (int round = 0; round < rounds; round++)
			for (size_t i = 0; i < METHODS; i++) {
				struct cost *cost = costs + i * rounds + round;

				if (!methods[i].missing)
					fprintf(report, "sample %s %s %s %lld %lld %ld\n", parent,
						name, methods[i].name, (long long)cost->first,
						(long long)cost->whole, cost->faults);
			}
		fflush(report);
	}
	return fclose(report) ? 1 : 0;
}
