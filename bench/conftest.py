# SPDX-License-Identifier: MIT OR Apache-2.0
"""Its place puts bench/ on the path of the tests below it, for bench/common."""
