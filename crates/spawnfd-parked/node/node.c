/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Parks Node.js where its initialisation has ended and nothing of the program it is to run has been
 * looked at (or later, see late.c): V8, OpenSSL, ICU, the threads, the isolate, the context are
 * there; not one line of JavaScript has run since the snapshot was taken. Node goes on from there
 * by itself, whatever it is asked for, so that there is no code of ours for a program to see.
 *
 * The place is the first look at NODE_V8_COVERAGE: node::profiler::StartProfilers, the last step of
 * node::CreateEnvironment. (The second one is made by JavaScript; by then it would be too late.)
 *
 * Until then Node has copied its arguments. They are marks that occur nowhere else, and each copy
 * is found by them (find.c); where one is not found, or not where it should be, Node is not parked.
 */
#define _GNU_SOURCE
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
	bool waiting;
	/* The flags that requests must begin with: argv[1] to argv[flags]; the last one wants code.
	 */
	int flags;
	char **argv;
	/* As Node was given them: with marks. */
	char **early;
	bool code;
	/* Parks at the end of its preparations, not before them: where it can be, as its flags are.
	 */
	bool late;
	/* Modules of its own to be loaded ahead. */
	char *ahead;
	char thread_name[16];
	struct node_markers marks;
	struct node_locations places;
} node;

/* --- what Node is started with ------------------------------------------------------------------
 */

/* A string that is nowhere else; `which` makes their lengths differ. */
static bool make_mark(char *mark, size_t which)
{
	unsigned char random[24];
	/* Absolute: nobody needs the working directory for it. */
	char *at = mark + sprintf(mark, "/spawnfd-%.*s", (int)which, "abcdefgh");

	if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
		return false;
	for (size_t i = 0; i < sizeof(random); i++)
		at += sprintf(at, "%02x", random[i]);
	return true;
}

/* argv as Node is to see it: [mark, flags, mark], in one piece, as the kernel lays it. */
static char **make_arguments(int *argc)
{
	static char *argv[64];
	size_t size = 0;
	char *at;

	*argc = node.flags + 2;
	argv[0] = node.marks.name;
	for (int i = 1; i <= node.flags; i++)
		argv[i] = node.argv[i];
	argv[node.flags + 1] = node.code ? node.marks.code : node.marks.script;
	for (int i = 0; i < *argc; i++)
		size += strlen(argv[i]) + 1;
	node.marks.title = at = malloc(size);
	if (!at)
		return NULL;
	for (int i = 0; i < *argc; i++) {
		size_t length = strlen(argv[i]) + 1;

		argv[i] = memcpy(at, argv[i], length);
		at += length;
	}
	node.marks.title_room = size;
	node.marks.arguments = *argc;
	node.marks.operands = node.code ? 1 : 2;
	return argv;
}

int spawnfd_node_main(int argc, char **argv, char **envp, int (*original)(int, char **, char **))
{
	const char *cannot;

	node.argv = argv;
	node.flags = argc - 1;
	if (argc < 1 || argc > 60)
		spawnfd_cannot_park("too many flags");
	if (!spawnfd_threads_end)
		spawnfd_cannot_park("not the object for Node.js");
	node.ahead = getenv(SPAWNFD_PRELOAD_VARIABLE);
	if (node.ahead) {
		node.ahead = strdup(node.ahead);
		unsetenv(SPAWNFD_PRELOAD_VARIABLE);
	}
	spawnfd_forget_variable(SPAWNFD_PRELOAD_VARIABLE);
	cannot = spawnfd_node_check_flags(argv + 1, node.flags, true);
	node.late = !cannot;
	if (cannot && !spawnfd_in_fork_mode() && !node.ahead)
		cannot = spawnfd_node_check_flags(argv + 1, node.flags, false);
	if (cannot)
		spawnfd_cannot_park(cannot);
	node.code = argc > 1 && spawnfd_node_takes_code(argv[argc - 1]);
	if (!make_mark(node.marks.name, 1) || !make_mark(node.marks.code, 2) ||
	    !make_mark(node.marks.script, 3))
		spawnfd_cannot_park("getrandom");
	argv = make_arguments(&argc);
	if (!argv)
		spawnfd_cannot_park("memory");
	node.early = argv;
	node.waiting = true;
	return original(argc, argv, envp);
}

/* --- what of a request can be met ---------------------------------------------------------------
 */

/* These calls confine the calling thread only; Node has other threads. */
static bool is_of_one_thread(const struct spawnfd_step *step)
{
	return step->op == SPAWNFD_OP_CALL &&
	       (step->a == SYS_landlock_restrict_self ||
		(step->a == SYS_prctl && step->x == PR_SET_NO_NEW_PRIVS));
}

bool spawnfd_node_accepts(const struct request *request, const struct program *program)
{
	int next = node.flags + 1;

	/* Numbers from 3 on are in use: Node's event loops stand there. */
	if (request->head->above > 3 || request->head->keep || program->argc < next + node.code)
		return false;
	for (uint32_t i = 0; i < request->head->steps; i++)
		if (is_of_one_thread(&request->steps[i]))
			return false;
	for (int i = 1; i <= node.flags; i++)
		if (strcmp(program->argv[i], node.argv[i]))
			return false;
	/* process.argv0 is settled, and that it is a script. */
	if (node.late && (strcmp(program->argv[0], node.argv[0]) ||
			  (!node.code && (program->argc == next || !program->argv[next][0] ||
					  !strcmp(program->argv[next], "-")))))
		return false;
	/* A flag may follow the code, and the code may not look like one. */
	for (int i = next; i < program->argc && i <= next + node.code; i++)
		if (program->argv[i][0] == '-' && (node.code || program->argv[i][1]))
			return false;
	return true;
}

/* --- the state of the process, as Node leaves it before this place ------------------------------
 */

/* Node resets these; real-time signals it leaves as they were. */
enum { RESET_SIGNALS = 31 };

struct signals {
	sigset_t mask;
	struct sigaction actions[RESET_SIGNALS + 1];
};

static void remember_signals(struct signals *signals)
{
	pthread_sigmask(SIG_SETMASK, NULL, &signals->mask);
	for (int i = 1; i <= RESET_SIGNALS; i++)
		sigaction(i, NULL, &signals->actions[i]);
}

static void restore_signals(const struct signals *signals)
{
	for (int i = 1; i <= RESET_SIGNALS; i++)
		if (i != SIGKILL && i != SIGSTOP)
			sigaction(i, &signals->actions[i], NULL);
	pthread_sigmask(SIG_SETMASK, &signals->mask, NULL);
}

/* As node::PlatformInit does: as many descriptors as may be. */
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

/* As node::PlatformInit does: 0, 1 and 2 are open, are not passed on, and are noted for the exit.
 */
static void settle_stdio(struct node_stdio *all)
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

static void become(const struct program *program)
{
	struct node_arguments words = {
		.code = node.code ? program->argv[node.flags + 1] : NULL,
		.operands = program->argv + node.flags + 1 + node.code,
		.operand_count = program->argc - node.flags - 1 - node.code,
	};
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
	settle_stdio(node.places.stdio);
	spawnfd_node_replace(&node.places, program, &words);
	/* Since Node 24 the thread has a name of its own. */
	if (node.thread_name[0])
		prctl(PR_SET_NAME, node.thread_name);
	/* Else timers would be reckoned from the time of parking. */
	update_time(default_loop());
}

/* What Node has read by now, but for what is mapped. */
static void note_files(void)
{
	const char *(*version)(int) = (__typeof__(version))dlsym(RTLD_DEFAULT, "OpenSSL_version");
	static const char *const named[] = {"OPENSSL_CONF", "NODE_EXTRA_CA_CERTS", "NODE_ICU_DATA"};
	char directory[2048], path[2100];

	for (size_t i = 0; i < sizeof(named) / sizeof(*named); i++)
		if (getenv(named[i]))
			spawnfd_record_file(getenv(named[i]));
	/* 4 is OPENSSL_DIR. */
	if (version && sscanf(version(4), "OPENSSLDIR: \"%2047[^\"]", directory) == 1) {
		snprintf(path, sizeof(path), "%s/openssl.cnf", directory);
		spawnfd_record_file(path);
	}
}

static void park(void)
{
	struct signals signals;
	const char *missing = spawnfd_node_find_times(&node.places);

	if (!missing && spawnfd_in_fork_mode())
		missing = spawnfd_node_find_generators();
	if (missing)
		spawnfd_cannot_park(missing);
	/* Those of the owner's are above. */
	if (spawnfd_in_fork_mode() && !spawnfd_descriptors_record(40))
		spawnfd_cannot_park("descriptors");
	if (!spawnfd_threads_end())
		spawnfd_cannot_park("threads");
	note_files();
	remember_signals(&signals);
	become(spawnfd_park(NULL));
	restore_signals(&signals);
}

/* Puts the name that it was started with in place of its mark: JavaScript is about to see it. */
static void restore_name(void)
{
	char **argv = node.early;
	struct program program = {.argc = node.marks.arguments, .argv = argv};
	struct node_arguments words = {
		.code = node.code ? argv[node.flags + 1] : NULL,
		.operands = argv + node.flags + 1 + node.code,
		.operand_count = !node.code,
	};

	struct node_title title = *node.places.title;

	argv[0] = node.argv[0];
	spawnfd_node_replace(&node.places, &program, &words);
	*node.places.title = title;
}

void spawnfd_node_on_getenv(const char *name)
{
	const char *missing;
	char name_now[16] = "", *slash;
	char path[4096];
	ssize_t length;

	if (!node.waiting)
		return;
	/* Where there is no inspector, only JavaScript looks at it, and at this before. */
	if (!strcmp(name, "NODE_NO_WARNINGS"))
		spawnfd_cannot_park("not a Node.js with an inspector");
	if (strcmp(name, "NODE_V8_COVERAGE"))
		return;
	node.waiting = false;
	missing = spawnfd_node_find(&node.marks, &node.places);
	if (missing)
		spawnfd_cannot_park(missing);
	if (!dlsym(RTLD_DEFAULT, "uv_update_time") || !dlsym(RTLD_DEFAULT, "uv_default_loop"))
		spawnfd_cannot_park("libuv");
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
	if (!spawnfd_node_park_late(node.code, node.ahead ? node.ahead : "", park))
		spawnfd_cannot_park("no way into its JavaScript");
	restore_name();
}
