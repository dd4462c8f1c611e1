# SPDX-License-Identifier: MIT OR Apache-2.0
"""The exception for errors that a user of the benchmarks sees."""


class BenchError(Exception):
    """The benchmark cannot run, or an answer is wrong. The message says why."""
