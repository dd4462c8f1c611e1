# SPDX-License-Identifier: MIT OR Apache-2.0
"""Shared by the Python benchmarks: calls, workspace, references, statistics, machine facts."""
