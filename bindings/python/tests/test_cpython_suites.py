# SPDX-License-Identifier: MIT OR Apache-2.0
"""CPython's own tests of subprocess and asyncio.subprocess, unmodified, with spawnfd installed.

Each interpreter runs the tests of its own `test` package: once cold, and once with the programs
parked that the tests start most. Test modules about the interpreter itself run with a parked
interpreter for each interpreter that they start.

cpython/differences.txt lists the tests that may fail. A listed test that passes is an error.
`make test` runs the first version cold; `make test-all` runs everything.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import spawnfd as sf
from interpreters import interpreter

HERE = Path(__file__).parent / "cpython"
PACKAGE = Path(sf.__file__).parent.parent
SUITES = ["test.test_subprocess", "test.test_asyncio.test_subprocess"]
VERSIONS = ["3.11", "3.12", "3.13"]
# The least share of programs that spawnfd must start, of those that it could start. A program with
# preexec_fn needs a fork, which spawnfd does not do.
SHARE = 0.95
NEEDS_A_FORK = {"preexec_fn"}
# How often a failed test must pass afterwards to count as flaky.
AGAIN = 3
# Modules that test what a start affects: command line, paths, locale, hash seed, signals, exit.
OF_INTERPRETERS = [
    *["test.test_cmd_line", "test.test_cmd_line_script", "test.test_site", "test.test_utf8_mode"],
    *["test.test_c_locale_coercion", "test.test_hash", "test.test_faulthandler"],
    *["test.test_signal", "test.test_atexit"],
]
# The least share of warm starts. The other interpreters cannot be parked: options such as -i and
# --help, invalid options, or relative paths.
WARM_SHARE = 0.65


def listed(text: str, version: str, suite: str) -> dict[str, str]:
    """The known differences: reasons by test id."""
    lines = [line.split(None, 2) for line in text.splitlines()]
    rows = [line for line in lines if line and not line[0].startswith("#")]
    assert all(len(row) == 3 for row in rows), "versions, test id, reason"
    return {
        test: reason
        for versions, test, reason in rows
        if version in versions.split(",") and test.startswith(f"{suite}.")
    }


def wrongly_listed(known: dict[str, str], outcome: dict[str, Any]) -> list[str]:
    """Errors for listed tests that pass or do not exist."""
    missing = [f"{test}: listed, but missing" for test in known if test not in outcome["ids"]]
    return missing + [
        f"{test}: listed, but passed"
        for test in known
        if test in outcome["ids"] and test not in outcome["bad"]
    ]


def run(python: str, package: str, cwd: Path, *tests: str, how: str = "cold") -> dict[str, Any]:
    """The report of cpython/run_suite.py."""
    command = [python, "-X", "faulthandler", str(HERE / "run_suite.py"), package, how]
    command += tests
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace")
    lines = ended.stdout.rstrip().rpartition("\n")
    assert lines[2].startswith("{"), f"{ended.returncode}: {ended.stdout}{ended.stderr}"
    outcome: dict[str, Any] = json.loads(lines[2])
    return outcome


def assert_failures_are_not_ours(
    python: str,
    bad: dict[str, str],
    cwd: Path,
    capsys: pytest.CaptureFixture[str],
    without: str,
    how: str = "cold",
) -> None:
    """Asserts that each failed test fails `without` spawnfd too, or passes when run again.

    Some tests have their own time limits, which a slow machine may miss once. Prints the tests.
    """
    if not bad:
        return
    others = run(python, without, cwd, *bad)["bad"]
    again = run(python, str(PACKAGE), cwd, *[*bad] * AGAIN, how=how)
    passed = {test for test in bad if again["ids"].count(test) == AGAIN} - again["bad"].keys()
    ours = bad.keys() - others.keys() - passed
    assert not ours, "\n".join(f"{test}:\n{bad[test]}" for test in sorted(ours))
    with capsys.disabled():
        print(f"also fails without it: {sorted(bad.keys() & others.keys())}")
        for test in sorted(passed - others.keys()):
            print(f"failed once: {test}:\n{bad[test]}")


def test_list_of_differences_is_checked() -> None:
    text = "# a b c\n3.11,3.12 test.suite.A.one asserts a private name\n\n3.12 test.suite.B.two why"
    known = listed(text, "3.12", "test.suite")
    assert known == {"test.suite.A.one": "asserts a private name", "test.suite.B.two": "why"}
    assert listed(text, "3.11", "test.suite").keys() == {"test.suite.A.one"}
    assert listed(text, "3.11", "test.other") == {}
    with pytest.raises(AssertionError):
        listed("3.11 test.suite.A.one", "3.11", "test.suite")
    assert wrongly_listed(known, {"ids": [*known], "bad": dict.fromkeys(known, "")}) == []
    assert wrongly_listed(known, {"ids": ["test.suite.A.one"], "bad": {}}) == [
        "test.suite.B.two: listed, but missing",
        "test.suite.A.one: listed, but passed",
    ]


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("version", VERSIONS)
def test_suite_warm(
    version: str, suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(version, *SUITES)
    outcome = run(python, str(PACKAGE), tmp_path, suite, how="warm")
    known = listed((HERE / "differences.txt").read_text(), version, suite)
    bad = {test: text for test, text in outcome["bad"].items() if test not in known}
    counters = outcome["counters"]
    with capsys.disabled():
        print(
            f"\n{suite} of {version}, warm: {len(outcome['ids'])} run; {counters['warm']} of "
            f"{counters['made']} programs from parked processes, cold: {counters['cold']}"
        )
    # A test that also fails cold does not fail because of warm starts.
    assert_failures_are_not_ours(python, bad, tmp_path, capsys, str(PACKAGE), "warm")
    only = (HERE / "cold_only.txt").read_text().split()
    assert not {*only} & {*outcome["ids"]}
    # The other starts find no parked process yet, or have options that only a cold start can do.
    assert counters["warm"] >= counters["made"] // 5


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", ["reserve", "fork"])
@pytest.mark.parametrize("suite", OF_INTERPRETERS)
@pytest.mark.parametrize("version", VERSIONS[:1])
def test_suite_of_warm_interpreters(
    version: str, suite: str, mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(version, suite)
    outcome = run(python, str(PACKAGE), tmp_path, suite, how=mode)
    known = listed((HERE / "differences.txt").read_text(), version, suite)
    assert not wrongly_listed(known, outcome)
    bad = {test: text for test, text in outcome["bad"].items() if test not in known}
    counters = outcome["counters"]
    with capsys.disabled():
        print(
            f"\n{suite} of {version}, {mode}: {len(outcome['ids'])} run, {outcome['skipped']} "
            f"skipped; {counters['warm']} of {counters['made']} programs from parked processes"
        )
    assert_failures_are_not_ours(python, bad, tmp_path, capsys, "-", mode)
    # On a busy machine a parked process may answer too late.
    warm = counters["warm"] + counters["cold"].get("slow", 0)
    assert warm >= max(1, counters["made"] * WARM_SHARE), counters


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize(
    "version", [VERSIONS[0], *(pytest.param(v, marks=pytest.mark.full) for v in VERSIONS[1:])]
)
def test_suite(
    version: str, suite: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(version, *SUITES)
    outcome = run(python, str(PACKAGE), tmp_path, suite)
    known = listed((HERE / "differences.txt").read_text(), version, suite)
    assert not wrongly_listed(known, outcome)

    counters = outcome["counters"]
    made, passed = counters["made"], counters["passed"]
    could = made + sum(count for reason, count in passed.items() if reason not in NEEDS_A_FORK)
    share = made / could
    with capsys.disabled():
        print(
            f"\n{suite} of {version}: {len(outcome['ids'])} run, {outcome['skipped']} skipped, "
            f"{len(known)} known to differ; {made} of {could} programs started by spawnfd "
            f"({share:.1%}), left to the original: {passed or 'none'}"
        )

    bad = {test: text for test, text in outcome["bad"].items() if test not in known}
    # A test that also fails without spawnfd fails because of the machine (no root, no /proc, ...).
    assert_failures_are_not_ours(python, bad, tmp_path, capsys, "-")
    assert share >= SHARE
