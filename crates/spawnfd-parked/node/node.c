/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Parks Node.js during its start. Node can park at two points:
 *
 * - At the end of its initialisation in C++. V8, OpenSSL, ICU, the threads, the isolate and the
 *   context exist. Node has run no JavaScript yet. At this point Node calls
 *   getenv("NODE_V8_COVERAGE") for the first time (node::profiler::StartProfilers, a late step of
 *   node::CreateEnvironment). Node's JavaScript makes the second call, which is too late.
 * - At the end of its bootstrap in JavaScript (late.c). The first part of the bootstrap loads
 *   Node's internal modules. Most builds of Node have a snapshot of the memory after this part. A
 *   Node without a snapshot runs this part after the first point.
 *
 * After the request, Node continues from this point. The program sees no code of this adapter.
 *
 * Node copies its arguments before the process parks. So this adapter starts Node with markers
 * instead of arguments: random strings that occur nowhere else. find.c finds each copy of a marker.
 * If find.c does not find all copies where it expects them, Node does not park.
 */
#include "node.h"
#include "../node-threads/threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
	/* True from Node's start until it reads NODE_V8_COVERAGE. */
	bool starting;
	/* The flags with which every request must begin: argv[1] to argv[flags]. */
	int flags;
	char **argv;
	/* The arguments with markers, with which this adapter started Node. */
	char *marked_argv[64];
	/* True if the last flag takes code as its argument, such as -e. */
	bool code;
	/* True if Node parks at the end of its bootstrap (late.c). Some flags do not allow that,
	 * and Node 18 lacks functions for that. */
	bool late;
	/* Builtin modules to load before parking, separated by commas; or NULL. */
	char *preload;
	char thread_name[16];
	struct node_markers markers;
	struct node_locations locations;
} node;

/* --- arguments --------------------------------------------------------------------------------
 */

/* Makes a unique string. The length differs for each `which` from 1 to 8. */
static bool make_marker(char *marker, size_t which)
{
	unsigned char random[24];
	/* Begin the marker with a slash, so that Node does not read the working directory to
	 * resolve a path. */
	char *end = marker + sprintf(marker, "/spawnfd-%.*s", (int)which, "abcdefgh");

	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return false;
	for (size_t i = 0; i < sizeof(random); i++)
		end += sprintf(end, "%02x", random[i]);
	return true;
}

/* Makes the argv that Node gets: [marker, flags, marker]. The strings are contiguous, as the kernel
 * lays them out. */
static bool make_arguments(void)
{
	char **argv = node.marked_argv, *copy;
	int argc = node.flags + 2;
	size_t size = 0;

	argv[0] = node.markers.name;
	for (int i = 1; i <= node.flags; i++)
		argv[i] = node.argv[i];
	argv[node.flags + 1] = node.code ? node.markers.code : node.markers.script;
	for (int i = 0; i < argc; i++)
		size += strlen(argv[i]) + 1;
	node.markers.title = copy = malloc(size);
	if (!copy)
		return false;
	for (int i = 0; i < argc; i++) {
		size_t length = strlen(argv[i]) + 1;

		argv[i] = memcpy(copy, argv[i], length);
		copy += length;
	}
	node.markers.title_size = size;
	node.markers.arguments = argc;
	node.markers.operands = node.code ? 1 : 2;
	return true;
}

int spawnfd_node_main(int argc, char **argv, char **envp, int (*original)(int, char **, char **))
{
	const char *cannot;

	node.argv = argv;
	node.flags = argc - 1;
	if (argc < 1 || argc > 60)
		spawnfd_cannot_park("too many flags");
	if (!spawnfd_threads_end)
		spawnfd_cannot_park("not recognised as Node.js");
	node.preload = spawnfd_take_variable(SPAWNFD_PRELOAD_VARIABLE);
	cannot = spawnfd_node_find_symbols();
	if (!cannot)
		cannot = spawnfd_node_check_flags(argv + 1, node.flags, true);
	node.late = !cannot;
	if (cannot && !spawnfd_in_fork_mode() && !node.preload)
		cannot = spawnfd_node_check_flags(argv + 1, node.flags, false);
	if (cannot)
		spawnfd_cannot_park(cannot);
	node.code = argc > 1 && spawnfd_node_takes_code(argv[argc - 1]);
	if (!make_marker(node.markers.name, 1) || !make_marker(node.markers.code, 2) ||
	    !make_marker(node.markers.script, 3))
		spawnfd_cannot_park("getrandom");
	if (!make_arguments())
		spawnfd_cannot_park("memory");
	node.starting = true;
	return original(node.markers.arguments, node.marked_argv, envp);
}

/* --- requests ---------------------------------------------------------------------------------
 */

/* Whether a step confines the calling thread only. Node has other threads, so it refuses such
 * steps. */
static bool confines_one_thread(const struct spawnfd_step *step)
{
	return step->op == SPAWNFD_OP_CALL &&
	       (step->a == SYS_landlock_restrict_self ||
		(step->a == SYS_prctl && step->x == PR_SET_NO_NEW_PRIVS));
}

/* Whether this Node can become the program that a request asks for. */
static bool accepts(const struct request *request, const struct program *program)
{
	int next = node.flags + 1;

	/* Descriptors from 3 on are in use by Node's event loops. */
	if (request->head->above > 3 || request->head->keep || program->argc < next + node.code)
		return false;
	for (uint32_t i = 0; i < request->head->steps; i++)
		if (confines_one_thread(&request->steps[i]))
			return false;
	for (int i = 1; i <= node.flags; i++)
		if (strcmp(program->argv[i], node.argv[i]))
			return false;
	/* The bootstrap has already used argv[0] (process.argv0), and has chosen code or script. */
	if (node.late && (strcmp(program->argv[0], node.argv[0]) ||
			  (!node.code && (program->argc == next || !program->argv[next][0] ||
					  !strcmp(program->argv[next], "-")))))
		return false;
	/* Refuse any argument here that Node would parse as a flag. */
	for (int i = next; i < program->argc && i <= next + node.code; i++)
		if (program->argv[i][0] == '-' && (node.code || program->argv[i][1]))
			return false;
	return true;
}

/* --- process state that Node sets up at start -------------------------------------------------
 */

/* At start, Node resets signals 1 to 31 and leaves real-time signals unchanged. */
enum { LAST_RESET_SIGNAL = 31 };

struct signals {
	sigset_t mask;
	struct sigaction actions[LAST_RESET_SIGNAL + 1];
};

static void save_signals(struct signals *signals)
{
	sigprocmask(SIG_SETMASK, NULL, &signals->mask);
	for (int i = 1; i <= LAST_RESET_SIGNAL; i++)
		sigaction(i, NULL, &signals->actions[i]);
}

static void restore_signals(const struct signals *signals)
{
	for (int i = 1; i <= LAST_RESET_SIGNAL; i++)
		if (i != SIGKILL && i != SIGSTOP)
			sigaction(i, &signals->actions[i], NULL);
	sigprocmask(SIG_SETMASK, &signals->mask, NULL);
}

/* Raises the soft limit of descriptors to the maximum, as node::PlatformInit does. */
static void raise_limit(void)
{
	struct rlimit limit;
	rlim_t low, high;

	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == limit.rlim_max)
		return;
	low = limit.rlim_max == RLIM_INFINITY ? limit.rlim_cur : limit.rlim_max;
	high = limit.rlim_max == RLIM_INFINITY ? 1 << 20 : limit.rlim_max;
	do {
		limit.rlim_cur = low + (high - low) / 2;
		if (setrlimit(RLIMIT_NOFILE, &limit))
			high = limit.rlim_cur;
		else
			low = limit.rlim_cur;
	} while (low + 1 < high);
}

/* Prepares descriptors 0 to 2 as node::PlatformInit does: opens closed ones, sets close-on-exec,
 * and records their state for the restore at exit. */
static void prepare_stdio(struct node_stdio *all)
{
	for (int fd = 0; fd < 3; fd++) {
		struct node_stdio *one = &all[fd];

		if (fstat(fd, &one->stat) && errno == EBADF) {
			if (open("/dev/null", O_RDWR) != fd)
				abort();
			fstat(fd, &one->stat);
		}
		one->flags = fcntl(fd, F_GETFL);
		one->is_terminal = isatty(fd);
		if (one->is_terminal)
			tcgetattr(fd, &one->termios);
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	}
}

/* --- parking ------------------------------------------------------------------------------------
 */

static void become_program(const struct program *program)
{
	void (*update_time)(void *) =
		(__typeof__(update_time))dlsym(RTLD_DEFAULT, "uv_update_time");
	void *(*default_loop)(void) =
		(__typeof__(default_loop))dlsym(RTLD_DEFAULT, "uv_default_loop");

	if (spawnfd_in_fork_mode()) {
		spawnfd_node_reseed_generators();
		if (!spawnfd_descriptors_recreate())
			_exit(127);
	}
	raise_limit();
	prepare_stdio(node.locations.stdio);
	spawnfd_node_replace(&node.locations, program, node.flags + 1, node.code);
	/* Node 24 and later give the main thread a name. */
	if (node.thread_name[0])
		prctl(PR_SET_NAME, node.thread_name);
	/* Update libuv's cached time. Otherwise timers would start from the time of parking. */
	update_time(default_loop());
}

/* Records the files that Node has read and closed. spawnfd_park() records the mapped files. */
static void record_files(void)
{
	const char *(*version)(int) = (__typeof__(version))dlsym(RTLD_DEFAULT, "OpenSSL_version");
	static const char *const variables[] = {"OPENSSL_CONF", "NODE_EXTRA_CA_CERTS",
						"NODE_ICU_DATA"};
	char directory[2048], path[2100];

	for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
		if (getenv(variables[i]))
			spawnfd_record_file(getenv(variables[i]));
	/* OpenSSL_version(4) returns the directory of OpenSSL's configuration (OPENSSL_DIR). */
	if (version && sscanf(version(4), "OPENSSLDIR: \"%2047[^\"]", directory) == 1) {
		snprintf(path, sizeof(path), "%s/openssl.cnf", directory);
		spawnfd_record_file(path);
	}
}

static void park(void)
{
	static const struct spawnfd_interpreter interpreter = {.accepts = accepts,
							       .keeps_descriptors = true};
	struct signals signals;
	const char *missing = spawnfd_node_find_times(&node.locations);

	if (!missing && spawnfd_in_fork_mode())
		missing = spawnfd_node_find_generators();
	if (missing)
		spawnfd_cannot_park(missing);
	/* The descriptors that the owner passes, such as the socket, have numbers from 40 on. */
	if (spawnfd_in_fork_mode() && !spawnfd_descriptors_record(40))
		spawnfd_cannot_park("descriptors");
	if (!spawnfd_threads_end())
		spawnfd_cannot_park("threads");
	record_files();
	save_signals(&signals);
	become_program(spawnfd_park(&interpreter));
	restore_signals(&signals);
}

/* Replaces the marker in argv[0] by the real argv[0], because JavaScript reads it next. */
static void restore_name(void)
{
	struct program program = {.argc = node.markers.arguments, .argv = node.marked_argv};
	struct node_title title = *node.locations.title;

	node.marked_argv[0] = node.argv[0];
	spawnfd_node_replace(&node.locations, &program, node.flags + 1, node.code);
	*node.locations.title = title;
}

/* Finds Node's copies of its arguments, and parks now or at the end of the bootstrap. */
static void arrive(void)
{
	const char *missing;
	char name_now[16] = "", *slash;
	char path[4096];
	ssize_t length;

	node.locations = (struct node_locations){0};
	missing = spawnfd_node_find(&node.markers, &node.locations);
	if (missing)
		spawnfd_cannot_park(missing);
	if (!dlsym(RTLD_DEFAULT, "uv_update_time") || !dlsym(RTLD_DEFAULT, "uv_default_loop"))
		spawnfd_cannot_park("libuv");
	if (node.late && spawnfd_node_call_before_main_script(arrive))
		return;
	length = readlink("/proc/self/exe", path, sizeof(path) - 1);
	path[length < 0 ? 0 : length] = 0;
	slash = strrchr(path, '/');
	prctl(PR_GET_NAME, name_now);
	if (!slash || strncmp(slash + 1, name_now, 15))
		memcpy(node.thread_name, name_now, sizeof(name_now));
	if (!node.late) {
		park();
		return;
	}
	if (!spawnfd_node_park_late(node.code, node.preload ? node.preload : "", park))
		spawnfd_cannot_park("no access to Node's JavaScript");
	restore_name();
}

void spawnfd_node_on_getenv(const char *name)
{
	if (!node.starting)
		return;
	/* A Node with an inspector reads NODE_V8_COVERAGE in C++, and parks at that point. A Node
	 * without an inspector reads NODE_NO_WARNINGS first, and has no such point. */
	if (!strcmp(name, "NODE_NO_WARNINGS"))
		spawnfd_cannot_park("not a Node.js with an inspector");
	if (strcmp(name, "NODE_V8_COVERAGE"))
		return;
	node.starting = false;
	arrive();
}
