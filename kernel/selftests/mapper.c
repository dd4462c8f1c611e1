// SPDX-License-Identifier: GPL-2.0-only
/*
 * Maps a library as a dynamic linker does, and touches pages of it. Prints how
 * many page faults the reads and writes caused.
 *
 *   mapper FILE WORD HOW TOUCH...
 *
 * FILE    the library. It has BSS pages; each begins with WORD and its number.
 * HOW     linker: map with MAP_DENYWRITE; plain: map without it
 * TOUCH   one of these:
 *         rN  reads page N, and checks its contents
 *         wN  writes a zero to the end of page N, and checks its contents
 *         uN  unmaps page N
 *         nN  removes all permissions of page N
 *         aN  maps anonymous memory at page N
 *         f   forks. The child does the remaining touches; the parent waits.
 *         h   prints "ready", and waits for the end of the standard input
 *
 * Pages from DATA on are writable. Pages from BSS on are anonymous memory.
 *
 * Exit status 1: a touch failed, or a page has the wrong contents.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
enum { DATA = 32, BSS = 48, END = 52 };

static char *library;
static long faults;

static void *map(int first, int end, int prot, int flags, int fd)
{
	void *at = mmap(library ? library + first * PAGE : NULL, (end - first) * PAGE, prot,
			MAP_PRIVATE | (library ? MAP_FIXED : 0) | flags, fd,
			fd < 0 ? 0 : first * PAGE);

	if (at == MAP_FAILED)
		exit(90);
	return at;
}

static long faults_now(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

static int is_right(const char *page, const char *text)
{
	size_t length = strlen(text);

	if (memcmp(page, text, length) != 0)
		return 0;
	for (; length < PAGE; length++)
		if (page[length])
			return 0;
	return 1;
}

/* Does one touch. Returns 1 if it succeeded and the page has the right contents, else 0. */
static int touch(const char *what, const char *word)
{
	static char anonymous[END];
	int number = atoi(what + 1);
	char *page = library + number * PAGE, text[64] = "";
	volatile char *at = page;
	long before = faults_now();

	switch (*what) {
	case 'r':
		(void)*at;
		break;
	case 'w':
		at[PAGE - 1] = 0;
		break;
	case 'h':
		return puts("ready") == EOF || fflush(stdout) || read(0, text, 1) >= 0;
	case 'u':
		return munmap(page, PAGE) == 0;
	case 'n':
		return mprotect(page, PAGE, PROT_NONE) == 0;
	case 'a':
		map(number, number + 1, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1);
		anonymous[number] = 1;
		return 1;
	}
	faults += faults_now() - before;
	if (number < BSS && !anonymous[number])
		snprintf(text, sizeof(text), "%s %d\n", word, number);
	return is_right(page, text);
}

int main(int argc, char **argv)
{
	int fd, deny, status = 0, right = 1;
	pid_t pid = 0;

	if (argc < 4)
		return 91;
	fd = open(argv[1], O_RDONLY);
	deny = strcmp(argv[3], "linker") == 0 ? MAP_DENYWRITE : 0;
	library = map(0, END, PROT_READ, deny, fd);
	map(DATA, BSS, PROT_READ | PROT_WRITE, deny, fd);
	map(BSS, END, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1);
	faults_now();
	for (int i = 4; i < argc; i++) {
		if (strcmp(argv[i], "f") != 0) {
			right &= touch(argv[i], argv[2]);
			continue;
		}
		pid = fork();
		if (pid) {
			waitpid(pid, &status, 0);
			return status || !right;
		}
	}
	printf("faults=%ld\n", faults);
	return fflush(stdout) || !right;
}
