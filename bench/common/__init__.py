# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the Python benchmarks share: the calls, their workspace and answers, statistics, machine."""
