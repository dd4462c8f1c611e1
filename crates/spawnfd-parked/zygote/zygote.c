/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program that is parked to execute others. It waits for a request as all do that are parked
 * (common), carries its steps out, and executes what it names in its own place. In mode fork it
 * has children of its parent's that do so.
 *
 *     spawnfd-zygote MODE      r: reserve, f: fork
 *     spawnfd-zygote pAT:PATH      only says, to descriptor AT, whether a program in its place
 *                                  would have the object at PATH preloaded
 *
 * Its descriptors are those of enum spawnfd_zygote. It has no libc: one that is made ahead costs
 * what exec costs, and no more.
 */
#define _GNU_SOURCE
#include "authority.h"
#include "line.h"
#include "park.h"
#include "zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* In bytes, more or less: some pages of its own, and its tables. */
enum { OWN_MEMORY = 64 << 10 };

static struct spawnfd_line line = {.socket = SPAWNFD_ZYGOTE_SOCKET, .owner = SPAWNFD_ZYGOTE_OWNER};
/* What is to be executed. */
static struct request request;
static struct program program;

static _Noreturn void fail(enum spawnfd_stage stage, uint32_t index, int error)
{
	line.page->report = (uint64_t)stage << SPAWNFD_REPORT_STAGE_SHIFT |
			    (uint64_t)index << SPAWNFD_REPORT_INDEX_SHIFT | (uint32_t)error;
	_exit(127);
}

/* Whether a search would take it: is_candidate in crates/spawnfd-child/src/plan.rs. */
static bool is_candidate(const char *path, const struct statx *file)
{
	long error = syscall(SYS_faccessat2, AT_FDCWD, path, X_OK, AT_EACCESS);

	/* Before Linux 5.8, or refused: by the real ids. */
	if (error && (errno == ENOSYS || errno == EPERM))
		error = syscall(SYS_faccessat, AT_FDCWD, path, X_OK);
	return !error && S_ISREG(file->stx_mode);
}

/* 0, ESTALE, or why it cannot be told: as verify_one in crates/spawnfd-child/src/child.rs. */
static int verify(const struct spawnfd_check *check, const struct request *of)
{
	const char *path = of->strings + check->path;
	bool source = check->kind == SPAWNFD_CHECK_SAME_SOURCE;
	struct statx now;
	long error =
		syscall(SYS_statx, source ? of->sources[of->head->program] : AT_FDCWD,
			source ? "" : path, source ? AT_EMPTY_PATH : 0, STATX_BASIC_STATS, &now);

	if (check->kind == SPAWNFD_CHECK_ABSENT)
		return !error && is_candidate(path, &now) ? ESTALE : 0;
	if (error)
		return errno == ENOENT || errno == ENOTDIR ? ESTALE : errno;
	if (now.stx_dev_major == check->device_major && now.stx_dev_minor == check->device_minor &&
	    now.stx_ino == check->inode && now.stx_size == check->size &&
	    now.stx_mode == check->mode && now.stx_uid == check->owner &&
	    now.stx_gid == check->group && now.stx_ctime.tv_sec == check->ctime &&
	    now.stx_ctime.tv_nsec == check->ctime_nanoseconds &&
	    now.stx_mtime.tv_sec == check->mtime &&
	    now.stx_mtime.tv_nsec == check->mtime_nanoseconds)
		return 0;
	return ESTALE;
}

/* Executes what was asked for. Comes back only if it is not to be. */
static void execute(void)
{
	const struct spawnfd_request *head = request.head;
	int socket = SPAWNFD_ZYGOTE_SOCKET, error;
	uint32_t index = SPAWNFD_NO_STEP;

	/* As become() in common/park.c. */
	spawnfd_discard_signals();
	if (!spawnfd_is_to_go(&line, head->serial))
		return;
	/* Whoever waits for it hears of what follows by the socket. */
	spawnfd_wake(&line);
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	error = spawnfd_read_page(&request) ? spawnfd_carry_out(&request, &socket, &index) : EINVAL;
	if (error)
		fail(index == SPAWNFD_NO_STEP ? SPAWNFD_STAGE_DESCRIPTORS : SPAWNFD_STAGE_ACTION,
		     (uint16_t)index, error);
	spawnfd_settle_signals(&request);
	for (uint32_t i = 0; i < head->checks; i++) {
		error = verify(&request.checks[i], &request);
		if (error)
			fail(SPAWNFD_STAGE_CHECK, i, error);
	}
	line.page->report = SPAWNFD_REPORT_EXEC;
	spawnfd_set_mask(line.page->mask);
	/* All that is not the program's is close-on-exec. */
	if (head->program < 0)
		syscall(SYS_execve, request.strings + head->path, program.argv, program.envp);
	else
		syscall(SYS_execveat, request.sources[head->program], "", program.argv,
			program.envp, AT_EMPTY_PATH);
	fail(SPAWNFD_STAGE_EXEC, 0, errno);
}

/* Forks a child of this process's parent, which waits with the socket and the page that have come:
 * its number stands in that page before it runs. True in the child. */
static bool fork_one(const int *sources)
{
	struct spawnfd_page *page = spawnfd_map(sources[SPAWNFD_FORK_PAGE]);

	if (!page)
		return false;
	if (syscall(SYS_clone, CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD, NULL, &page->child,
		    NULL, NULL)) {
		munmap(page, SPAWNFD_PAGE_SIZE);
		return false;
	}
	spawnfd_wait_apart(&line, page, sources[SPAWNFD_FORK_SOCKET], OWN_MEMORY);
	return true;
}

/* Whether one string begins with the other. */
static bool begins(const char *string, const char *with)
{
	while (*with)
		if (*string++ != *with++)
			return false;
	return true;
}

/* What ld.so needs: the environment's word, and a /proc in which it can be followed. */
static _Noreturn void probe(const char *where, char **envp)
{
	struct spawnfd_line to = {.socket = 0};
	bool preloads = false, parks = false;
	char **at;

	for (where++; *where >= '0' && *where <= '9'; where++)
		to.socket = to.socket * 10 + *where - '0';
	where += *where == ':';
	for (at = envp; *at; at++) {
		const char *path = *at + sizeof("LD_PRELOAD=") - 1;

		parks |= begins(*at, SPAWNFD_PARK_VARIABLE "=");
		if (begins(*at, "LD_PRELOAD="))
			preloads = begins(path, where) && begins(where, path) &&
				   !syscall(SYS_faccessat, AT_FDCWD, path, R_OK);
	}
	if (!preloads || !parks) {
		const char why[] = "not handed on";

		spawnfd_say(&to, (struct spawnfd_reply){.kind = SPAWNFD_REPLY_CANNOT}, why,
			    sizeof(why) - 1, -1);
		_exit(126);
	}
	spawnfd_say(&to, (struct spawnfd_reply){.kind = SPAWNFD_REPLY_PARKED}, NULL, 0, -1);
	_exit(0);
}

/* Tells the owner that this process is parked. */
static void report(void)
{
	/* Two empty strings: it has looked at no variables, and needs no files. */
	static char text[2 + SPAWNFD_AUTHORITY_ROOM];
	struct spawnfd_reply reply = {.kind = SPAWNFD_REPLY_PARKED, .private_bytes = OWN_MEMORY};
	size_t length = spawnfd_report_authority(text + 2, SPAWNFD_AUTHORITY_ROOM, &reply);
	const char why[] = "too many groups";

	if (!length) {
		reply.kind = SPAWNFD_REPLY_CANNOT;
		spawnfd_say(&line, reply, why, sizeof(why) - 1, -1);
		_exit(126);
	}
	spawnfd_say(&line, reply, text, 2 + length, -1);
}

void spawnfd_zygote(int argc, char **argv)
{
	static _Alignas(16) char message[SPAWNFD_ROOM];
	bool forks = argc > 1 && argv[1][0] == SPAWNFD_MODE_FORK;

	if (argc > 1 && argv[1][0] == SPAWNFD_MODE_PROBE)
		probe(argv[1], argv + argc + 1);
	spawnfd_set_mask(~UINT64_C(0));
	line.page = spawnfd_map(SPAWNFD_ZYGOTE_PAGE);
	if (!line.page || (forks && !spawnfd_keep_line(&line)))
		_exit(126);
	close(SPAWNFD_ZYGOTE_PAGE);
	fcntl(SPAWNFD_ZYGOTE_SOCKET, F_SETFD, FD_CLOEXEC);
	fcntl(SPAWNFD_ZYGOTE_OWNER, F_SETFD, FD_CLOEXEC);
	prctl(PR_SET_NAME, "spawnfd-zygote", 0, 0, 0);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	report();
	for (;;) {
		size_t count, length = spawnfd_receive(&line, message, request.sources, &count);
		bool sound;

		request.page = line.page;
		sound = spawnfd_read_request(message, length, sizeof(message), count, &request,
					     &program);
		if (!sound || forks != !!(request.head->flags & SPAWNFD_FLAG_FORK))
			spawnfd_refuse(&line);
		else if (!forks)
			execute();
		else if (fork_one(request.sources))
			forks = false;
		spawnfd_close_all(request.sources, count);
	}
}
