# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compares the times of two builds of this project, measured in turns in one run."""
