# SPDX-License-Identifier: MIT OR Apache-2.0
"""The warm benchmark: short tools started cold, from a reserve, by fork, and by the platform."""
