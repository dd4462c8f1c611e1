/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reads the owner's parameters from the environment variable SPAWNFD_PARK: enum spawnfd_park_field.
 */
#include "internal.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct parking parking;

static char **find_variable(char **environment, const char *name, size_t length)
{
	for (; environment && *environment; environment++)
		if (!strncmp(*environment, name, length) && (*environment)[length] == '=')
			return environment;
	return NULL;
}

char *spawnfd_value_in(char **environment, const char *name, size_t length)
{
	char **entry = find_variable(environment, name, length);

	return entry ? *entry + length + 1 : NULL;
}

static void remove_variable(const char *name)
{
	char **entry = find_variable(environ, name, strlen(name));

	for (; entry && *entry; entry++)
		*entry = entry[1];
}

void spawnfd_detect_parking(void)
{
	static bool detected;
	char *position;
	unsigned long long numbers[SPAWNFD_PARK_KIND];
	int page, output;
	struct stat executable;

	if (detected)
		return;
	detected = true;
	position = spawnfd_value_in(environ, SPAWNFD_PARK_VARIABLE, strlen(SPAWNFD_PARK_VARIABLE));
	if (!position)
		return;
	for (int i = 0; i < SPAWNFD_PARK_KIND; i++, position++) {
		numbers[i] = strtoull(position, &position, 10);
		if (*position != ':')
			return;
	}
	if (!position[0] || position[1] != ':' || !position[2])
		return;
	output = position[3] == ':' ? atoi(position + 4) : 0;
	/* Without the executable's identity, this code cannot tell whether this program must park.
	 * A program that must park must not run, so exit. */
	if (stat("/proc/self/exe", &executable))
		_exit(126);
	if (executable.st_dev != numbers[SPAWNFD_PARK_DEVICE] ||
	    executable.st_ino != numbers[SPAWNFD_PARK_INODE])
		return;
	parking.connection.socket = (int)numbers[SPAWNFD_PARK_SOCKET];
	parking.connection.owner_pidfd = (int)numbers[SPAWNFD_PARK_OWNER];
	parking.object = (int)numbers[SPAWNFD_PARK_OBJECT];
	page = (int)numbers[SPAWNFD_PARK_PAGE];
	parking.kind = position[0];
	parking.mode = position[2];
	remove_variable(SPAWNFD_PARK_VARIABLE);
	remove_variable("LD_PRELOAD");
	parking.connection.page = spawnfd_map_page(page);
	close(page);
	if (!parking.connection.page || !spawnfd_record_state())
		_exit(126);
	fcntl(parking.connection.socket, F_SETFD, FD_CLOEXEC);
	fcntl(parking.connection.owner_pidfd, F_SETFD, FD_CLOEXEC);
	fcntl(parking.object, F_SETFD, FD_CLOEXEC);
	if (output)
		spawnfd_capture_output(output);
	parking.active = true;
	/* A program that does not start through libc would run instead of parking. Go's own linker
	 * makes such programs. */
	if (!spawnfd_imports("__libc_start_main"))
		spawnfd_cannot_park("entry point outside libc");
	if (spawnfd_has_preinit())
		spawnfd_cannot_park("preinit_array");
}

bool spawnfd_in_fork_mode(void)
{
	return parking.mode == SPAWNFD_MODE_FORK;
}

_Noreturn void spawnfd_cannot_park(const char *why)
{
	spawnfd_send_reply(&parking.connection,
			   (struct spawnfd_reply){.kind = SPAWNFD_REPLY_CANNOT}, why, strlen(why),
			   -1);
	_exit(126);
}

char *spawnfd_take_variable(const char *name)
{
	char *value = getenv(name);

	value = value ? strdup(value) : NULL;
	unsetenv(name);
	spawnfd_forget_variable(name);
	return value;
}
