// SPDX-License-Identifier: GPL-2.0-only
/* Tests that a template maps pages which earlier starts of its program touched. The kernel maps
 * them before the program touches them, so the program has fewer page faults. Nothing else may
 * change. */
#include "spawn_test.h"
#include <pthread.h>
#include <sys/wait.h>
#include "kselftest_harness.h"

#ifdef HAVE_TEMPLATES

/* The kernel records the touched pages in the first starts of a template, and then in one of 64
 * starts (AHEAD_EVERY in the kernel). */
#define EVERY 64
#define PAGES 48

static char mapper_path[PATH_MAX];

/* Starts the program `mapper` (mapper.c) from a template. Returns a pidfd or a negative errno.
 * *out is the read end of a pipe from its standard output. */
static int begin(int fd, const char *word, const char *how, const char *touches, int in, int *out)
{
	struct spawn_template_action stdio[] = {
		{.type = SPAWN_TEMPLATE_ACTION_DUP2, .newfd = 1},
		{.type = SPAWN_TEMPLATE_ACTION_DUP2, .fd = in, .newfd = 0},
	};
	const char *argv[64] = {"mapper", "library", word, how};
	struct spawn_template_spawn_args args = {
		.argv = ADDRESS(argv), .actions = ADDRESS(stdio), .actions_len = COUNT(stdio)};
	char words[256], *next = words;
	__s32 pidfd = -1;
	int pipes[2];
	long pid;

	strcpy(words, touches);
	for (int i = 4; i < 63 && (argv[i] = strsep(&next, " ")); i++)
		;
	if (pipe2(pipes, O_CLOEXEC) < 0)
		abort();
	stdio[0].fd = pipes[1];
	args.pidfd = ADDRESS(&pidfd);
	pid = sys_spawn(fd, &args, sizeof(args));
	close(pipes[1]);
	*out = pipes[0];
	return pid < 0 ? pid : pidfd;
}

/* Runs mapper and returns the number of page faults that its touches caused. Returns a negative
 * errno if the start fails, and 1000 plus the exit status if mapper fails. A result of 900 means
 * that mapper printed no number. */
static int go(int fd, const char *word, const char *how, const char *touches)
{
	int out, code = 0, faults = 900, pidfd = begin(fd, word, how, touches, 0, &out);
	char text[256];

	if (pidfd >= 0) {
		read_all(out, text, sizeof(text));
		code = reap_and_close(pidfd);
		sscanf(text, "faults=%d", &faults);
	}
	close(out);
	return pidfd < 0 ? pidfd : code ? 1000 + code : faults;
}

/* Writes the file `library`. Each page begins with the word and the page's number. If the file
 * exists, it keeps its inode. */
static void write_library(const char *word)
{
	int fd = open("library", O_RDWR | O_CREAT | O_CLOEXEC, 0755);

	for (int i = 0; i < PAGES; i++) {
		char page[4096] = "";

		snprintf(page, sizeof(page), "%s %d\n", word, i);
		if (fd < 0 || pwrite(fd, page, sizeof(page), i * sizeof(page)) != sizeof(page))
			abort();
	}
	close(fd);
}

FIXTURE(ahead)
{
	int fd;
	int before;
};

FIXTURE_SETUP(ahead)
{
	int probe;

	block_sigchld();
	NEED_BUILDER(probe);
	close(probe);
	own_directory();
	strcpy(mapper_path, child_path);
	strcpy(strrchr(mapper_path, '/'), "/mapper");
	write_library("one");
	self->fd = template_of(mapper_path);
	if (self->fd == -ENOSYS)
		SKIP(return, "this kernel has no spawn_template_create");
	ASSERT_LE(0, self->fd);
	self->before = next_fd();
}

FIXTURE_TEARDOWN(ahead)
{
	forget_sigchld();
	EXPECT_EQ(self->before, next_fd());
	EXPECT_NO_CHILD();
	close(self->fd);
}

/* mapper reads a page of text, writes a page of data, and writes an anonymous page. The pages are
 * so far apart that each touch causes its own page fault. */
#define TOUCHES "r1 w33 w49"

static void learn(struct __test_metadata *_metadata, int fd, const char *touches)
{
	int cold = go(fd, "one", "linker", touches);

	ASSERT_LT(0, cold);
	ASSERT_GT(900, cold);
	for (int i = 0; i < 4; i++)
		ASSERT_GT(900, go(fd, "one", "linker", touches));
}

TEST_F_TIMEOUT(ahead, saves_faults, TIMEOUT)
{
	EXPECT_EQ(3, go(self->fd, "one", "linker", TOUCHES));
	for (int i = 0; i < 4; i++)
		go(self->fd, "one", "linker", TOUCHES);
	for (int i = 0; i < 5; i++)
		EXPECT_EQ(0, go(self->fd, "one", "linker", TOUCHES));
	/* A new template for the same program does not use what the first template recorded. */
	int other = template_of(mapper_path);

	EXPECT_EQ(3, go(other, "one", "linker", TOUCHES));
	close(other);
}

/* The kernel maps in advance only pages that earlier starts touched. Other touches still fault. */
TEST_F_TIMEOUT(ahead, maps_no_more, TIMEOUT)
{
	learn(_metadata, self->fd, TOUCHES);
	EXPECT_EQ(1, go(self->fd, "one", "linker", "r16"));
	EXPECT_EQ(1, go(self->fd, "one", "linker", "w34"));
	EXPECT_EQ(1, go(self->fd, "one", "linker", "w50"));
	EXPECT_EQ(3, go(self->fd, "one", "linker", "r16 w34 w50"));
}

/* If earlier starts wrote a page, a later start can read it without a fault, and mapper finds the
 * right contents. If earlier starts only read a page, writing it causes one fault, which copies the
 * page. */
TEST_F_TIMEOUT(ahead, touches_differ, TIMEOUT)
{
	learn(_metadata, self->fd, "r1 r33 w40 w49");
	EXPECT_EQ(0, go(self->fd, "one", "linker", "r1 r33 r40 r49"));
	EXPECT_EQ(1, go(self->fd, "one", "linker", "r1 w33 w40 w49"));
}

TEST_F_TIMEOUT(ahead, learns_anew, TIMEOUT)
{
	learn(_metadata, self->fd, TOUCHES);
	EXPECT_EQ(2, go(self->fd, "one", "linker", "r17 w36"));
	for (int i = 0; i < 2 * EVERY; i++)
		ASSERT_GT(900, go(self->fd, "one", "linker", "r17 w36"));
	EXPECT_EQ(0, go(self->fd, "one", "linker", "r17 w36"));
	EXPECT_EQ(2, go(self->fd, "one", "linker", "w33 w49"));
}

/* After the library has changed, mapper must see the new contents. The test rewrites the file with
 * the same inode and with a new inode, and then truncates it. */
TEST_F_TIMEOUT(ahead, file_rewritten, TIMEOUT)
{
	learn(_metadata, self->fd, TOUCHES);
	for (int i = 0; i < 5; i++) {
		char word[16];

		snprintf(word, sizeof(word), "number%d", i);
		if (i & 1)
			unlink("library");
		write_library(word);
		EXPECT_GE(3, go(self->fd, word, "linker", TOUCHES));
		EXPECT_GE(4, go(self->fd, word, "linker", "r1 r2 r33 r34 r49 w33"));
	}
	ASSERT_EQ(0, truncate("library", 0));
	EXPECT_EQ(1128 + SIGBUS, go(self->fd, "one", "linker", "r1"));
	EXPECT_EQ(1128 + SIGBUS, go(self->fd, "one", "linker", "w33"));
	EXPECT_EQ(1, go(self->fd, "one", "linker", "w50"));
}

/* A private mapping shows later writes to its file until the program writes to the page. So the
 * kernel copies no page in advance, unless the program maps with MAP_DENYWRITE, as linkers do. */
TEST_F_TIMEOUT(ahead, copies_for_linkers_only, TIMEOUT)
{
	for (int i = 0; i < 5; i++)
		ASSERT_EQ(2, go(self->fd, "one", "plain", "w33 w40"));
	EXPECT_EQ(0, go(self->fd, "one", "plain", "r1") & ~1);
}

/* Pages that the kernel maps in advance have the permissions of their mapping. A forbidden access
 * still raises SIGSEGV. */
TEST_F_TIMEOUT(ahead, other_permissions, TIMEOUT)
{
	learn(_metadata, self->fd, TOUCHES);
	EXPECT_EQ(1128 + SIGSEGV, go(self->fd, "one", "linker", "w1"));
	EXPECT_EQ(1128 + SIGSEGV, go(self->fd, "one", "linker", "n33 w33"));
	EXPECT_EQ(1128 + SIGSEGV, go(self->fd, "one", "linker", "n1 r1"));
	EXPECT_EQ(1128 + SIGSEGV, go(self->fd, "one", "linker", "n49 r49"));
	EXPECT_EQ(0, go(self->fd, "one", "linker", TOUCHES));
}

TEST_F_TIMEOUT(ahead, unmapped_and_replaced, TIMEOUT)
{
	learn(_metadata, self->fd, TOUCHES);
	EXPECT_EQ(1128 + SIGSEGV, go(self->fd, "one", "linker", "u33 w33"));
	EXPECT_EQ(1128 + SIGSEGV, go(self->fd, "one", "linker", "u49 r49"));
	EXPECT_EQ(1, go(self->fd, "one", "linker", "a33 w33"));
	EXPECT_EQ(1, go(self->fd, "one", "linker", "a1 w1"));
	/* This template learns from starts that unmap or replace pages after they touched them.
	 * The kernel does not map those pages in advance. */
	int other = template_of(mapper_path);

	learn(_metadata, other, "r1 w33 w35 w49 u33 a1 w1 a35 w35");
	EXPECT_EQ(0, go(other, "one", "linker", "w49"));
	EXPECT_EQ(2, go(other, "one", "linker", "w33 w35"));
	close(other);
}

TEST_F_TIMEOUT(ahead, forks, TIMEOUT)
{
	learn(_metadata, self->fd, TOUCHES);
	EXPECT_GT(900, go(self->fd, "one", "linker", "f r1 w33 w34 w49 w50"));
	EXPECT_GT(900, go(self->fd, "one", "linker", "w33 w49 f w33 w34 w49 w50"));
	int other = template_of(mapper_path);

	for (int i = 0; i < 6; i++)
		EXPECT_GT(900, go(other, "one", "linker", "w33 w49 f r1 w33 w34 w49 w50"));
	close(other);
}

static const char *const sets[] = {TOUCHES,    "r1 r20 w40 w50", "w33 w34 w35 w36 w37",
				   "f r9 w47", "u33 w34",	 "a2 w2 r3"};

static void *start_many(void *data)
{
	long wrong = 0;

	for (int i = 0; i < 18; i++) {
		int got = go(*(int *)data, "one", "linker", sets[i % COUNT(sets)]);

		wrong += got < 0 || got >= 900;
	}
	return (void *)wrong;
}

TEST_F_TIMEOUT(ahead, many_threads, TIMEOUT)
{
	pthread_t threads[8];
	void *wrong;

	for (size_t i = 0; i < COUNT(threads); i++)
		ASSERT_EQ(0, pthread_create(threads + i, NULL, start_many, &self->fd));
	for (size_t i = 0; i < COUNT(threads); i++) {
		pthread_join(threads[i], &wrong);
		EXPECT_EQ(NULL, wrong);
	}
}

#define GROUP "/sys/fs/cgroup/spawn-ahead"

#define HELD 32

/* Starts HELD mappers that touch no page. Returns the number of anonymous pages in the cgroup while
 * they run. One mapper would be too few: the kernel updates the cgroup's statistics only after 64
 * pages per CPU. */
static long held(int fd)
{
	int out[HELD], in[2], pidfd[HELD];
	char text[4096] = "";
	FILE *stat;
	long bytes = -1;

	if (pipe2(in, O_CLOEXEC) < 0)
		abort();
	for (int i = 0; i < HELD; i++) {
		pidfd[i] = begin(fd, "one", "linker", "h", in[0], out + i);
		if (pidfd[i] < 0 || read(out[i], text, 6) != 6)
			abort();
	}
	stat = fopen(GROUP "/memory.stat", "re");
	while (stat && bytes < 0 && fgets(text, sizeof(text), stat))
		bytes = strncmp(text, "anon ", 5) == 0 ? atol(text + 5) : -1;
	if (stat)
		fclose(stat);
	close(in[0]);
	close(in[1]);
	for (int i = 0; i < HELD; i++) {
		close(out[i]);
		reap_and_close(pidfd[i]);
	}
	return bytes / 4096;
}

/* The kernel charges pages that it maps in advance to the child's cgroup, and frees them when the
 * child ends. */
TEST_F_TIMEOUT(ahead, memory_cgroup, TIMEOUT)
{
	int other = template_of(mapper_path), status;
	pid_t pid;

	put_text("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	if (mkdir(GROUP, 0755) < 0 || access(GROUP "/memory.stat", R_OK) < 0) {
		close(other);
		rmdir(GROUP);
		SKIP(return, "no memory controller of cgroup v2 here: %s", strerror(errno));
	}
	learn(_metadata, self->fd, "w32 w33 w34 w35 w36 w37 w38 w39 w40 w41 w48 w49");
	pid = fork();
	if (pid == 0) {
		long cold, warm, again;

		if (put_text(GROUP "/cgroup.procs", "0") < 0)
			_exit(2);
		held(other);
		cold = held(other);
		warm = held(self->fd);
		again = held(other);
		printf("# pages: %ld %ld %ld\n", cold, warm, again);
		fflush(stdout);
		_exit(cold < 0 || warm < cold + 12 * HELD / 2 || again > cold + 12 * HELD / 2);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, rmdir(GROUP))
	{
		TH_LOG("%s", strerror(errno));
	}
	close(other);
}

#else

TEST(ahead)
{
	SKIP(return, "the series has no linux/spawn_template.h");
}

#endif

TEST_HARNESS_MAIN
