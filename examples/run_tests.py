# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the test files of a directory, each as a program of its own, and repeats those that fail.

    pip install spawnfd
    python run_tests.py DIRECTORY [--timeout SECONDS]

The runner starts all test_*.py and test_*.sh files, a few at once. A test that hangs is ended after
its timeout, with the processes that it has started. The runner repeats failed tests once: a test
that fails and then passes is flaky. The exit status is 1 if a test fails twice.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import spawnfd as sf


def run_test(test: Path, timeout: float) -> sf.Result:
    command = [sys.executable, test.name] if test.suffix == ".py" else ["sh", test.name]
    return sf.run(command, cwd=test.parent, timeout=timeout, stderr="merge", keep=(0, 2_000))


def main(directory: Path, timeout: float) -> int:
    pending = sorted([*directory.glob("test_*.py"), *directory.glob("test_*.sh")])
    failures: dict[Path, sf.Result] = {}
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        for _round in range(2):
            # A blocking run uses the thread that calls it.
            results = pool.map(run_test, pending, [timeout] * len(pending))
            for test, result in zip(pending, results, strict=True):
                if not result.ok:
                    failures[test] = result
                else:
                    print(f"{'flaky' if failures.pop(test, None) else 'pass '} {test.name}")
            pending = sorted(failures)
    for test, result in sorted(failures.items()):
        why = f"exit code {result.code}" if result.stop == "exited" else result.stop
        print(f"FAIL  {test.name}: {why}\n{result.text}", end="")
    return 1 if failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--timeout", type=float, default=60)
    arguments = parser.parse_args()
    sys.exit(main(arguments.directory, arguments.timeout))
