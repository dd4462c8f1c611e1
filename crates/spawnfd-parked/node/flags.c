/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The flags with which a Node process can park. */
#include "node.h"

#include <stdlib.h>
#include <string.h>

bool spawnfd_node_takes_code(const char *flag)
{
	static const char *const all[] = {"-e", "--eval", "-p", "--print", "-pe"};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strcmp(flag, all[i]))
			return true;
	return false;
}

/* Whether the flag has effects before Node parks. Node cannot park with such a flag. */
static bool is_unsupported(const char *flag)
{
	static const char *const all[] = {
		"--inspect",
		"--debug",
		"--watch",
		"--test",
		"--run",
		"--env-file",
		"--icu-data-dir",
		"--openssl-config",
		"--experimental-config",
		"--cpu-prof",
		"--heap-prof",
		"--prof",
		"--trace-event",
		"--perf",
		"--title",
		"--build-snapshot",
		"--snapshot",
		"--report",
		"--permission",
		"--experimental-permission",
		"--allow-",
		"--experimental-sea",
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strncmp(flag, all[i], strlen(all[i])))
			return true;
	return *flag != '-' || !strcmp(flag, "-") || !strcmp(flag, "--");
}

/* Whether the flag makes Node run modules of the program before the main script. */
static bool loads_modules(const char *flag)
{
	static const char *const all[] = {"-r", "--require", "--import", "--loader",
					  "--experimental-loader"};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (!strncmp(flag, all[i], strlen(all[i])))
			return true;
	return false;
}

/* Whether NODE_OPTIONS contains a flag with which Node cannot park. */
static bool options_are_unsupported(bool late)
{
	char options[4096], *rest = options;
	const char *value = getenv("NODE_OPTIONS");

	if (!value)
		return false;
	if (strlen(value) >= sizeof(options))
		return true;
	strcpy(options, value);
	for (char *word; (word = strsep(&rest, " \t\"")) != NULL;)
		if (word[0] == '-' && (is_unsupported(word) || (late && loads_modules(word))))
			return true;
	return false;
}

/* Whether one of these variables has a relative path. Node uses their paths before it parks, but
 * the parked process does not have the program's working directory. */
static bool has_relative_path(void)
{
	static const char *const all[] = {"NODE_COMPILE_CACHE", "NODE_EXTRA_CA_CERTS",
					  "NODE_ICU_DATA", "OPENSSL_CONF"};

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		const char *value = getenv(all[i]);

		if (value && *value && *value != '/')
			return true;
	}
	return false;
}

const char *spawnfd_node_check_flags(char **flags, int count, bool late)
{
	bool code = count > 0 && spawnfd_node_takes_code(flags[count - 1]);

	if (options_are_unsupported(late))
		return "NODE_OPTIONS";
	if (has_relative_path())
		return "a relative path";
	/* Node writes the coverage files in an exit hook. exit_early() in late.c would skip that
	 * hook. */
	if (late && getenv("NODE_V8_COVERAGE"))
		return "NODE_V8_COVERAGE";
	for (int i = 0; i < count - code; i++) {
		if (spawnfd_node_takes_code(flags[i]) || is_unsupported(flags[i]))
			return "unsupported Node.js flag";
		if (late && loads_modules(flags[i]))
			return "no module can be loaded before parking";
	}
	return NULL;
}
