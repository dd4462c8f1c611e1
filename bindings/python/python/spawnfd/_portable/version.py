# SPDX-License-Identifier: MIT OR Apache-2.0
"""The version of the package. scripts/check-tree.py compares it with Cargo.toml."""

VERSION = "0.1.0"
