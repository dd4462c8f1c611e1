# SPDX-License-Identifier: MIT OR Apache-2.0
"""CPython's own tests of subprocess and asyncio's, unmodified, with spawnfd installed.

Each interpreter runs the tests of its own `test` package; cold, and again with what they start most
parked ahead; and those that examine the interpreters they start, each of which finds one parked for
it. What fails has to stand in cpython/differences.txt, and what stands there has to fail.
`make test` runs them cold, and of the first version; `make test-all` runs all.
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
# Of the programs that could be started by spawnfd; it cannot do without a fork what these ask for.
SHARE = 0.95
NEEDS_A_FORK = {"preexec_fn"}
# How often what has failed has to pass then.
AGAIN = 3
# What a start has a hand in: command line, paths, locale, hash seed, signals, end.
OF_INTERPRETERS = [
    *["test.test_cmd_line", "test.test_cmd_line_script", "test.test_site", "test.test_utf8_mode"],
    *["test.test_c_locale_coercion", "test.test_hash", "test.test_faulthandler"],
    *["test.test_signal", "test.test_atexit"],
]
# The others have options with which an interpreter cannot wait (-i, --help), or that are wrong, or
# paths that are relative.
WARM_SHARE = 0.65


def listed(text: str, version: str, suite: str) -> dict[str, str]:
    """The known differences: test id and reason."""
    lines = [line.split(None, 2) for line in text.splitlines()]
    rows = [line for line in lines if line and not line[0].startswith("#")]
    assert all(len(row) == 3 for row in rows), "versions, test id, reason"
    return {
        test: reason
        for versions, test, reason in rows
        if version in versions.split(",") and test.startswith(f"{suite}.")
    }


def wrongly_listed(known: dict[str, str], outcome: dict[str, Any]) -> list[str]:
    """What is said to differ and does not, or is not there."""
    missing = [f"{test}: listed, but not there" for test in known if test not in outcome["ids"]]
    return missing + [
        f"{test}: listed, but passed"
        for test in known
        if test in outcome["ids"] and test not in outcome["bad"]
    ]


def run(python: str, package: str, cwd: Path, *tests: str, how: str = "cold") -> dict[str, Any]:
    """What cpython/run_suite.py finds."""
    command = [python, "-X", "faulthandler", str(HERE / "run_suite.py"), package, how]
    command += tests
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace")
    lines = ended.stdout.rstrip().rpartition("\n")
    assert lines[2].startswith("{"), f"{ended.returncode}: {ended.stdout}{ended.stderr}"
    outcome: dict[str, Any] = json.loads(lines[2])
    return outcome


def assert_none_is_ours(
    python: str,
    bad: dict[str, str],
    cwd: Path,
    capsys: pytest.CaptureFixture[str],
    without: str,
    how: str = "cold",
) -> None:
    """What has failed fails `without`, too, or passes again and again; it is named.

    Some tests have clocks of their own, by which a machine can be too slow once.
    """
    if not bad:
        return
    others = run(python, without, cwd, *bad)["bad"]
    again = run(python, str(PACKAGE), cwd, *[*bad] * AGAIN, how=how)
    passed = {test for test in bad if again["ids"].count(test) == AGAIN} - again["bad"].keys()
    ours = bad.keys() - others.keys() - passed
    assert not ours, "\n".join(f"{test}:\n{bad[test]}" for test in sorted(ours))
    with capsys.disabled():
        print(f"fails here without it, too: {sorted(bad.keys() & others.keys())}")
        for test in sorted(passed - others.keys()):
            print(f"has failed once: {test}:\n{bad[test]}")


def test_the_list_is_checked() -> None:
    text = "# a b c\n3.11,3.12 test.suite.A.one asserts a private name\n\n3.12 test.suite.B.two why"
    known = listed(text, "3.12", "test.suite")
    assert known == {"test.suite.A.one": "asserts a private name", "test.suite.B.two": "why"}
    assert listed(text, "3.11", "test.suite").keys() == {"test.suite.A.one"}
    assert listed(text, "3.11", "test.other") == {}
    with pytest.raises(AssertionError):
        listed("3.11 test.suite.A.one", "3.11", "test.suite")
    assert wrongly_listed(known, {"ids": [*known], "bad": dict.fromkeys(known, "")}) == []
    assert wrongly_listed(known, {"ids": ["test.suite.A.one"], "bad": {}}) == [
        "test.suite.B.two: listed, but not there",
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
    # What fails cold, too, is not about warm starts.
    assert_none_is_ours(python, bad, tmp_path, capsys, str(PACKAGE), "warm")
    only = (HERE / "cold_only.txt").read_text().split()
    assert not {*only} & {*outcome["ids"]}
    # The rest finds nothing parked yet, or asks for what only a child has.
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
    assert_none_is_ours(python, bad, tmp_path, capsys, "-", mode)
    # A machine may let one wait for too long.
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
    # What fails without us, too, is the machine's (no root, no /proc, ...).
    assert_none_is_ours(python, bad, tmp_path, capsys, "-")
    assert share >= SHARE
