/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Takes a program over at main(), and lets it wait there for what it is to be asked.
 *
 * This object is preloaded (ld.so(8), LD_PRELOAD). The environment variable SPAWNFD_PARK holds what
 * the owner passes to it: enum spawnfd_park_field.
 */
#define _GNU_SOURCE
#include "park.h"
#include "authority.h"
#include "internal.h"
#include "line.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static struct {
	/* A child of a process that forks waits itself. */
	bool looked, active, parked, is_child;
	/* What start-up code makes of the environment shows. */
	uint64_t environment;
	struct spawnfd_line line;
	int shim;
	/* What 1 and 2 were, while all that is said there is kept; 0: it is not. */
	int outputs[2];
	char kind, mode;
	int dumpable;
	/* Descriptors that were open before anything of the program ran; those above are not known.
	 */
	uint64_t inherited[16];
} park;

/* --- what was looked at before parking ----------------------------------------------------------
 */

/* Strings one after the other, each with its NUL. */
struct notes {
	size_t length;
	bool full;
	char text[56 << 10];
};
static struct notes variables, files;

/* Whether it is a new one. */
static bool note(struct notes *notes, const char *text)
{
	size_t length = strlen(text) + 1;

	if (length == 1 || park.parked)
		return false;
	for (const char *at = notes->text; at < notes->text + notes->length; at += strlen(at) + 1)
		if (!strcmp(at, text))
			return false;
	if (length > sizeof(notes->text) - notes->length) {
		notes->full = true;
		return false;
	}
	memcpy(notes->text + notes->length, text, length);
	notes->length += length;
	return true;
}

void spawnfd_note_variable(const char *name)
{
	note(&variables, name);
}

void spawnfd_forget_variable(const char *name)
{
	size_t length = strlen(name) + 1;

	for (char *at = variables.text; at < variables.text + variables.length;
	     at += strlen(at) + 1) {
		if (strcmp(at, name))
			continue;
		variables.length -= length;
		memmove(at, at + length, (size_t)(variables.text + variables.length - at));
		return;
	}
}

void spawnfd_note_file(const char *path)
{
	note(&files, path);
}

/* --- what the owner has left --------------------------------------------------------------------
 */

static char **find_variable(const char *name)
{
	size_t length = strlen(name);

	for (char **at = environ; at && *at; at++)
		if (!strncmp(*at, name, length) && (*at)[length] == '=')
			return at;
	return NULL;
}

static void remove_variable(const char *name)
{
	char **at = find_variable(name);

	for (; at && *at; at++)
		*at = at[1];
}

/* Calls `each` with the number of each open descriptor; false where they cannot be listed. */
static bool each_descriptor(void (*each)(int))
{
	_Alignas(8) char buffer[2048];
	int list = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long length;

	if (list < 0)
		return false;
	while ((length = syscall(SYS_getdents64, list, buffer, sizeof(buffer))) > 0) {
		for (long at = 0; at < length;) {
			/* struct linux_dirent64: inode and offset of 8 bytes each, length of 2,
			 * type of 1, name. */
			unsigned short size;
			const char *name = buffer + at + 19;

			memcpy(&size, buffer + at + 16, sizeof(size));
			at += size;
			if (*name != '.' && atoi(name) != list)
				each(atoi(name));
		}
	}
	close(list);
	return length == 0;
}

/* A number that is another for another environment. */
static uint64_t environment_now(void)
{
	uint64_t hash = 1;

	/* FNV-1a, with the NUL of each. */
	for (char **at = environ; at && *at; at++)
		for (const char *byte = *at;; byte++) {
			hash = (hash ^ (unsigned char)*byte) * UINT64_C(0x100000001b3);
			if (!*byte)
				break;
		}
	return hash;
}

static void was_there(int fd)
{
	if (fd < 1024)
		park.inherited[fd / 64] |= UINT64_C(1) << fd % 64;
}

/* What is said before it parks is the program's: it would be lost. */
static void begin_to_hear(int said)
{
	for (int i = 0; i < 2; i++) {
		/* A sandbox's own program may have closed one. */
		park.outputs[i] = fcntl(1 + i, F_DUPFD_CLOEXEC, said);
		if (park.outputs[i] > 0 && dup3(said, 1 + i, 0) < 0)
			_exit(126);
	}
	close(said);
}

static void end_to_hear(void)
{
	struct stat said;
	bool any = false;

	for (int i = 0; i < 2; i++) {
		if (park.outputs[i] <= 0)
			continue;
		any |= !fstat(1 + i, &said) && said.st_size > 0;
		dup3(park.outputs[i], 1 + i, 0);
		close(park.outputs[i]);
	}
	if (any)
		spawnfd_cannot_park("start-up code writes");
}

/* Finds out, once, whether this program is to be parked; before anything of it runs, if that can
 * be. */
static void look(void)
{
	char **variable, *at;
	unsigned long long left[SPAWNFD_PARK_KIND];
	int page, said;
	struct stat executable;

	if (park.looked)
		return;
	park.looked = true;
	variable = find_variable(SPAWNFD_PARK_VARIABLE);
	if (!variable)
		return;
	at = *variable + strlen(SPAWNFD_PARK_VARIABLE "=");
	for (int i = 0; i < SPAWNFD_PARK_KIND; i++, at++) {
		left[i] = strtoull(at, &at, 10);
		if (*at != ':')
			return;
	}
	if (!at[0] || at[1] != ':' || !at[2])
		return;
	said = at[3] == ':' ? atoi(at + 4) : 0;
	/* Who cannot tell would run. */
	if (stat("/proc/self/exe", &executable))
		_exit(126);
	if (executable.st_dev != left[SPAWNFD_PARK_DEVICE] ||
	    executable.st_ino != left[SPAWNFD_PARK_INODE])
		return;
	park.line.socket = (int)left[SPAWNFD_PARK_SOCKET];
	park.line.owner = (int)left[SPAWNFD_PARK_OWNER];
	park.shim = (int)left[SPAWNFD_PARK_OBJECT];
	page = (int)left[SPAWNFD_PARK_PAGE];
	park.kind = at[0];
	park.mode = at[2];
	remove_variable(SPAWNFD_PARK_VARIABLE);
	remove_variable("LD_PRELOAD");
	park.line.page = spawnfd_map(page);
	close(page);
	if (!park.line.page || !each_descriptor(was_there))
		_exit(126);
	for (int i = 0; i < 3; i++)
		fcntl((int[]){park.line.socket, park.line.owner, park.shim}[i], F_SETFD,
		      FD_CLOEXEC);
	if (said)
		begin_to_hear(said);
	park.active = true;
	/* It would be run, and not wait: Go's own linker makes such programs. */
	if (!spawnfd_imports("__libc_start_main"))
		spawnfd_cannot_park("own entry");
	if (spawnfd_has_preinit())
		spawnfd_cannot_park("preinit_array");
	park.environment = environment_now();
}

/* The first constructor of all (-z initfirst): even libc's have yet to run. */
__attribute__((constructor(101))) static void begin(int argc, char **argv, char **envp)
{
	(void)argc;
	(void)argv;
	if (!environ)
		environ = envp;
	look();
}

bool spawnfd_forks(void)
{
	return park.mode == SPAWNFD_MODE_FORK;
}

int spawnfd_shim_descriptor(void)
{
	return park.active ? park.shim : -1;
}

/* --- interposed functions of libc ---------------------------------------------------------------
 */

#define PUBLIC __attribute__((visibility("default")))

static char *value_of(const char *name)
{
	char **at;

	look();
	if (park.active && park.kind == SPAWNFD_KIND_NODE)
		spawnfd_node_looks(name);
	if (park.active)
		spawnfd_note_variable(name);
	at = name && *name ? find_variable(name) : NULL;
	return at ? *at + strlen(name) + 1 : NULL;
}

PUBLIC char *getenv(const char *name)
{
	return value_of(name);
}

/* A program that is secure (AT_SECURE) has no use for LD_PRELOAD: where this runs, none is. */
PUBLIC char *secure_getenv(const char *name)
{
	return value_of(name);
}

static int (*the_main)(int, char **, char **);

static int parked_main(int argc, char **argv, char **envp)
{
	if (park.kind == SPAWNFD_KIND_PYTHON)
		return spawnfd_python_main(argc, argv, envp, the_main);
	return spawnfd_node_main(argc, argv, envp, the_main);
}

PUBLIC int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv,
			     void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
			     void *stack_end)
{
	__typeof__(&__libc_start_main) original =
		(__typeof__(original))dlsym(RTLD_NEXT, "__libc_start_main");

	look();
	the_main = main;
	if (park.active && park.kind != SPAWNFD_KIND_MAIN)
		main = parked_main;
	if (park.active && park.kind == SPAWNFD_KIND_MAIN) {
		/* Before the executable's own constructors, which are given the arguments: Rust's
		 * library keeps them. */
		const struct program *program = spawnfd_park(NULL);

		argc = program->argc;
		argv = program->argv;
	}
	errno = 0;
	return original(main, argc, argv, init, fini, rtld_fini, stack_end);
}

/* --- talking to the owner -----------------------------------------------------------------------
 */

_Noreturn void spawnfd_cannot_park(const char *why)
{
	spawnfd_say(&park.line, (struct spawnfd_reply){.kind = SPAWNFD_REPLY_CANNOT}, why,
		    strlen(why), -1);
	_exit(126);
}

static bool descriptor_is_new;

static void is_it_new(int fd)
{
	if (fd >= 1024 || !(park.inherited[fd / 64] >> fd % 64 & 1))
		descriptor_is_new = true;
}

static bool has_children(void)
{
	siginfo_t info;

	return !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) || errno != ECHILD;
}

static bool alone(void)
{
	struct stat tasks;

	/* The directory's own links, and one thread's. */
	return !stat("/proc/self/task", &tasks) && tasks.st_nlink == 3;
}

bool spawnfd_note_file_of(const char *line)
{
	const char *path = strchr(line, '/');

	return path && strncmp(path, "/memfd:", 7) != 0 && strncmp(path, "/dev/", 5) != 0 &&
	       note(&files, path);
}

static void note_file_of(const char *line)
{
	spawnfd_note_file_of(line);
}

void spawnfd_note_mapped(void)
{
	/* Landlock: then a change of a library would not be noticed. */
	if (!spawnfd_each_line("/proc/self/maps", note_file_of))
		spawnfd_cannot_park("/proc cannot be read");
}

static uint64_t private_kib;

static void add_private(const char *line)
{
	if (!strncmp(line, "Private_Clean:", 14) || !strncmp(line, "Private_Dirty:", 14))
		private_kib += strtoull(line + 14, NULL, 10);
}

/* How much memory is this process's own, in bytes. */
static uint64_t private_memory(void)
{
	private_kib = 0;
	spawnfd_each_line("/proc/self/smaps_rollup", add_private);
	return private_kib << 10;
}

static void tell_that_it_is_parked(void)
{
	static char text[sizeof(variables.text) + sizeof(files.text) + 2 + SPAWNFD_AUTHORITY_ROOM];
	struct spawnfd_reply reply = {.kind = SPAWNFD_REPLY_PARKED};
	size_t length, authority;

	_Static_assert(sizeof(text) + sizeof(reply) <= SPAWNFD_MAX_MESSAGE, "a reply fits");

	spawnfd_note_mapped();
	spawnfd_note_searched();
	reply.private_bytes = private_memory();
	if (variables.full || files.full)
		spawnfd_cannot_park("too many names");
	memcpy(text, variables.text, variables.length);
	length = variables.length + 1;
	memcpy(text + length, files.text, files.length);
	length += files.length + 1;
	authority = spawnfd_report_authority(text + length, SPAWNFD_AUTHORITY_ROOM, &reply);
	if (!authority)
		spawnfd_cannot_park("too many groups");
	park.parked = true;
	spawnfd_say(&park.line, reply, text, length + authority, -1);
}

/* --- waiting, and becoming the program ----------------------------------------------------------
 */

/*
 * Where a message is received, and what it says stays: the program's arguments and environment.
 * Here and not in a mapping of its own, which would cost each child of a process that forks one
 * more.
 */
static _Alignas(16) char message[SPAWNFD_ROOM];

/* Of all signals, those that libc keeps to itself as well. */
static void set_mask(uint64_t mask)
{
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof(mask));
}

static void close_all(const int *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		close(list[i]);
}

/* What a request that may yet be withdrawn has brought beside the message. */
static struct {
	void *at;
	size_t length;
} kept;

/* Gives `program` the environment that is there, behind its arguments; how many bytes that is. */
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

/* Returns once this process has become what `request` says; false, if it is not to. */
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
	/* What was sent to a parked process was not meant for the program; what comes from here on
	 * is. */
	spawnfd_discard_signals();
	if (!spawnfd_is_to_go(&park.line, head->serial)) {
		environ = before;
		if (head->flags & SPAWNFD_FLAG_OWN_ENVIRONMENT)
			munmap(kept.at, kept.length);
		return false;
	}
	prctl(PR_SET_DUMPABLE, park.dumpable, 0, 0, 0);
	close(park.line.owner);
	error = spawnfd_read_page(request) ? spawnfd_carry_out(request, &park.line.socket, &index)
					   : EINVAL;
	if (error)
		spawnfd_fail(&park.line, index, error);
	spawnfd_settle_signals(request);
	if (park.kind == SPAWNFD_KIND_NODE)
		/* Its own have numbers above 2, and stay; it accepts no others there. */
		close_all(request->sources, head->sources);
	else
		spawnfd_keep_only(request, park.line.socket);
	close(park.line.socket);
	mask = park.line.page->mask;
	program->signals = park.line.page->make_default | park.line.page->make_ignored;
	spawnfd_became(&park.line);
	munmap(park.line.page, SPAWNFD_PAGE_SIZE);
	park.active = false;
	set_mask(mask);
	return true;
}

/* Forks a child that waits as this process does, with the socket and the page that have come: its
 * number stands in that page before it runs. */
static void fork_one(const struct spawnfd_fork_hooks *hooks, const int *sources, uint32_t flags)
{
	struct spawnfd_page *page = spawnfd_map(sources[SPAWNFD_FORK_PAGE]);

	if (!page)
		return;
	if (spawnfd_fork(hooks, &page->child)) {
		munmap(page, SPAWNFD_PAGE_SIZE);
		return;
	}
	park.is_child = true;
	spawnfd_wait_apart(&park.line, page, sources[SPAWNFD_FORK_SOCKET],
			   flags & SPAWNFD_FLAG_MEASURE ? private_memory() : 0);
}

const struct program *spawnfd_park(const struct spawnfd_fork_hooks *hooks)
{
	static struct request request;
	static struct program program;
	int dies_by;

	end_to_hear();
	if (spawnfd_searches_from_here())
		spawnfd_cannot_park("libraries in a relative place");
	if (park.kind == SPAWNFD_KIND_MAIN) {
		if (environment_now() != park.environment)
			spawnfd_cannot_park("changed environment");
		spawnfd_load_locale();
	}
	if (park.kind != SPAWNFD_KIND_NODE) {
		if (!alone())
			spawnfd_cannot_park("threads");
		if (has_children())
			spawnfd_cannot_park("children");
		if (!each_descriptor(is_it_new) || descriptor_is_new)
			spawnfd_cannot_park("descriptors");
	}
	if (!spawnfd_remember_memory() || (spawnfd_forks() && !spawnfd_can_fork()))
		spawnfd_cannot_park("prctl");
	if (spawnfd_forks() && !spawnfd_keep_line(&park.line))
		spawnfd_cannot_park("madvise");
	set_mask(~UINT64_C(0));
	if (!spawnfd_may_become())
		spawnfd_cannot_park("seccomp filter");
	close(park.shim);
	/* The line tells it from here on. What a sandbox's own program has asked for stays. */
	if (park.mode != SPAWNFD_MODE_SANDBOX && !prctl(PR_GET_PDEATHSIG, &dies_by, 0, 0, 0) &&
	    dies_by == SIGKILL)
		prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
	park.dumpable = prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
	if (park.kind == SPAWNFD_KIND_MAIN && !spawnfd_forks())
		spawnfd_touch_program();
	/* Before anybody counts on it. */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	tell_that_it_is_parked();
	for (;;) {
		size_t count, length;
		bool forks = spawnfd_forks() && !park.is_child, sound;

		request.page = park.line.page;
		length = spawnfd_receive(&park.line, message, request.sources, &count);
		sound = spawnfd_read_request(message, length, sizeof(message), count, &request,
					     &program);
		if (!sound || forks != !!(request.head->flags & SPAWNFD_FLAG_FORK)) {
			spawnfd_refuse(&park.line);
		} else if (forks) {
			fork_one(hooks, request.sources, request.head->flags);
		} else if (park.kind == SPAWNFD_KIND_NODE &&
			   !spawnfd_node_accepts(&request, &program)) {
			spawnfd_refuse(&park.line);
		} else if (become(&request, &program)) {
			return &program;
		}
		close_all(request.sources, count);
		memset(message, 0, length);
	}
}
