// SPDX-License-Identifier: GPL-2.0-only
/* A template keeps a copy of the first KiB of its program and of the program's interpreter.
 * These tests change the files in several ways. The next spawn must use the new contents. */
#include "spawn_test.h"
#include <elf.h>
#include <poll.h>
#include <pthread.h>
#include <sys/fanotify.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include "kselftest_harness.h"

#if defined(HAVE_TEMPLATES) && defined(__x86_64__)

#define INTERPRETER "/tmp/spawn-interpreter"
#define CODE 0x200
#define STEP 0x20

/* A small ELF file with eight entry points.
 * A process that starts at entry point N exits with status N. */
struct image {
	Elf64_Ehdr header;
	Elf64_Phdr segments[2];
	char interpreter[32];
	char padding[CODE - sizeof(Elf64_Ehdr) - 2 * sizeof(Elf64_Phdr) - 32];
	char code[8 * STEP];
};

static struct image make_image(unsigned long address, int entry, const char *interpreter)
{
	struct image image = {
		.header = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB,
				       EV_CURRENT},
			   .e_type = interpreter ? ET_DYN : ET_EXEC,
			   .e_machine = EM_X86_64,
			   .e_version = EV_CURRENT,
			   .e_entry = address + CODE + entry * STEP,
			   .e_phoff = offsetof(struct image, segments),
			   .e_ehsize = sizeof(Elf64_Ehdr),
			   .e_phentsize = sizeof(Elf64_Phdr),
			   .e_phnum = interpreter ? 2 : 1},
	};
	Elf64_Phdr load = {.p_type = PT_LOAD,
			   .p_flags = PF_R | PF_X,
			   .p_vaddr = address,
			   .p_filesz = sizeof(image),
			   .p_memsz = sizeof(image),
			   .p_align = 4096};

	if (interpreter) {
		strcpy(image.interpreter, interpreter);
		image.segments[0] = (Elf64_Phdr){.p_type = PT_INTERP,
						 .p_flags = PF_R,
						 .p_offset = offsetof(struct image, interpreter),
						 .p_filesz = strlen(interpreter) + 1};
	}
	image.segments[image.header.e_phnum - 1] = load;
	for (int i = 0; i < 8; i++) {
		/* mov $i, %edi; mov $231 (exit_group), %eax; syscall */
		char code[] = {0xbf, i, 0, 0, 0, 0xb8, 231, 0, 0, 0, 0x0f, 0x05};

		memcpy(image.code + i * STEP, code, sizeof(code));
	}
	return image;
}

static void put_image(const char *path, unsigned long address, int entry, const char *interpreter)
{
	struct image image = make_image(address, entry, interpreter);
	int fd;

	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	if (fd < 0 || write(fd, &image, sizeof(image)) != sizeof(image))
		abort();
	close(fd);
}

/* Spawns the template's program and returns its exit status, or a negative errno. */
static int go(int fd)
{
	const char *const argv[] = {"x", NULL};
	__s32 pidfd = -1;
	struct spawn_template_spawn_args args = {.pidfd = ADDRESS(&pidfd), .argv = ADDRESS(argv)};
	long pid = sys_spawn(fd, &args, sizeof(args));

	return pid < 0 ? pid : reap_and_close(pidfd);
}

FIXTURE(heads)
{
	int fd;
	int before;
	char path[PATH_MAX];
};

FIXTURE_SETUP(heads)
{
	int probe;

	block_sigchld();
	NEED_BUILDER(probe);
	close(probe);
	own_directory();
	getcwd(self->path, sizeof(self->path) - 16);
	strcat(self->path, "/program");
	put_image(INTERPRETER, 0x10000000, 3, NULL);
	put_image(self->path, 0, 0, INTERPRETER);
	self->fd = template_of(self->path);
	if (self->fd == -ENOSYS)
		SKIP(return, "this kernel has no spawn_template_create");
	ASSERT_LE(0, self->fd);
	self->before = next_fd();
	for (int i = 0; i < 3; i++)
		ASSERT_EQ(3, go(self->fd));
}

FIXTURE_TEARDOWN(heads)
{
	unlink(INTERPRETER);
	EXPECT_EQ(self->before, next_fd());
	EXPECT_NO_CHILD();
	close(self->fd);
}

FIXTURE_VARIANT(heads)
{
	int how;
};

enum { WRITTEN, MAPPED, READ_THEN_MAPPED, TRUNCATED, OPEN_TRUNCATED, REPLACED, LATER_MAPPED };

FIXTURE_VARIANT_ADD(heads, written){.how = WRITTEN};
FIXTURE_VARIANT_ADD(heads, mapped){.how = MAPPED};
FIXTURE_VARIANT_ADD(heads, read_then_mapped){.how = READ_THEN_MAPPED};
FIXTURE_VARIANT_ADD(heads, truncated){.how = TRUNCATED};
FIXTURE_VARIANT_ADD(heads, open_truncated){.how = OPEN_TRUNCATED};
FIXTURE_VARIANT_ADD(heads, replaced){.how = REPLACED};
FIXTURE_VARIANT_ADD(heads, later_mapped){.how = LATER_MAPPED};

/* Gives the file another entry point. Then restores atime and mtime, so that they do not
 * show the change. */
static void change(const char *path, int how, unsigned long address, int entry,
		   const char *interpreter)
{
	struct image image = make_image(address, entry, interpreter), *map;
	struct stat was;
	int fd;

	stat(path, &was);
	switch (how) {
	case WRITTEN:
	case OPEN_TRUNCATED:
		fd = open(path, O_WRONLY | O_CLOEXEC | (how == OPEN_TRUNCATED ? O_TRUNC : 0));
		if (fd < 0 || write(fd, &image, sizeof(image)) != sizeof(image))
			abort();
		close(fd);
		break;
	case TRUNCATED:
		if (truncate(path, 0) < 0)
			abort();
		change(path, WRITTEN, address, entry, interpreter);
		break;
	case REPLACED:
		put_image("new", address, entry, interpreter);
		if (rename("new", path) < 0)
			abort();
		break;
	default:
		fd = open(path, O_RDWR | O_CLOEXEC);
		map = mmap(NULL, sizeof(image), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (fd < 0 || map == MAP_FAILED)
			abort();
		close(fd);
		if (how == READ_THEN_MAPPED)
			(void)*(volatile char *)map;
		memcpy(map, &image, sizeof(image));
		munmap(map, sizeof(image));
	}
	utimensat(AT_FDCWD, path, (struct timespec[2]){was.st_atim, was.st_mtim}, 0);
}

/* A change to the interpreter does not make the template stale.
 * Each spawn must execute the interpreter's current contents. */
TEST_F_TIMEOUT(heads, interpreter_changes, TIMEOUT)
{
	for (int entry = 2; entry >= 0; entry--) {
		change(INTERPRETER, variant->how, 0x10000000, entry, NULL);
		for (int i = 0; i < 2; i++)
			EXPECT_EQ(entry, go(self->fd));
	}
	/* A new template copies the changed interpreter. It must notice later changes, too. */
	int other = template_of(self->path);

	for (int entry = 1; entry < 3; entry++) {
		change(INTERPRETER, variant->how, 0x10000000, entry, NULL);
		EXPECT_EQ(entry, go(other));
		EXPECT_EQ(entry, go(self->fd));
	}
	close(other);
}

/* After a change to the program, a spawn fails with ESTALE. If timestamps are too coarse to show
 * the change, it executes the new contents, but never the old. */
TEST_F_TIMEOUT(heads, program_changes, TIMEOUT)
{
	char path[] = "./static";
	char full[PATH_MAX];
	int fd;

	snprintf(full, sizeof(full), "%.*s%s", (int)(strlen(self->path) - strlen("/program")),
		 self->path, path + 1);
	put_image(full, 0x10000000, 0, NULL);
	fd = template_of(full);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, go(fd));
	for (int entry = 3; entry > 0; entry--) {
		change(full, variant->how, 0x10000000, entry, NULL);
		for (int i = 0; i < 2; i++) {
			int got = go(fd);

			EXPECT_TRUE(got == entry || got == -ESTALE)
			{
				TH_LOG("%d, not %d", got, entry);
			}
		}
	}
	close(fd);
}

/* The template's lease does not block a process that writes, truncates or removes the file. */
TEST_F_TIMEOUT(heads, writers_are_not_hindered, TIMEOUT)
{
	int fd;

	if (variant->how != WRITTEN)
		return;
	fd = open(INTERPRETER, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	ASSERT_LE(0, fd);
	/* exec refuses an interpreter that is open for writing, with or without a template. */
	EXPECT_EQ(-ETXTBSY, go(self->fd));
	close(fd);
	EXPECT_EQ(3, go(self->fd));
	EXPECT_EQ(0, truncate(INTERPRETER, sizeof(struct image)));
	EXPECT_EQ(0, unlink(INTERPRETER));
	EXPECT_EQ(-ENOENT, go(self->fd) == -ESTALE ? -ENOENT : go(self->fd));
	put_image(INTERPRETER, 0x10000000, 5, NULL);
	EXPECT_EQ(5, go(self->fd));
}

struct listener {
	int group;
	int end[2]; /* a pipe; the listener ends when nothing can write to it */
};

/* Denies each access that a fanotify group asks about. */
static void *deny(void *data)
{
	struct listener *it = data;
	struct pollfd from[] = {{it->group, POLLIN, 0}, {it->end[0], POLLIN, 0}};
	struct fanotify_event_metadata event;

	while (poll(from, COUNT(from), -1) > 0 && !from[1].revents) {
		struct fanotify_response response = {.response = FAN_DENY};

		if (read(it->group, &event, sizeof(event)) != sizeof(event))
			abort();
		response.fd = event.fd;
		if (write(it->group, &response, sizeof(response)) < 0)
			abort();
		close(event.fd);
	}
	return NULL;
}

/* A listener decides about each read of the file, also if the template has the bytes. */
TEST_F_TIMEOUT(heads, asks_listeners, TIMEOUT)
{
	struct listener it;
	pthread_t thread;
	int group;

	if (variant->how != WRITTEN)
		return;
	group = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY | O_CLOEXEC);
	if (group < 0)
		SKIP(return, "no fanotify: %s", strerror(errno));
	if (fanotify_mark(group, FAN_MARK_ADD, FAN_ACCESS_PERM, AT_FDCWD, INTERPRETER) < 0) {
		close(group);
		SKIP(return, "no permission events: %s", strerror(errno));
	}
	it.group = group;
	ASSERT_EQ(0, pipe2(it.end, O_CLOEXEC));
	ASSERT_EQ(0, pthread_create(&thread, NULL, deny, &it));
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(-EPERM, go(self->fd));
	close(it.end[1]);
	pthread_join(thread, NULL);
	close(it.end[0]);
	close(group);
	EXPECT_EQ(3, go(self->fd));
}

/* Counts the leases on a file. */
static int leases(const char *path)
{
	FILE *locks = fopen("/proc/locks", "re");
	unsigned int major, minor;
	unsigned long inode;
	struct stat of;
	char line[256];
	int count = 0;

	if (!locks || stat(path, &of) < 0)
		abort();
	while (fgets(line, sizeof(line), locks))
		if (sscanf(line, "%*d: LEASE ACTIVE READ %*d %x:%x:%lu", &major, &minor, &inode) ==
			    3 &&
		    makedev(major, minor) == of.st_dev && inode == of.st_ino)
			count++;
	fclose(locks);
	return count;
}

/* As with fcntl(), only an owner of the file or a task with CAP_LEASE can place a lease. The
 * template of another user works without. */
TEST_F_TIMEOUT(heads, leases_of_owners, TIMEOUT)
{
	const uid_t user = 4242;
	char own[PATH_MAX + 8];
	int fd;

	if (variant->how != WRITTEN)
		return;
	if (getuid() != 0)
		SKIP(return, "not root");
	EXPECT_EQ(1, leases(INTERPRETER));
	EXPECT_EQ(1, leases(self->path));
	close(self->fd);
	EXPECT_EQ(0, leases(INTERPRETER));
	snprintf(own, sizeof(own), "%s-own", self->path);
	put_image(own, 0x10000000, 2, NULL);
	ASSERT_EQ(0, chown(own, user, -1));
	ASSERT_EQ(0, setresuid(user, user, user));
	self->fd = template_of(self->path);
	ASSERT_LE(0, self->fd);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(3, go(self->fd));
	EXPECT_EQ(0, leases(INTERPRETER));
	EXPECT_EQ(0, leases(self->path));
	fd = template_of(own);
	ASSERT_LE(0, fd);
	for (int i = 0; i < 3; i++)
		EXPECT_EQ(2, go(fd));
	EXPECT_EQ(1, leases(own));
	close(fd);
}

static void *rewrite(void *stop)
{
	for (int i = 0; !__atomic_load_n((int *)stop, __ATOMIC_RELAXED); i++) {
		struct image image = make_image(0x10000000, 4 + i % 4, NULL);
		int fd;

		if (i % 2)
			change(INTERPRETER, REPLACED, 0x10000000, 4 + i % 4, NULL);
		/* The open fails while a child executes the file. */
		fd = open(INTERPRETER, O_WRONLY | O_CLOEXEC);
		if (fd >= 0 && write(fd, &image.header, sizeof(image.header)) < 0)
			abort();
		close(fd);
	}
	return NULL;
}

TEST_F_TIMEOUT(heads, at_once, TIMEOUT)
{
	pthread_t thread;
	int stop = 0, got;

	if (variant->how != WRITTEN)
		return;
	ASSERT_EQ(0, pthread_create(&thread, NULL, rewrite, &stop));
	for (int i = 0; i < 80; i++) {
		got = go(self->fd);
		EXPECT_TRUE(got == -ETXTBSY || got == -ENOENT || got == -ESTALE ||
			    (got >= 3 && got < 8))
		{
			TH_LOG("%d", got);
		}
	}
	stop = 1;
	pthread_join(thread, NULL);
}

#else

TEST(heads)
{
	SKIP(return, "no templates, or not x86-64");
}

#endif

TEST_HARNESS_MAIN
