/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Replaces libc's clock_gettime() by a clock that stands still until the test advances it. */
#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in ns. The compiler's command line defines the first value. */
uint64_t fake_time = FIRST_TIME;

int clock_gettime(clockid_t clock, struct timespec *time)
{
	/* Other clocks are 50 years ahead. */
	uint64_t seconds = fake_time / 1000000000 + (clock == CLOCK_MONOTONIC ? 0 : 1576800000);

	*time = (struct timespec){(time_t)seconds, (long)(fake_time % 1000000000)};
	return 0;
}
