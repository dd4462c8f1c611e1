# SPDX-License-Identifier: MIT OR Apache-2.0
"""Entry point: `python bench/agent/run.py --help`."""

import sys

from agentbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
