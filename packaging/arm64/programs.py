# SPDX-License-Identifier: MIT OR Apache-2.0
"""Compiles the programs of the C guide for arm64, where the guest has no compiler.

    python3 programs.py LIBRARY OUT

LIBRARY has the contents of libspawnfd0 and libspawnfd-dev. OUT gets two programs for each example,
linked dynamically and statically with libspawnfd, and what they must print.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "packaging"))

from check_root import Packages


def main() -> None:
    """Compiles the programs."""
    library, out = map(Path, sys.argv[1:])
    guide = (ROOT / "docs/guides/c.md").read_text()
    options = ["-Wall", "-Wextra", "-Werror", f"-I{library}/usr/include"]
    folder = f"-L{library}/usr/lib/aarch64-linux-gnu"
    linked = {
        "dynamic": [folder, "-lspawnfd"],
        "static": [folder, "-l:libspawnfd.a", "-ldl", "-lm", "-lpthread"],
    }
    for number, (code, output) in enumerate(Packages(ROOT, out, out).examples("c", guide)):
        for how, libraries in linked.items():
            program = out / f"{number}-{how}"
            command = ["aarch64-linux-gnu-gcc", *options, "-x", "c", "-", "-x", "none"]
            command += ["-o", str(program), *libraries]
            subprocess.run(command, input=code, text=True, check=True, timeout=120)
            Path(f"{program}.expected").write_text(output)


if __name__ == "__main__":
    main()
