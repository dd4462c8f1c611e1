# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs unmodified test modules of CPython, with spawnfd installed or without.

    python run_suite.py <directory of the package, or "-"> <how> <test id> ...

<how> is one of:
- "cold": no warm starts.
- "warm": the programs that the tests start most are parked first. Tests in cold_only.txt are
  left out.
- "reserve" or "fork": for each interpreter that the tests start, one is parked in this mode.

Prints one JSON object as its last line.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

# This test compares the process's descriptors before and after. Each parked process has two
# descriptors in its owner, and the keeper thread parks and ends processes at any time.
COUNT_DESCRIPTORS = "test_failed_child_execute_fd_leak"


class Result(unittest.TextTestResult):
    """Stores the failures by the id of the test. A subtest counts for its test."""

    warm: Any = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.bad: dict[str, str] = {}
        self.ids: list[str] = []

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        if self.warm is not None:
            # Without this call, the machine's speed would decide how many programs start warm.
            self.warm.fill(60)
            if COUNT_DESCRIPTORS in test.id():
                settle(self.warm)
        self.ids.append(test.id())

    def _note(self, test: Any, error: Any) -> None:
        test = getattr(test, "test_case", test)
        self.bad[test.id()] = "".join(traceback.format_exception(*error)[-6:])

    def addError(self, test: Any, err: Any) -> None:
        super().addError(test, err)
        self._note(test, err)

    def addFailure(self, test: Any, err: Any) -> None:
        super().addFailure(test, err)
        self._note(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note(test, err)

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self.bad[test.id()] = "unexpected success"


def settle(warm: Any) -> None:
    """Returns once all programs are parked and the descriptors stay the same."""
    warm.fill(60)
    before: list[str] = []
    while before != (now := os.listdir("/proc/self/fd")):
        before = now
        time.sleep(0.5)


def options(words: list[str]) -> list[str]:
    """Returns the options before -c, -m, "-" or a script."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word in ("-", "-c", "-m"):
            break
        found += [word, next(rest, "")] if word in ("-X", "-W") else [word]
    return found


def park_each(mode: Any) -> None:
    """Makes each start of an interpreter park another one with the same options and environment."""
    original: Any = subprocess.Popen.__init__

    @functools.wraps(original)
    def init(self: Any, args: Any, *others: Any, **named: Any) -> None:
        if isinstance(args, (str, bytes, os.PathLike)):
            return original(self, args, *others, **named)
        words: list[str] = [os.fsdecode(word) for word in args]
        if not words or not os.path.basename(words[0]).startswith("python"):
            return original(self, words, *others, **named)
        import spawnfd

        with spawnfd.Warm(mode=mode) as warm:
            warm.add(words[0], depth=1, args=options(words[1:]), env=named.get("env"))
            warm.fill(60)
            spawnfd.install(warm=warm)
            return original(self, words, *others, **named)

    subprocess.Popen.__init__ = init


def without(names: set[str], tests: unittest.TestSuite) -> unittest.TestSuite:
    """Returns the suite without the tests of these names."""
    left = unittest.TestSuite()
    for test in tests:
        if isinstance(test, unittest.TestSuite):
            left.addTest(without(names, test))
        elif test.id() not in names:
            left.addTest(test)
    return left


def main(package: str, how: str, *names: str) -> None:
    """Runs the tests, and prints ids, failures, the count of skipped tests, and the counters."""
    stats: Any = None
    warm: Any = None
    if package != "-":
        # The tests' programs would inherit PYTHONPATH, so sys.path names the package. It is last,
        # so that it hides no other module.
        sys.path.append(package)
        import spawnfd

        if how == "warm":
            warm = spawnfd.Warm(keep=8)
            warm.add(sys.executable, depth=4)
            warm.add("/bin/sh")
            warm.fill(60)
        spawnfd.install(warm=warm)
        if how in ("reserve", "fork"):
            park_each(how)
        stats = spawnfd.stats
    tests = unittest.defaultTestLoader.loadTestsFromNames(names)
    if how == "warm":
        lines = (Path(__file__).parent / "cold_only.txt").read_text().splitlines()
        tests = without({line for line in lines if not line.startswith("#")}, tests)
    Result.warm = warm
    result: Any = unittest.TextTestRunner(resultclass=Result, verbosity=0).run(tests)
    now = stats and stats()
    outcome = {
        "ids": result.ids,
        "bad": result.bad,
        "skipped": len(result.skipped),
        "counters": now
        and {
            "made": now.made,
            "passed": dict(now.passed),
            "failed": now.failed,
            "warm": now.warm,
            "cold": dict(now.cold),
        },
    }
    print("\n" + json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
