# SPDX-License-Identifier: MIT OR Apache-2.0
"""bench-launch and bench-snapshot: drives the workers in Rust."""
