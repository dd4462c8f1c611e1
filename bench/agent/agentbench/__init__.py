# SPDX-License-Identifier: MIT OR Apache-2.0
"""The agent-tools benchmark: real programs, started by two harnesses through several backends."""
