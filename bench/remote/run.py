# SPDX-License-Identifier: MIT OR Apache-2.0
"""Entry point: `python bench/remote/run.py --help`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from remotebench.cli import main

if __name__ == "__main__":
    sys.exit(main())
