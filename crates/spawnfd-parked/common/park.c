/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Parks this process: it reports to its owner, waits for requests, and becomes the program that a
 * request describes. */
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

/* True in a forked child of a parked process. The child waits for a request to become a program. */
static bool is_forked_child;
/* The value of PR_GET_DUMPABLE before parking. The process restores it for the program. */
static int dumpable;

/* --- the report to the owner --------------------------------------------------------------------
 */

static uint64_t private_kib;

static void add_private(const char *line)
{
	if (!strncmp(line, "Private_Clean:", 14) || !strncmp(line, "Private_Dirty:", 14))
		private_kib += strtoull(line + 14, NULL, 10);
}

/* The size of this process's private memory, in bytes. */
static uint64_t private_memory(void)
{
	private_kib = 0;
	spawnfd_each_line("/proc/self/smaps_rollup", add_private);
	return private_kib << 10;
}

static void report(void)
{
	static char text[SPAWNFD_DEPENDENCIES_SIZE + SPAWNFD_AUTHORITY_SIZE];
	struct spawnfd_reply reply = {.kind = SPAWNFD_REPLY_PARKED};
	size_t length, authority;

	_Static_assert(sizeof(text) + sizeof(reply) <= SPAWNFD_MAX_MESSAGE, "a reply fits");

	spawnfd_record_mappings();
	spawnfd_record_library_paths();
	reply.private_bytes = private_memory();
	length = spawnfd_write_dependencies(text);
	authority = spawnfd_report_authority(text + length, SPAWNFD_AUTHORITY_SIZE, &reply);
	if (!authority)
		spawnfd_cannot_park("too many groups");
	spawnfd_send_reply(&parking.connection, reply, text, length + authority, -1);
}

/* --- requests ------------------------------------------------------------------------------------
 */

/*
 * The buffer of a received message. The program's arguments and environment stay in this buffer. It
 * is static, because in fork mode each additional mapping makes every fork slower.
 */
static _Alignas(16) char message[SPAWNFD_REQUEST_SIZE];

/* The mapping that copy_environment() makes. If the owner withdraws the request, this process
 * unmaps it. */
static struct {
	void *address;
	size_t length;
} environment_copy;

/* Copies the arguments of `program` and this process's environment to a new mapping. Returns the
 * size of the environment in bytes. */
static size_t copy_environment(struct program *program, size_t argv_length)
{
	size_t length = 0, count = 0, pointer_count;
	char *strings, **pointers;

	for (; environ[count]; count++)
		length += strlen(environ[count]) + 1;
	pointer_count = (size_t)program->argc + count + 2;
	environment_copy.length = pointer_count * sizeof(char *) + argv_length + length;
	environment_copy.address = mmap(NULL, environment_copy.length, PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (environment_copy.address == MAP_FAILED)
		_exit(126);
	pointers = environment_copy.address;
	strings = (char *)(pointers + pointer_count);
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
static bool become_program(const struct spawnfd_interpreter *interpreter, struct request *request,
			   struct program *program)
{
	const struct spawnfd_request *head = request->head;
	size_t env_length = head->env_length;
	char **old_environ = environ;
	uint64_t mask;
	int error;

	if (head->flags & SPAWNFD_FLAG_OWN_ENVIRONMENT)
		env_length = copy_environment(program, head->argv_length);
	environ = program->envp;
	spawnfd_set_shown_arguments(program, head->argv_length, env_length);
	/* Signals that arrived until now were meant for the parked process. Later signals are meant
	 * for the program. */
	spawnfd_discard_signals();
	if (!spawnfd_wait_for_commit(&parking.connection, head->serial)) {
		environ = old_environ;
		if (head->flags & SPAWNFD_FLAG_OWN_ENVIRONMENT)
			munmap(environment_copy.address, environment_copy.length);
		return false;
	}
	prctl(PR_SET_DUMPABLE, dumpable, 0, 0, 0);
	close(parking.connection.owner_pidfd);
	error = spawnfd_perform_steps(request, &parking.connection.socket);
	if (error)
		spawnfd_fail(&parking.connection, error);
	spawnfd_set_dispositions(request);
	if (interpreter->keeps_descriptors)
		spawnfd_close_all(request->sources, head->sources);
	else
		spawnfd_close_others(request, parking.connection.socket);
	close(parking.connection.socket);
	mask = parking.connection.page->mask;
	program->signals =
		parking.connection.page->make_default | parking.connection.page->make_ignored;
	spawnfd_report_became(&parking.connection);
	munmap(parking.connection.page, SPAWNFD_PAGE_SIZE);
	parking.active = false;
	spawnfd_set_mask(mask);
	return true;
}

/* Forks a child that waits on the socket and the page of the request. The kernel writes the child's
 * pid to that page before the child runs. */
static void fork_one(const struct spawnfd_interpreter *interpreter, const int *sources,
		     uint32_t flags)
{
	struct spawnfd_page *page = spawnfd_map_page(sources[SPAWNFD_FORK_PAGE]);

	if (!page)
		return;
	if (spawnfd_fork(interpreter, &page->child)) {
		munmap(page, SPAWNFD_PAGE_SIZE);
		return;
	}
	is_forked_child = true;
	spawnfd_use_own_connection(&parking.connection, page, sources[SPAWNFD_FORK_SOCKET],
				   flags & SPAWNFD_FLAG_MEASURE ? private_memory() : 0);
}

const struct program *spawnfd_park(const struct spawnfd_interpreter *interpreter)
{
	static struct request request;
	static struct program program;
	int death_signal;

	spawnfd_restore_output();
	if (spawnfd_has_relative_library_path())
		spawnfd_cannot_park("a relative RPATH or RUNPATH");
	if (parking.kind == SPAWNFD_KIND_MAIN) {
		spawnfd_check_environment();
		spawnfd_preload_locale();
	}
	if (!interpreter->keeps_descriptors)
		spawnfd_check_state();
	if (!spawnfd_read_memory_map() || (spawnfd_in_fork_mode() && !spawnfd_can_fork()))
		spawnfd_cannot_park("prctl");
	if (spawnfd_in_fork_mode() && !spawnfd_exclude_page_from_forks(&parking.connection))
		spawnfd_cannot_park("madvise");
	spawnfd_set_mask(~UINT64_C(0));
	if (!spawnfd_required_calls_work())
		spawnfd_cannot_park("seccomp filter");
	close(parking.object);
	/* From here on the pidfd reports the owner's death, so the parent-death signal is cleared.
	 * In sandbox mode the sandbox program may have set that signal, so it stays. */
	if (parking.mode != SPAWNFD_MODE_SANDBOX &&
	    !prctl(PR_GET_PDEATHSIG, &death_signal, 0, 0, 0) && death_signal == SIGKILL)
		prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
	dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
	if (parking.kind == SPAWNFD_KIND_MAIN && !spawnfd_in_fork_mode())
		spawnfd_prefault_program();
	/* Clear the flag before the report, because the owner relies on this process not being
	 * dumpable. */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	report();
	for (;;) {
		size_t count, length;
		bool expects_fork = spawnfd_in_fork_mode() && !is_forked_child, valid;

		request.page = parking.connection.page;
		length = spawnfd_receive(&parking.connection, message, request.sources, &count);
		valid = spawnfd_read_request(message, length, sizeof(message), count, &request,
					     &program);
		if (!valid || expects_fork != !!(request.head->flags & SPAWNFD_FLAG_FORK)) {
			spawnfd_refuse(&parking.connection);
		} else if (expects_fork) {
			fork_one(interpreter, request.sources, request.head->flags);
		} else if (interpreter->accepts && !interpreter->accepts(&request, &program)) {
			spawnfd_refuse(&parking.connection);
		} else if (become_program(interpreter, &request, &program)) {
			return &program;
		}
		spawnfd_close_all(request.sources, count);
		memset(message, 0, length);
	}
}
