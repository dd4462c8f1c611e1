// SPDX-License-Identifier: GPL-2.0-only
/* Tests how the kernel finds and executes the program, and what the program starts with: paths,
 * searches, scripts, descriptors, arguments, and the errors of exec. */
#include "spawn_test.h"
#include <pthread.h>
#include "kselftest_harness.h"

#define ACTION(name) .type = SPAWN_ACTION_##name
#define SET(cmd, key, value, aux)                                                                  \
	sys_config(self->fd, PIDFD_CONFIG_##cmd, PIDFD_CONFIG_KEY_##key, value, aux)

FIXTURE(exec)
{
	int fd;
	int before;
	struct outcome it;
};

FIXTURE_SETUP(exec)
{
	block_sigchld();
	NEED_BUILDER(self->fd);
	close(self->fd);
	own_directory();
	self->fd = builder_of(STRINGS("child", "state"));
	self->before = next_fd();
}

FIXTURE_TEARDOWN(exec)
{
	EXPECT_EQ(self->before, next_fd());
	close(self->fd);
}

#define RUN(flags, ...)                                                                            \
	do {                                                                                       \
		const struct spawn_action list_[] = {{ACTION(UMASK), .fd = 022}, ##__VA_ARGS__};   \
		start(&self->it, self->fd, NULL, list_ + 1, COUNT(list_) - 1, flags);              \
	} while (0)

#define EXPECT_RUN(wanted, wanted_failed)                                                          \
	do {                                                                                       \
		EXPECT_EQ(wanted, self->it.ret)                                                    \
		{                                                                                  \
			TH_LOG("failed %d: %s", self->it.failed, self->it.out);                    \
		}                                                                                  \
		EXPECT_EQ(wanted_failed, self->it.failed);                                         \
	} while (0)

#define HAS(...)                                                                                   \
	do {                                                                                       \
		EXPECT_EQ(0, self->it.code);                                                       \
		EXPECT_TRUE(has_line(self->it.out, __VA_ARGS__))                                   \
		{                                                                                  \
			TH_LOG("%ld: %s", self->it.ret, self->it.out);                             \
		}                                                                                  \
	} while (0)

/* The call returns every error of exec. Nothing of the child remains: no zombie, no
 * SIGCHLD, no descriptor. */
TEST_F_TIMEOUT(exec, failures, TIMEOUT)
{
	static const struct {
		const char *path;
		int error;
	} cases[] = {
		{"/nonexistent", ENOENT},
		{"missing/child", ENOENT},
		{"/dev/null/child", ENOTDIR},
		{".", EACCES},
		{"/dev/null", EACCES},
		{"plain", EACCES},
		{"garbage", ENOEXEC},
		{"empty", ENOEXEC},
		{"cut", ENOEXEC},
		{"nothing-there", ENOENT},
		{"not-executable", EACCES},
		{"loop1", ELOOP},
		{"itself", ELOOP},
		{"no-name", ENOEXEC},
	};

	write_file("plain", "#!/bin/true\n", 0644);
	write_file("garbage", "\1\2\3\4 neither this nor that\n", 0755);
	write_file("empty", "", 0755);
	write_file("cut", "\177ELF\2\1\1", 0755);
	write_file("nothing-there", "#!/nonexistent\n", 0755);
	write_file("not-executable", "#!plain\n", 0755);
	write_file("itself", "#!itself\n", 0755);
	write_file("no-name", "#!\n", 0755);
	ASSERT_EQ(0, symlink("loop2", "loop1"));
	ASSERT_EQ(0, symlink("loop1", "loop2"));
	for (int round = 0; round < 5; round++) {
		for (size_t i = 0; i < COUNT(cases); i++) {
			ASSERT_EQ(0, SET(SET_STRING, PATH, cases[i].path, 0));
			RUN(0);
			EXPECT_EQ(-cases[i].error, self->it.ret)
			{
				TH_LOG("%s", cases[i].path);
			}
			EXPECT_EQ(SPAWN_FAILED_EXEC, self->it.failed);
			EXPECT_EQ(0, self->it.pid);
			EXPECT_NO_CHILD();
			EXPECT_EQ(self->before, next_fd());
		}
	}
}

/* The call also returns an error that occurs after exec's point of no return. */
TEST_F_TIMEOUT(exec, fails_late, TIMEOUT)
{
	/* exec cannot map this segment. It finds that out only after it has discarded the old
	 * memory, so execve() would kill the process. */
	struct {
		unsigned char ident[16];
		__u16 type, machine;
		__u32 version;
		__u64 entry, phoff, shoff;
		__u32 flags;
		__u16 ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
		struct {
			__u32 type, flags;
			__u64 offset, vaddr, paddr, filesz, memsz, align;
		} segment;
	} elf = {
		.ident = "\177ELF\2\1\1",
		.type = 2,
		.machine = 62,
		.version = 1,
		.entry = 0x1000,
		.phoff = 64,
		.ehsize = 64,
		.phentsize = 56,
		.phnum = 1,
		.segment = {1, 5, 0, 0x7fffffffff000, 0, 4096, 1ULL << 62, 4096},
	};
	int fd = open("late", O_WRONLY | O_CREAT | O_CLOEXEC, 0755);

	ASSERT_EQ(sizeof(elf), write(fd, &elf, sizeof(elf)));
	close(fd);
	ASSERT_EQ(0, SET(SET_STRING, PATH, "late", 0));
	for (int i = 0; i < 20; i++) {
		RUN(0);
		EXPECT_GT(0, self->it.ret);
		EXPECT_EQ(SPAWN_FAILED_EXEC, self->it.failed);
		EXPECT_NO_CHILD();
	}
}

TEST_F_TIMEOUT(exec, names, TIMEOUT)
{
	copy_file(child_path, "a-name", 0755);
	RUN(0);
	HAS("comm=child");
	HAS("execfn=%s", child_path);
	HAS("exe=%s", child_path);
	ASSERT_EQ(0, SET(SET_STRING, PATH, "./a-name", 0));
	RUN(0);
	HAS("comm=a-name");
	HAS("execfn=./a-name");
}

TEST_F_TIMEOUT(exec, scripts, TIMEOUT)
{
	char text[PATH_MAX + 64];

	snprintf(text, sizeof(text), "#!%s args\n", child_path);
	write_file("script", text, 0755);
	ASSERT_EQ(0, SET(SET_STRING, PATH, "./script", 0));
	RUN(0);
	HAS("arg=%s", child_path);
	HAS("arg=args");
	HAS("arg=./script");
	HAS("arg=state");
	snprintf(text, sizeof(text), "#!%s state\n", child_path);
	write_file("script", text, 0755);
	RUN(0);
	HAS("comm=script");
	HAS("execfn=./script");
	HAS("exe=%s", child_path);
	write_file("nested", "#!./script\n", 0755);
	ASSERT_EQ(0, SET(SET_STRING, PATH, "./nested", 0));
	RUN(0);
	HAS("comm=nested");
}

TEST_F_TIMEOUT(exec, by_descriptor, TIMEOUT)
{
	int opened = open(child_path, O_PATH | O_CLOEXEC);
	int path = fcntl(opened, F_DUPFD_CLOEXEC, 100); /* a number that start() does not use */
	int file = open(child_path, O_RDONLY | O_CLOEXEC);
	int script, null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	char text[PATH_MAX + 64];

	ASSERT_EQ(0, SET(SET_FD, EXEC_FD, NULL, file));
	RUN(0);
	HAS("comm=child");
	HAS("exe=%s", child_path);
	HAS("fds=0 1 2 ");
	ASSERT_EQ(0, SET(SET_FD, EXEC_FD, NULL, path));
	RUN(0);
	HAS("exe=%s", child_path);
	/* The builder keeps the number, not the file.
	 * A run uses the file that the number has then. */
	ASSERT_EQ(path, dup3(null, path, O_CLOEXEC));
	RUN(0);
	EXPECT_RUN(-EACCES, self->it.failed);
	close(path);
	RUN(0);
	EXPECT_RUN(-EBADF, SPAWN_FAILED_SETUP);
	ASSERT_EQ(0, SET(SET_FD, EXEC_FD, NULL, INT_MAX));
	RUN(0);
	EXPECT_RUN(-EBADF, SPAWN_FAILED_SETUP);
	/* The child does not have the script's descriptor, so the interpreter cannot
	 * open /dev/fd/N. */
	snprintf(text, sizeof(text), "#!%s args\n", child_path);
	write_file("script", text, 0755);
	script = open("script", O_RDONLY | O_CLOEXEC);
	ASSERT_EQ(0, SET(SET_FD, EXEC_FD, NULL, script));
	RUN(0);
	EXPECT_RUN(-ENOENT, SPAWN_FAILED_EXEC);
	EXPECT_NO_CHILD();
	/* A builder has one program: setting PATH replaces EXEC_FD. */
	ASSERT_EQ(0, SET(SET_STRING, PATH, child_path, 0));
	RUN(0);
	HAS("execfn=%s", child_path);
	close(opened);
	close(file);
	close(script);
	close(null);
}

TEST_F_TIMEOUT(exec, search, TIMEOUT)
{
	char long_name[300];

	ASSERT_EQ(0, mkdir("one", 0755) | mkdir("two", 0755) | mkdir("two/directory", 0755));
	ASSERT_EQ(0, SET(SET_STRING, NAME, "tool", 0));
	RUN(0);
	EXPECT_RUN(-EINVAL, SPAWN_FAILED_SETUP);
	ASSERT_EQ(0, SET(SET_STRING, SEARCH_PATH, "missing:/dev/null:one:two", 0));
	RUN(0);
	EXPECT_RUN(-ENOENT, SPAWN_FAILED_EXEC);
	copy_file(child_path, "two/tool", 0755);
	RUN(0);
	HAS("execfn=two/tool");
	HAS("comm=tool");
	/* The search skips a file that may not be executed.
	 * If it finds no other file, the error is EACCES. */
	copy_file(child_path, "one/tool", 0644);
	RUN(0);
	HAS("execfn=two/tool");
	unlink("two/tool");
	RUN(0);
	EXPECT_RUN(-EACCES, SPAWN_FAILED_EXEC);
	ASSERT_EQ(0, SET(SET_STRING, NAME, "directory", 0));
	RUN(0);
	EXPECT_RUN(-EACCES, SPAWN_FAILED_EXEC);
	/* An empty element of the search path means the working directory, which actions
	 * may change. */
	copy_file(child_path, "tool", 0755);
	ASSERT_EQ(0, SET(SET_STRING, NAME, "tool", 0));
	ASSERT_EQ(0, SET(SET_STRING, SEARCH_PATH, "missing:", 0));
	RUN(0);
	EXPECT_EQ(0, self->it.code);
	HAS("comm=tool");
	RUN(0, {ACTION(CHDIR), .arg = ADDRESS("one")});
	EXPECT_RUN(-EACCES, SPAWN_FAILED_EXEC);
	/* The call fails if the file's format is unknown.
	 * execvp() would run the file with /bin/sh. */
	write_file("tool", "neither this nor that\n", 0755);
	RUN(0);
	EXPECT_RUN(-ENOEXEC, SPAWN_FAILED_EXEC);
	/* If the name contains a slash, the kernel uses it as a path and does not search. */
	ASSERT_EQ(0, SET(SET_STRING, NAME, "./tool", 0));
	RUN(0);
	EXPECT_RUN(-ENOEXEC, SPAWN_FAILED_EXEC);
	memset(long_name, 'a', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = 0;
	ASSERT_EQ(0, SET(SET_STRING, NAME, long_name, 0));
	RUN(0);
	EXPECT_RUN(-ENOENT, SPAWN_FAILED_EXEC);
	EXPECT_NO_CHILD();
}

TEST_F_TIMEOUT(exec, arguments, TIMEOUT)
{
	RUN(0);
	start(&self->it, self->fd, STRINGS("zero", "args", "", "two words"), NULL, 0, 0);
	HAS("arg=zero");
	HAS("arg=");
	HAS("arg=two words");
	EXPECT_EQ(NULL, strstr(self->it.out, "env="));
	ASSERT_EQ(0, SET(SET_STRINGS, ENVP, STRINGS("A=1", "B=", "no equals"), 0));
	start(&self->it, self->fd, STRINGS("zero", "args"), NULL, 0, 0);
	HAS("env=A=1");
	HAS("env=B=");
	HAS("env=no equals");
	/* argv and envp of spawn_args replace the configured ones.
	 * Bad pointers and an empty argv are errors. */
	struct spawn_args args = make_args(NULL, 0);
	args.argv = ADDRESS(STRINGS("child", "exit", "0"));
	args.envp = BAD_ADDRESS;
	EXPECT_EQ(-EFAULT, sys_run(self->fd, &args, sizeof(args)));
	EXPECT_EQ(SPAWN_FAILED_SETUP, args.failed);
	args.envp = ADDRESS(STRINGS(BAD_POINTER));
	EXPECT_EQ(-EFAULT, sys_run(self->fd, &args, sizeof(args)));
	const char *const nothing[] = {NULL};
	args.envp = 0;
	args.argv = ADDRESS(nothing);
	EXPECT_EQ(-EINVAL, sys_run(self->fd, &args, sizeof(args)));
}

/* exec accepts arguments up to its limits. The call returns E2BIG for larger ones. */
TEST_F_TIMEOUT(exec, large_arguments, TIMEOUT)
{
	const size_t page = 4096, most = 32 * page; /* MAX_ARG_STRLEN, which includes the NUL */
	static const char *list[20002];
	char *text = malloc(most + 1);
	struct rlimit stack, old;

	memset(text, 'a', most);
	text[most] = 0;
	EXPECT_EQ(-E2BIG, (start(&self->it, self->fd, STRINGS("child", "bytes", text), NULL, 0, 0),
			   self->it.ret));
	text[most - 1] = 0;
	start(&self->it, self->fd, STRINGS("child", "bytes", text), NULL, 0, 0);
	HAS("count=3");
	HAS("bytes=%zu", 6 + 6 + most);
	/* 20001 short strings are accepted. */
	list[0] = "child";
	list[1] = "bytes";
	for (size_t i = 2; i < 20001; i++)
		list[i] = "0123456789";
	start(&self->it, self->fd, list, NULL, 0, 0);
	HAS("count=20001");
	/* All strings together may fill a quarter of RLIMIT_STACK, and at most 6 MiB. */
	for (size_t i = 2; i < 100; i++)
		list[i] = text;
	list[100] = NULL;
	getrlimit(RLIMIT_STACK, &old);
	stack = old;
	stack.rlim_cur = RLIM_INFINITY;
	if (old.rlim_max == RLIM_INFINITY) {
		setrlimit(RLIMIT_STACK, &stack);
		start(&self->it, self->fd, list, NULL, 0, 0);
		EXPECT_EQ(-E2BIG, self->it.ret);
		list[40] = NULL;
		start(&self->it, self->fd, list, NULL, 0, 0);
		HAS("count=40");
	}
	stack.rlim_cur = 1 << 20;
	setrlimit(RLIMIT_STACK, &stack);
	list[40] = NULL;
	start(&self->it, self->fd, list, NULL, 0, 0);
	EXPECT_EQ(-E2BIG, self->it.ret);
	EXPECT_EQ(SPAWN_FAILED_SETUP, self->it.failed);
	EXPECT_EQ(-E2BIG, SET(SET_STRINGS, ARGV, list, 0));
	setrlimit(RLIMIT_STACK, &old);
	EXPECT_NO_CHILD();
	free(text);
}

/* While the kernel copies the arguments, it adds them to the caller's RssAnon.
 * It subtracts them again, whether the spawn succeeds or fails. */
TEST_F_TIMEOUT(exec, caller_memory, TIMEOUT)
{
	char before[256], after[256];
	static const char *list[64];
	char *text = malloc(100001);
	FILE *file;

	memset(text, 'a', 100000);
	text[100000] = 0;
	list[0] = "child";
	list[1] = "bytes";
	for (size_t i = 2; i < 18; i++)
		list[i] = text;
	for (int round = 0; round < 3; round++) {
		file = fopen("/proc/self/status", "r");
		before[0] = 0;
		char line[256];
		while (fgets(line, sizeof(line), file))
			if (strncmp(line, "RssAnon:", 8) == 0)
				strcpy(round ? after : before, line);
		fclose(file);
		SET(SET_STRING, PATH, round == 1 ? "/nonexistent" : child_path, 0);
		for (int i = 0; i < 10; i++)
			start(&self->it, self->fd, list, NULL, 0, 0);
		if (round == 2) {
			EXPECT_LT(labs(atol(after + 8) - atol(before + 8)), 10000);
		}
	}
	free(text);
}

/* The child's table begins with descriptors 0 to 2, with none, or with all of the caller's.
 * It also gets the descriptors that actions name. */
TEST_F_TIMEOUT(exec, descriptors, TIMEOUT)
{
	int open_one = open("/dev/null", O_RDONLY), other = open("/dev/null", O_RDONLY | O_CLOEXEC);

	self->before = next_fd();
	RUN(0);
	HAS("fds=0 1 2 ");
	RUN(SPAWN_FDS_NONE);
	HAS("fds=1 ");
	RUN(SPAWN_FDS_INHERIT);
	EXPECT_NE(NULL, strstr(self->it.out, "fds=0 1 2 "));
	char number[16];
	snprintf(number, sizeof(number), " %d ", open_one);
	EXPECT_NE(NULL, strstr(strstr(self->it.out, "fds="), number));
	snprintf(number, sizeof(number), " %d ", other);
	EXPECT_EQ(NULL, strstr(strstr(self->it.out, "fds="), number));
	/* An action can use any descriptor of the caller.
	 * exec then closes it: the program has only the copy. */
	RUN(0, {ACTION(DUP2), .fd = open_one, .newfd = 40});
	HAS("fds=0 1 2 40 ");
	RUN(SPAWN_FDS_NONE, {ACTION(DUP2), .fd = open_one, .newfd = 40});
	HAS("fds=1 40 ");
	RUN(0, {ACTION(DUP2), .fd = other, .newfd = other});
	HAS("fds=0 1 2 %d ", other);
	RUN(0, {ACTION(DUP2), .fd = open_one, .newfd = 40, .flags = O_CLOEXEC});
	HAS("fds=0 1 2 ");
	RUN(0, {ACTION(DUP2), .fd = open_one, .newfd = open_one, .flags = O_CLOEXEC});
	EXPECT_EQ(-EINVAL, self->it.ret);
	RUN(0, {ACTION(DUP2), .fd = open_one, .newfd = 40}, {ACTION(CLOSE), .fd = 40});
	HAS("fds=0 1 2 ");
	RUN(0, {ACTION(CLOSE), .fd = open_one}, {ACTION(DUP2), .fd = open_one, .newfd = 40});
	EXPECT_RUN(-EBADF, 1);
	RUN(0, {ACTION(CLOSE), .fd = 0}, {ACTION(CLOSE), .fd = 2});
	HAS("fds=1 ");
	RUN(0, {ACTION(DUP2), .fd = open_one, .newfd = 40}, {ACTION(DUP2), .fd = 40, .newfd = 41},
	    {ACTION(CLOSE_RANGE), .fd = 40, .newfd = 40});
	HAS("fds=0 1 2 41 ");
	RUN(0, {ACTION(DUP2), .fd = open_one, .newfd = 40},
	    {ACTION(CLOSE_RANGE), .fd = 3, .newfd = -1, .flags = CLOSE_RANGE_CLOEXEC});
	HAS("fds=0 1 2 ");
	RUN(SPAWN_FDS_INHERIT, {ACTION(CLOSE_RANGE), .fd = 3, .newfd = -1});
	HAS("fds=0 1 2 ");
	/* As in posix_spawn(), closing a closed descriptor is no error, but the number must be
	 * below RLIMIT_NOFILE. */
	RUN(SPAWN_FDS_INHERIT, {ACTION(CLOSE), .fd = 50});
	EXPECT_LE(0, self->it.ret);
	EXPECT_EQ(0, self->it.code);
	RUN(SPAWN_FDS_INHERIT, {ACTION(CLOSE), .fd = 1 << 19});
	EXPECT_RUN(-EBADF, 0);
	/* CLOSE_RANGE does not bring a descriptor of the caller into the child's table. */
	RUN(0, {ACTION(CLOSE_RANGE), .fd = open_one, .newfd = open_one});
	HAS("fds=0 1 2 ");
	/* exec closes a standard descriptor that is close-on-exec. */
	fcntl(0, F_SETFD, FD_CLOEXEC);
	RUN(0);
	HAS("fds=1 2 ");
	fcntl(0, F_SETFD, 0);
	/* The actions have not changed the caller's descriptors. */
	EXPECT_EQ(0, fcntl(open_one, F_GETFD));
	EXPECT_EQ(FD_CLOEXEC, fcntl(other, F_GETFD));
	EXPECT_EQ(-1, fcntl(40, F_GETFD));
	close(open_one);
	close(other);
	self->before = next_fd();
}

/* DUP2 actions run in order on the child's own table, so they can swap two descriptors. */
TEST_F_TIMEOUT(exec, swapped, TIMEOUT)
{
	int a = memfd_create("a", MFD_CLOEXEC), b = memfd_create("b", MFD_CLOEXEC);
	struct spawn_action swap[] = {
		{ACTION(DUP2), .fd = a, .newfd = 50},
		{ACTION(DUP2), .fd = b, .newfd = a},
		{ACTION(DUP2), .fd = 50, .newfd = b},
		{ACTION(CLOSE), .fd = 50},
	};
	char number[16];

	ASSERT_EQ(1, pwrite(a, "A", 1, 0));
	ASSERT_EQ(1, pwrite(b, "B", 1, 0));
	snprintf(number, sizeof(number), "%d", a);
	start(&self->it, self->fd, STRINGS("child", "read", number), swap, COUNT(swap), 0);
	EXPECT_STREQ("B", self->it.out);
	snprintf(number, sizeof(number), "%d", b);
	lseek(a, 0, SEEK_SET);
	start(&self->it, self->fd, STRINGS("child", "read", number), swap, COUNT(swap), 0);
	EXPECT_STREQ("A", self->it.out);
	close(a);
	close(b);
}

/* The caller has 4000 descriptors. The child gets only 0 to 2 and those that actions name. */
TEST_F_TIMEOUT(exec, many_descriptors, TIMEOUT)
{
	struct rlimit limit, old;
	const int many = 4000;

	getrlimit(RLIMIT_NOFILE, &old);
	limit = old;
	limit.rlim_cur = old.rlim_max < 5000 ? old.rlim_max : 5000;
	ASSERT_LT(many + 10, limit.rlim_cur);
	setrlimit(RLIMIT_NOFILE, &limit);
	for (int i = self->before; i < many; i++)
		ASSERT_EQ(i, dup(0));
	RUN(0, {ACTION(DUP2), .fd = many - 1, .newfd = 3}, {ACTION(DUP2), .fd = 1, .newfd = 4500});
	HAS("fds=0 1 2 3 4500 ");
	RUN(SPAWN_FDS_INHERIT, {ACTION(CLOSE_RANGE), .fd = 3, .newfd = -1});
	HAS("fds=0 1 2 ");
	/* RLIMIT_NOFILE is now below the number that an action names. The child still gets that
	 * descriptor, but DUP2 cannot create a number beyond the limit. */
	limit.rlim_cur = 100;
	setrlimit(RLIMIT_NOFILE, &limit);
	close(10);
	close(11);
	close(12);
	RUN(0, {ACTION(DUP2), .fd = many - 1, .newfd = 3});
	HAS("fds=0 1 2 3 ");
	RUN(0, {ACTION(DUP2), .fd = many - 1, .newfd = 100});
	EXPECT_RUN(-EBADF, 0);
	setrlimit(RLIMIT_NOFILE, &old);
	close_range(self->before, many, 0);
}

/* A run can have at most 256 actions. Each of them names a descriptor: these 255, and
 * one that start() adds. */
TEST_F_TIMEOUT(exec, most_descriptors, TIMEOUT)
{
	struct spawn_action actions[255];

	for (int i = 0; i < 255; i++)
		actions[i] = (struct spawn_action){ACTION(DUP2), .fd = i % 3, .newfd = 300 + i};
	start(&self->it, self->fd, STRINGS("child", "fds"), actions, COUNT(actions), 0);
	ASSERT_EQ(0, self->it.code);
	EXPECT_NE(NULL, strstr(self->it.out, " 554 "));
	EXPECT_EQ(-1, fcntl(300, F_GETFD));
}

/* A thread that opens and closes descriptors.
 * no_transient_leak checks that no child inherits them. */
static void *open_many(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED)) {
		int fds[20];

		for (size_t i = 0; i < COUNT(fds); i++)
			fds[i] = open("/dev/null", O_RDONLY);
		for (size_t i = 0; i < COUNT(fds); i++)
			close(fds[i]);
	}
	return NULL;
}

TEST_F_TIMEOUT(exec, no_transient_leak, TIMEOUT)
{
	pthread_t threads[2];
	int stop = 0;

	for (size_t i = 0; i < COUNT(threads); i++)
		ASSERT_EQ(0, pthread_create(threads + i, NULL, open_many, &stop));
	for (int i = 0; i < 60; i++) {
		start(&self->it, self->fd, STRINGS("child", "fds"), NULL, 0, 0);
		EXPECT_STREQ("fds=0 1 2 \n", self->it.out);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (size_t i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
}

/* A thread that starts children while not_busy writes executables. If a child inherited a
 * descriptor open for writing, executing that file would fail with ETXTBSY. */
static void *spawn_many(void *data)
{
	int fd = *(int *)data;

	for (int i = 0; i < 40; i++) {
		struct spawn_args args = make_args(NULL, 0);
		long pidfd;

		args.argv = ADDRESS(STRINGS("child", "exit", "0"));
		pidfd = sys_run(fd, &args, sizeof(args));
		if (pidfd >= 0)
			reap_and_close(pidfd);
	}
	return NULL;
}

TEST_F_TIMEOUT(exec, not_busy, TIMEOUT)
{
	pthread_t thread;
	int second = builder_of(STRINGS("child", "exit", "0"));
	char name[32];

	ASSERT_EQ(0, pthread_create(&thread, NULL, spawn_many, &self->fd));
	for (int i = 0; i < 20; i++) {
		struct spawn_args args = make_args(NULL, 0);
		long pidfd;

		snprintf(name, sizeof(name), "./new-%d", i);
		copy_file(child_path, name, 0755);
		args.path = ADDRESS(name);
		pidfd = sys_run(second, &args, sizeof(args));
		EXPECT_LE(0, pidfd);
		if (pidfd >= 0) {
			EXPECT_EQ(0, reap_and_close(pidfd));
		}
		unlink(name);
	}
	pthread_join(thread, NULL);
	close(second);
}

/* As with execve(), executing a file that is open for writing fails with ETXTBSY. */
TEST_F_TIMEOUT(exec, busy, TIMEOUT)
{
	int writer;

	copy_file(child_path, "busy", 0755);
	writer = open("busy", O_WRONLY | O_CLOEXEC);
	ASSERT_EQ(0, SET(SET_STRING, PATH, "./busy", 0));
	RUN(0);
	EXPECT_RUN(-ETXTBSY, SPAWN_FAILED_EXEC);
	close(writer);
	RUN(0);
	EXPECT_EQ(0, self->it.code);
	EXPECT_NO_CHILD();
}

TEST_HARNESS_MAIN
