# SPDX-License-Identifier: MIT OR Apache-2.0
"""The node benchmark: captured runs of small tools by the platform, spawnfd and a C loop."""
