# SPDX-License-Identifier: MIT OR Apache-2.0
"""The one exception a user of the benchmark is meant to see."""


class BenchError(Exception):
    """The benchmark cannot run, or a result is wrong; the message says which and why."""
