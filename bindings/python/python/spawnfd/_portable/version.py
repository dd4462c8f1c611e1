# SPDX-License-Identifier: MIT OR Apache-2.0
# scripts/generate writes this file.
"""The version of the package, which Cargo.toml sets."""

VERSION = "0.1.0"
