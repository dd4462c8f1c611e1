# SPDX-License-Identifier: MIT OR Apache-2.0
"""Makes the modules of this folder importable in the suites of Python and Node.js."""
