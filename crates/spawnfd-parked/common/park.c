/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Parks this process: it reports to its owner, waits for requests, and becomes the program that one
 * asks for. */
#define _GNU_SOURCE
#include "park.h"
#include "authority.h"
#include "internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* In a child of a process that forks: the child waits for a program to become. */
static bool is_child;
static int dumpable;

/* --- the report to the owner --------------------------------------------------------------------
 */

static uint64_t private_kib;

static void add_private(const char *line)
{
	if (!strncmp(line, "Private_Clean:", 14) || !strncmp(line, "Private_Dirty:", 14))
		private_kib += strtoull(line + 14, NULL, 10);
}

/* The bytes of memory that this process shares with no other. */
static uint64_t private_memory(void)
{
	private_kib = 0;
	spawnfd_each_line("/proc/self/smaps_rollup", add_private);
	return private_kib << 10;
}

static void report(void)
{
	static char text[SPAWNFD_NOTES_ROOM + SPAWNFD_AUTHORITY_ROOM];
	struct spawnfd_reply reply = {.kind = SPAWNFD_REPLY_PARKED};
	size_t length, authority;

	_Static_assert(sizeof(text) + sizeof(reply) <= SPAWNFD_MAX_MESSAGE, "a reply fits");

	spawnfd_note_mapped();
	spawnfd_note_searched();
	reply.private_bytes = private_memory();
	length = spawnfd_report_notes(text);
	authority = spawnfd_report_authority(text + length, SPAWNFD_AUTHORITY_ROOM, &reply);
	if (!authority)
		spawnfd_cannot_park("too many groups");
	spawnfd_say(&parking.line, reply, text, length + authority, -1);
}

/* --- requests ------------------------------------------------------------------------------------
 */

/*
 * A received message; the program's arguments and environment stay in it. A mapping of its own
 * would be one more mapping in each child of a process that forks.
 */
static _Alignas(16) char message[SPAWNFD_ROOM];

/* The copy that keep_environment() makes; unmapped if the request is withdrawn. */
static struct {
	void *at;
	size_t length;
} kept;

/* Copies the arguments of `program` and this process's environment to a new mapping. Returns the
 * bytes of the environment. */
static size_t keep_environment(struct program *program, size_t argv_length)
{
	size_t length = 0, count = 0, places;
	char *strings, **pointers;

	for (char **at = environ; *at; at++, count++)
		length += strlen(*at) + 1;
	places = (size_t)program->argc + count + 2;
	kept.length = places * sizeof(char *) + argv_length + length;
	kept.at =
		mmap(NULL, kept.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (kept.at == MAP_FAILED)
		_exit(126);
	pointers = kept.at;
	strings = (char *)(pointers + places);
	memcpy(strings, program->argv[0], argv_length);
	for (int i = 0; i < program->argc; i++)
		pointers[i] = strings + (program->argv[i] - program->argv[0]);
	program->argv = pointers;
	program->envp = pointers + program->argc + 1;
	strings += argv_length;
	for (size_t i = 0; i < count; i++) {
		size_t size = strlen(environ[i]) + 1;

		program->envp[i] = memcpy(strings, environ[i], size);
		strings += size;
	}
	return length;
}

/* Makes this process the program of `request`; false if the owner has withdrawn the request. */
static bool become(struct request *request, struct program *program)
{
	const struct spawnfd_request *head = request->head;
	size_t env_length = head->env_length;
	char **before = environ;
	uint64_t mask;
	uint32_t index = SPAWNFD_NO_STEP;
	int error;

	if (head->flags & SPAWNFD_FLAG_OWN_ENVIRONMENT)
		env_length = keep_environment(program, head->argv_length);
	environ = program->envp;
	spawnfd_show_arguments(program, head->argv_length, env_length);
	/* Signals sent until now were meant for the parked process, later ones are for the program.
	 */
	spawnfd_discard_signals();
	if (!spawnfd_is_to_go(&parking.line, head->serial)) {
		environ = before;
		if (head->flags & SPAWNFD_FLAG_OWN_ENVIRONMENT)
			munmap(kept.at, kept.length);
		return false;
	}
	prctl(PR_SET_DUMPABLE, dumpable, 0, 0, 0);
	close(parking.line.owner);
	error = spawnfd_read_page(request)
			? spawnfd_carry_out(request, &parking.line.socket, &index)
			: EINVAL;
	if (error)
		spawnfd_fail(&parking.line, index, error);
	spawnfd_settle_signals(request);
	if (parking.kind == SPAWNFD_KIND_NODE)
		/* Node's own descriptors have numbers above 2 and stay. It accepts no others there.
		 */
		spawnfd_close_all(request->sources, head->sources);
	else
		spawnfd_keep_only(request, parking.line.socket);
	close(parking.line.socket);
	mask = parking.line.page->mask;
	program->signals = parking.line.page->make_default | parking.line.page->make_ignored;
	spawnfd_became(&parking.line);
	munmap(parking.line.page, SPAWNFD_PAGE_SIZE);
	parking.active = false;
	spawnfd_set_mask(mask);
	return true;
}

/* Forks a child that waits as this process does, with the socket and the page of the request. The
 * kernel writes its pid into that page before it runs. */
static void fork_one(const struct spawnfd_fork_hooks *hooks, const int *sources, uint32_t flags)
{
	struct spawnfd_page *page = spawnfd_map(sources[SPAWNFD_FORK_PAGE]);

	if (!page)
		return;
	if (spawnfd_fork(hooks, &page->child)) {
		munmap(page, SPAWNFD_PAGE_SIZE);
		return;
	}
	is_child = true;
	spawnfd_wait_apart(&parking.line, page, sources[SPAWNFD_FORK_SOCKET],
			   flags & SPAWNFD_FLAG_MEASURE ? private_memory() : 0);
}

const struct program *spawnfd_park(const struct spawnfd_fork_hooks *hooks)
{
	static struct request request;
	static struct program program;
	int dies_by;

	spawnfd_restore_output();
	if (spawnfd_searches_from_here())
		spawnfd_cannot_park("libraries in a relative place");
	if (parking.kind == SPAWNFD_KIND_MAIN) {
		spawnfd_check_environment();
		spawnfd_load_locale();
	}
	if (parking.kind != SPAWNFD_KIND_NODE)
		spawnfd_check_state();
	if (!spawnfd_remember_memory() || (spawnfd_forks() && !spawnfd_can_fork()))
		spawnfd_cannot_park("prctl");
	if (spawnfd_forks() && !spawnfd_keep_line(&parking.line))
		spawnfd_cannot_park("madvise");
	spawnfd_set_mask(~UINT64_C(0));
	if (!spawnfd_may_become())
		spawnfd_cannot_park("seccomp filter");
	close(parking.object);
	/* The owner's pidfd reports its death from here on. A signal that a sandbox's own program
	 * has asked for stays. */
	if (parking.mode != SPAWNFD_MODE_SANDBOX && !prctl(PR_GET_PDEATHSIG, &dies_by, 0, 0, 0) &&
	    dies_by == SIGKILL)
		prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
	dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
	if (parking.kind == SPAWNFD_KIND_MAIN && !spawnfd_forks())
		spawnfd_touch_program();
	/* Before the owner counts on it. */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	report();
	for (;;) {
		size_t count, length;
		bool forks = spawnfd_forks() && !is_child, sound;

		request.page = parking.line.page;
		length = spawnfd_receive(&parking.line, message, request.sources, &count);
		sound = spawnfd_read_request(message, length, sizeof(message), count, &request,
					     &program);
		if (!sound || forks != !!(request.head->flags & SPAWNFD_FLAG_FORK)) {
			spawnfd_refuse(&parking.line);
		} else if (forks) {
			fork_one(hooks, request.sources, request.head->flags);
		} else if (parking.kind == SPAWNFD_KIND_NODE &&
			   !spawnfd_node_accepts(&request, &program)) {
			spawnfd_refuse(&parking.line);
		} else if (become(&request, &program)) {
			return &program;
		}
		spawnfd_close_all(request.sources, count);
		memset(message, 0, length);
	}
}
