/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Starts a program from a process that has been started ahead: warm PROGRAM [ARGUMENT...]. Prints
 * the program's output, and how the program started. */
#include <spawnfd.h>
#include <stdio.h>
#include <stdlib.h>

static struct spawnfd_error error = SPAWNFD_ERROR_INIT;

static void check(int ok)
{
	if (!ok) {
		fprintf(stderr, "warm: %s\n", error.message);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const char **arguments = (const char **)argv + 1;
	struct spawnfd_command *command = spawnfd_command_new(arguments, &error);
	struct spawnfd_warm *warm = spawnfd_warm_new(0, 0, &error);
	struct spawnfd_result *result;

	check(argc > 1 && command && warm);
	check(spawnfd_warm_add(warm, argv[1], 1, &error) == 0);
	check(spawnfd_warm_fill(warm, 60000, &error) >= 0);
	check(spawnfd_command_set_warm(command, warm, &error) == 0);
	result = spawnfd_run(command, &error);
	check(result != NULL);
	printf("%s", spawnfd_result_text(result, "stdout", NULL, NULL));
	printf("%s\n", spawnfd_result_text(result, "started", NULL, NULL));
	spawnfd_result_free(result);
	spawnfd_warm_free(warm);
	spawnfd_command_free(command);
	return 0;
}
