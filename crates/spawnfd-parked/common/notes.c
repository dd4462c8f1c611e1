/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The environment variables and the files that start-up code looks up. The owner starts a program
 * cold if one of them has changed. */
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

/* Strings one after the other, each with its NUL. */
struct notes {
	size_t length;
	bool full;
	char text[SPAWNFD_NOTES_ROOM / 2 - 1];
};
static struct notes variables, files;
/* The owner has them: later lookups are the program's own. */
static bool reported;

/* Whether it is a new one. */
static bool note(struct notes *notes, const char *text)
{
	size_t length = strlen(text) + 1;

	if (length == 1 || reported)
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
	/* Landlock can forbid it: then a change of a library would not be noticed. */
	if (!spawnfd_each_line("/proc/self/maps", note_file_of))
		spawnfd_cannot_park("/proc cannot be read");
}

size_t spawnfd_report_notes(char *text)
{
	if (variables.full || files.full)
		spawnfd_cannot_park("too many names");
	memcpy(text, variables.text, variables.length);
	text += variables.length;
	*text++ = 0;
	memcpy(text, files.text, files.length);
	text[files.length] = 0;
	reported = true;
	return variables.length + files.length + 2;
}
