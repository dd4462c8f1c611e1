/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The zygote: a parked program that executes other programs. Like every parked process (common/),
 * it waits for a request and performs the steps. It then executes the program that the request
 * names. In fork mode, the zygote forks, and each fork executes a program. The forks are children
 * of the zygote's parent (CLONE_PARENT).
 *
 *     spawnfd-zygote MODE          r: reserve, f: fork
 *     spawnfd-zygote pSOCKET:PATH  only reports, to descriptor SOCKET, whether ld.so would preload
 *                                  the object at PATH into a program started in its place
 *
 * The zygote inherits the descriptors of enum spawnfd_zygote. It has no libc, because libc's
 * start-up would cost more than the exec.
 */
#include "authority.h"
#include "connection.h"
#include "park.h"
#include "zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* An estimate of a zygote's private memory in bytes: some pages, and page tables. */
enum { PRIVATE_MEMORY = 64 << 10 };

static struct spawnfd_connection connection = {.socket = SPAWNFD_ZYGOTE_SOCKET,
					       .owner_pidfd = SPAWNFD_ZYGOTE_OWNER};
/* The received request, and the program to execute. */
static struct request request;
static struct program program;

/* Whether a PATH search would accept the file. Must behave like is_candidate of
 * the crate spawnfd-child. */
static bool is_candidate(const char *path, const struct spawnfd_check *file)
{
	long error = spawnfd_syscall(&request, SPAWNFD_CALL_FACCESSAT2, AT_FDCWD, (long)path, X_OK,
				     AT_EACCESS, 0);

	if (error && (errno == ENOSYS || errno == EPERM))
		error = syscall(SYS_faccessat, AT_FDCWD, path, X_OK);
	return !error && S_ISREG(file->mode);
}

/* Identifies the file that `path` names below `dir`; an errno on failure. Must behave like
 * Identity::of of the crate spawnfd-child. */
static int identify(int dir, const char *path, struct spawnfd_check *file)
{
	const long flags = *path ? 0 : AT_EMPTY_PATH;
	struct statx found;
	struct stat old;

	if (!spawnfd_syscall(&request, SPAWNFD_CALL_STATX, dir, (long)path, flags,
			     STATX_BASIC_STATS, (long)&found)) {
		*file = (struct spawnfd_check){
			.device_major = found.stx_dev_major,
			.device_minor = found.stx_dev_minor,
			.mode = found.stx_mode,
			.owner = found.stx_uid,
			.group = found.stx_gid,
			.ctime_nanoseconds = found.stx_ctime.tv_nsec,
			.mtime_nanoseconds = found.stx_mtime.tv_nsec,
			.inode = found.stx_ino,
			.size = found.stx_size,
			.ctime = found.stx_ctime.tv_sec,
			.mtime = found.stx_mtime.tv_sec,
		};
		return 0;
	}
	if ((errno != ENOSYS && errno != EPERM) || syscall(SYS_newfstatat, dir, path, &old, flags))
		return errno;
	*file = (struct spawnfd_check){
		/* The inverse of new_encode_dev() in include/linux/kdev_t.h. */
		.device_major = old.st_dev >> 8 & 0xfff,
		.device_minor = (old.st_dev & 0xff) | (old.st_dev >> 12 & 0xfff00),
		.mode = old.st_mode,
		.owner = old.st_uid,
		.group = old.st_gid,
		.ctime_nanoseconds = (uint32_t)old.st_ctim.tv_nsec,
		.mtime_nanoseconds = (uint32_t)old.st_mtim.tv_nsec,
		.inode = old.st_ino,
		.size = (uint64_t)old.st_size,
		.ctime = old.st_ctim.tv_sec,
		.mtime = old.st_mtim.tv_sec,
	};
	return 0;
}

/* Returns 0 if the condition holds, ESTALE if it does not, or the errno of a failed call. Must
 * behave like verify_one of the crate spawnfd-child. The owner sends no request whose process sees
 * other owners of files. */
static int verify(const struct spawnfd_check *check)
{
	const char *path = request.strings + check->path;
	bool source = check->kind == SPAWNFD_CHECK_SAME_SOURCE;
	struct spawnfd_check now;
	int error = source ? identify(request.sources[request.head->program], "", &now)
			   : identify(AT_FDCWD, path, &now);

	if (check->kind == SPAWNFD_CHECK_ABSENT)
		return !error && is_candidate(path, &now) ? ESTALE : 0;
	if (error)
		return error == ENOENT || error == ENOTDIR ? ESTALE : error;
	now.kind = check->kind;
	now.path = check->path;
	return memcmp(&now, check, sizeof(now)) ? ESTALE : 0;
}

/* Executes the program of the request. Returns only if the owner withdraws the request. */
static void execute(void)
{
	const struct spawnfd_request *head = request.head;
	int socket = SPAWNFD_ZYGOTE_SOCKET, error;

	/* These calls have the same order as in become_program() of common/park.c. */
	spawnfd_discard_signals();
	if (!spawnfd_wait_for_commit(&connection, head->serial))
		return;
	/* Wake an owner that waits on the handshake. The owner then waits for the end of the
	 * socket, which exec or exit closes. */
	spawnfd_wake_owner(&connection);
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	error = spawnfd_perform_steps(&request, &socket);
	if (error)
		spawnfd_fail(&connection, error);
	spawnfd_set_dispositions(&request);
	for (uint32_t i = 0; i < head->checks; i++) {
		spawnfd_begin(connection.page, SPAWNFD_STAGE_CHECK, i);
		error = verify(&request.checks[i]);
		if (error)
			spawnfd_fail(&connection, error);
	}
	connection.page->report = SPAWNFD_REPORT_EXEC;
	spawnfd_set_mask(connection.page->mask);
	/* All descriptors that the program must not get have close-on-exec set. */
	if (head->program < 0)
		syscall(SYS_execve, request.strings + head->path, program.argv, program.envp);
	else
		spawnfd_syscall(&request, SPAWNFD_CALL_EXECVEAT, request.sources[head->program],
				(long)"", (long)program.argv, (long)program.envp, AT_EMPTY_PATH);
	error = errno;
	spawnfd_begin(connection.page, SPAWNFD_STAGE_EXEC, 0);
	spawnfd_fail(&connection, error);
}

/* Forks a child of this process's parent. The child waits on the socket and the page of the
 * request. The kernel writes the child's pid to that page before the child runs. Returns true in
 * the child.
 */
static bool fork_one(const int *sources)
{
	struct spawnfd_page *page = spawnfd_map_page(sources[SPAWNFD_FORK_PAGE]);

	if (!page)
		return false;
	if (syscall(SYS_clone, CLONE_PARENT | CLONE_PARENT_SETTID | SIGCHLD, NULL, &page->child,
		    NULL, NULL)) {
		munmap(page, SPAWNFD_PAGE_SIZE);
		return false;
	}
	spawnfd_use_own_connection(&connection, page, sources[SPAWNFD_FORK_SOCKET], PRIVATE_MEMORY);
	return true;
}

static bool starts_with(const char *string, const char *prefix)
{
	while (*prefix)
		if (*string++ != *prefix++)
			return false;
	return true;
}

/* Checks the conditions under which ld.so preloads the object: the environment variables, and a
 * /proc that resolves LD_PRELOAD's path. Reports the result to the owner. */
static _Noreturn void probe(const char *target, char **envp)
{
	struct spawnfd_connection owner = {.socket = 0};
	bool preloads = false, parks = false;
	char **entry;

	for (target++; *target >= '0' && *target <= '9'; target++)
		owner.socket = owner.socket * 10 + *target - '0';
	target += *target == ':';
	for (entry = envp; *entry; entry++) {
		const char *path = *entry + sizeof("LD_PRELOAD=") - 1;

		parks |= starts_with(*entry, SPAWNFD_PARK_VARIABLE "=");
		if (starts_with(*entry, "LD_PRELOAD="))
			preloads = starts_with(path, target) && starts_with(target, path) &&
				   !syscall(SYS_faccessat, AT_FDCWD, path, R_OK);
	}
	if (!preloads || !parks) {
		const char why[] = "sandbox command drops LD_PRELOAD";

		spawnfd_send_reply(&owner, (struct spawnfd_reply){.kind = SPAWNFD_REPLY_CANNOT},
				   why, sizeof(why) - 1, -1);
		_exit(126);
	}
	spawnfd_send_reply(&owner, (struct spawnfd_reply){.kind = SPAWNFD_REPLY_PARKED}, NULL, 0,
			   -1);
	_exit(0);
}

/* Reports to the owner that this process is parked. */
static void report(void)
{
	/* Three empty strings: the zygote depends on no variables, files and modules. */
	static char text[3 + SPAWNFD_AUTHORITY_SIZE];
	struct spawnfd_reply reply = {.kind = SPAWNFD_REPLY_PARKED,
				      .private_bytes = PRIVATE_MEMORY};
	size_t length = spawnfd_report_authority(text + 3, SPAWNFD_AUTHORITY_SIZE, &reply);
	const char why[] = "too many groups";

	if (!length) {
		reply.kind = SPAWNFD_REPLY_CANNOT;
		spawnfd_send_reply(&connection, reply, why, sizeof(why) - 1, -1);
		_exit(126);
	}
	spawnfd_send_reply(&connection, reply, text, 3 + length, -1);
}

void spawnfd_zygote(int argc, char **argv)
{
	static _Alignas(16) char message[SPAWNFD_REQUEST_SIZE];
	bool expects_fork = argc > 1 && argv[1][0] == SPAWNFD_MODE_FORK;

	if (argc > 1 && argv[1][0] == SPAWNFD_MODE_PROBE)
		probe(argv[1], argv + argc + 1);
	spawnfd_set_mask(~UINT64_C(0));
	connection.page = spawnfd_map_page(SPAWNFD_ZYGOTE_PAGE);
	if (!connection.page || (expects_fork && !spawnfd_exclude_page_from_forks(&connection)))
		_exit(126);
	close(SPAWNFD_ZYGOTE_PAGE);
	fcntl(SPAWNFD_ZYGOTE_SOCKET, F_SETFD, FD_CLOEXEC);
	fcntl(SPAWNFD_ZYGOTE_OWNER, F_SETFD, FD_CLOEXEC);
	prctl(PR_SET_NAME, "spawnfd-zygote", 0, 0, 0);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	report();
	for (;;) {
		size_t count,
			length = spawnfd_receive(&connection, message, request.sources, &count);
		bool valid;

		request.page = connection.page;
		valid = spawnfd_read_request(message, length, sizeof(message), count, &request,
					     &program);
		if (!valid || expects_fork != !!(request.head->flags & SPAWNFD_FLAG_FORK))
			spawnfd_refuse(&connection);
		else if (!expects_fork)
			execute();
		else if (fork_one(request.sources))
			expects_fork = false;
		spawnfd_close_all(request.sources, count);
	}
}
