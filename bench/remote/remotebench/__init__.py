# SPDX-License-Identifier: MIT OR Apache-2.0
"""The remote benchmark: programs on the other side of a pipe, over ssh and in a container."""
