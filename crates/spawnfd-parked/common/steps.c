/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Performs the steps of a request, in the process that becomes the program. */
#include "connection.h"
#include "park.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The errno of a call with this result, or 0 if the call succeeded. */
static int error_of(long result)
{
	return result < 0 ? errno : 0;
}

long spawnfd_syscall(const struct request *request, enum spawnfd_call call, long first, long second,
		     long third, long fourth, long fifth)
{
	static const int numbers[] = {
		[SPAWNFD_CALL_CLOSE_RANGE] = SYS_close_range,
		[SPAWNFD_CALL_OPENAT2] = SYS_openat2,
		[SPAWNFD_CALL_STATX] = SYS_statx,
		[SPAWNFD_CALL_FACCESSAT2] = SYS_faccessat2,
		[SPAWNFD_CALL_EXECVEAT] = SYS_execveat,
	};

	if (request->head->killed >> call & 1) {
		errno = EPERM;
		return -1;
	}
	return syscall(numbers[call], first, second, third, fourth, fifth, 0L);
}

static void close_range_now(const struct request *request, unsigned first, unsigned last)
{
	if (first > last ||
	    !spawnfd_syscall(request, SPAWNFD_CALL_CLOSE_RANGE, first, last, 0, 0, 0))
		return;
	/* Close each descriptor alone if Linux is older than 5.9, or a filter refuses or kills
	 * close_range(). */
	for (unsigned fd = first; fd <= last && fd < 1 << 16; fd++)
		close((int)fd);
}

/* Opens a file as descriptor `to`. After close(to) the kernel usually returns that number. */
static int open_as(const struct request *request, int to, int dir, const char *path,
		   const struct open_how *how)
{
	int fd, error;

	close(to);
	fd = (int)spawnfd_syscall(request, SPAWNFD_CALL_OPENAT2, dir, (long)path, (long)how,
				  sizeof(*how), 0);
	if (fd < 0 && (errno == ENOSYS || errno == EPERM) && !how->resolve)
		fd = openat(dir, path, (int)how->flags, (mode_t)how->mode);
	if (fd < 0)
		return errno;
	if (fd == to)
		return 0;
	error = error_of(dup3(fd, to, 0));
	close(fd);
	return error;
}

static int write_number(int dir, const char *path, int number)
{
	char text[16], *digits = text + sizeof(text);
	unsigned rest = number < 0 ? -(unsigned)number : (unsigned)number;
	int fd = openat(dir, path, O_WRONLY | O_CLOEXEC), error;

	if (fd < 0)
		return errno;
	do
		*--digits = (char)('0' + rest % 10);
	while (rest /= 10);
	if (number < 0)
		*--digits = '-';
	error = error_of(write(fd, digits, (size_t)(text + sizeof(text) - digits)));
	close(fd);
	return error;
}

static bool is_same_file(int one, int other)
{
	struct stat first, second;

	return !fstat(one, &first) && !fstat(other, &second) && first.st_dev == second.st_dev &&
	       first.st_ino == second.st_ino;
}

static int set_capabilities(uint64_t effective, uint64_t permitted, uint64_t inheritable)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	const struct __user_cap_data_struct halves[] = {
		{(uint32_t)effective, (uint32_t)permitted, (uint32_t)inheritable},
		{effective >> 32, permitted >> 32, inheritable >> 32},
	};

	return error_of(syscall(SYS_capset, &head, halves));
}

/* Reduces this thread's capability sets to those in `bytes`. Must behave like limit_capabilities of
 * the crate spawnfd-child. */
static int limit_capabilities(const char *bytes)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct now[2];
	struct spawnfd_capabilities sets;
	uint64_t permitted, inheritable;
	int error;

	memcpy(&sets, bytes, sizeof(sets));
	/* Dropping capabilities from the bounding set needs CAP_SETPCAP in the effective set. An
	 * earlier change of user ids may have emptied this set. */
	if (syscall(SYS_capget, &head, now))
		return errno;
	permitted = now[0].permitted | (uint64_t)now[1].permitted << 32;
	inheritable = now[0].inheritable | (uint64_t)now[1].inheritable << 32;
	error = set_capabilities(permitted, permitted, inheritable);
	for (unsigned long i = 0; i < 64 && !error; i++) {
		int has = prctl(PR_CAPBSET_READ, i, 0, 0, 0);

		if (has < 0)
			break;
		if (has == 1 && !(sets.bounding >> i & 1))
			error = error_of(prctl(PR_CAPBSET_DROP, i, 0, 0, 0));
	}
	if (!error)
		error = error_of(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0));
	if (!error)
		error = set_capabilities(sets.effective, sets.permitted, sets.inheritable);
	for (unsigned long i = 0; i < 64 && !error; i++)
		if (sets.ambient >> i & 1)
			error = error_of(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, i, 0, 0));
	return error;
}

/* Makes the system call of a step directly, so that it affects only this thread. libc's functions
 * would change the ids of all threads. */
static int make_call(const struct spawnfd_step *step, const struct request *request)
{
	const uint64_t values[SPAWNFD_ARGUMENTS] = {step->x, step->y, step->z};
	uint32_t kinds = (uint32_t)step->b;
	long args[SPAWNFD_ARGUMENTS];

	for (int i = 0; i < SPAWNFD_ARGUMENTS; i++, kinds >>= SPAWNFD_ARGUMENT_BITS) {
		switch ((enum spawnfd_argument)(kinds & 3)) {
		case SPAWNFD_ARGUMENT_NUMBER:
			args[i] = (long)values[i];
			break;
		case SPAWNFD_ARGUMENT_SOURCE:
			args[i] = request->sources[values[i]];
			break;
		case SPAWNFD_ARGUMENT_TEXT:
			args[i] = (long)(request->strings + values[i]);
			break;
		case SPAWNFD_ARGUMENT_DATA:
			args[i] = (long)&step->z;
		}
	}
	return error_of(syscall(step->a, args[0], args[1], args[2], 0L, 0L, 0L));
}

/* The caller has blocked all signals. So tcsetpgrp() from a background group does not stop this
 * process by SIGTTOU. */
static int perform_step(const struct spawnfd_step *step, struct request *request)
{
	const char *text = request->strings + step->text;
	const int *source = request->sources;

	switch ((enum spawnfd_op)step->op) {
	case SPAWNFD_OP_CLOSE_RANGE:
		/* Sources have numbers from `above` on. They are closed later, with all other
		 * descriptors that the request does not keep. */
		if (step->x < (uint64_t)request->head->above) {
			uint64_t last = (uint64_t)request->head->above - 1;

			close_range_now(request, (unsigned)step->x,
					(unsigned)(step->y < last ? step->y : last));
		}
		return 0;
	case SPAWNFD_OP_OPEN: {
		struct open_how how = {.flags = step->x, .mode = step->y, .resolve = step->z};

		return open_as(request, step->b, step->a < 0 ? AT_FDCWD : source[step->a], text,
			       &how);
	}
	case SPAWNFD_OP_TCSETPGRP:
		return error_of(tcsetpgrp(step->a, getpgrp()));
	case SPAWNFD_OP_OOM_SCORE_ADJ:
		return write_number(AT_FDCWD, "/proc/self/oom_score_adj", step->a);
	case SPAWNFD_OP_CGROUP:
		return write_number(source[step->a], "cgroup.procs", 0);
	case SPAWNFD_OP_REPLACE:
		return is_same_file(source[step->a], step->b)
			       ? error_of(dup3(source[step->a], step->b, 0))
			       : 0;
	case SPAWNFD_OP_CAPABILITIES:
		return limit_capabilities(text);
	case SPAWNFD_OP_CALL:
		return make_call(step, request);
	case SPAWNFD_OP_COUNT:
		break;
	}
	return EINVAL;
}

/* Moves a descriptor to a number of at least `above`, which no step names. */
static int move_above(int *fd, int above)
{
	int moved;

	if (*fd >= above)
		return 0;
	moved = fcntl(*fd, F_DUPFD_CLOEXEC, above);
	if (moved < 0)
		return errno == EINVAL ? EMFILE : errno;
	close(*fd);
	*fd = moved;
	return 0;
}

int spawnfd_perform_steps(struct request *request, int *socket)
{
	const struct spawnfd_request *head = request->head;
	const struct spawnfd_page *page = request->page;
	int error;

	spawnfd_begin(request->page, SPAWNFD_STAGE_DESCRIPTORS, 0);
	error = spawnfd_read_page(request) ? move_above(socket, head->above) : EINVAL;
	for (uint32_t i = 0; i < head->sources && !error; i++)
		error = move_above(&request->sources[i], head->above);
	for (uint64_t i = 0; i < page->first + head->steps && !error; i++) {
		const struct spawnfd_step *step =
			i < page->first ? &page->steps[i] : &request->steps[i - page->first];

		spawnfd_begin(request->page, SPAWNFD_STAGE_ACTION, step->index);
		error = perform_step(step, request);
	}
	return error;
}

void spawnfd_close_all(const int *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		close(list[i]);
}

void spawnfd_close_others(const struct request *request, int except)
{
	const struct spawnfd_request *head = request->head;
	unsigned first = SPAWNFD_FIRST_DESCRIPTOR;

	/* Close the descriptors between the kept numbers. Then close all higher descriptors except
	 * `except`, which is higher than the kept numbers. */
	for (uint32_t i = 0; i < head->keep; i++) {
		close_range_now(request, first, (unsigned)request->keep[i] - 1);
		first = (unsigned)request->keep[i] + 1;
	}
	close_range_now(request, first, (unsigned)except - 1);
	close_range_now(request, (unsigned)except + 1, ~0u);
}

long spawnfd_set_disposition(int number, const struct spawnfd_disposition *now,
			     struct spawnfd_disposition *old)
{
	return syscall(SYS_rt_sigaction, number, now, old, sizeof(uint64_t));
}

static const struct spawnfd_disposition ignored = {.handler = (unsigned long)SIG_IGN};

void spawnfd_discard_signals(void)
{
	uint64_t pending = 0;

	syscall(SYS_rt_sigpending, &pending, sizeof(pending));
	for (int number = 1; number <= 64; number++) {
		struct spawnfd_disposition old;

		/* Setting SIG_IGN discards a pending signal. */
		if (pending >> (number - 1) & 1) {
			spawnfd_set_disposition(number, &ignored, &old);
			spawnfd_set_disposition(number, &old, NULL);
		}
	}
}

void spawnfd_set_dispositions(const struct request *request)
{
	const struct spawnfd_page *page = request->page;
	const struct spawnfd_disposition standard = {.handler = (unsigned long)SIG_DFL};

	for (int number = 1; number <= 64; number++) {
		uint64_t bit = UINT64_C(1) << (number - 1);

		if (page->make_default & bit)
			spawnfd_set_disposition(number, &standard, NULL);
		if (page->make_ignored & bit)
			spawnfd_set_disposition(number, &ignored, NULL);
	}
}

void spawnfd_set_mask(uint64_t mask)
{
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, NULL, sizeof(mask));
}

bool spawnfd_required_calls_work(void)
{
	struct spawnfd_disposition old;
	uint64_t set = 0;

	/* All signals are blocked. An empty mask therefore means that a seccomp filter returned 0
	 * instead of making the call. */
	if (syscall(SYS_rt_sigprocmask, SIG_SETMASK, NULL, &set, sizeof(set)) || !set ||
	    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &set, NULL, sizeof(set)) ||
	    syscall(SYS_rt_sigpending, &set, sizeof(set)))
		return false;
	if (spawnfd_set_disposition(SIGUSR1, NULL, &old) ||
	    spawnfd_set_disposition(SIGUSR1, &old, NULL))
		return false;
	if (close(-1) == 0 || errno != EBADF)
		return false;
	return !prctl(PR_SET_DUMPABLE, prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), 0, 0, 0);
}
