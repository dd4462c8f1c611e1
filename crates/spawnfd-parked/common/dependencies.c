/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The dependencies of a parked process: the environment variables, files and modules that start-up
 * code looks up. The owner starts a program cold if one of them has changed. */
#include "internal.h"

#include <string.h>

/* Contiguous strings, each with its NUL. */
struct names {
	size_t length;
	bool full;
	char text[SPAWNFD_DEPENDENCIES_SIZE];
};
static struct names variables, files, modules;
/* True once the parked process has sent the names to the owner. It does not record later lookups,
 * because the program makes them. */
static bool reported;

/* Adds a string. False if the list has the string already, or has no space for it. */
static bool add(struct names *names, const char *text)
{
	size_t length = strlen(text) + 1;

	if (length == 1 || reported)
		return false;
	for (const char *known = names->text; known < names->text + names->length;
	     known += strlen(known) + 1)
		if (!strcmp(known, text))
			return false;
	if (length > sizeof(names->text) - names->length) {
		names->full = true;
		return false;
	}
	memcpy(names->text + names->length, text, length);
	names->length += length;
	return true;
}

void spawnfd_record_variable(const char *name)
{
	add(&variables, name);
}

void spawnfd_forget_variable(const char *name)
{
	size_t length = strlen(name) + 1;

	for (char *entry = variables.text; entry < variables.text + variables.length;
	     entry += strlen(entry) + 1) {
		if (strcmp(entry, name))
			continue;
		variables.length -= length;
		memmove(entry, entry + length, (size_t)(variables.text + variables.length - entry));
		return;
	}
}

void spawnfd_record_file(const char *path)
{
	add(&files, path);
}

void spawnfd_record_module(const char *name)
{
	add(&modules, name);
}

bool spawnfd_record_mapping(const char *line)
{
	const char *path = strchr(line, '/');

	return path && strncmp(path, "/memfd:", 7) != 0 && strncmp(path, "/dev/", 5) != 0 &&
	       add(&files, path);
}

static void record_mapping(const char *line)
{
	spawnfd_record_mapping(line);
}

void spawnfd_record_mappings(void)
{
	/* If Landlock forbids the access to /proc, the owner would not notice a changed library. */
	if (!spawnfd_each_line("/proc/self/maps", record_mapping))
		spawnfd_cannot_park("/proc cannot be read");
}

size_t spawnfd_write_dependencies(char *text)
{
	const struct names *all[] = {&variables, &files, &modules};
	size_t length = 0;

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		if (all[i]->full || length + all[i]->length >= SPAWNFD_DEPENDENCIES_SIZE)
			spawnfd_cannot_park("too many names");
		memcpy(text + length, all[i]->text, all[i]->length);
		length += all[i]->length;
		text[length++] = 0;
	}
	reported = true;
	return length;
}
