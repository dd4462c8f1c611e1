# SPDX-License-Identifier: MIT OR Apache-2.0
"""bench-posix: posix_spawn of glibc against that of the C library."""
